//! A volume against plain arrays, through forks, deaths and folds.
#![expect(clippy::cast_possible_truncation, reason = "the volume has 300 blocks")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::disk::{Disk, DiskRecord, forked};

const BLOCKS: u64 = 300;

struct Bed {
    directory: tempfile::TempDir,
    layers: Arc<File>,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let base = File::create_new(directory.path().join("base")).unwrap();
        base.set_len(BLOCKS * BLOCK as u64).unwrap();
        let layers = Arc::new(File::open(std::env::temp_dir()).unwrap());
        Self { directory, layers }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn open(&self, read_only: bool) -> io::Result<Disk> {
        Disk::with_volume(self.path(), read_only, Some(Arc::clone(&self.layers)))
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn values(disk: &Disk) -> Vec<u8> {
    let mut all = vec![9; BLOCKS as usize * BLOCK];
    disk.read(0, &mut all).unwrap();
    let value = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
        block[0]
    };
    all.chunks(BLOCK).map(value).collect()
}

fn write(disk: &mut Disk, block: u64, value: u8) {
    disk.write(block, &[value; BLOCK]).unwrap();
}

fn read(disk: &Disk, block: u64) -> u8 {
    values(disk)[block as usize]
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        first: u64,
        count: u64,
        value: u8,
    },
    Discard {
        first: u64,
        count: u64,
    },
    Flush,
    /// A child is kept that writes, too.
    Fork {
        value: u8,
    },
    /// All children end.
    End,
    /// The writer is killed and another one opens the volume.
    Kill,
    /// The writer ends as it should, and the layers are folded if nobody reads them.
    Fold,
    /// It is saved and compared.
    Save,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BLOCKS).prop_flat_map(|first| (Just(first), 1..=(BLOCKS - first).min(20)));
    prop_oneof![
        6 => (range.clone(), 1..=255_u8)
            .prop_map(|((first, count), value)| Step::Write { first, count, value }),
        2 => range.prop_map(|(first, count)| Step::Discard { first, count }),
        2 => Just(Step::Flush),
        2 => any::<u8>().prop_map(|value| Step::Fork { value }),
        1 => Just(Step::End),
        1 => Just(Step::Kill),
        1 => Just(Step::Fold),
        1 => Just(Step::Save),
    ]
}

/// What is known of each block: what it reads as, and what it may be after a death.
struct Model {
    now: Vec<u8>,
    possible: Vec<BTreeSet<u8>>,
}

impl Model {
    fn new(now: Vec<u8>) -> Self {
        let possible = now.iter().map(|value| BTreeSet::from([*value])).collect();
        Self { now, possible }
    }

    fn fill(&mut self, first: u64, count: u64, value: u8) {
        for block in first..first + count {
            self.now[block as usize] = value;
            self.possible[block as usize].insert(value);
        }
    }
}

fn restored(disk: &Disk) -> (DiskRecord, Disk) {
    let content = tempfile::tempfile().unwrap();
    let record = disk.save(None, &content).unwrap();
    let copy = Disk::restored(&record, None, Some(content), None, disk.directory()).unwrap();
    (record, copy)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_volume_is_an_array(steps in prop::collection::vec(step(), 1..60)) {
        let bed = Bed::new();
        let mut disk = bed.open(false).unwrap();
        let mut model = Model::new(vec![0; BLOCKS as usize]);
        let mut children: Vec<(Disk, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Write { first, count, value } => {
                    disk.write(first, &vec![value; count as usize * BLOCK]).unwrap();
                    model.fill(first, count, value);
                }
                Step::Discard { first, count } => {
                    disk.discard(first, count).unwrap();
                    model.fill(first, count, 0);
                }
                Step::Flush => {
                    disk.flush().unwrap();
                    model = Model::new(model.now);
                }
                Step::Fork { value } => {
                    let mut child = forked(&mut disk);
                    let mut seen = model.now.clone();
                    write(&mut child, u64::from(value), value);
                    seen[usize::from(value)] = value;
                    children.push((child, seen));
                }
                Step::End => children.clear(),
                Step::Kill => {
                    drop(disk);
                    disk = bed.open(false).unwrap();
                    let found = values(&disk);
                    for (block, value) in found.iter().enumerate() {
                        prop_assert!(model.possible[block].contains(value), "block {block}");
                    }
                    model = Model::new(found);
                }
                Step::Fold => {
                    disk.flush().unwrap();
                    drop(disk);
                    let folded = fold(bed.path()).unwrap();
                    prop_assert_eq!(folded, children.is_empty());
                    if folded {
                        prop_assert_eq!(bed.files(), ["base", "writer"]);
                    }
                    disk = bed.open(false).unwrap();
                    model = Model::new(model.now);
                }
                Step::Save => {
                    let (record, copy) = restored(&disk);
                    prop_assert_eq!(record.turn, disk.turn());
                    prop_assert_eq!(&values(&copy), &model.now);
                }
            }
            prop_assert_eq!(&values(&disk), &model.now);
        }
        for (child, seen) in &children {
            prop_assert_eq!(&values(child), seen);
        }
    }
}

#[test]
fn one_writes_and_then_nobody_reads() {
    let bed = Bed::new();
    let writer = bed.open(false).unwrap();
    let refused = |read_only| bed.open(read_only).map(drop).unwrap_err().kind();
    assert_eq!(
        (refused(false), refused(true)),
        (io::ErrorKind::WouldBlock, io::ErrorKind::WouldBlock)
    );
    assert!(!fold(bed.path()).unwrap());
    drop(writer);
    let (one, two) = (bed.open(true).unwrap(), bed.open(true).unwrap());
    assert_eq!(values(&one), values(&two));
}

#[test]
fn what_a_reader_writes_is_its_own() {
    let bed = Bed::new();
    let mut writer = bed.open(false).unwrap();
    write(&mut writer, 5, 1);
    writer.flush().unwrap();
    drop(writer);
    let (mut one, two) = (bed.open(true).unwrap(), bed.open(true).unwrap());
    write(&mut one, 5, 2);
    one.flush().unwrap();
    assert_eq!((read(&one, 5), read(&two, 5)), (2, 1));
    // Whoever writes while somebody reads begins a layer.
    let mut writer = bed.open(false).unwrap();
    write(&mut writer, 5, 3);
    writer.flush().unwrap();
    assert_eq!((read(&one, 5), read(&two, 5), read(&writer, 5)), (2, 1, 3));
    drop(writer);
    assert!(!fold(bed.path()).unwrap());
    drop((one, two));
    assert!(fold(bed.path()).unwrap());
    assert_eq!(read(&bed.open(true).unwrap(), 5), 3);
}

#[test]
fn layers_that_do_not_count_go() {
    let bed = Bed::new();
    let mut writer = bed.open(false).unwrap();
    let _child = forked(&mut writer);
    for value in 1..50 {
        write(&mut writer, 7, value);
        writer.flush().unwrap();
        writer.freeze();
    }
    writer.flush().unwrap();
    let maps = bed.files().iter().filter(|name| name.ends_with(".map")).count();
    assert!(maps <= 2, "{:?}", bed.files());
    drop(writer);
    assert_eq!(read(&bed.open(true).unwrap(), 7), 49);
}

#[test]
fn a_turn_tells_of_every_change() {
    let bed = Bed::new();
    let mut writer = bed.open(false).unwrap();
    let mut turns = vec![writer.turn().unwrap()];
    for value in 0..3 {
        write(&mut writer, 1, value);
        write(&mut writer, 2, value);
        turns.push(writer.turn().unwrap());
        writer.freeze();
        assert_eq!(writer.turn(), turns.last().copied());
    }
    drop(writer);
    let mut writer = bed.open(false).unwrap();
    assert_eq!(writer.turn(), turns.last().copied());
    writer.discard(1, 1).unwrap();
    turns.push(writer.turn().unwrap());
    assert_eq!(turns, [0, 1, 2, 3, 4]);
}

#[test]
fn a_fold_can_be_interrupted() {
    let bed = Bed::new();
    let mut writer = bed.open(false).unwrap();
    let child = forked(&mut writer);
    for (block, value) in [(1, 1), (2, 1), (1, 2), (3, 3), (2, 4)] {
        write(&mut writer, block, value);
        writer.flush().unwrap();
        writer.freeze();
    }
    let expected = values(&writer);
    drop((writer, child));
    // After the base was written, the oldest layers are gone in any number.
    let content = Content::open(bed.path()).unwrap();
    let base = OpenOptions::new().write(true).open(bed.path().join("base")).unwrap();
    for layer in &content.layers {
        fold_layer(&base, layer, &layer.states(BLOCKS).unwrap()).unwrap();
    }
    assert!(content.layers.len() > 1);
    for layer in &content.layers {
        assert_eq!(values(&bed.open(true).unwrap()), expected);
        remove_layer(bed.path(), layer.number).unwrap();
    }
    File::create(bed.path().join("99.layer")).unwrap();
    drop(content);
    assert!(fold(bed.path()).unwrap());
    assert_eq!(bed.files(), ["base", "writer"]);
    assert_eq!(values(&bed.open(false).unwrap()), expected);
}

#[test]
fn damaged_volumes_are_refused() {
    let bed = Bed::new();
    let mut writer = bed.open(false).unwrap();
    let child = forked(&mut writer);
    write(&mut writer, 1, 1);
    writer.flush().unwrap();
    drop((writer, child));
    let (map, layer) = (bed.path().join("1.map"), bed.path().join("1.layer"));
    let states = fs::read(&map).unwrap();
    assert_eq!(states, [ABSENT, HERE]);
    let refused = || {
        assert!(bed.open(true).is_err() && bed.open(false).is_err() && fold(bed.path()).is_err());
    };
    fs::write(&map, [ABSENT, 7]).unwrap();
    refused();
    fs::write(&map, vec![HERE; BLOCKS as usize + 1]).unwrap();
    refused();
    fs::write(&map, &states).unwrap();
    File::options().write(true).open(&layer).unwrap().set_len(BLOCK as u64).unwrap();
    refused();
    fs::remove_file(&layer).unwrap();
    refused();
    // A map that was cut short tells of less.
    fs::write(&map, []).unwrap();
    File::create(&layer).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
    assert_eq!(read(&bed.open(true).unwrap(), 1), 0);
}
