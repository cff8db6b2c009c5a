//! Who may: tokens of the sandbox, tokens of its ports, signatures of single files.

use axum::extract::{Query, Request};
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::refused::Refused;
use crate::clock::now_ms;
use crate::dialects::e2b::labels::is_public;
use crate::dialects::e2b::{E2b, inner_id, keys};
use crate::sandbox::Live;
use crate::sandbox::record::Phase;

/// What who speaks to the sandbox has to show.
pub const ACCESS_TOKEN: &str = "x-access-token";
/// What who speaks to its ports has to show, if they are not public.
pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// The sandbox, if requests reach it now or wake it.
pub fn admit(e2b: &E2b, sandbox: &str) -> Result<Live, Refused> {
    let id = inner_id(sandbox).ok_or_else(|| Refused::bad("Invalid sandbox ID"))?;
    let none = |reason| Refused::not_found(&id, reason);
    let live = e2b.app.service.live(&id).ok_or_else(|| none(None))?;
    match live.phase {
        Phase::Running => Ok(live),
        Phase::Paused if live.auto_resume => Ok(live),
        Phase::Paused => Err(none(Some("it is paused; connect to it to resume it"))),
        Phase::Making => Err(Refused::in_transition(&id)),
        Phase::Failed => Err(none(Some("its machine has failed"))),
        Phase::Gone => Err(none(None)),
    }
}

/// Whether a request may speak to the sandbox itself.
pub fn check_envd(e2b: &E2b, id: &str, request: &Request) -> Result<(), Refused> {
    let path = request.uri().path();
    if request.method() == Method::GET && path == "/health" {
        return Ok(());
    }
    let token = e2b.keys.access_token(id);
    let shown = request.headers().get(ACCESS_TOKEN).and_then(|value| value.to_str().ok());
    match shown {
        Some(shown) if keys::same(shown, &token) => Ok(()),
        None if path == "/files" => {
            let signed = Signed::of(request)?;
            match signed.fits(&token) {
                true => signed.check_time(),
                false => Err(Refused::no_access("the signature does not fit")),
            }
        }
        _ => Err(Refused::no_access("no valid X-Access-Token of this sandbox")),
    }
}

/// Whether a request may speak to a port.
pub fn check_traffic(e2b: &E2b, live: &Live, request: &Request) -> Result<(), Refused> {
    if is_public(&live.labels) {
        return Ok(());
    }
    let shown = |name, right: String| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| keys::same(value, &right))
    };
    match shown(TRAFFIC_TOKEN, e2b.keys.traffic_token(&live.id))
        || shown(ACCESS_TOKEN, e2b.keys.access_token(&live.id))
    {
        true => Ok(()),
        false => Err(Refused::no_traffic(&live.id)),
    }
}

/// The sandbox whose token signed a request that names none.
pub fn signed_for(e2b: &E2b, request: &Request) -> Result<String, Refused> {
    let signed = Signed::of(request)?;
    let ids = e2b.app.service.live_ids();
    let signer = ids.into_iter().find(|id| signed.fits(&e2b.keys.access_token(id)));
    let id = signer.ok_or_else(|| Refused::no_access("the signature fits no sandbox"))?;
    signed.check_time()?;
    Ok(id)
}

#[derive(Debug, Default, Deserialize)]
struct Signature {
    #[serde(default)]
    path: String,
    #[serde(default)]
    username: String,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

/// A request for a file that is signed.
struct Signed {
    query: Signature,
    signature: String,
    operation: &'static str,
}

impl Signed {
    fn of(request: &Request) -> Result<Self, Refused> {
        let query = Query::<Signature>::try_from_uri(request.uri());
        let query = query.map(|query| query.0).map_err(|_| Refused::bad("Invalid query"))?;
        let operation = match *request.method() {
            Method::GET => "read",
            Method::POST => "write",
            _ => return Err(Refused::no_access("signatures are for GET and POST")),
        };
        let none = || Refused::no_access("no valid X-Access-Token of this sandbox");
        let signature = query.signature.clone().ok_or_else(none)?;
        Ok(Self { query, signature, operation })
    }

    fn fits(&self, token: &str) -> bool {
        let Signature { path, username, signature_expiration, .. } = &self.query;
        let right =
            signature(path, self.operation, username, token, signature_expiration.as_deref());
        keys::same(&self.signature, &right)
    }

    fn check_time(&self) -> Result<(), Refused> {
        let Some(end) = &self.query.signature_expiration else { return Ok(()) };
        match end.parse::<u64>() {
            Ok(end) if end.saturating_mul(1000) > now_ms() => Ok(()),
            _ => Err(Refused::no_access("the signature has expired")),
        }
    }
}

/// What stands for the right to one operation on one file.
fn signature(
    path: &str,
    operation: &str,
    username: &str,
    token: &str,
    expiration: Option<&str>,
) -> String {
    let mut text = format!("{path}:{operation}:{username}:{token}");
    if let Some(expiration) = expiration {
        text = format!("{text}:{expiration}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_as_sdks_make_them() {
        // Made with hashlib: base64(sha256("/a b:read:user:tok:1700000000")).
        let known = signature("/a b", "read", "user", "tok", Some("1700000000"));
        assert_eq!(known, "v1_Oc18ryPTYb4ELTU1gEFR5cHfGixsdjUNN/NqpqH5plc");
        let other = signature("x", "write", "", "tok", None);
        assert_eq!(other, "v1_YRcyf7XpQksIF8s07M2pmmi2QVQu+ouKbv8kcV1yF9o");
    }
}
