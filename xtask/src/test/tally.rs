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
        let mut all: Option<Self> = None;
        let mut lines = text.lines().peekable();
        let mut ran = None;
        while let Some(line) = lines.next() {
            let one = of_libtest(line).or_else(|| of_flows(line)).or_else(|| of_plain(line));
            if let Some(number) = line.strip_prefix("Ran ").and_then(first_number) {
                ran = Some(number);
            }
            let one = one.or_else(|| of_unittest(line, &mut ran));
            if let Some(one) = one {
                *all.get_or_insert_default() += one;
            }
        }
        all
    }
}

fn first_number(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok()
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

/// `OK (skipped=1)` or `FAILED (failures=1, errors=2)`, some lines after `Ran 53 tests in 12.0s`.
fn of_unittest(line: &str, ran: &mut Option<u32>) -> Option<Tally> {
    if !(line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED (")) {
        return None;
    }
    let count = |name: &str| line.split_once(name).and_then(|(_, rest)| first_number(rest));
    let failed = count("failures=").unwrap_or(0) + count("errors=").unwrap_or(0);
    let skipped = count("skipped=").unwrap_or(0);
    let passed = ran.take()?.saturating_sub(failed + skipped);
    Some(Tally { passed, failed, skipped })
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
        assert_eq!(Tally::of("Ran 53 tests in 12.345s\n\nOK (skipped=1)\n"), tally(52, 0, 1));
        assert_eq!(
            Tally::of(
                "Ran 5 tests in 1s\n\nFAILED (failures=1, errors=2)\nRan 2 tests in 1s\n\nOK\n"
            ),
            tally(4, 3, 0)
        );
        assert_eq!(Tally::of("1 passed, 0 failed\n"), tally(1, 0, 0));
        assert_eq!(Tally::of("nothing of that kind\nOK\n"), None);
    }
}
