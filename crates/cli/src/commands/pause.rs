//! `ramet pause`: stop sandboxes and put them into the store; and what `ramet resume` shares with it.

use std::time::Instant;

use ramet_client::api::{PauseRequest, Sandbox, State};
use ramet_client::{Client, Error};
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};

const HELP: &str = "\
A paused sandbox costs neither memory nor processor: its memory and disk are in the store, where
only what was not there yet is written, and its machine is gone. `ramet resume` makes it again,
exactly where it was. It can be forked, compared, committed and promoted as it is. With `ramet set
--auto-resume on` the first request that needs it resumes it.

With --memory the machine stays in the host's memory: that takes no time, frees no memory, and
does not outlive the host. With --disk only the files are kept, which takes the least room: its
processes end, and it boots anew when it is resumed.

Examples:
  ramet pause box
  ramet pause --memory box
  ramet pause --disk box
  ramet pause $(ramet ls -q --label idle)";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandboxes
    #[arg(required = true)]
    sandboxes: Vec<String>,
    /// Keep them in the host's memory instead of the store
    #[arg(long)]
    memory: bool,
    /// Keep only their files; they boot anew when they are resumed
    #[arg(long, conflicts_with = "memory")]
    disk: bool,
}

/// A sandbox that was paused or resumed.
#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    sandbox: Sandbox,
    /// As long as the request took.
    took_us: u64,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let request = PauseRequest { memory: args.memory, disk: args.disk };
    let pause = async |client: &Client, name: &str| client.pause(name, &request).await;
    change(&args.sandboxes, context, pause).await
}

/// Does the same to each sandbox, up to the first failure, and prints what they are now and how long it took.
pub async fn change(
    sandboxes: &[String],
    context: &Context,
    act: impl AsyncFn(&Client, &str) -> Result<Sandbox, Error>,
) -> Result<(), Failure> {
    let client = context.client().await?;
    let (mut changed, mut failed) = (Vec::new(), None);
    for name in sandboxes {
        let began = Instant::now();
        match act(&client, name).await {
            Ok(sandbox) => {
                let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                changed.push(Changed { sandbox, took_us });
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // What was done is told even if not all could be.
    if failed.is_none() || !changed.is_empty() {
        context
            .show(&changed, |changed| changed.iter().map(|one| draw(one, context.paint)).collect());
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn draw(changed: &Changed, paint: Paint) -> String {
    let Changed { sandbox, took_us } = changed;
    let place = match (sandbox.state, &sandbox.stored) {
        (State::Paused, Some(stored)) => format!(
            "{}in store, {} written of {}, ",
            if stored.disk { "files " } else { "" },
            output::bytes(stored.written_bytes),
            output::bytes(stored.logical_bytes)
        ),
        (State::Paused, None) => "in memory, ".to_owned(),
        _ => String::new(),
    };
    let more = paint.dim(&format!("{place}took {}", output::micros(*took_us)));
    format!("{} {}  {more}\n", sandbox.name, paint.state(sandbox.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn where_it_is_and_what_it_took_is_told() {
        let sandbox = samples::sandbox("sbx-1", "box", None);
        let mut changed = Changed { sandbox, took_us: 1500 };
        assert_eq!(draw(&changed, Paint::plain()), "box running  took 1.5 ms\n");
        changed.sandbox.state = State::Paused;
        assert_eq!(draw(&changed, Paint::plain()), "box paused  in memory, took 1.5 ms\n");
        changed.sandbox.stored = Some(samples::stored());
        let expected = "box paused  in store, 12 MiB written of 340 MiB, took 1.5 ms\n";
        assert_eq!(draw(&changed, Paint::plain()), expected);
        changed.sandbox.stored.as_mut().unwrap().disk = true;
        assert!(draw(&changed, Paint::plain()).starts_with("box paused  files in store, "));
        let json = serde_json::to_value(&changed).unwrap();
        assert_eq!((json["name"].as_str(), json["took_us"].as_u64()), (Some("box"), Some(1500)));
    }
}
