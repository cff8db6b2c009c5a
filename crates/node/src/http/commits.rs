//! Commits, their names, and the store.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{
    CheckReport, CheckRequest, Commit, CommitList, CommitState, CommitsQuery, CreateCommit,
    GcReport, GcRequest, Problem, PutRef, Ref, RefList, StoreUsage,
};

use super::extract::{Caller, Json, Path, Query};
use super::problem::Refusal;
use super::{App, json};

/// Keep a moment of a sandbox for good.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commits", tag = "commits", params(("id" = String, Path)),
    request_body = CreateCommit, responses((status = 201, body = Commit, description = "it is durable"),
        (status = 202, body = Commit, description = "it is being written"), (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<CreateCommit>,
) -> Result<Response, Refusal> {
    let commit = app.service.commit_sandbox(&who, &id, request).await?;
    let durable = commit.state == CommitState::Durable;
    json(if durable { StatusCode::CREATED } else { StatusCode::ACCEPTED }, &commit)
}

/// A page of commits, newest first.
#[utoipa::path(get, path = "/v1/commits", tag = "commits", params(CommitsQuery),
    responses((status = 200, body = CommitList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<CommitsQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.commits(&who, &query).await?)
}

/// A commit.
#[utoipa::path(get, path = "/v1/commits/{commit}", tag = "commits", params(("commit" = String, Path)),
    responses((status = 200, body = Commit), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(commit): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get_commit(&who, &commit).await?)
}

/// Forget a commit.
#[utoipa::path(delete, path = "/v1/commits/{commit}", tag = "commits", params(("commit" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(commit): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_commit(&who, &commit).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Names of commits.
#[utoipa::path(get, path = "/v1/refs", tag = "commits",
    responses((status = 200, body = RefList), (status = "4XX", body = Problem)))]
pub async fn refs(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.refs(&who).await?)
}

/// Point a name to a commit.
#[utoipa::path(put, path = "/v1/refs/{name}", tag = "commits", params(("name" = String, Path)),
    request_body = PutRef, responses((status = 200, body = Ref), (status = "4XX", body = Problem)))]
pub async fn put_ref(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Json(request): Json<PutRef>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.put_ref(&who, &name, request).await?)
}

/// Forget a name.
#[utoipa::path(delete, path = "/v1/refs/{name}", tag = "commits", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete_ref(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_ref(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What the caller keeps in the store, and what it takes.
#[utoipa::path(get, path = "/v1/store", tag = "commits",
    responses((status = 200, body = StoreUsage), (status = "4XX", body = Problem)))]
pub async fn usage(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.store_usage(&who).await?)
}

/// Remove what nothing needs.
#[utoipa::path(post, path = "/v1/store/gc", tag = "commits", request_body = GcRequest,
    responses((status = 200, body = GcReport), (status = "4XX", body = Problem)))]
pub async fn gc(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<GcRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.store_gc(&who, request).await?)
}

/// See whether everything is intact.
#[utoipa::path(post, path = "/v1/store/check", tag = "commits", request_body = CheckRequest,
    responses((status = 200, body = CheckReport), (status = "4XX", body = Problem)))]
pub async fn check(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<CheckRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.store_check(&who, request).await?)
}
