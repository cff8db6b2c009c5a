//! `cargo xtask demo`: the main job, from nothing to the winner of four attempts.
//!
//! Everything that is missing is installed and made first. Then one machine is booted, data is loaded into a Python
//! session in it, the running machine is forked into four, a different attempt runs in each at the same
//! time, and the best one is kept. Where KVM does not run guest kernels all of it happens in the software host.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ramet_engine::monitor::{Machine, Monitor, Newborn};
use ramet_proto::control::Child;
use ramet_tests::linux;

use crate::place::{self, Job, Place};

const BOOT_TIME: Duration = Duration::from_secs(180);

/// What the attempts work on.
const DATA: &str = "
numpy.random.seed(7)
x = numpy.linspace(-3, 3, 400)
y = numpy.sin(2 * x) + 0.3 * x + numpy.random.normal(0, 0.2, x.size)
train, test = slice(0, None, 2), slice(1, None, 2)
print(f'{x.size} points, {x.nbytes + y.nbytes} bytes')
";

/// Degree of the polynomial that each attempt fits.
const ATTEMPTS: [u32; 4] = [1, 3, 7, 11];

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run the story itself, here
    #[arg(long, hide = true)]
    inside: bool,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.inside {
        tell()?;
        return Ok(ExitCode::SUCCESS);
    }
    let monitor = place::prepare()?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let place = Place::find(&monitor)?;
    println!("host mode: {}", place.name());
    let arguments = &["demo".into(), "--inside".into()];
    let job = Job { program: &own, monitor: &monitor, tools: &[], arguments, json: None };
    let code = place.run(&job)?;
    if code == ExitCode::SUCCESS {
        println!("\nTry next:");
        println!("  cargo xtask bench linux     how long each of these takes, over and over");
        println!("  cargo xtask bench engine    the fork itself, against what the kernel needs");
        println!("  cargo xtask test            all tests");
    }
    Ok(code)
}

/// Says what was done, and how long it took.
fn said<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let result = work()?;
    println!("{:>9.1} ms  {what}", began.elapsed().as_secs_f64() * 1000.0);
    Ok(result)
}

fn tell() -> Result<()> {
    let run = tempfile::tempdir()?;
    let monitors = Monitor::find(run.path())?;
    let machine = said("a Linux machine is up: 1 vCPU, 512 MiB", || {
        let machine = monitors.start()?;
        machine.boot(linux::boot(1, 512, run.path(), linux::identity("source"))?)?;
        linux::await_ready(&machine, BOOT_TIME)?;
        Ok(machine)
    })?;
    said("a Python session with numpy runs in it", || Ok(linux::start_session(&machine.agent())?))?;
    let size = said("data is loaded into it", || Ok(linux::python(&machine.agent(), DATA)?))?;
    println!("{:14}({size})", "");
    let children = said("the running machine is forked into 4", || fork(&machine))?;
    let scores =
        said("a different attempt runs in each, at the same time", || attempts(&children))?;
    let best = show(&scores);
    let memory = children[0].machine.stats()?;
    println!(
        "{:14}a child has {} KiB of its own, and shares {} KiB",
        "",
        memory.private_kib + memory.page_tables_kib,
        memory.ram_present_kib.saturating_sub(memory.ram_private_kib)
    );
    keep(children, best)
}

fn fork(machine: &Machine) -> Result<Vec<Newborn>> {
    let names = ATTEMPTS.map(|degree| format!("degree-{degree}"));
    let children = names.map(|name| Child { identity: Some(linux::identity(&name)) });
    let offspring = machine.fork(children.to_vec())?;
    let newborn: Result<Vec<_>, _> = offspring.children.into_iter().collect();
    let newborn = newborn.map_err(|failure| anyhow::anyhow!("{}", failure.message))?;
    let ready: Vec<String> =
        newborn.iter().map(|child| format!("{:.1}", child.ready_us as f64 / 1000.0)).collect();
    println!(
        "{:14}the source lost {:.1} ms; the children were ready after {} ms",
        "",
        offspring.pause_us as f64 / 1000.0,
        ready.join(", ")
    );
    Ok(newborn)
}

/// One thread for each child.
fn attempts(children: &[Newborn]) -> Result<Vec<(String, f64)>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ATTEMPTS
            .into_iter()
            .zip(children)
            .map(|(degree, child)| scope.spawn(move || attempt(&child.machine, degree)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("an attempt panicked"))?)
            .collect()
    })
}

fn attempt(machine: &Machine, degree: u32) -> Result<(String, f64)> {
    let code = format!(
        "fit = numpy.polyfit(x[train], y[train], {degree})\n\
         error = numpy.mean((numpy.polyval(fit, x[test]) - y[test]) ** 2)\n\
         print(os.uname().nodename, error)"
    );
    let answer = linux::python(&machine.agent(), &code)?;
    let (name, error) = answer.split_once(' ').context("an attempt says its name and its error")?;
    Ok((name.to_owned(), error.parse()?))
}

/// Prints the scores. The best one.
fn show(scores: &[(String, f64)]) -> usize {
    let best = (0..scores.len()).min_by(|a, b| scores[*a].1.total_cmp(&scores[*b].1)).unwrap_or(0);
    for (index, (name, error)) in scores.iter().enumerate() {
        let mark = if index == best { "  <- the winner" } else { "" };
        println!("{:14}{name:<12} error {error:.4}{mark}", "");
    }
    best
}

/// The winner goes on; the others are gone.
fn keep(children: Vec<Newborn>, best: usize) -> Result<()> {
    let mut winner = None;
    let mut losers = Vec::new();
    for (index, child) in children.into_iter().enumerate() {
        if index == best {
            winner = Some(child.machine);
        } else {
            losers.push(child.machine);
        }
    }
    let winner = winner.context("there is a winner")?;
    said("the others are gone", || Ok(Machine::kill_all(losers)?))?;
    let kept = said("the winner goes on with all it had", || {
        Ok(linux::python(&winner.agent(), "print(len(fit) - 1, x.size)")?)
    })?;
    println!("{:14}(degree and points: {kept})", "");
    Ok(winner.kill()?)
}
