//! `ramet top`: what sandboxes use.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ramet_client::Client;
use ramet_client::api::{ListQuery, Node, Sandbox, Stats};
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const EVERY: Duration = Duration::from_secs(2);
/// Sandboxes that are asked at once.
const AT_ONCE: usize = 16;

const HELP: &str = "\
OWN is memory of the host that belongs to the sandbox alone; PSS adds its share of what it shares.

Examples:
  ramet top
  ramet top --once
  ramet top --json      once, for programs";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show it once
    #[arg(long)]
    once: bool,
}

#[derive(Serialize)]
struct Row {
    sandbox: Sandbox,
    /// Absent if it could not be had.
    stats: Option<Stats>,
    /// Share of one processor since the last look.
    cpu_percent: Option<u64>,
}

/// Busy time of each sandbox, and when it was read.
type Before = BTreeMap<String, (Instant, u64)>;

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let mut before = Before::new();
    let (_, rows) = look(&client, &mut before).await?;
    if context.json {
        output::json(&rows);
        return Ok(());
    }
    let screen = std::io::stdout().is_terminal() && !args.once;
    if screen {
        output::print("\x1b[2J");
    }
    loop {
        // The first look only gives something to compare with.
        tokio::time::sleep(if screen { EVERY } else { EVERY / 4 }).await;
        let (node, rows) = look(&client, &mut before).await?;
        let drawn = draw(&node, &rows, context.paint);
        if !screen {
            output::print(&drawn);
            return Ok(());
        }
        output::print(&format!("\x1b[H{}\x1b[J", drawn.replace('\n', "\x1b[K\n")));
    }
}

async fn look(client: &Client, before: &mut Before) -> Result<(Node, Vec<Row>), Failure> {
    let node = client.node().await?;
    let list = client.list_all(&ListQuery::default()).await?;
    let mut rows = Vec::new();
    for some in list.chunks(AT_ONCE) {
        let asked = join_all(some.iter().map(|sandbox| client.stats(&sandbox.id))).await;
        for (sandbox, stats) in some.iter().zip(asked) {
            // One that is gone by now, or does not answer, has no figures.
            let stats = stats.ok();
            let cpu_percent = cpu(&sandbox.id, stats.as_ref(), before);
            rows.push(Row { sandbox: sandbox.clone(), stats, cpu_percent });
        }
    }
    Ok((node, rows))
}

fn cpu(id: &str, stats: Option<&Stats>, before: &mut Before) -> Option<u64> {
    let (now, busy) = (Instant::now(), stats?.guest.as_ref()?.cpu_busy_ms);
    let (then, was) = before.insert(id.to_owned(), (now, busy))?;
    let passed = u64::try_from(now.duration_since(then).as_millis()).ok()?;
    Some(busy.checked_sub(was)? * 100 / passed.max(1))
}

fn draw(node: &Node, rows: &[Row], paint: Paint) -> String {
    let head = format!(
        "{} running, {} paused; {} of {} MiB of the host's memory can be had\n",
        node.running, node.paused, node.memory_available_mib, node.memory_total_mib
    );
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        "CPU",
        "GUEST MEM",
        "PSS",
        "OWN",
        "DISK",
        "PROCS",
        "LAST PAUSE",
    ]);
    for row in rows {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let stats = row.stats.as_ref();
        let guest = stats.and_then(|stats| stats.guest.as_ref());
        let used = guest.map(|guest| {
            guest.memory_total_bytes - guest.memory_available_bytes.min(guest.memory_total_bytes)
        });
        table.row(vec![
            row.sandbox.name.clone(),
            paint.state(row.sandbox.state),
            or_dash(row.cpu_percent.map(|percent| format!("{percent}%"))),
            or_dash(used.map(output::bytes)),
            or_dash(stats.map(|stats| output::bytes(stats.pss_kib << 10))),
            or_dash(stats.map(|stats| output::bytes(stats.private_kib << 10))),
            or_dash(stats.map(|stats| output::bytes(stats.disk_changed_bytes))),
            or_dash(guest.map(|guest| guest.processes.to_string())),
            or_dash(stats.and_then(|stats| stats.last_pause_us).map(output::micros)),
        ]);
    }
    format!("{head}{}", table.draw(paint))
}
