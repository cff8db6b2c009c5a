//! Volumes, and giving them to sandboxes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{AttachVolume, CreateVolume, Problem, Sandbox, Volume, VolumeList};

use super::extract::{Caller, Json, Path};
use super::problem::Refusal;
use super::{App, json};

/// Make a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = CreateVolume,
    responses((status = 201, body = Volume), (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<CreateVolume>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create_volume(&who, request).await?)
}

/// The caller's volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, body = VolumeList), (status = "4XX", body = Problem)))]
pub async fn list(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.list_volumes(&who).await?)
}

/// A volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses((status = 200, body = Volume), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get_volume(&who, &volume).await?)
}

/// Remove a volume that no sandbox has.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_volume(&who, &volume).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Give a running sandbox a volume.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/volumes", tag = "volumes", params(("id" = String, Path)),
    request_body = AttachVolume, responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn attach(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<AttachVolume>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.attach_volume(&who, &id, request).await?)
}

/// Take a volume, or a snapshot of one, from a running sandbox: by name or id.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/volumes/{volume}", tag = "volumes",
    params(("id" = String, Path), ("volume" = String, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn detach(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, volume)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.detach_volume(&who, &id, &volume).await?)
}
