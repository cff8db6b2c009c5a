//! Readiness of all sockets of a port: one epoll, which the runtime waits for as for any other descriptor.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Events at a time.
const BATCH: usize = 64;

/// Sockets of a port.
#[derive(Debug)]
pub struct Outside {
    epoll: AsyncFd<OwnedFd>,
}

impl Outside {
    /// None yet.
    ///
    /// # Errors
    /// If the host gives no descriptor.
    pub fn new() -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll: crate::sys::watch(epoll, Interest::READABLE)? })
    }

    /// Waits for a socket from now on; it is told once of each change.
    ///
    /// # Errors
    /// If the host cannot.
    pub fn add(&self, socket: impl AsFd, flow: u64) -> rustix::io::Result<()> {
        use epoll::EventFlags as Flags;
        let all = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        epoll::add(self.epoll.get_ref(), socket, epoll::EventData::new_u64(flow), all)
    }

    /// No more.
    pub fn remove(&self, socket: impl AsFd) {
        let _ = epoll::delete(self.epoll.get_ref(), socket);
    }

    /// Until a socket is ready.
    pub async fn readable(&self) {
        if self.epoll.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Which are.
    #[must_use]
    pub fn ready(&self) -> Vec<(u64, epoll::EventFlags)> {
        let mut events = Vec::with_capacity(BATCH);
        // Fewer than there was room for are all there are: the next that comes is told anew.
        let _ = self.epoll.try_io(Interest::READABLE, |fd| {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(fd, rustix::buffer::spare_capacity(&mut events), Some(&now))? {
                BATCH => Ok(()),
                _ => Err(std::io::Error::from(std::io::ErrorKind::WouldBlock)),
            }
        });
        events.iter().map(|event| (event.data.u64(), event.flags)).collect()
    }
}
