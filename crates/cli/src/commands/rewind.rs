//! `ramet rewind`: take a sandbox back to a kept moment.

use ramet_client::api::{Checkpoint, RewindRequest};

use crate::context::Context;
use crate::failure::{Failure, NOT_FOUND};
use crate::output;

const HELP: &str = "\
Examples:
  ramet rewind box                      to its latest checkpoint
  ramet rewind box before-migration
  ramet rewind box --last               undoes its last command
  ramet rewind box --last 3             undoes its last three

The last two need a sandbox that is checkpointed before each exec: `ramet new --auto-checkpoints
N`, or of one that is there `ramet set --auto-checkpoints N`.";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// Name or id of the checkpoint; the latest when absent
    checkpoint: Option<String>,
    /// To before the last command, or the last N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", conflicts_with = "checkpoint",
        value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let checkpoint = match (args.checkpoint, args.last) {
        (Some(checkpoint), _) => checkpoint,
        (None, last) => {
            let list = client.checkpoints(&args.sandbox).await?;
            meant(&args.sandbox, list, last)?
        }
    };
    let swapped = client.rewind(&args.sandbox, &RewindRequest { checkpoint }).await?;
    context.show(&swapped, |swapped| {
        let time = context.paint.dim(&format!("took {}", output::micros(swapped.total_us)));
        format!("{}  {time}\n", context.paint.bold(&swapped.sandbox.name))
    });
    Ok(())
}

/// The latest checkpoint, or the one before the last so many commands.
fn meant(sandbox: &str, list: Vec<Checkpoint>, last: Option<u32>) -> Result<String, Failure> {
    let Some(last) = last else {
        return list.into_iter().next_back().map(|latest| latest.id).ok_or_else(|| {
            Failure::new(format!("{sandbox} has no checkpoint"))
                .exit(NOT_FOUND)
                .next(format!("`ramet checkpoint make {sandbox}` makes one"))
        });
    };
    let automatic: Vec<Checkpoint> = list.into_iter().filter(|one| one.automatic).collect();
    let place = usize::try_from(last).ok().and_then(|last| automatic.len().checked_sub(last));
    place.and_then(|place| automatic.get(place)).map(|one| one.id.clone()).ok_or_else(|| {
        let text = format!("{sandbox} can undo {} commands, not {last}", automatic.len());
        let next = format!("after `ramet set {sandbox} --auto-checkpoints N` it can undo N");
        Failure::new(text).exit(NOT_FOUND).next(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_from_the_last() {
        let checkpoint = |id: &str, command: Option<&str>| Checkpoint {
            id: id.into(),
            name: id.into(),
            sandbox: "sbx-1".into(),
            created_at_ms: 0,
            total_us: 0,
            automatic: command.is_some(),
            in_memory: true,
            stored: None,
            command: command.map(str::to_owned),
        };
        let list =
            || vec![checkpoint("1", Some("a")), checkpoint("2", Some("b")), checkpoint("3", None)];
        assert_eq!(meant("box", list(), None).unwrap(), "3");
        assert_eq!(meant("box", list(), Some(1)).unwrap(), "2");
        assert_eq!(meant("box", list(), Some(2)).unwrap(), "1");
        assert!(meant("box", list(), Some(3)).is_err());
        assert!(meant("box", Vec::new(), None).is_err());
    }
}
