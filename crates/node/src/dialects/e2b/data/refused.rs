//! What E2B's proxy says when a request does not reach a sandbox. SDKs read the messages.
//!
//! None of it is worth another try: the SDKs are told so, or they would send requests again that may have had an effect.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Fault;
use crate::dialects::e2b::outer_id;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// A refusal.
#[derive(Debug)]
pub struct Refused {
    status: StatusCode,
    body: Value,
}

impl Refused {
    fn new(status: StatusCode, mut body: Value) -> Self {
        body["code"] = json!(status.as_u16());
        Self { status, body }
    }

    /// It says no sandbox, or none that could be.
    pub fn bad(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!({ "message": reason }))
    }

    /// There is no such sandbox that runs; the reason may follow.
    pub fn not_found(id: &str, reason: Option<&str>) -> Self {
        let message = match reason {
            None => "The sandbox was not found".to_owned(),
            Some(reason) => format!("The sandbox was not found: {reason}"),
        };
        let body = json!({ "sandboxId": outer_id(id), "message": message });
        Self::new(StatusCode::BAD_GATEWAY, body)
    }

    /// Nothing listens.
    pub fn port_closed(id: &str, port: u16) -> Self {
        let message = "The sandbox is running but port is not open";
        let body = json!({ "sandboxId": outer_id(id), "message": message, "port": port });
        Self::new(StatusCode::BAD_GATEWAY, body)
    }

    /// It is there in a moment.
    pub fn in_transition(id: &str) -> Self {
        let message = "The sandbox is in transition; try again";
        let body = json!({ "sandboxId": outer_id(id), "message": message });
        Self::new(StatusCode::CONFLICT, body)
    }

    /// The token of its ports is missing or wrong.
    pub fn no_traffic(id: &str) -> Self {
        let message = "The sandbox takes no public traffic; send E2B-Traffic-Access-Token";
        let body = json!({ "sandboxId": outer_id(id), "message": message });
        Self::new(StatusCode::FORBIDDEN, body)
    }

    /// The token of the sandbox is missing or wrong.
    pub fn no_access(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, json!({ "message": message }))
    }

    /// Something else.
    pub fn other(id: &str, status: StatusCode, message: &str) -> Self {
        Self::new(status, json!({ "sandboxId": outer_id(id), "message": message }))
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::new(fault.status, json!({ "message": fault.message }))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut response = (self.status, [kind], self.body.to_string()).into_response();
        if self.status.is_server_error() {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}
