//! `cargo xtask node-tests [-- FILTER…]`: the stories of the node and its command line, wherever guests can run.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};

use crate::linux_tests::Arguments;
use crate::place::{self, For, Job, Place};
use crate::progress::step;
use crate::{archives, guest, packages, small, workspace};

/// Run the stories.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.as_is {
        guest::make(false)?;
    }
    let monitor = match &arguments.vmm {
        Some(program) => program.clone(),
        None => place::build_monitor(For::Tests)?,
    };
    let tools = tools()?;
    let program = place::build_tests("node")?;
    let (program, monitor) = (program.as_path(), monitor.as_path());
    let job = Job { program, monitor, tools: &tools, arguments: &arguments.filter, json: None };
    Place::find(monitor)?.run(&job)
}

/// Makes what the stories need beside programs of ours, so that [`run`] finds it.
pub fn prepare() -> Result<()> {
    others().map(drop)
}

/// What is of others, unless variables name something else.
fn others() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut tools = vec![("RAMET_REGISTRY", registry()?), ("RAMET_SMALL", small::image()?)];
    tools.extend(archives::all()?);
    Ok(tools)
}

/// A registry to push to, unless a variable names another.
fn registry() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("RAMET_REGISTRY") {
        return Ok(program.into());
    }
    let place = workspace::root().join("target/docker-registry");
    step("registry", |status| packages::unpack(status, "docker-registry", &place))?;
    Ok(place.join("usr/bin/docker-registry"))
}

/// The programs, unless variables name others.
fn tools() -> Result<Vec<(&'static str, PathBuf)>> {
    let own = [("RAMETD", "rametd"), ("RAMET", "ramet"), ("RAMET_NET", "ramet-net")];
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let built = match own.iter().all(|(variable, _)| named(variable).is_some()) {
        true => PathBuf::new(),
        false => place::build_programs(For::Tests)?,
    };
    let mut tools = own
        .map(|(variable, name)| (variable, named(variable).unwrap_or(built.join(name))))
        .to_vec();
    tools.push(("RAMET_WEED", s3_server()?));
    tools.extend(others()?);
    Ok(tools)
}

/// The S3 server of the tests, installed if need be.
fn s3_server() -> Result<PathBuf> {
    let program = place::build_programs(For::Tests)?.join("examples/weed");
    let output = Command::new(program).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the S3 server of the tests cannot be installed");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
