//! `ramet unpack`: what `ramet pack` wrote, to this node.

use std::path::PathBuf;

use ramet_client::api::Moved;

use crate::commands::pull;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::Progress;

const HELP: &str = "\
All of it is verified; what is not whole, or not for this host's processor, or not signed by a key
that the node trusts, leaves nothing behind.

Examples:
  ramet unpack good.pack --as good
  ssh there ramet pack good -o - | ramet unpack -";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// File to read; - is standard input
    file: PathBuf,
    #[command(flatten)]
    taking: pull::Taking,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let query = args.taking.query();
    let mut progress = Progress::new();
    progress.show("unpacking");
    let moved: Moved = if args.file.as_os_str() == "-" {
        client.unpack(&query, tokio::io::stdin()).await?
    } else {
        let file = tokio::fs::File::open(&args.file).await.map_err(|error| {
            Failure::because(format!("cannot read {}", args.file.display()), &error)
        })?;
        client.unpack(&query, file).await?
    };
    progress.clear();
    context.show(&moved, |moved| pull::draw("unpacked", moved, context.paint));
    Ok(())
}
