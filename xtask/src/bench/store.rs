//! `cargo xtask bench store`: what it takes to keep states and to go on from them.
//!
//! How fast the store writes is measured natively, against `cp` (`crates/store/examples/throughput.rs`). What a user
//! waits for is measured by `ramet bench --store`, with real guests in the host mode at hand: once with the store at hand,
//! once with every request to it taking longer. METHOD.md in this folder says what each row is.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};
use clap::Args;
use serde::Deserialize;

use super::node::{Told, up_for};
use super::report::{Goal, Report, Row};
use crate::place;

/// Milliseconds that each request to the store takes longer, in turn.
const DISTANCES: [u64; 2] = [0, 20];

/// Arguments of `cargo xtask bench store`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few samples, and only 64 MiB in use
    #[arg(long)]
    quick: bool,
    /// Only what the store itself does, natively
    #[arg(long)]
    native: bool,
    /// MiB in use, instead of 256 and 1024; may be given again
    #[arg(long, value_name = "MIB")]
    used: Vec<u32>,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut report = Report::new("native");
    report.rows = throughput(arguments.quick)?;
    let mut failed = None;
    for distance in DISTANCES.into_iter().filter(|_| !arguments.native) {
        match with_guests(arguments, distance) {
            Ok(told) => {
                report.mode = if told.mode == "hardware" { "hardware" } else { "software" };
                let rows = told.rows.into_iter().map(|row| row.with("distance_ms", distance));
                report.rows.extend(rows);
            }
            // What was measured took long: it is told all the same.
            Err(error) => failed = Some(error),
        }
    }
    let concluded = report.conclude(with_goal, arguments.json.as_deref());
    failed.map_or(concluded, Err)
}

fn with_goal(row: Row) -> Row {
    match &*row.name {
        "put" => row.goal(Goal::RatioAtLeast(0.6)),
        "put_changed" | "push_child" | "commit_written" => row.goal(Goal::RatioAtMost(1.3)),
        "commit_returned" | "resume_warm" => row.goal(Goal::RatioAtMost(3.0)),
        "cold_read_share" => row.goal(Goal::AtMost(15.0)),
        _ => row,
    }
}

#[derive(Deserialize)]
struct Throughput {
    throughput: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    content: String,
    cp_mib_per_second: f64,
    put_mib_per_second: f64,
    commit: Changed,
}

#[derive(Deserialize)]
struct Changed {
    changed_bytes: f64,
    written_bytes: f64,
    pushed_bytes: f64,
    push_seconds: f64,
}

fn throughput(quick: bool) -> Result<Vec<Row>> {
    let example = "build --release --package ramet-store --example throughput";
    let program = place::build("throughput", &example.split(' ').collect::<Vec<_>>())?;
    let mut command = Command::new(program);
    command.arg("--json").args(if quick { ["--mib", "128"] } else { ["--mib", "512"] });
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the program that measures the store failed");
    }
    let told: Throughput = serde_json::from_slice(&output.stdout)?;
    let rows = told.throughput.into_iter().flat_map(|one| {
        let mib = f64::from(1 << 20);
        let put = Row::new("put", "MiB/s", &[one.put_mib_per_second])
            .with("content", one.content.clone())
            .against(one.cp_mib_per_second);
        let changed = Row::new("put_changed", "MiB", &[one.commit.written_bytes / mib])
            .with("content", one.content.clone())
            .against(one.commit.changed_bytes / mib);
        let pushed = Row::new("push_child", "MiB", &[one.commit.pushed_bytes / mib])
            .with("content", one.content.clone())
            .against(one.commit.changed_bytes / mib);
        let time = Row::new("push_child_time", "ms", &[one.commit.push_seconds * 1000.0])
            .with("content", one.content);
        [put, changed, pushed, time]
    });
    Ok(rows.collect())
}

fn with_guests(arguments: &Arguments, distance: u64) -> Result<Told> {
    let used: &[u32] = match (&*arguments.used, arguments.quick) {
        ([], true) => &[64],
        ([], false) => &[256, 1024],
        (used, _) => used,
    };
    let far = distance > 0;
    let distance = format!("--store-distance={distance}");
    let used: Vec<String> = used.iter().map(|mib| format!("--store={mib}")).collect();
    let mut bench = vec!["--json", "bench"];
    bench.extend(arguments.quick.then_some("--quick"));
    bench.extend(used.iter().map(String::as_str));
    // Commits are written in the background, however far the store is.
    bench.extend(far.then_some("--store-resumes"));
    up_for(&["up", &distance], &bench)
}
