//! `ramet commit`: keep a moment of a sandbox for good.

use ramet_client::api::{Commit, CommitState, CreateCommit, PutRef, RefKind};
use ramet_client::{Client, Error};

use crate::context::Context;
use crate::failure::{CONFLICT, Failure};
use crate::output::{self, Paint};
use crate::values;

const HELP: &str = "\
The sandbox stops for as long as a fork takes, then goes on; its moment is written to the store in
the background. It is durable when that is done, and only what the store does not have yet is
written. `ramet show` says how far it is. A commit outlives its sandbox and the node. What the
processes knew is in its memory; of a sandbox that holds secrets it needs --inherit-secrets.

Examples:
  ramet commit box -m 'tests pass'
  ramet commit box -m 'before the migration' --tag before-migration
  ramet commit box --branch main --author ann --label run=7 --wait
  ramet commit box --disk -m 'the workspace, without what runs'
  ramet log box
  ramet checkout before-migration box2
  ramet uncommit cm-0f3a";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox, running or paused
    sandbox: String,
    /// What it is
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Who made it; who asks when absent
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
    /// For your own use
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// Branch that points to it from when it is durable on
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// New tag of it; waits until it is durable
    #[arg(long, short, value_name = "NAME")]
    tag: Option<String>,
    /// Wait until it is durable
    #[arg(long, short)]
    wait: bool,
    /// Only the files: small, and a sandbox of it boots anew, on any host
    #[arg(long)]
    disk: bool,
    /// The secrets that the sandbox holds may be in the commit's memory
    #[arg(long)]
    inherit_secrets: bool,
}

impl Args {
    fn request(&self) -> CreateCommit {
        CreateCommit {
            message: self.message.clone(),
            author: self.author.clone(),
            labels: values::map(&self.label),
            branch: self.branch.clone(),
            wait: self.wait || self.tag.is_some(),
            disk: self.disk,
            inherit_secrets: self.inherit_secrets.then_some(true),
        }
    }
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    if let Some(tag) = &args.tag {
        free(&client, tag).await?;
    }
    let mut commit = client.commit(&args.sandbox, &args.request()).await.map_err(late)?;
    if commit.state == CommitState::Failed {
        let reason = commit.failure.unwrap_or_default();
        return Err(Failure::new(format!("{} could not be written: {reason}", commit.id)));
    }
    if let Some(tag) = &args.tag {
        name(&client, tag, &commit.id).await?;
        if !commit.refs.contains(tag) {
            commit.refs.push(tag.clone());
        }
    }
    context.show(&commit, |commit| draw(commit, context.paint));
    Ok(())
}

/// A commit that is not durable in time is being written still.
fn late(error: Error) -> Failure {
    match error {
        Error::Timeout(_) => {
            Failure::from(error).next("it is being written still; `ramet log` shows how far it is")
        }
        _ => error.into(),
    }
}

/// An error if the name points to something: better before the commit than after it.
async fn free(client: &Client, name: &str) -> Result<(), Failure> {
    match client.refs().await?.iter().find(|other| other.name == name) {
        None => Ok(()),
        Some(other) => Err(Failure::new(format!("{name} points to {} already", other.commit))
            .exit(CONFLICT)
            .next("choose another name; or commit with --wait, then `ramet tag --force`")),
    }
}

async fn name(client: &Client, name: &str, commit: &str) -> Result<(), Failure> {
    let request = PutRef { commit: commit.to_owned(), kind: RefKind::Tag, force: false };
    client.put_ref(name, &request).await.map(drop).map_err(|error| {
        Failure::because(format!("{commit} is durable, but has no name"), &error)
            .next(format!("`ramet tag NAME {commit}` gives it one"))
    })
}

fn draw(commit: &Commit, paint: Paint) -> String {
    let mut told = format!("kept after {}, {}", output::micros(commit.kept_us), how_far(commit));
    if let Some(stored) = &commit.stored {
        let took_ms = stored.stored_at_ms.saturating_sub(commit.created_at_ms);
        told.push_str(&format!(", durable after {}", output::micros(took_ms.saturating_mul(1000))));
    }
    format!("{}{}  {}\n", paint.bold(&commit.id), names(commit, paint), paint.dim(&told))
}

/// How far a commit is, and what was written for it.
pub fn how_far(commit: &Commit) -> String {
    match (commit.state, &commit.stored) {
        (CommitState::Failed, _) => {
            format!("failed: {}", output::clean(commit.failure.as_deref().unwrap_or("unknown")))
        }
        (CommitState::Writing, _) => "being written".to_owned(),
        (CommitState::Durable, None) => "durable".to_owned(),
        (CommitState::Durable, Some(stored)) => format!(
            "{} written of {}{}",
            output::bytes(stored.written_bytes),
            output::bytes(stored.logical_bytes),
            if commit.disk { ", files only" } else { "" }
        ),
    }
}

/// The names of a commit in brackets, with a space before them; nothing if it has none.
pub fn names(commit: &Commit, paint: Paint) -> String {
    match commit.refs.as_slice() {
        [] => String::new(),
        names => format!(" {}", paint.green(&format!("({})", names.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use clap::{Args as _, FromArgMatches};

    fn parsed(words: &[&str]) -> Result<CreateCommit, clap::Error> {
        let matches = Args::augment_args(clap::Command::new("commit"))
            .try_get_matches_from([&["commit"], words].concat())?;
        Ok(Args::from_arg_matches(&matches)?.request())
    }

    #[test]
    fn a_tag_needs_what_is_durable() {
        assert!(!parsed(&["box", "-m", "a b"]).unwrap().wait);
        assert!(parsed(&["box", "--tag", "v1"]).unwrap().wait);
        let request = parsed(&["box", "-l", "a=b", "-b", "main", "--author", "ann"]).unwrap();
        assert_eq!((request.labels["a"].as_str(), request.author.as_deref()), ("b", Some("ann")));
        assert_eq!(request.branch.as_deref(), Some("main"));
        assert!(parsed(&[]).is_err() && parsed(&["box", "--label", "a"]).is_err());
    }

    #[test]
    fn what_is_known_of_it_is_told() {
        let mut commit = samples::commit("cm-1", None, &["v1", "main"]);
        let expected =
            "cm-1 (v1, main)  kept after 1.2 ms, 12 MiB written of 340 MiB, durable after 1.5 s\n";
        assert_eq!(draw(&commit, Paint::plain()), expected);
        commit.state = CommitState::Writing;
        (commit.stored, commit.refs) = (None, Vec::new());
        assert_eq!(draw(&commit, Paint::plain()), "cm-1  kept after 1.2 ms, being written\n");
        (commit.state, commit.failure) = (CommitState::Failed, Some("disk\nfull".into()));
        assert_eq!(how_far(&commit), "failed: disk full");
    }
}
