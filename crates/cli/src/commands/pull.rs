//! `ramet pull`: a commit or template from another place.

use std::sync::Arc;
use std::time::Duration;

use ramet_client::api::{HostMode, MoveProgress, Moved, PullRequest, UnpackQuery};
use ramet_client::{Client, MoveFollower, MoveNews};
use ramet_store::Meter;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};
use crate::progress::Progress;
use crate::transit::{self, What};

/// Between two looks at a move.
const LOOK: Duration = Duration::from_millis(300);

const HELP: &str = "\
Places are those of `ramet push`. In a store NAME is a name or an id there, and can be left out if
there is only one. From another node: http://HOST:PORT/COMMIT, or …/templates/NAME.

Only what is missing here travels, and all of it is verified. A state of another processor or
version is refused before anything is moved. A node that trusts keys takes only what one of them
has signed.

Examples:
  ramet pull s3://team/states#good --as good
  ramet pull oci://registry.example/team/box:v1
  RAMET_REMOTE_TOKEN=… ramet pull http://10.0.0.7:7878/good";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Where from
    remote: String,
    #[command(flatten)]
    taking: Taking,
}

/// How what comes is taken; also of `ramet unpack`.
#[derive(clap::Args)]
pub struct Taking {
    /// New tag of the commit here, or name of the template
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Take a commit also if its machine cannot go on on this host, for `ramet checkout --disk`
    #[arg(long)]
    disk: bool,
}

impl Taking {
    /// As a query.
    pub fn query(&self) -> UnpackQuery {
        UnpackQuery { name: self.name.clone(), disk: self.disk }
    }
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let query = args.taking.query();
    let moved = match node_at(&args.remote)? {
        Some((other, rest)) => {
            let what = match rest.split_once('/') {
                None if !rest.is_empty() => What::Commit(rest),
                Some(("commits", name)) => What::Commit(name.to_owned()),
                Some(("templates", name)) => What::Template(name.to_owned()),
                _ => return Err(Failure::usage(format!("{}: which commit?", args.remote))),
            };
            transit::between(&other, &client, &what, &query).await?
        }
        None => from_remote(&args.remote, query, &client).await?,
    };
    context.show(&moved, |moved| draw("pulled", moved, context.paint));
    Ok(())
}

async fn from_remote(place: &str, query: UnpackQuery, client: &Client) -> Result<Moved, Failure> {
    let remote = transit::remote(place)?;
    let mut watcher = Watcher::new("pulling");
    if client.node().await?.host_mode == HostMode::Software {
        let meter = watcher.meter();
        let mut moved = watcher.watch(transit::pull(client, &query, remote, meter.clone())).await?;
        if !moved.known {
            moved.progress = transit::progress(&meter);
        }
        return Ok(moved);
    }
    let request = PullRequest { remote: place.to_owned(), name: query.name, disk: query.disk };
    watcher.follow(client.pull(&request).await?).await
}

/// The node that an address means, and what comes after its port; none if it is no address of a node.
pub fn node_at(text: &str) -> Result<Option<(Client, String)>, Failure> {
    let Some(rest) = text.strip_prefix("http://") else { return Ok(None) };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let token = std::env::var("RAMET_REMOTE_TOKEN").map_err(|_| {
        Failure::usage("RAMET_REMOTE_TOKEN is not set").next("set it to the token of that node")
    })?;
    let path = path.trim_matches('/').trim_start_matches("v1/");
    Ok(Some((Client::new(&format!("http://{host}"), &token)?, path.to_owned())))
}

/// Shows how far a move is.
pub struct Watcher {
    progress: Progress,
    verb: &'static str,
    meter: Arc<Meter>,
}

impl Watcher {
    /// Nothing yet.
    pub fn new(verb: &'static str) -> Self {
        let mut progress = Progress::new();
        progress.show(verb);
        Self { progress, verb, meter: Arc::default() }
    }

    /// What is looked at.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    fn show(&self, moved: MoveProgress) {
        self.progress.details()(&format!(
            "{} of {} chunks, {} moved",
            moved.done_chunks,
            moved.chunks,
            output::bytes(moved.moved_bytes)
        ));
    }

    /// Until something that this machine does is done.
    pub async fn watch<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut work = std::pin::pin!(work);
        let done = loop {
            match tokio::time::timeout(LOOK, &mut work).await {
                Ok(done) => break done,
                Err(_) => self.show(transit::progress(&self.meter)),
            }
        };
        self.progress.clear();
        done
    }

    /// Until something that the node does is done.
    pub async fn follow(&mut self, mut follower: MoveFollower) -> Result<Moved, Failure> {
        self.progress.show(self.verb);
        let done = loop {
            match follower.next().await {
                Ok(MoveNews::Progress(moved)) => self.show(moved),
                Ok(MoveNews::End(moved)) => break Ok(*moved),
                Err(error) => break Err(error.into()),
            }
        };
        self.progress.clear();
        done
    }
}

/// What was moved, on a line.
pub fn draw(verb: &str, moved: &Moved, paint: Paint) -> String {
    let name = match (&moved.commit, &moved.template) {
        (Some(commit), _) => {
            format!("{}{}", paint.bold(&commit.id), crate::commands::commit::names(commit, paint))
        }
        (None, Some(template)) => paint.bold(&template.name),
        (None, None) => String::new(),
    };
    let MoveProgress { chunks, moved_chunks, moved_bytes, .. } = moved.progress;
    let told = match moved.known {
        true => "was there already".to_owned(),
        false => {
            format!("{verb}, {} in {moved_chunks} of {chunks} chunks", output::bytes(moved_bytes))
        }
    };
    format!("{name}  {}\n", paint.dim(&told))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn what_travelled_is_told() {
        let progress =
            MoveProgress { chunks: 9, done_chunks: 9, moved_chunks: 2, moved_bytes: 3 << 20 };
        let commit = Some(samples::commit("cm-1", None, &["v1"]));
        let mut moved = Moved { commit, template: None, known: false, progress };
        assert_eq!(
            draw("pushed", &moved, Paint::plain()),
            "cm-1 (v1)  pushed, 3.0 MiB in 2 of 9 chunks\n"
        );
        moved.known = true;
        assert_eq!(draw("pulled", &moved, Paint::plain()), "cm-1 (v1)  was there already\n");
    }
}
