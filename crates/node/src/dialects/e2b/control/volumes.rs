//! Volumes. What is in them is reached through sandboxes only.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{CreateVolume, Volume};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Caller, Json, Path};
use super::{Control, json};
use crate::dialects::e2b::Fault;

/// Body of `POST /volumes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    name: String,
}

/// `POST /volumes`.
pub async fn create(
    State(control): State<Control>,
    Caller(who): Caller,
    Json(body): Json<NewVolume>,
) -> Result<Response, Fault> {
    let request = CreateVolume { name: body.name, size_mib: None };
    let volume = control.service().create_volume(&who, request).await?;
    Ok(json(StatusCode::CREATED, &with_token(&control, &volume)))
}

/// `GET /volumes`.
pub async fn list(State(control): State<Control>, Caller(who): Caller) -> Result<Response, Fault> {
    let list = control.service().list_volumes(&who).await?;
    let shown = |volume: &Volume| json!({"volumeID": volume.id, "name": volume.name});
    Ok(json(StatusCode::OK, &list.volumes.iter().map(shown).collect()))
}

/// `GET /volumes/{id}`.
pub async fn get(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let volume = control.service().get_volume(&who, &id).await?;
    Ok(json(StatusCode::OK, &with_token(&control, &volume)))
}

/// `DELETE /volumes/{id}`.
pub async fn remove(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    control.service().delete_volume(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Anything below `/volumecontent`.
pub async fn content() -> Fault {
    Fault::unsupported("the content of volumes outside of sandboxes; mount the volume in one")
}

fn with_token(control: &Control, volume: &Volume) -> Value {
    let token = control.e2b.keys.volume_token(&volume.id);
    json!({"volumeID": volume.id, "name": volume.name, "token": token})
}
