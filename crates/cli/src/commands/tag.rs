//! `ramet tag`: names of commits that stay where they are.

use ramet_client::api::RefKind;

use crate::commands::refs::{self, Names};
use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
A tag can be given wherever a commit can. A commit that has a name is not deleted.

Examples:
  ramet tag                          lists tags
  ramet tag before-migration cm-0f3a
  ramet tag --force good main        moves it to where the branch main is
  ramet tag --delete before-migration";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    names: Names,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    refs::run(&args.names, RefKind::Tag, context).await
}
