//! Networks of several sandboxes, and what is done with all of their members at once.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::groups::{
    CommitNetwork, CreateNetwork, ForkNetwork, ForkedNetwork, JoinNetwork, Network,
    NetworkCheckpoint, NetworkCommit, NetworkList, NetworkMoment, NetworkSandboxes, PromoteNetwork,
    UpdateNetwork,
};
use ramet_proto::api::{PauseRequest, Problem};

use super::extract::{Caller, Empty, Json, Path};
use super::problem::{self, Refusal};
use super::{App, json};

/// Make a network.
#[utoipa::path(post, path = "/v1/networks", tag = "networks", request_body = CreateNetwork,
    responses((status = 201, body = Network), (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<CreateNetwork>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create_network(&who, request).await?)
}

/// The caller's networks.
#[utoipa::path(get, path = "/v1/networks", tag = "networks",
    responses((status = 200, body = NetworkList), (status = "4XX", body = Problem)))]
pub async fn list(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.networks(&who))
}

/// A network and its members.
#[utoipa::path(get, path = "/v1/networks/{network}", tag = "networks", params(("network" = String, Path)),
    responses((status = 200, body = Network), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get_network(&who, &network)?)
}

/// Change who may begin a connection with whom.
#[utoipa::path(patch, path = "/v1/networks/{network}", tag = "networks", params(("network" = String, Path)),
    request_body = UpdateNetwork, responses((status = 200, body = Network), (status = "4XX", body = Problem)))]
pub async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<UpdateNetwork>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.update_network(&who, &network, request).await?)
}

/// Remove a network that has no members.
#[utoipa::path(delete, path = "/v1/networks/{network}", tag = "networks", params(("network" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_network(&who, &network).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A sandbox becomes a member.
#[utoipa::path(post, path = "/v1/networks/{network}/members", tag = "networks", params(("network" = String, Path)),
    request_body = JoinNetwork, responses((status = 200, body = Network), (status = "4XX", body = Problem)))]
pub async fn join(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<JoinNetwork>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.join_network(&who, &network, request).await?)
}

/// A member leaves: by its name there, or its sandbox.
#[utoipa::path(delete, path = "/v1/networks/{network}/members/{member}", tag = "networks",
    params(("network" = String, Path), ("member" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn leave(
    State(app): State<App>,
    Caller(who): Caller,
    Path((network, member)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    app.service.leave_network(&who, &network, &member).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Copies of the whole network, all from one instant.
#[utoipa::path(post, path = "/v1/networks/{network}/fork", tag = "networks", params(("network" = String, Path)),
    request_body = ForkNetwork, responses((status = 201, body = ForkedNetwork),
    (status = 207, description = "some copies failed", body = ForkedNetwork), (status = "4XX", body = Problem)))]
pub async fn fork(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<ForkNetwork>,
) -> Result<Response, Refusal> {
    let forked = app.service.fork_network(&who, &network, request, problem::of).await?;
    let failed = forked.copies.iter().any(|copy| copy.error.is_some());
    json(if failed { StatusCode::MULTI_STATUS } else { StatusCode::CREATED }, &forked)
}

/// Pause all members at one instant.
#[utoipa::path(post, path = "/v1/networks/{network}/pause", tag = "networks", params(("network" = String, Path)),
    request_body = PauseRequest, responses((status = 200, body = NetworkSandboxes), (status = "4XX", body = Problem)))]
pub async fn pause(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<PauseRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.pause_network(&who, &network, request).await?)
}

/// Let all members go on.
#[utoipa::path(post, path = "/v1/networks/{network}/resume", tag = "networks", params(("network" = String, Path)),
    responses((status = 200, body = NetworkSandboxes), (status = "4XX", body = Problem)))]
pub async fn resume(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    _: Empty,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.resume_network(&who, &network).await?)
}

/// A checkpoint of each member, all from one instant.
#[utoipa::path(post, path = "/v1/networks/{network}/checkpoint", tag = "networks", params(("network" = String, Path)),
    request_body = NetworkMoment, responses((status = 201, body = NetworkCheckpoint), (status = "4XX", body = Problem)))]
pub async fn checkpoint(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<NetworkMoment>,
) -> Result<Response, Refusal> {
    let made = app.service.checkpoint_network(&who, &network, request.checkpoint).await?;
    json(StatusCode::CREATED, &made)
}

/// All members go back to the checkpoints of one name.
#[utoipa::path(post, path = "/v1/networks/{network}/rewind", tag = "networks", params(("network" = String, Path)),
    request_body = NetworkMoment, responses((status = 200, body = Network), (status = "4XX", body = Problem)))]
pub async fn rewind(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<NetworkMoment>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.rewind_network(&who, &network, &request.checkpoint).await?)
}

/// The network goes on as one of its copies did.
#[utoipa::path(post, path = "/v1/networks/{network}/promote", tag = "networks", params(("network" = String, Path)),
    request_body = PromoteNetwork, responses((status = 200, body = Network), (status = "4XX", body = Problem)))]
pub async fn promote(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<PromoteNetwork>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.promote_network(&who, &network, request).await?)
}

/// A commit of each member, all from one instant. They are written in the background.
#[utoipa::path(post, path = "/v1/networks/{network}/commit", tag = "networks", params(("network" = String, Path)),
    request_body = CommitNetwork, responses((status = 202, body = NetworkCommit), (status = "4XX", body = Problem)))]
pub async fn commit(
    State(app): State<App>,
    Caller(who): Caller,
    Path(network): Path<String>,
    Json(request): Json<CommitNetwork>,
) -> Result<Response, Refusal> {
    json(StatusCode::ACCEPTED, &app.service.commit_network(&who, &network, request).await?)
}
