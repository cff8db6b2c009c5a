//! `ramet rewind`: take a sandbox back to a kept moment.

use ramet_client::api::RewindRequest;

use crate::context::Context;
use crate::failure::{Failure, NOT_FOUND};
use crate::output;

const HELP: &str = "\
Examples:
  ramet rewind box                      to its latest checkpoint
  ramet rewind box before-migration";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// Name or id of the checkpoint; the latest when absent
    checkpoint: Option<String>,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let checkpoint = match args.checkpoint {
        Some(checkpoint) => checkpoint,
        None => match client.checkpoints(&args.sandbox).await?.pop() {
            Some(latest) => latest.id,
            None => {
                return Err(Failure::new(format!("{} has no checkpoint", args.sandbox))
                    .exit(NOT_FOUND)
                    .next(format!("`ramet checkpoint make {}` makes one", args.sandbox)));
            }
        },
    };
    let swapped = client.rewind(&args.sandbox, &RewindRequest { checkpoint }).await?;
    context.show(&swapped, |swapped| {
        let time = context.paint.dim(&format!("took {}", output::micros(swapped.total_us)));
        format!("{}  {time}\n", context.paint.bold(&swapped.sandbox.name))
    });
    Ok(())
}
