//! The description of the API, generated from the handlers and types. A copy is committed as
//! `openapi/ramet.json`; a test fails when it differs. `RAMET_BLESS=1 cargo test -p ramet-node openapi`
//! writes it anew.

use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::problem::Refusal;
use super::{checkpoints, events, exec, files, json, node, processes, sandboxes, stream};

#[derive(OpenApi)]
#[openapi(
    info(title = "ramet", description = "microVM sandboxes in which fork is the primitive"),
    paths(
        node::health, node::ready, node::node, node::metrics,
        sandboxes::create, sandboxes::list, sandboxes::get, sandboxes::update, sandboxes::delete,
        sandboxes::fork, sandboxes::pause, sandboxes::resume, sandboxes::promote, sandboxes::diff, sandboxes::tree,
        sandboxes::stats, sandboxes::logs,
        checkpoints::create, checkpoints::list, checkpoints::delete, checkpoints::rewind,
        exec::exec, stream::stream, processes::list, processes::signal,
        files::read, files::write, files::remove, files::list, files::stat, files::mkdir, files::rename,
        events::events,
    ),
    components(schemas(api::StreamRequest, api::StreamInput, api::StreamReply, api::Event)),
    security(("token" = [])),
    modifiers(&Token),
)]
struct Description;

struct Token;

impl Modify for Token {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The description.
pub fn document() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// This API's description.
pub async fn description() -> Result<Response, Refusal> {
    json(StatusCode::OK, &document())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_committed_openapi_document_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/ramet.json");
        let text = super::document().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("RAMET_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "RAMET_BLESS=1 cargo test -p ramet-node openapi writes it anew");
    }
}
