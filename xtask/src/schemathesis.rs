//! schemathesis, in a Python environment of its own below target/.

use std::path::PathBuf;

use anyhow::Result;

use crate::progress::step;
use crate::{python, workspace};

/// What is installed.
const WANTED: &str = "schemathesis==4.32.5";

/// Has it at hand.
pub fn install() -> Result<()> {
    let place = place();
    step("schemathesis", |status| python::environment(status, &place, &[WANTED]))
}

/// The program.
pub fn program() -> PathBuf {
    place().join("bin/schemathesis")
}

fn place() -> PathBuf {
    workspace::root().join("target/schemathesis")
}
