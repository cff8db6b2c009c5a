//! Links to ports, and waiting for ports.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, REFERRER_POLICY};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::network::{CreateLink, Link, LinkList, PortReady, PortWaitQuery};
use ramet_proto::api::{Code, Problem};
use serde::Deserialize;

use super::extract::{Caller, Json, Path, Query};
use super::ports::{At, pass};
use super::problem::Refusal;
use super::{App, Held, json, principal};

/// Make a way to a port that needs no token.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/links", tag = "ports", params(("id" = String, Path)),
    request_body = CreateLink, responses((status = 201, body = Link), (status = "4XX", body = Problem)))]
pub async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<CreateLink>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create_link(&who, &id, request).await?)
}

/// Links to ports of a sandbox, without their addresses.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/links", tag = "ports", params(("id" = String, Path)),
    responses((status = 200, body = LinkList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.links(&who, &id)?)
}

/// End a link.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/links/{link}", tag = "ports",
    params(("id" = String, Path), ("link" = String, Path)), responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, link)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    app.service.delete_link(&who, &id, &link).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Wait until something listens on a port, or answers there.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/tcp/{port}/wait", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path), PortWaitQuery),
    responses((status = 200, body = PortReady), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn wait(
    State(app): State<App>,
    Caller(who): Caller,
    Path(at): Path<At>,
    Query(query): Query<PortWaitQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.wait_port(&who, &at.id, at.port, &query).await?)
}

/// What stands in a link's address; a path may follow.
#[derive(Debug, Deserialize)]
pub struct Secret {
    secret: String,
}

/// Pass a request on to the port that a link leads to.
#[utoipa::path(method(get, post, put, patch, delete, head, options), path = "/l/{secret}/{path}", tag = "ports",
    params(("secret" = String, Path), ("path" = String, Path)), security(()),
    responses((status = "default", description = "what the server in the guest answers, or a problem of the node")))]
pub async fn follow(
    State(app): State<App>,
    Path(Secret { secret }): Path<Secret>,
    Extension(held): Extension<Held>,
    mut request: Request,
) -> Result<Response, Refusal> {
    // Who has a token for the node does not give it to a guest; others may have one for the server there.
    if principal(&app, &request).is_some() {
        request.headers_mut().remove(AUTHORIZATION);
    }
    let followed = app.service.follow_link(&secret);
    let over = |_| Refusal::new(Code::NotFound, "there is no such link, or it is over");
    let (who, id, port) = followed.map_err(over)?;
    let prefix = format!("/l/{secret}");
    let path = request.uri().path();
    let rest = path.strip_prefix(&prefix).filter(|rest| !rest.is_empty()).unwrap_or("/").to_owned();
    let mut response = pass(&app, &who, At { id, port }, &prefix, &rest, held, request).await?;
    // The address is a secret, and not for whoever the page leads to.
    let policy = HeaderValue::from_static("no-referrer");
    response.headers_mut().entry(REFERRER_POLICY).or_insert(policy);
    Ok(response)
}
