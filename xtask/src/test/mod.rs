//! `cargo xtask test`: what CI runs, set-up included; with `--all`, everything there is.
//!
//! ```text
//!   set-up   what comes from elsewhere comes while cargo builds
//!   jobs     programs of parts, two at a time, each in a process group of its own with a deadline
//!   table    what passed, failed and was skipped in each part, and how long it took
//! ```
//!
//! A part that fails or hangs does not keep the others from running. The last line counts all tests.

mod inputs;
mod job;
mod parts;
mod patience;
mod record;
mod rust;
pub mod soak;
mod tally;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::place::{self, For};
use crate::progress::seconds;
use crate::{check, e2b_tests, guest, host, interpreter_tests, node_tests, schemathesis};
use job::{Conditions, Ended, Job};
use parts::{PARTS, Part};
use tally::Tally;

/// Programs that run at a time: an emulated host has one processor.
const LANES: usize = 2;

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Everything there is, which takes hours
    #[arg(long)]
    all: bool,
    /// Only this part; may be given several times
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<String>,
    /// Only show what there is, and how long each took last
    #[arg(long)]
    list: bool,
    /// With --all or --part: run again even what is known since it was built
    #[arg(long)]
    fresh: bool,
}

/// Runs what was asked for.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let parts = chosen(arguments)?;
    if arguments.list {
        parts.iter().for_each(|part| println!("{}", listed(part)));
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = parts.iter().map(|part| part.name).collect();
    eprintln!("parts: {}; a first run builds for some minutes", names.join(", "));
    let began = Instant::now();
    let mut rows = Vec::new();
    if names.contains(&parts::RULES) {
        rows.push(rules());
    }
    let monitor = set_up(&parts)?;
    let jobs = jobs(&parts, &monitor)?;
    let patience = patience::measure()?;
    eprintln!("limits are {patience:.1} times those of a quiet development machine");
    // What CI runs is run, whatever is known.
    let keep = (arguments.all || !arguments.parts.is_empty()) && !arguments.fresh;
    let results = run_all(&jobs, Conditions { keep, patience });
    for part in parts.iter().filter(|part| part.name != parts::RULES) {
        let own = results.iter().filter(|(of, _)| *of == part.name).map(|(_, ended)| ended);
        rows.push(Row::of(part.name, own));
    }
    for row in &rows {
        // A time that is not noted is not shown the next time.
        let _ = std::fs::write(time_note(row.name), format!("{:.0}", row.time.as_secs_f64()));
    }
    Ok(conclude(&rows, began.elapsed()))
}

/// A part, and what it took last, both programs beside each other counted in full.
fn listed(part: &Part) -> String {
    let last = std::fs::read_to_string(time_note(part.name));
    let last = last.map_or_else(|_| "-".to_owned(), |seconds| format!("{seconds} s"));
    format!("{:<18} {last:>7}  {}", part.name, part.about)
}

/// Where it is noted how long a part took.
fn time_note(part: &str) -> PathBuf {
    record::directory().join(format!("{part}.time"))
}

fn chosen(arguments: &Arguments) -> Result<Vec<&'static Part>> {
    let known = |name: &String| PARTS.iter().any(|part| part.name == name.as_str());
    if let Some(unknown) = arguments.parts.iter().find(|name| !known(name)) {
        bail!("no part is called {unknown}; `cargo xtask test --all --list` shows them all");
    }
    let wanted = |part: &&Part| match arguments.parts.is_empty() {
        true if arguments.all => !part.only_default,
        true => part.default,
        false => arguments.parts.iter().any(|name| name == part.name),
    };
    Ok(PARTS.iter().filter(wanted).collect())
}

/// What is said of a part.
struct Row {
    name: &'static str,
    tally: Tally,
    /// Why it counts as failed, beyond tests that failed.
    broken: Vec<String>,
    time: Duration,
}

impl Row {
    fn of<'e>(name: &'static str, ended: impl Iterator<Item = &'e Ended>) -> Self {
        let mut row =
            Self { name, tally: Tally::default(), broken: Vec::new(), time: Duration::ZERO };
        for one in ended {
            row.tally += one.tally;
            row.broken.extend(one.broken.clone());
            row.time += one.time;
        }
        row
    }

    fn fine(&self) -> bool {
        self.tally.failed == 0 && self.broken.is_empty()
    }
}

fn rules() -> Row {
    let began = Instant::now();
    let broken = match check::without_lints() {
        Ok(_) => Vec::new(),
        Err(error) => vec![format!("{error:#}")],
    };
    let tally = Tally { passed: u32::from(broken.is_empty()), ..Tally::default() };
    Row { name: parts::RULES, tally, broken, time: began.elapsed() }
}

/// Everything that is there before the first test. The monitor.
fn set_up(parts: &[&Part]) -> Result<PathBuf> {
    let began = Instant::now();
    let monitor = thread::scope(|scope| {
        let fetching = scope.spawn(|| fetch(parts));
        let monitor = place::build_monitor(For::Tests);
        fetching.join().map_err(|_| anyhow!("the set-up panicked"))??;
        monitor
    });
    eprintln!("ended set-up {}", seconds(began.elapsed()));
    monitor
}

fn fetch(parts: &[&Part]) -> Result<()> {
    guest::make(false)?;
    host::install_tools()?;
    schemathesis::install()?;
    interpreter_tests::install()?;
    let wanted = |name: &str| parts.iter().any(|part| part.name.starts_with(name));
    if wanted("stories") {
        node_tests::prepare()?;
    }
    for part in parts.iter().filter(|part| part.name.starts_with("e2b")) {
        e2b_tests::prepare(part.words)?;
    }
    Ok(())
}

fn jobs(parts: &[&'static Part], monitor: &Path) -> Result<Vec<Job>> {
    let programs = rust::programs()?;
    let mut jobs = Vec::new();
    for part in parts.iter().filter(|part| part.name != parts::RULES) {
        match part.words {
            [] => jobs.extend(rust::jobs(part, &programs, monitor)),
            _ => jobs.push(part.job(&programs, monitor)?),
        }
    }
    // Longest first, so that none is left alone at the end.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.usual));
    Ok(jobs)
}

/// Runs all, with the part that each is of.
fn run_all(jobs: &[Job], conditions: Conditions) -> Vec<(&'static str, Ended)> {
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = (job.part, job.run(conditions));
                    ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(one);
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn conclude(rows: &[Row], time: Duration) -> ExitCode {
    println!();
    println!("{:<18} {:>7} {:>7} {:>7} {:>9}", "part", "passed", "failed", "skipped", "time");
    let mut all = Tally::default();
    for row in rows {
        let Tally { passed, failed, skipped } = row.tally;
        let mark = if row.fine() { "" } else { "  FAILED" };
        let time = seconds(row.time);
        println!("{:<18} {passed:>7} {failed:>7} {skipped:>7} {time:>9}{mark}", row.name);
        for reason in &row.broken {
            println!("    {reason}");
        }
        all += row.tally;
    }
    println!("{:<18} {:>35}", "all", seconds(time));
    let broken = rows.iter().map(|row| row.broken.len()).sum::<usize>();
    all.failed = all.failed.max(u32::try_from(broken).unwrap_or(u32::MAX));
    println!("{all}");
    if rows.iter().all(Row::fine) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
