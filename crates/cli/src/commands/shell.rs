//! `ramet shell`: a terminal in a sandbox.

use std::collections::BTreeMap;

use crate::commands::exec::Place;
use crate::context::Context;
use crate::failure::Failure;
use crate::stream::{self, Standard};
use crate::terminal;
use crate::values::Line;

/// bash if it is there.
const LOGIN: &str = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi";

const HELP: &str = "\
The exit code is that of the shell; 125 if ramet itself failed.

Examples:
  ramet shell box
  ramet shell box --user nobody --cwd /tmp";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Sandbox
    sandbox: String,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    if context.json {
        return Err(Failure::usage("a shell has no JSON").next("see `ramet exec --json`"));
    }
    terminal::needed()?;
    let line = Line::Shell(LOGIN.to_owned());
    let exec = args.place.stream(line, BTreeMap::new(), Standard::Terminal);
    let process = context.client().await?.exec_stream(&args.sandbox, exec).await?;
    stream::run(process, Standard::Terminal).await
}
