//! The block device against a driver and an array.
#![expect(clippy::cast_possible_truncation, reason = "the disk has 64 blocks")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use proptest::prelude::*;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, GuestAddress};

use super::super::mock::*;
use super::*;

const BLOCKS: u64 = 64;
const HEADER: u64 = 0x1_0000;
const OUT: u64 = 0x2_0000;
const IN: u64 = 0x8_0000;
const STATUS: u64 = 0xf_0000;
const OK: u8 = VIRTIO_BLK_S_OK as u8;
const ERROR: u8 = VIRTIO_BLK_S_IOERR as u8;
const UNSUPPORTED: u8 = VIRTIO_BLK_S_UNSUPP as u8;
const NEVER_WRITTEN: u8 = 0xaa;

struct Bench {
    transport: Transport,
    memory: Guest,
    ring: Ring,
    disk: Disk,
}

/// Block n is full of n.
fn base() -> File {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| vec![block as u8; BLOCK]).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file
}

fn bench(disk: Disk) -> Bench {
    let transport = transport(&disk);
    let memory = memory();
    let features = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX;
    let ring = bring_up(&transport, features, 1, 128).remove(0);
    Bench { transport, memory, ring, disk }
}

fn writable() -> Bench {
    let directory = File::open(std::env::temp_dir()).unwrap();
    bench(Disk::new(base(), false, Some(Arc::new(directory))).unwrap())
}

impl Bench {
    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
    }

    fn header(&self, kind: u32, sector: u64) {
        self.write(HEADER, &kind.to_le_bytes());
        self.write(HEADER + 8, &sector.to_le_bytes());
        self.write(STATUS, &[NEVER_WRITTEN]);
    }

    fn status(&self) -> u8 {
        self.memory.read_obj(GuestAddress(STATUS)).unwrap()
    }

    fn kick(&mut self) -> Served {
        serve_kick(&self.transport, &self.memory, &mut self.disk)
    }

    /// Sends the chain; the status that it got, and how many bytes were written.
    fn exchange(&mut self, parts: &[Part]) -> (u8, u32) {
        let head = self.ring.send(&self.memory, parts);
        self.kick();
        let (used, written) = self.ring.take_used(&self.memory).unwrap();
        assert_eq!(used, u32::from(head));
        assert_eq!(self.ring.take_used(&self.memory), None);
        (self.status(), written)
    }

    fn read_blocks(&mut self, first: u64, count: usize) -> Result<Vec<u8>, u8> {
        self.header(VIRTIO_BLK_T_IN, first * SECTORS_PER_BLOCK);
        let length = (count * BLOCK) as u32;
        let parts = [Part::Read(HEADER, 16), Part::Write(IN, length), Part::Write(STATUS, 1)];
        let (status, written) = self.exchange(&parts);
        if status != OK {
            return Err(status);
        }
        assert_eq!(written, length + 1);
        let mut data = vec![0; count * BLOCK];
        self.memory.read_slice(&mut data, GuestAddress(IN)).unwrap();
        Ok(data)
    }

    fn write_sectors(&mut self, sector: u64, data: &[u8]) -> u8 {
        self.header(VIRTIO_BLK_T_OUT, sector);
        self.write(OUT, data);
        let length = data.len() as u32;
        let parts = [Part::Read(HEADER, 16), Part::Read(OUT, length), Part::Write(STATUS, 1)];
        self.exchange(&parts).0
    }

    fn write_blocks(&mut self, first: u64, data: &[u8]) -> u8 {
        self.write_sectors(first * SECTORS_PER_BLOCK, data)
    }

    fn clear(&mut self, kind: u32, segments: &[(u64, u32, u32)]) -> u8 {
        self.header(kind, 0);
        let bytes: Vec<u8> = segments
            .iter()
            .flat_map(|(sector, sectors, flags)| {
                [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
            })
            .collect();
        self.write(OUT, &bytes);
        let length = bytes.len() as u32;
        let parts = [Part::Read(HEADER, 16), Part::Read(OUT, length), Part::Write(STATUS, 1)];
        self.exchange(&parts).0
    }
}

#[test]
fn the_configuration_tells_the_disk() {
    let bench = writable();
    let word = |at: u64| {
        let mut bytes = [0; 4];
        bench.transport.read(0x100 + at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    assert_eq!((word(0), word(4)), (BLOCKS as u32 * 8, 0));
    assert_eq!((word(12), word(20)), (SEGMENTS_MAX, BLOCK as u32));
    assert_eq!((word(36), word(40), word(44)), (DISCARD_MAX * 8, 1, 8));
    assert_eq!((word(48), word(52), word(56)), (DISCARD_MAX * 8, 1, 1));
    let all = offered(&bench.transport);
    assert_eq!(all & 1 << VIRTIO_BLK_F_RO, 0);
    assert_ne!(all & 1 << VIRTIO_BLK_F_FLUSH, 0);
}

#[test]
fn a_read_only_disk_says_so_and_refuses_writes() {
    let mut bench = bench(Disk::new(base(), true, None).unwrap());
    let all = offered(&bench.transport);
    assert_ne!(all & 1 << VIRTIO_BLK_F_RO, 0);
    assert_eq!(all & 1 << VIRTIO_BLK_F_DISCARD, 0);
    assert_eq!(bench.write_blocks(1, &[9; BLOCK]), ERROR);
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[(0, 8, 0)]), ERROR);
    assert_eq!(bench.clear(VIRTIO_BLK_T_WRITE_ZEROES, &[(0, 8, 0)]), ERROR);
    assert_eq!(bench.read_blocks(1, 1), Ok(vec![1; BLOCK]));
    assert_eq!(bench.disk.stats.errors, 0, "these are the guest's errors");
}

#[test]
fn requests_outside_of_the_disk_or_across_blocks_fail() {
    let mut bench = writable();
    assert_eq!(bench.read_blocks(BLOCKS, 1), Err(ERROR));
    assert_eq!(bench.read_blocks(BLOCKS - 1, 2), Err(ERROR));
    assert_eq!(bench.read_blocks(u64::MAX / 8, 1), Err(ERROR));
    assert_eq!(bench.write_blocks(BLOCKS, &[1; BLOCK]), ERROR);
    assert_eq!(bench.write_sectors(u64::MAX - 7, &[1; BLOCK]), ERROR);
    assert_eq!(bench.write_sectors(1, &[1; BLOCK]), ERROR);
    assert_eq!(bench.write_sectors(8, &[1; 512]), ERROR);
    assert_eq!(bench.write_sectors(8, &[1; BLOCK + 1]), ERROR);
    for segment in
        [(1, 8, 0), (0, 1, 0), (8 * BLOCKS, 8, 0), (u64::MAX - 7, 8, 0), (0, u32::MAX - 7, 0)]
    {
        assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[segment]), ERROR, "{segment:?}");
    }
    let all: Vec<u8> = (0..BLOCKS).flat_map(|block| vec![block as u8; BLOCK]).collect();
    assert_eq!(bench.read_blocks(0, BLOCKS as usize), Ok(all));
    assert_eq!(bench.disk.figures().changed_blocks, 0);
}

#[test]
fn only_what_is_carried_out_is_confirmed() {
    let mut bench = writable();
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[(0, 8, 1)]), UNSUPPORTED);
    assert_eq!(bench.clear(VIRTIO_BLK_T_WRITE_ZEROES, &[(0, 8, 2)]), UNSUPPORTED);
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[(8, 8, 0), (16, 8, 0)]), ERROR);
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[]), ERROR);
    assert_eq!(bench.disk.figures().changed_blocks, 0);
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[(8, 0, 0)]), OK);
    assert_eq!(bench.clear(VIRTIO_BLK_T_WRITE_ZEROES, &[(8, 8, 1)]), OK);
    assert_eq!(bench.read_blocks(1, 1), Ok(vec![0; BLOCK]));
}

#[test]
fn other_requests() {
    let mut bench = writable();
    let ends = [Part::Read(HEADER, 16), Part::Write(STATUS, 1)];
    bench.header(VIRTIO_BLK_T_FLUSH, 0);
    assert_eq!(bench.exchange(&ends), (OK, 1));
    for kind in [3, 5, 7, 99, u32::MAX] {
        bench.header(kind, 0);
        assert_eq!(bench.exchange(&ends), (UNSUPPORTED, 1), "{kind}");
    }
    bench.header(VIRTIO_BLK_T_GET_ID, 0);
    let id = [Part::Read(HEADER, 16), Part::Write(IN, 20), Part::Write(STATUS, 1)];
    assert_eq!(bench.exchange(&id), (OK, 21));
    let mut name = [0; 20];
    bench.memory.read_slice(&mut name, GuestAddress(IN)).unwrap();
    assert_eq!(&name, b"ramet\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    bench.header(VIRTIO_BLK_T_GET_ID, 0);
    let short = [Part::Read(HEADER, 16), Part::Write(IN, 3), Part::Write(STATUS, 1)];
    assert_eq!(bench.exchange(&short), (OK, 4));
}

#[test]
fn requests_in_pieces_are_the_same_requests() {
    let mut bench = writable();
    bench.header(VIRTIO_BLK_T_IN, 5 * SECTORS_PER_BLOCK);
    let mut parts: Vec<Part> = (0..16).map(|at| Part::Read(HEADER + at, 1)).collect();
    parts.extend((0..64).map(|at| Part::Write(IN + 64 * at, 64)));
    parts.push(Part::Write(STATUS, 1));
    assert_eq!(bench.exchange(&parts), (OK, BLOCK as u32 + 1));
    let mut data = [0; BLOCK];
    bench.memory.read_slice(&mut data, GuestAddress(IN)).unwrap();
    assert_eq!(data, [5; BLOCK]);
    // Data and status in one buffer.
    bench.header(VIRTIO_BLK_T_IN, 6 * SECTORS_PER_BLOCK);
    bench.ring.send(&bench.memory, &[Part::Read(HEADER, 16), Part::Write(IN, BLOCK as u32 + 1)]);
    bench.kick();
    let ends: [u8; 2] = bench.memory.read_obj(GuestAddress(IN + BLOCK as u64 - 1)).unwrap();
    assert_eq!(ends, [6, OK]);
}

#[test]
fn chains_without_a_status_or_a_header_end_in_nothing() {
    let mut bench = writable();
    bench.header(VIRTIO_BLK_T_OUT, 0);
    let no_status = [Part::Read(HEADER, 16), Part::Read(OUT, BLOCK as u32)];
    assert_eq!(bench.exchange(&no_status), (NEVER_WRITTEN, 0));
    assert_eq!(bench.disk.stats.writes, 0);
    bench.header(VIRTIO_BLK_T_OUT, 0);
    assert_eq!(bench.exchange(&[Part::Write(STATUS, 1)]), (ERROR, 1));
    bench.header(VIRTIO_BLK_T_OUT, 0);
    assert_eq!(bench.exchange(&[Part::Read(HEADER, 15), Part::Write(STATUS, 1)]), (ERROR, 1));
    // More than a request may have, from the same memory over and over.
    bench.header(VIRTIO_BLK_T_IN, 0);
    let mut parts = vec![Part::Read(HEADER, 16)];
    parts.extend([Part::Write(IN, 0x4_0000); 17]);
    parts.push(Part::Write(STATUS, 1));
    assert_eq!(bench.exchange(&parts), (ERROR, 1));
    assert_eq!(bench.read_blocks(3, 1), Ok(vec![3; BLOCK]));
}

#[test]
fn one_interrupt_serves_many_requests() {
    let mut bench = writable();
    bench.header(VIRTIO_BLK_T_FLUSH, 0);
    for _ in 0..10 {
        bench.ring.send(&bench.memory, &[Part::Read(HEADER, 16), Part::Write(STATUS, 1)]);
    }
    assert_eq!(bench.kick(), Served { interrupt: true, failure: None });
    assert_eq!(bench.kick(), Served::default());
    assert_eq!(std::iter::from_fn(|| bench.ring.take_used(&bench.memory)).count(), 10);
}

#[derive(Debug, Clone)]
enum Step {
    Read(u64, usize),
    Write(u64, usize, u8),
    Clear(u32, u64, u32),
    Freeze,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BLOCKS).prop_flat_map(|first| (Just(first), 1..=(BLOCKS - first).min(12)));
    let kind = prop_oneof![Just(VIRTIO_BLK_T_DISCARD), Just(VIRTIO_BLK_T_WRITE_ZEROES)];
    prop_oneof![
        3 => range.clone().prop_map(|(first, count)| Step::Read(first, count as usize)),
        4 => (range.clone(), any::<u8>())
            .prop_map(|((first, count), value)| Step::Write(first, count as usize, value)),
        2 => (kind, range)
            .prop_map(|(kind, (first, count))| Step::Clear(kind, first, count as u32)),
        1 => Just(Step::Freeze),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_device_is_an_array(steps in prop::collection::vec(step(), 1..40)) {
        let mut bench = writable();
        let mut model: Vec<u8> = (0..BLOCKS).map(|block| block as u8).collect();
        for step in steps {
            match step {
                Step::Read(first, count) => {
                    let range = first as usize..first as usize + count;
                    let expected = model[range].iter().flat_map(|value| vec![*value; BLOCK]);
                    prop_assert_eq!(bench.read_blocks(first, count), Ok(expected.collect()));
                }
                Step::Write(first, count, value) => {
                    prop_assert_eq!(bench.write_blocks(first, &vec![value; count * BLOCK]), OK);
                    model[first as usize..first as usize + count].fill(value);
                }
                Step::Clear(kind, first, count) => {
                    prop_assert_eq!(bench.clear(kind, &[(first * 8, count * 8, 0)]), OK);
                    model[first as usize..][..count as usize].fill(0);
                }
                Step::Freeze => bench.disk.freeze(),
            }
        }
        let all = model.iter().flat_map(|value| vec![*value; BLOCK]).collect();
        prop_assert_eq!(bench.read_blocks(0, BLOCKS as usize), Ok(all));
    }
}

#[test]
fn a_host_that_refuses_is_reported_once_and_loses_nothing() {
    let no_directory = Arc::new(tempfile::tempfile().unwrap());
    let mut bench = bench(Disk::new(base(), false, Some(no_directory)).unwrap());
    bench.header(VIRTIO_BLK_T_OUT, 8);
    let parts = [Part::Read(HEADER, 16), Part::Read(OUT, BLOCK as u32), Part::Write(STATUS, 1)];
    for _ in 0..3 {
        bench.ring.send(&bench.memory, &parts);
    }
    let served = bench.kick();
    assert!(served.failure.is_some_and(|text| text.contains("Not a directory")));
    assert_eq!(bench.status(), ERROR);
    assert_eq!(bench.disk.stats.errors, 3);
    assert_eq!(bench.kick(), Served::default());
    while bench.ring.take_used(&bench.memory).is_some() {}
    assert_eq!(bench.read_blocks(1, 1), Ok(vec![1; BLOCK]));
    assert_eq!(bench.disk.figures().changed_blocks, 0);
}

const LIMITED: &str = "RAMET_TEST_LIMITED_BASE";

/// A process that may only write files of 32 or 64 KiB (shells count differently), told by signal or not.
#[test]
fn a_full_host_disk_keeps_what_was_there() {
    let base = tempfile::NamedTempFile::new().unwrap();
    base.as_file().set_len(BLOCKS * BLOCK as u64).unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg("devices::virtio::block::tests::in_a_limited_process")
        .env(LIMITED, base.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn in_a_limited_process() {
    let Ok(base) = std::env::var(LIMITED) else {
        return;
    };
    let directory = File::open(std::env::temp_dir()).unwrap();
    let base = File::open(base).unwrap();
    let mut bench = bench(Disk::new(base, false, Some(Arc::new(directory))).unwrap());
    let room = (0..BLOCKS).find(|block| bench.write_blocks(*block, &[7; BLOCK]) == ERROR);
    let room = room.expect("the limit is reached");
    assert!([8, 16].contains(&room), "{room}");
    // Neither more blocks nor old ones together with new ones; what was there stays.
    assert_eq!(bench.write_blocks(room + 1, &[8; 2 * BLOCK]), ERROR);
    for block in room..BLOCKS {
        assert_eq!(bench.read_blocks(block, 1), Ok(vec![0; BLOCK]));
    }
    // Written blocks can be written again, and room that is given back can be used.
    assert_eq!(bench.write_blocks(0, &[9; BLOCK]), OK);
    assert_eq!(bench.clear(VIRTIO_BLK_T_DISCARD, &[(8, 8, 0)]), OK);
    assert_eq!(bench.write_blocks(room, &[10; BLOCK]), OK);
    assert_eq!(
        bench.read_blocks(0, 3).unwrap().chunks(BLOCK).map(|b| b[0]).collect::<Vec<_>>(),
        [9, 0, 7]
    );
    assert_eq!(bench.read_blocks(room, 1), Ok(vec![10; BLOCK]));
}

#[test]
fn a_slot_takes_requests_while_it_has_a_medium() {
    let directory = || Some(Arc::new(File::open(std::env::temp_dir()).unwrap()));
    let mut bench = bench(Disk::slot(directory()));
    let capacity = |bench: &Bench| {
        let mut sectors = [0; 8];
        bench.transport.read(0x100, &mut sectors);
        u64::from_le_bytes(sectors)
    };
    let register = |bench: &Bench, offset: u64| {
        let mut value = [0; 4];
        bench.transport.read(offset, &mut value);
        u32::from_le_bytes(value)
    };
    assert_eq!((capacity(&bench), bench.write_blocks(0, &[1; BLOCK])), (0, ERROR));
    assert_eq!(bench.disk.stats.errors, 0, "that is no failure of the host");
    let volume = tempfile::tempdir().unwrap();
    File::create(volume.path().join("base")).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    bench.disk = Disk::with_volume(volume.path(), false, directory()).unwrap();
    let generation = register(&bench, 0xfc);
    bench.transport.configure(config(&bench.disk));
    assert_eq!(capacity(&bench), BLOCKS * SECTORS_PER_BLOCK);
    assert_ne!(register(&bench, 0xfc), generation);
    assert_eq!(register(&bench, 0x60) & 2, 2, "the guest is told");
    assert_eq!(bench.write_blocks(3, &[7; BLOCK]), OK);
    assert_eq!(bench.read_blocks(3, 1), Ok(vec![7; BLOCK]));
    bench.disk = Disk::slot(directory());
    bench.transport.configure(config(&bench.disk));
    assert_eq!((capacity(&bench), bench.read_blocks(3, 1)), (0, Err(ERROR)));
}
