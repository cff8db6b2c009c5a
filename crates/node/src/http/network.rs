//! What sandboxes reach: policies, logs, and the secrets of edge rules.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::Problem;
use ramet_proto::api::network::{
    CreateToken, CreatedToken, NetworkLog, NetworkLogQuery, NetworkRequest, PutSecret,
    SandboxNetwork, Secret, SecretList, TokenList,
};

use super::extract::{Caller, Json, Path, Query};
use super::problem::Refusal;
use super::{App, json};

/// What a sandbox may reach, and what it did.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = String, Path)),
    responses((status = 200, body = SandboxNetwork), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.network(&who, &id).await?)
}

/// Replace what a sandbox itself allows, its limits and edge rules, while it runs.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = String, Path)),
    request_body = NetworkRequest, responses((status = 200, body = SandboxNetwork), (status = "4XX", body = Problem)))]
pub async fn put(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<NetworkRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.set_network(&who, &id, request).await?)
}

/// What was refused, and why.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/log", tag = "network", params(("id" = String, Path), NetworkLogQuery),
    responses((status = 200, body = NetworkLog), (status = "4XX", body = Problem)))]
pub async fn log(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<NetworkLogQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.network_log(&who, &id, &query).await?)
}

/// Names of secrets that edge rules can use.
#[utoipa::path(get, path = "/v1/secrets", tag = "network", responses((status = 200, body = SecretList)))]
pub async fn secrets(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.secrets(&who)?)
}

/// Set a secret; sandboxes that use it have its new value at once.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "network", params(("name" = String, Path)),
    request_body = PutSecret, responses((status = 200, body = Secret), (status = "4XX", body = Problem)))]
pub async fn put_secret(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Json(request): Json<PutSecret>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.put_secret(&who, &name, request).await?)
}

/// Forget a secret that no rule uses.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "network", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete_secret(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_secret(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Tokens that are accepted, without themselves.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens",
    responses((status = 200, body = TokenList), (status = "4XX", body = Problem)))]
pub async fn tokens(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.tokens(&who)?)
}

/// Make a token, with or without a cap on what sandboxes reach.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = CreateToken,
    responses((status = 201, body = CreatedToken), (status = "4XX", body = Problem)))]
pub async fn create_token(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<CreateToken>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create_token(&who, &app.tokens, request).await?)
}

/// Accept a token no more.
#[utoipa::path(delete, path = "/v1/tokens/{token}", tag = "tokens", params(("token" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete_token(
    State(app): State<App>,
    Caller(who): Caller,
    Path(token): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_token(&who, &app.tokens, &token).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
