//! `cargo xtask bench engine`: the engine alone, natively, with nano guests.
//!
//! METHOD.md in this folder says what each row is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ramet_engine::monitor::{Machine, Monitor};
use ramet_tests::bare;
use ramet_tests::nano::{self, Mailbox};

use super::floor::{Floor, Floors};
use super::quiet;
use super::report::{Goal, Report, Row, percentile};
use super::source::{self, Clock, Times};
use crate::place;

/// Arguments of `cargo xtask bench engine`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few samples of everything
    #[arg(long)]
    quick: bool,
}

/// Memory of the machine that is forked into many, rewritten and chained.
const RAM_MIB: u32 = 512;
/// Generations of the chain.
const CHAIN: usize = 50;
/// Time for the kernel to take a closed machine apart.
const SETTLE: Duration = Duration::from_millis(20);
/// Children whose memory is looked at.
const IDLE: u32 = 16;

/// What every part of the run needs.
struct Bench {
    monitor: Monitor,
    directory: tempfile::TempDir,
    report: Report,
    samples: usize,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    bare::probe().context("KVM runs no guest here, so there is nothing to measure")?;
    let directory = tempfile::Builder::new().prefix("bench").tempdir()?;
    let monitor = Monitor::new(place::build_monitor(place::For::Users)?, directory.path());
    let samples = if arguments.quick { 7 } else { 25 };
    let mut bench = Bench { monitor, directory, report: Report::new("native"), samples };
    for ram_mib in [128, RAM_MIB, 2048] {
        for huge_pages in [true, false] {
            bench.one_child(ram_mib, huge_pages)?;
        }
    }
    bench.many_children()?;
    bench.second_generation()?;
    bench.chain()?;
    bench.memory()?;
    println!("{}", bench.report.table());
    if let Some(path) = &arguments.json {
        bench.report.write(path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what is going on; the figures come at the end.
fn progress(text: &str) {
    eprintln!("bench: {text}");
}

/// The samples of one set-up.
#[derive(Default)]
struct Samples {
    pause: Vec<f64>,
    first: Vec<f64>,
    fork: Vec<f64>,
    kvm: Vec<f64>,
}

impl Samples {
    fn add(&mut self, times: Times) {
        self.pause.push(times.pause);
        self.first.push(times.first);
    }

    fn fork_p50(&self) -> f64 {
        percentile(&self.fork, 50)
    }

    fn start_p50(&self) -> f64 {
        self.fork_p50() + percentile(&self.kvm, 50)
    }

    /// Takes a sample of each floor. The kernel takes machines apart when they are closed and goes on
    /// with it for a while; nothing is timed before that is over.
    fn add_floors(&mut self, floors: &mut Floors, fork: Floor) -> Result<()> {
        thread::sleep(SETTLE);
        self.fork.push(floors.sample(fork)?);
        self.kvm.push(floors.sample(Floor::Kvm)?);
        thread::sleep(SETTLE);
        Ok(())
    }
}

impl Bench {
    fn boot(&self, ram_mib: u32, huge_pages: bool) -> Result<(Machine, Clock)> {
        let machine = source::boot(&self.monitor, self.directory.path(), ram_mib, huge_pages)?;
        let clock = Clock::of(&machine)?;
        Ok((machine, clock))
    }

    /// Adds a row about forks of a machine with so much memory.
    fn row(&mut self, row: Row, ram_mib: u32, huge_pages: bool, count: usize) {
        self.report
            .rows
            .push(row.with("ram_mib", ram_mib).with("thp", huge_pages).with("n", count));
    }

    /// A running machine, all of whose memory is written between two forks.
    fn one_child(&mut self, ram_mib: u32, huge_pages: bool) -> Result<()> {
        progress(&format!("{ram_mib} MiB, huge pages {huge_pages}, 1 child"));
        let (machine, clock) = self.boot(ram_mib, huge_pages)?;
        let mut floors = Floors::start(ram_mib, huge_pages)?;
        let (mut samples, mut file) = (Samples::default(), Vec::new());
        for round in 0..self.samples {
            source::touch(&machine, nano::FREE, (u64::from(ram_mib) << 20) - nano::FREE)?;
            machine.pause()?;
            if huge_pages && round % 5 == 0 {
                file.push(floors.sample(Floor::File)?);
            }
            samples.add_floors(&mut floors, Floor::Fork)?;
            machine.resume()?;
            let (child, times) = source::fork_timed(&machine, clock)?;
            child.kill()?;
            samples.add(times);
        }
        let pause_p50 = percentile(&samples.pause, 50);
        let target = huge_pages && ram_mib >= RAM_MIB;
        let goal = |row: Row| {
            if target { row.goal(Goal::RatioAtMost(2.0)) } else { row }
        };
        let pause = Row::new("pause", "us", &samples.pause).against(samples.fork_p50());
        self.row(goal(pause), ram_mib, huge_pages, 1);
        let first = Row::new("first_instruction", "us", &samples.first);
        self.row(goal(first.against(samples.start_p50())), ram_mib, huge_pages, 1);
        self.row(Row::new("bare_fork", "us", &samples.fork), ram_mib, huge_pages, 1);
        self.row(Row::new("bare_kvm", "us", &samples.kvm), ram_mib, huge_pages, 1);
        if !file.is_empty() {
            let peers = Row::new("write_ram_and_map", "us", &file).against(pause_p50);
            let row = if ram_mib == 2048 { peers.goal(Goal::RatioAtLeast(50.0)) } else { peers };
            self.row(row, ram_mib, huge_pages, 1);
        }
        Ok(())
    }

    /// One call for many children.
    fn many_children(&mut self) -> Result<()> {
        let (machine, clock) = self.boot(RAM_MIB, true)?;
        machine.pause()?;
        let mut floors = Floors::start(RAM_MIB, true)?;
        let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
        for count in [8, 32, 100] {
            progress(&format!("{RAM_MIB} MiB, {count} children"));
            let mut samples = Samples::default();
            for _ in 0..self.samples.min(15) {
                samples.add_floors(&mut floors, Floor::Fork)?;
                samples.add(quiet::fork_timed(&machine, count, clock)?);
            }
            let pause = Row::new("pause", "us", &samples.pause).against(samples.fork_p50());
            self.row(pause, RAM_MIB, true, count);
            let times = count as f64;
            let floor = times * samples.fork_p50() + times * percentile(&samples.kvm, 50) / cores;
            let all = Row::new("all_children", "us", &samples.first).against(floor);
            let row = if count == 100 { all.goal(Goal::RatioAtMost(2.5)) } else { all };
            self.row(row, RAM_MIB, true, count);
        }
        Ok(())
    }

    /// Forks of a child that has rewritten a part of what it inherited.
    fn second_generation(&mut self) -> Result<()> {
        let (machine, clock) = self.boot(RAM_MIB, true)?;
        machine.pause()?;
        let mut floors = Floors::start(RAM_MIB, true)?;
        for rewritten_mib in [16, 64, 256_u32] {
            progress(&format!("{RAM_MIB} MiB, second generation, {rewritten_mib} MiB rewritten"));
            let child = machine.fork_plain(1)?.all()?.pop().context("no child")?;
            let mut samples = Samples::default();
            for _ in 0..self.samples {
                source::touch(&child, nano::FREE, u64::from(rewritten_mib) << 20)?;
                child.pause()?;
                samples.add_floors(&mut floors, Floor::Rewritten(rewritten_mib))?;
                child.resume()?;
                let (grandchild, times) = source::fork_timed(&child, clock)?;
                grandchild.kill()?;
                samples.add(times);
            }
            let rewritten = |row: Row| row.with("rewritten_mib", rewritten_mib);
            let pause = Row::new("pause", "us", &samples.pause).against(samples.fork_p50());
            self.row(rewritten(pause), RAM_MIB, true, 1);
            let first = Row::new("first_instruction", "us", &samples.first);
            self.row(rewritten(first.against(samples.start_p50())), RAM_MIB, true, 1);
        }
        Ok(())
    }

    /// Each generation is forked once; the one before it ends.
    fn chain(&mut self) -> Result<()> {
        progress(&format!("{RAM_MIB} MiB, {CHAIN} generations"));
        let (mut machine, clock) = self.boot(RAM_MIB, true)?;
        let (mut early, mut late) = (Samples::default(), Samples::default());
        for generation in 0..CHAIN {
            let (child, times) = source::fork_timed(&machine, clock)?;
            std::mem::replace(&mut machine, child).kill()?;
            thread::sleep(SETTLE);
            match generation {
                0..10 => early.add(times),
                generation if generation >= CHAIN - 10 => late.add(times),
                _ => {}
            }
        }
        let flat = |name, early: &[f64], late: &[f64]| {
            let row = Row::new(name, "us", late).against(percentile(early, 50));
            row.with("generations", CHAIN).goal(Goal::RatioAtMost(2.0))
        };
        let pause = flat("chain_pause", &early.pause, &late.pause);
        let first = flat("chain_first_instruction", &early.first, &late.first);
        self.row(pause, RAM_MIB, true, 1);
        self.row(first, RAM_MIB, true, 1);
        Ok(())
    }

    /// What a child costs that does nothing.
    fn memory(&mut self) -> Result<()> {
        progress(&format!("{RAM_MIB} MiB, memory of {IDLE} idle children"));
        let (machine, _) = self.boot(RAM_MIB, true)?;
        Mailbox::of(&machine).hold()?;
        machine.pause()?;
        // The kernel's caches are warm once as many children have been there before.
        Machine::kill_all(machine.fork_plain(IDLE as usize)?.all()?)?;
        let slab_before = slab_kib()?;
        let children = machine.fork_plain(IDLE as usize)?.all()?;
        thread::sleep(Duration::from_millis(500));
        let slab = (slab_kib()? - slab_before) / f64::from(IDLE);
        let mut columns: [Vec<f64>; 5] = Default::default();
        for child in &children {
            let stats = child.stats()?;
            let (private, tables) = (stats.private_kib as f64, stats.page_tables_kib as f64);
            let values = [stats.pss_kib as f64, private, tables, slab, private + tables + slab];
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
        let names = [
            "memory_pss",
            "memory_private",
            "memory_page_tables",
            "memory_slab",
            "memory_per_child",
        ];
        for (name, column) in names.into_iter().zip(&columns) {
            let row = Row::new(name, "KiB", column);
            let total = name == "memory_per_child";
            let row = if total { row.goal(Goal::AtMost(2048.0)) } else { row };
            self.row(row, RAM_MIB, true, IDLE as usize);
        }
        Ok(())
    }
}

/// Memory of the kernel's own objects.
fn slab_kib() -> Result<f64> {
    let path = Path::new("/proc/meminfo");
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).context("no slab")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
