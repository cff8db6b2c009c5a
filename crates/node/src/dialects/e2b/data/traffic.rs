//! Requests to servers in a guest.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::Code;

use super::access::{ACCESS_TOKEN, TRAFFIC_TOKEN};
use super::refused::Refused;
use crate::dialects::e2b::E2b;
use crate::http::{Held, ports};
use crate::sandbox::Live;

/// Headers that are for the node.
const OURS: [&str; 4] = [ACCESS_TOKEN, TRAFFIC_TOKEN, "e2b-sandbox-id", "e2b-sandbox-port"];

/// Passes a request on to a port.
pub async fn pass(
    e2b: &E2b,
    live: &Live,
    port: u16,
    mut request: Request,
) -> Result<Response, Refused> {
    for name in OURS {
        request.headers_mut().remove(name);
    }
    let Some(held) = request.extensions().get::<Held>().cloned() else {
        let text = "the node does not count this request";
        return Err(Refused::other(&live.id, StatusCode::INTERNAL_SERVER_ERROR, text));
    };
    let at = ports::At { id: live.id.clone(), port };
    let path = request.uri().path().to_owned();
    let passed = ports::pass(&e2b.app, &live.who, at, "", &path, held, request).await;
    passed.map_err(|refusal| match refusal.0.code {
        Code::ConnectionRefused => Refused::port_closed(&live.id, port),
        Code::NotFound | Code::Gone | Code::Promoted => Refused::not_found(&live.id, None),
        Code::WrongState => Refused::not_found(&live.id, Some(&refusal.0.detail)),
        _ => {
            let status = StatusCode::from_u16(refusal.0.status);
            let status = status.unwrap_or(StatusCode::BAD_GATEWAY);
            Refused::other(&live.id, status, &refusal.0.detail)
        }
    })
}
