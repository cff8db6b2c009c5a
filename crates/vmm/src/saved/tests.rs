//! State files that are whole, and ones that are not.

use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::devices::Bus;
use crate::devices::virtio::vsock::Vsock;
use crate::disk::{BLOCK, Disk};
use crate::vcpu::Notices;

const HEADER: usize = 52;

/// A machine with one disk, and as many vCPUs as can be made without KVM: none.
pub fn state(ram_size: u64) -> State {
    saved(ram_size).0
}

/// Likewise, with what its disk is made of.
pub fn saved(ram_size: u64) -> (State, Vec<DiskFile>) {
    let base = tempfile::tempfile().unwrap();
    base.set_len(8 * BLOCK as u64).unwrap();
    let stamp = Stamp::of(&base).unwrap();
    let directory = File::open(std::env::temp_dir()).unwrap();
    let mut disk = Disk::new(base, false, Some(Arc::new(directory))).unwrap();
    disk.write(3, &[1; BLOCK]).unwrap();
    let content = tempfile::tempfile().unwrap();
    let record = disk.save(Some("/base"), &content).unwrap();
    let written = Stamp::of(&content).unwrap();
    let content = checksum(&content).unwrap();
    let transports = crate::machine::transports(&[disk], false);
    let disks = vec![DiskFile { base: Some(stamp), content, stamp: written, record }];
    let state = State {
        ram_size,
        agent: true,
        generation: 3,
        cpuid: Vec::new(),
        vcpus: Vec::new(),
        plan: Plan::default(),
        bell: None,
        clock_ns: 12345,
        bus: Bus::new(transports, Arc::new(Notices::new().unwrap())).state(),
        vsock: Vsock::default().state(),
        network: false,
        memory: MemoryRecord { chunks: vec![None, Some([7; 32])], bytes: 4096, stamp: None },
    };
    (state, disks)
}

/// The bytes of a state file.
pub fn file_bytes(state: &State) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    write_state(&file, state).unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn read_bytes(bytes: &[u8]) -> Result<State, Bad> {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    read_state(&file)
}

fn bad(bytes: &[u8]) -> Bad {
    read_bytes(bytes).err().expect("it is not whole")
}

#[test]
fn what_was_written_is_read() {
    let state = state(4 << 20);
    let bytes = file_bytes(&state);
    let again = read_bytes(&bytes).unwrap();
    assert_eq!(postcard::to_stdvec(&again).unwrap(), postcard::to_stdvec(&state).unwrap());
    assert_eq!(file_bytes(&again), bytes);
}

#[test]
fn disks_are_described_in_a_file_of_their_own() {
    let (state, disks) = saved(0);
    let mut file = tempfile::tempfile().unwrap();
    write_disks(&file, &disks).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let again = read_disks(&file).unwrap();
    assert_eq!(postcard::to_stdvec(&again).unwrap(), postcard::to_stdvec(&disks).unwrap());
    assert_eq!(again[0].record.content_blocks(), 1);
    // One is not taken for the other.
    file.seek(SeekFrom::Start(0)).unwrap();
    assert!(matches!(read_state(&file), Err(Bad::NoState)));
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&file_bytes(&state), 0).unwrap();
    assert!(matches!(read_disks(&file), Err(Bad::NoState)));
}

#[test]
fn another_file_is_no_state() {
    let mut bytes = file_bytes(&state(0));
    bytes[0] = b'X';
    assert!(matches!(bad(&bytes), Bad::NoState));
    assert!(matches!(bad(&[0; 100]), Bad::NoState));
}

#[test]
fn another_version_is_named() {
    let mut bytes = file_bytes(&state(0));
    bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
    assert!(matches!(bad(&bytes), Bad::Version(77, VERSION)));
    assert!(bad(&bytes).to_string().contains("77"));
}

#[test]
fn a_wrong_length_is_damage() {
    let whole = file_bytes(&state(0));
    let body = (whole.len() - HEADER) as u64;
    for length in [0, body - 1, body + 1, STATE_MAX + 1, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[12..20].copy_from_slice(&length.to_le_bytes());
        assert!(matches!(bad(&bytes), Bad::Damaged(what) if what.contains("length")), "{length}");
    }
    assert!(matches!(bad(&[whole, vec![0]].concat()), Bad::Damaged(_)));
}

#[test]
fn a_wrong_checksum_is_damage() {
    let whole = file_bytes(&state(0));
    for at in [20, 51, 52, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        assert!(matches!(bad(&bytes), Bad::Damaged(what) if what.contains("checksum")), "{at}");
    }
}

#[test]
fn a_body_that_makes_no_sense_is_damage() {
    let body = [0xff; 100];
    let mut bytes = [&STATE_KIND.magic[..], &VERSION.to_le_bytes(), &100u64.to_le_bytes()].concat();
    bytes.extend(blake3::hash(&body).as_bytes());
    bytes.extend(body);
    assert!(matches!(bad(&bytes), Bad::Damaged(what) if what.contains("sense")));
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let whole = file_bytes(&state(0));
    for length in 0..HEADER {
        assert!(matches!(bad(&whole[..length]), Bad::Damaged(_)), "{length}");
    }
    for length in (HEADER..whole.len()).step_by(7).chain([whole.len() - 1]) {
        assert!(matches!(bad(&whole[..length]), Bad::Damaged(_)), "{length}");
    }
}

#[test]
fn a_directory_cannot_be_read() {
    let directory = File::open(std::env::temp_dir()).unwrap();
    assert!(matches!(read_state(&directory), Err(Bad::Read(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_flipped_bit_is_found(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = file_bytes(&state(0));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let expected = match at {
            0..8 => matches!(bad(&bytes), Bad::NoState),
            8..12 => matches!(bad(&bytes), Bad::Version(..)),
            _ => matches!(bad(&bytes), Bad::Damaged(_)),
        };
        prop_assert!(expected, "{}", at);
    }

    #[test]
    fn a_body_with_a_right_checksum_never_panics(
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..16),
    ) {
        let mut body = file_bytes(&state(0)).split_off(HEADER);
        let at = at.index(body.len());
        body.splice(at..(at + bytes.len()).min(body.len()), bytes);
        let mut file = [&STATE_KIND.magic[..], &VERSION.to_le_bytes()].concat();
        file.extend((body.len() as u64).to_le_bytes());
        file.extend(blake3::hash(&body).as_bytes());
        file.extend(&body);
        // Whatever it means, devices are made from it or refused.
        if let Ok(state) = read_bytes(&file) {
            let disk = tempfile::tempfile().unwrap();
            disk.set_len(8 * BLOCK as u64).unwrap();
            let disk = Disk::new(disk, false, None).unwrap();
            let transports = crate::machine::transports(&[disk], false);
            let _refused = Bus::restored(state.bus, transports, Arc::new(Notices::new().unwrap()));
            let _device = Vsock::restored(state.vsock);
        }
    }
}

#[test]
fn a_stamp_tells_whether_a_file_was_touched() {
    let file = tempfile::tempfile().unwrap();
    let before = Stamp::of(&file).unwrap();
    assert_eq!(Stamp::of(&file).unwrap(), before);
    // Coarse clocks tick every few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_all_at(b"x", 0).unwrap();
    assert_ne!(Stamp::of(&file).unwrap(), before);
}
