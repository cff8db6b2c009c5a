//! The description of the API, generated from the handlers and types. A copy is committed as
//! `openapi/ramet.json`; a test fails when it differs. `RAMET_BLESS=1 cargo test -p ramet-node openapi`
//! writes it anew.

use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::problem::Refusal;
use super::{
    checkpoints, code, commits, events, exec, files, images, json, links, moves, network, networks,
    node, ports, processes, sandboxes, stream, templates, volumes,
};

#[derive(OpenApi)]
#[openapi(
    info(title = "ramet", description = "microVM sandboxes in which fork is the primitive"),
    paths(
        node::health, node::ready, node::node, node::metrics,
        sandboxes::create, sandboxes::list, sandboxes::get, sandboxes::update, sandboxes::delete,
        sandboxes::fork, sandboxes::pause, sandboxes::resume, sandboxes::promote, sandboxes::diff, sandboxes::tree,
        sandboxes::stats, sandboxes::logs,
        checkpoints::create, checkpoints::list, checkpoints::delete, checkpoints::rewind,
        commits::create, commits::list, commits::get, commits::delete, commits::refs, commits::put_ref, commits::delete_ref,
        commits::usage, commits::gc, commits::check,
        volumes::create, volumes::list, volumes::get, volumes::delete, volumes::attach, volumes::detach,
        exec::exec, stream::stream, processes::list, processes::signal,
        code::run, code::contexts, code::create_context, code::delete_context, code::restart_context, code::interrupt_context,
        files::read, files::write, files::remove, files::list, files::stat, files::mkdir, files::rename,
        files::read_archive, files::write_archive, files::watch,
        ports::list, ports::proxy, ports::tcp, links::wait, links::create, links::list, links::delete, links::follow,
        network::get, network::put, network::log, network::secrets, network::put_secret, network::delete_secret,
        network::tokens, network::create_token, network::delete_token,
        networks::create, networks::list, networks::get, networks::update, networks::delete, networks::join, networks::leave,
        networks::fork, networks::pause, networks::resume, networks::checkpoint, networks::rewind, networks::promote,
        networks::commit,
        templates::build, templates::list, templates::get, templates::delete, templates::log,
        images::list, images::get, images::put, images::delete,
        moves::push_commit, moves::push_template, moves::pull, moves::pack_commit, moves::pack_template, moves::unpack,
        events::events,
    ),
    components(schemas(api::StreamRequest, api::StreamInput, api::StreamReply, api::Event, api::Change,
        api::TemplateLog, api::MoveProgress)),
    security(("token" = [])),
    modifiers(&Token, &Problems),
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

/// Every operation may be refused, or fail, and says so with a problem.
struct Problems;

impl Modify for Problems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let operations = openapi.paths.paths.values_mut().flat_map(|item| {
            let PathItem { get, put, post, delete, patch, .. } = item;
            [get, put, post, delete, patch].into_iter().flatten()
        });
        for operation in operations {
            let responses = &mut operation.responses.responses;
            responses.retain(|status, _| !status.starts_with(['4', '5']));
            for (status, description) in [("4XX", "Refused"), ("5XX", "Failed")] {
                let content = Content::new(Some(Ref::from_schema_name("Problem")));
                let problem = ResponseBuilder::new().description(description);
                let problem = problem.content("application/problem+json", content);
                responses.insert(status.to_owned(), problem.build().into());
            }
        }
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
