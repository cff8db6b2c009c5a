//! Forks into many children that are quiet once they have run.
//!
//! A hundred guests that spin would only measure how two cores are shared. So the source is a fork of
//! a paused machine and is told to power off after the next gap; the gap is the fork, and source and
//! children inherit the order. Each runs, says its gap on the console, and is still. A gap of the
//! host's own making can come first: then the attempt does not count.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ramet_engine::control::Error;
use ramet_engine::monitor::Machine;
use ramet_proto::control::{Code, State};
use ramet_tests::nano::{self, Gap, Mailbox};

use super::source::{Clock, Times, reset};

/// A gap shorter than this is not a fork of the 512 MiB that are forked here.
const FORK_MIN: Duration = Duration::from_micros(300);
/// How often a gap of the host's own making is put up with, for one sample.
const ATTEMPTS: usize = 100;

/// Forks a child of a paused machine into so many. `first` is when the last of them ran.
pub fn fork_timed(paused: &Machine, count: usize, clock: Clock) -> Result<Times> {
    for _ in 0..ATTEMPTS {
        let source = paused.fork_plain(1)?.all()?.pop().context("no child")?;
        Mailbox::of(&source).await_counting()?;
        if let Some(times) = attempt(&source, count, clock)? {
            return Ok(times);
        }
        // Whatever disturbed it may pass.
        thread::sleep(Duration::from_millis(10));
    }
    bail!("the host interrupts guests all the time: no quiet fork in {ATTEMPTS} attempts")
}

fn attempt(source: &Machine, count: usize, clock: Clock) -> Result<Option<Times>> {
    match reset(source, clock.cycles(FORK_MIN), true) {
        Err(error) if is_over(error.downcast_ref()) => return Ok(None),
        other => other?,
    }
    let children = match source.fork_plain(count) {
        Err(error) if is_over(Some(&error)) => return Ok(None),
        other => other?.all()?,
    };
    let mut times = Times { pause: gap(source, clock)?, first: 0.0 };
    for child in &children {
        times.first = times.first.max(gap(child, clock)?);
    }
    Machine::kill_all(children)?;
    Ok(Some(times))
}

/// What a machine says about its gap, once it is off.
fn gap(machine: &Machine, clock: Clock) -> Result<f64> {
    let end = Instant::now() + Duration::from_secs(20);
    while !matches!(machine.status()?.state, State::Stopped(_)) {
        if Instant::now() > end {
            bail!("a machine does not power off");
        }
        thread::sleep(Duration::from_millis(1));
    }
    let cycles = nano::said(machine)?.context("a machine has not said its gap")?;
    Ok(clock.microseconds(Gap { start: 0, end: cycles }))
}

/// The guest had powered off before the fork.
fn is_over(error: Option<&Error>) -> bool {
    error.and_then(Error::code) == Some(Code::WrongState) || matches!(error, Some(Error::Timeout))
}
