//! A program that tests something: it has a process group of its own, a deadline, and its output in a file.
//!
//! Whoever is not done at the deadline is shown with all its processes, what each of them waits for and what it has said
//! last, and is ended. A job begins with the signals' usual dispositions, however the command itself was started.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::tally::Tally;
use crate::progress::seconds;

/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(50);
/// How often is said how far it is.
const NEWS: Duration = Duration::from_secs(30);
/// How long a group has to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);
/// Lines of a job that failed which are shown at its end at most.
const SHOWN_LINES: usize = 400;

/// A program and what is known of it.
pub struct Job {
    /// Its part.
    pub part: &'static str,
    /// As it is called in reports.
    pub name: String,
    /// What is run.
    pub command: Command,
    /// How long it usually takes.
    pub usual: Duration,
    /// How long it may take.
    pub most: Duration,
}

/// How a job ended.
pub struct Ended {
    /// What it counted.
    pub tally: Tally,
    /// Why it counts as failed, beyond tests that failed.
    pub broken: Vec<String>,
    /// How long it took.
    pub time: Duration,
}

impl Job {
    /// Runs it to its end.
    pub fn run(&self) -> Ended {
        let began = Instant::now();
        eprintln!("begun  {}", self.name);
        let (tally, broken) = match self.attempt(began) {
            Ok(outcome) => outcome,
            Err(error) => (Tally::default(), vec![format!("{}: {error:#}", self.name)]),
        };
        let (time, fine) = (began.elapsed(), tally.failed == 0 && broken.is_empty());
        let mark = if fine { "passed" } else { "FAILED" };
        eprintln!("{mark} {}  {tally}  {}", self.name, seconds(time));
        Ended { tally, broken, time }
    }

    fn attempt(&self, began: Instant) -> Result<(Tally, Vec<String>)> {
        let output = tempfile::NamedTempFile::new()?;
        let mut child = self.start(output.path())?;
        let mut broken = Vec::new();
        let status = self.await_end(&mut child, began, output.path())?;
        if status.is_none() {
            broken.push(format!("{}: not done after {}", self.name, seconds(self.most)));
            eprint!("{}", hanging(&self.name, child.id(), output.path()));
        }
        let status = end(&mut child, status)?;
        let text = String::from_utf8_lossy(&fs::read(output.path())?).into_owned();
        let tally = Tally::of(&text);
        match tally {
            None if broken.is_empty() => {
                broken.push(format!("{}: ended with {status} and counted no tests", self.name));
            }
            Some(tally) if !status.success() && tally.failed == 0 && broken.is_empty() => {
                broken.push(format!("{}: ended with {status}, and no test failed", self.name));
            }
            _ => {}
        }
        let tally = tally.unwrap_or_default();
        if tally.failed > 0 || !broken.is_empty() {
            eprintln!(
                "---- what {} said ----\n{}\n---- end of {} ----",
                self.name,
                last(&text),
                self.name
            );
        }
        Ok((tally, broken))
    }

    fn start(&self, output: &Path) -> Result<Child> {
        let append = || -> Result<File> { Ok(OpenOptions::new().append(true).open(output)?) };
        // Whoever starts this command in the background of a script has signals ignored, which is inherited.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(self.command.get_program());
        command.args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(directory) = self.command.get_current_dir() {
            command.current_dir(directory);
        }
        command.stdin(Stdio::null()).stdout(append()?).stderr(append()?).process_group(0);
        command.spawn().with_context(|| format!("cannot start {}", self.name))
    }

    /// None if it is not done in time.
    fn await_end(
        &self,
        child: &mut Child,
        began: Instant,
        output: &Path,
    ) -> Result<Option<ExitStatus>> {
        let mut told = began;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if began.elapsed() > self.most {
                return Ok(None);
            }
            if told.elapsed() > NEWS {
                told = Instant::now();
                let done = passed_so_far(&fs::read(output)?);
                eprintln!(
                    "  ...  {}  {done} passed so far  {}",
                    self.name,
                    seconds(began.elapsed())
                );
            }
            thread::sleep(LOOK);
        }
    }
}

/// Tests that a program has said of that they passed, in whichever way.
fn passed_so_far(output: &[u8]) -> usize {
    let text = String::from_utf8_lossy(output);
    text.lines().filter(|line| line.ends_with(" ok") || line.contains(" PASSED")).count()
}

/// Ends what is left of its group.
fn end(child: &mut Child, status: Option<ExitStatus>) -> Result<ExitStatus> {
    let group = Pid::from_raw(child.id().cast_signed());
    // A group that is gone needs no signal.
    let _gone = killpg(group, if status.is_some() { Signal::SIGKILL } else { Signal::SIGTERM });
    if let Some(status) = status {
        return Ok(status);
    }
    let asked = Instant::now();
    let mut ended = None;
    while ended.is_none() && asked.elapsed() < GRACE {
        thread::sleep(LOOK);
        ended = child.try_wait()?;
    }
    let _gone = killpg(group, Signal::SIGKILL);
    Ok(match ended {
        Some(status) => status,
        None => child.wait()?,
    })
}

/// What is known of a job that is not done: the processes below it, what they wait for, tests that were not heard of.
fn hanging(name: &str, pid: u32, output: &Path) -> String {
    let mut report = format!("---- {name} hangs ----\n");
    for pid in below(pid) {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        report += &format!("{pid}  {}\n", line.chars().take(200).collect::<String>());
        for thread in entries(&format!("/proc/{pid}/task")) {
            let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}"));
            let (comm, wchan) = (of("comm").unwrap_or_default(), of("wchan").unwrap_or_default());
            report += &format!("    {thread}  {:<16} {wchan}\n", comm.trim());
        }
    }
    let said = String::from_utf8_lossy(&fs::read(output).unwrap_or_default()).into_owned();
    report + &format!("---- it has said ----\n{}\n", last(&said))
}

/// A process and its descendants.
fn below(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        for thread in entries(&format!("/proc/{pid}/task")) {
            let children = PathBuf::from(format!("/proc/{pid}/task/{thread}/children"));
            let children = fs::read_to_string(children).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found
}

fn entries(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The end of a text.
fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: &str = "echo 'test result: ok. 3 passed; 0 failed;'";

    fn job(line: &str, most: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        Job {
            part: "part",
            name: "a test of jobs".to_owned(),
            command,
            usual: Duration::ZERO,
            most,
        }
        .run()
    }

    #[test]
    fn what_hangs_is_ended_with_all_its_processes() {
        let directory = tempfile::tempdir().expect("a directory");
        let note = directory.path().join("pid");
        let line = format!("{COUNT}; sleep 600 & echo $! > {}; wait", note.display());
        let ended = job(&line, Duration::from_secs(1));
        assert_eq!(ended.tally.passed, 3);
        assert!(ended.broken[0].contains("not done after 1.0 s"), "{:?}", ended.broken);
        let pid = fs::read_to_string(&note).expect("a note");
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn an_end_without_a_count_is_a_failure() {
        let most = Duration::from_secs(60);
        assert_eq!(job("true", most).broken.len(), 1);
        assert_eq!(job(COUNT, most).broken.len(), 0);
        assert_eq!(job(&format!("{COUNT}; exit 3"), most).broken.len(), 1);
        let failed = job("echo 'test result: FAILED. 3 passed; 1 failed;'; exit 3", most);
        assert_eq!((failed.tally.failed, failed.broken.len()), (1, 0));
    }

    #[test]
    fn signals_are_heeded_however_the_command_was_started() {
        // The lowest sixteen signals; SIGINT, SIGQUIT and SIGPIPE are among them.
        let ignored = "grep -q 'SigIgn:.*0000$' /proc/self/status && ";
        assert_eq!(job(&format!("{ignored}{COUNT}"), Duration::from_secs(60)).tally.passed, 3);
    }
}
