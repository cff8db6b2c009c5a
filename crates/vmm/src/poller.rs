//! epoll, with one word of the caller's for each descriptor.
//!
//! The object belongs to one process: a forked child makes its own and never touches its parent's.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Events taken at once.
const BATCH: usize = 64;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to read, or a connection to accept.
    pub read: bool,
    /// Room to write.
    pub write: bool,
    /// Only once; ask again with [`Poller::modify`].
    pub once: bool,
}

/// Wait for something to read.
pub const READ: Interest = Interest { read: true, write: false, once: false };

/// What happened.
#[derive(Debug, Clone, Copy)]
pub struct Ready {
    /// The caller's word.
    pub token: u64,
    /// Reading will not block.
    pub read: bool,
    /// Writing will not block.
    pub write: bool,
}

/// An epoll object.
pub struct Poller {
    epoll: Epoll,
}

impl Poller {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new()? })
    }

    /// Starts to watch a descriptor.
    pub fn add(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event(token, interest))
    }

    /// Watches for something else.
    pub fn modify(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Modify, fd.as_raw_fd(), event(token, interest))
    }

    /// Stops watching. Unknown descriptors are none to watch.
    pub fn remove(&self, fd: &impl AsRawFd) {
        let fd: RawFd = fd.as_raw_fd();
        let _unknown = self.epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
    }

    /// Waits until something happens, at most `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
        let timeout = timeout.map_or(-1, |timeout| {
            // Rounded up, so that a deadline has passed when its wait is over.
            i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        let mut events = [EpollEvent::default(); BATCH];
        let count = match self.epoll.wait(timeout, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        Ok(events[..count].iter().map(ready).collect())
    }
}

fn event(token: u64, interest: Interest) -> EpollEvent {
    let mut set = EventSet::empty();
    set.set(EventSet::IN, interest.read);
    set.set(EventSet::OUT, interest.write);
    set.set(EventSet::ONE_SHOT, interest.once);
    EpollEvent::new(set, token)
}

fn ready(event: &EpollEvent) -> Ready {
    let set = event.event_set();
    let over = set.intersects(EventSet::HANG_UP | EventSet::ERROR);
    Ready {
        token: event.data(),
        read: over || set.contains(EventSet::IN),
        write: over || set.contains(EventSet::OUT),
    }
}
