//! The disk against a plain array.
#![expect(clippy::cast_possible_truncation, reason = "the disk has 1200 blocks")]

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const BLOCKS: u64 = 1200;

fn base() -> File {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|b| vec![(b % 251) as u8; BLOCK]).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file
}

fn disk() -> Disk {
    let directory = File::open(std::env::temp_dir()).unwrap();
    Disk::new(base(), false, Some(Arc::new(directory))).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Write { first: u64, count: u64, value: u8 },
    Discard { first: u64, count: u64 },
    Freeze,
    Save,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BLOCKS).prop_flat_map(|first| (Just(first), 1..=(BLOCKS - first).min(20)));
    prop_oneof![
        4 => (range.clone(), any::<u8>())
            .prop_map(|((first, count), value)| Step::Write { first, count, value }),
        1 => range.prop_map(|(first, count)| Step::Discard { first, count }),
        1 => Just(Step::Freeze),
        1 => Just(Step::Save),
    ]
}

fn fill(model: &mut [u8], first: u64, count: u64, value: u8) {
    model[first as usize..(first + count) as usize].fill(value);
}

fn restored(disk: &Disk) -> Disk {
    let content = tempfile::tempfile().unwrap();
    let record = disk.save(Some("base"), &content).unwrap();
    let directory = File::open(std::env::temp_dir()).unwrap();
    Disk::restored(&record, Some(base()), Some(content), None, Some(Arc::new(directory))).unwrap()
}

fn assert_equal(disk: &Disk, model: &[u8]) {
    let mut all = vec![0; model.len() * BLOCK];
    disk.read(0, &mut all).unwrap();
    for (block, (chunk, value)) in all.chunks(BLOCK).zip(model).enumerate() {
        assert!(chunk.iter().all(|byte| byte == value), "block {block}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_disk_is_an_array(steps in prop::collection::vec(step(), 1..40)) {
        let mut disk = disk();
        let mut model: Vec<u8> = (0..BLOCKS).map(|b| (b % 251) as u8).collect();
        for step in steps {
            match step {
                Step::Write { first, count, value } => {
                    disk.write(first, &vec![value; count as usize * BLOCK]).unwrap();
                    fill(&mut model, first, count, value);
                }
                Step::Discard { first, count } => {
                    disk.discard(first, count).unwrap();
                    fill(&mut model, first, count, 0);
                }
                Step::Freeze => disk.freeze(),
                Step::Save => disk = restored(&disk),
            }
        }
        assert_equal(&disk, &model);
    }
}

#[test]
fn a_frozen_layer_is_never_written() {
    let mut disk = disk();
    disk.write(3, &[1; BLOCK]).unwrap();
    disk.freeze();
    let frozen = Arc::clone(&disk.layer(0).unwrap().file);
    let before = std::io::read_to_string(frozen.try_clone().unwrap()).unwrap();
    disk.write(3, &[2; BLOCK]).unwrap();
    disk.discard(3, 1).unwrap();
    let mut after = vec![0; BLOCK];
    frozen.read_exact_at(&mut after, 0).unwrap();
    assert_eq!(before.as_bytes(), &after);
}

#[test]
fn a_layer_without_readers_is_closed() {
    let mut disk = disk();
    for generation in 0..100 {
        disk.write(7, &[generation; BLOCK]).unwrap();
        disk.freeze();
    }
    assert!(disk.figures().layers <= 2, "{:?}", disk.figures());
}

#[test]
fn what_is_outside_is_refused() {
    let mut disk = disk();
    assert!(disk.read(BLOCKS, &mut [0; BLOCK]).is_err());
    assert!(disk.write(BLOCKS - 1, &[0; 2 * BLOCK]).is_err());
    assert!(disk.write(u64::MAX, &[0; BLOCK]).is_err());
    assert!(disk.write(0, &[0; 100]).is_err());
    assert!(disk.discard(1, u64::MAX).is_err());
    let mut read_only = Disk::new(base(), true, None).unwrap();
    assert!(read_only.write(0, &[0; BLOCK]).is_err());
    let odd = tempfile::tempfile().unwrap();
    odd.set_len(5000).unwrap();
    assert!(Disk::new(odd, true, None).is_err());
}
