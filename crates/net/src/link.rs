//! The link of a port: messages to and from the monitor, never waiting.
//!
//! A link is a seqpacket socket; a TAP device with a virtio-net header of twelve bytes speaks the same and does as well. What does not
//! go out at once is kept, in order, up to a bound. Who has more to send waits until [`Link::ready`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most bytes that wait.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// What came of sending a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way, or waits for its turn.
    Yes,
    /// Too much waits already.
    Dropped,
}

/// The service's end of a link.
#[derive(Debug)]
pub struct Link {
    fd: AsyncFd<OwnedFd>,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// The other end is gone.
    closed: bool,
}

impl Link {
    /// Takes the descriptor. It must be called inside the runtime.
    ///
    /// # Errors
    /// If it is not one that can be waited for.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // As much as an unprivileged process may; a frame can be 64 KiB.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, 4 << 20);
        let fd = crate::sys::watch(fd, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { fd, waiting: VecDeque::new(), waiting_bytes: 0, closed: false })
    }

    /// Whether the other end is gone.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Until there may be a message.
    pub async fn readable(&self) {
        if self.closed || self.fd.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Until what waits may go out. For ever if nothing waits.
    pub async fn writable(&self) {
        if self.closed || self.ready() || self.fd.writable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The next message, if there is one.
    pub fn receive<'b>(&mut self, room: &'b mut [u8]) -> Option<&'b [u8]> {
        if self.closed {
            return None;
        }
        let read = self.fd.try_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *room)?));
        match read {
            Ok(0) => self.closed = true,
            Ok(length) => return room.get(..length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.closed = true,
        }
        None
    }

    /// Sends a message, now or when those before it are gone.
    pub fn send(&mut self, message: &[u8]) -> Sent {
        if self.closed {
            return Sent::Dropped;
        }
        if self.ready() && self.write(message) {
            return Sent::Yes;
        }
        if self.closed || self.waiting_bytes + message.len() > WAITING_BYTES_MAX {
            return Sent::Dropped;
        }
        self.waiting_bytes += message.len();
        self.waiting.push_back(message.to_vec());
        Sent::Yes
    }

    /// Sends what waits, as far as it goes.
    pub fn flush(&mut self) {
        while let Some(message) = self.waiting.pop_front() {
            if !self.write(&message) {
                self.waiting.push_front(message);
                break;
            }
            self.waiting_bytes -= message.len();
        }
        if self.closed {
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
        if self.waiting.is_empty() {
            self.waiting.shrink_to(16);
        }
    }

    /// Whether it went out. A message that the kernel does not take for its own reasons is gone, as on any wire.
    fn write(&mut self, message: &[u8]) -> bool {
        let written = self.fd.try_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, message)?));
        match written {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                self.closed |= matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                );
                !self.closed
            }
        }
    }
}
