//! One run of the tests with one set of SDKs, and how it went.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ramet_tests::patience::stretched;

use super::Surroundings;

/// Longest time of a flow, on a machine that is not slow; who hangs fails with the stacks of all threads.
const FLOW_MAX: Duration = Duration::from_secs(600);
/// And of a file of flows, where that is what a limit is for.
const FILE_MAX: Duration = Duration::from_secs(1800);

/// A run.
pub enum Part {
    /// pytest.
    Python {
        /// As it is called in reports.
        name: String,
        /// The environment's interpreter.
        program: PathBuf,
        /// Folder of the flows.
        flows: PathBuf,
        /// Only the short set.
        short: bool,
    },
    /// node's own test runner.
    Typescript {
        /// As it is called in reports.
        name: String,
        /// Folder of the flows.
        flows: PathBuf,
    },
}

/// How many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
    /// How long it took.
    pub time: Duration,
}

impl Part {
    /// As it is called in reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Python { name, .. } | Self::Typescript { name, .. } => name,
        }
    }

    /// Runs it. Its output is passed on.
    pub fn run(&self, surroundings: &Surroundings, filter: Option<&str>) -> Result<Tally> {
        let report = tempfile::NamedTempFile::new()?;
        let command = match self {
            Self::Python { program, flows, short, .. } => {
                pytest(program, flows, *short, filter, report.path())
            }
            Self::Typescript { flows, .. } => node_test(flows, filter, report.path()),
        };
        let began = Instant::now();
        let status = surroundings.around(command).status().context("cannot run the tests")?;
        let text = std::fs::read_to_string(report.path())?;
        let read = match self {
            Self::Python { .. } => of_junit(&text),
            Self::Typescript { .. } => of_tap(&text),
        };
        let tally = read.context("the tests have left no report")?;
        if !status.success() && tally.fine() && tally.passed + tally.skipped > 0 {
            bail!("the tests ended with {status}, and none of them failed");
        }
        Ok(Tally { time: began.elapsed(), ..tally })
    }
}

fn pytest(
    program: &Path,
    flows: &Path,
    short: bool,
    filter: Option<&str>,
    report: &Path,
) -> Command {
    let mut command = Command::new(program);
    command.args(["-m", "pytest", "-v", "--junit-xml"]).arg(report).arg(flows);
    command.arg(format!("--timeout={}", stretched(FLOW_MAX).as_secs()));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    if short {
        command.args(["-m", "smoke"]);
    }
    command.args(filter.iter().flat_map(|filter| ["-k", filter]));
    command
}

fn node_test(flows: &Path, filter: Option<&str>, report: &Path) -> Command {
    let mut command = Command::new("node");
    command.args([
        "--test",
        "--test-concurrency=1",
        &format!("--test-timeout={}", stretched(FILE_MAX).as_millis()),
    ]);
    command.args(["--test-reporter=spec", "--test-reporter-destination=stdout"]);
    command
        .arg("--test-reporter=tap")
        .arg(format!("--test-reporter-destination={}", report.display()));
    command.args(filter.map(|filter| format!("--test-name-pattern={filter}")));
    command.current_dir(flows);
    command
}

/// What pytest says of its one suite: `<testsuite … errors="0" failures="1" skipped="2" tests="9" …>`.
fn of_junit(text: &str) -> Option<Tally> {
    let (_, suite) = text.split_once("<testsuite ")?;
    let (suite, _) = suite.split_once('>')?;
    let count = |name: &str| -> Option<u32> {
        let (_, rest) = suite.split_once(&format!("{name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let (failed, skipped) = (count("failures")? + count("errors")?, count("skipped")?);
    let passed = count("tests")?.saturating_sub(failed + skipped);
    Some(Tally { passed, failed, skipped, time: Duration::ZERO })
}

/// What node says at the end: `# pass 7`.
fn of_tap(text: &str) -> Option<Tally> {
    let count = |name: &str| -> Option<u32> {
        let mut lines = text.lines().rev();
        lines.find_map(|line| line.strip_prefix("# ")?.strip_prefix(name)?.trim().parse().ok())
    };
    Some(Tally {
        passed: count("pass ")?,
        failed: count("fail ")? + count("cancelled ")?,
        skipped: count("skipped ")?,
        time: Duration::ZERO,
    })
}

impl Tally {
    /// Nothing failed.
    pub fn fine(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_counted() {
        let junit = "<?xml version=\"1.0\"?><testsuites name=\"pytest tests\"><testsuite name=\"pytest\" \
                     errors=\"1\" failures=\"2\" skipped=\"3\" tests=\"10\" time=\"1.0\"><testcase/>";
        let tap = "ok 1 - a\n# tests 10\n# suites 0\n# pass 4\n# fail 2\n# cancelled 1\n# skipped 3\n# todo 0\n";
        for tally in [of_junit(junit), of_tap(tap)] {
            let tally = tally.unwrap();
            assert_eq!(tally.to_string(), "4 passed, 3 failed, 3 skipped");
            assert!(!tally.fine());
        }
        assert_eq!((of_junit("no xml"), of_tap("no tap")), (None, None));
    }
}
