//! How many tests passed, as the programs that run them say it.

use std::fmt;
use std::ops::AddAssign;

/// How many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Tally {
    /// Of everything that a program has said. None if it has not counted.
    pub fn of(text: &str) -> Option<Self> {
        let sum = |counted: &dyn Fn(&str) -> Option<Self>| {
            text.lines().filter_map(counted).reduce(|mut all, one| {
                all += one;
                all
            })
        };
        let known =
            |line: &str| of_libtest(line).or_else(|| of_flows(line)).or_else(|| of_plain(line));
        sum(&known).or_else(|| sum(&of_pytest))
    }
}

/// The number before a word.
fn before(line: &str, word: &str) -> Option<u32> {
    let (head, _) = line.split_once(word)?;
    head.split_whitespace().last()?.parse().ok()
}

/// `test result: ok. 48 passed; 1 failed; 0 ignored; 0 measured; 7 filtered out; …`.
fn of_libtest(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("test result: ")?;
    Some(Tally { passed: before(rest, " passed")?, failed: before(rest, " failed")?, skipped: 0 })
}

/// `python newest: short set      9 passed, 0 failed, 1 skipped  (12.0 s)`.
fn of_flows(line: &str) -> Option<Tally> {
    if !line.ends_with(" s)") {
        return None;
    }
    Some(Tally {
        passed: before(line, " passed, ")?,
        failed: before(line, " failed, ")?,
        skipped: before(line, " skipped ")?,
    })
}

/// `1 passed, 0 failed`, alone.
fn of_plain(line: &str) -> Option<Tally> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [passed, "passed,", failed, "failed"] = words[..] else { return None };
    Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()?, skipped: 0 })
}

/// `==== 1 failed, 52 passed, 1 skipped in 12.34s (0:00:12) ====`, of a run whose report nobody else counts.
fn of_pytest(line: &str) -> Option<Tally> {
    let line = line.strip_prefix('=')?.trim_matches(['=', ' ']);
    let (counts, _) = line.split_once(" in ")?;
    let count = |word: &str| counts.split(", ").find_map(|one| before(one, word)).unwrap_or(0);
    let failed = count(" failed") + count(" error");
    let (passed, skipped) = (count(" passed"), count(" skipped"));
    (failed + passed + skipped > 0).then_some(Tally { passed, failed, skipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_runner_is_understood() {
        let tally = |passed, failed, skipped| Some(Tally { passed, failed, skipped });
        let libtest = "running 2 tests\ntest result: FAILED. 48 passed; 1 failed; 3 ignored; 0 measured; 7 filtered out; finished in 2s\n";
        assert_eq!(Tally::of(&libtest.repeat(2)), tally(96, 2, 0));
        assert_eq!(
            Tally::of("python e2b 2.63.0: short set   9 passed, 1 failed, 2 skipped  (12.0 s)\n"),
            tally(9, 1, 2)
        );
        let pytest = "===== 1 failed, 52 passed, 1 skipped, 2 errors in 12.34s (0:00:12) =====\n";
        assert_eq!(Tally::of(pytest), tally(52, 3, 1));
        assert_eq!(Tally::of("======== 53 passed in 1.20s ========\n"), tally(53, 0, 0));
        assert_eq!(Tally::of("==== warnings summary ====\n==== 3 deselected in 1.0s ====\n"), None);
        let flows = "python newest: short set   9 passed, 1 failed, 0 skipped  (12.0 s)\n";
        assert_eq!(Tally::of(&format!("{pytest}{flows}")), tally(9, 1, 0), "counted once");
        assert_eq!(Tally::of("1 passed, 0 failed\n"), tally(1, 0, 0));
        assert_eq!(Tally::of("nothing of that kind\nOK\n"), None);
    }
}
