//! `ramet resume`: let paused sandboxes go on.

use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
Processes go on exactly where they were.

Examples:
  ramet resume box
  ramet resume a b c";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandboxes
    #[arg(required = true)]
    sandboxes: Vec<String>,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let mut changed = Vec::new();
    for sandbox in &args.sandboxes {
        changed.push(client.resume(sandbox).await?);
    }
    context.show_states(&changed);
    Ok(())
}
