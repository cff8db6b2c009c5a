//! Sandboxes: create to delete, fork, pause, promote, and what they are.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{
    CreateSandbox, Created, Diff, DiffRequest, ForkRequest, Forked, ListQuery, Logs, PauseRequest,
    Problem, PromoteRequest, Sandbox, SandboxList, Stats, Swapped, Tree, UpdateSandbox,
};

use super::extract::{Caller, Empty, Json, Key, Path, Query};
use super::problem::{self, Refusal};
use super::{App, json};

/// Make a sandbox from a template.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandbox,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 201, body = Created), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Key(key): Key,
    Json(request): Json<CreateSandbox>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create(&who, request, key).await?)
}

/// A page of sandboxes.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = SandboxList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.list(&who, &query)?)
}

/// A sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get(&who, &id)?)
}

/// Change name, labels or limits.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    request_body = UpdateSandbox, responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<UpdateSandbox>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.update(&who, &id, request).await?)
}

/// End a sandbox and its checkpoints.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Make children, all from one instant.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes",
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)), request_body = ForkRequest,
    responses((status = 201, body = Forked), (status = 207, body = Forked, description = "a child failed"),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn fork(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Key(key): Key,
    Json(request): Json<ForkRequest>,
) -> Result<Response, Refusal> {
    let forked = app.service.fork(&who, &id, request, key, problem::of).await?;
    let whole = forked.children.iter().all(|child| child.error.is_none());
    json(if whole { StatusCode::CREATED } else { StatusCode::MULTI_STATUS }, &forked)
}

/// Pause a sandbox, into the store or in memory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)),
    request_body = PauseRequest, responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn pause(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<PauseRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.pause(&who, &id, request).await?)
}

/// Let a paused sandbox go on.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = Problem)))]
pub async fn resume(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    _: Empty,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.resume(&who, &id).await?)
}

/// The sandbox goes on as one of its descendants did.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/promote", tag = "sandboxes", params(("id" = String, Path)),
    request_body = PromoteRequest, responses((status = 200, body = Swapped), (status = "4XX", body = Problem)))]
pub async fn promote(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<PromoteRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.promote(&who, &id, &request).await?)
}

/// What differs between this and another sandbox, checkpoint or template. The id may be of any of them.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/diff", tag = "sandboxes", params(("id" = String, Path)),
    request_body = DiffRequest, responses((status = 200, body = Diff), (status = "4XX", body = Problem),
        (status = "5XX", body = Problem)))]
pub async fn diff(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<DiffRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.diff(&who, &id, request).await?)
}

/// Everything, with parents.
#[utoipa::path(get, path = "/v1/tree", tag = "sandboxes", responses((status = 200, body = Tree)))]
pub async fn tree(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.tree(&who))
}

/// Figures.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/stats", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Stats), (status = "4XX", body = Problem)))]
pub async fn stats(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.stats(&who, &id).await?)
}

/// The console.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/logs", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Logs), (status = "4XX", body = Problem)))]
pub async fn logs(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.logs(&who, &id).await?)
}
