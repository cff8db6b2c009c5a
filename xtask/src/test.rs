//! `cargo xtask test`: everything, set-up included. What CI runs.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{check, command, linux_tests, place, workspace};

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Leave out the tests with Linux guests
    #[arg(long)]
    quick: bool,
}

/// Runs all of it, and says at the end which part failed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let monitor = place::prepare()?;
    let mut failed = Vec::new();
    let mut note = |part: &'static str, result: Result<ExitCode>| match result {
        Ok(ExitCode::SUCCESS) => {}
        Ok(_) => failed.push(part),
        Err(error) => {
            eprintln!("error: {error:#}");
            failed.push(part);
        }
    };
    note("check", check::run());
    note("tests without Linux guests", native(&monitor));
    if arguments.quick {
        eprintln!("SKIPPED  tests with Linux guests, as asked for");
    } else {
        let linux = linux_tests::Arguments { as_is: true, vmm: Some(monitor), filter: Vec::new() };
        note("tests with Linux guests", linux_tests::run(&linux));
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Unit tests, agents without a machine, and nano guests on `/dev/kvm`.
fn native(monitor: &std::path::Path) -> Result<ExitCode> {
    let mut cargo: Command = command::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]).current_dir(workspace::root());
    cargo.env("RAMET_VMM", monitor);
    let status = cargo.status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
