//! `ramet show`: everything about a commit.

use ramet_client::api::{Commit, CommitState};

use crate::commands::log::indented;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Sheet};

/// Ancestors that are listed.
const ANCESTORS_SHOWN: usize = 10;

const HELP: &str = "\
A commit is given by id, a unique beginning of it, or a tag or branch. Its ancestors are named
even when they are gone.

Examples:
  ramet show cm-0f3a
  ramet show main
  ramet show before-migration --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Commit, tag or branch
    commit: String,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let commit = context.client().await?.get_commit(&args.commit).await?;
    context.show(&commit, |commit| describe(commit, context.paint));
    Ok(())
}

fn describe(commit: &Commit, paint: Paint) -> String {
    let mut sheet = Sheet::default();
    sheet.line("commit", &commit.id);
    sheet.line("state", state(commit.state, paint));
    sheet.some("reason", commit.failure.as_deref().map(output::clean));
    if !commit.refs.is_empty() {
        sheet.line("names", commit.refs.join(", "));
    }
    sheet.line("author", output::clean(&commit.author));
    sheet.line("owner", &commit.owner);
    sheet.line("date", output::date(commit.created_at_ms));
    if !commit.labels.is_empty() {
        sheet.line("labels", output::pairs(&commit.labels));
    }
    sheet.line("sandbox", format!("{} {}", commit.sandbox_name, paint.dim(&commit.sandbox)));
    sheet.line("template", &commit.template);
    let disk = output::bytes(u64::from(commit.disk_mib) << 20);
    sheet.line("shape", format!("{}x{}M+{disk}", commit.vcpus, commit.memory_mib));
    sheet.line("kept after", output::micros(commit.kept_us));
    if let Some(stored) = &commit.stored {
        let took_ms = stored.stored_at_ms.saturating_sub(commit.created_at_ms);
        sheet.line("durable after", output::micros(took_ms.saturating_mul(1000)));
        sheet.line("stored state", &stored.state);
        sheet.line("size", output::bytes(stored.logical_bytes));
        sheet.line("holds", if commit.disk { "files" } else { "memory and files" });
        sheet.line("written", output::bytes(stored.written_bytes));
        sheet.line("on this host", output::warmth(stored.warm));
    }
    for (index, ancestor) in commit.ancestors.iter().take(ANCESTORS_SHOWN).enumerate() {
        sheet.line(if index == 0 { "ancestors" } else { "" }, ancestor);
    }
    if let Some(more) = commit.ancestors.len().checked_sub(ANCESTORS_SHOWN).filter(|more| *more > 0)
    {
        sheet.line("", format!("and {more} more; --json has them all"));
    }
    let message = commit.message.as_deref().map(indented).unwrap_or_default();
    let gap = if message.is_empty() { "" } else { "\n" };
    format!("{}{gap}{message}", sheet.finish())
}

fn state(state: CommitState, paint: Paint) -> String {
    match state {
        CommitState::Writing => paint.yellow("being written"),
        CommitState::Durable => paint.green("durable"),
        CommitState::Failed => paint.red("failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn everything_is_shown() {
        let mut commit = samples::commit("cm-1", Some("tests pass"), &["v1"]);
        commit.ancestors = (0..12).map(|number| format!("cm-a{number}")).collect();
        let text = describe(&commit, Paint::plain());
        for line in [
            "commit           cm-1\n",
            "state            durable\n",
            "names            v1\n",
            "date             1970-01-01 00:00:01 UTC\n",
            "sandbox          box sbx-1\n",
            "shape            1x512M+4.0 GiB\n",
            "durable after    1.5 s\n",
            "size             340 MiB\n",
            "holds            memory and files\n",
            "written          12 MiB\n",
            "on this host     warm\n",
            "ancestors        cm-a0\n                 cm-a1\n",
            "                 and 2 more; --json has them all\n\n    tests pass\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        commit.ancestors.truncate(10);
        commit.message = None;
        assert!(describe(&commit, Paint::plain()).ends_with("cm-a9\n"));
    }
}
