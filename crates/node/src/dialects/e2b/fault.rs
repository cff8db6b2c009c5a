//! Errors of the control plane, in the shape that E2B's SDKs read: `{"code": 404, "message": "…"}` with the status again.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::http::problem;
use crate::sandbox::Error;

/// SDKs try again on some statuses unless they are told not to.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// A refusal.
#[derive(Debug)]
pub struct Fault {
    /// HTTP's status, also in the body.
    pub status: StatusCode,
    /// What was wrong.
    pub message: String,
}

impl Fault {
    /// With this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// A bad request.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A feature that is not there.
    pub fn unsupported(feature: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("ramet does not support {feature}"))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let problem = problem::of(&error);
        let status = match problem.status {
            // What was there once is not there, for these clients.
            410 => StatusCode::NOT_FOUND,
            status => StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        };
        Self { status, message: problem.detail }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let body = json!({"code": self.status.as_u16(), "message": self.message});
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut response = (self.status, [kind], body.to_string()).into_response();
        if self.status.is_server_error() {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}
