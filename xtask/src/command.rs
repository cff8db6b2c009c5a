//! Run programs: their output goes to the progress line, and if they fail the error says which
//! command it was, what it said last, and what to do.

use std::process::Command;

use anyhow::Result;

use crate::progress::Status;

/// The cargo that has built this.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Run to the end. Standard output and error are shown as progress.
pub fn run(status: &Status, command: &mut Command, advice: &str) -> Result<()> {
    Ok(ramet_image::command::run(&|line| status.detail(line), command, advice)?)
}

/// Run to the end and give its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    Ok(ramet_image::command::output(command)?)
}
