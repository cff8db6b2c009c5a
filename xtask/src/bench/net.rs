//! `cargo xtask bench net`: what the network service carries, beside others that do the same, and what a fork of a whole network takes.
//!
//! The service is measured natively, behind a TAP device (`crates/net/examples/carry.rs`), in the same way as slirp4netns (QEMU's user-mode
//! network) and pasta. Forks of networks are measured by `ramet bench --network`, with real guests in the host mode at hand.
//! METHOD.md in this folder says what each row is.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use super::node::up_for;
use super::report::{Goal, Report, Row};
use crate::progress::{Outcome, step};
use crate::{packages, place};

/// What is measured beside the service, and what measures.
const PROGRAMS: [(&str, &str); 4] =
    [("iperf3", "iperf3"), ("slirp4netns", "slirp4netns"), ("pasta", "passt"), ("ip", "iproute2")];

/// Arguments of `cargo xtask bench net`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only the service, natively
    #[arg(long)]
    native: bool,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut report = Report::new("native");
    report.rows = service()?;
    if !arguments.native {
        let told = up_for(&["up"], &["--json", "bench", "--network"])?;
        report.mode = if told.mode == "hardware" { "hardware" } else { "software" };
        report.rows.extend(told.rows);
    }
    report.conclude(with_goal, arguments.json.as_deref())
}

fn with_goal(row: Row) -> Row {
    match &*row.name {
        "net_up" | "net_down" | "net_between" => row.goal(Goal::RatioAtLeast(0.6)),
        "net_idle_port" => row.goal(Goal::AtMost(200.0)),
        "net_policy" => row.goal(Goal::RatioAtMost(1.05)),
        _ => row,
    }
}

fn service() -> Result<Vec<Row>> {
    step("tools", |status| {
        packages::install_missing(status, &PROGRAMS)?;
        Ok(Outcome::Kept("iperf3, slirp4netns, pasta".to_owned()))
    })?;
    let package = ["build", "--release", "--package", "ramet-net"];
    let service = place::build("ramet-net", &package)?;
    let program = place::build("carry", &[&package[..], &["--example", "carry"]].concat())?;
    let mut command = Command::new(program);
    let output = command.arg("--service").arg(service).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the program that measures the network failed");
    }
    let told: Value = serde_json::from_slice(&output.stdout)?;
    let figure = |who: &str, what: &str| told[who][what].as_f64();
    let own = |what: &str| figure("ramet_net", what).with_context(|| format!("no figure {what}"));
    let others = |what: &str| [figure("slirp4netns", what), figure("pasta", what)];
    let most = |what: &str| others(what).into_iter().flatten().fold(f64::NAN, f64::max);
    let least = |what: &str| others(what).into_iter().flatten().fold(f64::NAN, f64::min);
    let policy = |what: &str| figure("policy", what).context("no figures of the policy");
    let between = figure("between", "gbit_s").context("no figure between members")?;
    Ok(vec![
        Row::new("net_up", "Gbit/s", &[own("up_gbit_s")?]).against(most("up_gbit_s")),
        Row::new("net_down", "Gbit/s", &[own("down_gbit_s")?]).against(most("down_gbit_s")),
        Row::new("net_between", "Gbit/s", &[between]).against(most("up_gbit_s")),
        Row::new("net_request", "us", &[own("request_us_p50")?]).against(least("request_us_p50")),
        Row::new("net_connections", "1/s", &[own("connections_per_s")?])
            .against(most("connections_per_s")),
        Row::new("net_policy", "us", &[policy("hundred_rules_us")?])
            .against(policy("one_rule_us")?),
        Row::new("net_idle_port", "KiB", &[figure("idle", "port_kib").context("no idle ports")?]),
    ])
}
