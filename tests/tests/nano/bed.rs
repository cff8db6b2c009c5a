//! Where a test's machines live, and what is left of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ramet_engine::monitor::{Machine, Monitor};
use ramet_tests::bare;
use ramet_tests::nano::{self, Command, Mailbox};
use tempfile::TempDir;

/// Memory of most machines: the least there is.
pub const MEMORY_MIB: u32 = 64;
/// Gaps of at least this many cycles are logged: shorter than any fork, longer than most ticks.
pub const THRESHOLD: u64 = 50_000;

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// A run directory and a monitor for it.
pub struct Bed {
    pub run: TempDir,
    pub monitor: Monitor,
}

impl Bed {
    /// Nothing if KVM does not run guests here.
    pub fn new() -> Option<Self> {
        if let Err(error) = bare::probe() {
            let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
            eprintln!("SKIPPED: KVM runs no guest here ({error:?}); {count} tests so far");
            return None;
        }
        let run = TempDir::with_prefix("nano").expect("a run directory");
        let monitor = Monitor::find(run.path()).expect("ramet-vmm; build it: cargo build");
        Some(Self { run, monitor })
    }

    /// A process whose machine is empty.
    pub fn start(&self) -> Machine {
        self.monitor.start().expect("a monitor")
    }

    /// A machine that counts.
    pub fn boot(&self, vcpus: u8) -> Machine {
        let machine = self.start();
        let boot = nano::boot(self.run.path(), vcpus, MEMORY_MIB, true).expect("an image");
        machine.boot(boot).expect("booted");
        for vcpu in 0..u64::from(vcpus) {
            Mailbox::of_vcpu(&machine, vcpu).await_counting().expect("counting");
        }
        machine
    }

    /// Every process of this run directory that has not ended.
    pub fn processes(&self) -> BTreeSet<u32> {
        processes_of(self.run.path())
    }

    /// Waits until only these machines' processes are left.
    pub fn await_only(&self, machines: &[&Machine]) {
        let expected: BTreeSet<u32> = machines.iter().map(|machine| machine.pid()).collect();
        let end = Instant::now() + Duration::from_secs(10);
        while self.processes() != expected {
            let left = self.processes();
            assert!(Instant::now() < end, "processes {left:?} are left, not {expected:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Forked monitors keep the command line that they were started with, run directory included.
fn processes_of(run: &Path) -> BTreeSet<u32> {
    let run = run.to_str().expect("UTF-8").to_owned() + "/";
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&run)
    })
    .collect()
}

/// One child, that must be there.
pub fn fork_one(machine: &Machine) -> Machine {
    fork(machine, 1).pop().expect("one child")
}

/// Children, that must all be there.
pub fn fork(machine: &Machine, count: usize) -> Vec<Machine> {
    let children = machine.fork_plain(count).expect("forked").all().expect("all children");
    assert_eq!(children.len(), count);
    children
}

/// It still counts.
pub fn assert_counts(machine: &Machine) {
    Mailbox::of(machine).await_counting().expect("it goes on counting");
}

/// Where tests keep their patterns, and how much.
pub const START: u64 = nano::FREE;
pub const LENGTH: u64 = 4 << 20;

/// Has the guest fill its test range.
pub fn fill(machine: &Machine, seed: u64) {
    let command = Command::Fill { start: START, length: LENGTH, seed };
    Mailbox::of(machine).order(command).expect("filled");
}

/// Has the guest hash its test range.
pub fn guest_hash(machine: &Machine) -> u64 {
    let command = Command::Hash { start: START, length: LENGTH };
    Mailbox::of(machine).order(command).expect("hashed")
}

/// What [`guest_hash`] is after [`fill`].
pub fn pattern_hash(seed: u64) -> u64 {
    let words = (START..START + LENGTH).step_by(8);
    nano::hash(words.map(|address| nano::pattern(seed, address)))
}
