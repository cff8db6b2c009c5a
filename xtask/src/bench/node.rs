//! `cargo xtask bench node`: the node as its clients see it.
//!
//! `ramet bench` measures a node with real guests in the host mode at hand. What HTTP and the node add to a
//! command is measured here natively, by a program that has the node in front of an agent without a machine
//! (`crates/node/examples/overhead.rs`). METHOD.md in this folder says what each row is.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::report::{Goal, Report, Row};
use crate::{guest, host, place};

/// Arguments of `cargo xtask bench node`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few samples, small files, few sandboxes
    #[arg(long)]
    quick: bool,
    /// Only what the node itself adds, natively
    #[arg(long)]
    native: bool,
}

/// What `ramet bench` prints.
#[derive(Deserialize)]
pub struct Told {
    /// Host mode.
    pub mode: String,
    /// Figures.
    pub rows: Vec<Row>,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut report = Report::new("native");
    report.rows = overhead()?;
    if !arguments.native {
        let quick: &[&str] = &["--json", "bench", "--quick"];
        let told = up_for(&["up"], if arguments.quick { quick } else { &quick[..2] })?;
        report.mode = if told.mode == "hardware" { "hardware" } else { "software" };
        report.rows.extend(told.rows);
    }
    report.conclude(with_goal, arguments.json.as_deref())
}

fn with_goal(row: Row) -> Row {
    match &*row.name {
        "fork_answered" => row.goal(Goal::RatioAtMost(3.0)),
        "exec_overhead" => row.goal(Goal::AtMost(2.0)),
        _ => row,
    }
}

/// The program is told where the agent is, and prints rows.
fn overhead() -> Result<Vec<Row>> {
    let agent = place::build("agent", &["build", "--release", "--package", "ramet-agent"])?;
    let example = "build --release --package ramet-node --features fake --example overhead";
    let program = place::build("overhead", &example.split(' ').collect::<Vec<_>>())?;
    let output = Command::new(program).arg(agent).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the program that measures the node's overhead failed");
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A node of its own, up for as long as it is measured.
pub fn up_for(up: &[&str], bench: &[&str]) -> Result<Told> {
    guest::make(false)?;
    host::install_tools()?;
    let program = place::build_programs(place::For::Users)?.join("ramet");
    let home = tempfile::Builder::new().prefix("bench").tempdir()?;
    let ramet = |arguments: &[&str]| ramet(&program, home.path(), arguments);
    let measured = ramet(up).and_then(|_| ramet(bench));
    let down = ramet(&["down", "--all"]);
    let text = measured?;
    down?;
    serde_json::from_str(&text).context("ramet bench prints no figures")
}

fn ramet(program: &Path, home: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("RAMET_HOME", home)
        .env("RAMET_GUEST_DIR", crate::workspace::guest_dir());
    command.env_remove("RAMET_URL").env_remove("RAMET_TOKEN").stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!("`ramet {}` failed", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
