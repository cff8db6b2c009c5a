//! What apt knows and installs on this machine.
//!
//! Sources and proxies are the machine's own; nothing here names a mirror. Refuses machines whose
//! apt does not know the wanted release of Debian.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use crate::command;
use crate::progress::Status;

/// Install the packages whose program is missing. Pairs of (program, package).
pub fn install_missing(status: &Status, programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !in_path(program))
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
    if ask_once(missing).is_err() {
        update(status)?;
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(missing);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    command::run(status, &mut install, &wanted)
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
        let backports = backports_of(&sources(&suite)?, &suite);
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

/// What apt knows about a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Version that would be installed now.
    pub version: String,
    /// The `Depends` field.
    pub depends: String,
}

/// Ask apt about packages, after an update of its lists if it does not know one of them. All in
/// one question, because a single one can take half a second.
pub fn ask(status: &Status, packages: &[&str]) -> Result<BTreeMap<String, Known>> {
    if let Ok(known) = ask_once(packages) {
        return Ok(known);
    }
    update(status)?;
    ask_once(packages).context("apt does not know all packages of guest/recipe.toml")
}

fn ask_once(packages: &[&str]) -> Result<BTreeMap<String, Known>> {
    let mut show = Command::new("apt-cache");
    show.args(["show", "--no-all-versions"]).args(packages).env("LC_ALL", "C");
    let known = parse_show(&command::output(&mut show)?);
    match packages.iter().find(|package| !known.contains_key(**package)) {
        Some(missing) => bail!("apt does not know {missing}"),
        None => Ok(known),
    }
}

fn parse_show(text: &str) -> BTreeMap<String, Known> {
    let mut found = BTreeMap::new();
    for paragraph in text.split("\n\n") {
        let field = |name: &str| {
            let mut lines = paragraph.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        if let (Some(name), Some(version)) = (field("Package"), field("Version")) {
            let depends = field("Depends").unwrap_or_default();
            found.entry(name).or_insert(Known { version, depends });
        }
    }
    found
}

/// Bring the package lists up to date.
pub fn update(status: &Status) -> Result<()> {
    let advice = "check the network and /etc/apt";
    command::run(status, Command::new("apt-get").arg("update"), advice)
}

/// The machine's own sources of a Debian release, in one-line style.
pub fn sources(suite: &str) -> Result<String> {
    let format = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)";
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", format, "Created-By: Packages"]);
    let text = command::output(&mut list).context("cannot ask apt for its sources")?;
    let sources = select_sources(&text, suite);
    if sources.is_empty() {
        bail!(
            "apt on this machine has no sources of Debian {suite}; run this on Debian {suite} \
             (a container will do), or add the sources and run apt-get update"
        );
    }
    Ok(sources)
}

fn select_sources(text: &str, suite: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .filter_map(|line| match line.split('|').collect::<Vec<_>>()[..] {
            ["Debian", codename, uri, release, component]
                if codename == suite
                    || codename.strip_prefix(suite).is_some_and(|rest| rest.starts_with('-')) =>
            {
                Some(format!("deb {uri} {release} {component}\n"))
            }
            _ => None,
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines.concat()
}

/// How apt on this machine reaches the network (proxies and the like), as configuration text.
pub fn transport_options() -> Result<String> {
    let text = command::output(Command::new("apt-config").args(["dump", "Acquire"]))?;
    let wanted =
        ["Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Retries"];
    let chosen = text.lines().filter(|line| {
        wanted.iter().any(|prefix| line.starts_with(prefix)) && !line.ends_with(" \"\";")
    });
    Ok(chosen.map(|line| format!("{line}\n")).collect())
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(fixed).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_of_each_package_counts() {
        let text = "Package: bash\nVersion: 5.2\nDepends: a, b (= 1)\nDescription: shell\n more\n\n\
                    Package: bash\nVersion: 5.1\n\nPackage: empty\nVersion: 1\n";
        let found = parse_show(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found["bash"],
            Known { version: "5.2".to_owned(), depends: "a, b (= 1)".to_owned() }
        );
        assert_eq!(found["empty"].depends, "");
    }

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

    #[test]
    fn only_sources_of_the_release_are_taken() {
        let text = "Debian|bookworm|uri/|bookworm|main\nDebian|bookworm|uri/|bookworm|main\n\
                    Debian|bookworm-security|uri2/|bookworm-security|main\n\
                    Debian|trixie|uri/|trixie|main\nOther|bookworm|uri3/|bookworm|main\n";
        let expected = "deb uri/ bookworm main\ndeb uri2/ bookworm-security main\n";
        assert_eq!(select_sources(text, "bookworm"), expected);
        assert_eq!(select_sources(text, "sid"), "");
    }
}
