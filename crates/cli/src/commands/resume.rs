//! `ramet resume`: let paused sandboxes go on.

use ramet_client::Client;

use crate::commands::pause;
use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
Processes go on exactly where they were, with the right time; connections into the sandbox are
closed. What this host still has of it makes it warm; otherwise it is cold, and what it needs
comes from the store while it runs already. `ramet ls` shows which.

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
    let resume = async |client: &Client, name: &str| client.resume(name).await;
    pause::change(&args.sandboxes, context, resume).await
}
