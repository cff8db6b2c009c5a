//! The parts, and which of them `cargo xtask test` runs without being asked.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::inputs::Inputs;
use super::job::Job;
use super::record::Record;
use super::rust::{self, Program};

/// The part that is no program.
pub const RULES: &str = "rules";

/// A part.
pub struct Part {
    /// Names it.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// It is run without being asked for.
    pub default: bool,
    /// With `--all` another part says the same and more.
    pub only_default: bool,
    /// The command of this program; none for what cargo builds.
    pub words: &'static [&'static str],
    /// Value of `RAMET_TEST_PART`.
    pub choice: Option<&'static str>,
    /// How long it usually takes, in seconds, and at most.
    pub usual_s: u64,
    pub most_s: u64,
}

const fn native(name: &'static str, about: &'static str) -> Part {
    Part {
        name,
        about,
        default: true,
        only_default: false,
        words: &[],
        choice: None,
        usual_s: 10,
        most_s: 900,
    }
}

const fn core(
    name: &'static str,
    about: &'static str,
    words: &'static [&'static str],
    usual_s: u64,
) -> Part {
    Part {
        name,
        about,
        default: true,
        only_default: true,
        words,
        choice: Some("core"),
        usual_s,
        most_s: 2400,
    }
}

const fn whole(
    name: &'static str,
    about: &'static str,
    words: &'static [&'static str],
    choice: Option<&'static str>,
    usual_s: u64,
) -> Part {
    let most_s = 6 * usual_s;
    Part { name, about, default: false, only_default: false, words, choice, usual_s, most_s }
}

/// Of the program that runs Rust's tests, the part that needs the guest's files.
pub const HOST: &str = "host";
/// And the part in which they do more.
pub const LONG: &str = "rust-long";

/// All parts.
pub const PARTS: &[Part] = &[
    native(RULES, "format, house rules, dependencies"),
    native("rust", "unit tests, programs without Linux guests, tiny guests on /dev/kvm"),
    Part { usual_s: 20, ..native(HOST, "the software host") },
    Part {
        default: false,
        most_s: 3600,
        ..native(LONG, "what of `rust` can take long, longer; other random values")
    },
    Part {
        words: &["interpreter-tests"],
        usual_s: 45,
        ..native("python", "the code interpreter, natively")
    },
    core("stories-core", "a node with real guests: a story of each topic", &["node-tests"], 150),
    core("machines-core", "machines with Linux: what a fork is", &["linux-tests"], 100),
    Part {
        choice: None,
        ..core("e2b-core", "the newest Python SDK of E2B", &["e2b-tests", "--only", "newest"], 60)
    },
    whole("stories", "all stories whose node is shared", &["node-tests"], Some("shared"), 1800),
    whole("stories-own", "stories with nodes of their own", &["node-tests"], Some("own"), 1500),
    whole("machines", "all tests of machines with Linux", &["linux-tests"], None, 700),
    whole(
        "e2b-python",
        "all flows of E2B in Python",
        &["e2b-tests", "--only", "python"],
        None,
        900,
    ),
    whole("e2b-older", "older SDKs of E2B", &["e2b-tests", "--only", "matrix"], None, 400),
    whole(
        "e2b-typescript",
        "all flows of E2B in TypeScript",
        &["e2b-tests", "--only", "typescript"],
        None,
        400,
    ),
];

/// What all programs of the product are, below the root.
const PROGRAMS: [&str; 4] = [
    "target/debug/ramet",
    "target/debug/rametd",
    "target/debug/ramet-net",
    "target/debug/ramet-vmm",
];

impl Part {
    /// Its tests are those of this program of Rust, which runs where guests do.
    fn with_guests(&self) -> Option<&'static str> {
        match self.words {
            ["node-tests", ..] => Some("node"),
            ["linux-tests", ..] => Some("linux"),
            _ => None,
        }
    }

    /// What a command of this program is built from, beside itself.
    fn inputs(&self, programs: &[Program]) -> Result<Inputs> {
        let own: &[&str] = match self.words {
            ["node-tests", ..] => &["recipes", "guest"],
            ["linux-tests", ..] => &[],
            ["e2b-tests", ..] => &["tests/e2b", "xtask/src/e2b_tests", "recipes", "guest"],
            _ => &["guest/interpreter", "crates/agent/python", "xtask/src/interpreter_tests.rs"],
        };
        let started: &[&str] = match self.words {
            ["linux-tests", ..] => &["target/debug/ramet-vmm"],
            ["interpreter-tests", ..] => &[],
            _ => &PROGRAMS,
        };
        let guest = self.words != ["interpreter-tests"];
        let mut inputs = Inputs::of(&[own, started].concat(), guest);
        if let Some(name) = self.with_guests() {
            inputs.paths.push(rust::path(programs, name)?.to_owned());
        }
        Ok(inputs)
    }

    /// The one job of a part that is a command of this program.
    pub fn job(&'static self, programs: &[Program], monitor: &Path) -> Result<Job> {
        // This very program, even when the build of the workspace has put another at its path.
        let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
        command.args(self.words).env("RAMET_VMM", monitor);
        if self.words[0] != "interpreter-tests" {
            command.arg("--as-is");
        }
        command.env_remove("RAMET_TEST_PART");
        command.envs(self.choice.map(|choice| ("RAMET_TEST_PART", choice)));
        Ok(Job {
            part: self.name,
            name: self.name.to_owned(),
            command,
            inputs: self.inputs(programs)?,
            record: Record::of(self.name),
            skip: self.with_guests().map(|_| &["--"][..]),
            usual: Duration::from_secs(self.usual_s),
            most: Duration::from_secs(self.most_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{PARTS, Program};

    #[test]
    fn a_part_with_guests_is_built_from_its_test_program() {
        let programs = ["node", "linux"].map(|name| Program::at(name, &Path::new("/t").join(name)));
        for (part, program) in [("stories", "/t/node"), ("machines-core", "/t/linux")] {
            let part = PARTS.iter().find(|one| one.name == part).expect("a part");
            let inputs = part.inputs(&programs).expect("inputs");
            assert!(inputs.paths.iter().any(|path| path == Path::new(program)), "{}", part.name);
        }
    }

    #[test]
    fn names_are_distinct_and_all_is_more_than_the_default() {
        let mut names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
        for part in PARTS.iter().filter(|part| part.only_default) {
            let topic = part.name.trim_end_matches("core");
            let more = |other: &&super::Part| {
                !other.default && other.name.starts_with(topic.trim_end_matches('-'))
            };
            assert!(PARTS.iter().any(|other| more(&other)), "{}", part.name);
        }
    }
}
