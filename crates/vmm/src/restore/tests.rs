//! Directories that cannot be made into a machine, found out before anything is made.

use std::os::unix::fs::FileExt;

use ramet_proto::control::Start;

use super::*;
use crate::disk::BLOCK;
use crate::saved::tests::{file_bytes, saved, state};

/// A request for a machine that stays as it is.
fn request(directory: &Path, layers: Option<&str>, bases: &[&Path]) -> Restore {
    Restore {
        directory: directory.to_str().unwrap().into(),
        start: Start::Frozen,
        identity: None,
        layers: layers.map(str::to_owned),
        bases: bases.iter().map(|base| base.to_str().unwrap().to_owned()).collect(),
        volumes: Vec::new(),
        verify: false,
        pager: None,
    }
}

fn failure(directory: &Path) -> Failure {
    restore(&request(directory, None, &[])).err().expect("there is no machine in it")
}

#[test]
fn state_files_are_refused_by_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(saved::STATE);
    assert_eq!(failure(directory.path()).code, Code::BadFile);
    let whole = file_bytes(&state(4 << 20));
    let mut other = whole.clone();
    other[8] += 1;
    let mut altered = whole.clone();
    altered[100] ^= 1;
    let cases = [
        (vec![0; 100], Code::BadFile),
        (other, Code::OtherVersion),
        (altered, Code::Damaged),
        (whole[..whole.len() - 1].to_vec(), Code::Damaged),
        (whole, Code::Damaged), // it has no vCPUs
    ];
    for (bytes, code) in cases {
        std::fs::write(&path, bytes).unwrap();
        let failure = failure(directory.path());
        assert_eq!(failure.code, code, "{}", failure.message);
        assert!(failure.message.contains(path.to_str().unwrap()));
    }
}

/// A memory file of two chunks, the second all zero, and its state.
fn memory() -> (tempfile::TempDir, State) {
    let directory = tempfile::tempdir().unwrap();
    let file = File::create_new(directory.path().join(saved::MEMORY)).unwrap();
    file.set_len(2 * CHUNK as u64).unwrap();
    file.write_all_at(b"guest", 4096).unwrap();
    let mut chunk = vec![0; CHUNK];
    file.read_exact_at(&mut chunk, 0).unwrap();
    let mut state = state(2 * CHUNK as u64);
    state.memory.chunks = vec![Some(saved::chunk_checksum(&chunk)), None];
    state.memory.stamp = Some(Stamp::of(&file).unwrap());
    (directory, state)
}

fn code<T>(result: Result<T, Failure>) -> Option<Code> {
    result.err().map(|failure| failure.code)
}

fn mapped(directory: &Path, state: &State, verify: bool) -> Result<Ram, Failure> {
    let request = Restore { verify, ..request(directory, None, &[]) };
    map_memory(directory, state, &request, &Stamps::read(directory))
}

fn opened(
    directory: &Path,
    saved: &[DiskFile],
    request: &Restore,
) -> Result<(Vec<Disk>, Vec<String>), Failure> {
    let stamps = Stamps::read(directory);
    let (verify, volumes) = (request.verify, &request.volumes[..]);
    let files = Files { directory, verify, pager: None, stamps: &stamps, volumes };
    let bases = bases(saved, &request.bases)?;
    Ok((files.open_disks(saved, &bases, request.layers.as_deref())?, bases))
}

/// Whoever brought the files notes their stamps; then they are not read, unless that is asked for.
#[test]
fn files_that_somebody_vouches_for_are_taken_as_they_are() {
    let (directory, mut state) = memory();
    let path = directory.path().join(saved::MEMORY);
    state.memory.stamp = None;
    state.memory.chunks = vec![Some([0; 32]), None];
    assert_eq!(code(mapped(directory.path(), &state, false)), Some(Code::Damaged));
    let vouch = || {
        let stamp = Stamp::of(&File::open(&path).unwrap()).unwrap();
        let stamps = BTreeMap::from([(saved::MEMORY, stamp)]);
        std::fs::write(directory.path().join(saved::STAMPS), serde_json::to_vec(&stamps).unwrap())
    };
    vouch().unwrap();
    assert_eq!(code(mapped(directory.path(), &state, false)), None);
    assert_eq!(code(mapped(directory.path(), &state, true)), Some(Code::Damaged));
    std::thread::sleep(std::time::Duration::from_millis(20));
    File::options().write(true).open(&path).unwrap().write_all_at(b"x", 0).unwrap();
    assert_eq!(code(mapped(directory.path(), &state, false)), Some(Code::Damaged));
    std::fs::write(directory.path().join(saved::STAMPS), "no stamps").unwrap();
    assert_eq!(code(mapped(directory.path(), &state, false)), Some(Code::Damaged));
}

#[test]
fn memory_is_mapped_as_it_was() {
    let (directory, mut state) = memory();
    for (stamp, verify) in [(true, false), (true, true), (false, false)] {
        if !stamp {
            state.memory.stamp = None;
        }
        let ram = mapped(directory.path(), &state, verify).map_err(|f| f.message).unwrap();
        let mut bytes = [0; 5];
        ram.copy_out(4096, &mut bytes);
        assert_eq!(&bytes, b"guest");
    }
}

#[test]
fn memory_that_was_altered_is_refused() {
    for at in [0, 4096, 2 * CHUNK as u64 - 1] {
        let (directory, state) = memory();
        let file = File::options().write(true).open(directory.path().join(saved::MEMORY)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.write_all_at(&[0xee], at).unwrap();
        let refused = mapped(directory.path(), &state, false).err().unwrap();
        assert_eq!(refused.code, Code::Damaged, "{}", refused.message);
    }
    let (directory, state) = memory();
    let file = File::options().write(true).open(directory.path().join(saved::MEMORY)).unwrap();
    file.set_len(CHUNK as u64).unwrap();
    assert_eq!(code(mapped(directory.path(), &state, false)), Some(Code::Damaged));
    std::fs::remove_file(directory.path().join(saved::MEMORY)).unwrap();
    assert_eq!(code(mapped(directory.path(), &state, false)), Some(Code::BadFile));
}

/// A base image and a disk's content in a directory, and what they were.
fn disks() -> (tempfile::TempDir, Vec<DiskFile>) {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("base");
    let image = File::create_new(&base).unwrap();
    image.set_len(8 * BLOCK as u64).unwrap();
    let (_, mut saved) = saved(0);
    saved[0].record.base = Some(base.to_str().unwrap().into());
    saved[0].base = Some(Stamp::of(&image).unwrap());
    // Of a file that is there as long as this one: a new file may be given the number of one that is gone.
    saved[0].stamp = Stamp::of(&image).unwrap();
    std::fs::write(directory.path().join("disk-0"), [1; BLOCK]).unwrap();
    (directory, saved)
}

#[test]
fn disks_are_opened_as_they_were() {
    let (directory, saved) = disks();
    let request = request(directory.path(), directory.path().to_str(), &[]);
    let opened = opened(directory.path(), &saved, &request).map_err(|f| f.message);
    let (mut disks, bases) = opened.unwrap();
    assert_eq!(bases, [saved[0].record.base.clone().unwrap()]);
    let mut blocks = vec![9; 2 * BLOCK];
    disks[0].read(2, &mut blocks).unwrap();
    assert_eq!((&blocks[..BLOCK], &blocks[BLOCK..]), (&[0; BLOCK][..], &[1; BLOCK][..]));
    disks[0].write(3, &[2; BLOCK]).unwrap();
    let content = std::fs::read(directory.path().join("disk-0")).unwrap();
    assert_eq!(content, [1; BLOCK], "a saved file is never written");
}

#[test]
fn disks_that_are_not_what_they_were_are_refused() {
    let (directory, saved) = disks();
    let place = directory.path();
    let open = |layers| code(opened(place, &saved, &request(place, layers, &[])));
    let layers = place.to_str();
    assert_eq!(open(None), Some(Code::BadValue));
    assert_eq!(open(Some("/nowhere")), Some(Code::BadFile));
    std::fs::write(place.join("disk-0"), [2; BLOCK]).unwrap();
    assert_eq!(open(layers), Some(Code::Damaged));
    std::fs::remove_file(place.join("disk-0")).unwrap();
    assert_eq!(open(layers), Some(Code::BadFile));
    let base = File::options().write(true).open(place.join("base")).unwrap();
    base.set_len(9 * BLOCK as u64).unwrap();
    assert_eq!(open(layers), Some(Code::Damaged));
    std::fs::remove_file(place.join("base")).unwrap();
    assert_eq!(open(layers), Some(Code::BadFile));
}

#[test]
fn base_images_may_have_moved_but_are_as_many() {
    let (directory, saved) = disks();
    let place = directory.path();
    let moved = place.join("moved");
    std::fs::rename(place.join("base"), &moved).unwrap();
    let layers = place.to_str();
    let open = |bases: &[&Path]| opened(place, &saved, &request(place, layers, bases));
    assert_eq!(code(open(&[])), Some(Code::BadFile));
    assert_eq!(code(open(&[&moved, &moved])), Some(Code::BadValue));
    let (_, bases) = open(&[&moved]).map_err(|failure| failure.message).unwrap();
    assert_eq!(bases, [moved.to_str().unwrap()]);
}

/// A machine that boots takes the content, and only of disks like its own.
#[test]
fn a_machine_boots_with_saved_disks() {
    use ramet_proto::control::{Disk as Given, Payload};
    let (directory, saved) = disks();
    let place = directory.path();
    let base = saved[0].record.base.clone().unwrap();
    let boot = |disks| Boot {
        vcpus: 1,
        memory_mib: 64,
        huge_pages: false,
        payload: Payload::Flat { image: String::new() },
        disks,
        slots: 2,
        network: false,
        layers: place.to_str().map(str::to_owned),
        saved: None,
        identity: None,
    };
    let given = |read_only| Given { base: base.clone(), read_only };
    let open = |disks| boot_disks(&boot(disks), place.to_str().unwrap());
    assert_eq!(code(open(vec![given(false)])), Some(Code::BadFile), "nothing describes them");
    saved::write_disks(&File::create_new(place.join(saved::DISKS)).unwrap(), &saved).unwrap();
    let disks = open(vec![given(false)]).map_err(|failure| failure.message).unwrap();
    let mut block = vec![9; BLOCK];
    disks[0].read(3, &mut block).unwrap();
    assert_eq!(block, [1; BLOCK]);
    assert!(disks.len() == 3 && disks[1].is_empty() && disks[2].is_empty());
    assert_eq!(code(open(vec![given(true)])), Some(Code::BadValue));
    assert_eq!(code(open(vec![given(false), given(false)])), Some(Code::BadValue));
    assert_eq!(code(open(Vec::new())), Some(Code::BadValue));
}

/// What is in slots comes whole, and a volume only as long as it is what it was.
#[test]
fn slots_are_copies_or_the_same_volume() {
    let (directory, mut saved) = disks();
    let (place, volume) = (directory.path(), tempfile::tempdir().unwrap());
    let layers = open_layers(place.to_str()).map_err(|failure| failure.message).unwrap();
    File::create_new(volume.path().join("base")).unwrap().set_len(8 * BLOCK as u64).unwrap();
    let mut disk = Disk::with_volume(volume.path(), false, layers.clone()).unwrap();
    disk.write(5, &[5; BLOCK]).unwrap();
    let content = File::create_new(place.join("disk-1")).unwrap();
    let record = disk.save(None, &content).unwrap();
    let (stamp, content) = (Stamp::of(&content).unwrap(), saved::checksum(&content).unwrap());
    saved.push(DiskFile { base: None, content, stamp, record });
    let with = |slot| Restore {
        volumes: vec![Attach {
            slot,
            volume: volume.path().to_str().unwrap().to_owned(),
            read_only: false,
        }],
        ..request(place, place.to_str(), &[])
    };
    let read = |disks: &[Disk]| {
        let mut block = vec![9; BLOCK];
        disks[1].read(5, &mut block).unwrap();
        block[0]
    };
    assert_eq!(code(opened(place, &saved, &with(0))), Some(Code::Busy), "it is still written");
    drop(disk);
    let (mut disks, bases) = opened(place, &saved, &with(0)).map_err(|f| f.message).unwrap();
    assert_eq!((disks.len(), bases.len(), read(&disks)), (2, 1, 5));
    disks[1].write(5, &[6; BLOCK]).unwrap();
    drop(disks);
    assert_eq!(code(opened(place, &saved, &with(0))), Some(Code::VolumeChanged));
    assert_eq!(check_slots(&saved, &with(1).volumes).unwrap_err().code, Code::BadValue);
    let plain = request(place, place.to_str(), &[]);
    let (mut disks, _) = opened(place, &saved, &plain).map_err(|f| f.message).unwrap();
    disks[1].write(0, &[7; BLOCK]).unwrap();
    assert_eq!((read(&disks), disks[1].turn()), (5, None));
}
