//! A root filesystem with one program, BusyBox: two MiB instead of a hundred and sixty, for stories that carry whole
//! states to and fro.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::progress::{Outcome, Status, step};
use crate::{command, packages, workspace};

const PACKAGE: &str = "busybox-static";
const DIRECTORIES: [&str; 10] =
    ["dev", "etc", "proc", "root", "run", "srv", "sys", "tmp", "usr", "workspace"];
/// Mounted over in a running guest, so they have to be there.
const EMPTY_FILES: [&str; 4] = ["etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"];

/// The image; `RAMET_SMALL` names another one.
pub fn image() -> Result<PathBuf> {
    if let Some(image) = std::env::var_os("RAMET_SMALL") {
        return Ok(image.into());
    }
    let directory = workspace::root().join("target/small");
    let image = directory.join("small.erofs");
    step("small image", |status| make(status, &directory, &image))?;
    Ok(image)
}

fn make(status: &Status, directory: &Path, image: &Path) -> Result<Outcome> {
    if image.exists() {
        return Ok(Outcome::Kept(PACKAGE.to_owned()));
    }
    fs::create_dir_all(directory)?;
    let package = directory.join(PACKAGE);
    packages::unpack(status, PACKAGE, &package)?;
    let busybox = package.join("bin/busybox");
    let tree = tempfile::tempdir_in(directory)?;
    fill(tree.path(), &busybox)?;
    let unfinished = directory.join("unfinished.erofs");
    let mut pack = Command::new("mkfs.erofs");
    pack.args(["-zlz4hc", "--quiet", "-T0", "--all-root"]).arg(&unfinished).arg(tree.path());
    command::run(status, &mut pack, "is there space left below target?")?;
    fs::rename(unfinished, image)?;
    Ok(Outcome::Made(PACKAGE.to_owned()))
}

fn fill(tree: &Path, busybox: &Path) -> Result<()> {
    for name in DIRECTORIES.into_iter().chain(["bin"]) {
        fs::create_dir(tree.join(name))?;
    }
    for name in EMPTY_FILES {
        fs::write(tree.join(name), "")?;
    }
    fs::write(tree.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(tree.join("etc/group"), "root:x:0:\n")?;
    fs::copy(busybox, tree.join("bin/busybox"))?;
    let applets = command::output(Command::new(busybox).arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", tree.join("bin").join(applet))?;
    }
    Ok(())
}
