//! Every queue of every device against the same attacks: whatever a ring says, nothing panics, nothing goes
//! on forever, nothing is written outside the buffers that the guest gave, and the device works again, if
//! need be after a reset.
#![expect(clippy::cast_possible_truncation, reason = "RAM has 1 MiB")]

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::mock::*;
use super::vsock::Vsock;
use super::*;
use crate::disk::{BLOCK, Disk};
use crate::poller::Poller;

const SIZE: u16 = 16;
const BLOCKS: u64 = 16;

enum BackEnd {
    Block(Box<Disk>),
    Vsock { device: Box<Vsock>, poller: Poller, clients: Vec<UnixStream> },
    Rng,
}

/// A queue of a device that is up.
struct Subject {
    transport: Transport,
    back_end: BackEnd,
    memory: Guest,
    rings: Vec<Ring>,
    attacked: usize,
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Block,
    Receive,
    Send,
    Rng,
}

const ALL: [Which; 4] = [Which::Block, Which::Receive, Which::Send, Which::Rng];

fn disk() -> Disk {
    let base = tempfile::tempfile().unwrap();
    base.set_len(BLOCKS * BLOCK as u64).unwrap();
    let directory = File::open(std::env::temp_dir()).unwrap();
    Disk::new(base, false, Some(Arc::new(directory))).unwrap()
}

fn streams() -> BackEnd {
    let poller = Poller::new().unwrap();
    BackEnd::Vsock { device: Box::default(), poller, clients: Vec::new() }
}

impl Subject {
    fn new(which: Which, event_idx: bool) -> Self {
        Self::in_memory(which, event_idx, memory())
    }

    fn in_memory(which: Which, event_idx: bool, memory: Guest) -> Self {
        let (transport, back_end, attacked) = match which {
            Which::Block => {
                let disk = disk();
                (block::transport(&disk), BackEnd::Block(Box::new(disk)), 0)
            }
            Which::Receive => (vsock::transport(), streams(), 0),
            Which::Send => (vsock::transport(), streams(), 1),
            Which::Rng => (rng::transport(), BackEnd::Rng, 0),
        };
        let mut subject = Self { transport, back_end, memory, rings: Vec::new(), attacked };
        subject.bring_up(event_idx);
        subject
    }

    fn bring_up(&mut self, event_idx: bool) {
        let event_idx = u64::from(event_idx) << VIRTIO_RING_F_EVENT_IDX;
        let queues = self.transport.queues().queues.len();
        let features = 1 << VIRTIO_F_VERSION_1 | event_idx;
        self.rings.iter().for_each(|ring| {
            self.memory.write_slice(&[0; 0x3000], GuestAddress(ring.table)).unwrap();
        });
        self.rings = bring_up(&self.transport, features, queues, SIZE);
        assert!(!self.serve());
        self.have_something_to_say();
    }

    /// Streams that are to be opened, so that the device needs buffers of the guest.
    fn have_something_to_say(&mut self) {
        let BackEnd::Vsock { device, clients, .. } = &mut self.back_end else {
            return;
        };
        clients.clear();
        let streams = if self.attacked == 0 { 2 * u32::from(SIZE) + 1 } else { 3 };
        for port in 0..streams {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            device.open(ours, port, Vec::new(), Vec::new());
            clients.push(theirs);
        }
    }

    fn serve(&mut self) -> bool {
        match &mut self.back_end {
            BackEnd::Block(disk) => {
                block::serve_kick(&self.transport, &self.memory, disk).interrupt
            }
            BackEnd::Vsock { device, poller, .. } => {
                device.serve(&self.transport, &self.memory, poller)
            }
            BackEnd::Rng => rng::serve_kick(&self.transport, &self.memory),
        }
    }

    /// One honest exchange on the queue that was attacked.
    fn assert_works(&mut self) {
        if condemned(&self.transport) {
            assert!(!self.serve(), "a condemned device does nothing");
            self.bring_up(true);
        }
        let ring = &mut self.rings[self.attacked];
        while ring.take_used(&self.memory).is_some() {}
        let header = 0x9_0000;
        self.memory.write_slice(&[0; 44], GuestAddress(header)).unwrap();
        let (parts, expected) = match (&self.back_end, self.attacked) {
            (BackEnd::Block(_), _) => {
                let parts = [Part::Read(header, 16), Part::Write(0xa_0000, 4097)];
                (parts.to_vec(), 4097)
            }
            (BackEnd::Vsock { .. }, 0) => (vec![Part::Write(0xa_0000, 4096)], 44),
            (BackEnd::Vsock { .. }, _) => (vec![Part::Read(header, 44)], 0),
            (BackEnd::Rng, _) => (vec![Part::Write(0xa_0000, 64)], 64),
        };
        let head = ring.send(&self.memory, &parts);
        self.serve();
        let used = self.rings[self.attacked].take_used(&self.memory);
        assert_eq!(used, Some((head.into(), expected)));
    }

    fn ring(&mut self) -> (&Guest, &mut Ring) {
        (&self.memory, &mut self.rings[self.attacked])
    }

    /// Serves the ring as it is; nothing outside its buffers changes.
    fn assert_contained(&mut self) {
        let before = snapshot(&self.memory);
        let mut except = self.rings[self.attacked].writable(&self.memory);
        except.extend(self.rings.iter().map(Ring::used_range));
        self.serve();
        assert_untouched(&self.memory, &before, &except);
    }
}

fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address, length, flags, next }
}

/// Descriptors from number 0 on; the chain at 0 is offered.
type Table = Vec<Descriptor>;

fn both_ways(table: impl Fn(u16) -> Table) -> [Table; 2] {
    [table(0), table(WRITE)]
}

fn broken_chains() -> Vec<(&'static str, Table)> {
    let here = BUFFERS;
    let mut tables = Vec::new();
    let mut add = |name, table: &dyn Fn(u16) -> Table| {
        tables.extend(both_ways(table).map(|table| (name, table)));
    };
    add("a loop of one", &|kind| vec![descriptor(here, 64, kind | NEXT, 0)]);
    add("a loop of two", &|kind| {
        vec![descriptor(here, 16, NEXT, 1), descriptor(here + 16, 4096, kind | NEXT, 0)]
    });
    add("next out of range", &|kind| vec![descriptor(here, 64, kind | NEXT, SIZE)]);
    add("next far out of range", &|kind| vec![descriptor(here, 4096, kind | NEXT, 0xffff)]);
    add("an empty buffer", &|kind| vec![descriptor(here, 0, kind, 0)]);
    add("nothing but empty buffers", &|kind| {
        (1..=SIZE).map(|next| descriptor(here, 0, kind | NEXT, next % SIZE)).collect()
    });
    add("past the end", &|kind| vec![descriptor(RAM - 20, 4096, kind, 0)]);
    add("outside", &|kind| vec![descriptor(RAM, 4096, kind, 0)]);
    add("far outside", &|kind| vec![descriptor(1 << 52, 4096, kind, 0)]);
    add("around the end of all addresses", &|kind| vec![descriptor(u64::MAX - 19, 4096, kind, 0)]);
    add("all that there is, and more", &|kind| vec![descriptor(0, u32::MAX, kind, 0)]);
    add("more than 4 GiB together", &|kind| {
        vec![descriptor(here, u32::MAX, kind | NEXT, 1), descriptor(here, u32::MAX, kind, 0)]
    });
    add("a header, then data outside", &|kind| {
        vec![descriptor(here, 44, kind | NEXT, 1), descriptor(RAM, 4096, kind, 0)]
    });
    add("a header, then the wrong way", &|kind| {
        vec![descriptor(here, 44, kind | NEXT, 1), descriptor(here + 64, 4096, kind ^ WRITE, 0)]
    });
    add("a header in single bytes", &|kind| {
        let byte = |n: u16| descriptor(here + u64::from(n), 1, kind | NEXT, n + 1);
        (0..15).map(byte).chain([descriptor(here + 0x1000, 4096, WRITE, 0)]).collect()
    });
    add("a header that is too short", &|kind| vec![descriptor(here, 15, kind, 0)]);
    tables
}

/// Indirect tables were never negotiated.
fn indirect_chains() -> Vec<(&'static str, Table)> {
    let table = |address, length, flags| vec![descriptor(address, length, INDIRECT | flags, 1)];
    vec![
        ("an indirect table", table(BUFFERS, 32, 0)),
        ("an indirect table to write", table(BUFFERS, 32, WRITE)),
        ("an indirect table that goes on", table(BUFFERS, 32, NEXT)),
        ("an odd indirect table", table(BUFFERS, 33, 0)),
        ("an empty indirect table", table(BUFFERS, 0, 0)),
        ("a long indirect table", table(BUFFERS, 0xf_fff0, 0)),
        ("an endless indirect table", table(BUFFERS, 0xffff_fff0, 0)),
        ("an indirect table outside", table(RAM, 32, 0)),
        ("an indirect table around the end", table(u64::MAX - 15, 32, 0)),
        ("an indirect table that is the table", table(0x1000, 256, 0)),
    ]
}

fn attack(which: Which, event_idx: bool, name: &str, table: &[Descriptor], times: u16) {
    let mut subject = Subject::new(which, event_idx);
    println!("{which:?}, {name}, {times} times");
    let (memory, ring) = subject.ring();
    // What an indirect table would find: a header, and a buffer to write.
    let inner =
        [descriptor(BUFFERS + 64, 44, NEXT, 1), descriptor(BUFFERS + 0x1000, 4097, WRITE, 0)];
    let inner: Vec<u8> = inner.iter().flat_map(|descriptor| descriptor.bytes()).collect();
    memory.write_slice(&inner, GuestAddress(BUFFERS)).unwrap();
    for (index, descriptor) in (0..).zip(table) {
        ring.describe(memory, index, *descriptor);
    }
    (0..times).for_each(|_| ring.offer(memory, 0));
    subject.assert_contained();
    subject.assert_works();
}

#[test]
fn broken_chains_hurt_nobody() {
    bounded(|| {
        for which in ALL {
            for (name, table) in broken_chains() {
                attack(which, true, name, &table, 1);
                attack(which, false, name, &table, SIZE);
            }
        }
    });
}

#[test]
fn indirect_tables_hurt_nobody() {
    bounded(|| {
        for which in ALL {
            for (name, table) in indirect_chains() {
                attack(which, true, name, &table, 1);
                attack(which, false, name, &table, SIZE);
            }
        }
    });
}

#[test]
fn heads_outside_of_the_table_condemn_the_device() {
    for which in ALL {
        for head in [SIZE, 0x7fff, 0xffff] {
            let mut subject = Subject::new(which, true);
            let (memory, ring) = subject.ring();
            ring.offer(memory, head);
            subject.assert_contained();
            assert!(condemned(&subject.transport), "{which:?} {head}");
            subject.assert_works();
        }
    }
}

#[test]
fn indices_that_jump_condemn_the_device() {
    for which in ALL {
        for index in [SIZE + 1, 0x8000, 0xffff] {
            let mut subject = Subject::new(which, true);
            let (memory, ring) = subject.ring();
            ring.set_index(memory, index);
            subject.assert_contained();
            assert!(condemned(&subject.transport), "{which:?} {index}");
            subject.assert_works();
        }
    }
}

#[test]
fn queues_that_are_ready_but_nowhere_end_nothing() {
    bounded(|| {
        for which in ALL {
            let mut subject = Subject::new(which, true);
            let queues = subject.rings.len();
            set_status(&subject.transport, 0);
            accept(&subject.transport, 1 << VIRTIO_F_VERSION_1);
            set_status(&subject.transport, 11);
            for queue in 0..queues {
                set(&subject.transport, register::VIRTIO_MMIO_QUEUE_SEL, queue as u32);
                set(&subject.transport, register::VIRTIO_MMIO_QUEUE_READY, 1);
            }
            set_status(&subject.transport, 15);
            // The index of a ring at address 0.
            subject.memory.write_obj(1u16, GuestAddress(2)).unwrap();
            // A reset is forgotten with the connections; there must be something to say again.
            subject.serve();
            subject.have_something_to_say();
            subject.serve();
            assert!(condemned(&subject.transport), "{which:?}");
        }
    });
}

#[test]
fn buffers_over_the_rings_themselves_end_in_a_reset_at_worst() {
    bounded(|| {
        for which in ALL {
            for target in [0x1000, 0x2000, 0x2002, 0x3000, 0x3002, 0x5000, 0x6000, 0x7000] {
                let mut subject = Subject::new(which, true);
                let (memory, ring) = subject.ring();
                ring.send(memory, &[Part::Read(BUFFERS, 16), Part::Write(target, 4097)]);
                ring.send(memory, &[Part::Write(target, 64)]);
                ring.send(memory, &[Part::Read(target, 64)]);
                subject.serve();
                subject.serve();
                subject.bring_up(true);
                subject.assert_works();
            }
        }
    });
}

#[test]
fn a_reset_in_the_middle_starts_afresh() {
    for which in ALL {
        let mut subject = Subject::new(which, true);
        let (memory, ring) = subject.ring();
        ring.send(memory, &[Part::Read(BUFFERS, 16), Part::Write(BUFFERS + 64, 4097)]);
        set_status(&subject.transport, 0);
        let before = snapshot(&subject.memory);
        assert!(!subject.serve());
        assert_untouched(&subject.memory, &before, &[]);
        subject.bring_up(false);
        subject.assert_works();
    }
}

fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    let address = prop_oneof![
        6 => (0..64u64).prop_map(|n| BUFFERS + n * 512),
        2 => BUFFERS..RAM + 64,
        1 => any::<u64>(),
    ];
    let length = prop_oneof![
        4 => prop::sample::select(vec![0, 1, 12, 16, 44, 64, 512, 4096, 4097, 0x1_0000]),
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![
        9 => 0..4u16,
        1 => any::<u16>(),
    ];
    let next = prop_oneof![9 => 0..SIZE, 1 => any::<u16>()];
    (address, length, flags, next).prop_map(|(a, l, f, n)| descriptor(a, l, f, n))
}

#[derive(Debug, Clone)]
struct Chaos {
    table: Table,
    heads: Vec<u16>,
    index: u16,
    /// What lies at the beginning of buffers: headers, perhaps.
    content: Vec<(u64, Vec<u8>)>,
}

fn chaos(header: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Chaos> {
    let head = prop_oneof![19 => 0..SIZE, 1 => any::<u16>()];
    let index = prop_oneof![19 => 0..=SIZE, 1 => any::<u16>()];
    let content = ((0..64u64).prop_map(|n| BUFFERS + n * 512), header);
    (
        prop::collection::vec(any_descriptor(), SIZE as usize),
        prop::collection::vec(head, SIZE as usize),
        index,
        prop::collection::vec(content, 0..24),
    )
        .prop_map(|(table, heads, index, content)| Chaos { table, heads, index, content })
}

/// Puts it into RAM and serves it. RAM is compared unless a buffer lies over what the device reads.
fn unleash(subject: &mut Subject, chaos: &Chaos) {
    let (memory, ring) = subject.ring();
    for (address, bytes) in &chaos.content {
        memory.write_slice(bytes, GuestAddress(*address)).unwrap();
    }
    for (index, descriptor) in (0..).zip(&chaos.table) {
        ring.describe(memory, index, *descriptor);
    }
    chaos.heads.iter().for_each(|head| ring.offer(memory, *head));
    ring.set_index(memory, chaos.index);
    let writable = ring.writable(memory);
    let indirect = chaos.table.iter().any(|descriptor| descriptor.flags & INDIRECT != 0);
    if indirect || writable.iter().any(|range| range.start < BUFFERS) {
        subject.serve();
    } else {
        subject.assert_contained();
    }
    subject.serve();
}

fn unleash_all(which: Which, cases: u32, header: impl Strategy<Value = Vec<u8>>) {
    let config = ProptestConfig { cases, source_file: Some(file!()), ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let (memory, zeros) = (memory(), vec![0; RAM as usize]);
    runner
        .run(&(chaos(header), any::<bool>()), |(chaos, event_idx)| {
            // Fresh pages for each case would cost more than the case.
            memory.write_slice(&zeros, GuestAddress(0)).unwrap();
            let mut subject = Subject::in_memory(which, event_idx, memory.clone());
            unleash(&mut subject, &chaos);
            subject.bring_up(event_idx);
            subject.assert_works();
            Ok(())
        })
        .unwrap();
}

fn block_header() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![9 => 0..15u32, 1 => any::<u32>()];
    let sector =
        prop_oneof![4 => (0..20u64).prop_map(|n| n * 8), 1 => 0..200u64, 1 => any::<u64>()];
    (kind, sector, any::<u64>(), 0..0x40u32).prop_map(|(kind, sector, other, sectors)| {
        let words = [kind.to_le_bytes(), [0; 4]].concat();
        [&words[..], &sector.to_le_bytes(), &other.to_le_bytes(), &sectors.to_le_bytes()].concat()
    })
}

fn packet_header() -> impl Strategy<Value = Vec<u8>> {
    let port = || prop_oneof![0..3u32, (0..6u32).prop_map(|n| (1 << 30) + n), any::<u32>()];
    let length = prop_oneof![3 => Just(0u32), 3 => 0..600u32, 1 => any::<u32>()];
    let words = prop::array::uniform3(prop_oneof![0..4u32, any::<u32>()]);
    let addresses = prop_oneof![19 => Just((3u64, 2u64)), 1 => any::<(u64, u64)>()];
    let kind = prop_oneof![19 => Just(1u16), 1 => any::<u16>()];
    (addresses, port(), port(), length, kind, 0..9u16, words).prop_map(
        |((source, target), from, to, length, kind, op, words)| {
            let mut bytes = [source.to_le_bytes(), target.to_le_bytes()].concat();
            for word in [from, to, length, u32::from(kind) | u32::from(op) << 16] {
                bytes.extend(word.to_le_bytes());
            }
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes
        },
    )
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..512)
}

#[test]
fn chaos_on_a_disk_is_contained() {
    bounded(|| unleash_all(Which::Block, 1500, block_header()));
}

#[test]
fn chaos_on_streams_to_the_host_is_contained() {
    bounded(|| unleash_all(Which::Send, 1500, packet_header()));
}

#[test]
fn chaos_on_streams_to_the_guest_is_contained() {
    bounded(|| unleash_all(Which::Receive, 500, any_bytes()));
}

#[test]
fn chaos_on_random_numbers_is_contained() {
    bounded(|| unleash_all(Which::Rng, 1500, any_bytes()));
}
