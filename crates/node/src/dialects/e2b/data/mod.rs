//! What SDKs say to a sandbox.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{E2b, Fault};

/// The port of a sandbox that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Id of the sandbox, as the SDK knows it.
    pub sandbox: String,
    /// Port in the guest.
    pub port: u16,
}

/// Which sandbox a request is for, if it is for one.
pub fn target(_e2b: &E2b, _request: &Request) -> Option<Target> {
    None
}

/// Answers it.
pub async fn serve(_e2b: &E2b, _target: Target, _request: Request) -> Response {
    Fault::new(StatusCode::BAD_GATEWAY, "The sandbox was not found").into_response()
}
