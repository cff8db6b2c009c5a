//! What apt knows on this machine.
//!
//! Sources and proxies are the machine's own; nothing here names a mirror. Refuses machines whose
//! apt does not know the wanted release of Debian.

use std::collections::BTreeMap;
use std::process::Command;

use crate::{Error, command};

/// What apt knows about a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Version that would be installed now.
    pub version: String,
    /// The `Depends` field.
    pub depends: String,
}

/// Ask apt about packages. All in one question, because a single one can take half a second.
pub fn ask(packages: &[&str]) -> Result<BTreeMap<String, Known>, Error> {
    let mut show = Command::new("apt-cache");
    show.args(["show", "--no-all-versions"]).args(packages).env("LC_ALL", "C");
    let known = parse_show(&command::output(&mut show)?);
    match packages.iter().find(|package| !known.contains_key(**package)) {
        Some(missing) => Err(Error::Bad(format!("apt does not know {missing}"))),
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

/// The machine's own sources of a Debian release, in one-line style.
pub fn sources(suite: &str) -> Result<String, Error> {
    let format = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)";
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", format, "Created-By: Packages"]);
    let sources = select_sources(&command::output(&mut list)?, suite);
    if sources.is_empty() {
        return Err(Error::Bad(format!(
            "apt on this machine has no sources of Debian {suite}; run this on Debian {suite} \
             (a container will do), or add the sources and run apt-get update"
        )));
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
pub fn transport_options() -> Result<String, Error> {
    let text = command::output(Command::new("apt-config").args(["dump", "Acquire"]))?;
    let wanted =
        ["Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Retries"];
    let chosen = text.lines().filter(|line| {
        wanted.iter().any(|prefix| line.starts_with(prefix)) && !line.ends_with(" \"\";")
    });
    Ok(chosen.map(|line| format!("{line}\n")).collect())
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
    fn only_sources_of_the_release_are_taken() {
        let text = "Debian|bookworm|uri/|bookworm|main\nDebian|bookworm|uri/|bookworm|main\n\
                    Debian|bookworm-security|uri2/|bookworm-security|main\n\
                    Debian|trixie|uri/|trixie|main\nOther|bookworm|uri3/|bookworm|main\n";
        let expected = "deb uri/ bookworm main\ndeb uri2/ bookworm-security main\n";
        assert_eq!(select_sources(text, "bookworm"), expected);
        assert_eq!(select_sources(text, "sid"), "");
    }
}
