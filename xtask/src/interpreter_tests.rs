//! `cargo xtask interpreter-tests`: the code interpreter (`guest/interpreter`) and the hook of all interpreters
//! (`crates/agent/python`), natively: they need Python, and no guest.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::progress::step;
use crate::{python, workspace};

/// What contexts import.
const WANTED: [&str; 4] = ["ipython", "numpy", "pandas", "matplotlib"];

/// What Debian's numpy is like: its lock cannot be taken twice by a thread.
const OLDER: [&str; 1] = ["numpy==1.26.4"];

/// Installs what they need. Pythons with the newest of all, and with an older numpy.
pub fn install() -> Result<(PathBuf, PathBuf)> {
    let place = |name: &str| workspace::root().join("target").join(name);
    let (newest, older) = (place("interpreter"), place("older-numpy"));
    step("interpreter", |status| python::environment(status, &newest, &WANTED))?;
    step("older numpy", |status| python::environment(status, &older, &OLDER))?;
    Ok((newest.join("bin/python"), older.join("bin/python")))
}

/// Runs them.
pub fn run() -> Result<ExitCode> {
    let (newest, older) = install()?;
    let code = ["-s", "guest/interpreter/tests", "-t", "guest/interpreter"];
    let hook = ["-s", "crates/agent/python/tests", "-t", "crates/agent/python"];
    let mut fine = true;
    for (python, what) in [(&newest, &code[..]), (&newest, &hook), (&older, &hook)] {
        let mut tests = Command::new(python);
        tests.args(["-m", "unittest", "discover", "-v"]).args(what).current_dir(workspace::root());
        tests.env("PYTHONDONTWRITEBYTECODE", "1");
        fine &= tests.status().context("cannot run python")?.success();
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
