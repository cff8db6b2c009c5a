//! What apt installs on this machine. Sources and proxies are the machine's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;
use ramet_image::apt::{self, Known};

use crate::command;
use crate::progress::{Outcome, Status};

/// Install the packages whose program is missing. Pairs of (program, package).
pub fn install_missing(status: &Status, programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !ramet_image::command::in_path(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    install(status, &missing)
}

/// Install packages, as apt offers them.
pub fn install(status: &Status, missing: &[&str]) -> Result<()> {
    let wanted = format!("install by hand: apt-get install {}", missing.join(" "));
    if !Uid::effective().is_root() {
        bail!("missing: {}; {wanted}", missing.join(", "));
    }
    if apt::ask(missing).is_err() {
        update(status)?;
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(missing);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    command::run(status, &mut install, &wanted)
}

/// Unpack a package into a directory, unless that is there: nothing is installed, and nothing is started.
pub fn unpack(status: &Status, package: &str, place: &Path) -> Result<Outcome> {
    if place.is_dir() {
        return Ok(Outcome::Kept(package.to_owned()));
    }
    let fresh = tempfile::tempdir_in(place.parent().context("a place has a parent")?)?;
    ask(status, &[package])?;
    let wanted = format!("apt must be able to download {package}");
    let mut download = Command::new("apt-get");
    download.args(["download", package]).current_dir(fresh.path());
    command::run(status, &mut download, &wanted)?;
    let mut unpack = Command::new("sh");
    unpack.args(["-c", "dpkg-deb -x *.deb . && rm *.deb"]).current_dir(fresh.path());
    command::run(status, &mut unpack, &wanted)?;
    fs::rename(fresh.keep(), place)?;
    Ok(Outcome::Made(package.to_owned()))
}

/// Install a package of at least this major version: as apt offers it, or else from the backports
/// of this machine's release. The backports are asked for this once; apt's own sources stay as they are.
pub fn install_newer(status: &Status, package: &str, major: u32) -> Result<()> {
    let known = ask(status, &[package])?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    let scratch = tempfile::tempdir()?;
    if major_of(&known[package].version).is_none_or(|offered| offered < major) {
        let suite = codename()?;
        let backports = backports_of(&apt::sources(&suite)?, &suite);
        let list = scratch.path().join("sources.list");
        let lists = scratch.path().join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        fs::write(&list, backports)?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=-".to_owned(),
            format!("Dir::State::Lists={}", lists.display()),
            "Dir::Cache::PkgCache=".to_owned(),
            "Dir::Cache::SrcPkgCache=".to_owned(),
        ];
        let options: Vec<&str> = options.iter().flat_map(|option| ["-o", option]).collect();
        let mut update = Command::new("apt-get");
        command::run(
            status,
            update.args(&options).arg("update"),
            "check the network and /etc/apt",
        )?;
        install.args(&options).args(["-t", &format!("{suite}-backports")]);
    }
    let advice = format!("install {package} {major} or later by hand");
    install.args(["install", "-y", "--no-install-recommends", package]);
    command::run(status, &mut install, &advice)
}

/// The release of this machine.
fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(line.context("/etc/os-release names no release")?.trim_matches('"').to_owned())
}

/// Sources of a release, with its backports.
fn backports_of(sources: &str, suite: &str) -> String {
    let main = sources.lines().filter(|line| line.split(' ').nth(2) == Some(suite));
    let more = main.map(|line| {
        format!("{}\n", line.replace(&format!(" {suite} "), &format!(" {suite}-backports ")))
    });
    sources.to_owned() + &more.collect::<String>()
}

/// `1:7.2+dfsg-7` → 7.
fn major_of(version: &str) -> Option<u32> {
    let upstream = version.split_once(':').map_or(version, |(_, rest)| rest);
    upstream.split('.').next()?.parse().ok()
}

/// Ask apt about packages, after an update of its lists if it does not know one of them. All in
/// one question, because a single one can take half a second.
pub fn ask(status: &Status, packages: &[&str]) -> Result<BTreeMap<String, Known>> {
    if let Ok(known) = apt::ask(packages) {
        return Ok(known);
    }
    update(status)?;
    apt::ask(packages).context("apt does not know all packages of guest/recipe.toml")
}

/// Bring the package lists up to date.
pub fn update(status: &Status) -> Result<()> {
    let advice = "check the network and /etc/apt";
    command::run(status, Command::new("apt-get").arg("update"), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backports_come_from_where_the_release_comes_from() {
        let sources = "deb uri/ bookworm main\ndeb uri/ bookworm-updates main\ndeb uri2/ bookworm-security main\n";
        let expected = format!("{sources}deb uri/ bookworm-backports main\n");
        assert_eq!(backports_of(sources, "bookworm"), expected);
    }

    #[test]
    fn a_version_has_a_major_number() {
        assert_eq!(major_of("1:7.2+dfsg-7+deb12u18"), Some(7));
        assert_eq!(major_of("10.0.2+ds-2"), Some(10));
        assert_eq!(major_of("latest"), None);
    }
}
