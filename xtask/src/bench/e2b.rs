//! `cargo xtask bench e2b`: what E2B's Python SDK feels, beside the same by the node's own API.
//!
//! `tests/e2b/bench.py` measures, with the newest SDK and a node of its own. METHOD.md in this folder says what each row is.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::node::Told;
use super::report::Report;
use crate::e2b_tests::{Node, interpreter};
use crate::place::For;
use crate::workspace;

/// Arguments of `cargo xtask bench e2b`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few samples, small files
    #[arg(long)]
    quick: bool,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let program = interpreter()?;
    let node = Node::up(For::Users, false)?;
    let told = node.build_interpreter().and_then(|()| measure(&node, program, arguments.quick));
    node.down()?;
    let told = told?;
    let mut report = Report::new(if told.mode == "hardware" { "hardware" } else { "software" });
    report.rows = told.rows;
    report.conclude(|row| row, arguments.json.as_deref())
}

fn measure(node: &Node, program: PathBuf, quick: bool) -> Result<Told> {
    let figures = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(program);
    command.arg(workspace::root().join("tests/e2b/bench.py")).arg("--json").arg(figures.path());
    if quick {
        command.args(["--samples", "5", "--large", "10"]);
    }
    let status = node.surroundings()?.around(command).status().context("cannot run python")?;
    if !status.success() {
        bail!("the program that measures the SDK failed");
    }
    serde_json::from_slice(&std::fs::read(figures.path())?).context("there are no figures")
}
