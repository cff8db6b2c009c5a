//! `ramet ps`: processes in a sandbox.

use ramet_client::api::Process;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const COMMAND_SHOWN: usize = 80;

const HELP: &str = "\
A star marks what was started by an exec; `ramet exec --attach PID` joins it.

Examples:
  ramet ps box
  ramet ps -a box      kernel threads, too";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// Kernel threads, too
    #[arg(long, short)]
    all: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let mut list = context.client().await?.processes(&args.sandbox).await?;
    list.retain(|process| args.all || !kernel_thread(process));
    context.show(&list, |list| draw(list, context.paint));
    Ok(())
}

fn kernel_thread(process: &Process) -> bool {
    const KTHREADD: i32 = 2;
    process.pid == KTHREADD || process.parent == KTHREADD
}

fn draw(list: &[Process], paint: Paint) -> String {
    let mut table = Table::new(&["PID", "PARENT", "UID", "STATE", "CPU", "MEMORY", "", "COMMAND"]);
    for process in list {
        table.row(vec![
            process.pid.to_string(),
            process.parent.to_string(),
            process.uid.to_string(),
            process.state.clone(),
            output::micros(process.cpu_ms.saturating_mul(1000)),
            output::bytes(process.rss_bytes),
            if process.started_here { "*".to_owned() } else { String::new() },
            output::shorten(&process.command.join(" "), COMMAND_SHOWN),
        ]);
    }
    table.draw(paint)
}
