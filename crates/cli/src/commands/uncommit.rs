//! `ramet uncommit`: delete commits.

use ramet_client::api::Code;
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
Sandboxes that were checked out go on, and so do the commits after it, which still name it. A
commit with a name is not deleted: delete its tags and branches first. What nothing needs any more
leaves the store with `ramet gc`.

Examples:
  ramet uncommit cm-0f3a
  ramet uncommit $(ramet log -q --label attempt)";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Commits
    #[arg(required = true)]
    commits: Vec<String>,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    for commit in &args.commits {
        client.delete_commit(commit).await.map_err(|error| match error.code() {
            Some(Code::InUse) => Failure::from(error).next(
                "`ramet show` lists its names; `ramet tag --delete` and `ramet branch --delete` delete them",
            ),
            _ => error.into(),
        })?;
    }
    context.show(&json!({ "removed": args.commits }), |_| String::new());
    Ok(())
}
