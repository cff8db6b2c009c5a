//! Secrets that rules of the network name. One is known by its name, in lower case, which is also its id.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::network::{PutSecret, Secret};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Caller, Json, Path, Query};
use super::{Control, json, list, time};
use crate::auth::Principal;
use crate::dialects::e2b::Fault;

/// Body of `POST /secrets`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    name: String,
    value: String,
    metadata: Option<Value>,
}

/// Body of `POST /secrets/{name}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    value: String,
    metadata: Option<Value>,
}

/// Query of `GET /secrets`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    limit: Option<usize>,
    #[serde(rename = "nextToken")]
    next: Option<String>,
}

/// `POST /secrets`.
pub async fn create(
    State(control): State<Control>,
    Caller(who): Caller,
    Json(body): Json<NewSecret>,
) -> Result<Response, Fault> {
    refuse_metadata(body.metadata.as_ref())?;
    let name = body.name.to_ascii_lowercase();
    if find(&control, &who, &name).is_ok() {
        let text = format!("there is a secret {name} already; update it");
        return Err(Fault::new(StatusCode::CONFLICT, text));
    }
    let request = PutSecret { value: body.value };
    let secret = control.service().put_secret(&who, &name, request).await?;
    Ok(json(StatusCode::CREATED, &shown(&secret)))
}

/// `GET /secrets`.
pub async fn list(
    State(control): State<Control>,
    Caller(who): Caller,
    Query(query): Query<Wanted>,
) -> Result<Response, Fault> {
    let all = control.service().secrets(&who)?.secrets;
    let (page, next) =
        list::page(all, query.limit, query.next.as_deref(), |secret| secret.name.clone())?;
    let mut response = json(StatusCode::OK, &page.iter().map(shown).collect());
    list::tell_next(&mut response, next);
    Ok(response)
}

/// `GET /secrets/{name}`.
pub async fn get(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    Ok(json(StatusCode::OK, &shown(&find(&control, &who, &name)?)))
}

/// `POST /secrets/{name}`.
pub async fn update(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Json(body): Json<Update>,
) -> Result<Response, Fault> {
    refuse_metadata(body.metadata.as_ref())?;
    let name = find(&control, &who, &name)?.name;
    let request = PutSecret { value: body.value };
    let secret = control.service().put_secret(&who, &name, request).await?;
    Ok(json(StatusCode::OK, &shown(&secret)))
}

/// `DELETE /secrets/{name}`.
pub async fn remove(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let name = find(&control, &who, &name)?.name;
    control.service().delete_secret(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn refuse_metadata(metadata: Option<&Value>) -> Result<(), Fault> {
    let said =
        |value: &Value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty());
    match metadata.is_some_and(said) {
        true => Err(Fault::unsupported("metadata of secrets")),
        false => Ok(()),
    }
}

fn find(control: &Control, who: &Principal, name: &str) -> Result<Secret, Fault> {
    let mut all = control.service().secrets(who)?.secrets.into_iter();
    all.find(|secret| secret.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        Fault::new(StatusCode::NOT_FOUND, format!("the secret {name:?} was not found"))
    })
}

fn shown(secret: &Secret) -> Value {
    json!({
        "secretID": secret.name,
        "name": secret.name,
        "currentVersion": 1,
        "metadata": {},
        "createdAt": time::of_ms(secret.created_at_ms),
        "updatedAt": time::of_ms(secret.updated_at_ms),
    })
}
