//! `cargo xtask check`: format, lints, house rules, dependencies.
//!
//! House rules that no lint knows: every source file says at its head what it is for, exceptions from lints
//! are `expect`ed with a reason, and what ARCHITECTURE.md names exists.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::progress::{Outcome, step};
use crate::{command, workspace};

/// Runs all checks.
pub fn run() -> Result<ExitCode> {
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
    cargo("lints", &lints, "the message says what to change")?;
    without_lints()
}

/// Those that compile nothing.
pub fn without_lints() -> Result<ExitCode> {
    cargo("format", &["fmt", "--all", "--check"], "run `cargo fmt --all`")?;
    step("house rules", |_| {
        let broken = house_rules(&workspace::root())?;
        if !broken.is_empty() {
            bail!("house rules are broken:\n  {}", broken.join("\n  "));
        }
        Ok(Outcome::Kept("all hold".into()))
    })?;
    dependencies()?;
    Ok(ExitCode::SUCCESS)
}

fn cargo(name: &str, arguments: &[&str], advice: &str) -> Result<()> {
    step(name, |status| {
        let mut cargo = command::cargo();
        cargo.args(arguments).current_dir(workspace::root());
        command::run(status, &mut cargo, advice)?;
        Ok(Outcome::Kept("clean".into()))
    })
}

/// Advisories need a database from the network, so they are not looked at here.
fn dependencies() -> Result<()> {
    let installed = command::cargo().args(["deny", "--version"]).output();
    if installed.is_ok_and(|output| output.status.success()) {
        let arguments = ["deny", "--offline", "check", "bans", "licenses", "sources"];
        return cargo("dependencies", &arguments, "deny.toml says what is allowed");
    }
    eprintln!("SKIPPED  dependencies: cargo-deny is not here; `cargo install cargo-deny --locked`");
    Ok(())
}

fn house_rules(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for directory in ["crates", "tests", "xtask"] {
        for path in sources(&root.join(directory))? {
            let text = std::fs::read_to_string(&path)?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            broken.extend(faults(&text).into_iter().map(|fault| format!("{name}: {fault}")));
        }
    }
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let missing = paths(&architecture).into_iter().filter(|path| !root.join(path).exists());
    broken.extend(missing.map(|path| format!("ARCHITECTURE.md: {path} does not exist")));
    Ok(broken)
}

fn faults(text: &str) -> Vec<&'static str> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push("does not say at its head what it is for");
    }
    let silent = concat!("#[", "allow(");
    if text.contains(silent) || text.contains(&silent.replace("#[", "#![")) {
        faults.push("allows a lint; expect it, with a reason");
    }
    faults
}

/// What stands in backquotes and begins with a folder of ours.
fn paths(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let ours = ["crates/", "docs/", "tests/", "xtask/", "guest/"];
    quoted.filter(|path| ours.iter().any(|folder| path.starts_with(folder))).collect()
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_find_what_breaks_them() {
        assert_eq!(faults("//! Fine.\n").len(), 0);
        assert_eq!(faults("use std::fs;\n").len(), 1);
        assert_eq!(faults(concat!("//! A.\n#[", "allow(dead_code)]\n")).len(), 1);
        assert_eq!(paths("see `crates/vmm` and `cargo` and `docs/x`"), ["crates/vmm", "docs/x"]);
    }
}
