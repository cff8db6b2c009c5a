//! `cargo xtask bench linux`: real guests, in the host mode at hand.
//!
//! METHOD.md in this folder says what each row is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use ramet_engine::monitor::{Machine, Monitor, Offspring};
use ramet_proto::control::{Child, Restore, Start};
use ramet_tests::linux;

use super::report::{Report, Row, percentile};
use crate::guest;
use crate::place::{self, Job, Place};

const BOOT_TIME: Duration = Duration::from_secs(180);
const MEMORY_MIB: u32 = 512;
/// Children of one call.
const BROODS: [usize; 3] = [1, 4, 16];

/// Arguments of `cargo xtask bench linux`.
#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Few samples of everything
    #[arg(long)]
    quick: bool,
    /// Measure here, in this mode
    #[arg(long, hide = true)]
    inside: Option<String>,
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(mode) = &arguments.inside {
        return measure(arguments, if mode == "hardware" { "hardware" } else { "software" });
    }
    guest::make(false)?;
    let monitor = place::build_monitor(place::For::Users)?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let place = Place::find(&monitor)?;
    let mut line: Vec<String> =
        ["bench", "linux", "--inside", place.name()].map(str::to_owned).to_vec();
    if arguments.quick {
        line.push("--quick".into());
    }
    let json = arguments.json.as_deref();
    place.run(&Job { program: &own, monitor: &monitor, tools: &[], arguments: &line, json })
}

fn measure(arguments: &Arguments, mode: &'static str) -> Result<ExitCode> {
    let directory = tempfile::Builder::new().prefix("bench").tempdir()?;
    let mut bench = Bench {
        monitor: Monitor::find(directory.path())?,
        directory: directory.path().to_owned(),
        report: Report::new(mode),
        samples: if arguments.quick { 3 } else { 11 },
    };
    let machine = bench.boots()?;
    bench.forks(&machine, false)?;
    linux::start_session(&machine.agent())?;
    bench.forks(&machine, true)?;
    bench.memory(&machine)?;
    bench.files(&machine)?;
    machine.kill()?;
    println!("{}", bench.report.table());
    if let Some(path) = &arguments.json {
        bench.report.write(path)?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    monitor: Monitor,
    directory: PathBuf,
    report: Report,
    samples: usize,
}

impl Bench {
    /// Boots a few machines. The last one is kept.
    fn boots(&mut self) -> Result<Machine> {
        let (mut samples, mut kept) = (Vec::new(), None);
        for _ in 0..self.samples.min(3) {
            let began = Instant::now();
            let machine = self.monitor.start()?;
            let identity = linux::identity("source");
            machine.boot(linux::boot(1, MEMORY_MIB, &self.directory, identity)?)?;
            linux::await_ready(&machine, BOOT_TIME)?;
            samples.push(millis(began));
            kept = Some(machine);
        }
        self.report.rows.push(Row::new("boot", "ms", &samples).with("ram_mib", MEMORY_MIB));
        kept.context("a machine was booted")
    }

    /// Forks, with the first command answered in every child. The floor is a command in the source.
    fn forks(&mut self, machine: &Machine, python: bool) -> Result<()> {
        for count in BROODS {
            let (mut pauses, mut ready, mut answered) = (Vec::new(), Vec::new(), Vec::new());
            let mut commands = Vec::new();
            for _ in 0..self.samples {
                let began = Instant::now();
                ask(machine, python)?;
                commands.push(millis(began));
                let began = Instant::now();
                let offspring = machine.fork(children(count))?;
                pauses.push(offspring.pause_us as f64 / 1000.0);
                ready.push(last_ready(&offspring)?);
                let machines = offspring.all()?;
                ask_all(&machines, python)?;
                answered.push(millis(began));
                Machine::kill_all(machines)?;
            }
            let floor = percentile(&commands, 50);
            let row = |name, samples: &[f64]| {
                Row::new(name, "ms", samples).with("n", count).with("python", python)
            };
            self.report.rows.push(row("pause", &pauses));
            self.report.rows.push(row("all_ready", &ready));
            self.report.rows.push(row("all_answered", &answered).against(floor * count as f64));
        }
        Ok(())
    }

    /// What an idle child costs.
    fn memory(&mut self, machine: &Machine) -> Result<()> {
        let machines = machine.fork(children(8))?.all()?;
        let (mut private, mut pss) = (Vec::new(), Vec::new());
        for machine in &machines {
            let stats = machine.stats()?;
            private.push((stats.private_kib + stats.page_tables_kib) as f64);
            pss.push(stats.pss_kib as f64);
        }
        let row = |name, samples: &[f64]| {
            Row::new(name, "KiB", samples).with("n", 8).with("python", true)
        };
        self.report.rows.push(row("memory_private", &private));
        self.report.rows.push(row("memory_pss", &pss));
        Ok(Machine::kill_all(machines)?)
    }

    /// Saves the machine, and restores it to the first command answered.
    fn files(&mut self, machine: &Machine) -> Result<()> {
        let (mut saves, mut pauses, mut restores) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..self.samples.min(3) {
            let target = self.directory.join(format!("saved-{number}"));
            let began = Instant::now();
            let saved = machine.save(&target, true)?;
            saves.push(millis(began));
            pauses.push(saved.pause_us as f64 / 1000.0);
            let began = Instant::now();
            let restored = self.restore(&target)?;
            ask(&restored, true)?;
            restores.push(millis(began));
            restored.kill()?;
            std::fs::remove_dir_all(&target)?;
        }
        self.report.rows.push(Row::new("save_pause", "ms", &pauses));
        self.report.rows.push(Row::new("save", "ms", &saves));
        self.report.rows.push(Row::new("restore_answered", "ms", &restores));
        Ok(())
    }

    fn restore(&self, directory: &Path) -> Result<Machine> {
        let machine = self.monitor.start()?;
        machine.restore(Restore {
            directory: directory.to_string_lossy().into_owned(),
            start: Start::Run,
            identity: Some(linux::identity("restored")),
            layers: Some(self.directory.to_string_lossy().into_owned()),
            bases: Vec::new(),
            volumes: Vec::new(),
            verify: false,
            pager: None,
        })?;
        linux::await_ready(&machine, BOOT_TIME)?;
        Ok(machine)
    }
}

fn children(count: usize) -> Vec<Child> {
    let identity = || Some(linux::identity("child"));
    (0..count).map(|_| Child { identity: identity() }).collect()
}

/// When the last child was ready, counted from the source's stop.
fn last_ready(offspring: &Offspring) -> Result<f64> {
    let times = offspring.children.iter().map(|child| match child {
        Ok(child) => Ok(child.ready_us),
        Err(failure) => Err(anyhow::anyhow!("{}", failure.message)),
    });
    let times: Vec<u64> = times.collect::<Result<_>>()?;
    Ok(times.into_iter().max().unwrap_or(0) as f64 / 1000.0)
}

/// One command: a process, or a line of Python in the session.
fn ask(machine: &Machine, python: bool) -> Result<()> {
    if python {
        linux::python(&machine.agent(), "print(numpy.arange(10).sum())")?;
    } else {
        let argv = vec!["/bin/true".to_owned()];
        machine.agent().run(&ramet_proto::agent::Exec { argv, ..Default::default() })?;
    }
    Ok(())
}

fn ask_all(machines: &[Machine], python: bool) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            machines.iter().map(|machine| scope.spawn(move || ask(machine, python))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}

fn millis(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}
