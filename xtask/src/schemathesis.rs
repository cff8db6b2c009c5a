//! schemathesis, in a Python environment of its own below target/.

use std::path::PathBuf;

use anyhow::Result;

use crate::progress::step;
use crate::{python, workspace};

/// What is installed.
const WANTED: &str = "schemathesis==4.32.5";

/// The program.
pub fn install() -> Result<PathBuf> {
    let place = workspace::root().join("target/schemathesis");
    step("schemathesis", |status| python::environment(status, &place, &[WANTED]))?;
    Ok(place.join("bin/schemathesis"))
}
