//! E2B's REST API: sandboxes, snapshots, templates, volumes, secrets.

use axum::Router;

use super::E2b;

/// Routes, with their state.
pub fn routes(e2b: E2b) -> Router {
    Router::new().with_state(e2b)
}
