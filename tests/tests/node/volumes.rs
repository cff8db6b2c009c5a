//! Volumes: what is in them outlives sandboxes, monitors and the node; forks have copies.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_client::api::{
    AttachVolume, Code, CreateCommit, CreateSandbox, CreateVolume, State,
    VolumeMode::{ReadOnly, ReadWrite, Snapshot},
};

use crate::bed::{Node, Sandbox, eventually, node, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    what_one_wrote_others_read,
    forks_part_from_the_writer,
    a_writer_is_paused_and_committed,
    what_was_synced_survives_every_kill,
    volumes_on_the_command_line,
];

const PLACE: &str = "/mnt/data";

fn volume(node: &Node, name: &str) {
    let request = CreateVolume { name: name.to_owned(), size_mib: Some(256) };
    wait(node.client.create_volume(&request)).unwrap_or_else(|error| node.fail(&error));
}

fn at_place(volume: &str, read_only: bool) -> AttachVolume {
    AttachVolume { volume: volume.to_owned(), path: PLACE.to_owned(), read_only }
}

fn with<'n>(node: &'n Node, name: &str, volume: &str, read_only: bool) -> Sandbox<'n> {
    node.create_as(CreateSandbox {
        name: Some(name.to_owned()),
        volumes: vec![at_place(volume, read_only)],
        ..CreateSandbox::default()
    })
}

fn put(sandbox: &Sandbox<'_>, text: &str) {
    sandbox.sh(&format!("echo {text} > {PLACE}/note && sync"));
}

/// What the medium holds, whatever is cached.
fn note(sandbox: &Sandbox<'_>) -> String {
    sandbox.sh(&format!("echo 3 > /proc/sys/vm/drop_caches; cat {PLACE}/note"))
}

fn mode(sandbox: &Sandbox<'_>) -> ramet_client::api::VolumeMode {
    sandbox.shown().volumes[0].mode
}

fn what_one_wrote_others_read() {
    let client = &node().client;
    volume(node(), "shared");
    let writer = with(node(), "first", "shared", false);
    assert_eq!(mode(&writer), ReadWrite);
    // Not synced: a sandbox that is deleted has time to write.
    writer.sh(&format!("echo kept > {PLACE}/note"));
    let other = node().create("second");
    let taken = wait(client.attach_volume(&other.id, &at_place("shared", true)));
    assert_eq!(refusal(taken), Code::InUse);
    assert_eq!(refusal(wait(client.delete_volume("shared"))), Code::InUse);
    writer.delete();
    wait(client.attach_volume(&other.id, &at_place("shared", true))).unwrap();
    let third = with(node(), "third", "shared", true);
    for reader in [&other, &third] {
        assert_eq!((note(reader).as_str(), mode(reader)), ("kept", ReadOnly));
        assert!(!reader.run(&format!("echo no > {PLACE}/note")).ok);
    }
    let taken = wait(client.attach_volume(&other.id, &at_place("shared", false)));
    assert_eq!(refusal(taken), Code::AlreadyExists);
    // In use inside it stays, and nothing is lost of it.
    let mut held = wait(client.detach_volume(&other.id, "shared"));
    assert!(held.as_ref().unwrap().volumes.is_empty());
    let busy = third.sh(&format!("cd {PLACE}; sleep 600 > /dev/null 2>&1 & echo $!"));
    assert_eq!(refusal(wait(client.detach_volume(&third.id, "shared"))), Code::InUse);
    third.sh(&format!("kill {busy}; while [ -e /proc/{busy} ]; do sleep 0.1; done"));
    held = wait(client.detach_volume(&third.id, "shared"));
    assert!(held.unwrap().volumes.is_empty());
    assert!(!third.run(&format!("cat {PLACE}/note")).ok);
    wait(client.delete_volume("shared")).unwrap();
}

fn forks_part_from_the_writer() {
    let client = &node().client;
    volume(node(), "forked");
    let source = with(node(), "source", "forked", false);
    put(&source, "before");
    let child = source.fork(1).remove(0);
    put(&source, "source");
    assert_eq!((note(&child).as_str(), mode(&child)), ("before", Snapshot));
    put(&child, "child");
    assert_eq!((note(&source).as_str(), mode(&source)), ("source", ReadWrite));
    let moment = source.checkpoint("moment");
    put(&source, "last");
    let refused =
        wait(client.rewind(
            &source.id,
            &ramet_client::api::RewindRequest { checkpoint: moment.id.clone() },
        ));
    assert_eq!(refusal(refused), Code::WrongState);
    wait(client.detach_volume(&source.id, "forked")).unwrap();
    let reader = with(node(), "reader", "forked", true);
    assert_eq!(note(&reader), "last", "the volume has what the source wrote");
    let twin = reader.fork(1).remove(0);
    assert_eq!((note(&twin).as_str(), mode(&twin)), ("last", ReadOnly));
    source.rewind(&moment.id);
    assert_eq!((note(&source).as_str(), mode(&source)), ("source", Snapshot));
    put(&source, "rewound");
    assert_eq!((note(&child), note(&reader)), ("child".to_owned(), "last".to_owned()));
    drop((source, child, reader, twin));
    wait(client.delete_volume("forked")).unwrap();
}

fn a_writer_is_paused_and_committed() {
    let client = &node().client;
    volume(node(), "paused");
    let writer = with(node(), "pauser", "paused", false);
    put(&writer, "one");
    // The guest has not written all of it yet.
    writer.sh(&format!("head -c 1000000 /dev/urandom > {PLACE}/blob"));
    let digest = writer.sh(&format!("sha256sum < {PLACE}/blob"));
    writer.pause();
    let taken = wait(client.create(&CreateSandbox {
        volumes: vec![at_place("paused", true)],
        ..CreateSandbox::default()
    }));
    assert_eq!(refusal(taken), Code::InUse, "a paused sandbox keeps it");
    let copy = writer.fork(1).remove(0);
    assert_eq!((note(&copy).as_str(), mode(&copy)), ("one", Snapshot));
    put(&copy, "copy");
    assert_eq!(writer.resume().state, State::Running);
    assert_eq!((note(&writer).as_str(), mode(&writer)), ("one", ReadWrite));
    assert_eq!(writer.sh(&format!("sha256sum < {PLACE}/blob")), digest);
    put(&writer, "two");
    let commit = CreateCommit { wait: true, ..CreateCommit::default() };
    let commit = wait(client.commit(&writer.id, &commit)).unwrap();
    put(&writer, "three");
    let commit = Some(commit.id);
    let checked_out = node().create_as(CreateSandbox { commit, ..CreateSandbox::default() });
    assert_eq!((note(&checked_out).as_str(), mode(&checked_out)), ("two", Snapshot));
    drop((writer, copy));
    let reader = with(node(), "after", "paused", true);
    assert_eq!(note(&reader), "three");
    assert_eq!(reader.sh(&format!("sha256sum < {PLACE}/blob")), digest);
    drop((reader, checked_out));
    wait(client.delete_volume("paused")).unwrap();
}

fn what_was_synced_survives_every_kill() {
    let node = Node::new("volumes", &[]);
    volume(&node, "tough");
    let writer = with(&node, "writer", "tough", false);
    let child = writer.fork(1).remove(0);
    put(&writer, "synced");
    node.restart();
    node.await_ready();
    assert_eq!((note(&writer).as_str(), mode(&writer)), ("synced", ReadWrite));
    put(&writer, "later");
    let monitor = truth::monitor_of(&node, &writer.id);
    kill(Pid::from_raw(monitor.cast_signed()), Signal::SIGKILL).expect("a signal");
    eventually("it has failed", || writer.shown().state == State::Failed);
    assert!(writer.shown().volumes.is_empty());
    let next = with(&node, "next", "tough", false);
    assert_eq!(note(&next), "later");
    put(&next, "next");
    assert_eq!(mode(&child), Snapshot);
    drop(next);
    // Everything at once, the node included.
    let last = with(&node, "last", "tough", false);
    put(&last, "last");
    node.kill();
    for pid in ramet_tests::linux::processes_of(node.home()).expect("/proc") {
        // One that has ended with another needs no signal.
        let _ended = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    node.start();
    node.await_ready();
    let reader = with(&node, "reader", "tough", true);
    assert_eq!(note(&reader), "last");
    truth::holds(&node);
    drop((writer, child, last, reader));
    wait(node.client.delete_volume("tough")).unwrap();
    let left = std::fs::read_dir(node.home().join("volumes")).expect("a directory").count();
    assert_eq!(left, 0);
}

fn volumes_on_the_command_line() {
    let run = |arguments: &[&str]| {
        let ran = node().ramet(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.err);
        ran.out
    };
    run(&["volume", "create", "typed", "--size", "128M"]);
    run(&["new", "typist", "--volume", "typed:/mnt/typed"]);
    run(&["exec", "typist", "echo hello > /mnt/typed/note"]);
    let list = run(&["volume", "ls"]);
    assert!(list.contains("typed") && list.contains("typist (read-write)"), "{list}");
    let shown: serde_json::Value =
        serde_json::from_str(&run(&["--json", "volume", "inspect", "typed"])).unwrap();
    assert_eq!(
        (&shown["size_mib"], &shown["used_by"][0]["path"]),
        (&128.into(), &"/mnt/typed".into())
    );
    let refused = node().ramet(&["volume", "rm", "typed"]);
    assert!(refused.code != 0 && refused.err.contains("typist"), "{}", refused.err);
    assert!(run(&["inspect", "typist"]).contains("typed at /mnt/typed, read-write"));
    run(&["volume", "detach", "typist", "typed"]);
    let attached = run(&["volume", "attach", "typist", "typed:/srv/typed:ro"]);
    assert!(attached.contains("read-only"), "{attached}");
    assert_eq!(run(&["exec", "typist", "cat /srv/typed/note"]), "hello\n");
    run(&["rm", "typist"]);
    run(&["volume", "rm", "typed"]);
}
