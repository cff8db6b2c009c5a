//! How fast states go into a store, against `cp` and a sync of the same bytes.
//!
//! `cargo run --release -p ramet-store --example throughput -- [--mib 512] [--rounds 3] [--directory DIR] [--json]`
//!
//! Prints a table, and with `--json` one line of JSON instead.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ramet_store::{Config, Destination, Hot, NewRoot, RootMode, StateId, Store, Tenant, Trust};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const MIB: usize = 1 << 20;
/// What a commit changes.
const CHANGED_MIB: usize = 16;

struct Options {
    mib: usize,
    rounds: usize,
    directory: PathBuf,
    json: bool,
}

fn options() -> Outcome<Options> {
    let mut options = Options { mib: 512, rounds: 3, directory: std::env::temp_dir(), json: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--mib" => options.mib = value()?.parse()?,
            "--rounds" => options.rounds = value()?.parse()?,
            "--directory" => options.directory = value()?.into(),
            "--json" => options.json = true,
            other => return Err(format!("{other} is not known").into()),
        }
    }
    Ok(options)
}

/// Bytes that do not compress, or to about a third.
fn fill(path: &Path, mib: usize, compressible: bool, seed: u64) -> Outcome<()> {
    let mut file = File::create(path)?;
    let mut stream = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut block = vec![0; MIB];
    for _ in 0..mib {
        stream.fill(&mut block);
        if compressible {
            for part in block.chunks_mut(96) {
                let keep = part.len().saturating_sub(64);
                part[keep..].fill(b'a');
            }
        }
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// Seconds of `cp` and a sync of the copy.
fn copy(source: &Path, target: &Path) -> Outcome<f64> {
    settle();
    let began = Instant::now();
    let status =
        std::process::Command::new("cp").arg("--reflink=never").arg(source).arg(target).status()?;
    if !status.success() {
        return Err("cp failed".into());
    }
    File::open(target)?.sync_all()?;
    let seconds = began.elapsed().as_secs_f64();
    std::fs::remove_file(target)?;
    Ok(seconds)
}

/// What others wrote is on the disk before a clock starts.
fn settle() {
    // Without it the figures are only noisier.
    let _done = std::process::Command::new("sync").status();
}

/// Seconds of processor time of this process: its own, and the kernel's for it.
fn cpu() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: Vec<f64> = after.split_whitespace().skip(11).take(2).flat_map(str::parse).collect();
    match ticks[..] {
        [user, system] => (user / 100.0, system / 100.0),
        _ => (f64::NAN, f64::NAN),
    }
}

struct Put {
    seconds: f64,
    user: f64,
    system: f64,
    written: u64,
    state: StateId,
}

async fn put(store: &Store, source: &Path, parent: Option<StateId>, name: &str) -> Outcome<Put> {
    settle();
    let tenant = Tenant::new("bench")?;
    let before = cpu();
    let began = Instant::now();
    let draft = store.put_state(&tenant, source, parent, Hot::new()).await?;
    let written = draft.cost.written_bytes;
    let root = store.publish(draft, NewRoot::new("bench", name, Value::Null)).await?;
    let (seconds, after) = (began.elapsed().as_secs_f64(), cpu());
    let (user, system) = (after.0 - before.0, after.1 - before.1);
    Ok(Put { seconds, user, system, written, state: root.state })
}

/// Changes pages here and there, 16 MiB in all.
fn change(path: &Path, mib: usize, seed: u64) -> Outcome<()> {
    let file = File::options().write(true).open(path)?;
    let mut stream = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut run = vec![0; 16 << 10];
    let runs = CHANGED_MIB * MIB / run.len();
    let step = (mib * MIB / runs / 4096).max(1) * 4096;
    for number in 0..runs {
        stream.fill(&mut run);
        file.write_all_at(&run, (number * step) as u64)?;
    }
    Ok(file.sync_all()?)
}

/// Bytes and seconds of a push of a child to a store that has its parent.
async fn push(
    store: &Store,
    place: &Path,
    first: &Put,
    child: &Put,
    round: usize,
) -> Outcome<(u64, f64)> {
    let tenant = Tenant::new("bench")?;
    let far = Store::open(Config::local(place.join("far"), place.join("far-scratch"))).await?;
    let to = |base| Destination {
        store: &far,
        tenant: &tenant,
        base,
        mode: RootMode::Create,
        meter: None,
    };
    let parent = store.root(&tenant, "bench", &format!("first-{round}")).await?;
    store.copy_state(&tenant, &parent, to(None), Trust::default()).await?;
    let root = store.root(&tenant, "bench", "child").await?;
    if (parent.state, root.state) != (first.state, child.state) {
        return Err("the roots are of other states".into());
    }
    settle();
    let began = Instant::now();
    let copied = store.copy_state(&tenant, &root, to(Some(first.state)), Trust::default()).await?;
    Ok((copied.sent_bytes, began.elapsed().as_secs_f64()))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn measure(options: &Options, compressible: bool) -> Outcome<Value> {
    let place = options.directory.join(format!("ramet-throughput-{}", std::process::id()));
    let (mut copies, mut puts) = (Vec::new(), Vec::new());
    let (mut written, mut used, mut commit) = (0, Value::Null, Value::Null);
    for round in 0..options.rounds {
        std::fs::create_dir_all(place.join("source"))?;
        let source = place.join("source/memory");
        fill(&source, options.mib, compressible, round as u64)?;
        copies.push(copy(&source, &place.join("copy"))?);
        let store = Store::open(Config::local(place.join("store"), place.join("scratch"))).await?;
        let first = put(&store, &place.join("source"), None, &format!("first-{round}")).await?;
        puts.push(first.seconds);
        // Before and after: memory that was just freed is faster to write to.
        copies.push(copy(&source, &place.join("copy"))?);
        written = first.written;
        used = json!({ "user_seconds": first.user, "system_seconds": first.system });
        if round + 1 == options.rounds {
            change(&source, options.mib, 77)?;
            let child = put(&store, &place.join("source"), Some(first.state), "child").await?;
            let changed = (CHANGED_MIB * MIB) as f64;
            commit = json!({
                "changed_bytes": CHANGED_MIB * MIB,
                "written_bytes": child.written,
                "ratio": child.written as f64 / changed,
                "seconds": child.seconds,
            });
            let (sent, seconds) = push(&store, &place, &first, &child, round).await?;
            commit["pushed_bytes"] = json!(sent);
            commit["push_seconds"] = json!(seconds);
            let back = place.join("back");
            std::fs::create_dir(&back)?;
            let began = Instant::now();
            store.fetch_state(&Tenant::new("bench")?, child.state, &back, |_| ()).await?;
            commit["fetch_mib_per_second"] =
                json!(options.mib as f64 / began.elapsed().as_secs_f64());
        }
        std::fs::remove_dir_all(place.join("source"))?;
    }
    std::fs::remove_dir_all(&place)?;
    let (copied, put) = (middle(copies), middle(puts));
    let rate = |seconds: f64| options.mib as f64 / seconds;
    Ok(json!({
        "content": if compressible { "compressible" } else { "incompressible" },
        "mib": options.mib,
        "cp_mib_per_second": rate(copied),
        "put_mib_per_second": rate(put),
        "put_of_cp": copied / put,
        "put_cpu": used,
        "stored_of_source": written as f64 / (options.mib * MIB) as f64,
        "commit": commit,
    }))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let options = options()?;
    let mut results = Vec::new();
    for compressible in [false, true] {
        results.push(measure(&options, compressible).await?);
    }
    if options.json {
        println!("{}", json!({ "throughput": results }));
        return Ok(());
    }
    println!(
        "{:<15} {:>9} {:>9} {:>7} {:>11} {:>7} {:>14} {:>8} {:>10}",
        "content",
        "cp MiB/s",
        "put MiB/s",
        "put/cp",
        "cpu seconds",
        "stored",
        "commit 16 MiB",
        "seconds",
        "fetch MiB/s"
    );
    for result in &results {
        let number = |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        println!(
            "{:<15} {:>9.0} {:>9.0} {:>7.2} {:>5.2}+{:<5.2} {:>7.2} {:>14.2} {:>8.3} {:>10.0}",
            result["content"].as_str().unwrap_or(""),
            number("/cp_mib_per_second"),
            number("/put_mib_per_second"),
            number("/put_of_cp"),
            number("/put_cpu/user_seconds"),
            number("/put_cpu/system_seconds"),
            number("/stored_of_source"),
            number("/commit/ratio"),
            number("/commit/seconds"),
            number("/commit/fetch_mib_per_second")
        );
    }
    Ok(())
}
