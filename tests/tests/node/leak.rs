//! Many forks and removals in a row leave nothing behind: no process, descriptor, file or memory.
//!
//! `RAMET_TEST_FORKS=1000` makes it a thousand.

use std::fs;
use std::path::Path;

use ramet_client::api::ForkRequest;
use ramet_tests::linux;

use crate::bed::{Node, eventually, fresh, node, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![forks_and_removals_leave_nothing];

/// Forks unless the environment says otherwise, and how many at a time.
const FORKS: usize = 64;
const AT_ONCE: u32 = 8;
/// What a process may grow by that has grown to its working size, whatever was asked of it.
const GROWTH_MAX_KIB: u64 = 8 << 10;

/// What a node holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    monitors: usize,
    descriptors: usize,
    files: usize,
}

fn held(node: &Node) -> Held {
    let count = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
    let process = Path::new("/proc").join(node.pid().to_string());
    Held {
        monitors: linux::processes_of(node.home()).expect("/proc").len(),
        descriptors: count(&process.join("fd")),
        files: files(node.home()),
    }
}

fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let line = line.expect("its memory").trim().trim_end_matches("kB").trim();
    line.parse().expect("a number")
}

fn forks_and_removals_leave_nothing() {
    let forks =
        std::env::var("RAMET_TEST_FORKS").map_or(FORKS, |text| text.parse().expect("a number"));
    let source = fresh("fertile");
    let round = || {
        let request = ForkRequest { count: Some(AT_ONCE), ..ForkRequest::default() };
        let forked =
            wait(node().client.fork(&source.id, &request)).unwrap_or_else(|e| node().fail(&e));
        let children = node().handles(forked);
        children[0].put("/srv/file", "written");
        children.into_iter().for_each(crate::bed::Sandbox::delete);
    };
    // What is made once and kept, such as connections, is there after the first rounds.
    (0..4).for_each(|_| round());
    let mut before = held(node());
    eventually("the node is quiet", || {
        let now = held(node());
        let quiet = now == before;
        before = now;
        quiet
    });
    let memory = resident_kib(node().pid());
    for _ in 0..forks.div_ceil(AT_ONCE as usize) {
        round();
    }
    let mut after = held(node());
    eventually(&format!("{before:?} again, not {after:?}"), || {
        after = held(node());
        after.monitors <= before.monitors
            && after.descriptors <= before.descriptors
            && after.files <= before.files
    });
    let grown = resident_kib(node().pid()).saturating_sub(memory);
    // Gone sandboxes are remembered for a day, each with a row of some hundred bytes.
    let remembered = u64::try_from(forks).expect("a number") * 4;
    assert!(grown <= GROWTH_MAX_KIB + remembered, "rametd grew by {grown} KiB");
    eprintln!("{forks} forks and removals: {before:?}, then {after:?}; rametd grew by {grown} KiB");
}
