//! Files that builds copy: archives that an SDK uploads under the hash of what is in them.
//!
//! They are the caller's own, and kept on the node's disk so that the next build finds them; the oldest go when there is too much. The hash
//! is the SDK's, over names and contents before they were packed, and only names the archive. The upload needs no API key but a token that is in
//! its address.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::fs;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::super::extract::{Caller, Path, Query};
use super::super::{Control, json};
use super::known;
use crate::auth::Principal;
use crate::dialects::e2b::{Fault, keys};
use crate::random;

/// Largest archive.
const ARCHIVE_MAX: u64 = 2 << 30;
/// Bytes of a caller's archives, at most; those of the build that copies now included.
const ALL_MAX: u64 = 8 << 30;
/// How long a client may take between two pieces.
const PIECE_TIME: std::time::Duration = std::time::Duration::from_secs(60);
/// What an archive is called while it comes.
const COMING: &str = ".coming";

/// Where a caller's archives are.
fn directory(control: &Control, who: &str) -> PathBuf {
    let name = blake3::hash(who.as_bytes()).to_hex();
    control.service().settings.data_dir.join("e2b").join("uploads").join(name.as_str())
}

/// The archive with this hash, if it is there.
pub fn archive(control: &Control, who: &Principal, hash: &str) -> Result<PathBuf, Fault> {
    check(hash)?;
    Ok(directory(control, who.name()).join(hash))
}

fn check(hash: &str) -> Result<(), Fault> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match hash.len() == 64 && hash.bytes().all(digit) {
        true => Ok(()),
        false => Err(Fault::bad(format!("{hash:?} is no SHA-256 in lower-case hex"))),
    }
}

fn failed(error: &io::Error) -> Fault {
    if crate::store::is_full(error) {
        return Fault::new(StatusCode::INSUFFICIENT_STORAGE, "the node's disk is full");
    }
    tracing::error!(?error, "an archive of a build cannot be kept");
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "the node failed; its log says more")
}

/// `GET /templates/{id}/files/{hash}`.
pub async fn offer(
    State(control): State<Control>,
    Caller(who): Caller,
    Path((id, hash)): Path<(String, String)>,
    parts: Parts,
) -> Result<Response, Fault> {
    known::find(&control, &who, &id)?;
    let path = archive(&control, &who, &hash)?;
    if fs::try_exists(&path).await.unwrap_or(false) {
        return Ok(json(StatusCode::CREATED, &json!({"present": true})));
    }
    let token = control.e2b.keys.upload_token(who.name(), &hash);
    let owner = who.name();
    let url = format!("{}/e2b/uploads/{hash}?owner={owner}&token={token}", origin(&parts));
    Ok(json(StatusCode::CREATED, &json!({"present": false, "url": url})))
}

/// Where the client reached the node.
fn origin(parts: &Parts) -> String {
    let text = |headers: &HeaderMap, name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let authority = parts.uri.authority().map(ToString::to_string);
    let host = authority.or_else(|| text(&parts.headers, HOST.as_str())).unwrap_or_default();
    let scheme = text(&parts.headers, "x-forwarded-proto")
        .or_else(|| parts.uri.scheme_str().map(str::to_owned))
        .filter(|scheme| scheme == "https");
    format!("{}://{host}", scheme.as_deref().unwrap_or("http"))
}

/// Query of an upload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permit {
    owner: String,
    token: String,
}

/// `PUT /e2b/uploads/{hash}`.
pub async fn put(
    State(control): State<Control>,
    Path(hash): Path<String>,
    Query(permit): Query<Permit>,
    body: Body,
) -> Result<Response, Fault> {
    check(&hash)?;
    let right = control.e2b.keys.upload_token(&permit.owner, &hash);
    if !keys::same(&permit.token, &right) {
        return Err(Fault::new(StatusCode::FORBIDDEN, "this address is not for uploads"));
    }
    let directory = directory(&control, &permit.owner);
    fs::create_dir_all(&directory).await.map_err(|error| failed(&error))?;
    make_room(&directory).await.map_err(|error| failed(&error))?;
    let unique = random::hex(8).map_err(|error| failed(&error))?;
    let coming = directory.join(format!("{hash}.{unique}{COMING}"));
    let received = receive(body, &coming).await;
    let kept = match received {
        Ok(()) => fs::rename(&coming, directory.join(&hash)).await.map_err(|e| failed(&e)),
        Err(fault) => Err(fault),
    };
    if kept.is_err() {
        // What cannot be removed now is removed when room is made.
        drop(fs::remove_file(&coming).await);
    }
    kept.map(|()| StatusCode::OK.into_response())
}

async fn receive(body: Body, path: &std::path::Path) -> Result<(), Fault> {
    let mut file = fs::File::create(path).await.map_err(|error| failed(&error))?;
    let (mut pieces, mut length) = (body.into_data_stream(), 0u64);
    loop {
        let piece = timeout(PIECE_TIME, pieces.next()).await;
        let piece = piece.map_err(|_| Fault::bad("the archive did not come in time"))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|_| Fault::bad("the archive broke off"))?;
        length += piece.len() as u64;
        if length > ARCHIVE_MAX {
            let text = format!("an archive has at most {ARCHIVE_MAX} bytes");
            return Err(Fault::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        file.write_all(&piece).await.map_err(|error| failed(&error))?;
    }
    file.flush().await.map_err(|error| failed(&error))
}

/// Removes the oldest archives until another one fits.
async fn make_room(directory: &std::path::Path) -> io::Result<()> {
    let mut files = Vec::new();
    let mut entries = fs::read_dir(directory).await?;
    while let Some(entry) = entries.next_entry().await? {
        let about = entry.metadata().await?;
        let at = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        files.push((at, about.len(), entry.path()));
    }
    files.sort();
    let mut all: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if all + ARCHIVE_MAX <= ALL_MAX {
            break;
        }
        fs::remove_file(path).await?;
        all -= length;
    }
    Ok(())
}
