//! `cargo xtask test`: everything, set-up included. What CI runs.

use std::path::Path;
use std::process::{Child, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::{check, command, host, linux_tests, node_tests, place, schemathesis, workspace};

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
    note("check", check::run());
    note("tests without Linux guests", native(&monitor));
    if arguments.quick {
        eprintln!("SKIPPED  tests with Linux guests, as asked for");
    } else {
        // An emulated host has one processor, so two of them run beside each other; what the first says is shown at its end.
        let linux = Beside::start(&monitor);
        let stories =
            linux_tests::Arguments { as_is: true, vmm: Some(monitor), filter: Vec::new() };
        note("stories of the node", node_tests::run(&stories));
        note("tests with Linux guests", linux.and_then(Beside::end));
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The tests with Linux guests, in a process of their own.
struct Beside {
    process: Child,
    output: tempfile::NamedTempFile,
}

impl Beside {
    fn start(monitor: &Path) -> Result<Self> {
        let output = tempfile::NamedTempFile::new()?;
        let mut cargo = command::cargo();
        cargo.args(["xtask", "linux-tests", "--as-is", "--vmm"]).arg(monitor);
        cargo.current_dir(workspace::root()).stdin(Stdio::null());
        let file = output.reopen()?;
        cargo.stdout(file.try_clone()?).stderr(file);
        let process = cargo.spawn().context("cannot start cargo")?;
        Ok(Self { process, output })
    }

    fn end(mut self) -> Result<ExitCode> {
        let status = self.process.wait()?;
        std::io::copy(&mut self.output.reopen()?, &mut std::io::stdout())?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
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
