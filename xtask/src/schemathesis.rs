//! schemathesis, in a Python environment of its own below target/. Installed once for each version.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::progress::{Outcome, step};
use crate::{command, packages, workspace};

/// What is installed.
const WANTED: &str = "schemathesis==4.32.5";

/// The program.
pub fn install() -> Result<PathBuf> {
    let place = workspace::root().join("target/schemathesis");
    let (program, note) = (place.join("bin/schemathesis"), place.join("installed"));
    step("schemathesis", |status| {
        if program.is_file() && std::fs::read_to_string(&note).is_ok_and(|text| text == WANTED) {
            return Ok(Outcome::Kept(WANTED.to_owned()));
        }
        packages::install_missing(status, &[("python3", "python3")])?;
        let make = || {
            let mut make = Command::new("python3");
            make.args(["-m", "venv", "--clear"]).arg(&place);
            make
        };
        if command::run(status, &mut make(), "").is_err() {
            packages::install(status, &["python3-venv"])?;
            command::run(status, &mut make(), "python3 needs its module venv")?;
        }
        let mut pip = Command::new(place.join("bin/pip"));
        pip.args(["install", "--disable-pip-version-check", "--progress-bar", "off", WANTED]);
        command::run(status, &mut pip, "check the network, and where pip looks for packages")?;
        std::fs::write(&note, WANTED)?;
        Ok(Outcome::Made(WANTED.to_owned()))
    })?;
    Ok(program)
}
