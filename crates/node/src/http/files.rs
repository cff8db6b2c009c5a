//! Files of a guest, streamed both ways.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ramet_proto::api::{
    Code, File, FileList, ListFilesQuery, MkdirRequest, MoveRequest, Problem, ReadQuery,
    RemoveQuery, WriteQuery,
};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::extract::{Caller, Json, Path, Query};
use super::problem::Refusal;
use super::{App, json};
use crate::sandbox::{ByteRange, FileSource};

/// How long a client may take between two pieces of what it sends.
const PIECE_TIME: Duration = Duration::from_secs(60);

/// The bytes of a file, or a range of them.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), ReadQuery),
    responses((status = 200, body = [u8], content_type = "application/octet-stream"),
        (status = 206, body = [u8], content_type = "application/octet-stream"), (status = "4XX", body = Problem)))]
pub async fn read(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let range = headers.get(header::RANGE).and_then(range_of);
    let source = app.service.read_file(&who, &id, &query.path, range).await?;
    let (size, offset, length) = (source.entry.size, source.offset, source.length);
    let mut response = Body::from_stream(pieces(source)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        if range.is_some() {
            let text = format!("bytes {offset}-{}/{size}", offset + length.saturating_sub(1));
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(header::CONTENT_RANGE, value);
            }
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
    }
    Ok(response)
}

/// One range of bytes. Others may be ignored, says RFC 9110, and the whole is sent.
fn range_of(value: &HeaderValue) -> Option<ByteRange> {
    let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    match (number(first), number(last)) {
        (Some(first), None) if last.is_empty() => Some(ByteRange::From(first, None)),
        (Some(first), Some(last)) if first <= last => Some(ByteRange::From(first, Some(last))),
        (None, Some(count)) if first.is_empty() && count > 0 => Some(ByteRange::Last(count)),
        _ => None,
    }
}

/// The file as a body. What goes wrong in the middle breaks it off, so nobody takes it for whole.
fn pieces(source: FileSource) -> impl futures_util::Stream<Item = Result<Vec<u8>, std::io::Error>> {
    stream::try_unfold(source, |mut source| async move {
        match source.next().await {
            Ok(piece) => Ok(piece.map(|piece| (piece, source))),
            Err(error) => Err(std::io::Error::other(error.to_string())),
        }
    })
}

/// Write a file of any size. It appears whole or not at all.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), WriteQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 201, body = File), (status = "4XX", body = Problem)))]
pub async fn write(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let link = query.symlink.is_some();
    let mut sink = app.service.write_file(&who, &id, query).await?;
    let mut data = body.into_data_stream();
    loop {
        match timeout(PIECE_TIME, data.next()).await {
            Ok(None) => return json(StatusCode::CREATED, &sink.finish().await?),
            Ok(Some(Ok(bytes))) if link && !bytes.is_empty() => {
                return Err(Refusal::new(Code::BadRequest, "a symlink has no content"));
            }
            Ok(Some(Ok(bytes))) => sink.data(&bytes).await?,
            Ok(Some(Err(_))) => return Err(Refusal::new(Code::BadRequest, "the body broke off")),
            Err(_) => return Err(Refusal::new(Code::BadRequest, "the body did not come in time")),
        }
    }
}

/// Remove a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = String, Path), RemoveQuery),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<Response, Refusal> {
    app.service.remove_file(&who, &id, query).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Everything below a directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", tag = "files", params(("id" = String, Path), ListFilesQuery),
    responses((status = 200, body = FileList), (status = "4XX", body = Problem)))]
pub async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ListFilesQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.list_files(&who, &id, &query).await?)
}

/// What is at a path.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files", params(("id" = String, Path), ReadQuery),
    responses((status = 200, body = File), (status = "4XX", body = Problem)))]
pub async fn stat(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ReadQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.stat(&who, &id, &query.path).await?)
}

/// Make a directory and its missing parents.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", params(("id" = String, Path)),
    request_body = MkdirRequest, responses((status = 201, body = File), (status = "4XX", body = Problem)))]
pub async fn mkdir(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<MkdirRequest>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.mkdir(&who, &id, request).await?)
}

/// Rename within the guest.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/move", tag = "files", params(("id" = String, Path)),
    request_body = MoveRequest, responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn rename(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<MoveRequest>,
) -> Result<Response, Refusal> {
    app.service.move_file(&who, &id, request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let of = |text: &str| range_of(&HeaderValue::from_str(text).unwrap());
        assert_eq!(of("bytes=0-"), Some(ByteRange::From(0, None)));
        assert_eq!(of("bytes=5-9"), Some(ByteRange::From(5, Some(9))));
        assert_eq!(of("bytes=-3"), Some(ByteRange::Last(3)));
        for other in [
            "bytes=9-5",
            "bytes=-",
            "bytes=-0",
            "bytes=a-b",
            "items=0-1",
            "bytes=1-2,4-5",
            "bytes=+1-2",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
