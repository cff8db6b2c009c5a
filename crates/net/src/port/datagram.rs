//! Datagrams: UDP and echo requests, each pair of ends with a socket of its own that ends when it is not used.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use super::wire::Wire;
use crate::{frame, reply};

/// How long a pair lives that never had an answer, and one that had.
const IDLE_ASKED: Duration = Duration::from_secs(30);
const IDLE_ANSWERED: Duration = Duration::from_secs(180);
/// Datagrams of one socket before others have their turn.
const BATCH: usize = 32;
/// Largest payload.
const PAYLOAD_MAX: usize = 65_507;

/// What goes over a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UDP.
    Udp,
    /// Echo requests; the guest's port is their identifier.
    Echo,
}

/// A pair of ends.
#[derive(Debug)]
pub struct Flow {
    /// What goes over it.
    pub kind: Kind,
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other.
    pub to: SocketAddr,
    /// Names of the address when it was made.
    pub names: Vec<String>,
    outside: OwnedFd,
    answered: bool,
    active: Instant,
    /// The socket has more.
    pub readable: bool,
}

/// What the outside said of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody listens.
    Port,
    /// Nobody is there.
    Host,
}

impl Flow {
    /// A new pair.
    ///
    /// # Errors
    /// If the host gives no socket, or none for echo requests.
    pub fn new(kind: Kind, guest: SocketAddr, to: SocketAddr, now: Instant) -> Result<Self, Errno> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let protocol = match (kind, to.is_ipv4()) {
            (Kind::Udp, _) => ipproto::UDP,
            (Kind::Echo, true) => ipproto::ICMP,
            (Kind::Echo, false) => ipproto::ICMPV6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let outside = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
        let peer = if kind == Kind::Echo { SocketAddr::new(to.ip(), 0) } else { to };
        rustix::net::connect(&outside, &peer)?;
        let names = Vec::new();
        Ok(Self { kind, guest, to, names, outside, answered: false, active: now, readable: false })
    }

    /// The socket.
    #[must_use]
    pub fn outside(&self) -> &OwnedFd {
        &self.outside
    }

    /// When it ends if nothing happens.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.active + if self.answered { IDLE_ANSWERED } else { IDLE_ASKED }
    }

    /// Sends a payload; for an echo request with its header.
    ///
    /// # Errors
    /// What the outside said, of this one or one before.
    pub fn send(&mut self, wire: &mut Wire, payload: &[u8]) -> Result<(), Refusal> {
        self.active = wire.now;
        if !wire.upward.take_all(payload.len() as u64, wire.now) {
            wire.stats.dropped += 1;
            return Ok(());
        }
        match rustix::io::write(&self.outside, payload) {
            // The first reports what came back of an earlier one; this one has not gone out.
            Err(Errno::CONNREFUSED) => {
                let _ = rustix::io::write(&self.outside, payload);
                Err(Refusal::Port)
            }
            Err(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN) => Err(Refusal::Host),
            Err(_) => {
                wire.stats.dropped += 1;
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Passes on what the socket has.
    ///
    /// # Errors
    /// What the outside said of one that was sent.
    pub fn receive(&mut self, wire: &mut Wire) -> Result<(), Refusal> {
        thread_local! {
            static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; PAYLOAD_MAX]);
        }
        ROOM.with_borrow_mut(|room| self.receive_into(wire, room))
    }

    fn receive_into(&mut self, wire: &mut Wire, room: &mut [u8]) -> Result<(), Refusal> {
        for _ in 0..BATCH {
            if !wire.link.ready() {
                return Ok(());
            }
            match rustix::io::read(&self.outside, &mut *room) {
                Ok(length) => self.deliver(wire, &room[..length]),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.readable = false;
                    return match error {
                        Errno::CONNREFUSED => Err(Refusal::Port),
                        Errno::HOSTUNREACH | Errno::NETUNREACH => Err(Refusal::Host),
                        _ => Ok(()),
                    };
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, wire: &mut Wire, payload: &[u8]) {
        (self.answered, self.active) = (true, wire.now);
        if !wire.downward.take_all(payload.len() as u64, wire.now) {
            wire.stats.dropped += 1;
            return;
        }
        let message = match self.kind {
            Kind::Udp => frame::udp(
                (self.to.ip(), self.to.port()),
                (self.guest.ip(), self.guest.port()),
                payload,
            ),
            Kind::Echo => match payload {
                [0 | 129, 0, _, _, _, _, a, b, data @ ..] => reply::echo_reply(
                    self.to.ip(),
                    self.guest.ip(),
                    self.guest.port(),
                    u16::from_be_bytes([*a, *b]),
                    data,
                ),
                _ => None,
            },
        };
        if let Some(message) = message {
            wire.send(&message);
        }
    }
}
