//! Processes that are waited for.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::{ExecRequest, ExecResult, Problem};

use super::extract::{Caller, Json, Path};
use super::problem::Refusal;
use super::{App, json};

/// Run a process to its end.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec", tag = "processes", params(("id" = String, Path)),
    request_body = ExecRequest, responses((status = 200, body = ExecResult), (status = "4XX", body = Problem),
        (status = "5XX", body = Problem)))]
pub async fn exec(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<ExecRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.exec(&who, &id, request).await?)
}
