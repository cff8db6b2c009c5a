//! `cargo xtask interpreter-tests`: the code interpreter (`guest/interpreter`) and the hook of all interpreters
//! (`crates/agent/python`), natively: they need Python, and no guest.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use ramet_tests::patience::stretched;

use crate::progress::step;
use crate::{python, workspace};

/// What runs the tests.
const RUNNER: [&str; 2] = ["pytest==9.0.2", "pytest-timeout==2.4.0"];

/// What contexts import.
const WANTED: [&str; 4] = ["ipython", "numpy", "pandas", "matplotlib"];

/// What Debian's numpy is like: its lock cannot be taken twice by a thread.
const OLDER: [&str; 1] = ["numpy==1.26.4"];

/// How long a test may take on a machine that is not slow. Who hangs fails with the stacks of all threads.
const TEST_MAX: Duration = Duration::from_secs(120);

/// Installs what they need. Pythons with the newest of all, and with an older numpy.
pub fn install() -> Result<(PathBuf, PathBuf)> {
    let place = |name: &str| workspace::root().join("target").join(name);
    let (newest, older) = (place("interpreter"), place("older-numpy"));
    step("interpreter", |status| {
        python::environment(status, &newest, &[&RUNNER[..], &WANTED].concat())
    })?;
    step("older numpy", |status| {
        python::environment(status, &older, &[&RUNNER[..], &OLDER].concat())
    })?;
    Ok((newest.join("bin/python"), older.join("bin/python")))
}

/// Runs them.
pub fn run() -> Result<ExitCode> {
    let (newest, older) = install()?;
    let (code, hook) = ("guest/interpreter/tests", "crates/agent/python/tests");
    let limit = format!("--timeout={}", stretched(TEST_MAX).as_secs());
    let mut fine = true;
    for (python, what) in [(&newest, code), (&newest, hook), (&older, hook)] {
        let mut tests = Command::new(python);
        tests.args(["-m", "pytest", "-v", "-p", "no:cacheprovider", &limit, what]);
        tests.current_dir(workspace::root());
        tests.env("PYTHONDONTWRITEBYTECODE", "1");
        fine &= tests.status().context("cannot run python")?.success();
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
