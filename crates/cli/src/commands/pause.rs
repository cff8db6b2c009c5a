//! `ramet pause`: stop sandboxes, with their memory kept.

use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
A paused sandbox uses no processor; it can be forked as it is.

Examples:
  ramet pause box
  ramet pause $(ramet ls -q --label idle)";

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
        changed.push(client.pause(sandbox).await?);
    }
    context.show_states(&changed);
    Ok(())
}
