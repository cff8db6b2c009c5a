//! Commits and templates on their way: push, pull, pack, unpack.

use std::io;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ramet_proto::api::{Moved, PackQuery, Problem, PullRequest, PushRequest, UnpackQuery};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Duration, Instant, timeout};

use super::extract::{Caller, Json, Path, Pieces, Query};
use super::problem::{self, Refusal};
use super::{App, events, json};
use crate::sandbox::Error;
use crate::sandbox::durable::moves::{Moving, PackStream, What, progress};

/// Between two words about a move.
const EVERY: Duration = Duration::from_millis(500);
/// How long a client may go on with a body that is not needed.
const LISTEN: Duration = Duration::from_secs(10);
/// Bytes of a pack that are sent at once.
const PIECE: usize = 64 << 10;

/// Push a commit to a remote. Tells how far it is until it is there.
#[utoipa::path(post, path = "/v1/commits/{commit}/push", tag = "moves", params(("commit" = String, Path)),
    request_body = PushRequest, responses((status = 200, body = Moved, content_type = "text/event-stream",
        description = "`progress` events, then `end`, or `problem` if it did not succeed"), (status = "4XX", body = Problem)))]
pub async fn push_commit(
    State(app): State<App>,
    Caller(who): Caller,
    Path(commit): Path<String>,
    Json(request): Json<PushRequest>,
) -> Result<Response, Refusal> {
    let moving = app.service.push(&who, What::Commit(commit), request).await?;
    Ok(told(&app, moving))
}

/// Push a template to a remote. Tells how far it is until it is there.
#[utoipa::path(post, path = "/v1/templates/{name}/push", tag = "moves", params(("name" = String, Path)),
    request_body = PushRequest, responses((status = 200, body = Moved, content_type = "text/event-stream",
        description = "`progress` events, then `end`, or `problem` if it did not succeed"), (status = "4XX", body = Problem)))]
pub async fn push_template(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Json(request): Json<PushRequest>,
) -> Result<Response, Refusal> {
    let moving = app.service.push(&who, What::Template(name), request).await?;
    Ok(told(&app, moving))
}

/// Pull a commit or template from a remote. Tells how far it is until it is here.
#[utoipa::path(post, path = "/v1/pull", tag = "moves", request_body = PullRequest,
    responses((status = 200, body = Moved, content_type = "text/event-stream",
        description = "`progress` events, then `end`, or `problem` if it did not succeed"), (status = "4XX", body = Problem)))]
pub async fn pull(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<PullRequest>,
) -> Result<Response, Refusal> {
    let moving = app.service.pull(&who, request).await?;
    Ok(told(&app, moving))
}

/// A commit in a stream, without what the receiver has.
#[utoipa::path(get, path = "/v1/commits/{commit}/pack", tag = "moves", params(("commit" = String, Path), PackQuery),
    responses((status = 200, body = [u8], content_type = "application/octet-stream"), (status = "4XX", body = Problem)))]
pub async fn pack_commit(
    State(app): State<App>,
    Caller(who): Caller,
    Path(commit): Path<String>,
    Query(query): Query<PackQuery>,
) -> Result<Response, Refusal> {
    Ok(poured(app.service.pack(&who, What::Commit(commit), &query).await?))
}

/// A template in a stream, without what the receiver has.
#[utoipa::path(get, path = "/v1/templates/{name}/pack", tag = "moves", params(("name" = String, Path), PackQuery),
    responses((status = 200, body = [u8], content_type = "application/octet-stream"), (status = "4XX", body = Problem)))]
pub async fn pack_template(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<PackQuery>,
) -> Result<Response, Refusal> {
    Ok(poured(app.service.pack(&who, What::Template(name), &query).await?))
}

/// Take in a commit or template from a stream. It is here whole or not at all.
#[utoipa::path(post, path = "/v1/unpack", tag = "moves", params(UnpackQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 200, body = Moved), (status = "4XX", body = Problem)))]
pub async fn unpack(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<UnpackQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let (writer, reader) = tokio::io::duplex(PIECE);
    let unpacked = app.service.unpack(&who, reader, query);
    let (unpacked, ()) = tokio::join!(unpacked, feed(body, writer));
    json(StatusCode::OK, &unpacked?)
}

/// Hands a body on, as it comes. Whoever has heard enough is given the rest no more, but the client may say it for a
/// while: one that is still talking when the answer comes might not hear it.
async fn feed(body: Body, mut writer: DuplexStream) {
    let mut pieces = Pieces::of(body);
    let mut until = None;
    // What broke off is told by the pack, which is not whole.
    while let Ok(Some(bytes)) = pieces.next().await {
        let over = match until {
            None => writer.write_all(&bytes).await.is_err().then(|| Instant::now() + LISTEN),
            over => over,
        };
        until = over;
        if until.is_some_and(|until| Instant::now() > until) {
            return;
        }
    }
}

/// How far a move is, until it is over.
fn told(app: &App, moving: Moving) -> Response {
    let told = stream::unfold(Some(moving), |moving| async move {
        let mut moving = moving?;
        let event = match timeout(EVERY, &mut moving.done).await {
            Err(_) => {
                let event = events::named(&"progress", &progress(&moving.meter));
                return Some((event, Some(moving)));
            }
            Ok(Ok(Ok(moved))) => events::named(&"end", &moved),
            Ok(Ok(Err(error))) => failed(&error),
            Ok(Err(_)) => failed(&Error::Internal("a move was lost".to_owned())),
        };
        Some((event, None))
    });
    events::stream_of(told, app.service.stopping())
}

fn failed(error: &Error) -> Option<sse::Event> {
    events::named(&"problem", &problem::of(error))
}

/// The bytes of a pack. One that breaks off ends in an error, so that nobody takes it for whole.
fn poured(pack: PackStream) -> Response {
    let bytes = stream::unfold(Some(pack), |pack| async move {
        let mut pack = pack?;
        let mut buffer = Vec::with_capacity(PIECE);
        match pack.bytes.read_buf(&mut buffer).await {
            Ok(0) => match pack.done.await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some((Err(io::Error::other(error.to_string())), None)),
                Err(_) => Some((Err(io::Error::other("the pack was lost")), None)),
            },
            Ok(_) => Some((Ok(Bytes::from(buffer)), Some(pack))),
            Err(error) => Some((Err(error), None)),
        }
    });
    let kind = HeaderValue::from_static("application/octet-stream");
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(bytes)).into_response()
}
