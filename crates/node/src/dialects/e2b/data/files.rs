//! Files over HTTP: one is read, or any number is written, each whole or not at all.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Query, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ramet_proto::agent::{Account, WriteFile};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Fault;
use super::body::{Inflow, Outflow, Wanted, wanted};
use super::connect::Failed;
use super::entry::METADATA;
use super::multipart::{Form, Piece};
use super::person::{self, Guest, name_of, named};
use crate::http::files::range_of;
use crate::sandbox::{Error, FileSource, Upload};

/// Most bytes of metadata of a file.
const METADATA_MAX: usize = 4096;
/// Most parts of a form.
const PARTS_MAX: usize = 1000;
/// What headers with metadata begin with.
const METADATA_HEADER: &str = "x-metadata-";

#[derive(Debug, Default, Deserialize)]
struct Parameters {
    path: Option<String>,
    username: Option<String>,
}

/// A refusal of plain HTTP: what it is about has other statuses there.
fn refused(failed: Failed) -> Fault {
    let status = match failed.code {
        "not_found" => StatusCode::NOT_FOUND,
        "invalid_argument" | "already_exists" => StatusCode::BAD_REQUEST,
        "unauthenticated" => StatusCode::UNAUTHORIZED,
        "permission_denied" => StatusCode::FORBIDDEN,
        "unavailable" => StatusCode::BAD_GATEWAY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Fault::new(status, failed.message)
}

fn failed(error: Error) -> Fault {
    let fault = Fault::from(error);
    match fault.status {
        // A path that leads to something else than a file.
        StatusCode::CONFLICT => Fault::bad(fault.message),
        _ => fault,
    }
}

fn prepare(guest: &mut Guest, request: &Request) -> Result<Parameters, Fault> {
    let query = Query::<Parameters>::try_from_uri(request.uri());
    let query = query.map_err(|error| Fault::bad(error.body_text()))?.0;
    let user = query.username.clone().filter(|name| !name.is_empty());
    guest.named = match user {
        Some(name) => Some(name),
        None => named(request.headers()).map_err(refused)?,
    };
    Ok(query)
}

/// `GET /files`.
pub async fn read(mut guest: Guest, request: Request) -> Result<Response, Fault> {
    let query = prepare(&mut guest, &request)?;
    let path = query.path.ok_or_else(|| Fault::bad("path: is missing"))?;
    let path = guest.place(&path).await.map_err(refused)?;
    let range = request.headers().get(header::RANGE).and_then(range_of);
    let mut wanted = wanted(request.headers())?;
    let service = &guest.e2b.app.service;
    let source = service.read_file(&guest.live.who, &guest.live.id, &path, range).await;
    let mut source = source.map_err(failed)?;
    if range.is_some() {
        wanted = Wanted::Plain;
    }
    // What has no size may be a file of the kernel, or nothing at all.
    let first = match source.length {
        Some(_) => None,
        None => source.next().await.map_err(failed)?,
    };
    if source.length.is_none() && first.is_none() {
        let mut response = Body::empty().into_response();
        describe(response.headers_mut(), &path);
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        return Ok(response);
    }
    Ok(sent(source, first, wanted, &path, range.is_some()))
}

fn describe(headers: &mut HeaderMap, path: &str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
    let name: String = name_of(path).chars().map(|c| if plain(c) { c } else { '_' }).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("inline; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
}

fn sent(
    source: FileSource,
    first: Option<Vec<u8>>,
    wanted: Wanted,
    path: &str,
    part: bool,
) -> Response {
    let (size, offset, length) = (source.entry.size, source.offset, source.length);
    let mut response = Outflow::new(source, first, wanted).body().into_response();
    describe(response.headers_mut(), path);
    let headers = response.headers_mut();
    match (wanted, length) {
        (Wanted::Gzip, _) => {
            drop(headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip")));
        }
        (Wanted::Plain, Some(length)) => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            if part {
                let last = offset + length.saturating_sub(1);
                if let Ok(value) = HeaderValue::from_str(&format!("bytes {offset}-{last}/{size}")) {
                    headers.insert(header::CONTENT_RANGE, value);
                }
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            }
        }
        (Wanted::Plain, None) => {}
    }
    response
}

/// `POST /files`.
pub async fn write(mut guest: Guest, request: Request) -> Result<Response, Fault> {
    let query = prepare(&mut guest, &request)?;
    let attributes = metadata(request.headers())?;
    let (account, _) = guest.person().await.map_err(refused)?;
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or("").to_owned();
    let inflow = Inflow::of(&parts.headers, body)?;
    let writer = Writer { guest, account, attributes, single: query.path };
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let written = match essence.as_str() {
        "multipart/form-data" => writer.form(Form::new(&kind)?, inflow).await?,
        "application/octet-stream" => vec![writer.whole(inflow).await?],
        other => {
            let text =
                format!("content type {other:?}: multipart/form-data or application/octet-stream");
            return Err(Fault::bad(text));
        }
    };
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind], Value::Array(written).to_string()).into_response())
}

/// Metadata in the headers, as attributes.
fn metadata(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Fault> {
    let mut found = BTreeMap::new();
    let mut room = METADATA_MAX;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER) else { continue };
        let value = value.to_str().map_err(|_| bad_metadata(name))?;
        let length = key.len() + value.len();
        if key.is_empty() || length > room {
            return Err(bad_metadata(name));
        }
        room -= length;
        found.insert(format!("{METADATA}{key}"), value.to_owned());
    }
    Ok(found)
}

fn bad_metadata(name: &HeaderName) -> Fault {
    Fault::bad(format!("{name}: a name and visible ASCII, at most {METADATA_MAX} bytes in all"))
}

/// Writes files of one request.
struct Writer {
    guest: Guest,
    account: Account,
    attributes: BTreeMap<String, String>,
    /// The path of the query, which goes before names of parts.
    single: Option<String>,
}

impl Writer {
    async fn begin(&self, path: &str) -> Result<(Upload, String), Fault> {
        let path = person::resolve(path, &self.account.home).map_err(refused)?;
        let file = WriteFile {
            path: path.clone(),
            owner: Some(self.account.name.clone()),
            attributes: self.attributes.clone(),
            ..WriteFile::default()
        };
        let (service, live) = (&self.guest.e2b.app.service, &self.guest.live);
        let upload = service.write_entry(&live.who, &live.id, file).await.map_err(failed)?;
        Ok((upload, path))
    }

    async fn end(&self, (upload, path): (Upload, String)) -> Result<Value, Fault> {
        upload.finish().await.map_err(failed)?;
        let mut written = json!({ "name": name_of(&path), "type": "file", "path": path });
        if !self.attributes.is_empty() {
            let pairs = self.attributes.iter();
            let names = pairs.map(|(name, value)| (name.trim_start_matches(METADATA), value));
            written["metadata"] = json!(names.collect::<BTreeMap<_, _>>());
        }
        Ok(written)
    }

    async fn whole(&self, mut inflow: Inflow) -> Result<Value, Fault> {
        let path = self.single.as_deref().ok_or_else(|| Fault::bad("path: is missing"))?;
        let mut file = self.begin(path).await?;
        while let Some(bytes) = inflow.next().await? {
            file.0.data(&bytes).await.map_err(failed)?;
        }
        self.end(file).await
    }

    async fn form(&self, mut form: Form, mut inflow: Inflow) -> Result<Vec<Value>, Fault> {
        let mut written = Vec::new();
        let mut open: Option<(Upload, String)> = None;
        while let Some(bytes) = inflow.next().await? {
            form.push(&bytes);
            while let Some(piece) = form.next()? {
                match piece {
                    Piece::Part { name, file } => {
                        open = self.part(&name, file, written.len()).await?
                    }
                    Piece::Data(bytes) => {
                        if let Some((upload, _)) = &mut open {
                            upload.data(&bytes).await.map_err(failed)?;
                        }
                    }
                    Piece::End => {
                        if let Some(file) = open.take() {
                            written.push(self.end(file).await?);
                        }
                    }
                }
            }
        }
        match form.is_over() {
            true => Ok(written),
            false => Err(Fault::bad("multipart: the body broke off")),
        }
    }

    /// The file that a part is; other parts say nothing here.
    async fn part(
        &self,
        name: &str,
        file: Option<String>,
        before: usize,
    ) -> Result<Option<(Upload, String)>, Fault> {
        if name != "file" {
            return Ok(None);
        }
        if before >= PARTS_MAX {
            return Err(Fault::bad(format!("multipart: more than {PARTS_MAX} files")));
        }
        if self.single.is_some() && before > 0 {
            return Err(Fault::bad("path: names one file, and the form has several"));
        }
        let path = self.single.clone().or(file);
        let path = path.ok_or_else(|| Fault::bad("multipart: a file has no name"))?;
        self.begin(&path).await.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded() {
        let mut headers = HeaderMap::new();
        headers.insert("x-metadata-colour", "blue".parse().unwrap());
        headers.insert("x-other", "1".parse().unwrap());
        assert_eq!(
            metadata(&headers).unwrap(),
            BTreeMap::from([("e2b.colour".into(), "blue".into())])
        );
        headers.insert("x-metadata-long", "x".repeat(METADATA_MAX).parse().unwrap());
        assert_eq!(metadata(&headers).unwrap_err().status, 400);
    }
}
