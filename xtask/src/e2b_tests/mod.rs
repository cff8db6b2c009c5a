//! `cargo xtask e2b-tests [--only PART] [-- FILTER]`: E2B's own SDKs, as they are published, against a node.
//!
//! All flows run with the newest SDKs, a short set of them with older ones that are in use. The node is one of
//! its own, in the host mode at hand, or one that is given. The SDKs know of it by their usual variables:
//!
//! ```text
//!   single port    E2B_API_URL, E2B_SANDBOX_URL, E2B_VOLUME_API_URL   http://127.0.0.1:PORT
//!   names          E2B_TEST_DOMAIN; flows that need it take it for E2B_DOMAIN
//! ```
//!
//! Names lead to this machine, and are certified by an authority, in the tests' processes alone.

mod install;
mod names;
mod node;
mod part;

use std::ffi::OsString;
use std::process::Command;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

pub use install::interpreter;
use names::Names;
pub use node::Node;
use part::{Part, Tally};

use crate::place::For;
use crate::progress::seconds;

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Against the node that E2B_* variables name, instead of one of its own
    #[arg(long)]
    given: bool,
    /// Use the guest artefacts that are there, without bringing them up to date
    #[arg(long)]
    as_is: bool,
    /// Only tests whose names match
    #[arg(last = true)]
    filter: Option<String>,
}

/// What can be run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Only {
    /// All flows with the newest Python SDKs
    Python,
    /// All flows with the newest TypeScript SDKs
    Typescript,
    /// The short set with the newest Python SDKs
    Newest,
    /// The short set with older Python SDKs
    Matrix,
}

/// What the tests find.
#[derive(Default)]
pub struct Surroundings {
    variables: Vec<(&'static str, OsString)>,
    /// Without them the node that is given has names of its own, or none.
    names: Option<Names>,
}

impl Surroundings {
    /// The same command in them.
    pub fn around(&self, mut command: Command) -> Command {
        for scheme in ["http", "https", "all"] {
            let name = format!("{scheme}_proxy");
            command.env_remove(name.to_uppercase()).env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        match &self.names {
            Some(names) => names.around(&command),
            None => command,
        }
    }
}

/// Runs them, and says for each part how many passed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let parts = parts(arguments.only)?;
    let filter = arguments.filter.as_deref();
    if arguments.given {
        return conclude(run_all(&parts, &Surroundings::default(), filter));
    }
    let node = Node::up(For::Tests, arguments.as_is)?;
    if !matches!(arguments.only, Some(Only::Matrix | Only::Newest)) {
        node.build_interpreter()?;
    }
    let result = node.surroundings().and_then(|found| run_all(&parts, &found, filter));
    node.down()?;
    conclude(result)
}

/// Installs what flows need beside a node. The words are those of the command.
pub fn prepare(words: &[&str]) -> Result<()> {
    let only = words.last().and_then(|word| Only::from_str(word, false).ok());
    parts(only).map(drop)
}

/// What is to be run, with everything that it needs installed.
fn parts(only: Option<Only>) -> Result<Vec<Part>> {
    let wanted = |part| only.is_none_or(|only| only == part);
    let mut parts = Vec::new();
    if wanted(Only::Python) {
        parts.push(install::newest_python()?);
    }
    if only == Some(Only::Newest) {
        parts.push(install::newest_python_short()?);
    }
    if wanted(Only::Matrix) {
        parts.extend(install::older_pythons()?);
    }
    if wanted(Only::Typescript) {
        parts.push(install::typescript()?);
    }
    Ok(parts)
}

fn run_all(
    parts: &[Part],
    surroundings: &Surroundings,
    filter: Option<&str>,
) -> Result<Vec<(String, Tally)>> {
    let mut tallies = Vec::new();
    for part in parts {
        eprintln!("\n# {}", part.name());
        let tally = part.run(surroundings, filter);
        tallies.push((part.name().to_owned(), tally.with_context(|| part.name().to_owned())?));
    }
    Ok(tallies)
}

fn conclude(result: Result<Vec<(String, Tally)>>) -> Result<ExitCode> {
    let tallies = result?;
    println!();
    for (name, tally) in &tallies {
        println!("{name:<44} {tally}  ({})", seconds(tally.time));
    }
    let fine = tallies.iter().all(|(_, tally)| tally.fine());
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
