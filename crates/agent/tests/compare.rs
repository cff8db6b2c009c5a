//! What the agent tells of files, for a comparison.

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::Agent;
use ramet_proto::agent::{LayeredKind, Name, Place, Reply, Request, Seen, SeenKind, path_order};

fn name(path: &str) -> Name {
    Name::new(path.as_bytes())
}

fn look(agent: &Agent, path: &str, deep: bool) -> Vec<Seen> {
    let mut session = agent.ask(&Request::Look { places: vec![Place { path: name(path), deep }] });
    let mut all = Vec::new();
    loop {
        match session.reply() {
            Reply::Seen { entries } => all.extend(entries),
            Reply::Done {} => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_tree_is_seen_in_order_with_whatever_is_in_it() {
    let agent = Agent::start();
    let root = agent.path("tree");
    let at = |path: &str| Path::new(&root).join(path);
    std::fs::create_dir_all(at("a/deep")).unwrap();
    std::fs::write(at("a/deep/file"), "12345").unwrap();
    std::fs::write(at("a-b"), "").unwrap();
    std::fs::write(Path::new(&root).join(std::ffi::OsStr::from_bytes(b"\xff\n")), "x").unwrap();
    symlink(".", at("loop")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::fs::set_permissions(at("a-b"), std::fs::Permissions::from_mode(0o4711)).unwrap();
    let seen = look(&agent, &root, true);
    assert!(seen.is_sorted_by(|a, b| path_order(a.path.bytes(), b.path.bytes()).is_lt()));
    let told: Vec<(Vec<u8>, SeenKind)> =
        seen.iter().map(|one| (one.path.bytes()[root.len()..].to_vec(), one.kind)).collect();
    let expected: [(&[u8], SeenKind); 9] = [
        (b"", SeenKind::Directory),
        (b"/a", SeenKind::Directory),
        (b"/a/deep", SeenKind::Directory),
        (b"/a/deep/file", SeenKind::File),
        (b"/a-b", SeenKind::File),
        (b"/fifo", SeenKind::Fifo),
        (b"/loop", SeenKind::Symlink),
        (b"/socket", SeenKind::Socket),
        (b"/\xff\n", SeenKind::File),
    ];
    assert_eq!(told, expected.map(|(path, kind)| (path.to_vec(), kind)));
    let find =
        |path: &str| seen.iter().find(|one| one.path == name(&format!("{root}{path}"))).unwrap();
    assert_eq!(find("/loop").target, Some(name(".")));
    assert_eq!((find("/a-b").mode, find("/a/deep/file").size), (0o4711, 5));
    assert_eq!(look(&agent, &root, false).len(), 1);
    assert_eq!(look(&agent, &format!("{root}/missing"), true), []);
    assert_eq!(look(&agent, &format!("{root}/a-b/below-a-file"), true), []);
}

#[test]
fn many_files_come_in_parts() {
    let agent = Agent::start();
    let root = agent.path("many");
    std::fs::create_dir(&root).unwrap();
    for number in 0..2000 {
        std::fs::write(format!("{root}/{}{number}", "\u{1}".repeat(200)), "").unwrap();
    }
    assert_eq!(look(&agent, &root, true).len(), 2001);
}

#[test]
fn without_layers_everything_is_elsewhere() {
    let agent = Agent::start();
    let mut session = agent.ask(&Request::Layer { paths: vec!["/home".into(), "/tmp".into()] });
    assert!(matches!(session.reply(), Reply::Layer { .. }));
    let Reply::Layered { entries } = session.reply() else { panic!() };
    let told: Vec<_> = entries.iter().map(|one| (one.path.shown(), one.kind)).collect();
    let elsewhere = LayeredKind::Elsewhere;
    assert_eq!(told, [("/home".to_owned(), elsewhere), ("/tmp".to_owned(), elsewhere)]);
    assert_eq!(session.reply(), Reply::Done {});
}

#[test]
fn places_without_files_are_refused_and_digests_say_what_is_held() {
    let agent = Agent::start();
    let refused = agent.failure(&Request::Layer { paths: vec!["/proc/self".into()] });
    assert_eq!(refused.code, "bad_request");
    let refused = agent.failure(&Request::Layer { paths: vec!["/a/../b".into()] });
    assert_eq!(refused.code, "bad_request");
    let bad = Request::Look { places: vec![Place { path: name("relative"), deep: false }] };
    assert_eq!(agent.failure(&bad).code, "bad_request");
    assert_eq!(look(&agent, "/proc/1", true), []);
    for (file, text) in [("one", "same"), ("two", "same"), ("three", "diff")] {
        std::fs::write(agent.path(file), text).unwrap();
    }
    let paths = ["one", "two", "three", "none"].map(|file| name(&agent.path(file))).to_vec();
    let mut session = agent.ask(&Request::Digest { paths, time_ms: 10_000 });
    let Reply::Digests { digests } = session.reply() else { panic!() };
    assert_eq!(session.reply(), Reply::Done {});
    assert!(digests[0].is_some() && digests[0] == digests[1] && digests[0] != digests[2]);
    assert_eq!(digests[3], None);
}
