//! A program that tests something: it has a process group of its own, a deadline, and its output in a file.
//!
//! Whoever is not done at the deadline is shown with all its processes, what each of them waits for and what it has said
//! last, and is ended. A job begins with the signals' usual dispositions, however the command itself was started.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use ramet_tests::patience::VARIABLE;

use super::inputs::Inputs;
use super::record::Record;
use super::tally::Tally;
use crate::progress::seconds;

/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(50);
/// How often is said how far it is, and looked for tests that hang.
const NEWS: Duration = Duration::from_secs(30);
/// How long a group has to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How long a test may go on after its program has said that it takes long, as those of cargo do after a minute.
const LONG_MAX: Duration = Duration::from_secs(300);
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
    /// What it is built from.
    pub inputs: Inputs,
    /// What is known of it.
    pub record: Record,
    /// What precedes arguments of the test program itself, where it understands `--exact` and `--skip`.
    pub skip: Option<&'static [&'static str]>,
    /// How long it usually takes.
    pub usual: Duration,
    /// How long it may take, on a machine that is not slow.
    pub most: Duration,
}

/// How jobs are run.
#[derive(Clone, Copy)]
pub struct Conditions {
    /// What is known of the same inputs is not found out again.
    pub keep: bool,
    /// How many times as slow as usual the machine is.
    pub patience: f64,
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

impl Ended {
    /// Nothing failed, and it ended as it should.
    pub fn fine(&self) -> bool {
        self.tally.failed == 0 && self.broken.is_empty()
    }
}

/// Tests that a cut run has told of.
#[derive(Default)]
struct Before {
    passed: Vec<String>,
    failed: Vec<String>,
}

impl Job {
    /// Runs it to its end.
    pub fn run(&self, conditions: Conditions) -> Ended {
        let began = Instant::now();
        let (ended, kept) = match self.settle(conditions, began) {
            Ok(outcome) => outcome,
            Err(error) => {
                let broken = vec![format!("{}: {error:#}", self.name)];
                (Ended { tally: Tally::default(), broken, time: began.elapsed() }, false)
            }
        };
        let mark = match (ended.fine(), kept) {
            (true, false) => "passed",
            (true, true) => "kept  ",
            (false, _) => "FAILED",
        };
        eprintln!("{mark} {}  {}  {}", self.name, ended.tally, seconds(ended.time));
        ended
    }

    /// How it ended, and whether that was known.
    fn settle(&self, conditions: Conditions, began: Instant) -> Result<(Ended, bool)> {
        let made_of = self.inputs.hash(&self.command)?;
        let record = &self.record;
        let known = if conditions.keep { record.known(&made_of) } else { None };
        if let Some((tally, time)) = known.as_ref().and_then(|said| said.end) {
            let failed = tally.failed > 0;
            let reason = || {
                let file = record.path().display();
                format!(
                    "{}: failed before, built from the same; {file}; `--fresh` runs it again",
                    self.name
                )
            };
            let broken = failed.then(reason).into_iter().collect();
            return Ok((Ended { tally, broken, time }, true));
        }
        let before = match (known, self.skip) {
            (Some(said), Some(_)) => Before::of(said.tests),
            _ => {
                record.begin(&made_of)?;
                Before::default()
            }
        };
        eprintln!("begun  {}{}", self.name, before.described());
        let (mut tally, broken) = self.attempt(&before, conditions.patience, began)?;
        tally += before.tally();
        let time = began.elapsed();
        // What is broken without a test that failed counts as one, so that it is not taken for fine when it is read again.
        let failed = tally.failed.max(u32::from(!broken.is_empty()));
        record.end(Tally { failed, ..tally }, time)?;
        Ok((Ended { tally, broken, time }, false))
    }

    fn attempt(
        &self,
        before: &Before,
        patience: f64,
        began: Instant,
    ) -> Result<(Tally, Vec<String>)> {
        let record = &self.record;
        let start = record.append()?.metadata()?.len();
        let heard = || said_since(record, start);
        let mut child = self.start(before, patience)?;
        let mut broken = Vec::new();
        let status = match self.await_end(&mut child, patience, began, &heard)? {
            Wait::Ended(status) => Some(status),
            Wait::Hangs(why) => {
                eprint!("{}", hanging(&self.name, child.id(), &heard()?));
                broken.push(format!("{}: {why}", self.name));
                None
            }
        };
        let status = end(&mut child, status)?;
        let text = heard()?;
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
                "---- what {} said ----\n{}\n---- end of {}; all of it: {} ----",
                self.name,
                last(&text),
                self.name,
                record.path().display()
            );
        }
        Ok((tally, broken))
    }

    fn start(&self, before: &Before, patience: f64) -> Result<Child> {
        let append = || -> Result<File> { self.record.append() };
        // A script that starts this command in the background ignores signals, which is inherited. And a command that is
        // interrupted takes its jobs with it: the terminal does not reach their groups.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "env", "--default-signal"]);
        command.arg(self.command.get_program());
        command.args(self.command.get_args()).args(before.skipped(self.skip));
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(directory) = self.command.get_current_dir() {
            command.current_dir(directory);
        }
        // Python shows the stacks of all its threads when it is aborted.
        command.env("PYTHONFAULTHANDLER", "1").env(VARIABLE, patience.to_string());
        command.stdin(Stdio::null()).stdout(append()?).stderr(append()?).process_group(0);
        command.spawn().with_context(|| format!("cannot start {}", self.name))
    }

    fn await_end(
        &self,
        child: &mut Child,
        patience: f64,
        began: Instant,
        heard: &dyn Fn() -> Result<String>,
    ) -> Result<Wait> {
        let (most, long_max) = (self.most.mul_f64(patience), LONG_MAX.mul_f64(patience));
        let (mut told, mut long) = (began, BTreeMap::new());
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Wait::Ended(status));
            }
            if began.elapsed() > most {
                return Ok(Wait::Hangs(format!("not done after {}", seconds(most))));
            }
            if told.elapsed() > NEWS {
                told = Instant::now();
                let text = heard()?;
                let time = seconds(began.elapsed());
                eprintln!("  ...  {}  {} passed so far  {time}", self.name, passed_so_far(&text));
                if let Some((name, since)) = longest(&mut long, &text) {
                    eprintln!("  ...  {}  {name} takes long", self.name);
                    if since.elapsed() > long_max {
                        let time = seconds(long_max);
                        return Ok(Wait::Hangs(format!(
                            "{name} is not done, {time} after it was said to take long"
                        )));
                    }
                }
            }
            thread::sleep(LOOK);
        }
    }
}

/// How a wait for a program went.
enum Wait {
    Ended(ExitStatus),
    /// And why that is thought.
    Hangs(String),
}

impl Before {
    fn of(tests: BTreeMap<String, bool>) -> Self {
        let mut before = Self::default();
        for (name, passed) in tests {
            if passed { before.passed.push(name) } else { before.failed.push(name) }
        }
        before
    }

    fn described(&self) -> String {
        match self.passed.len() + self.failed.len() {
            0 => String::new(),
            count => format!(", without {count} tests that a run before this one has told of"),
        }
    }

    fn tally(&self) -> Tally {
        let count = |names: &Vec<String>| u32::try_from(names.len()).unwrap_or(u32::MAX);
        Tally { passed: count(&self.passed), failed: count(&self.failed), skipped: 0 }
    }

    /// Arguments that leave them out.
    fn skipped(&self, prefix: Option<&[&str]>) -> Vec<String> {
        let names: Vec<_> = self.passed.iter().chain(&self.failed).collect();
        let Some(prefix) = prefix.filter(|_| !names.is_empty()) else { return Vec::new() };
        let words = prefix.iter().copied().chain(["--exact"]).map(str::to_owned);
        let skips = names.into_iter().flat_map(|name| ["--skip".to_owned(), name.clone()]);
        words.chain(skips).collect()
    }
}

/// What a record holds from a place on.
fn said_since(record: &Record, start: u64) -> Result<String> {
    let bytes = fs::read(record.path())?;
    let start = usize::try_from(start)?.min(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
}

/// The test that has been said to take long for the longest time, of those that have not ended.
fn longest(long: &mut BTreeMap<String, Instant>, text: &str) -> Option<(String, Instant)> {
    for line in text.lines() {
        let rest = line.strip_prefix("test ");
        if let Some((name, _)) = rest.and_then(|rest| rest.split_once(" has been running for over"))
        {
            long.entry(name.to_owned()).or_insert_with(Instant::now);
        }
    }
    let ended = |name: &String| text.contains(&format!("test {name} ... "));
    let waiting = long.iter().filter(|(name, _)| !ended(name));
    waiting.min_by_key(|(_, since)| **since).map(|(name, since)| (name.clone(), *since))
}

/// Tests that a program has said of that they passed, in whichever way.
fn passed_so_far(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with(" ok") || line.contains(" PASSED")).count()
}

/// Ends what is left of its group.
fn end(child: &mut Child, status: Option<ExitStatus>) -> Result<ExitStatus> {
    let group = Pid::from_raw(child.id().cast_signed());
    if status.is_none() {
        abort_pythons(child.id());
    }
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

/// Has each Python below a process show where its threads are.
fn abort_pythons(pid: u32) {
    for pid in below(pid) {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("python") {
            // Who is gone shows nothing.
            let _gone = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGABRT);
        }
    }
}

/// What is known of a job that is not done: the processes below it, what they wait for, tests that were not heard of.
fn hanging(name: &str, pid: u32, said: &str) -> String {
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
    report + &format!("---- it has said ----\n{}\n", last(said))
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
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;

    use super::*;

    const ANEW: Conditions = Conditions { keep: false, patience: 1.0 };
    const KEEP: Conditions = Conditions { keep: true, patience: 1.0 };
    const COUNT: &str = "echo 'test result: ok. 3 passed; 0 failed;'";

    fn job_in(directory: &Path, line: &str, most: Duration) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", line, "sh"]);
        Job {
            part: "part",
            name: "a test of jobs".to_owned(),
            command,
            inputs: Inputs::default(),
            record: Record::at(directory.join("job.log")),
            skip: Some(&["--"]),
            usual: Duration::ZERO,
            most,
        }
    }

    fn job(line: &str, most: Duration) -> Ended {
        let directory = tempfile::tempdir().expect("a directory");
        job_in(directory.path(), line, most).run(ANEW)
    }

    #[test]
    fn what_is_known_is_not_found_out_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let note = directory.path().join("note");
        let line = format!("echo ran >> {}; {COUNT}", note.display());
        let job = job_in(directory.path(), &line, Duration::from_secs(60));
        let runs = || fs::read_to_string(&note).expect("a note").lines().count();
        assert_eq!((job.run(KEEP).tally.passed, runs()), (3, 1));
        assert_eq!((job.run(KEEP).tally.passed, runs()), (3, 1), "kept");
        assert_eq!((job.run(ANEW).tally.passed, runs()), (3, 2), "asked for anew");
        let failing = line.replace("ok. 3 passed; 0", "FAILED. 2 passed; 1");
        let job = job_in(directory.path(), &failing, Duration::from_secs(60));
        assert_eq!((job.run(KEEP).tally.failed, runs()), (1, 3), "other inputs");
        let again = job.run(KEEP);
        assert_eq!((again.tally.failed, runs()), (1, 3), "a failure is not retried into a success");
        assert!(again.broken[0].contains("--fresh"), "{:?}", again.broken);
    }

    #[test]
    fn a_run_that_was_cut_off_goes_on_where_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let line = format!("echo \"words: $*\"; {COUNT}");
        let job = job_in(directory.path(), &line, Duration::from_secs(60));
        job.record.begin(&job.inputs.hash(&job.command).expect("a hash")).expect("a record");
        let said = "test a::b ... ok\ntest c ... FAILED\ntest d ... ";
        job.record
            .append()
            .and_then(|mut file| Ok(file.write_all(said.as_bytes())?))
            .expect("words");
        let ended = job.run(KEEP);
        assert_eq!(ended.tally, Tally { passed: 4, failed: 1, skipped: 0 });
        let text = fs::read_to_string(job.record.path()).expect("a record");
        assert!(text.contains("words: -- --exact --skip a::b --skip c\n"), "{text}");
    }

    #[test]
    fn who_takes_long_is_named_until_it_ends() {
        let notice = "test a::b has been running for over 60 seconds\ntest c has been running for over 60 seconds\n";
        let mut long = BTreeMap::new();
        assert_eq!(longest(&mut long, notice).expect("one").0, "a::b");
        let later = format!("{notice}test a::b ... ok\n");
        assert_eq!(longest(&mut long, &later).expect("one").0, "c");
        assert_eq!(longest(&mut long, &format!("{later}test c ... FAILED\n")), None);
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
    fn a_job_ends_with_the_thread_that_runs_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let note = directory.path().join("pid");
        let line = format!("echo $$ > {}; exec sleep 600", note.display());
        let job = job_in(directory.path(), &line, Duration::from_secs(600));
        job.record.begin("nothing").expect("a record");
        // The thread ends as it would with the whole command, when the job is under way.
        let run = || {
            let child = job.start(&Before::default(), 1.0).expect("a job");
            within("a note", || note.metadata().is_ok_and(|note| note.len() > 0));
            child
        };
        let mut child = thread::scope(|scope| scope.spawn(run).join()).expect("a thread");
        within("its end", || child.try_wait().expect("a child").is_some());
        let status = child.wait().expect("an end");
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    }

    fn within(what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < end, "{what}: not within 30 s");
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn signals_are_heeded_however_the_command_was_started() {
        // The lowest sixteen signals; SIGINT, SIGQUIT and SIGPIPE are among them.
        let ignored = "grep -q 'SigIgn:.*0000$' /proc/self/status && ";
        assert_eq!(job(&format!("{ignored}{COUNT}"), Duration::from_secs(60)).tally.passed, 3);
    }
}
