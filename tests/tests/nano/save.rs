//! Save and restore: the same memory, or a refusal that says why.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ramet_engine::control::Error;
use ramet_engine::monitor::Machine;
use ramet_proto::control::{Code, Restore, Start, State};
use ramet_tests::nano::{Mail, Mailbox};

use crate::bed::{Bed, assert_counts, fill, fork_one, guest_hash, pattern_hash};

fn restore(bed: &Bed, directory: &Path, start: Start, verify: bool) -> Result<Machine, Error> {
    let machine = bed.start();
    machine.restore(Restore {
        directory: directory.to_str().unwrap().to_owned(),
        start,
        identity: None,
        layers: None,
        bases: Vec::new(),
        volumes: Vec::new(),
        verify,
        pager: None,
    })?;
    Ok(machine)
}

/// A machine saved while it was held, and what its mailbox was.
fn saved(bed: &Bed, seed: u64) -> (PathBuf, Mail) {
    let machine = bed.boot(1);
    fill(&machine, seed);
    let held = Mailbox::of(&machine).hold().unwrap();
    let directory = bed.run.path().join("saved");
    let saved = machine.save(&directory, true).unwrap();
    assert!(saved.memory_bytes >= crate::bed::LENGTH, "{saved:?}");
    (directory, held)
}

#[test]
fn a_restored_machine_goes_on_where_it_was() {
    let Some(bed) = Bed::new() else { return };
    let (directory, held) = saved(&bed, 11);
    for verify in [false, true] {
        let machine = restore(&bed, &directory, Start::Run, verify).unwrap();
        assert_eq!(Mailbox::of(&machine).read().unwrap(), held);
        Mailbox::of(&machine).release().unwrap();
        assert_counts(&machine);
        assert_eq!(guest_hash(&machine), pattern_hash(11));
        // What it writes does not reach the files.
        fill(&machine, 12);
        let child = fork_one(&machine);
        assert_eq!(guest_hash(&child), pattern_hash(12));
    }
    let again = restore(&bed, &directory, Start::Run, true).unwrap();
    assert_eq!(Mailbox::of(&again).read().unwrap(), held);
}

#[test]
fn the_source_runs_on_while_it_is_saved() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(2);
    fill(&machine, 13);
    let directory = bed.run.path().join("saved");
    machine.save(&directory, true).unwrap();
    assert_eq!(machine.status().unwrap().state, State::Running);
    assert_counts(&machine);
    bed.await_only(&[&machine]);
    fill(&machine, 14);
    let restored = restore(&bed, &directory, Start::Run, true).unwrap();
    for vcpu in 0..2 {
        Mailbox::of_vcpu(&restored, vcpu).await_counting().unwrap();
    }
    assert_eq!(guest_hash(&restored), pattern_hash(13));
    assert_eq!(guest_hash(&machine), pattern_hash(14));
}

#[test]
fn a_template_is_forked_again_and_again() {
    let Some(bed) = Bed::new() else { return };
    let (directory, _) = saved(&bed, 15);
    let template = restore(&bed, &directory, Start::Frozen, false).unwrap();
    assert_eq!(template.status().unwrap().state, State::Frozen);
    for round in 0..10 {
        let child = fork_one(&template);
        Mailbox::of(&child).release().unwrap();
        assert_eq!(guest_hash(&child), pattern_hash(15), "round {round}");
        fill(&child, round);
        assert_eq!(guest_hash(&child), pattern_hash(round));
    }
    assert_eq!(template.status().unwrap().state, State::Frozen);
    bed.await_only(&[&template]);
}

#[test]
fn checkpoints_and_paused_machines_are_saved_too() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    fill(&machine, 16);
    let checkpoint = machine.checkpoint().unwrap();
    machine.pause().unwrap();
    for (name, source) in [("checkpoint", &checkpoint), ("paused", &machine)] {
        let directory = bed.run.path().join(name);
        source.save(&directory, true).unwrap();
        let restored = restore(&bed, &directory, Start::Run, true).unwrap();
        assert_eq!(guest_hash(&restored), pattern_hash(16), "{name}");
    }
    assert_eq!(machine.status().unwrap().state, State::Paused);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Restores a copy of what was saved, with one file changed.
fn altered(bed: &Bed, saved: &Path, name: &Path, alter: &dyn Fn(&fs::File)) -> Option<Code> {
    let directory = bed.run.path().join("altered");
    copy(saved, &directory);
    let path = directory.join(name.file_name().unwrap());
    alter(&OpenOptions::new().read(true).write(true).open(path).unwrap());
    let result = restore(bed, &directory, Start::Run, true);
    fs::remove_dir_all(&directory).unwrap();
    result.err().map(|error| error.code().unwrap_or_else(|| panic!("{error:?}")))
}

#[test]
fn damaged_files_are_refused() {
    let Some(bed) = Bed::new() else { return };
    let (directory, _) = saved(&bed, 17);
    let files: Vec<PathBuf> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in &files {
        let length = fs::metadata(file).unwrap().len();
        for cut in [length / 2, length - 1] {
            let refused = altered(&bed, &directory, file, &|file| file.set_len(cut).unwrap());
            assert_eq!(refused, Some(Code::Damaged), "{file:?} cut to {cut} of {length}");
        }
        for at in [length / 3, length / 2, length - 1] {
            let refused = altered(&bed, &directory, file, &|file| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[!byte[0]], at).unwrap();
            });
            assert_eq!(refused, Some(Code::Damaged), "{file:?} altered at {at} of {length}");
        }
    }
    // A copy in which nothing was changed is as good as the original.
    assert_eq!(altered(&bed, &directory, &files[0], &|_| {}), None);
}

#[test]
fn another_version_is_refused() {
    let Some(bed) = Bed::new() else { return };
    let (directory, _) = saved(&bed, 19);
    // After the eight bytes that say what the file is.
    let newer = |file: &fs::File| file.write_all_at(&9999_u32.to_le_bytes(), 8).unwrap();
    let refused = altered(&bed, &directory, Path::new("state"), &newer);
    assert_eq!(refused, Some(Code::OtherVersion));
    let other = |file: &fs::File| file.write_all_at(b"MZ", 0).unwrap();
    let refused = altered(&bed, &directory, Path::new("state"), &other);
    assert_eq!(refused, Some(Code::BadFile));
}

#[test]
fn a_missing_file_is_refused() {
    let Some(bed) = Bed::new() else { return };
    let (directory, _) = saved(&bed, 18);
    for entry in fs::read_dir(&directory).unwrap() {
        let part = bed.run.path().join("part");
        copy(&directory, &part);
        fs::remove_file(part.join(entry.unwrap().file_name())).unwrap();
        let refused = restore(&bed, &part, Start::Run, false).unwrap_err();
        assert!(matches!(refused.code(), Some(Code::Damaged | Code::BadFile)), "{refused:?}");
        fs::remove_dir_all(&part).unwrap();
    }
}
