//! `cargo xtask node-tests [-- FILTER…]`: the stories of the node and its command line, wherever guests can run.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};

use crate::linux_tests::Arguments;
use crate::place::{self, Job, Place};
use crate::progress::step;
use crate::{guest, packages, workspace};

/// Run the stories.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.as_is {
        guest::make(false)?;
    }
    let monitor = match &arguments.vmm {
        Some(program) => program.clone(),
        None => place::build_monitor()?,
    };
    let tools = tools()?;
    let program = place::build_tests("node")?;
    let (program, monitor) = (program.as_path(), monitor.as_path());
    let job = Job { program, monitor, tools: &tools, arguments: &arguments.filter, json: None };
    Place::find(monitor)?.run(&job)
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

/// The programs as users get them, unless variables name others.
fn tools() -> Result<[(&'static str, PathBuf); 4]> {
    let named = ["RAMETD", "RAMET"].map(|variable| std::env::var_os(variable).map(PathBuf::from));
    let [rametd, ramet] = match named {
        [Some(rametd), Some(ramet)] => [rametd, ramet],
        [rametd, ramet] => {
            let built = place::build_programs()?;
            [rametd.unwrap_or(built.join("rametd")), ramet.unwrap_or(built.join("ramet"))]
        }
    };
    Ok([
        ("RAMETD", rametd),
        ("RAMET", ramet),
        ("RAMET_REGISTRY", registry()?),
        ("RAMET_WEED", s3_server()?),
    ])
}

/// The S3 server of the tests, installed if need be.
fn s3_server() -> Result<PathBuf> {
    let example = "build --package ramet-store --features testing --example weed";
    let program = place::build("weed", &example.split(' ').collect::<Vec<_>>())?;
    let output = Command::new(program).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the S3 server of the tests cannot be installed");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
