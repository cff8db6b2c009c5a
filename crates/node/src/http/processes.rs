//! Processes of a guest.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{Problem, ProcessList, SignalRequest};

use super::extract::{Caller, Json, Path};
use super::problem::Refusal;
use super::{App, json};

/// Every process.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes", tag = "processes", params(("id" = String, Path)),
    responses((status = 200, body = ProcessList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.processes(&who, &id).await?)
}

/// Send a signal.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{pid}/signal", tag = "processes",
    params(("id" = String, Path), ("pid" = i32, Path)), request_body = SignalRequest,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn signal(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, pid)): Path<(String, i32)>,
    Json(request): Json<SignalRequest>,
) -> Result<Response, Refusal> {
    app.service.signal(&who, &id, pid, request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
