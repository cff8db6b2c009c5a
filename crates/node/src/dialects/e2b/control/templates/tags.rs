//! Tags of templates.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::extract::{Caller, Json, Path};
use super::super::{Control, json, time};
use super::known::{self, Status};
use super::reference::Name;
use crate::dialects::e2b::Fault;

/// Most tags of a template.
const TAGS_MAX: usize = 100;

/// Body of `POST /templates/tags`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    target: String,
    tags: Vec<String>,
}

/// `POST /templates/tags`: more tags for what a name and tag mean.
pub async fn assign(
    State(control): State<Control>,
    Caller(who): Caller,
    Json(body): Json<Assign>,
) -> Result<Response, Fault> {
    let target = Name::parse(&who, &body.target)?;
    check(&who, &body.tags)?;
    let (build, dropped) = known::change(&control, &who, &target.name, false, |known| {
        let build = known.tagged(&target.tag).filter(|build| build.status == Status::Ready);
        let build = build.map(|build| build.id.clone()).ok_or_else(|| {
            Fault::new(StatusCode::NOT_FOUND, format!("there is no {:?}", target.to_string()))
        })?;
        known.point(&body.tags, &build);
        if known.tags.len() > TAGS_MAX {
            return Err(Fault::bad(format!("a template has at most {TAGS_MAX} tags")));
        }
        Ok((build, known.prune()))
    })?;
    super::drop_templates(&control, &who, &dropped).await;
    Ok(json(StatusCode::CREATED, &json!({"tags": body.tags, "buildID": build})))
}

/// Tags are parts of names.
pub fn check(who: &crate::auth::Principal, tags: &[String]) -> Result<(), Fault> {
    tags.iter().try_for_each(|tag| Name::parse(who, &format!("x:{tag}")).map(drop))
}

/// Body of `DELETE /templates/tags`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    name: String,
    tags: Vec<String>,
}

/// `DELETE /templates/tags`.
pub async fn remove(
    State(control): State<Control>,
    Caller(who): Caller,
    Json(body): Json<Remove>,
) -> Result<Response, Fault> {
    let name = Name::parse(&who, &body.name)?;
    let dropped = known::change(&control, &who, &name.name, false, |known| {
        for tag in &body.tags {
            if known.tags.remove(tag).is_none() {
                let text = format!("the template {:?} has no tag {tag:?}", known.name);
                return Err(Fault::new(StatusCode::NOT_FOUND, text));
            }
        }
        Ok(known.prune())
    })?;
    super::drop_templates(&control, &who, &dropped).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET /templates/{id}/tags`.
pub async fn list(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let known = known::find(&control, &who, &Name::parse(&who, &id)?.name)?;
    let tags: Value = known
        .tags
        .iter()
        .map(|(tag, to)| json!({"tag": tag, "buildID": to.build, "createdAt": time::of_ms(to.at_ms)}))
        .collect();
    Ok(json(StatusCode::OK, &tags))
}
