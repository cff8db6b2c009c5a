//! `ramet down`: stop the node.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_client::Client;
use ramet_client::api::{HostMode, ListQuery};
use serde_json::json;

use crate::context::Context;
use crate::failure::{CONFLICT, Failure};
use crate::node::home::Home;
use crate::output;

/// How long a node may take to end; more than the keeper itself takes until it kills.
const END_TIME: Duration = Duration::from_secs(90);
/// How long the node may take to say what it has.
const ASK_TIME: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

const HELP: &str = "\
On hardware sandboxes live on without their node, and the next `ramet up` finds them again. In the
software host they end with it, so there --all is needed if there are any.

Examples:
  ramet down
  ramet down --all      all sandboxes, too";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Delete all sandboxes first
    #[arg(long)]
    all: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    if context.elsewhere() {
        return Err(Failure::usage("RAMET_URL names a node that is not stopped from here"));
    }
    let home = Home::find()?;
    let Some(pid) = home.keeper() else {
        let value = json!({ "stopped": false, "deleted": 0 });
        context.show(&value, |_| "No node is running.\n".to_owned());
        return Ok(());
    };
    let mut deleted = 0;
    if let (Some(client), Some(record)) = (context.running()?, home.running()) {
        let asked = tokio::time::timeout(ASK_TIME, client.list_all(&ListQuery::default())).await;
        // A node that does not answer is stopped all the same.
        let ids: Vec<String> = match asked {
            Ok(Ok(list)) => list.into_iter().map(|sandbox| sandbox.id).collect(),
            _ => Vec::new(),
        };
        if args.all {
            deleted = delete(&client, &ids).await?;
        } else if record.mode == HostMode::Software && !ids.is_empty() {
            let count = ids.len();
            return Err(Failure::new(format!(
                "sandboxes live in the software host and would end with it: {count}"
            ))
            .exit(CONFLICT)
            .next("`ramet down --all` ends them, too; `ramet ls` lists them"));
        }
    }
    let began = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGTERM)
        .map_err(|error| Failure::because("cannot stop the node", &error))?;
    while home.kept() {
        if began.elapsed() > END_TIME {
            return Err(Failure::new(format!("the node (process {pid}) does not end"))
                .next(format!("see {}; `kill -9 {pid}` ends it", home.log_file().display())));
        }
        tokio::time::sleep(PAUSE).await;
    }
    let value = json!({ "stopped": true, "deleted": deleted });
    context.show(&value, |_| {
        format!("The node is down after {}.\n", output::seconds(began.elapsed()))
    });
    Ok(())
}

async fn delete(client: &Client, ids: &[String]) -> Result<usize, Failure> {
    for id in ids {
        client.delete(id).await?;
    }
    Ok(ids.len())
}
