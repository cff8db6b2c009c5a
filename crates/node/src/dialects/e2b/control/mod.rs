//! E2B's REST API: sandboxes, snapshots, templates, volumes, secrets.
//!
//! Handlers translate and delegate to [`crate::sandbox::Service`]; one file for each resource. What belongs to the dialect alone is
//! kept in two places: as labels that begin with `e2b.` ([`labels`]) and as notes of the service ([`templates`]).
//!
//! # Where it differs
//! - A sandbox is always secure: `secure: false` changes nothing, the token is asked for all the same.
//! - Time limits have no bound. A sandbox that was paused by hand is kept until it is killed.
//! - A paused sandbox can be forked.
//! - `code-interpreter-v1` is the node's template of this name, else `python`, else `base`, which has IPython.
//! - Metrics are of this moment: no history is kept. Logs are the console's, whose lines have no clock: they are counted in
//!   milliseconds from the sandbox's beginning.
//! - Snapshots are durable when they are answered.

mod create;
mod extract;
mod figures;
mod fork;
mod life;
mod list;
mod network;
mod secrets;
mod shapes;
mod snapshots;
mod templates;
#[cfg(test)]
mod tests;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use serde_json::Value;

use super::{E2b, Fault, labels, time};
use crate::auth::Principal;
use crate::sandbox::Service;
use templates::Builds;

/// The version of E2B's agent whose behaviour sandboxes have.
pub const ENVD_VERSION: &str = "0.6.13";
/// Stands where E2B names the machine that a sandbox runs on.
const CLIENT_ID: &str = "ramet";
const API_KEY: &str = "x-api-key";

/// What handlers work with.
#[derive(Clone)]
struct Control {
    e2b: E2b,
    builds: Arc<Builds>,
}

impl Control {
    fn service(&self) -> &Service {
        &self.e2b.app.service
    }
}

/// Routes, with their state.
pub fn routes(e2b: E2b) -> Router {
    let control = Control { e2b, builds: Arc::default() };
    let upload = Router::new().route("/e2b/uploads/{hash}", put(templates::files::put));
    Router::new()
        .nest("/sandboxes", of_sandboxes())
        .nest("/templates", of_templates())
        .nest("/v2", second())
        .nest("/v3", closed(Router::new().route("/templates", post(templates::make))))
        .nest("/snapshots", closed(Router::new().route("/", get(snapshots::list))))
        .nest("/volumes", of_volumes())
        .nest("/secrets", of_secrets())
        .nest("/default-templates", closed(Router::new().route("/", get(templates::defaults))))
        .layer(from_fn_with_state(control.clone(), authenticate))
        .merge(upload)
        .nest("/volumecontent", Router::new().fallback(any(volumes::content)))
        .with_state(control)
}

/// What is not there is told in E2B's words.
fn closed(routes: Router<Control>) -> Router<Control> {
    routes.fallback(unknown).method_not_allowed_fallback(wrong_method)
}

fn of_sandboxes() -> Router<Control> {
    closed(
        Router::new()
            .route("/", post(create::first).get(list::running))
            .route("/metrics", get(figures::metrics_of_many))
            .route("/{id}", get(life::get).delete(life::kill))
            .route("/{id}/connect", post(life::connect))
            .route("/{id}/resume", post(life::resume))
            .route("/{id}/timeout", post(life::timeout))
            .route("/{id}/refreshes", post(life::refresh))
            .route("/{id}/pause", post(life::pause))
            .route("/{id}/network", put(network::set))
            .route("/{id}/fork", post(fork::fork))
            .route("/{id}/snapshots", post(snapshots::create))
            .route("/{id}/metrics", get(figures::metrics))
            .route("/{id}/logs", get(figures::lines)),
    )
}

/// The second generation, where it differs.
fn second() -> Router<Control> {
    closed(
        Router::new()
            .route("/sandboxes", post(create::second).get(list::list))
            .route("/sandboxes/{id}/connect", post(life::connect))
            .route("/sandboxes/{id}/logs", get(figures::logs))
            .route("/templates", post(templates::make).get(templates::list))
            .route("/templates/{id}", axum::routing::patch(templates::update))
            .route("/templates/{id}/builds/{build}", post(templates::start)),
    )
}

fn of_templates() -> Router<Control> {
    closed(
        Router::new()
            .route("/", get(templates::list).post(templates::docker))
            .route("/tags", post(templates::tags::assign).delete(templates::tags::remove))
            .route("/aliases/{alias}", get(templates::alias))
            .route("/{id}", get(templates::get).delete(templates::delete).patch(templates::update))
            .route("/{id}/tags", get(templates::tags::list))
            .route("/{id}/files/{hash}", get(templates::files::offer))
            .route("/{id}/builds/{build}/status", get(templates::status))
            .route("/{id}/builds/{build}/logs", get(templates::logs)),
    )
}

fn of_volumes() -> Router<Control> {
    closed(
        Router::new()
            .route("/", post(volumes::create).get(volumes::list))
            .route("/{id}", get(volumes::get).delete(volumes::remove)),
    )
}

fn of_secrets() -> Router<Control> {
    let one = get(secrets::get).post(secrets::update);
    closed(
        Router::new()
            .route("/", post(secrets::create).get(secrets::list))
            .route("/{name}", one.merge(delete(secrets::remove))),
    )
}

async fn unknown(request: Request) -> Fault {
    Fault::new(StatusCode::NOT_FOUND, format!("there is no route {}", request.uri().path()))
}

async fn wrong_method(request: Request) -> Fault {
    let text = format!("{} does not take {}", request.uri().path(), request.method());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, text)
}

/// Finds out who asks.
async fn authenticate(
    State(control): State<Control>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = key(request.headers());
    let Some(principal) = key.and_then(|key| control.e2b.principal(key)) else {
        let text = "no valid API key; send `X-API-KEY: e2b_…`, as `ramet e2b` prints it";
        return Fault::new(StatusCode::UNAUTHORIZED, text).into_response();
    };
    request.extensions_mut().insert::<Principal>(principal);
    next.run(request).await
}

/// The API key of a request.
fn key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(API_KEY) {
        return key.to_str().ok().map(str::trim);
    }
    let (kind, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    kind.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// An answer in JSON.
fn json(status: StatusCode, body: &Value) -> Response {
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, [kind], body.to_string()).into_response()
}
