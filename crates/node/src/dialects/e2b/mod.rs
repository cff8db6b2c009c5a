//! The dialect of E2B's SDKs.
//!
//! [`control`] is their REST API, [`data`] what they say to a sandbox: processes and files over Connect, files over HTTP, the code
//! interpreter, any port. Both share one listener with the node's own API. A request belongs to `data` if its headers or
//! its host name say which sandbox it is for; then its path means something else.
//!
//! | theirs | ours |
//! |---|---|
//! | API key `e2b_HEX` | token `ramet_HEX`, with its principal |
//! | sandbox id `HEX` | `sbx-HEX` |
//! | metadata | labels; those that begin with `e2b.` are the dialect's own notes |
//! | snapshot | commit |

pub mod control;
pub mod data;
mod fault;
mod keys;
mod labels;
mod time;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;

pub use fault::Fault;
pub use keys::Keys;

use crate::auth::Principal;
use crate::http::App;

/// What the routes of the dialect work with.
#[derive(Clone)]
pub struct E2b {
    /// The node's own API.
    pub app: App,
    /// Tokens of sandboxes.
    pub keys: Keys,
    /// Domain that sandboxes have names in, with a port if it is not 443.
    pub domain: Option<String>,
    /// What requests to sandboxes share.
    pub data: data::Shared,
}

impl E2b {
    /// Over the node's own API.
    pub fn new(app: App, keys: Keys, domain: Option<String>) -> Self {
        Self { app, keys, domain, data: data::Shared::default() }
    }

    /// Whose API key this is: the node's token in another form, or the token itself.
    pub fn principal(&self, key: &str) -> Option<Principal> {
        let token = key.strip_prefix("e2b_").map(|digits| format!("ramet_{digits}"));
        self.app.tokens.principal(token.as_deref().unwrap_or(key))
    }
}

/// A sandbox's id as SDKs may use it in a host name: without hyphen.
pub fn outer_id(id: &str) -> &str {
    id.strip_prefix("sbx-").unwrap_or(id)
}

/// The id of the node, if this is one of ours in form.
pub fn inner_id(id: &str) -> Option<String> {
    let digits = outer_id(id);
    let digit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (!digits.is_empty() && digits.len() <= 64 && digits.chars().all(digit))
        .then(|| format!("sbx-{digits}"))
}

/// The node's routes with those of the dialect before them.
pub fn over(routes: Router, e2b: E2b) -> Router {
    let all = routes.merge(control::routes(e2b.clone()));
    all.layer(from_fn(move |request: Request, next: Next| {
        let e2b = e2b.clone();
        async move { dispatch(e2b, request, next).await }
    }))
}

async fn dispatch(e2b: E2b, request: Request, next: Next) -> Response {
    match data::target(&e2b, &request) {
        Some(target) => data::serve(&e2b, target, request).await,
        None => next.run(request).await,
    }
}
