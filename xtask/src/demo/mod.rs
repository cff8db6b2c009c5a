//! `cargo xtask demo`: the main job, from nothing to the winner of four attempts.
//!
//! Everything that is missing is installed and made first, and a node is started. What follows are commands that a
//! user can type: each is shown with what it does and how long it took. The node stays up afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::{guest, host, place, workspace};

/// Sandbox that the attempts are forked from.
const SOURCE: &str = "demo";
/// Where the session's program is in it.
const SESSION: &str = "/opt/session.py";
/// How long the session may take to listen.
const SESSION_TIME: Duration = Duration::from_secs(120);

/// What the attempts work on.
const DATA: &str = "
numpy.random.seed(7)
x = numpy.linspace(-3, 3, 400)
y = numpy.sin(2 * x) + 0.3 * x + numpy.random.normal(0, 0.2, x.size)
train, test = slice(0, None, 2), slice(1, None, 2)
print(f'{x.size} points in memory')
";

/// Degree of the polynomial that each attempt fits.
const ATTEMPTS: [u32; 4] = [1, 3, 7, 11];

/// What is said where nothing is there yet.
const FIRST: &str = "what is missing is made first: a few minutes of building, the only time";

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {}

/// Runs it.
pub fn run(_: &Arguments) -> Result<ExitCode> {
    let ramet = Ramet { program: prepare()? };
    eprintln!();
    ramet.show(&["up"])?;
    ramet.clear()?;
    tell(&ramet)?;
    let program = ramet.program.display();
    println!("\nThe node is up, and {SOURCE} goes on as the winner. Three commands to try:");
    println!("  {program} shell {SOURCE}");
    println!("  seq 4 | {program} each {SOURCE} -- 'echo attempt {{}} on $(hostname)'");
    println!("  {program} tree --watch");
    println!("`{program} down --all` ends everything.");
    Ok(ExitCode::SUCCESS)
}

/// Makes what is missing, both ways at once. The command line.
fn prepare() -> Result<PathBuf> {
    let (began, note) = (Instant::now(), workspace::root().join("target/demo-prepared-in"));
    let last = std::fs::read_to_string(&note);
    match &last {
        Ok(seconds) => eprintln!("what is missing is made first, which took {seconds} s last time"),
        Err(_) => eprintln!("{FIRST}"),
    }
    let programs = thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            guest::make(false)?;
            host::install_tools()
        });
        let programs = place::build_programs(place::For::FirstLook);
        fetching.join().map_err(|_| anyhow!("the set-up panicked"))??;
        programs
    })?;
    // Without a note the next one says again how long a first one takes.
    let _ = std::fs::write(&note, format!("{:.0}", began.elapsed().as_secs_f64()));
    Ok(programs.join("ramet"))
}

fn tell(ramet: &Ramet) -> Result<()> {
    said("a sandbox: a machine with its own kernel", || {
        ramet.show(&["new", SOURCE, "--label", "demo=1"])
    })?;
    said("a Python session with numpy runs in it", || start_session(ramet))?;
    let size = said("data is loaded into the session", || ramet.python(SOURCE, DATA))?;
    println!("{size}");
    let names = ATTEMPTS.map(|degree| format!("degree-{degree}"));
    let mut fork = vec!["--json", "fork", SOURCE];
    names.iter().for_each(|name| fork.extend(["--name", name]));
    let forked =
        said("the running sandbox becomes four more, from one instant", || ramet.json(&fork))?;
    println!("{}", birth(&forked));
    let scores =
        said("a different attempt runs in each, at the same time", || attempts(ramet, &names))?;
    let best = show(&scores);
    let other = if best == 0 { 1 } else { 0 };
    said("what two of them did differently", || {
        ramet.show(&["diff", &names[other], &names[best], "--patch"])
    })?;
    println!("{}", memory(ramet, &names[best])?);
    said("the winner is kept: the source goes on with its memory and files", || {
        ramet.show(&["promote", SOURCE, &names[best]])
    })?;
    let kept = said("its session still holds what the attempt found", || {
        ramet.python(SOURCE, "print('degree', len(fit) - 1, 'error', round(error, 4))")
    })?;
    println!("{kept}");
    said("who comes from whom", || ramet.show(&["tree"]))
}

/// Says what is done, does it, and says how long it took.
fn said<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n# {what}");
    let began = Instant::now();
    let result = work()?;
    println!("({:.0} ms)", began.elapsed().as_secs_f64() * 1000.0);
    Ok(result)
}

/// The command line, as a user has it.
struct Ramet {
    program: PathBuf,
}

impl Ramet {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        // The demo is about this machine's own node.
        command.env_remove("RAMET_URL").env_remove("RAMET_TOKEN");
        command
    }

    /// Shows the command and lets it print.
    fn show(&self, arguments: &[&str]) -> Result<()> {
        println!("$ ramet {}", arguments.join(" "));
        let status = self.command(arguments).status().context("cannot run ramet")?;
        if !status.success() {
            bail!("`ramet {}` failed", arguments.join(" "));
        }
        Ok(())
    }

    /// What it printed.
    fn output(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).stderr(Stdio::inherit()).output();
        let output = output.context("cannot run ramet")?;
        if !output.status.success() {
            bail!("`ramet {}` failed", arguments.first().unwrap_or(&""));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        println!("$ ramet {}", arguments[1..].join(" "));
        Ok(serde_json::from_str(&self.output(arguments)?)?)
    }

    /// Has the session in a sandbox run some code.
    fn python(&self, sandbox: &str, code: &str) -> Result<String> {
        self.output(&["exec", sandbox, "--", "python3", SESSION, code])
    }

    /// Removes what an earlier demo has left.
    fn clear(&self) -> Result<()> {
        let left = self.output(&["ls", "-q", "--label", "demo"])?;
        if left.is_empty() {
            return Ok(());
        }
        let mut line = vec!["rm"];
        line.extend(left.lines());
        self.output(&line).map(drop)
    }
}

fn start_session(ramet: &Ramet) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo/session.py");
    let file = file.to_str().context("a path is no UTF-8")?;
    ramet.output(&["cp", file, &format!("{SOURCE}:{SESSION}")])?;
    println!("$ ramet exec --detach {SOURCE} -- python3 {SESSION} serve");
    ramet.output(&["exec", "--detach", SOURCE, "--", "python3", SESSION, "serve"])?;
    let end = Instant::now() + SESSION_TIME;
    let listens = ["exec", SOURCE, "--", "test", "-S", "/run/demo.sock"];
    while !ramet.command(&listens).status()?.success() {
        if Instant::now() > end {
            bail!("the Python session does not listen");
        }
    }
    Ok(())
}

/// What the fork cost.
fn birth(forked: &Value) -> String {
    let millis = |value: &Value| value.as_f64().unwrap_or(f64::NAN) / 1000.0;
    let children = forked["children"].as_array().map_or(&[][..], Vec::as_slice);
    let ready: Vec<String> =
        children.iter().map(|child| format!("{:.0}", millis(&child["ready_us"]))).collect();
    let pause = millis(&forked["pause_us"]);
    format!(
        "the source stood still for {pause:.1} ms; children ready after {} ms",
        ready.join(", ")
    )
}

/// One thread for each child.
fn attempts(ramet: &Ramet, names: &[String]) -> Result<Vec<(String, f64)>> {
    println!("$ ramet exec degree-N -- python3 {SESSION} 'fit = numpy.polyfit(...)'");
    thread::scope(|scope| {
        let threads: Vec<_> = ATTEMPTS
            .into_iter()
            .zip(names)
            .map(|(degree, name)| scope.spawn(move || attempt(ramet, name, degree)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("an attempt panicked"))?)
            .collect()
    })
}

fn attempt(ramet: &Ramet, name: &str, degree: u32) -> Result<(String, f64)> {
    let code = format!(
        "fit = numpy.polyfit(x[train], y[train], {degree})\n\
         error = numpy.mean((numpy.polyval(fit, x[test]) - y[test]) ** 2)\n\
         open('/root/report.txt', 'w').write(f'degree {degree}\\nerror {{error:.4f}}\\n')\n\
         print(error)"
    );
    let answer = ramet.python(name, &code)?;
    let error = answer.parse().with_context(|| format!("{name} says {answer:?}"))?;
    Ok((name.to_owned(), error))
}

/// Prints the scores. The best one.
fn show(scores: &[(String, f64)]) -> usize {
    let best = (0..scores.len()).min_by(|a, b| scores[*a].1.total_cmp(&scores[*b].1)).unwrap_or(0);
    for (index, (name, error)) in scores.iter().enumerate() {
        let mark = if index == best { "  <- the winner" } else { "" };
        println!("{name:<12} error {error:.4}{mark}");
    }
    best
}

/// What a child has of its own, and what it shares.
fn memory(ramet: &Ramet, name: &str) -> Result<String> {
    let rows: Value = serde_json::from_str(&ramet.output(&["--json", "top"])?)?;
    let rows = rows.as_array().map_or(&[][..], Vec::as_slice);
    let row = rows.iter().find(|row| row["sandbox"]["name"] == name);
    let stats = &row.with_context(|| format!("ramet top does not know {name}"))?["stats"];
    let mib = |field: &str| stats[field].as_f64().unwrap_or(f64::NAN) / 1024.0;
    let shared = mib("ram_present_kib") - mib("ram_private_kib");
    Ok(format!(
        "{name} has {:.1} MiB of memory of its own, and shares {shared:.1} MiB",
        mib("private_kib")
    ))
}
