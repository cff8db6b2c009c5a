//! Files of a guest: one by one or as archives, streamed both ways; and what changes among them.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ramet_proto::api::{
    ArchiveFormat, Change, Code, File, FileList, ListFilesQuery, MkdirRequest, MoveRequest,
    Problem, ReadArchiveQuery, ReadQuery, RemoveQuery, Unpacked, WatchQuery, WriteArchiveQuery,
    WriteQuery,
};

use super::extract::{Caller, Json, Path, Pieces, Query};
use super::problem::{self, Refusal};
use super::{App, events, json};
use crate::sandbox::{ByteRange, FileSource, Upload};

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
pub fn range_of(value: &HeaderValue) -> Option<ByteRange> {
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
pub fn pieces(
    source: FileSource,
) -> impl futures_util::Stream<Item = Result<Vec<u8>, std::io::Error>> {
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
    let mut upload = app.service.write_file(&who, &id, query).await?;
    if pour(body, &mut upload).await? > 0 && link {
        return Err(Refusal::new(Code::BadRequest, "a symlink has no content"));
    }
    json(StatusCode::CREATED, &upload.finish().await?)
}

/// Sends a body into a guest, and says how long it was.
async fn pour(body: Body, upload: &mut Upload) -> Result<u64, Refusal> {
    let mut pieces = Pieces::of(body);
    let mut length = 0;
    while let Some(bytes) = pieces.next().await? {
        length += bytes.len() as u64;
        upload.data(&bytes).await?;
    }
    Ok(length)
}

/// A directory as a tar stream.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/archive", tag = "files", params(("id" = String, Path), ReadArchiveQuery),
    responses((status = 200, body = [u8], content_type = "application/x-tar"),
        (status = 200, body = [u8], content_type = "application/gzip"), (status = "4XX", body = Problem)))]
pub async fn read_archive(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ReadArchiveQuery>,
) -> Result<Response, Refusal> {
    let kind = match query.format {
        ArchiveFormat::Tar => "application/x-tar",
        ArchiveFormat::TarGz => "application/gzip",
    };
    let source = app.service.read_archive(&who, &id, query).await?;
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces(source))).into_response())
}

/// Unpack a tar stream of any size below a directory.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/archive", tag = "files", params(("id" = String, Path), WriteArchiveQuery),
    request_body(content = [u8], content_type = "application/x-tar"),
    responses((status = 200, body = Unpacked), (status = "4XX", body = Problem)))]
pub async fn write_archive(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<WriteArchiveQuery>,
    body: Body,
) -> Result<Response, Refusal> {
    let mut upload = app.service.write_archive(&who, &id, query).await?;
    pour(body, &mut upload).await?;
    json(StatusCode::OK, &upload.finish_archive().await?)
}

/// Changes below a path, as they happen.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", tag = "files", params(("id" = String, Path), WatchQuery),
    responses((status = 200, body = Change, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub async fn watch(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Refusal> {
    let watch = app.service.watch_files(&who, &id, query).await?;
    let changes = stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        Some(match watch.next().await {
            Ok(change) => (events::named(&change.kind, &change), Some(watch)),
            Err(error) => (events::named(&"error", &problem::of(&error)), None),
        })
    });
    Ok(events::stream_of(changes, app.service.stopping()))
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
