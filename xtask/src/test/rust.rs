//! Test programs that cargo builds: each is a job, so that two run at a time and each has its deadline.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::inputs::Inputs;
use super::job::Job;
use super::parts::{HOST, LONG, Part};
use super::record::Record;
use crate::{command, schemathesis, workspace};

/// Programs that `place` runs where there are guests.
const GUESTS: [&str; 2] = ["linux", "node"];
/// Programs that do more when they are asked to, and what they are asked.
const LONGER: [&str; 4] = ["ramet_node", "ramet_store", "store", "schema"];
const MORE: [(&str, &str); 6] = [
    ("RAMET_TEST_MODEL", "1"),
    ("RAMET_TEST_STEP", "6"),
    ("RAMET_TEST_STEPS", "150"),
    ("RAMET_TEST_FAULTS", "40"),
    ("RAMET_TEST_KILLS", "20"),
    ("RAMET_TEST_EXAMPLES", "60"),
];
/// Those that take long, and how long in seconds.
const USUAL: [(&str, u64); 7] = [
    ("ramet_store", 45),
    ("store", 35),
    ("schema", 25),
    ("ramet_node", 22),
    ("nano", 22),
    ("vmm", 13),
    ("net", 12),
];

/// Programs of ours that test programs of a package start, below `target/debug`; the others start all.
const STARTED: [(&str, &[&str]); 11] = [
    ("agent", &["ramet-agent"]),
    ("archive", &[]),
    ("cli", &["ramet"]),
    ("client", &[]),
    ("engine", &["ramet-vmm"]),
    ("image", &[]),
    ("net", &["ramet-net"]),
    ("proto", &[]),
    ("store", &["examples/weed"]),
    ("vmm", &["ramet-vmm"]),
    ("xtask", &[]),
];
const ALL_STARTED: &[&str] = &["ramet-vmm", "ramet-net", "ramet-agent", "rametd", "ramet"];

/// A test program.
pub struct Program {
    name: String,
    package: String,
    directory: PathBuf,
    path: PathBuf,
}

/// The jobs of a part.
pub fn jobs(part: &'static Part, programs: &[Program], monitor: &Path) -> Vec<Job> {
    let schemathesis = schemathesis::program();
    let usual =
        |name: &str| USUAL.iter().find(|(long, _)| *long == name).map_or(part.usual_s, |one| one.1);
    let wanted = programs.iter().filter(|program| !GUESTS.contains(&program.name.as_str()));
    // What needs the guest's files is marked, so that a plain `cargo test` leaves it out.
    let wanted = wanted.filter(|program| match part.name {
        HOST => program.name == "ramet_engine",
        LONG => LONGER.contains(&program.name.as_str()),
        _ => true,
    });
    wanted
        .map(|program| {
            let mut command = Command::new(&program.path);
            command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
            command.env("RAMET_VMM", monitor).env("RAMET_GUEST_DIR", workspace::guest_dir());
            command.env("RAMET_SCHEMATHESIS", &schemathesis);
            match part.name {
                HOST => command.arg("--ignored"),
                LONG => command.envs(MORE),
                // What was red yesterday is red today.
                _ => command.env("PROPTEST_RNG_SEED", "1"),
            };
            let name = match part.name {
                LONG => format!("{} {}, longer", program.package, program.name),
                HOST => format!("{} {}, host", program.package, program.name),
                _ => format!("{} {}", program.package, program.name),
            };
            Job {
                part: part.name,
                record: Record::of(&name),
                name,
                inputs: program.inputs(part.name == HOST),
                command,
                skip: (program.name != "schema").then_some(&[]),
                usual: Duration::from_secs(usual(&program.name)),
                most: Duration::from_secs(part.most_s),
            }
        })
        .collect()
}

impl Program {
    /// One for tests of who has one.
    #[cfg(test)]
    pub fn at(name: &str, path: &Path) -> Self {
        let (name, package) = (name.to_owned(), String::new());
        Self { name, package, directory: PathBuf::new(), path: path.to_owned() }
    }

    /// Itself, what it starts, and what it may read.
    fn inputs(&self, guest: bool) -> Inputs {
        let started = STARTED.iter().find(|(package, _)| *package == self.package);
        let started = started.map_or(ALL_STARTED, |(_, programs)| programs);
        let debug = workspace::root().join("target/debug");
        let mut paths: Vec<_> = started.iter().map(|name| debug.join(name)).collect();
        paths.extend(["openapi", "recipes", "guest"].map(|name| workspace::root().join(name)));
        paths.extend([self.path.clone(), self.directory.clone()]);
        Inputs { paths, guest }
    }
}

/// The path of a test program by its target's name.
pub fn path<'p>(programs: &'p [Program], name: &str) -> Result<&'p Path> {
    let found = programs.iter().find(|program| program.name == name);
    Ok(&found.with_context(|| format!("cargo builds no test program {name}"))?.path)
}

/// All of the workspace, built.
pub fn programs() -> Result<Vec<Program>> {
    let mut cargo = command::cargo();
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(workspace::root());
    let messages = command::output(&mut cargo)?;
    messages.lines().filter_map(|line| told(line).transpose()).collect()
}

/// A test program that cargo speaks of in a line, if it does.
fn told(line: &str) -> Result<Option<Program>> {
    let Ok(message) = serde_json::from_str::<Value>(line) else { return Ok(None) };
    let (Some(path), true) = (message["executable"].as_str(), message["profile"]["test"] == true)
    else {
        return Ok(None);
    };
    let text = |value: &Value| value.as_str().map(str::to_owned).context("cargo names no target");
    let manifest = PathBuf::from(text(&message["manifest_path"])?);
    let directory = manifest.parent().context("a manifest is in a directory")?.to_owned();
    let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = text(&message["target"]["name"])?;
    Ok(Some(Program { name, package, directory, path: path.into() }))
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/net-1","profile":{"test":true},
            "manifest_path":"/w/crates/net/Cargo.toml","target":{"name":"net"}}"#;
        let found = told(line).unwrap().expect("a program");
        assert_eq!((found.package.as_str(), found.name.as_str()), ("net", "net"));
        assert!(told(&line.replace("true", "false")).unwrap().is_none());
        assert!(told("Compiling net").unwrap().is_none());
    }
}
