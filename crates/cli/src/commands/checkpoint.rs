//! `ramet checkpoint`: keep moments of a sandbox.

use clap::Subcommand;
use ramet_client::api::{Checkpoint, CreateCheckpoint};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const COMMAND_SHOWN: usize = 60;

const HELP: &str = "\
Examples:
  ramet checkpoint make box --name before-migration
  ramet checkpoint ls box
  ramet rewind box before-migration
  ramet checkpoint rm box before-migration";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Keep this moment
    Make {
        /// Sandbox
        sandbox: String,
        /// Name; the id when absent
        #[arg(long, short)]
        name: Option<String>,
    },
    /// List the kept moments
    Ls {
        /// Sandbox
        sandbox: String,
    },
    /// Give kept moments up
    Rm {
        /// Sandbox
        sandbox: String,
        /// Names or ids
        #[arg(required = true)]
        checkpoints: Vec<String>,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::Make { sandbox, name } => {
            let made = client.checkpoint(&sandbox, &CreateCheckpoint { name }).await?;
            context.show(&made, |made| {
                let time = context.paint.dim(&format!("took {}", output::micros(made.total_us)));
                format!("{}  {time}\n", context.paint.bold(&made.name))
            });
        }
        Action::Ls { sandbox } => {
            let list = client.checkpoints(&sandbox).await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Rm { sandbox, checkpoints } => {
            for checkpoint in &checkpoints {
                client.delete_checkpoint(&sandbox, checkpoint).await?;
            }
            context.show(&json!({ "removed": checkpoints }), |_| String::new());
        }
    }
    Ok(())
}

fn draw(list: &[Checkpoint], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "ID", "AGE", "WHERE", "MADE BEFORE"]);
    for checkpoint in list {
        table.row(vec![
            checkpoint.name.clone(),
            checkpoint.id.clone(),
            output::age(checkpoint.created_at_ms, now_ms),
            if checkpoint.in_memory { "memory" } else { "store" }.to_owned(),
            output::shorten(checkpoint.command.as_deref().unwrap_or(""), COMMAND_SHOWN),
        ]);
    }
    table.draw(paint)
}
