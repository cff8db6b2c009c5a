//! `ramet checkout`: a new sandbox that goes on from a commit.

use ramet_client::api::{Commit, CommitState, CreateSandbox, Created};
use serde::Serialize;

use crate::commands::new::{self, Settings};
use crate::context::Context;
use crate::failure::Failure;
use crate::output;

const HELP: &str = "\
The new sandbox has the memory, disk and processes of that moment, the commit's vCPUs and sizes,
and an identity of its own. It is warm if this host has the state; otherwise it is cold, and what
it needs comes from the store while it runs already. With --disk, and of a commit that has only
files, it boots anew and has the files alone; those of a whole commit are what the guest had
written to its disk by then. The commit stays; `ramet new --commit` does the same.

Examples:
  ramet checkout cm-0f3a
  ramet checkout before-migration box2
  ramet checkout before-migration fresh --disk
  ramet checkout main try --label attempt=1 --env SEED=7 --secret API_KEY";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Commit, tag or branch
    commit: String,
    /// Name: lower-case letters, digits and hyphens; also its host name
    name: Option<String>,
    /// Only the files: boot anew, on any processor
    #[arg(long)]
    disk: bool,
    #[command(flatten)]
    settings: Settings,
}

/// The sandbox, what it comes from, and whether that was at hand.
#[derive(Serialize)]
struct CheckedOut {
    #[serde(flatten)]
    created: Created,
    commit: String,
    warm: bool,
    booted: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    // Asked before: afterwards it is warm in any case. And a branch may move in between.
    let commit = client.get_commit(&args.commit).await?;
    let request = CreateSandbox {
        commit: Some(commit.id.clone()),
        disk: args.disk,
        ..args.settings.request(args.name.clone())
    };
    let created = new::create(&client, &request).await?;
    let booted = args.disk || commit.disk;
    let out = CheckedOut { created, warm: warm(&commit), booted, commit: commit.id };
    context.show(&out, |out| {
        let files = if out.booted { ", files only, booted" } else { "" };
        let more = format!(" from {}, {}{files}", out.commit, output::warmth(out.warm));
        new::line(&out.created, &more, context.paint)
    });
    Ok(())
}

/// It could go on without being fetched. One that is being written is in memory still.
fn warm(commit: &Commit) -> bool {
    commit.state == CommitState::Writing || commit.stored.as_ref().is_some_and(|stored| stored.warm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn what_is_in_memory_or_on_the_host_is_warm() {
        let mut commit = samples::commit("cm-1", None, &[]);
        assert!(warm(&commit));
        commit.stored =
            commit.stored.map(|stored| ramet_client::api::StoredState { warm: false, ..stored });
        assert!(!warm(&commit));
        (commit.state, commit.stored) = (CommitState::Writing, None);
        assert!(warm(&commit));
    }
}
