//! The stream device between real sockets and a driver in RAM.
#![expect(clippy::cast_possible_truncation, reason = "packets are small")]

mod link;
mod streams;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, GuestAddress};

use super::super::mock::*;
use super::*;

const RX_BUFFERS: u64 = 0x2_0000;
const RX_LENGTH: u32 = 4096;
const RX_COUNT: u16 = 32;
const TX_BUFFER: u64 = 0x8_0000;
/// The guest's window, unless a test says otherwise.
const ROOM: u32 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    host: u32,
    guest: u32,
    op: u16,
    flags: u32,
    window: u32,
    taken: u32,
    data: Vec<u8>,
}

fn packet(key: Key, op: u16) -> Packet {
    Packet { host: key.0, guest: key.1, op, flags: 0, window: ROOM, taken: 0, data: Vec::new() }
}

fn data(key: Key, bytes: &[u8]) -> Packet {
    Packet { data: bytes.to_vec(), ..packet(key, OP_RW) }
}

fn shutdown(key: Key, flags: u32) -> Packet {
    Packet { flags, ..packet(key, OP_SHUTDOWN) }
}

impl Packet {
    fn key(&self) -> Key {
        (self.host, self.guest)
    }

    /// As the guest sends it.
    fn bytes(&self, cids: (u64, u64), kind: u16) -> Vec<u8> {
        let mut bytes = [cids.0.to_le_bytes(), cids.1.to_le_bytes()].concat();
        for word in [self.guest, self.host, self.data.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([kind.to_le_bytes(), self.op.to_le_bytes()].concat());
        for word in [self.flags, self.window, self.taken] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.data);
        bytes
    }

    /// As the guest gets it.
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), HOST_CID);
        assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), GUEST_CID);
        assert_eq!(word(28) & 0xffff, u32::from(STREAM));
        assert_eq!(word(24) as usize, bytes.len() - 44, "what was written is what is said");
        Self {
            host: word(16),
            guest: word(20),
            op: (word(28) >> 16) as u16,
            flags: word(32),
            window: word(36),
            taken: word(40),
            data: bytes[44..].to_vec(),
        }
    }
}

/// A guest, and the device.
struct Bench {
    transport: Transport,
    memory: Guest,
    rings: Vec<Ring>,
    device: Vsock,
    poller: Poller,
    heard: VecDeque<Packet>,
    /// Which buffer a chain of the receive queue has, by its head.
    buffers: Vec<u64>,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self::without_buffers();
        bench.give_buffers();
        bench
    }

    fn without_buffers() -> Self {
        let mut bench = Self {
            transport: transport(),
            memory: memory(),
            rings: Vec::new(),
            device: Vsock::default(),
            poller: Poller::new().unwrap(),
            heard: VecDeque::new(),
            buffers: vec![0; 128],
        };
        bench.bring_up();
        bench
    }

    fn bring_up(&mut self) {
        self.rings.iter().for_each(|ring| {
            self.memory.write_slice(&[0; 0x3000], GuestAddress(ring.table)).unwrap();
        });
        let features = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX;
        self.rings = bring_up(&self.transport, features, 3, 128);
        self.serve();
    }

    fn give_buffers(&mut self) {
        for number in 0..RX_COUNT {
            self.give_buffer(RX_BUFFERS + u64::from(number) * u64::from(RX_LENGTH));
        }
    }

    fn give_buffer(&mut self, address: u64) {
        let head = self.rings[RX].send(&self.memory, &[Part::Write(address, RX_LENGTH)]);
        self.buffers[usize::from(head)] = address;
    }

    fn serve(&mut self) -> bool {
        self.device.serve(&self.transport, &self.memory, &self.poller)
    }

    /// One round of the monitor's loop, and what the guest does with what it got.
    fn turn(&mut self) {
        for event in self.poller.wait(Some(Duration::ZERO)).unwrap() {
            self.device.ready(event.token, event.write, event.read, &self.poller);
        }
        self.serve();
        assert!(!condemned(&self.transport));
        while let Some((head, written)) = self.rings[RX].take_used(&self.memory) {
            let address = self.buffers[head as usize];
            let mut bytes = vec![0; written as usize];
            self.memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
            self.heard.push_back(Packet::parse(&bytes));
            self.give_buffer(address);
        }
    }

    /// Gives packets to the device, which handles them at once.
    fn say(&mut self, packet: &Packet) {
        self.say_raw(&packet.bytes((GUEST_CID, HOST_CID), STREAM));
        self.turn();
    }

    fn say_raw(&mut self, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(TX_BUFFER)).unwrap();
        let rest = bytes.len() as u32 - 44;
        let parts = [Part::Read(TX_BUFFER, 44), Part::Read(TX_BUFFER + 44, rest)];
        self.rings[TX].send(&self.memory, &parts[..if rest == 0 { 1 } else { 2 }]);
        self.serve();
        assert!(self.rings[TX].take_used(&self.memory).is_some());
    }

    /// The next packet that the guest gets.
    fn hear(&mut self) -> Packet {
        for _ in 0..100 {
            if let Some(packet) = self.heard.pop_front() {
                return packet;
            }
            self.turn();
        }
        panic!("nothing comes");
    }

    fn expect(&mut self, key: Key, op: u16) -> Packet {
        let packet = self.hear();
        assert_eq!((packet.key(), packet.op), (key, op), "{packet:?}");
        packet
    }

    fn expect_silence(&mut self) {
        (0..5).for_each(|_| self.turn());
        assert_eq!(self.heard, []);
    }

    /// Asks the device for a stream to `port`; its client, and its key when the guest heard of it.
    fn dial(&mut self, port: u32) -> (UnixStream, Key) {
        let client = self.open(port);
        let request = self.hear();
        assert_eq!((request.op, request.guest, request.window), (OP_REQUEST, port, WINDOW));
        (client, request.key())
    }

    fn open(&mut self, port: u32) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        self.device.open(ours, port, b"hello".to_vec(), b"sorry".to_vec());
        theirs
    }

    /// A stream that is open.
    fn stream(&mut self, port: u32) -> (UnixStream, Key) {
        let (mut client, key) = self.dial(port);
        self.say(&packet(key, OP_RESPONSE));
        assert_eq!(read(&mut client, 5), b"hello");
        (client, key)
    }
}

/// Exactly so many bytes.
fn read(client: &mut UnixStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    client.read_exact(&mut bytes).unwrap();
    bytes
}

/// All until the other end hangs up.
fn read_all(client: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Whatever is there now.
fn read_some(client: &mut UnixStream) -> Vec<u8> {
    client.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 64 << 10];
    let count = match client.read(&mut bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    };
    client.set_nonblocking(false).unwrap();
    bytes.truncate(count);
    bytes
}

/// Bytes that are not the same anywhere.
fn pattern(count: usize) -> Vec<u8> {
    (0..count as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
