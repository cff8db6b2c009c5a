//! Ports of a guest: a list, a proxy for HTTP, and raw TCP streams.
//!
//! The proxy has one connection to the guest for each request, over the agent. Bodies pass through piece by piece,
//! each way at its reader's pace. The server in the guest is not trusted: its answer is parsed, what concerns only its
//! connection is taken out, and nothing of it is taken for a word of the node. The caller's token
//! never reaches it.
//!
//! A stream that outlives its request (an upgrade, a raw stream) is a task of the service and
//! counts as a request until it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    self, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ramet_proto::api::{Code, PortList, Problem, TCP};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::extract::{Caller, Path};
use super::problem::Refusal;
use super::serve::Peer;
use super::{App, Held, json};
use crate::auth::Principal;
use crate::sandbox::PortStream;

/// How long a server in a guest may take to begin its answer, with nothing of the request left to send.
const ANSWER_TIME: Duration = Duration::from_secs(300);
/// How long a client may take to switch protocols.
const SWITCH_TIME: Duration = Duration::from_secs(30);

/// What concerns one connection only (RFC 9110, 7.6.1), and what was for the node.
const NOT_PASSED_ON: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    header::EXPECT,
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// A port of a sandbox; a path may follow.
#[derive(Debug, Deserialize)]
pub struct At {
    /// The sandbox.
    pub id: String,
    /// The port.
    pub port: u16,
}

/// Sockets that wait for others.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports", tag = "ports", params(("id" = String, Path)),
    responses((status = 200, body = PortList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.ports(&who, &id).await?)
}

/// Open a raw TCP stream to a port: `Upgrade: tcp`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/tcp/{port}", tag = "ports",
    params(("id" = String, Path), ("port" = u16, Path)),
    responses((status = 101, description = "the stream"), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn tcp(
    State(app): State<App>,
    Caller(who): Caller,
    Path(at): Path<At>,
    Extension(held): Extension<Held>,
    mut request: Request,
) -> Result<Response, Refusal> {
    let wanted = wanted_upgrade(request.headers());
    if wanted.is_none_or(|wanted| !wanted.as_bytes().eq_ignore_ascii_case(TCP.as_bytes())) {
        let text = "send `Connection: Upgrade` and `Upgrade: tcp`; what follows is the stream";
        return Err(Refusal::new(Code::BadRequest, text));
    }
    let client = hyper::upgrade::on(&mut request);
    let PortStream { stream, busy } = dial(&app, &who, &at).await?;
    app.service.keep(async move {
        join(client, stream).await;
        drop((busy, held));
    });
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, TCP)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// Pass a request on to the HTTP server on a port.
#[utoipa::path(method(get, post, put, patch, delete, head, options), path = "/v1/sandboxes/{id}/ports/{port}/{path}",
    tag = "ports", params(("id" = String, Path), ("port" = u16, Path), ("path" = String, Path)),
    responses((status = "default", description = "what the server in the guest answers, or a problem of the node")))]
pub async fn proxy(
    State(app): State<App>,
    Caller(who): Caller,
    Path(at): Path<At>,
    Extension(held): Extension<Held>,
    mut request: Request,
) -> Result<Response, Refusal> {
    // It was for the node.
    request.headers_mut().remove(header::AUTHORIZATION);
    let prefix = format!("/v1/sandboxes/{}/ports/{}", at.id, at.port);
    let path = rest(request.uri().path()).to_owned();
    pass(&app, &who, at, &prefix, &path, held, request).await
}

/// Passes a request on to a port, for this path there. What was before it is the prefix.
pub async fn pass(
    app: &App,
    who: &Principal,
    at: At,
    prefix: &str,
    path: &str,
    held: Held,
    mut request: Request,
) -> Result<Response, Refusal> {
    let upgrade = wanted_upgrade(request.headers()).cloned();
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let PortStream { stream, busy } = dial(app, who, &at).await?;
    let (request, sent) = passed_on(request, at.port, prefix, path, upgrade)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| no_http(at.port, &error))?;
    let busy = Arc::new(busy);
    let until_its_end = busy.clone();
    app.service.keep(async move {
        // How it ends shows in the answer.
        drop(connection.with_upgrades().await);
        drop(until_its_end);
    });
    let answer = answered(sender.send_request(request), &sent).await;
    let answer = answer.ok_or_else(|| {
        let text = format!("what listens on port {} did not answer in time", at.port);
        Refusal::new(Code::GuestUnresponsive, text)
    })?;
    let mut answer = answer.map_err(|error| no_http(at.port, &error))?;
    let (StatusCode::SWITCHING_PROTOCOLS, Some(client)) = (answer.status(), client) else {
        return Ok(passed_back(answer));
    };
    let guest = hyper::upgrade::on(&mut answer);
    app.service.keep(async move {
        if let Ok(Ok(guest)) = timeout(SWITCH_TIME, guest).await {
            join(client, TokioIo::new(guest)).await;
        }
        drop((busy, held));
    });
    Ok(switched(answer))
}

async fn dial(app: &App, who: &Principal, at: &At) -> Result<PortStream, Refusal> {
    let dialled = app.service.dial(who, &at.id, at.port).await;
    dialled.map_err(|error| {
        let mut refusal = Refusal::from(error);
        if refusal.0.code == Code::ConnectionRefused {
            refusal.0.detail = format!(
                "nothing listens on TCP port {} in the sandbox; start a server there",
                at.port
            );
        }
        refusal
    })
}

fn no_http(port: u16, error: &hyper::Error) -> Refusal {
    let mut text = format!("what listens on port {port} did not answer with HTTP: {error}");
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    Refusal::new(Code::GuestFailed, text)
}

/// Waits for an answer; none if nothing moves for too long.
async fn answered<T>(answer: impl Future<Output = T>, sent: &AtomicU64) -> Option<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = sent.load(Ordering::Relaxed);
        match timeout(ANSWER_TIME, &mut answer).await {
            Ok(answer) => return Some(answer),
            Err(_) if sent.load(Ordering::Relaxed) == before => return None,
            Err(_) => {}
        }
    }
}

/// The protocol that a request wants to switch to.
fn wanted_upgrade(headers: &HeaderMap) -> Option<&HeaderValue> {
    connection_options(headers).any(|option| option == "upgrade").then(|| headers.get(UPGRADE))?
}

/// Names that `Connection` lists, in lower case.
fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = String> + '_ {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|option| option.trim().to_ascii_lowercase())
}

/// Takes out what concerns one connection only.
fn strip(headers: &mut HeaderMap) {
    let listed: Vec<String> = connection_options(headers).collect();
    for name in listed {
        headers.remove(name.as_str());
    }
    for name in NOT_PASSED_ON {
        headers.remove(name);
    }
}

/// The request as the server in the guest gets it, and a count of the pieces of its body that were sent.
fn passed_on(
    request: Request,
    port: u16,
    prefix: &str,
    path: &str,
    upgrade: Option<HeaderValue>,
) -> Result<(hyper::Request<Counted>, Arc<AtomicU64>), Refusal> {
    let (mut parts, body) = request.into_parts();
    let target = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let bad = |_| Refusal::new(Code::BadRequest, "the path cannot be passed on");
    parts.uri = target.parse().map_err(bad)?;
    strip(&mut parts.headers);
    let host = parts.headers.remove(HOST);
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.ip().to_string());
    tell_origin(&mut parts.headers, host, peer, prefix);
    let own = HeaderValue::from_str(&format!("localhost:{port}"));
    parts.headers.insert(HOST, own.map_err(|_| Refusal::new(Code::BadRequest, "no such port"))?);
    match upgrade {
        Some(protocol) => {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol);
        }
        None => drop(parts.headers.insert(CONNECTION, HeaderValue::from_static("close"))),
    }
    let sent = Arc::new(AtomicU64::new(0));
    let mut passed = hyper::Request::new(Counted { body, sent: sent.clone() });
    *passed.method_mut() = parts.method;
    *passed.uri_mut() = parts.uri;
    *passed.headers_mut() = parts.headers;
    Ok((passed, sent))
}

/// Where the request came from. A proxy before this node may have said so already.
fn tell_origin(
    headers: &mut HeaderMap,
    host: Option<HeaderValue>,
    peer: Option<String>,
    prefix: &str,
) {
    if let Some(host) = host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Ok(prefix) = HeaderValue::from_str(prefix) {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
    if let Some(peer) = peer.and_then(|peer| HeaderValue::from_str(&peer).ok()) {
        headers.append(FORWARDED_FOR, peer);
    }
}

/// The path in the guest, as it was sent, escapes included. The router has taken off what is before `/ports/`.
fn rest(path: &str) -> &str {
    let after = path.strip_prefix("/ports/").unwrap_or("");
    after.find('/').map_or("/", |at| &after[at..])
}

/// The answer as the client gets it.
fn passed_back(answer: hyper::Response<Incoming>) -> Response {
    let (mut parts, body) = answer.into_parts();
    strip(&mut parts.headers);
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    response
}

/// The answer to a request that switches protocols.
fn switched(answer: hyper::Response<Incoming>) -> Response {
    let (mut parts, _) = answer.into_parts();
    let protocol = parts.headers.get(UPGRADE).cloned();
    strip(&mut parts.headers);
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
    }
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    *response.headers_mut() = parts.headers;
    response
}

/// Bytes both ways until both directions have ended, or one has broken.
async fn join(client: OnUpgrade, mut guest: impl AsyncRead + AsyncWrite + Unpin) {
    let Ok(Ok(client)) = timeout(SWITCH_TIME, client).await else { return };
    let mut client = TokioIo::new(client);
    // What breaks one breaks the other, and there is nobody left to be told.
    drop(tokio::io::copy_bidirectional(&mut client, &mut guest).await);
}

/// A body that counts its pieces as they are taken.
struct Counted {
    body: Body,
    sent: Arc<AtomicU64>,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_as_they_were_sent() {
        for (sent, path) in [("", "/"), ("/", "/"), ("/a%2Fb/../c", "/a%2Fb/../c"), ("//x", "//x")]
        {
            assert_eq!(rest(&format!("/ports/80{sent}")), path);
        }
    }

    #[test]
    fn what_concerns_a_connection_is_taken_out() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip"),
            ("x-kept", "2"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-kept"]);
    }

    #[test]
    fn an_upgrade_is_one_only_if_the_connection_says_so() {
        let of = |connection: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(connection));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            wanted_upgrade(&headers).cloned()
        };
        assert_eq!(of("keep-alive, Upgrade").unwrap(), "websocket");
        assert_eq!(of("close"), None);
    }
}
