//! Debian's PostgreSQL as one archive, for stories whose guests have no way to packages.
//!
//! Packages are downloaded and unpacked below `target/`, once; nothing is installed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::progress::{Outcome, step};
use crate::workspace;

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
    if !archive.exists() {
        step("postgres", |_| {
            make(&directory, &archive).map(|()| Outcome::Made("from Debian's packages".to_owned()))
        })?;
    }
    Ok(archive)
}

fn make(directory: &Path, archive: &Path) -> Result<()> {
    let (packages, tree) = (directory.join("packages"), directory.join("tree"));
    fs::create_dir_all(&packages)?;
    run(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(&packages))?;
    for entry in fs::read_dir(&packages)? {
        run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(&tree))?;
    }
    // Only what is run: the rest of the tree is documentation and translations.
    let unfinished = directory.join("unfinished.tar");
    let parts = ["usr/lib", "usr/share/postgresql", "usr/share/zoneinfo"];
    let mut tar = Command::new("tar");
    tar.arg("--owner=0").arg("--group=0").arg("-C").arg(&tree).arg("-cf").arg(&unfinished);
    run(tar.arg("--exclude=*/bitcode/*").arg("--exclude=*llvmjit*").args(parts))?;
    Ok(fs::rename(unfinished, archive)?)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed: {}; it needs Debian's apt", text.trim());
    }
    Ok(())
}
