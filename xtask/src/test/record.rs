//! What is known of a job: its output, in a file below `target/tests`, between two lines of ours.
//!
//! ```text
//! #! made of 3f6c…                  what it was built from; with another hash the file is begun anew
//! …                                 what the program says, as it says it
//! #! passed 12, failed 0, skipped 0, took 33.1 s
//! ```
//!
//! Invariants: what has a last line is not run again as long as its hash is the same, failures included: who wants that
//! forgets it first. Without a last line the run was cut off; the tests that were heard of by then count, and only the
//! others run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::tally::Tally;
use crate::workspace;

/// The file of a job.
pub struct Record {
    path: PathBuf,
}

/// What a file says.
#[derive(Debug, Default, PartialEq)]
pub struct Said {
    /// What the job was built from.
    made_of: String,
    /// Tests by name, and whether they passed.
    pub tests: BTreeMap<String, bool>,
    /// How it ended, if it came to that.
    pub end: Option<(Tally, Duration)>,
}

/// Where all of them are.
pub fn directory() -> PathBuf {
    workspace::root().join("target/tests")
}

impl Record {
    /// Of a job, which may have a space in its name.
    pub fn of(job: &str) -> Self {
        let name = job.replace([' ', '/'], "-");
        Self { path: directory().join(format!("{name}.log")) }
    }

    /// In this file.
    #[cfg(test)]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known, whatever it was built from.
    pub fn last(&self) -> Option<Said> {
        Some(Said::read(&String::from_utf8_lossy(&fs::read(&self.path).ok()?)))
    }

    /// What is known of a job that is built from this.
    pub fn known(&self, made_of: &str) -> Option<Said> {
        self.last().filter(|said| said.made_of == made_of)
    }

    /// Begins it anew.
    pub fn begin(&self, made_of: &str) -> Result<()> {
        let directory = self.path.parent().context("a file is in a directory")?;
        fs::create_dir_all(directory)?;
        fs::write(&self.path, format!("#! made of {made_of}\n"))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// For what the program says.
    pub fn append(&self) -> Result<File> {
        let file = OpenOptions::new().append(true).open(&self.path);
        file.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// The last line.
    pub fn end(&self, tally: Tally, time: Duration) -> Result<()> {
        let Tally { passed, failed, skipped } = tally;
        let seconds = time.as_secs_f64();
        let mut file = self.append()?;
        writeln!(
            file,
            "\n#! passed {passed}, failed {failed}, skipped {skipped}, took {seconds:.1} s"
        )?;
        Ok(())
    }
}

impl Said {
    fn read(text: &str) -> Self {
        let mut said = Self::default();
        for line in text.lines() {
            if let Some(hash) = line.strip_prefix("#! made of ") {
                hash.clone_into(&mut said.made_of);
            } else if let Some(end) = line.strip_prefix("#! passed ") {
                said.end = read_end(end);
            } else {
                said.tests.extend(outcome(line));
            }
        }
        said
    }
}

fn read_end(line: &str) -> Option<(Tally, Duration)> {
    let mut numbers = line.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let mut next = || numbers.find(|word| !word.is_empty());
    let tally = Tally {
        passed: next()?.parse().ok()?,
        failed: next()?.parse().ok()?,
        skipped: next()?.parse().ok()?,
    };
    Some((tally, Duration::try_from_secs_f64(next()?.parse().ok()?).ok()?))
}

/// A test that a line tells the end of, as libtest does, or [`ramet_tests::suite`] wherever on the line.
fn outcome(line: &str) -> Option<(String, bool)> {
    let told = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
    match told {
        Some((name, "ok")) => return Some((name.to_owned(), true)),
        Some((name, "FAILED")) => return Some((name.to_owned(), false)),
        _ => {}
    }
    let (before, passed) = match line.rsplit_once(": passed after ") {
        Some((before, _)) => (before, true),
        None => (line.rsplit_once(": failed after ")?.0, false),
    };
    Some((before.rsplit(' ').next()?.to_owned(), passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_of_counts() {
        let text = "#! made of 3f6c\nrunning 4 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                    test d::e ... d::e: passed after 1.2 s\nf: failed after 0.1 s\ntest g ... nothing\n";
        let said = Said::read(text);
        let tests: Vec<_> =
            said.tests.iter().map(|(name, passed)| (name.as_str(), *passed)).collect();
        assert_eq!(tests, [("a::b", true), ("c", false), ("d::e", true), ("f", false)]);
        assert_eq!((said.made_of.as_str(), said.end), ("3f6c", None));
    }

    #[test]
    fn an_end_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let record = Record::at(directory.path().join("deep/job.log"));
        record.begin("3f6c").expect("a file");
        let tally = Tally { passed: 12, failed: 1, skipped: 2 };
        record.end(tally, Duration::from_millis(33_100)).expect("an end");
        let known = record.known("3f6c").expect("the same hash");
        assert_eq!(known.end, Some((tally, Duration::from_millis(33_100))));
        assert_eq!(record.known("another"), None);
    }
}
