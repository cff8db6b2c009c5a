//! `cargo xtask linux-tests [-- FILTER…]`: the tests with Linux guests, wherever they can run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::guest;
use crate::place::{self, For, Job, Place};

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Use the guest artefacts that are there, without bringing them up to date
    #[arg(long)]
    pub as_is: bool,
    /// Use this monitor instead of building one
    #[arg(long, value_name = "PROGRAM")]
    pub vmm: Option<PathBuf>,
    /// What to run: parts of names, or options of the test program (see `-- --help`)
    #[arg(last = true)]
    pub filter: Vec<String>,
}

/// Run the tests.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.as_is {
        guest::make(false)?;
    }
    let monitor = match &arguments.vmm {
        Some(program) => program.clone(),
        None => place::build_monitor(For::Tests)?,
    };
    let tests = place::build_tests("linux")?;
    let (program, monitor) = (tests.as_path(), monitor.as_path());
    let job = Job { program, monitor, tools: &[], arguments: &arguments.filter, json: None };
    Place::find(monitor)?.run(&job)
}
