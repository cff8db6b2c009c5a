//! Nano guests: machine code of a few dozen instructions, and the host's side of its mailbox.
//!
//! The code is `guests/worker.s`, assembled into this crate and written to a file for
//! [`Payload::Flat`]. It runs at privilege level 3, where even a KVM that interprets kernel code is
//! as fast as the processor, so the whole path of a fork can be tested and timed natively.
//!
//! Unsafe code is here because the assembled bytes lie between two symbols of the linker.
#![expect(unsafe_code, reason = "assembled bytes are reached through linker symbols")]

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ramet_engine::control::Error;
use ramet_engine::monitor::Machine;
use ramet_proto::control::{Boot, Payload};

use crate::patience::stretched;

std::arch::global_asm!(include_str!("../guests/worker.s"));

unsafe extern "C" {
    static ramet_nano_worker: u8;
    static ramet_nano_worker_end: u8;
}

/// Where the first vCPU's mailbox is; the others follow, a page each.
pub const MAILBOX: u64 = 0x20_0000;
/// First address that the guest does not use itself: free for tests.
pub const FREE: u64 = 0x40_0000;
/// Most gaps in the log.
pub const LOG_MAX: usize = 200;
/// Offset of the log in the mailbox.
const LOG: u64 = 0x100;
/// Time for any command.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine code of the worker.
pub fn worker() -> &'static [u8] {
    let first = &raw const ramet_nano_worker;
    let end = &raw const ramet_nano_worker_end;
    // SAFETY: both symbols are in one section of one object file, the second behind the first, and
    // everything between them is initialized, read-only and there for the whole run.
    unsafe {
        let length = end.offset_from_unsigned(first);
        std::slice::from_raw_parts(first, length)
    }
}

/// A machine that runs the worker. The image is written to this directory.
pub fn boot(directory: &Path, vcpus: u8, memory_mib: u32, huge_pages: bool) -> io::Result<Boot> {
    let image = directory.join("worker.bin");
    fs::write(&image, worker())?;
    let image = image.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    let payload = Payload::Flat { image };
    let (disks, layers, identity) = (Vec::new(), None, None);
    let (saved, slots, network) = (None, 0, false);
    Ok(Boot {
        vcpus,
        memory_mib,
        huge_pages,
        payload,
        disks,
        slots,
        network,
        layers,
        saved,
        identity,
    })
}

/// What the worker can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Write a word every `stride` bytes.
    Touch {
        /// First address.
        start: u64,
        /// Bytes.
        length: u64,
        /// Bytes from one write to the next.
        stride: u64,
    },
    /// Write [`pattern`] everywhere.
    Fill {
        /// First address.
        start: u64,
        /// Bytes, a multiple of 8.
        length: u64,
        /// Seed of the pattern.
        seed: u64,
    },
    /// Compute [`hash`] of memory.
    Hash {
        /// First address.
        start: u64,
        /// Bytes, a multiple of 8.
        length: u64,
    },
    /// Forget all gaps.
    Reset {
        /// Log gaps of at least this many cycles.
        threshold: u64,
        /// After the next one say its length on the console ([`said`]) and power off.
        once: bool,
    },
    /// Stand still until the next command.
    Hold,
    /// Write a byte to a port.
    Out {
        /// Port.
        port: u16,
        /// Byte.
        value: u8,
    },
    /// Execute an undefined instruction.
    Fault,
}

impl Command {
    fn words(self) -> (u64, [u64; 3]) {
        match self {
            Self::Touch { start, length, stride } => (1, [start, length, stride]),
            Self::Fill { start, length, seed } => (2, [start, length, seed]),
            Self::Hash { start, length } => (3, [start, length, 0]),
            Self::Reset { threshold, once } => (4, [threshold, u64::from(once), 0]),
            Self::Hold => (5, [0; 3]),
            Self::Out { port, value } => (6, [u64::from(port), u64::from(value), 0]),
            Self::Fault => (7, [0; 3]),
        }
    }
}

/// The word that [`Command::Fill`] writes at this address.
pub fn pattern(seed: u64, address: u64) -> u64 {
    (address ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What [`Command::Hash`] computes of these words.
pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(23);
    words.into_iter().fold(0, step)
}

/// A time in which a vCPU did not run, in cycles of its TSC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last time seen before it.
    pub start: u64,
    /// The first time seen after it.
    pub end: u64,
}

/// Everything in a mailbox but the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Turns of the loop.
    pub counter: u64,
    /// TSC at the latest one.
    pub last: u64,
    /// Longest gap since the reset.
    pub gap_max: u64,
    /// Result of the last command that had one.
    pub result: u64,
    /// Commands carried out.
    pub done: u64,
    /// Bytes of memory that the guest was told at entry.
    pub memory: u64,
    /// Gaps since the reset.
    pub log: Vec<Gap>,
}

/// The mailbox of one vCPU of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Mailbox<'m> {
    machine: &'m Machine,
    base: u64,
}

impl<'m> Mailbox<'m> {
    /// Of the first vCPU.
    pub fn of(machine: &'m Machine) -> Self {
        Self::of_vcpu(machine, 0)
    }

    /// Of that vCPU.
    pub fn of_vcpu(machine: &'m Machine, vcpu: u64) -> Self {
        Self { machine, base: MAILBOX + vcpu * 0x1000 }
    }

    /// Reads all of it. A running guest may change it meanwhile.
    pub fn read(&self) -> Result<Mail, Error> {
        let page = self.machine.read_memory(self.base, 0x1000)?;
        let word = |offset: u64| word_at(&page, offset);
        let logged = usize::try_from(word(0x50)).unwrap_or(usize::MAX).min(LOG_MAX);
        let entries = (0..logged as u64).map(|number| LOG + number * 16);
        let log = entries.map(|at| Gap { start: word(at), end: word(at + 8) }).collect();
        let (counter, last, gap_max) = (word(0x00), word(0x08), word(0x10));
        let (result, done, memory) = (word(0x38), word(0x40), word(0x60));
        Ok(Mail { counter, last, gap_max, result, done, memory, log })
    }

    /// Leaves a command, and does not wait.
    pub fn post(&self, command: Command) -> Result<(), Error> {
        let (number, arguments) = command.words();
        let bytes: Vec<u8> = arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.machine.write_memory(self.base + 0x20, &bytes)?;
        self.machine.write_memory(self.base + 0x18, &number.to_le_bytes())
    }

    /// Leaves a command and waits until it is done. Answers the result word.
    pub fn order(&self, command: Command) -> Result<u64, Error> {
        self.post(command)?;
        let end = Instant::now() + stretched(PATIENCE);
        while word_at(&self.machine.read_memory(self.base + 0x18, 8)?, 0) != 0 {
            if Instant::now() > end {
                return Err(Error::Timeout);
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(self.read()?.result)
    }

    /// Makes the guest stand still, so that its memory does not change.
    pub fn hold(&self) -> Result<Mail, Error> {
        self.post(Command::Hold)?;
        let end = Instant::now() + stretched(PATIENCE);
        while word_at(&self.machine.read_memory(self.base + 0x68, 8)?, 0) == 0 {
            if Instant::now() > end {
                return Err(Error::Timeout);
            }
            thread::sleep(Duration::from_micros(200));
        }
        self.read()
    }

    /// Ends [`Self::hold`].
    pub fn release(&self) -> Result<(), Error> {
        self.machine.write_memory(self.base + 0x18, &[0; 8])
    }

    /// Waits until the guest counts.
    pub fn await_counting(&self) -> Result<Mail, Error> {
        let before = self.read()?;
        let end = Instant::now() + stretched(PATIENCE);
        loop {
            let now = self.read()?;
            if now.counter != before.counter {
                return Ok(now);
            }
            if Instant::now() > end {
                return Err(Error::Timeout);
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The little-endian word at this offset.
fn word_at(page: &[u8], offset: u64) -> u64 {
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = page.get(at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The gap that a machine has said on its console before it powered off, in cycles.
pub fn said(machine: &Machine) -> Result<Option<u64>, Error> {
    let (_, text) = machine.console()?;
    let Some(last) = text.as_bytes().last_chunk::<6>() else {
        return Ok(None);
    };
    let digits = last.iter().rev();
    Ok(Some(digits.fold(0, |sum, digit| sum << 7 | u64::from(*digit))))
}

/// The gap that a fork fell into, as the source and one of its children saw it: their logs are the
/// same up to there, and then begin a gap at the same time and end it at different ones.
pub fn cut(source: &[Gap], child: &[Gap]) -> Option<(Gap, Gap)> {
    let mut pairs = source.iter().zip(child);
    let (source, child) = pairs.find(|(source, child)| source != child)?;
    (source.start == child.start).then_some((*source, *child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_small_and_needs_no_relocation() {
        let code = worker();
        assert!(code.len() > 100 && code.len() < 1024, "{} bytes", code.len());
        assert_eq!(code[..3], [0x48, 0x89, 0xf3], "mov rbx, rsi");
    }

    #[test]
    fn the_cut_is_the_first_difference() {
        let gap = |start, end| Gap { start, end };
        let common = [gap(1, 2), gap(5, 9)];
        let source = [common[0], common[1], gap(20, 30), gap(31, 40)];
        let child = [common[0], common[1], gap(20, 70)];
        assert_eq!(cut(&source, &child), Some((gap(20, 30), gap(20, 70))));
        assert_eq!(cut(&source, &common), None);
        assert_eq!(cut(&source, &[gap(3, 4)]), None);
    }
}
