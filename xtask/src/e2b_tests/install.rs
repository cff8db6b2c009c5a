//! The SDKs, by their names from where pip and npm look for packages, below target/e2b/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::part::Part;
use crate::progress::{Outcome, step};
use crate::{command, packages, python, workspace};

/// What runs the Python flows.
const RUNNER: [&str; 2] = ["pytest==9.0.2", "pytest-timeout==2.4.0"];

/// The newest SDKs, and a framework that takes them as they are.
const NEWEST: [&str; 3] =
    ["e2b==2.63.0", "e2b-code-interpreter==2.11.5", "smolagents[e2b]==1.26.0"];

/// Older SDKs that are in use: what the OpenAI Agents SDK asks for, the first with fork, and the two around the
/// move of creation to another path.
const OLDER: [&[&str]; 4] = [
    &["e2b==2.31.0", "e2b-code-interpreter==2.8.1", "openai-agents[e2b]==0.24.0"],
    &["e2b==2.34.0"],
    &["e2b==2.50.0"],
    &["e2b==2.51.0"],
];

/// Where everything is.
pub fn place() -> PathBuf {
    workspace::root().join("target/e2b")
}

fn sources() -> PathBuf {
    workspace::root().join("tests/e2b")
}

/// All flows.
pub fn newest_python() -> Result<Part> {
    python("newest", &NEWEST, false)
}

/// The short set, with the newest SDKs.
pub fn newest_python_short() -> Result<Part> {
    python("newest", &NEWEST, true)
}

/// The short set, with each of the older SDKs.
pub fn older_pythons() -> Result<Vec<Part>> {
    OLDER.iter().map(|wanted| python(wanted[0], wanted, true)).collect()
}

/// An environment with the newest SDKs, for who has other uses for it. Its interpreter.
pub fn interpreter() -> Result<PathBuf> {
    environment("newest", &NEWEST)
}

fn environment(folder: &str, wanted: &[&str]) -> Result<PathBuf> {
    let place = place().join("python").join(folder.replace("==", "-"));
    fs::create_dir_all(&place)?;
    let wanted = [&RUNNER[..], wanted].concat();
    step(&format!("python {folder}"), |status| python::environment(status, &place, &wanted))?;
    Ok(place.join("bin/python"))
}

fn python(folder: &str, wanted: &[&str], short: bool) -> Result<Part> {
    let program = environment(folder, wanted)?;
    let what = if short { "short set" } else { "all flows" };
    let name = format!("python {}: {what}", wanted[0].replace("==", " "));
    Ok(Part::Python { name, program, flows: sources().join("python"), short })
}

/// All flows, beside what they import: node looks for packages where a file is.
pub fn typescript() -> Result<Part> {
    let (from, to) = (sources().join("typescript"), place().join("typescript"));
    let mut versions = String::new();
    step("typescript", |status| {
        packages::install_missing(status, &[("node", "nodejs"), ("npm", "npm")])?;
        let before = fs::read(to.join("package.json")).unwrap_or_default();
        copy_files(&from, &to)?;
        let wanted = fs::read(to.join("package.json"))?;
        versions = dependencies(&wanted)?;
        if before == wanted && to.join("node_modules/e2b").is_dir() {
            return Ok(Outcome::Kept(versions.clone()));
        }
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund"]).current_dir(&to);
        command::run(status, &mut npm, "check the network, and where npm looks for packages")?;
        Ok(Outcome::Made(versions.clone()))
    })?;
    Ok(Part::Typescript { name: format!("typescript {versions}: all flows"), flows: to })
}

/// What is there is replaced; what is no longer in the source is removed.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "mjs") {
            fs::remove_file(path)?;
        }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// `e2b 1.2.3` of a package.json.
fn dependencies(package: &[u8]) -> Result<String> {
    let package: serde_json::Value = serde_json::from_slice(package)?;
    let version = package["dependencies"]["e2b"].as_str();
    Ok(format!("e2b {}", version.context("package.json names no version of e2b")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_package_is_found() {
        let package = fs::read(sources().join("typescript/package.json")).unwrap();
        assert!(dependencies(&package).unwrap().starts_with("e2b 2."));
        assert!(dependencies(b"{}").is_err());
    }
}
