//! `cargo xtask node-tests [-- FILTER…]`: the stories of the node and its command line, wherever guests can run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::guest;
use crate::linux_tests::Arguments;
use crate::place::{self, Job, Place};

/// Run the stories.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.as_is {
        guest::make(false)?;
    }
    let monitor = match &arguments.vmm {
        Some(program) => program.clone(),
        None => place::build_monitor()?,
    };
    let tools = [tool("RAMETD", "ramet-node")?, tool("RAMET", "ramet-cli")?];
    let target = ["--package", "ramet-tests", "--test", "node"];
    let program = place::build("stories", &[&["test", "--no-run"][..], &target].concat())?;
    let (program, monitor) = (program.as_path(), monitor.as_path());
    let job = Job { program, monitor, tools: &tools, arguments: &arguments.filter, json: None };
    Place::find(monitor)?.run(&job)
}

/// A program as users get it, unless its variable names another.
fn tool<'a>(variable: &'a str, package: &str) -> Result<(&'a str, PathBuf)> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => place::build(package, &["build", "--release", "--package", package])?,
    };
    Ok((variable, path))
}
