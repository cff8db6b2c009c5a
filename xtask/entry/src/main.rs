//! `cargo xtask`: has the tasks built, says how long that took last time, and becomes them.
//!
//! It depends on nothing, so it is there within a second of an empty clone. The tasks themselves are the package `xtask`.
//! Whole-workspace selection (no `--package`) gives them the same features of what they depend on as everything else, so
//! that nothing is built twice.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// How long cargo may look around before something is said.
const SILENT: Duration = Duration::from_millis(800);
/// What it takes where nobody has built before.
const FIRST: &str = "about 40 s where nothing is built yet";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    match build(root, &target) {
        Ok(true) => become_them(&target.join("debug/xtask")),
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failure("cannot start cargo", &error),
    }
}

/// Whether the tasks are built.
fn build(root: &Path, target: &Path) -> std::io::Result<bool> {
    let note = target.join("xtask-built-in");
    let began = Instant::now();
    let last = fs::read_to_string(&note);
    let said = match &last {
        Ok(seconds) => format!("building the tasks, which took {seconds} s last time"),
        Err(_) => format!("building the tasks: {FIRST}"),
    };
    let (ended, ends) = mpsc::channel::<()>();
    // Where nothing is there it will take its time, so it says so at once.
    let silent = if last.is_ok() { SILENT } else { Duration::ZERO };
    let speaker = thread::spawn(move || {
        let late = ends.recv_timeout(silent) == Err(RecvTimeoutError::Timeout);
        if late {
            eprintln!("{said}");
        }
        late
    });
    let mut cargo = cargo();
    cargo.args(["build", "--bin", "xtask"]).current_dir(root);
    // In a log its last word would be in the way each time.
    if last.is_ok() && !std::io::stderr().is_terminal() {
        cargo.arg("--quiet");
    }
    let status = cargo.status();
    drop(ended);
    let late = speaker.join().unwrap_or(false);
    let built = status?.success();
    if built && late {
        // A note that is not there costs a word.
        let _ = fs::write(&note, format!("{:.0}", began.elapsed().as_secs_f64()));
    }
    Ok(built)
}

fn cargo() -> Command {
    clean(Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())))
}

fn become_them(program: &Path) -> ExitCode {
    let error = clean(Command::new(program)).args(env::args_os().skip(1)).exec();
    failure(&format!("cannot start {}", program.display()), &error)
}

/// Without what cargo says of this package: build scripts look at it, and a cargo that is called directly would then
/// build half of everything anew.
fn clean(mut command: Command) -> Command {
    let own = |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
        command.env_remove(name);
    }
    command
}

fn failure(what: &str, error: &std::io::Error) -> ExitCode {
    eprintln!("error: {what}: {error}");
    ExitCode::FAILURE
}
