//! Requests, read strictly: what is not known is refused, what is too long is not read.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use ramet_proto::api::{Code, IDEMPOTENCY_KEY};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::problem::Refusal;
use crate::auth::Principal;

/// Longest JSON body: standard input of 8 MiB in base64, and more.
const BODY_MAX: usize = 12 << 20;
/// Time for a client to send it.
const BODY_TIME: Duration = Duration::from_secs(60);

/// How long a client may take between two pieces of a body of any length.
const PIECE_TIME: Duration = Duration::from_secs(60);

/// A body of any length, as it comes.
pub struct Pieces(BodyDataStream);

impl Pieces {
    /// Of this body.
    pub fn of(body: Body) -> Self {
        Self(body.into_data_stream())
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        match timeout(PIECE_TIME, self.0.next()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Some(Err(_))) => Err(Refusal::new(Code::BadRequest, "the body broke off")),
            Err(_) => Err(Refusal::new(Code::BadRequest, "the body did not come in time")),
        }
    }
}

/// Who asks. Put there by `authenticate`.
pub struct Caller(pub Principal);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal
            .map(Self)
            .ok_or_else(|| Refusal::new(Code::Unauthorized, "this route needs a token"))
    }
}

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        let bytes = read(request.into_body()).await?;
        let json =
            kind.is_none_or(|kind| kind.to_ascii_lowercase().starts_with(b"application/json"));
        if !bytes.is_empty() && !json {
            return Err(Refusal::new(Code::BadRequest, "the body must be application/json"));
        }
        parse(&bytes).map(Self)
    }
}

async fn read(body: Body) -> Result<Vec<u8>, Refusal> {
    match timeout(BODY_TIME, to_bytes(body, BODY_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => {
            let text = format!("the body broke off or is longer than {BODY_MAX} bytes");
            Err(Refusal::new(Code::TooLarge, text))
        }
        Err(_) => Err(Refusal::new(Code::BadRequest, "the body did not come in time")),
    }
}

/// JSON, strictly. No body stands for no fields.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // A list would be taken for the fields in their order.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Refusal::new(Code::BadRequest, "a JSON object is expected"));
    }
    serde_json::from_slice(bytes).map_err(|error| refused(&error.to_string()))
}

/// A field that is not known is an option that is not supported.
fn refused(message: &str) -> Refusal {
    let unknown = message.contains("unknown field") || message.contains("unknown variant");
    let code = if unknown { Code::UnsupportedOption } else { Code::BadRequest };
    Refusal::new(code, message)
}

/// A query.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| refused(&error.body_text()))
    }
}

/// A request that must say nothing.
pub struct Empty;

impl<S: Sync> FromRequest<S> for Empty {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let bytes = read(request.into_body()).await?;
        parse::<Nothing>(&bytes).map(|Nothing {}| Self)
    }
}

/// The `Idempotency-Key`, if there is one.
pub struct Key(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Some(value) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(Self(None)) };
        let text = value.to_str();
        let text = text.map_err(|_| {
            Refusal::new(Code::BadRequest, "Idempotency-Key: visible ASCII characters only")
        })?;
        Ok(Self(Some(text.to_owned())))
    }
}

/// A part of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0))
            .map_err(|error| Refusal::new(Code::BadRequest, error.body_text()))
    }
}
