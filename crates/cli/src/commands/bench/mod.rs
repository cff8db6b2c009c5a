//! `ramet bench`: what the node takes, beside what the engine itself took for the same.
//!
//! Everything is measured as a client sees it. The floor of a create or a fork is the engine's own ready time,
//! which the node tells with each answer; others have none. The sandboxes carry a label of their own and are
//! removed at the end, or at the start of the next run. [`store`] has what is kept beyond machines.

mod network;
mod store;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream;
use ramet_client::Client;
use ramet_client::api::{
    CommitsQuery, CreateSandbox, ExecRequest, ForkRequest, HostMode, ListQuery, Sandbox, WriteQuery,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::new;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Paint, Table};

/// Marks the sandboxes of a run.
const LABEL: &str = "ramet-bench";
/// Most children of one call while the idle ones are made.
const BROOD: u32 = 32;
/// Requests under way at once.
const CLIENTS: usize = 8;
/// How long lists are asked for.
const LIST_TIME: Duration = Duration::from_secs(3);

const HELP: &str = "\
RATIO compares with the engine's own time for the same, measured in the same call.

Examples:
  ramet bench --quick
  ramet bench --quick --store 256
  ramet bench --json > figures.json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Few samples, small files, few sandboxes
    #[arg(long)]
    quick: bool,
    /// Sandboxes that live at once while the node is asked for lists
    #[arg(long, value_name = "N")]
    idle: Option<u32>,
    /// Instead: commit, pause and resume, of a sandbox with so many MiB in use; may be given again
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(64..=8192), conflicts_with = "idle")]
    store: Vec<u32>,
    /// Instead: forks of a network of four
    #[arg(long, conflicts_with_all = ["idle", "store"])]
    network: bool,
    /// With `--store`: pause and resume, no commits
    #[arg(long, requires = "store")]
    store_resumes: bool,
}

/// A figure; the same shape as in the repository's benchmarks.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    params: BTreeMap<&'static str, Value>,
    unit: &'static str,
    p50: f64,
    p95: f64,
    floor_p50: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    machine: Value,
    mode: HostMode,
    rows: Vec<Row>,
}

struct Bench {
    client: Client,
    samples: usize,
    resumes_only: bool,
    rows: Vec<Row>,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let node = client.node().await?;
    remove_all(&client).await?;
    let mut bench = Bench {
        client: client.clone(),
        samples: if args.quick { 3 } else { 11 },
        resumes_only: args.store_resumes,
        rows: Vec::new(),
    };
    let measured = bench.measure(args).await;
    let removed = remove_all(&client).await;
    measured.and(removed)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = json!({ "cores": cores, "node_memory_mib": node.memory_total_mib });
    let report = Report { machine, mode: node.host_mode, rows: bench.rows };
    context.show(&report, |report| table(&report.rows, context.paint));
    Ok(())
}

impl Bench {
    async fn measure(&mut self, args: &Args) -> Result<(), Failure> {
        if args.network {
            return self.networks().await;
        }
        if !args.store.is_empty() {
            for used in &args.store {
                self.states(*used).await?;
                remove_all(&self.client).await?;
            }
            return Ok(());
        }
        let source = self.creates().await?;
        self.execs(&source).await?;
        let broods: &[u32] = if args.quick { &[1, 8] } else { &[1, 8, 32] };
        for count in broods {
            self.forks(&source, *count).await?;
        }
        let sizes: &[usize] = if args.quick { &[1] } else { &[1, 100] };
        for mib in sizes {
            self.files(&source, *mib).await?;
        }
        let idle = args.idle.unwrap_or(if args.quick { 16 } else { 200 });
        self.idle(&source, idle).await
    }

    fn add(&mut self, name: &'static str, unit: &'static str, samples: &[f64]) -> &mut Row {
        let (p50, p95) = (percentile(samples, 50), percentile(samples, 95));
        let params = BTreeMap::new();
        self.rows.push(Row { name, params, unit, p50, p95, floor_p50: None, ratio: None });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Creates, each to its first command answered. The last sandbox is kept.
    async fn creates(&mut self) -> Result<Sandbox, Failure> {
        eprintln!("bench: create");
        let request = CreateSandbox { labels: labels(), ..CreateSandbox::default() };
        let mut kept = new::create(&self.client, &request).await?.sandbox;
        let (mut answered, mut ready) = (Vec::new(), Vec::new());
        for _ in 0..self.samples {
            let began = Instant::now();
            let created = self.client.create(&request).await?;
            ask(&self.client, &created.sandbox.id).await?;
            answered.push(millis(began));
            ready.push(created.ready_us as f64 / 1000.0);
            self.client.delete(&kept.id).await?;
            kept = created.sandbox;
        }
        self.add("create_answered", "ms", &answered).against(&ready);
        Ok(kept)
    }

    async fn execs(&mut self, source: &Sandbox) -> Result<(), Failure> {
        eprintln!("bench: exec");
        let mut samples = Vec::new();
        for _ in 0..self.samples * 3 {
            let began = Instant::now();
            ask(&self.client, &source.id).await?;
            samples.push(millis(began));
        }
        self.add("exec", "ms", &samples);
        Ok(())
    }

    /// Forks, each to the first command answered in all children.
    async fn forks(&mut self, source: &Sandbox, count: u32) -> Result<(), Failure> {
        eprintln!("bench: fork into {count}");
        let (mut answered, mut ready, mut pauses) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.samples {
            let began = Instant::now();
            let request = ForkRequest { count: Some(count), ..ForkRequest::default() };
            let forked = self.client.fork(&source.id, &request).await?;
            let children: Vec<&Sandbox> =
                forked.children.iter().filter_map(|child| child.sandbox.as_ref()).collect();
            if children.len() != forked.children.len() {
                return Err(Failure::new("not every child was made").next("`ramet top`"));
            }
            try_join_all(children.iter().map(|child| ask(&self.client, &child.id))).await?;
            answered.push(millis(began));
            pauses.push(forked.pause_us as f64 / 1000.0);
            let last = forked.children.iter().filter_map(|child| child.ready_us).max();
            ready.push((forked.rendezvous_us + last.unwrap_or(0)) as f64 / 1000.0);
            remove(&self.client, children.into_iter()).await?;
        }
        self.add("fork_pause", "ms", &pauses).with("n", count);
        self.add("fork_answered", "ms", &answered).against(&ready).with("n", count);
        Ok(())
    }

    async fn files(&mut self, source: &Sandbox, mib: usize) -> Result<(), Failure> {
        eprintln!("bench: files of {mib} MiB");
        let content: Vec<u8> = (0..=250).cycle().take(mib << 20).collect();
        let query = WriteQuery { path: "/tmp/bench.bin".to_owned(), ..WriteQuery::default() };
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for _ in 0..self.samples.min(if mib > 1 { 3 } else { self.samples }) {
            let began = Instant::now();
            self.client.write_file(&source.id, &query, content.clone()).await?;
            up.push(millis(began));
            let began = Instant::now();
            let mut reader = self.client.read_file(&source.id, &query.path).await?;
            let mut length = 0;
            while let Some(piece) = reader.next().await? {
                length += piece.len();
            }
            down.push(millis(began));
            if length != content.len() {
                return Err(Failure::new(format!("{length} bytes came back of {}", content.len())));
            }
        }
        self.add("upload", "ms", &up).with("mib", mib);
        self.add("download", "ms", &down).with("mib", mib);
        Ok(())
    }

    /// Many sandboxes that do nothing: what they cost, and how the node answers meanwhile.
    async fn idle(&mut self, source: &Sandbox, count: u32) -> Result<(), Failure> {
        eprintln!("bench: {count} idle sandboxes");
        let mut made = Vec::new();
        while made.len() < count as usize {
            let left = count - u32::try_from(made.len()).unwrap_or(count);
            let request = ForkRequest { count: Some(left.min(BROOD)), ..ForkRequest::default() };
            let forked = self.client.fork(&source.id, &request).await?;
            let error = forked.children.iter().find_map(|child| child.error.as_ref());
            if let Some(error) = error {
                return Err(Failure::new(format!(
                    "after {} sandboxes: {}",
                    made.len(),
                    error.detail
                )));
            }
            made.extend(forked.children.into_iter().filter_map(|child| child.sandbox));
        }
        let asked = stream::iter(&made).map(|sandbox| self.client.stats(&sandbox.id));
        let stats: Vec<_> = asked.buffer_unordered(CLIENTS).collect().await;
        let stats = stats.into_iter().collect::<Result<Vec<_>, _>>()?;
        let pss: Vec<f64> = stats.iter().map(|stats| stats.pss_kib as f64).collect();
        let own: Vec<f64> = stats.iter().map(|stats| stats.private_kib as f64).collect();
        self.add("idle_pss", "KiB", &pss).with("n", count);
        self.add("idle_private", "KiB", &own).with("n", count);
        let mut alone = Vec::new();
        for _ in 0..self.samples * 3 {
            let began = Instant::now();
            self.client.sandbox(&source.id).await?;
            alone.push(millis(began));
        }
        self.add("get_sandbox", "ms", &alone).with("n", count);
        let (times, rate) = self.lists().await?;
        self.add("list", "ms", &times).with("n", count).with("clients", CLIENTS);
        self.add("lists_per_second", "1/s", &[rate]).with("n", count).with("clients", CLIENTS);
        Ok(())
    }

    /// Lists, asked for by several clients at once: how long each took, and how many in a second.
    async fn lists(&self) -> Result<(Vec<f64>, f64), Failure> {
        let began = Instant::now();
        let query = ListQuery { limit: Some(100), ..ListQuery::default() };
        let workers = (0..CLIENTS).map(|_| async {
            let mut times = Vec::new();
            while began.elapsed() < LIST_TIME {
                let asked = Instant::now();
                self.client.list(&query).await?;
                times.push(millis(asked));
            }
            Ok::<_, ramet_client::Error>(times)
        });
        let times: Vec<f64> = try_join_all(workers).await?.concat();
        let rate = times.len() as f64 / began.elapsed().as_secs_f64();
        Ok((times, rate))
    }
}

impl Row {
    fn with(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Self {
        self.params.insert(name, value.into());
        self
    }

    fn against(&mut self, floor: &[f64]) -> &mut Self {
        let floor = percentile(floor, 50);
        (self.floor_p50, self.ratio) = (Some(floor), Some(round(self.p50 / floor)));
        self
    }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([(LABEL.to_owned(), "1".to_owned())])
}

/// The least that a command can be.
async fn ask(client: &Client, id: &str) -> Result<(), ramet_client::Error> {
    let argv = Some(vec!["/bin/true".to_owned()]);
    client.exec(id, &ExecRequest { argv, ..ExecRequest::default() }).await.map(drop)
}

async fn remove(
    client: &Client,
    sandboxes: impl Iterator<Item = &Sandbox>,
) -> Result<(), ramet_client::Error> {
    let removed = join_all(sandboxes.map(|sandbox| client.delete(&sandbox.id))).await;
    removed.into_iter().collect()
}

/// Removes what this run, or one that was broken off, has made.
async fn remove_all(client: &Client) -> Result<(), Failure> {
    let query = ListQuery { label: Some(LABEL.to_owned()), ..ListQuery::default() };
    let left = client.list_all(&query).await?;
    for some in left.chunks(CLIENTS) {
        remove(client, some.iter()).await?;
    }
    let query = CommitsQuery { label: Some(LABEL.to_owned()), ..CommitsQuery::default() };
    for commit in client.commits_all(&query).await? {
        client.delete_commit(&commit.id).await?;
    }
    Ok(())
}

fn table(rows: &[Row], paint: Paint) -> String {
    let mut table = Table::new(&["FIGURE", "CONDITIONS", "P50", "P95", "ENGINE", "RATIO"]);
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    for row in rows {
        let params: Vec<String> =
            row.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        table.row(vec![
            format!("{} [{}]", row.name, row.unit),
            params.join(" "),
            row.p50.to_string(),
            row.p95.to_string(),
            number(row.floor_p50),
            number(row.ratio),
        ]);
    }
    table.draw(paint)
}

/// The sample that so many percent are not above.
fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    round(sorted.get(rank - 1).copied().unwrap_or(f64::NAN))
}

/// Two decimals are more than the noise allows.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn millis(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_compared_with_the_engines_own() {
        let samples: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!((percentile(&samples, 50), percentile(&samples, 95)), (10.0, 19.0));
        let (name, params, unit) = ("fork_answered", BTreeMap::new(), "ms");
        let mut row = Row { name, params, unit, p50: 3.0, p95: 4.0, floor_p50: None, ratio: None };
        row.against(&[2.0]).with("n", 8);
        let drawn = table(&[row], Paint::plain());
        assert!(
            drawn.ends_with("fork_answered [ms]  n=8         3    4    2       1.5\n"),
            "{drawn}"
        );
    }
}
