//! The seizer: takes every vCPU, meets the monitor at the doorbell, and makes a child its own.
//!
//! ```text
//!  agent ─ Summons ─▶ main thread ─ wakes ─▶ one thread per vCPU, each spinning in user mode
//!                                            the first, when all spin: in eax, BELL
//!                      source: let go        child: read and apply the identity, ACK, let go
//!  agent ◀─ Report ── main thread
//! ```
//!
//! It is a process of its own, started by the agent, with its memory locked and all threads at the
//! highest real-time priority. That is what makes its central invariant hold by construction:
//!
//! **Between the bell and the release nothing is waited for.** Whoever could hold what is waited for is
//! an ordinary thread, and ordinary threads do not run while the vCPUs are seized. This process shares no
//! mutex, no allocator and no address space with ordinary threads: its heap is used by the ringing
//! thread alone while all others spin or sleep. Of the kernel it asks only what completes at once: files on
//! tmpfs and procfs below descriptors that are already open, ioctls, signals, clock and host name.
//! Were such a call ever to sleep, the vCPU would go to whoever is runnable for that time: an
//! ordinary process would run early, and nothing would hang.
//!
//! It rings nothing unless every vCPU has been seized within [`SEIZE_TIMEOUT`]. A machine that cannot
//! learn who it is does not run on as its source's twin: it powers off. When
//! the vCPUs are no longer those it was started for, it holds no meeting and ends; the agent starts it
//! anew.

pub mod apply;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::mman::{MlockAllFlags, mlockall};
use ramet_proto::doorbell::{NOT_EXPECTED, SOURCE};
use serde::{Deserialize, Serialize};

use crate::identity::RUN;
use crate::log;
use crate::process::lock;
use crate::sys::kernel::{self, futex_wait, futex_wake};
use crate::sys::ports::{self, Bell};
use apply::Applier;

/// All vCPUs are seized within this time, or there is no meeting.
const SEIZE_TIMEOUT: Duration = Duration::from_secs(2);
const PRIORITY: i32 = 99;
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Locked in memory, once per vCPU.
const STACK_BYTES: usize = 64 * 1024;
/// The ringing thread parses and writes.
const RINGER_STACK_BYTES: usize = 256 * 1024;

/// Agent → seizer, as a JSON line: go and meet the monitor.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Summons {
    /// Number of the meeting.
    pub meeting: u64,
    /// The guest's own call that it answers.
    pub call: Option<u64>,
}

/// Seizer → agent, as a JSON line: what came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Number of the meeting; 0 with no outcome says that the seizer is ready.
    pub meeting: u64,
    /// As in the summons.
    pub call: Option<u64>,
    /// What the bell answered; `None` if it was not rung.
    pub outcome: Option<u32>,
    /// What is worth logging.
    pub notes: Vec<String>,
}

/// Where the threads meet. Epochs count meetings from 1.
struct Floor {
    /// The meeting that was called; the threads sleep on it.
    called: AtomicU32,
    /// The meeting that is over; the main thread sleeps on it.
    released: AtomicU32,
    /// For each thread, the meeting it has come to.
    arrived: Vec<AtomicU32>,
    /// Written by the ringer before the release, taken by the main thread after it.
    result: Mutex<Met>,
}

#[derive(Default)]
struct Met {
    outcome: Option<u32>,
    notes: Vec<String>,
}

struct Ringer {
    bell: Bell,
    applier: Applier,
}

/// Be the seizer: summons on standard input, which is a socket, reports on the same.
pub fn run() -> io::Result<()> {
    log::to_kernel();
    kernel::block_all_signals()?;
    kernel::realtime_priority(PRIORITY)?;
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?;
    let socket = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let cpus = online_cpus(&std::fs::read_to_string(ONLINE)?);
    let floor = Arc::new(Floor {
        called: AtomicU32::new(0),
        released: AtomicU32::new(0),
        arrived: cpus.iter().map(|_| AtomicU32::new(0)).collect(),
        result: Mutex::default(),
    });
    start_threads(&floor, &cpus)?;
    report(&socket, &Report::default())?;
    for line in BufReader::new(&socket).lines() {
        let summons: Summons = serde_json::from_str(&line?)?;
        let Summons { meeting, call } = summons;
        if online_cpus(&std::fs::read_to_string(ONLINE)?) != cpus {
            let notes = vec!["the vCPUs have changed".to_owned()];
            return report(&socket, &Report { meeting, call, outcome: None, notes });
        }
        let met = meet(&floor);
        report(&socket, &Report { meeting, call, outcome: met.outcome, notes: met.notes })?;
    }
    Ok(())
}

fn report(mut socket: &File, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    socket.write_all(&line)
}

fn start_threads(floor: &Arc<Floor>, cpus: &[usize]) -> io::Result<()> {
    let (ready, readiness) = channel();
    for (index, cpu) in cpus.iter().copied().enumerate() {
        let (floor, ready) = (Arc::clone(floor), ready.clone());
        let stack = if index == 0 { RINGER_STACK_BYTES } else { STACK_BYTES };
        let thread = std::thread::Builder::new().name(format!("seize-{cpu}")).stack_size(stack);
        thread.spawn(move || seize(&floor, index, cpu, &ready))?;
    }
    for _ in cpus {
        readiness.recv().map_err(io::Error::other)??;
    }
    Ok(())
}

/// Call a meeting and sleep until it is over.
fn meet(floor: &Floor) -> Met {
    let epoch = floor.called.load(Ordering::Acquire).wrapping_add(1);
    floor.called.store(epoch, Ordering::Release);
    futex_wake(&floor.called);
    loop {
        let released = floor.released.load(Ordering::Acquire);
        if released == epoch {
            return std::mem::take(&mut *lock(&floor.result));
        }
        futex_wait(&floor.released, released);
    }
}

/// The life of one vCPU's thread. The first one is the ringer.
fn seize(floor: &Floor, index: usize, cpu: usize, ready: &Sender<io::Result<()>>) {
    let prepared = prepare(index, cpu);
    let mut ringer = match prepared {
        Ok(ringer) => {
            // The main thread waits for it.
            let _ = ready.send(Ok(()));
            ringer
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let mut epoch = 0;
    loop {
        futex_wait(&floor.called, epoch);
        let called = floor.called.load(Ordering::Acquire);
        if called == epoch {
            continue;
        }
        epoch = called;
        floor.arrived[index].store(epoch, Ordering::Release);
        match &mut ringer {
            Some(ringer) => {
                let met = ringer.ring(floor, epoch);
                *lock(&floor.result) = met;
                floor.released.store(epoch, Ordering::Release);
                futex_wake(&floor.released);
            }
            None => {
                while floor.released.load(Ordering::Acquire) != epoch {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

fn prepare(index: usize, cpu: usize) -> io::Result<Option<Ringer>> {
    kernel::pin_to(cpu)?;
    kernel::realtime_priority(PRIORITY)?;
    match index {
        0 => Ok(Some(Ringer { bell: ports::allow()?, applier: Applier::open(Path::new(RUN))? })),
        _ => Ok(None),
    }
}

impl Ringer {
    fn ring(&mut self, floor: &Floor, epoch: u32) -> Met {
        let deadline = Instant::now() + SEIZE_TIMEOUT;
        while !floor.arrived.iter().all(|at| at.load(Ordering::Acquire) == epoch) {
            if Instant::now() >= deadline {
                let note = format!("not all vCPUs were seized within {SEIZE_TIMEOUT:?}");
                return Met { outcome: None, notes: vec![note] };
            }
            std::hint::spin_loop();
        }
        let outcome = self.bell.ring();
        let mut notes = Vec::new();
        if outcome != SOURCE && outcome != NOT_EXPECTED {
            match self.applier.apply(&self.bell) {
                Ok(said) => notes = said,
                Err(error) => power_off(&error),
            }
            self.bell.acknowledge(outcome);
        }
        Met { outcome: Some(outcome), notes }
    }
}

/// A machine that does not know who it is must not run.
fn power_off(error: &apply::ApplyError) -> ! {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    log::alarm(format_args!(
        "this machine cannot take its identity and powers off: {error}: {cause}"
    ));
    loop {
        // It returns only if it is refused, and then there is nothing else to do.
        let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
    }
}

/// The numbers in a list such as `0-3,5`.
fn online_cpus(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::online_cpus;

    #[test]
    fn reads_lists_of_cpus() {
        assert_eq!(online_cpus("0\n"), [0]);
        assert_eq!(online_cpus("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
    }
}
