//! The node itself: health, readiness, limits, metrics.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{Code, Health, Node, Problem, Ready};

use super::extract::Caller;
use super::problem::Refusal;
use super::{App, json};

/// It runs.
#[utoipa::path(get, path = "/v1/health", tag = "node", security(()),
    responses((status = 200, body = Health)))]
pub async fn health() -> Result<Response, Refusal> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    json(StatusCode::OK, &Health { status: "ok".to_owned(), version })
}

/// Sandboxes can be created.
#[utoipa::path(get, path = "/v1/ready", tag = "node",
    responses((status = 200, body = Ready), (status = 503, body = Problem)))]
pub async fn ready(State(app): State<App>) -> Result<Response, Refusal> {
    match app.service.is_ready(app.usual) {
        true => {
            let network = app.service.node_network().up;
            json(StatusCode::OK, &Ready { ready: true, network })
        }
        false => Err(Refusal::new(Code::NotReady, "the template is not warm yet")),
    }
}

/// Version, host mode, limits, memory, templates.
#[utoipa::path(get, path = "/v1/node", tag = "node", responses((status = 200, body = Node)))]
pub async fn node(State(app): State<App>, caller: Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.node(&caller.0).await?)
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "node",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(app): State<App>) -> Result<Response, Refusal> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], app.service.figures().await?).into_response())
}
