//! Builds programs of the workspace that run in other machines: statically linked, so that they
//! need nothing there.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command;
use crate::progress::Status;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Build the package's program of the same name, as release, and give its path.
pub fn static_program(status: &Status, root: &Path, package: &str) -> Result<PathBuf> {
    // A target directory of its own: other flags would rebuild everything in the usual one. Naming
    // the target keeps build scripts and macros dynamic, as they have to be.
    let target_dir = root.join("target/guest-build");
    let mut build = command::cargo();
    build.args(["build", "--release", "--package", package, "--target", TARGET]);
    build.arg("--target-dir").arg(&target_dir).current_dir(root);
    build.env_remove("CARGO_ENCODED_RUSTFLAGS");
    build.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    command::run(status, &mut build, "it has to build as a static program for x86-64")?;
    Ok(target_dir.join(TARGET).join("release").join(package))
}
