//! The HTTP API. Handlers check, convert and delegate to [`Service`]; one file for each resource.
//!
//! Every route but health and the description needs a token; requests beyond a bound are turned away
//! at the door. The types are those of [`ramet_proto::api`], whose module says what each route does.

mod checkpoints;
mod code;
mod commits;
mod events;
mod exec;
pub mod extract;
pub mod files;
mod held;
mod images;
mod links;
mod moves;
mod network;
mod networks;
mod node;
pub mod openapi;
pub mod ports;
pub mod problem;
#[cfg(test)]
pub use problem::of as problem_of;
mod processes;
mod sandboxes;
pub mod serve;
mod stream;
mod templates;
#[cfg(test)]
mod tests;
pub mod tls;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use ramet_proto::api::{Code, DISK_MIB};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::auth::{Principal, Tokens};
use crate::host::Shape;
use crate::sandbox::Service;
pub use held::Held;
use problem::Refusal;

/// Most requests at once; streams count until they end.
const REQUESTS_MAX: usize = 1024;
/// The shape whose template makes a node ready.
pub const USUAL: Shape = Shape { vcpus: 1, memory_mib: 512, disk_mib: DISK_MIB };

/// What handlers work with.
#[derive(Clone)]
pub struct App {
    /// The sandboxes.
    pub service: Service,
    /// Who may use them.
    pub tokens: Tokens,
    usual: Shape,
    requests: Arc<Semaphore>,
}

impl App {
    /// For this service, and who may use it.
    pub fn new(service: Service, tokens: Tokens, usual: Shape) -> Self {
        Self { service, tokens, usual, requests: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }
}

/// The API alone, with its bounds.
pub fn router(app: App) -> Router {
    bounded(routes(app.clone()), app)
}

/// Turns away what is too much for these routes.
pub fn bounded(routes: Router, app: App) -> Router {
    routes.layer(from_fn_with_state(app, bound))
}

/// All routes.
pub fn routes(app: App) -> Router {
    let closed = Router::new()
        .nest("/v1/sandboxes/{id}", of_sandbox())
        .merge(of_networks())
        .route("/v1/sandboxes", post(sandboxes::create).get(sandboxes::list))
        .route("/v1/templates", post(templates::build).get(templates::list))
        .route("/v1/templates/{name}", get(templates::get).delete(templates::delete))
        .route("/v1/templates/{name}/log", get(templates::log))
        .route("/v1/images", get(images::list))
        .route("/v1/images/{name}", get(images::get).put(images::put).delete(images::delete))
        .route("/v1/commits", get(commits::list))
        .route("/v1/commits/{commit}/push", post(moves::push_commit))
        .route("/v1/commits/{commit}/pack", get(moves::pack_commit))
        .route("/v1/templates/{name}/push", post(moves::push_template))
        .route("/v1/templates/{name}/pack", get(moves::pack_template))
        .route("/v1/pull", post(moves::pull))
        .route("/v1/unpack", post(moves::unpack))
        .route("/v1/commits/{commit}", get(commits::get).delete(commits::delete))
        .route("/v1/refs", get(commits::refs))
        .route("/v1/refs/{name}", put(commits::put_ref).delete(commits::delete_ref))
        .route("/v1/store", get(commits::usage))
        .route("/v1/store/gc", post(commits::gc))
        .route("/v1/store/check", post(commits::check))
        .route("/v1/volumes", post(volumes::create).get(volumes::list))
        .route("/v1/volumes/{volume}", get(volumes::get).delete(volumes::delete))
        .route("/v1/secrets", get(network::secrets))
        .route("/v1/secrets/{name}", put(network::put_secret).delete(network::delete_secret))
        .route("/v1/tokens", post(network::create_token).get(network::tokens))
        .route("/v1/tokens/{token}", delete(network::delete_token))
        .route("/v1/tree", get(sandboxes::tree))
        .route("/v1/events", get(events::events))
        .route("/v1/ready", get(node::ready))
        .route("/v1/node", get(node::node))
        .route("/metrics", get(node::metrics))
        .layer(from_fn_with_state(app.clone(), authenticate));
    let open = Router::new()
        .route("/l/{secret}", any(links::follow))
        .route("/l/{secret}/", any(links::follow))
        .route("/l/{secret}/{*path}", any(links::follow))
        .route("/v1/health", get(node::health))
        .route("/v1/openapi.json", get(openapi::description));
    closed.merge(open).fallback(unknown).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// What is below a sandbox.
fn of_sandbox() -> Router<App> {
    Router::new()
        .route("/", get(sandboxes::get).patch(sandboxes::update).delete(sandboxes::delete))
        .route("/fork", post(sandboxes::fork))
        .route("/pause", post(sandboxes::pause))
        .route("/resume", post(sandboxes::resume))
        .route("/checkpoints", post(checkpoints::create).get(checkpoints::list))
        .route("/checkpoints/{cid}", delete(checkpoints::delete))
        .route("/commits", post(commits::create))
        .route("/volumes", post(volumes::attach))
        .route("/volumes/{volume}", delete(volumes::detach))
        .route("/rewind", post(checkpoints::rewind))
        .route("/promote", post(sandboxes::promote))
        .route("/diff", post(sandboxes::diff))
        .route("/stats", get(sandboxes::stats))
        .route("/logs", get(sandboxes::logs))
        .route("/exec", post(exec::exec))
        .route("/exec/ws", get(stream::stream))
        .route("/code", post(code::run))
        .route("/contexts", get(code::contexts).post(code::create_context))
        .route("/contexts/{context}", delete(code::delete_context))
        .route("/contexts/{context}/restart", post(code::restart_context))
        .route("/contexts/{context}/interrupt", post(code::interrupt_context))
        .route("/processes", get(processes::list))
        .route("/processes/{pid}/signal", post(processes::signal))
        .route("/files", get(files::read).put(files::write).delete(files::remove))
        .route("/files/archive", get(files::read_archive).put(files::write_archive))
        .route("/files/watch", get(files::watch))
        .route("/files/list", get(files::list))
        .route("/files/stat", get(files::stat))
        .route("/files/mkdir", post(files::mkdir))
        .route("/files/move", post(files::rename))
        .route("/ports", get(ports::list))
        .route("/ports/{port}", any(ports::proxy))
        .route("/ports/{port}/", any(ports::proxy))
        .route("/ports/{port}/{*path}", any(ports::proxy))
        .route("/tcp/{port}", get(ports::tcp))
        .route("/tcp/{port}/wait", get(links::wait))
        .route("/links", post(links::create).get(links::list))
        .route("/links/{link}", delete(links::delete))
        .route("/network", get(network::get).put(network::put))
        .route("/network/log", get(network::log))
}

/// Networks of several.
fn of_networks() -> Router<App> {
    Router::new()
        .route("/v1/networks", post(networks::create).get(networks::list))
        .route(
            "/v1/networks/{network}",
            get(networks::get).patch(networks::update).delete(networks::delete),
        )
        .route("/v1/networks/{network}/members", post(networks::join))
        .route("/v1/networks/{network}/members/{member}", delete(networks::leave))
        .route("/v1/networks/{network}/fork", post(networks::fork))
        .route("/v1/networks/{network}/pause", post(networks::pause))
        .route("/v1/networks/{network}/resume", post(networks::resume))
        .route("/v1/networks/{network}/checkpoint", post(networks::checkpoint))
        .route("/v1/networks/{network}/rewind", post(networks::rewind))
        .route("/v1/networks/{network}/promote", post(networks::promote))
        .route("/v1/networks/{network}/commit", post(networks::commit))
}

async fn unknown(request: Request) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no route {}", request.uri().path()))
}

async fn wrong_method(request: Request) -> Refusal {
    let text = format!("{} does not take {}", request.uri().path(), request.method());
    Refusal::new(Code::MethodNotAllowed, text)
}

/// Turns away what is too much.
async fn bound(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Ok(permit) = app.requests.clone().try_acquire_owned() else {
        return Refusal::new(Code::TooMany, "too many requests at once; try again").into_response();
    };
    let held = Held::new(permit);
    request.extensions_mut().insert(held.clone());
    let response = next.run(request).await;
    response.map(|body| held.with(body))
}

/// Finds out who asks.
async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(principal) = principal(&app, &request) else {
        let text = "no valid token; send `Authorization: Bearer TOKEN`";
        return Refusal::new(Code::Unauthorized, text).into_response();
    };
    request.extensions_mut().insert(principal);
    next.run(request).await
}

/// Whose token a request carries.
fn principal(app: &App, request: &Request) -> Option<Principal> {
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (kind, token) = value.split_once(' ')?;
    let bearer = kind.eq_ignore_ascii_case("bearer");
    bearer.then(|| app.tokens.principal(token.trim()))?
}

/// An answer in JSON.
fn json(status: StatusCode, body: &impl Serialize) -> Result<Response, Refusal> {
    let bytes = serde_json::to_vec(body).map_err(|error| {
        tracing::error!(?error, "an answer could not be written");
        Refusal::new(Code::Internal, "the node failed; its log says more")
    })?;
    let kind = HeaderValue::from_static("application/json");
    Ok((status, [(header::CONTENT_TYPE, kind)], bytes).into_response())
}
