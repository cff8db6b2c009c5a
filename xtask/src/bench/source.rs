//! A nano machine that is forked and timed by its own clock.
//!
//! The guest reads its TSC in a loop and logs every gap. The gap that the fork fell into begins at
//! the same time in the source and in each child: where the source's ends it went on, where a child's
//! ends that child was born.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ramet_engine::monitor::{Machine, Monitor};
use ramet_tests::nano::{self, Command, Gap, Mailbox};

/// Gaps shorter than this are not logged.
pub const LOGGED: Duration = Duration::from_micros(30);

/// A fork as the guests saw it, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The source's gap.
    pub pause: f64,
    /// The child's gap.
    pub first: f64,
}

/// Cycles of the guests' TSC per microsecond.
#[derive(Debug, Clone, Copy)]
pub struct Clock(f64);

impl Clock {
    /// Compares a guest's clock with ours for a while.
    pub fn of(machine: &Machine) -> Result<Self> {
        let look = || fresh(machine);
        let (first, begin) = look()?;
        thread::sleep(Duration::from_millis(500));
        let (second, end) = look()?;
        let cycles = second.checked_sub(first).context("the guest's clock went back")?;
        Ok(Self(cycles as f64 / (end - begin).as_secs_f64() / 1e6))
    }

    /// How long a gap was, in microseconds.
    pub fn microseconds(self, gap: Gap) -> f64 {
        gap.end.saturating_sub(gap.start) as f64 / self.0
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rounded, small, positive number"
    )]
    pub fn cycles(self, time: Duration) -> u64 {
        (time.as_secs_f64() * 1e6 * self.0) as u64
    }
}

/// The guest's latest time and ours, at most so far apart as two quick looks: on a busy machine the
/// guest may not have run for a while, so it must be seen to move between them.
fn fresh(machine: &Machine) -> Result<(u64, Instant)> {
    const QUICK: Duration = Duration::from_millis(1);
    for _ in 0..20_000 {
        let begin = Instant::now();
        let before = Mailbox::of(machine).read()?;
        let after = Mailbox::of(machine).read()?;
        if before.last != after.last && begin.elapsed() < QUICK {
            return Ok((after.last, Instant::now()));
        }
    }
    bail!("the guest hardly runs: this machine is too busy for figures")
}

/// Boots a machine and touches all of its memory.
pub fn boot(
    monitor: &Monitor,
    directory: &Path,
    ram_mib: u32,
    huge_pages: bool,
) -> Result<Machine> {
    let machine = monitor.start()?;
    machine.boot(nano::boot(directory, 1, ram_mib, huge_pages)?)?;
    Mailbox::of(&machine).await_counting()?;
    touch(&machine, nano::FREE, (u64::from(ram_mib) << 20) - nano::FREE)?;
    Ok(machine)
}

/// Has the guest write to every page of a range.
pub fn touch(machine: &Machine, start: u64, length: u64) -> Result<()> {
    Mailbox::of(machine).order(Command::Touch { start, length, stride: 4096 })?;
    Ok(())
}

/// Forgets gaps; from now on those of so many cycles count.
pub fn reset(machine: &Machine, threshold: u64, once: bool) -> Result<()> {
    Mailbox::of(machine).order(Command::Reset { threshold, once })?;
    Ok(())
}

/// Forks a running machine into one child, which is handed over.
pub fn fork_timed(machine: &Machine, clock: Clock) -> Result<(Machine, Times)> {
    reset(machine, clock.cycles(LOGGED), false)?;
    let child = machine.fork_plain(1)?.all()?.pop().context("no child")?;
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let source = Mailbox::of(machine).read()?.log;
        let own = Mailbox::of(&child).read()?.log;
        if let Some((source, own)) = nano::cut(&source, &own) {
            let (pause, first) = (clock.microseconds(source), clock.microseconds(own));
            return Ok((child, Times { pause, first }));
        }
        if Instant::now() > end {
            bail!("no instant of the fork in {source:?} and {own:?}");
        }
        thread::sleep(Duration::from_millis(1));
    }
}
