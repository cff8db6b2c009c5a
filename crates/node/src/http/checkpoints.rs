//! Checkpoints, and going back to them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{
    Checkpoint, CheckpointList, CreateCheckpoint, Problem, RewindRequest, Swapped,
};

use super::extract::{Caller, Json, Path};
use super::problem::Refusal;
use super::{App, json};

/// Freeze a moment of a sandbox, which goes on.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/checkpoints", tag = "checkpoints", params(("id" = String, Path)),
    request_body = CreateCheckpoint, responses((status = 201, body = Checkpoint), (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<CreateCheckpoint>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.checkpoint(&who, &id, request.name).await?)
}

/// A sandbox's checkpoints.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/checkpoints", tag = "checkpoints", params(("id" = String, Path)),
    responses((status = 200, body = CheckpointList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.checkpoints(&who, &id)?)
}

/// End a checkpoint.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/checkpoints/{cid}", tag = "checkpoints",
    params(("id" = String, Path), ("cid" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, cid)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    app.service.delete_checkpoint(&who, &id, &cid).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The sandbox goes back to a checkpoint.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/rewind", tag = "checkpoints", params(("id" = String, Path)),
    request_body = RewindRequest, responses((status = 200, body = Swapped), (status = "4XX", body = Problem)))]
pub async fn rewind(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<RewindRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.rewind(&who, &id, request.checkpoint).await?)
}
