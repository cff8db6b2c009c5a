//! A test program whose tests share machines: its trials, a watchdog, and whether guests can run here.
//!
//! There are no assertions about time; a test that hangs is ended, with its name, by the watchdog. When all tests
//! are done, nothing may be left of what they made.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::linux;
use crate::patience::stretched;

/// No test takes this long, even in an emulated host.
const TEST_MAX: Duration = Duration::from_secs(300);

/// Tests that run, since when, and how long they may.
static RUNNING: Mutex<BTreeMap<&str, (Instant, Duration)>> = Mutex::new(BTreeMap::new());

/// A test program.
pub struct Suite {
    /// How it is run where guests cannot run.
    pub command: &'static str,
    /// Its tests.
    pub tests: Vec<Trial>,
    /// Names of those that are run when `RAMET_TEST_PART` is `core`.
    pub core: &'static [&'static str],
    /// Processes to kill when a test hangs.
    pub processes: fn() -> Vec<u32>,
    /// Ends what all tests share, and says what is left nevertheless.
    pub end: fn() -> Vec<String>,
}

impl Suite {
    /// Runs the tests that the command line asks for.
    pub fn run(self) -> ExitCode {
        let arguments = Arguments::from_args();
        if !arguments.list && !possible() {
            eprintln!("SKIPPED: Linux guests cannot run here; use `{}`", self.command);
            return ExitCode::SUCCESS;
        }
        let processes = self.processes;
        thread::spawn(move || watch(processes));
        let conclusion = libtest_mimic::run(&arguments, chosen(self.tests, self.core));
        if arguments.list {
            return ExitCode::SUCCESS;
        }
        let left = (self.end)();
        if !left.is_empty() {
            eprintln!("left after all tests: {}", left.join(", "));
            return ExitCode::FAILURE;
        }
        conclusion.exit_code()
    }
}

/// All tests, or the core of them.
fn chosen(mut tests: Vec<Trial>, core: &[&str]) -> Vec<Trial> {
    let known = |name: &&&str| tests.iter().any(|test| test.name() == **name);
    let unknown: Vec<_> = core.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "no such tests: {unknown:?}");
    if env::var("RAMET_TEST_PART").is_ok_and(|part| part == "core") {
        tests.retain(|test| core.contains(&test.name()));
    }
    tests
}

/// A test with the usual time.
pub fn trial(name: &'static str, test: fn()) -> Trial {
    long_trial(name, TEST_MAX, test)
}

/// A test that may take longer.
pub fn long_trial(name: &'static str, time: Duration, test: fn()) -> Trial {
    Trial::test(name, move || attempt(name, time, test).map_err(Into::into))
}

/// Trials of functions, named by module and function.
#[macro_export]
macro_rules! trials {
    ($($module:ident: $($test:ident),+;)+) => {
        vec![$($($crate::suite::trial(concat!(stringify!($module), "::", stringify!($test)), $module::$test)),+),+]
    };
}

fn attempt(name: &'static str, time: Duration, test: fn()) -> Result<(), String> {
    let (begun, time) = (Instant::now(), stretched(time));
    running(|tests| tests.insert(name, (begun, time)));
    let result = std::panic::catch_unwind(test);
    running(|tests| tests.remove(name));
    let outcome = if result.is_ok() { "passed" } else { "failed" };
    eprintln!("{name}: {outcome} after {:.1} s", begun.elapsed().as_secs_f64());
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it panicked").to_owned()
    })
}

fn running<T>(act: impl FnOnce(&mut BTreeMap<&'static str, (Instant, Duration)>) -> T) -> T {
    act(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Ends everything when a test takes too long.
fn watch(processes: fn() -> Vec<u32>) {
    loop {
        thread::sleep(Duration::from_secs(1));
        let late = running(|tests| {
            let mut tests = tests.iter();
            let late = tests.find(|(_, (begun, time))| begun.elapsed() > *time);
            late.map(|(name, (_, time))| (*name, *time))
        });
        if let Some((name, time)) = late {
            eprintln!("{name} hangs: it is not done after {time:?}");
            for pid in processes() {
                // Who is gone needs no killing.
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            process::exit(101);
        }
    }
}

/// Whether guests can run here.
fn possible() -> bool {
    if env::var_os("RAMET_LINUX_TESTS").is_some() {
        return true;
    }
    let monitor = env::var_os("RAMET_VMM").map(PathBuf::from);
    monitor.is_some_and(|monitor| linux::runs_kernels(&monitor).unwrap_or(false))
}
