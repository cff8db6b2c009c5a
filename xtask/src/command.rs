//! Run programs: their output goes to the progress line, and if they fail the error says which
//! command it was, what it said last, and what to do.

use std::process::Command;

use anyhow::Result;

use crate::progress::Status;

/// The cargo that runs us. It does not see what that cargo has told us of ourselves: build scripts look at it, and would
/// have half of everything built anew when somebody calls cargo directly.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let own = |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
        cargo.env_remove(name);
    }
    cargo
}

/// Run to the end. Standard output and error are shown as progress.
pub fn run(status: &Status, command: &mut Command, advice: &str) -> Result<()> {
    Ok(ramet_image::command::run(&|line| status.detail(line), command, advice)?)
}

/// Run to the end and give its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    Ok(ramet_image::command::output(command)?)
}
