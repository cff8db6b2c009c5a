//! Volumes in slots of machines: what is written to them outlives every process, and forks part from it.

use std::path::{Path, PathBuf};

use ramet_engine::host::disk;
use ramet_engine::monitor::Machine;
use ramet_proto::agent::Mount;
use ramet_proto::control::{Attach, Code, Restore, Start};
use ramet_tests::linux;

use crate::bed::{Guest, bed, eventually, guest, patience, restore};

const DEVICE: &str = "/dev/vdc";
const PLACE: &str = "/mnt/volume";

/// An empty volume.
fn volume(name: &str) -> PathBuf {
    let directory = bed().directory.path().join(name);
    std::fs::create_dir(&directory).expect("a directory");
    let empty = linux::guest_dir().join("data.ext4");
    disk::copy_sparse(&empty, &directory.join("base")).expect("an empty disk");
    directory
}

fn attach(guest: &Guest, volume: &Path, read_only: bool) {
    guest.attach(0, volume, read_only).expect("attached");
    let mount = Mount { device: DEVICE.to_owned(), path: PLACE.to_owned(), read_only };
    guest.agent().mount(mount).expect("mounted");
}

/// What the medium holds of a file, whatever is cached.
fn on_disk(guest: &Guest, name: &str) -> String {
    guest.sh(&format!("echo 3 > /proc/sys/vm/drop_caches; cat {PLACE}/{name}"))
}

fn fold(volume: &Path) -> bool {
    bed().monitor.fold(volume, patience()).expect("ramet-vmm")
}

fn kill(guest: Guest) {
    guest.0.kill_hard().expect("its end");
}

pub fn it_outlives_its_machines() {
    let volume = volume("outlives");
    let writer = guest("writer");
    attach(&writer, &volume, false);
    let taken = writer.attach(0, &volume, true).unwrap_err();
    assert_eq!(taken.code(), Some(Code::WrongState), "{taken}");
    let other = guest("other");
    let busy = other.attach(0, &volume, true).unwrap_err();
    assert_eq!(busy.code(), Some(Code::Busy), "{busy}");
    writer.sh(&format!(
        "echo first > {PLACE}/note; head -c 3000000 /dev/urandom > {PLACE}/blob; sync"
    ));
    let digest = writer.sh(&format!("sha256sum < {PLACE}/blob"));
    kill(writer);
    // Its journal was not closed: that is done in the reader's own layer.
    let readers = [guest("one"), guest("two")];
    for reader in &readers {
        attach(reader, &volume, true);
        assert_eq!(on_disk(reader, "note"), "first");
        assert_eq!(reader.sh(&format!("sha256sum < {PLACE}/blob")), digest);
        let refused = reader.sh(&format!("mount -o remount,rw {PLACE} 2>&1 || echo no"));
        assert!(refused.ends_with("no"), "{refused}");
    }
    assert!(!fold(&volume), "they read it");
    let [one, two] = readers;
    let child = one.fork_as("child");
    assert_eq!(on_disk(&child, "note"), "first");
    kill(one);
    kill(child);
    // A slot is emptied and used again.
    two.agent().unmount(DEVICE).expect("unmounted");
    two.detach_volume(0).expect("empty");
    eventually("no medium", || two.sh("cat /sys/block/vdc/size") == "0");
    assert!(fold(&volume));
    attach(&two, &volume, false);
    two.sh(&format!("cd {PLACE}; test $(cat note) = first; echo second > note"));
    let used = two.agent().unmount(DEVICE);
    assert!(used.is_ok(), "{used:?}");
    two.detach_volume(0).expect("empty");
    attach(&other, &volume, true);
    assert_eq!(on_disk(&other, "note"), "second");
}

pub fn copies_part_from_the_writer() {
    let volume = volume("parts");
    let source = guest("source");
    attach(&source, &volume, false);
    let put = |guest: &Guest, text: &str| {
        guest.sh(&format!("echo {text} > {PLACE}/note; sync"));
    };
    put(&source, "before");
    let children = source.fork_all(&["left", "right"]);
    let frozen = source.checkpoint().expect("a checkpoint");
    put(&source, "after");
    for (child, text) in children.iter().zip(["left", "right"]) {
        assert_eq!(on_disk(child, "note"), "before");
        put(child, text);
    }
    let grandchild = children[0].fork_as("grandchild");
    assert_eq!(
        (on_disk(&grandchild, "note"), on_disk(&source, "note")),
        ("left".into(), "after".into())
    );
    put(&source, "last");
    kill(source);
    assert!(!fold(&volume), "children read what it was");
    let next = guest("next");
    attach(&next, &volume, false);
    assert_eq!(on_disk(&next, "note"), "last");
    put(&next, "next");
    let late = crate::bed::fork_with(&frozen, vec![linux::identity("late")]).remove(0);
    let seen: Vec<String> =
        children.iter().chain([&grandchild, &late]).map(|guest| on_disk(guest, "note")).collect();
    assert_eq!(seen, ["left", "right", "left", "before"]);
    drop((children, grandchild, late, frozen));
    kill(next);
    eventually("nobody has it", || fold(&volume));
    let reader = guest("reader");
    attach(&reader, &volume, true);
    assert_eq!(on_disk(&reader, "note"), "next");
}

pub fn the_writer_is_saved() {
    let volume = volume("saved");
    let source = guest("source");
    attach(&source, &volume, false);
    source.sh(&format!("echo saved > {PLACE}/note; echo open > {PLACE}/open"));
    source.py(&format!("held = open('{PLACE}/open')"));
    let directory = bed().directory.path().join("volume.saved");
    source.pause().expect("paused");
    source.save(&directory, false).expect("saved");
    kill(source);
    let goes_on = || {
        let volume = volume.to_string_lossy().into_owned();
        Restore {
            volumes: vec![Attach { slot: 0, volume, read_only: false }],
            ..restore(&directory, Start::Run, Some(linux::identity("again")))
        }
    };
    let again = started(|machine| machine.restore(goes_on()).expect("restored"));
    assert_eq!(again.py("print(held.read())"), "open\n".trim());
    again.sh(&format!("echo later > {PLACE}/note; sync"));
    kill(again);
    let refused = bed().start().restore(goes_on()).unwrap_err();
    assert_eq!(refused.code(), Some(Code::VolumeChanged), "{refused}");
    // As a copy it is what it was, and the volume is what it is.
    let copy = bed().restore(&directory, "copy");
    assert_eq!(on_disk(&copy, "note"), "saved");
    copy.sh(&format!("echo copy > {PLACE}/note; sync"));
    let reader = guest("reader");
    attach(&reader, &volume, true);
    assert_eq!(on_disk(&reader, "note"), "later");
}

fn started(make: impl FnOnce(&Machine)) -> Guest {
    let machine = bed().start();
    make(&machine);
    linux::await_ready(&machine, patience()).expect("ready");
    Guest(machine)
}
