//! `ramet branch`: names of commits that move on with each commit that is made on them.

use ramet_client::api::RefKind;

use crate::commands::refs::{self, Names};
use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
`ramet commit --branch NAME` makes the branch, or moves it on to the new commit. A branch can be
given wherever a commit can. A commit that has a name is not deleted.

Examples:
  ramet branch                       lists branches
  ramet branch main cm-0f3a
  ramet branch --force main good     moves it back to the tag good
  ramet branch --delete main";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    names: Names,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    refs::run(&args.names, RefKind::Branch, context).await
}
