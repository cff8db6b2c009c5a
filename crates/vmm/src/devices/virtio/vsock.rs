//! virtio-vsock: streams between the host's Unix sockets and ports of the guest, and the agent's link.
//!
//! Streams are opened by the host only ([`Vsock::open`]); the guest may open one connection, its link to the
//! monitor ([`ramet_proto::doorbell::LINK_PORT`]), and anything else it asks for is reset. The link ends in
//! this process's memory, so it goes on in a forked child; a stream ends in a socket that belongs to the
//! source's client, so [`Vsock::disown_streams`] resets it in the child while the source keeps it.
//!
//! Nothing is buffered without bound: bytes for the guest stay in the socket until the guest gave credit and a
//! buffer for them, bytes from the guest are bounded by the credit that it was given, and it loses its
//! connection if it takes more. Work that needs a buffer of the guest waits in `active`, in turn.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ramet_proto::agent::{ToAgent, ToMonitor};
use ramet_proto::doorbell::LINK_PORT;
use serde::{Deserialize, Serialize};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use virtio_vsock::packet::VsockPacket;
use vm_memory::Bytes;

use super::{Inside, Progress, Transport, next_chain, serve};
use crate::memory::Guest;
use crate::poller::{Interest, Poller};

const KIND: u32 = 19;
const QUEUE: u16 = 128;
const RX: usize = 0;
const TX: usize = 1;
/// The guest's address. Every machine has the same one: nobody else can see it.
const GUEST_CID: u64 = 3;
const HOST_CID: u64 = 2;
/// Host ports of streams.
const FIRST_PORT: u32 = 1 << 30;
/// Bytes from the guest that wait for a slow reader.
const WINDOW: u32 = 256 << 10;
/// Largest packet either way.
const PACKET_MAX: u32 = 64 << 10;
/// Most connections.
pub const CONNECTIONS_MAX: usize = 2048;
/// Resets that wait for a buffer of the guest.
const RESETS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Longest line on the link.
const LINE_MAX: usize = 64 << 10;
/// Bytes for the agent that wait until it listens.
const BACKLOG_MAX: usize = 256 << 10;
/// A guest that does not answer a new connection by then never will.
const OPEN_DEADLINE: Duration = Duration::from_secs(20);

const STREAM: u16 = 1;
const OP_REQUEST: u16 = 1;
const OP_RESPONSE: u16 = 2;
const OP_RST: u16 = 3;
const OP_SHUTDOWN: u16 = 4;
const OP_RW: u16 = 5;
const OP_CREDIT_UPDATE: u16 = 6;
const OP_CREDIT_REQUEST: u16 = 7;
const SHUT_RECEIVE: u32 = 1;
const SHUT_SEND: u32 = 2;

/// Host port and guest port.
type Key = (u32, u32);

/// What the guest's side of the device tells the rest of the monitor.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// The agent's link is up, its last words may be from before.
    LinkUp,
    /// It is down.
    LinkDown,
    /// The agent says something.
    Link(ToMonitor),
}

/// Flow control of one connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Flow {
    /// Bytes sent to the guest.
    sent: u32,
    peer_window: u32,
    peer_taken: u32,
    /// Bytes from the guest that went on to their reader.
    taken: u32,
    /// What the guest knows of it.
    taken_told: u32,
    /// Bytes received from the guest.
    received: u32,
}

impl Flow {
    /// Bytes that the guest can take.
    fn credit(&self) -> u32 {
        self.peer_window.saturating_sub(self.sent.wrapping_sub(self.peer_taken))
    }

    /// The guest has seen half of its window used up.
    fn wants_telling(&self) -> bool {
        self.taken.wrapping_sub(self.taken_told) >= WINDOW / 2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The guest has not answered.
    Opening(Instant),
    Open,
}

enum Peer {
    Stream {
        socket: UnixStream,
        /// Written to the socket when the guest accepts, or refuses.
        greeting: Vec<u8>,
        refusal: Vec<u8>,
    },
    Link,
}

/// Packets without data that a connection owes the guest.
#[derive(Debug, Default, Clone, Copy)]
struct Owed {
    request: bool,
    response: bool,
    credit: bool,
    shutdown: u32,
}

impl Owed {
    fn any(self) -> bool {
        self.request || self.response || self.credit || self.shutdown != 0
    }
}

struct Connection {
    peer: Peer,
    phase: Phase,
    flow: Flow,
    owed: Owed,
    /// Bytes for the socket, or for the guest if it is the link.
    buffer: VecDeque<u8>,
    /// Bytes at the front of the buffer that did not come from the guest.
    uncounted: usize,
    /// There may be something to read in the socket.
    readable: bool,
    /// The socket has nothing more to read.
    ended: bool,
    /// What the guest will not do any more.
    guest_shut: u32,
    /// It stands in the queue of those with work.
    queued: bool,
}

/// The device.
pub struct Vsock {
    connections: HashMap<Key, Connection>,
    active: VecDeque<Key>,
    resets: VecDeque<Key>,
    notices: Vec<Notice>,
    next_port: u32,
    link: Option<Key>,
    line: Vec<u8>,
}

/// What must be saved: only the link outlives the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VsockState {
    link: Option<(Key, Flow, Vec<u8>, Vec<u8>)>,
    resets: Vec<Key>,
    next_port: u32,
}

/// The device's registers.
pub fn transport() -> Transport {
    Transport::new(KIND, 0, &[QUEUE; 3], GUEST_CID.to_le_bytes().to_vec())
}

impl Default for Vsock {
    fn default() -> Self {
        Self {
            connections: HashMap::new(),
            active: VecDeque::new(),
            resets: VecDeque::new(),
            notices: Vec::new(),
            next_port: FIRST_PORT,
            link: None,
            line: Vec::new(),
        }
    }
}

impl Vsock {
    /// Whether there is room for one more stream.
    pub fn has_room(&self) -> bool {
        self.connections.len() < CONNECTIONS_MAX
    }

    /// Connects a socket to a port of the guest. `greeting` is written to it when the guest accepts,
    /// `refusal` if not.
    pub fn open(&mut self, socket: UnixStream, port: u32, greeting: Vec<u8>, refusal: Vec<u8>) {
        let key = loop {
            let key = (self.next_port, port);
            self.next_port = FIRST_PORT + (self.next_port + 1 - FIRST_PORT) % FIRST_PORT;
            if !self.connections.contains_key(&key) {
                break key;
            }
        };
        let peer = Peer::Stream { socket, greeting, refusal };
        let mut connection = Connection::new(peer, Phase::Opening(Instant::now()));
        connection.owed.request = true;
        self.connections.insert(key, connection);
        self.activate(key);
    }

    /// The connection that a token of the poller stands for has something to do.
    pub fn ready(&mut self, token: u64, write: bool, read: bool, poller: &Poller) {
        let key = from_token(token);
        let Some(connection) = self.connections.get_mut(&key) else { return };
        connection.readable |= read;
        if write {
            self.drain(key, poller);
        }
        if let Some(connection) = self.connections.get(&key) {
            connection.watch(key, poller);
            self.activate(key);
        }
    }

    /// Says something to the agent. False if there is no link, or none any more.
    #[must_use]
    pub fn tell(&mut self, message: &ToAgent) -> bool {
        let Some(key) = self.link else { return false };
        let Some(connection) = self.connections.get_mut(&key) else { return false };
        let Ok(line) = serde_json::to_vec(message) else { return false };
        if connection.buffer.len() + line.len() > BACKLOG_MAX {
            // An agent that does not listen; it may come back.
            self.connections.remove(&key);
            self.lose_link();
            self.owe_reset(key);
            return false;
        }
        connection.buffer.extend(line);
        connection.buffer.push_back(b'\n');
        self.activate(key);
        true
    }

    /// What happened since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// When to call [`Self::expire`].
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(Connection::deadline).min()
    }

    /// Gives up connections that the guest did not answer in time.
    pub fn expire(&mut self, now: Instant, poller: &Poller) {
        let late = |connection: &Connection| connection.deadline().is_some_and(|end| end <= now);
        let keys: Vec<_> =
            self.connections.iter().filter(|(_, c)| late(c)).map(|(key, _)| *key).collect();
        for key in keys {
            self.reset(key, poller);
        }
    }

    /// In a forked child: the sockets belong to the source. They are forgotten (the caller closes all
    /// descriptors that the child does not keep) and the guest's side is reset.
    pub fn disown_streams(&mut self) {
        let streams: Vec<Key> =
            self.connections.keys().copied().filter(|key| self.link != Some(*key)).collect();
        for key in streams {
            if let Some(connection) = self.connections.remove(&key) {
                if let Peer::Stream { socket, .. } = connection.peer {
                    std::mem::forget(socket);
                }
                self.resets.push_back(key);
            }
        }
        self.active.retain(|key| self.link == Some(*key));
    }

    /// What must be saved, after [`Self::disown_streams`].
    pub fn state(&self) -> VsockState {
        let link = self.link.and_then(|key| Some((key, self.connections.get(&key)?)));
        VsockState {
            link: link.map(|(key, connection)| {
                let waiting = connection.buffer.iter().copied().collect();
                (key, connection.flow.clone(), waiting, self.line.clone())
            }),
            resets: self.resets.iter().copied().collect(),
            next_port: self.next_port,
        }
    }

    /// The device that was saved.
    pub fn restored(state: VsockState) -> Self {
        let mut vsock = Self {
            resets: state.resets.into(),
            next_port: FIRST_PORT + state.next_port % FIRST_PORT,
            ..Self::default()
        };
        if let Some((key, flow, waiting, line)) = state.link {
            let mut connection = Connection::new(Peer::Link, Phase::Open);
            connection.flow = flow;
            connection.buffer = waiting.into();
            vsock.connections.insert(key, connection);
            vsock.link = Some(key);
            vsock.line = line;
            vsock.activate(key);
        }
        vsock
    }

    /// Works on both queues as far as they go. Whether the guest is to be interrupted.
    pub fn serve(&mut self, transport: &Transport, memory: &Guest, poller: &Poller) -> bool {
        let mut inside = transport.queues();
        if std::mem::take(&mut inside.was_reset) {
            self.forget_all(poller);
        }
        if !inside.live() {
            return false;
        }
        let heard = self.hear(&mut inside, memory, poller);
        let spoken = self.speak(&mut inside.queues[RX], memory, poller);
        inside.settle(heard) | inside.settle(spoken)
    }

    /// Takes packets from the guest.
    fn hear(
        &mut self,
        inside: &mut Inside,
        memory: &Guest,
        poller: &Poller,
    ) -> Result<Progress, virtio_queue::Error> {
        serve(&mut inside.queues[TX], memory, |mut chain| {
            // A packet that cannot be read is dropped; its sender knows why.
            if let Ok(packet) = VsockPacket::from_tx_virtq_chain(memory, &mut chain, PACKET_MAX) {
                self.take_packet(&Heard::of(&packet), poller);
            }
            0
        })
    }

    fn take_packet(&mut self, packet: &Heard, poller: &Poller) {
        let ours = packet.src_cid == GUEST_CID && packet.dst_cid == HOST_CID;
        if !ours || packet.kind != STREAM {
            return;
        }
        let key = (packet.dst_port, packet.src_port);
        if packet.op == OP_REQUEST {
            return self.take_request(key, packet, poller);
        }
        let Some(connection) = self.connections.get_mut(&key) else {
            if packet.op != OP_RST {
                self.owe_reset(key);
            }
            return;
        };
        connection.flow.peer_window = packet.window;
        connection.flow.peer_taken = packet.taken;
        match packet.op {
            OP_RESPONSE => self.take_response(key, poller),
            OP_RST => self.drop_connection(key, poller),
            OP_SHUTDOWN => self.take_shutdown(key, packet.flags, poller),
            OP_RW => self.take_data(key, &packet.data, poller),
            OP_CREDIT_REQUEST => connection.owed.credit = true,
            OP_CREDIT_UPDATE => connection.watch(key, poller),
            _ => self.reset(key, poller),
        }
        self.activate(key);
    }

    fn take_request(&mut self, key: Key, packet: &Heard, poller: &Poller) {
        if self.connections.contains_key(&key) {
            return self.reset(key, poller);
        }
        if key.0 != LINK_PORT {
            return self.owe_reset(key);
        }
        if let Some(old) = self.link {
            self.reset(old, poller);
        }
        let mut connection = Connection::new(Peer::Link, Phase::Open);
        connection.owed.response = true;
        connection.flow.peer_window = packet.window;
        connection.flow.peer_taken = packet.taken;
        self.connections.insert(key, connection);
        self.link = Some(key);
        self.notices.push(Notice::LinkUp);
        self.activate(key);
    }

    fn take_response(&mut self, key: Key, poller: &Poller) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !matches!(connection.phase, Phase::Opening(_)) {
            return self.reset(key, poller);
        }
        connection.phase = Phase::Open;
        if let Peer::Stream { socket, greeting, .. } = &mut connection.peer {
            let greeting = std::mem::take(greeting);
            connection.uncounted = greeting.len();
            connection.buffer.extend(greeting);
            // Without a watch the stream would never be read; that cannot be left open.
            if poller.add(socket, to_token(key), NOTHING).is_err() {
                return self.reset(key, poller);
            }
        }
        connection.readable = true;
        self.drain(key, poller);
    }

    fn take_data(&mut self, key: Key, data: &[u8], poller: &Poller) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        connection.flow.received = connection.flow.received.wrapping_add(length);
        let outstanding = connection.flow.received.wrapping_sub(connection.flow.taken);
        let refused = outstanding > WINDOW
            || connection.phase != Phase::Open
            || connection.guest_shut & SHUT_SEND != 0;
        if refused {
            return self.reset(key, poller);
        }
        if matches!(connection.peer, Peer::Link) {
            connection.flow.taken = connection.flow.received;
            connection.owed.credit |= connection.flow.wants_telling();
            return self.take_lines(key, data, poller);
        }
        connection.buffer.extend(data);
        self.drain(key, poller);
    }

    fn take_lines(&mut self, key: Key, data: &[u8], poller: &Poller) {
        for byte in data {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let Ok(message) = serde_json::from_slice(&self.line) else {
                return self.reset(key, poller);
            };
            self.line.clear();
            self.notices.push(Notice::Link(message));
        }
        if self.line.len() > LINE_MAX || self.notices.len() > CONNECTIONS_MAX {
            self.reset(key, poller);
        }
    }

    fn take_shutdown(&mut self, key: Key, flags: u32, poller: &Poller) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let Peer::Stream { socket, .. } = &connection.peer else {
            return self.reset(key, poller); // half a link is of no use
        };
        if connection.phase != Phase::Open {
            return self.reset(key, poller);
        }
        connection.guest_shut |= flags & (SHUT_RECEIVE | SHUT_SEND);
        if connection.guest_shut & SHUT_RECEIVE != 0 {
            connection.ended = true;
            // The other end may have hung up first.
            let _gone = socket.shutdown(std::net::Shutdown::Read);
        }
        self.drain(key, poller);
    }

    /// Writes to the socket what the guest sent, as far as it takes it.
    fn drain(&mut self, key: Key, poller: &Poller) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        match connection.drain() {
            Drained::All if connection.finished() => return self.reset(key, poller),
            Drained::Broken => return self.reset(key, poller),
            Drained::All | Drained::Some => {}
        }
        connection.watch(key, poller);
        if connection.flow.wants_telling() {
            connection.owed.credit = true;
            self.activate(key);
        }
    }

    /// Gives packets to the guest, as long as it has buffers and there is something to say.
    fn speak(
        &mut self,
        queue: &mut Queue,
        memory: &Guest,
        poller: &Poller,
    ) -> Result<Progress, virtio_queue::Error> {
        if !queue.ready() || !queue.is_valid(memory) {
            return Ok(Progress::default());
        }
        let mut used = false;
        let mut turns = queue.size();
        queue.disable_notification(memory)?;
        while turns > 0 && !(self.resets.is_empty() && self.active.is_empty()) {
            turns -= 1;
            let Some(mut chain) = next_chain(queue, memory)? else {
                // Kicked when the guest has more; unless it got more just now.
                if queue.enable_notification(memory)? {
                    queue.disable_notification(memory)?;
                    continue;
                }
                break;
            };
            let head = chain.head_index();
            let packet = VsockPacket::from_rx_virtq_chain(memory, &mut chain, PACKET_MAX);
            let written = match packet {
                Ok(mut packet) => self.fill(&mut packet, poller),
                Err(_) => Some(0), // the guest gets its useless buffer back
            };
            let Some(written) = written else {
                queue.go_to_previous_position();
                break;
            };
            queue.add_used(memory, head, written)?;
            used = true;
        }
        let interrupt = used && queue.needs_notification(memory)?;
        Ok(Progress { interrupt, more: turns == 0 })
    }

    /// Fills one packet. Its length, or nothing if there is nothing to say.
    fn fill(&mut self, packet: &mut VsockPacket<'_, ()>, poller: &Poller) -> Option<u32> {
        if let Some(key) = self.resets.pop_front() {
            return Some(write_header(packet, key, OP_RST, 0, 0, &Flow::default()));
        }
        while let Some(key) = self.active.pop_front() {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            connection.queued = false;
            if let Some(written) = connection.fill(packet, key) {
                if connection.has_work() {
                    self.activate(key);
                } else {
                    connection.watch(key, poller);
                }
                return Some(written);
            }
            if connection.over() {
                self.reset(key, poller);
                if let Some(key) = self.resets.pop_front() {
                    return Some(write_header(packet, key, OP_RST, 0, 0, &Flow::default()));
                }
            } else {
                connection.watch(key, poller);
            }
        }
        None
    }

    fn activate(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(&key)
            && connection.has_work()
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.active.push_back(key);
        }
    }

    fn owe_reset(&mut self, key: Key) {
        if self.resets.len() < RESETS_MAX {
            self.resets.push_back(key);
        }
    }

    /// Ends a connection on both sides.
    fn reset(&mut self, key: Key, poller: &Poller) {
        if self.connections.contains_key(&key) {
            self.drop_connection(key, poller);
            self.owe_reset(key);
        }
    }

    /// Ends a connection on the host's side.
    fn drop_connection(&mut self, key: Key, poller: &Poller) {
        let Some(mut connection) = self.connections.remove(&key) else { return };
        if self.link == Some(key) {
            self.lose_link();
        }
        // Whatever the socket does not take now is lost with the connection.
        let _lost = connection.drain();
        if let Peer::Stream { socket, refusal, .. } = &mut connection.peer {
            if matches!(connection.phase, Phase::Opening(_)) {
                let _gone = socket.write_all(refusal);
            }
            poller.remove(socket);
        }
    }

    fn lose_link(&mut self) {
        self.link = None;
        self.line.clear();
        self.notices.push(Notice::LinkDown);
    }

    /// The driver reset the device: it knows of no connection any more.
    fn forget_all(&mut self, poller: &Poller) {
        for key in self.connections.keys().copied().collect::<Vec<_>>() {
            self.drop_connection(key, poller);
        }
        self.resets.clear();
        self.active.clear();
    }
}

const NOTHING: Interest = Interest { read: false, write: false, once: true };

enum Drained {
    All,
    Some,
    Broken,
}

impl Connection {
    fn new(peer: Peer, phase: Phase) -> Self {
        Self {
            peer,
            phase,
            flow: Flow::default(),
            owed: Owed::default(),
            buffer: VecDeque::new(),
            uncounted: 0,
            readable: false,
            ended: false,
            guest_shut: 0,
            queued: false,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Opening(since) => Some(since + OPEN_DEADLINE),
            Phase::Open => None,
        }
    }

    /// Nothing more can come from either side.
    fn finished(&self) -> bool {
        let both = SHUT_RECEIVE | SHUT_SEND;
        self.buffer.is_empty() && self.guest_shut == both || self.over()
    }

    /// Both are done, the guest was told so, and the host has all that the guest sent.
    fn over(&self) -> bool {
        let guest_done = self.guest_shut & SHUT_SEND != 0;
        self.ended && guest_done && self.buffer.is_empty() && !self.owed.any()
    }

    /// Something can be said to the guest, or may be.
    fn has_work(&self) -> bool {
        let data = match self.peer {
            Peer::Link => !self.buffer.is_empty(),
            Peer::Stream { .. } => self.readable && !self.ended,
        };
        self.owed.any()
            || data && self.phase == Phase::Open && self.flow.credit() > 0
            || self.over()
    }

    /// Watches the socket for what is of use now.
    fn watch(&self, key: Key, poller: &Poller) {
        if let (Peer::Stream { socket, .. }, Phase::Open) = (&self.peer, self.phase) {
            let read = !self.readable && !self.ended && self.flow.credit() > 0;
            let interest = Interest { read, write: !self.buffer.is_empty(), once: true };
            if interest.read || interest.write {
                // The socket was added when the connection opened.
                let _watched = poller.modify(socket, to_token(key), interest);
            }
        }
    }

    fn drain(&mut self) -> Drained {
        let Peer::Stream { socket, .. } = &mut self.peer else { return Drained::Some };
        while !self.buffer.is_empty() {
            match socket.write(self.buffer.as_slices().0) {
                Ok(count) => {
                    self.buffer.drain(..count);
                    let uncounted = self.uncounted.min(count);
                    self.uncounted -= uncounted;
                    let taken = u32::try_from(count - uncounted).unwrap_or(0);
                    self.flow.taken = self.flow.taken.wrapping_add(taken);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Drained::Some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Drained::Broken,
            }
        }
        if self.guest_shut & SHUT_SEND != 0 {
            // The other end may have hung up first.
            let _gone = socket.shutdown(std::net::Shutdown::Write);
        }
        Drained::All
    }

    /// Fills a packet with what is owed, or with data. Its length.
    fn fill(&mut self, packet: &mut VsockPacket<'_, ()>, key: Key) -> Option<u32> {
        let owed = &mut self.owed;
        let (op, flags) = if std::mem::take(&mut owed.request) {
            (OP_REQUEST, 0)
        } else if std::mem::take(&mut owed.response) {
            (OP_RESPONSE, 0)
        } else if std::mem::take(&mut owed.credit) {
            (OP_CREDIT_UPDATE, 0)
        } else {
            let length = self.fill_data(packet);
            if length > 0 {
                self.flow.sent = self.flow.sent.wrapping_add(length);
                self.flow.taken_told = self.flow.taken;
                return Some(write_header(packet, key, OP_RW, length, 0, &self.flow));
            }
            match std::mem::take(&mut self.owed.shutdown) {
                0 => return None,
                flags => (OP_SHUTDOWN, flags),
            }
        };
        self.flow.taken_told = self.flow.taken;
        Some(write_header(packet, key, op, 0, flags, &self.flow))
    }

    /// Moves data into the packet. How much.
    fn fill_data(&mut self, packet: &VsockPacket<'_, ()>) -> u32 {
        let Some(slice) = packet.data_slice() else { return 0 };
        let credit = usize::try_from(self.flow.credit()).unwrap_or(0);
        let room = slice.len().min(credit).min(PACKET_MAX as usize);
        if self.phase != Phase::Open || room == 0 {
            return 0;
        }
        let mut bytes = vec![0; room];
        let count = match &mut self.peer {
            Peer::Link => self.buffer.read(&mut bytes).unwrap_or(0),
            Peer::Stream { .. } if self.ended || !self.readable => 0,
            Peer::Stream { socket, .. } => match socket.read(&mut bytes) {
                Ok(0) => {
                    self.ended = true;
                    self.owed.shutdown |= SHUT_SEND;
                    0
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    0
                }
                Err(_) => {
                    self.ended = true;
                    self.owed.shutdown |= SHUT_SEND | SHUT_RECEIVE;
                    0
                }
            },
        };
        match slice.write_slice(&bytes[..count], 0) {
            Ok(()) => u32::try_from(count).unwrap_or(0),
            Err(_) => 0,
        }
    }
}

fn write_header(
    packet: &mut VsockPacket<'_, ()>,
    key: Key,
    op: u16,
    length: u32,
    flags: u32,
    flow: &Flow,
) -> u32 {
    packet
        .set_src_cid(HOST_CID)
        .set_dst_cid(GUEST_CID)
        .set_src_port(key.0)
        .set_dst_port(key.1)
        .set_len(length)
        .set_type(STREAM)
        .set_op(op)
        .set_flags(flags)
        .set_buf_alloc(WINDOW)
        .set_fwd_cnt(flow.taken);
    length + u32::try_from(virtio_vsock::packet::PKT_HEADER_SIZE).unwrap_or(0)
}

/// A packet from the guest, copied once so that it cannot change while it is looked at.
struct Heard {
    src_cid: u64,
    dst_cid: u64,
    src_port: u32,
    dst_port: u32,
    kind: u16,
    op: u16,
    flags: u32,
    window: u32,
    taken: u32,
    data: Vec<u8>,
}

impl Heard {
    fn of(packet: &VsockPacket<'_, ()>) -> Self {
        let mut data = vec![0; packet.data_slice().map_or(0, |slice| slice.len())];
        if let Some(slice) = packet.data_slice()
            && slice.read_slice(&mut data, 0).is_err()
        {
            data.clear();
        }
        Self {
            src_cid: packet.src_cid(),
            dst_cid: packet.dst_cid(),
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            kind: packet.type_(),
            op: packet.op(),
            flags: packet.flags(),
            window: packet.buf_alloc(),
            taken: packet.fwd_cnt(),
            data,
        }
    }
}

/// Tokens of streams have this bit.
pub const TOKEN_BIT: u64 = 1 << 63;

fn to_token(key: Key) -> u64 {
    // Host ports of streams are below 2^31.
    TOKEN_BIT | u64::from(key.0 & 0x7fff_ffff) << 32 | u64::from(key.1)
}

fn from_token(token: u64) -> Key {
    let port = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
    (port(token >> 32) & 0x7fff_ffff, port(token))
}

#[cfg(test)]
mod tests;
