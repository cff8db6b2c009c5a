//! Debian's PostgreSQL as one archive, for stories whose guests have no way to packages.
//!
//! Packages are unpacked below `target/`, once; nothing is installed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::progress::{Outcome, Status, step};
use crate::{command, packages, workspace};

/// The server, its client, and what they need beyond the base image.
const PACKAGES: [&str; 8] = [
    "postgresql-15",
    "postgresql-client-15",
    "libpq5",
    "libicu72",
    "libstdc++6",
    "libxml2",
    "libxslt1.1",
    "tzdata",
];

/// The archive; `RAMET_POSTGRES` names another one.
pub fn archive() -> Result<PathBuf> {
    if let Some(archive) = std::env::var_os("RAMET_POSTGRES") {
        return Ok(archive.into());
    }
    let directory = workspace::root().join("target/postgres");
    let archive = directory.join("postgres.tar");
    step("postgres", |status| make(status, &directory, &archive))?;
    Ok(archive)
}

fn make(status: &Status, directory: &Path, archive: &Path) -> Result<Outcome> {
    if archive.exists() {
        return Ok(Outcome::Kept(PACKAGES[0].to_owned()));
    }
    fs::create_dir_all(directory)?;
    let unfinished = directory.join("unfinished.tar");
    let mut tar = Command::new("tar");
    tar.args([
        "--owner=0",
        "--group=0",
        "--exclude=*/bitcode/*",
        "--exclude=*llvmjit*",
        "--exclude=./usr/share/doc/*",
    ]);
    tar.arg("-cf").arg(&unfinished);
    for package in PACKAGES {
        let place = directory.join(package);
        packages::unpack(status, package, &place)?;
        tar.arg("-C").arg(place).arg("./usr");
    }
    command::run(status, &mut tar, "tar must be able to write below target")?;
    fs::rename(unfinished, archive)?;
    Ok(Outcome::Made(PACKAGES[0].to_owned()))
}
