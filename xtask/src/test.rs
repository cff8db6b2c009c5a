//! `cargo xtask test`: everything, set-up included. What CI runs.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::place::{self, For};
use crate::{check, command, guest, host, node_tests, schemathesis, workspace};

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Leave out the tests with Linux guests
    #[arg(long)]
    quick: bool,
}

/// Runs all of it, and says at the end which part failed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    guest::make(false)?;
    let monitor = place::build_monitor(For::Tests)?;
    host::install_tools()?;
    let mut failed = Vec::new();
    let mut note = |part: &'static str, result: Result<ExitCode>| match result {
        Ok(ExitCode::SUCCESS) => {}
        Ok(_) => failed.push(part),
        Err(error) => {
            eprintln!("error: {error:#}");
            failed.push(part);
        }
    };
    note("check", check::without_lints());
    note("tests without Linux guests", native(&monitor));
    if arguments.quick {
        eprintln!("SKIPPED  tests with Linux guests, as asked for");
    } else {
        note("tests with Linux guests", with_guests(&monitor));
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Tests of machines and stories of the node. An emulated host has one processor, so two of them run beside each other;
/// what is said in the second is shown at its end.
fn with_guests(monitor: &Path) -> Result<ExitCode> {
    node_tests::prepare()?;
    let output = tempfile::NamedTempFile::new()?;
    let second = {
        let (monitor, output) = (monitor.to_owned(), output.reopen()?);
        thread::spawn(move || {
            let machines = itself("linux-tests", &monitor, None, Some(&output))?;
            let stories = itself("node-tests", &monitor, Some("own"), Some(&output))?;
            Ok::<_, anyhow::Error>(machines && stories)
        })
    };
    let first = itself("node-tests", monitor, Some("shared"), None);
    let second = second.join().map_err(|_| anyhow!("the second host was given up"))?;
    std::io::copy(&mut output.reopen()?, &mut std::io::stdout())?;
    Ok(if first? && second? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs another command of this program. Whether it succeeded.
fn itself(
    command: &str,
    monitor: &Path,
    part: Option<&str>,
    output: Option<&File>,
) -> Result<bool> {
    let mut process = Command::new(std::env::current_exe()?);
    process.args([command, "--as-is", "--vmm"]).arg(monitor).stdin(Stdio::null());
    process.envs(part.map(|part| ("RAMET_TEST_PART", part)));
    if let Some(file) = output {
        process.stdout(file.try_clone()?).stderr(file.try_clone()?);
    }
    Ok(process.status().with_context(|| format!("cannot start {command}"))?.success())
}

/// Unit tests, agents without a machine, nano guests on `/dev/kvm`, hostile input to the API, and the software host, which needs the guest's
/// files and is therefore not part of a plain `cargo test`.
fn native(monitor: &Path) -> Result<ExitCode> {
    let schemathesis = schemathesis::install()?;
    let test = |arguments: &[&str]| {
        let mut cargo = command::cargo();
        cargo.arg("test").args(arguments).current_dir(workspace::root());
        cargo.env("RAMET_VMM", monitor).env("RAMET_GUEST_DIR", workspace::guest_dir());
        cargo.env("RAMET_SCHEMATHESIS", &schemathesis);
        Ok::<_, anyhow::Error>(cargo.status().context("cannot start cargo")?.success())
    };
    let all = test(&["--workspace", "--no-fail-fast"])?;
    let host = test(&["--workspace", "--lib", "--", "--ignored"])?;
    Ok(if all && host { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
