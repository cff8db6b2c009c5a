//! Tests of the code interpreter (`guest/interpreter`), natively: it needs Python, and no guest.

use std::process::Command;

use anyhow::{Context, Result};

use crate::progress::step;
use crate::{python, workspace};

/// What contexts import.
const WANTED: [&str; 4] = ["ipython", "numpy", "pandas", "matplotlib"];

/// Runs them. Whether they succeeded.
pub fn run() -> Result<bool> {
    let place = workspace::root().join("target/interpreter");
    step("interpreter", |status| python::environment(status, &place, &WANTED))?;
    let mut tests = Command::new(place.join("bin/python"));
    tests.args([
        "-m",
        "unittest",
        "discover",
        "-s",
        "guest/interpreter/tests",
        "-t",
        "guest/interpreter",
    ]);
    tests.current_dir(workspace::root());
    Ok(tests.status().context("cannot run python")?.success())
}
