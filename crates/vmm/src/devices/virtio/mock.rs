//! A driver for tests: it negotiates as Linux does, or writes whatever it is told into registers and rings.
#![expect(clippy::cast_possible_truncation, reason = "registers take halves of addresses")]

use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_ACKNOWLEDGE as ACKNOWLEDGE;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_DRIVER as DRIVER;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_DRIVER_OK as DRIVER_OK;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_FEATURES_OK as FEATURES_OK;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET as NEEDS_RESET;
use virtio_bindings::virtio_mmio as register;
use vm_memory::{Bytes, GuestAddress};

use super::Transport;
use crate::memory::Guest;

/// Bytes of RAM.
pub const RAM: u64 = 1 << 20;
/// First address that no ring uses.
pub const BUFFERS: u64 = 0x1_0000;
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// RAM, all zero.
pub fn memory() -> Guest {
    Guest::from_ranges(&[(GuestAddress(0), RAM as usize)]).unwrap()
}

pub fn set(transport: &Transport, register: u32, value: u32) -> Option<usize> {
    transport.write(u64::from(register), &value.to_le_bytes())
}

pub fn get(transport: &Transport, register: u32) -> u32 {
    let mut data = [0; 4];
    transport.read(u64::from(register), &mut data);
    u32::from_le_bytes(data)
}

/// All that the device offers.
pub fn offered(transport: &Transport) -> u64 {
    let half = |select| {
        set(transport, register::VIRTIO_MMIO_DEVICE_FEATURES_SEL, select);
        u64::from(get(transport, register::VIRTIO_MMIO_DEVICE_FEATURES))
    };
    half(0) | half(1) << 32
}

pub fn accept(transport: &Transport, features: u64) {
    for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
        set(transport, register::VIRTIO_MMIO_DRIVER_FEATURES_SEL, select);
        set(transport, register::VIRTIO_MMIO_DRIVER_FEATURES, half);
    }
}

pub fn status(transport: &Transport) -> u32 {
    get(transport, register::VIRTIO_MMIO_STATUS)
}

pub fn set_status(transport: &Transport, bits: u32) -> u32 {
    set(transport, register::VIRTIO_MMIO_STATUS, bits);
    status(transport)
}

pub fn condemned(transport: &Transport) -> bool {
    status(transport) & NEEDS_RESET != 0
}

/// Brings the device up as Linux does, with these features and queues of this size.
pub fn bring_up(transport: &Transport, features: u64, queues: usize, size: u16) -> Vec<Ring> {
    assert_eq!(set_status(transport, 0), 0);
    set_status(transport, ACKNOWLEDGE);
    set_status(transport, ACKNOWLEDGE | DRIVER);
    accept(transport, features);
    let agreed = ACKNOWLEDGE | DRIVER | FEATURES_OK;
    assert_eq!(set_status(transport, agreed), agreed);
    let rings: Vec<_> = (0..queues).map(|number| Ring::new(number, size)).collect();
    rings.iter().for_each(|ring| ring.register(transport));
    assert_eq!(set_status(transport, agreed | DRIVER_OK), agreed | DRIVER_OK);
    rings
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }

    fn read(memory: &Guest, address: u64) -> Option<Self> {
        let mut bytes = [0; 16];
        memory.read_slice(&mut bytes, GuestAddress(address)).ok()?;
        let part =
            |range: Range<usize>| bytes[range].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        Some(Self {
            address: part(0..8),
            length: part(8..12) as u32,
            flags: part(12..14) as u16,
            next: part(14..16) as u16,
        })
    }

    fn range(self) -> Range<u64> {
        self.address..self.address.saturating_add(self.length.into())
    }
}

/// A part of a chain: the device reads it, or writes it.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    Read(u64, u32),
    Write(u64, u32),
}

/// A split queue as the driver sees it.
#[derive(Debug, Clone)]
pub struct Ring {
    pub number: usize,
    pub size: u16,
    pub table: u64,
    pub avail: u64,
    pub used: u64,
    /// Where the next chain's descriptors go.
    pub free: u16,
    /// What was offered, and what was seen used.
    pub offered: u16,
    pub seen: u16,
}

impl Ring {
    pub fn new(number: usize, size: u16) -> Self {
        let base = 0x1000 + number as u64 * 0x4000;
        let (avail, used) = (base + 0x1000, base + 0x2000);
        Self { number, size, table: base, avail, used, free: 0, offered: 0, seen: 0 }
    }

    /// Tells the device where it is.
    pub fn register(&self, transport: &Transport) {
        let number = u32::try_from(self.number).unwrap();
        set(transport, register::VIRTIO_MMIO_QUEUE_SEL, number);
        assert_eq!(get(transport, register::VIRTIO_MMIO_QUEUE_READY), 0);
        assert!(get(transport, register::VIRTIO_MMIO_QUEUE_NUM_MAX) >= self.size.into());
        set(transport, register::VIRTIO_MMIO_QUEUE_NUM, self.size.into());
        self.place(transport);
        set(transport, register::VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// Writes only the addresses.
    pub fn place(&self, transport: &Transport) {
        let addresses = [
            (register::VIRTIO_MMIO_QUEUE_DESC_LOW, self.table),
            (register::VIRTIO_MMIO_QUEUE_AVAIL_LOW, self.avail),
            (register::VIRTIO_MMIO_QUEUE_USED_LOW, self.used),
        ];
        for (low, address) in addresses {
            set(transport, low, address as u32);
            set(transport, low + 4, (address >> 32) as u32);
        }
    }

    pub fn describe(&self, memory: &Guest, index: u16, descriptor: Descriptor) {
        let address = self.table + 16 * u64::from(index);
        memory.write_slice(&descriptor.bytes(), GuestAddress(address)).unwrap();
    }

    /// Offers the chain that begins at `head`.
    pub fn offer(&mut self, memory: &Guest, head: u16) {
        let slot = self.avail + 4 + 2 * u64::from(self.offered % self.size);
        memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.offered = self.offered.wrapping_add(1);
        self.set_index(memory, self.offered);
    }

    pub fn set_index(&self, memory: &Guest, index: u16) {
        memory.write_obj(index, GuestAddress(self.avail + 2)).unwrap();
    }

    /// Offers these parts as one chain.
    pub fn send(&mut self, memory: &Guest, parts: &[Part]) -> u16 {
        let head = self.free;
        for (number, part) in parts.iter().enumerate() {
            let (address, length, kind) = match *part {
                Part::Read(address, length) => (address, length, 0),
                Part::Write(address, length) => (address, length, WRITE),
            };
            let next = (self.free + 1) % self.size;
            let flags = if number + 1 < parts.len() { kind | NEXT } else { kind };
            self.describe(memory, self.free, Descriptor { address, length, flags, next });
            self.free = next;
        }
        self.offer(memory, head);
        head
    }

    /// The next chain that the device gave back: its head, and the bytes written.
    pub fn take_used(&mut self, memory: &Guest) -> Option<(u32, u32)> {
        let index: u16 = memory.read_obj(GuestAddress(self.used + 2)).unwrap();
        if index == self.seen {
            return None;
        }
        let slot = GuestAddress(self.used + 4 + 8 * u64::from(self.seen % self.size));
        self.seen = self.seen.wrapping_add(1);
        let [head, written]: [u32; 2] = memory.read_obj(slot).unwrap();
        Some((head, written))
    }

    /// Used ring, with the event index behind it.
    pub fn used_range(&self) -> Range<u64> {
        self.used..self.used + 6 + 8 * u64::from(self.size)
    }

    /// What the table, and tables that it points to, let the device write.
    pub fn writable(&self, memory: &Guest) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for index in 0..u64::from(self.size) {
            let Some(found) = Descriptor::read(memory, self.table + 16 * index) else {
                continue;
            };
            if found.flags & INDIRECT == 0 {
                ranges.extend((found.flags & WRITE != 0).then(|| found.range()));
                continue;
            }
            let inner = (0..u64::from(found.length / 16))
                .map_while(|n| Descriptor::read(memory, found.address.checked_add(16 * n)?))
                .filter(|inner| inner.flags & WRITE != 0);
            ranges.extend(inner.map(Descriptor::range));
        }
        ranges
    }
}

/// All of RAM.
pub fn snapshot(memory: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; RAM as usize];
    memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

/// Compares RAM with what it was, except for these ranges.
pub fn assert_untouched(memory: &Guest, before: &[u8], except: &[Range<u64>]) {
    let after = snapshot(memory);
    let pages = before.chunks(4096).zip(after.chunks(4096)).zip((0u64..).step_by(4096));
    for ((before, after), page) in pages.filter(|((before, after), _)| before != after) {
        for (address, (old, new)) in (page..).zip(before.iter().zip(after)) {
            let given = || except.iter().any(|range| range.contains(&address));
            assert!(old == new || given(), "{address:#x} was {old:#x} and is {new:#x}");
        }
    }
}

/// Fails if `act` takes longer than any honest work would.
pub fn bounded<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = act();
        done.send(()).unwrap();
        result
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it goes on forever"),
        _ => match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}
