//! Requests, read strictly: fields that are not known are refused by name.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use ramet_proto::api::IDEMPOTENCY_KEY;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::auth::Principal;
use crate::dialects::e2b::Fault;

/// Longest body.
const BODY_MAX: usize = 4 << 20;
/// Time for a client to send it.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Who asks.
pub struct Caller(pub Principal);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal
            .map(Self)
            .ok_or_else(|| Fault::new(StatusCode::UNAUTHORIZED, "this route needs an API key"))
    }
}

/// A JSON body; no body stands for no fields.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, _: &S) -> Result<Self, Fault> {
        let bytes = read(request.into_body()).await?;
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let bytes = if first.is_none() { b"{}" } else { &bytes[..] };
        // A list would be taken for the fields in their order.
        if !matches!(first, None | Some(b'{')) {
            return Err(Fault::bad("a JSON object is expected"));
        }
        let value = serde_json::from_slice(bytes);
        value.map(Self).map_err(|error| Fault::bad(error.to_string()))
    }
}

async fn read(body: Body) -> Result<Vec<u8>, Fault> {
    match timeout(BODY_TIME, to_bytes(body, BODY_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => {
            let text = format!("the body broke off or is longer than {BODY_MAX} bytes");
            Err(Fault::new(StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        Err(_) => Err(Fault::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
    }
}

/// A query.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| Fault::bad(error.body_text()))
    }
}

/// A part of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|error| Fault::bad(error.body_text()))
    }
}

/// The `Idempotency-Key`, if there is one.
pub struct Key(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for Key {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let Some(value) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(Self(None)) };
        let text = value.to_str();
        let text =
            text.map_err(|_| Fault::bad("Idempotency-Key: visible ASCII characters only"))?;
        Ok(Self(Some(text.to_owned())))
    }
}
