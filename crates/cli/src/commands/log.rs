//! `ramet log`: commits, newest first.

use ramet_client::Client;
use ramet_client::api::{Commit, CommitState, CommitsQuery};

use crate::commands::commit::{how_far, names};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};

/// Most commits of a page of the node.
const PAGE: u32 = 1000;
/// Characters of a message that are shown on one line.
const MESSAGE_SHOWN: usize = 80;

const HELP: &str = "\
Of a sandbox: the commits of its line. Of a commit, by id, unique beginning of it, or name: it and
those before it. Of nothing: all there are. Commits that were deleted are not in it; `ramet show`
still names them.

Examples:
  ramet log
  ramet log box --oneline
  ramet log main -n 5
  ramet log --label run=7 --json
  ramet uncommit $(ramet log -q --label attempt)";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox, commit, tag or branch
    #[arg(value_name = "SANDBOX|COMMIT|NAME")]
    of: Option<String>,
    /// Only with this label; KEY for any value
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    label: Option<String>,
    /// Only the newest N
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    number: Option<u32>,
    /// A line for each
    #[arg(long)]
    oneline: bool,
    /// Only ids
    #[arg(long, short, conflicts_with = "oneline")]
    quiet: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let list = newest(&context.client().await?, args).await?;
    let paint = context.paint;
    context.show(&list, |list| match (list.as_slice(), args.quiet, args.oneline) {
        (list, true, _) => list.iter().map(|commit| format!("{}\n", commit.id)).collect(),
        ([], ..) => "No commits. Try: ramet commit SANDBOX -m 'what it is'\n".to_owned(),
        (list, _, true) => list.iter().map(|commit| line(commit, paint)).collect(),
        (list, ..) => {
            let texts: Vec<String> = list.iter().map(|commit| entry(commit, paint)).collect();
            texts.join("\n")
        }
    });
    Ok(())
}

async fn newest(client: &Client, args: &Args) -> Result<Vec<Commit>, Failure> {
    let (of, label) = (args.of.clone(), args.label.clone());
    let query = CommitsQuery { of, label, limit: args.number, cursor: None };
    match args.number {
        Some(number) if number <= PAGE => Ok(client.commits(&query).await?.commits),
        number => {
            let mut all = client.commits_all(&query).await?;
            let most = number.and_then(|number| usize::try_from(number).ok());
            all.truncate(most.unwrap_or(usize::MAX));
            Ok(all)
        }
    }
}

fn line(commit: &Commit, paint: Paint) -> String {
    let message = commit.message.as_deref().and_then(|message| message.trim().lines().next());
    let message = output::shorten(message.unwrap_or("(no message)"), MESSAGE_SHOWN);
    let state = match commit.state {
        CommitState::Durable => String::new(),
        CommitState::Writing => format!(" {}", paint.yellow("[being written]")),
        CommitState::Failed => format!(" {}", paint.red("[failed]")),
    };
    format!("{}{}{state} {message}\n", paint.yellow(&commit.id), names(commit, paint))
}

fn entry(commit: &Commit, paint: Paint) -> String {
    let head = paint.yellow(&format!("commit {}", commit.id));
    let mut text = format!("{head}{}\n", names(commit, paint));
    let mut add = |what: &str, value: &str| text.push_str(&format!("{what:<9}{value}\n"));
    add("Author:", &output::clean(&commit.author));
    add("Date:", &output::date(commit.created_at_ms));
    add("Sandbox:", &commit.sandbox_name);
    if !commit.labels.is_empty() {
        add("Labels:", &output::pairs(&commit.labels));
    }
    add("Stored:", &how_far(commit));
    if let Some(message) = &commit.message {
        text.push_str(&format!("\n{}", indented(message)));
    }
    text
}

/// A message, four columns further right.
pub fn indented(message: &str) -> String {
    let lines = message.trim_end().lines();
    lines.map(|line| format!("    {}\n", output::clean(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use std::collections::BTreeMap;

    #[test]
    fn an_entry_reads_like_one_of_git() {
        let mut commit = samples::commit("cm-1", Some("first\n\n  then \x1b[31m\n"), &["v1"]);
        commit.labels = BTreeMap::from([("run".to_owned(), "7".to_owned())]);
        let expected = "\
commit cm-1 (v1)
Author:  ann
Date:    1970-01-01 00:00:01 UTC
Sandbox: box
Labels:  run=7
Stored:  12 MiB written of 340 MiB

    first
    \n      then  [31m
";
        assert_eq!(entry(&commit, Paint::plain()), expected);
        commit.message = None;
        assert!(entry(&commit, Paint::plain()).ends_with("of 340 MiB\n"));
    }

    #[test]
    fn a_line_has_the_beginning_of_the_message() {
        let mut commit = samples::commit("cm-1", Some("\nfirst\nsecond"), &["v1", "main"]);
        assert_eq!(line(&commit, Paint::plain()), "cm-1 (v1, main) first\n");
        (commit.message, commit.state) = (None, CommitState::Writing);
        commit.refs.clear();
        assert_eq!(line(&commit, Paint::plain()), "cm-1 [being written] (no message)\n");
    }
}
