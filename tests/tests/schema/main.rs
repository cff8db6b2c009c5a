//! Hostile input to every endpoint, derived from the API's description by schemathesis.
//!
//! The node is the real one, its routes, rules and database, on an engine without machines (`ramet_node::host::fake`): nothing
//! that is asked here reaches a guest unchecked, and thousands of requests are answered in the time that one fork takes in
//! an emulated host. What guests themselves do to a node is told by the program `node`.
//!
//! `cargo xtask test` installs schemathesis and names it by `RAMET_SCHEMATHESIS`; without it nothing is done.
//! `RAMET_TEST_SEED` repeats a run, `RAMET_TEST_EXAMPLES` sets how many requests each operation gets.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use ramet_node::auth::{self, Tokens};
use ramet_node::host::Host;
use ramet_node::host::fake::Fake;
use ramet_node::host::net::fake::FakeNet;
use ramet_node::http::{self, App, USUAL};
use ramet_node::sandbox::{Service, Settings};
use ramet_node::store::Store;

const TOKEN: &str = "the-token-of-the-administrator";
/// Unless the environment says otherwise.
const SEED: &str = "1";
const EXAMPLES: &str = "20";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance,response_headers_conformance,refusals_are_problems";

/// Streams do not end by themselves, and on a port somebody else answers.
const EXCLUDED: [&str; 5] = [
    "/v1/events",
    "/v1/sandboxes/{id}/files/watch",
    "/v1/sandboxes/{id}/ports/{port}/{path}",
    "/v1/sandboxes/{id}/tcp/{port}",
    "/v1/templates/{name}/log",
];

fn main() -> ExitCode {
    let Some(program) = env::var_os("RAMET_SCHEMATHESIS") else {
        eprintln!(
            "SKIPPED: hostile input to every endpoint; `cargo xtask test` installs what it needs"
        );
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let scratch = tempfile::tempdir().expect("a directory");
    let url = runtime.block_on(serve(&scratch.path().join("data")));
    let seed = env::var("RAMET_TEST_SEED").unwrap_or_else(|_| SEED.to_owned());
    let examples = env::var("RAMET_TEST_EXAMPLES").unwrap_or_else(|_| EXAMPLES.to_owned());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(program)
        .arg("run")
        .arg(root.join("../openapi/ramet.json"))
        .args(["--url", &url, "--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--checks", CHECKS, "--phases", "examples,coverage,fuzzing"])
        .args(["--seed", &seed, "--max-examples", &examples, "--generation-database", "none"])
        .args(["--request-timeout", "60"])
        .args(EXCLUDED.iter().flat_map(|path| ["--exclude-path", *path]))
        .args(["--continue-on-failure", "--no-color", "--warnings", "off"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", root.join("tests/schema"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RAMET_URL", &url)
        .env("RAMET_TOKEN", TOKEN)
        .current_dir(scratch.path())
        .status()
        .expect("schemathesis");
    let fine = status.success();
    println!("{} passed, {} failed", u8::from(fine), u8::from(!fine));
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A node on a port of its own.
async fn serve(data: &Path) -> String {
    std::fs::create_dir(data).expect("a directory");
    let settings = Settings { data_dir: data.to_owned(), ..Settings::default() };
    let store = Arc::new(Store::in_memory().expect("a database"));
    store.add_token(&auth::hash(TOKEN), auth::ADMIN, 0).expect("a token");
    let tokens = Tokens::load(&store).expect("tokens");
    let service = Service::new(Host::new(Fake::new(), FakeNet::new()), store, settings);
    service.recover().await.expect("an empty node");
    service.start_network().await;
    service.warm_up(USUAL);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let routes = http::router(App::new(service, tokens, USUAL));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{address}")
}
