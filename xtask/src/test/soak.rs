//! `cargo xtask soak`: random walks, crashes and faults that nobody has seen yet, for as long as is asked.
//!
//! Kinds take turns, each with a new seed. What fails is shown as a command that repeats it, and the next one begins; all
//! of them are shown again at the end.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::inputs::Inputs;
use super::job::{Conditions, Job};
use super::patience;
use super::record::Record;
use super::rust::{self, Program};
use crate::place::{self, For};
use crate::progress::seconds;
use crate::{guest, host, node_tests};

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// For how long
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// The first seed; else the time of day
    #[arg(long)]
    seed: Option<u64>,
    /// Only these; may be given several times
    #[arg(long = "only", value_name = "KIND", value_enum)]
    kinds: Vec<Kind>,
}

/// What is random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Walks over trees of Linux guests, against a model
    Walks,
    /// A node with real guests that is killed at random moments
    Crashes,
    /// Two nodes on one store that fails at random
    Nodes,
    /// A store alone that fails at random
    Store,
}

const KINDS: [Kind; 4] = [Kind::Walks, Kind::Crashes, Kind::Nodes, Kind::Store];
/// Walks of one turn: the emulated host is started once for them.
const WALKS: u64 = 20;

impl Kind {
    /// How many seeds a turn takes.
    fn seeds(self) -> u64 {
        if self == Self::Walks { WALKS } else { 1 }
    }

    /// The command that takes its seeds again.
    fn words(self) -> &'static str {
        match self {
            Self::Walks => "cargo xtask linux-tests -- model::other_walks",
            Self::Crashes => "cargo xtask node-tests -- crash::a_node_killed_at_any_moment",
            Self::Nodes => "cargo test --lib sandbox::tests::faults",
            Self::Store => "cargo test --test store faults::after_any_fault",
        }
    }

    /// What makes it longer than the default.
    fn more(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Walks => Some(("RAMET_TEST_WALKS", WALKS)),
            Self::Crashes => Some(("RAMET_TEST_CRASHES", 6)),
            Self::Nodes => Some(("RAMET_TEST_STEPS", 150)),
            Self::Store => None,
        }
    }

    /// As a line for a shell.
    fn again(self, seed: u64) -> String {
        let more = self.more().map(|(name, value)| format!("{name}={value} ")).unwrap_or_default();
        format!("RAMET_TEST_SEED={seed} {more}{}", self.words())
    }

    fn command(self, programs: &[Program]) -> Result<Command> {
        let test = self.words().rsplit(' ').next().unwrap_or_default();
        let mut command = match self {
            Self::Walks | Self::Crashes => {
                let mut own = Command::new(format!("/proc/{}/exe", std::process::id()));
                let task = if self == Self::Walks { "linux-tests" } else { "node-tests" };
                own.args([task, "--as-is", "--"]);
                own
            }
            Self::Nodes => Command::new(rust::path(programs, "ramet_node")?),
            Self::Store => Command::new(rust::path(programs, "store")?),
        };
        command.arg(test).envs(self.more().map(|(name, value)| (name, value.to_string())));
        Ok(command)
    }
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let kinds = if arguments.kinds.is_empty() { KINDS.to_vec() } else { arguments.kinds.clone() };
    eprintln!("soak for {} min: {kinds:?}; what is missing is made first", arguments.minutes);
    guest::make(false)?;
    host::install_tools()?;
    node_tests::prepare()?;
    let monitor = place::build_monitor(For::Tests)?;
    let programs = rust::programs()?;
    let conditions = Conditions { keep: false, patience: patience::measure()? };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock after 1970")?;
    let mut seed = arguments.seed.unwrap_or(now.as_secs());
    let (began, mut taken, mut failed) = (Instant::now(), 0, Vec::new());
    let end = Duration::from_secs(60 * arguments.minutes);
    for kind in kinds.into_iter().cycle() {
        if began.elapsed() >= end {
            break;
        }
        if !job(kind, seed, &programs, &monitor)?.run(conditions).fine() {
            let again = kind.again(seed);
            eprintln!("again: {again}");
            failed.push(again);
        }
        (taken, seed) = (taken + kind.seeds(), seed + kind.seeds());
    }
    failed.iter().for_each(|again| println!("{again}"));
    println!("{taken} seeds in {}, {} turns failed", seconds(began.elapsed()), failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn job(kind: Kind, seed: u64, programs: &[Program], monitor: &Path) -> Result<Job> {
    let mut command = kind.command(programs)?;
    command.env("RAMET_VMM", monitor).env("RAMET_TEST_SEED", seed.to_string());
    let name = format!("soak {kind:?} from {seed}").to_lowercase();
    Ok(Job {
        part: "soak",
        record: Record::of(&name),
        name,
        command,
        inputs: Inputs::default(),
        skip: None,
        usual: Duration::ZERO,
        most: Duration::from_secs(2400),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_can_be_repeated_as_it_is_printed() {
        assert_eq!(
            Kind::Walks.again(8),
            "RAMET_TEST_SEED=8 RAMET_TEST_WALKS=20 cargo xtask linux-tests -- model::other_walks"
        );
        assert!(Kind::Nodes.again(7).starts_with("RAMET_TEST_SEED=7 RAMET_TEST_STEPS=150 cargo "));
    }
}
