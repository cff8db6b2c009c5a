//! `cargo xtask test`: everything, set-up included. What CI runs.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::place::{self, For};
use crate::progress::seconds;
use crate::{check, command, guest, host, interpreter_tests, node_tests, schemathesis, workspace};

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
    let (mut failed, mut began) = (Vec::new(), Instant::now());
    let mut note = |part: &'static str, result: Result<ExitCode>| {
        eprintln!("ended {part} {}", seconds(began.elapsed()));
        began = Instant::now();
        match result {
            Ok(ExitCode::SUCCESS) => {}
            Ok(_) => failed.push(part),
            Err(error) => {
                eprintln!("error: {error:#}");
                failed.push(part);
            }
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

/// What is run with Linux guests, longest first: a command of this program, what it is told, and the part of it.
const WITH_GUESTS: [(&str, &[&str], Option<&str>); 4] = [
    ("node-tests", &[], Some("shared")),
    ("linux-tests", &[], None),
    ("node-tests", &[], Some("own")),
    ("e2b-tests", &["--only", "matrix"], None),
];
/// This very program, even when the build of the workspace has put another at its path.
const ITSELF: &str = "/proc/self/exe";
/// An emulated host has one processor, so this many of them run beside each other.
const HOSTS: usize = 2;

/// Tests of machines, stories of the node, and SDKs of others against it. What each says is shown at its end.
fn with_guests(monitor: &Path) -> Result<ExitCode> {
    node_tests::prepare()?;
    let (next, fine) = (AtomicUsize::new(0), AtomicBool::new(true));
    thread::scope(|scope| {
        for _ in 0..HOSTS {
            scope.spawn(|| {
                while let Some((command, told, part)) =
                    WITH_GUESTS.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let passed = itself(command, told, *part, monitor).unwrap_or_else(|error| {
                        eprintln!("error: {error:#}");
                        false
                    });
                    fine.fetch_and(passed, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(if fine.into_inner() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs another command of this program, and shows what it said. Whether it succeeded.
fn itself(command: &str, told: &[&str], part: Option<&str>, monitor: &Path) -> Result<bool> {
    let (began, output) = (Instant::now(), tempfile::NamedTempFile::new()?);
    let name = format!("{command} {}", part.unwrap_or_default());
    eprintln!("begun {name}");
    let mut process = Command::new(ITSELF);
    process.args([command, "--as-is"]).args(told).env("RAMET_VMM", monitor).stdin(Stdio::null());
    process.envs(part.map(|part| ("RAMET_TEST_PART", part)));
    process.stdout(append(output.path())?).stderr(append(output.path())?);
    let passed = process.status().with_context(|| format!("cannot start {command}"))?.success();
    std::io::copy(&mut output.reopen()?, &mut std::io::stdout().lock())?;
    eprintln!("{} {name} {}", if passed { "done " } else { "FAILED" }, seconds(began.elapsed()));
    Ok(passed)
}

/// The same file for both streams, each of which goes on where the other has stopped.
fn append(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().append(true).open(path)?)
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
    let interpreter = interpreter_tests::run()?;
    Ok(if all && host && interpreter { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
