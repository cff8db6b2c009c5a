//! Where the state of a machine comes from, so that it can be told when two of them parted.
//!
//! A line is a path in the tree of branches: each machine that runs on its own is a branch, and a fork, rewind or
//! promote begins a new one at a moment of another. The tree of sandboxes does not tell this: a
//! sandbox that was rewound or promoted goes on from elsewhere than it was forked from.
//!
//! Invariant: a moment is noted before the machine is cut, so it is never later than the cut.

use std::io;

use serde::{Deserialize, Serialize};

use crate::random;

/// Most steps that are remembered; what parted before them is not known.
const STEPS_MAX: usize = 512;

/// A branch that was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Step {
    branch: String,
    left_at_ms: u64,
}

/// A line. The default is one of which nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When its first machine was there.
    began_at_ms: u64,
    past: Vec<Step>,
    /// The branch that it is on; empty if not known.
    here: String,
}

impl Line {
    /// The line of a machine that comes from none.
    pub fn root(branch: String, began_at_ms: u64) -> Self {
        Self { began_at_ms, past: Vec::new(), here: branch }
    }

    /// A new branch that begins here and now.
    pub fn branch(&self, now_ms: u64) -> io::Result<Self> {
        let mut line = self.clone();
        if !self.here.is_empty() {
            line.past.push(Step { branch: self.here.clone(), left_at_ms: now_ms });
        }
        let surplus = line.past.len().saturating_sub(STEPS_MAX);
        line.past.drain(..surplus);
        line.here = random::hex(8)?;
        Ok(line)
    }

    /// When its first machine was there.
    pub fn began_at_ms(&self) -> u64 {
        self.began_at_ms
    }

    /// When two lines became two, if they were ever one: not later than that.
    pub fn parted(&self, other: &Self, now_ms: u64) -> Option<u64> {
        let steps = |line: &Self| {
            let here = Step { branch: line.here.clone(), left_at_ms: now_ms };
            let known = (!line.here.is_empty()).then_some(here);
            line.past.iter().cloned().chain(known).collect::<Vec<Step>>()
        };
        let theirs = steps(other);
        let common = |mine: &Step| {
            let step = theirs.iter().find(|step| step.branch == mine.branch)?;
            Some(step.left_at_ms.min(mine.left_at_ms))
        };
        steps(self).iter().rev().find_map(common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_parted_when_the_first_of_them_left() {
        let root = Line::root("template".to_owned(), 5);
        let source = root.branch(10).unwrap();
        let (a, b) = (source.branch(20).unwrap(), source.branch(30).unwrap());
        assert_eq!(a.parted(&b, 99), Some(20));
        assert_eq!(a.parted(&source, 99), Some(20));
        assert_eq!(source.parted(&source, 99), Some(99));
        let grandchild = b.branch(40).unwrap();
        assert_eq!(grandchild.parted(&b, 99), Some(40));
        assert_eq!(grandchild.parted(&a, 99), Some(20));
        assert_eq!(grandchild.parted(&root.branch(11).unwrap(), 99), Some(10));
        assert_eq!(grandchild.began_at_ms(), 5);
    }

    #[test]
    fn a_promoted_sandbox_is_on_the_line_of_its_winner() {
        let source = Line::root("template".to_owned(), 5).branch(10).unwrap();
        let winner = source.branch(20).unwrap();
        let later = source.branch(30).unwrap();
        let promoted = winner.branch(40).unwrap();
        assert_eq!(promoted.parted(&later, 99), Some(20), "not when the later one was forked");
    }

    #[test]
    fn lines_that_were_never_one_did_not_part() {
        let (a, b) = (Line::root("a".to_owned(), 1), Line::root("b".to_owned(), 1));
        assert_eq!(a.parted(&b, 9), None);
        let unknown = Line::default();
        assert_eq!(unknown.parted(&Line::default(), 9), None);
        assert_eq!(unknown.branch(1).unwrap().parted(&unknown.branch(1).unwrap(), 9), None);
    }

    #[test]
    fn a_long_line_forgets_its_beginning() {
        let root = Line::root("template".to_owned(), 0);
        let mut line = root.clone();
        for now in 0..2000 {
            line = line.branch(now).unwrap();
        }
        assert!(line.past.len() <= STEPS_MAX);
        assert_eq!(line.parted(&root, 9999), None);
        assert_eq!(line.branch(7777).unwrap().parted(&line, 9999), Some(7777));
    }
}
