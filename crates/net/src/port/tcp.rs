//! One TCP connection: the guest's end in a stack of its own, the outside's in a socket.
//!
//! ```text
//!   Connecting ── socket connected ──▶ Open ── name heard, if one is needed ──▶ bytes both ways ──▶ gone
//!       └── refused, unreachable, late ──▶ gone, and the guest is told
//! ```
//!
//! The guest's SYN is held while the outside is tried, so that the guest sees what the outside said. Bytes go from the guest's buffer straight into the socket
//! and back; when one side does not take any, the other is not read. Each way is closed on its own.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::wire::{Poll, Wire};
use crate::sniff::{self, Heard};

/// From the guest, not yet passed on. More than the guest's window needs between two reads.
const UPWARD: usize = 512 << 10;
/// To the guest, not yet acknowledged.
const DOWNWARD: usize = 512 << 10;
/// How long the outside may take to answer.
const CONNECT: Duration = Duration::from_secs(20);
/// How long the guest may take to complete a connection, or to say what it wants.
const HALF_OPEN: Duration = Duration::from_secs(30);
/// How long the guest may leave bytes without an answer.
const SILENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(120);
/// How long nothing at all may happen.
const IDLE: Duration = Duration::from_secs(2 * 3600 + 600);
/// How long nothing may happen after one side has closed.
const IDLE_HALF_CLOSED: Duration = Duration::from_secs(600);

/// A connection.
pub struct Flow {
    /// The guest's end.
    pub guest: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// Names of the address when it was made, and the one that was heard, alone.
    pub names: Vec<String>,
    /// Nothing of the guest is passed on before it said a name that fits.
    pub listening: bool,
    /// It goes through the edge, which adds a secret.
    pub edge: bool,
    outside: OwnedFd,
    stage: Stage,
    readable: bool,
    writable: bool,
    /// The outside has hung up: read until its end.
    hung_up: bool,
    /// The outside's end was passed on to the guest.
    ended_down: bool,
    /// The guest's end was passed on to the outside.
    ended_up: bool,
    /// The guest has closed its way.
    guest_closed: bool,
    /// A limit stopped it.
    pub throttled: bool,
    active: Instant,
}

enum Stage {
    Connecting { syn: Vec<u8> },
    Open(Box<Stack>),
}

struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

/// How a flow is after a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// It goes on.
    On,
    /// It is over.
    Over,
    /// The guest said these first bytes, and waits.
    Heard(Heard),
}

/// How trying the outside went.
#[derive(Debug, PartialEq, Eq)]
pub enum Connected {
    /// Nothing is known yet.
    NotYet,
    /// It is open.
    Yes,
    /// It failed; with the guest's SYN.
    No(Errno, Vec<u8>),
}

impl Flow {
    /// A connection that is being tried.
    #[must_use]
    pub fn new(
        guest: SocketAddr,
        to: SocketAddr,
        outside: OwnedFd,
        syn: Vec<u8>,
        now: Instant,
    ) -> Self {
        Self {
            guest,
            to,
            names: Vec::new(),
            listening: false,
            edge: false,
            outside,
            stage: Stage::Connecting { syn },
            readable: false,
            writable: false,
            hung_up: false,
            ended_down: false,
            ended_up: false,
            guest_closed: false,
            throttled: false,
            active: now,
        }
    }

    /// Whether the outside is still being tried.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting { .. })
    }

    /// The socket to the outside.
    #[must_use]
    pub fn outside(&self) -> &OwnedFd {
        &self.outside
    }

    /// Another end instead of the outside's, which is given back.
    pub fn replace_outside(&mut self, other: OwnedFd) -> OwnedFd {
        (self.readable, self.writable, self.hung_up) = (false, true, false);
        std::mem::replace(&mut self.outside, other)
    }

    /// Notes what the socket is ready for.
    pub fn ready(&mut self, events: EventFlags) {
        let broken = events.intersects(EventFlags::ERR | EventFlags::HUP);
        self.readable |= broken || events.intersects(EventFlags::IN | EventFlags::RDHUP);
        self.writable |= broken || events.contains(EventFlags::OUT);
        self.hung_up |= broken || events.contains(EventFlags::RDHUP);
    }

    /// Looks how trying the outside went, and opens the guest's end if it is there.
    pub fn connected(&mut self, wire: &mut Wire) -> Connected {
        let Stage::Connecting { syn } = &mut self.stage else { return Connected::Yes };
        let expired = wire.now.saturating_duration_since(self.active) >= CONNECT;
        let error = match rustix::net::sockopt::socket_error(&self.outside) {
            Ok(Ok(())) if self.writable => None,
            Ok(Ok(())) if expired => Some(Errno::TIMEDOUT),
            Ok(Ok(())) => return Connected::NotYet,
            Ok(Err(error)) | Err(error) => Some(error),
        };
        let syn = std::mem::take(syn);
        if let Some(error) = error {
            return Connected::No(error, syn);
        }
        self.active = wire.now;
        let mut stack = Stack::new(self.to, wire);
        stack.ingress(wire, &syn);
        stack.egress(wire);
        self.stage = Stage::Open(Box::new(stack));
        Connected::Yes
    }

    /// A packet of the guest, or something else that happened.
    pub fn turn(&mut self, wire: &mut Wire, packet: Option<&[u8]>) -> Turn {
        let Stage::Open(stack) = &mut self.stage else { return Turn::On };
        if let Some(packet) = packet {
            stack.ingress(wire, packet);
        }
        self.throttled = false;
        loop {
            let Stage::Open(stack) = &mut self.stage else { return Turn::On };
            let state = stack.socket().state();
            self.guest_closed |= has_fin(state);
            if self.listening {
                match stack.hear() {
                    // No more will come.
                    Heard::More if self.guest_closed && stack.socket().recv_queue() > 0 => {
                        return Turn::Heard(Heard::Other);
                    }
                    Heard::More => {}
                    heard => return Turn::Heard(heard),
                }
            }
            let up = self.upward(wire);
            let down = self.downward(wire);
            if let (Err(_), _) | (_, Err(_)) = (up, down) {
                self.abort(wire);
                return Turn::Over;
            }
            let Stage::Open(stack) = &mut self.stage else { return Turn::On };
            stack.egress(wire);
            if !(up == Ok(true) || down == Ok(true)) || !wire.link.ready() {
                break;
            }
        }
        if self.is_over() { Turn::Over } else { Turn::On }
    }

    /// The guest is told that the connection is broken, and so is the outside.
    pub fn abort(&mut self, wire: &mut Wire) {
        // So that dropping the socket resets the connection.
        let _ = rustix::net::sockopt::set_socket_linger(&self.outside, Some(Duration::ZERO));
        if let Stage::Open(stack) = &mut self.stage {
            stack.socket().abort();
            stack.egress(wire);
        }
    }

    /// When it wants its turn, whatever happens.
    pub fn due(&mut self, wire: &Wire) -> Instant {
        let limit = self.active + self.patience();
        let Stage::Open(stack) = &mut self.stage else { return limit };
        if self.throttled {
            return limit.min(wire.now + wire.upward.pause());
        }
        let now = wire.smoltcp_now();
        let at = stack.interface.poll_at(now, &stack.sockets).map(|at| wire.std_time(at));
        // What wants to be sent at once was not, for the link is full: that is known elsewhere.
        at.filter(|at| *at > wire.now).map_or(limit, |at| at.min(limit))
    }

    /// Whether nothing has happened for too long.
    #[must_use]
    pub fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.active) >= self.patience()
    }

    fn patience(&self) -> Duration {
        match &self.stage {
            Stage::Connecting { .. } => CONNECT,
            Stage::Open(stack) if stack.view().state() == State::SynReceived => HALF_OPEN,
            Stage::Open(stack) if self.listening && stack.view().recv_queue() > 0 => HALF_OPEN,
            Stage::Open(_) if self.ended_down || self.guest_closed => IDLE_HALF_CLOSED,
            Stage::Open(_) => IDLE,
        }
    }

    /// Guest to outside. Whether anything moved.
    fn upward(&mut self, wire: &mut Wire) -> Result<bool, Errno> {
        let Stage::Open(stack) = &mut self.stage else { return Ok(false) };
        let socket = stack.socket();
        let mut moved = false;
        while !self.listening && self.writable && socket.can_recv() {
            let most = usize::try_from(wire.upward.available(wire.now)).unwrap_or(usize::MAX);
            if most == 0 {
                self.throttled = true;
                break;
            }
            let outside = &self.outside;
            let write = |bytes: &mut [u8]| match rustix::io::write(
                outside,
                &bytes[..bytes.len().min(most)],
            ) {
                Ok(written) => (written, Ok(written)),
                Err(error) => (0, Err(error)),
            };
            match socket.recv(write) {
                Ok(Ok(written)) => {
                    wire.upward.take(written as u64);
                    self.active = wire.now;
                    moved = true;
                }
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => break,
            }
        }
        if self.guest_closed && !self.ended_up && socket.recv_queue() == 0 {
            let _ = rustix::net::shutdown(&self.outside, rustix::net::Shutdown::Write);
            self.ended_up = true;
        }
        Ok(moved)
    }

    /// Outside to guest. Whether anything moved.
    fn downward(&mut self, wire: &mut Wire) -> Result<bool, Errno> {
        let Stage::Open(stack) = &mut self.stage else { return Ok(false) };
        let socket = stack.socket();
        let mut moved = false;
        while self.readable && !self.ended_down && socket.can_send() {
            let most = usize::try_from(wire.downward.available(wire.now)).unwrap_or(usize::MAX);
            if most == 0 {
                self.throttled = true;
                break;
            }
            let outside = &self.outside;
            let mut room = 0;
            let read = |bytes: &mut [u8]| {
                room = bytes.len().min(most);
                match rustix::io::read(outside, &mut bytes[..room]) {
                    Ok(read) => (read, Ok(read)),
                    Err(error) => (0, Err(error)),
                }
            };
            match socket.send(read) {
                Ok(Ok(0)) => {
                    socket.close();
                    self.ended_down = true;
                    moved = true;
                }
                Ok(Ok(read)) => {
                    wire.downward.take(read as u64);
                    self.active = wire.now;
                    moved = true;
                    self.readable = self.hung_up || read == room;
                }
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    /// Both ways are done, or the guest has reset it.
    fn is_over(&mut self) -> bool {
        let Stage::Open(stack) = &mut self.stage else { return false };
        let socket = stack.socket();
        match socket.state() {
            State::TimeWait => self.ended_up,
            State::Closed if self.ended_down && self.guest_closed => self.ended_up,
            State::Closed | State::Listen => {
                let _ =
                    rustix::net::sockopt::set_socket_linger(&self.outside, Some(Duration::ZERO));
                true
            }
            _ => false,
        }
    }
}

fn has_fin(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
}

impl Stack {
    /// A stack that stands for one address and waits for one connection.
    fn new(to: SocketAddr, wire: &mut Wire) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = random();
        let now = wire.smoltcp_now();
        let mut interface = Interface::new(config, &mut Poll { wire, packet: None }, now);
        // A prefix of zero: the guest is on the same link, whatever its address.
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(to.ip().into(), 0));
        });
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(UPWARD), buffer(DOWNWARD));
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(SILENCE));
        let _ = socket.listen(to.port());
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { interface, sockets, handle }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn view(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    fn ingress(&mut self, wire: &mut Wire, packet: &[u8]) {
        let now = wire.smoltcp_now();
        let mut poll = Poll { wire, packet: Some(packet) };
        self.interface.poll_ingress_single(now, &mut poll, &mut self.sockets);
    }

    fn egress(&mut self, wire: &mut Wire) {
        let now = wire.smoltcp_now();
        let mut poll = Poll { wire, packet: None };
        while self.interface.poll_egress(now, &mut poll, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
    }

    /// The first bytes, which lie at the front of the buffer as long as none was taken.
    fn hear(&mut self) -> Heard {
        let socket = self.socket();
        match socket.peek(sniff::NEEDED_MAX) {
            Ok(bytes) => sniff::listen(bytes),
            Err(_) => Heard::More,
        }
    }
}

/// Sequence numbers must not be guessed.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
