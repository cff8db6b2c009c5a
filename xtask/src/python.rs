//! Python environments below target/, each with what it is wanted for. Installed once for each list of packages.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::progress::{Outcome, Status};
use crate::{command, packages};

/// Brings an environment up to date. Packages have their versions: `name==1.2.3`.
pub fn environment(status: &Status, place: &Path, wanted: &[&str]) -> Result<Outcome> {
    let (note, list) = (place.join("installed"), wanted.join(" "));
    // Its programs name the place that they were installed in.
    let noted = format!("{list}\n{}\n", place.display());
    if std::fs::read_to_string(&note).is_ok_and(|text| text == noted) {
        return Ok(Outcome::Kept(list));
    }
    packages::install_missing(status, &[("python3", "python3")])?;
    let make = || {
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--clear"]).arg(place);
        make
    };
    if command::run(status, &mut make(), "").is_err() {
        packages::install(status, &["python3-venv"])?;
        command::run(status, &mut make(), "python3 needs its module venv")?;
    }
    let mut pip = Command::new(place.join("bin/pip"));
    // What is imported is compiled then; most of what comes along never is.
    pip.args(["install", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]);
    pip.args(wanted);
    command::run(status, &mut pip, "check the network, and where pip looks for packages")?;
    std::fs::write(&note, &noted)?;
    Ok(Outcome::Made(list))
}
