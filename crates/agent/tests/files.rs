//! Files: written whole or not at all, read in parts, holes kept, changes told.

mod common;

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use common::{Agent, Session, until};
use ramet_proto::agent::{
    ChangeKind, Channel, Entry, FileKind, Input, List, Mkdir, ReadFile, Reply, Request, WriteFile,
};

fn writing(path: &str) -> WriteFile {
    WriteFile { path: path.to_owned(), ..WriteFile::default() }
}

fn write(agent: &Agent, request: WriteFile, content: &[u8]) -> Reply {
    let mut session = agent.ask(&Request::WriteFile(request));
    content.chunks(256 * 1024).for_each(|chunk| session.bytes(Channel::Stdin, chunk));
    session.input(Input::End {});
    session.reply()
}

/// What a read session gives: the file, its content with holes filled, and the length of the holes.
fn read_from(mut session: Session) -> (Entry, Vec<u8>, u64) {
    let Reply::Stat(entry) = session.reply() else { panic!("stat was due") };
    let (mut content, mut holes) = (Vec::new(), 0);
    loop {
        match session.frame().expect("more") {
            (Channel::Stdout, bytes) => content.extend(bytes),
            (Channel::Message, body) => match serde_json::from_slice(&body).expect("a reply") {
                Reply::Hole { length } => {
                    holes += length;
                    content.resize(content.len() + usize::try_from(length).expect("short"), 0);
                }
                Reply::Done {} => return (entry, content, holes),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn read(agent: &Agent, path: &str, offset: u64, length: Option<u64>) -> (Entry, Vec<u8>, u64) {
    let request = ReadFile { path: path.to_owned(), offset, length };
    read_from(agent.ask(&Request::ReadFile(request)))
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect()
}

#[test]
fn a_file_comes_back_as_it_went() {
    let agent = Agent::start();
    let path = agent.path("a/b/Grüße 🌱.bin");
    let content: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    let request = WriteFile { mode: Some(0o4751), owner: Some("nobody".into()), ..writing(&path) };
    let Reply::Stat(entry) = write(&agent, request, &content) else { panic!("not written") };
    assert_eq!(
        (entry.path.as_str(), entry.kind, entry.mode),
        (path.as_str(), FileKind::File, 0o4751)
    );
    assert_eq!((entry.uid, entry.gid, entry.size), (65534, 65534, 2_800_000));
    assert_eq!(agent.stat(&agent.path("a/b")).uid, 65534);
    let (read_entry, read_content, _) = read(&agent, &path, 0, None);
    assert!(read_entry == entry && read_content == content);
    assert_eq!(names_in(&agent.path("a/b")), ["Grüße 🌱.bin"]);
}

#[test]
fn what_is_replaced_passes_on_mode_and_owner() {
    let agent = Agent::start();
    let path = agent.path("file");
    std::fs::write(&path, "old").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("mode");
    std::os::unix::fs::chown(&path, Some(7), Some(8)).expect("owner");
    let Reply::Stat(entry) = write(&agent, writing(&path), b"new") else { panic!("not written") };
    assert_eq!((entry.mode, entry.uid, entry.gid, entry.size), (0o640, 7, 8, 3));
    let Reply::Stat(entry) = write(&agent, writing(&agent.path("fresh")), b"") else { panic!() };
    assert_eq!((entry.mode, entry.uid, entry.size), (0o644, 0, 0));
}

#[test]
fn ranges_are_exact() {
    let agent = Agent::start();
    let path = agent.path("file");
    std::fs::write(&path, "0123456789").expect("written");
    let part = |offset, length| read(&agent, &path, offset, length).1;
    assert_eq!(part(3, Some(4)), b"3456");
    assert_eq!(part(8, Some(100)), b"89");
    assert_eq!(part(8, None), b"89");
    assert_eq!(part(10, None), b"");
    assert_eq!(part(1000, Some(5)), b"");
    assert_eq!(part(0, Some(0)), b"");
    let request = ReadFile { path: path.clone(), offset: u64::MAX, length: Some(2) };
    assert_eq!(agent.failure(&Request::ReadFile(request)).code, "bad_request");
}

#[test]
fn holes_stay_holes_both_ways() {
    let agent = Agent::start();
    let (source, copy) = (agent.path("sparse"), agent.path("copy"));
    let file = std::fs::File::create(&source).expect("a file");
    file.write_all_at(b"middle", 64 << 20).expect("written");
    file.set_len(1 << 30).expect("a long tail");
    let (entry, content, holes) = read(&agent, &source, (64 << 20) - 10, Some(26));
    assert_eq!(entry.size, 1 << 30);
    assert!(content.len() == 26 && &content[10..16] == b"middle" && holes <= 20, "{holes}");

    let mut reader =
        agent.ask(&Request::ReadFile(ReadFile { path: source, offset: 0, length: None }));
    let mut writer = agent.ask(&Request::WriteFile(writing(&copy)));
    assert!(matches!(reader.reply(), Reply::Stat(_)));
    let mut sent = 0;
    loop {
        match reader.frame().expect("more") {
            (Channel::Message, body) => match serde_json::from_slice(&body).expect("a reply") {
                Reply::Hole { length } => writer.input(Input::Hole { length }),
                Reply::Done {} => break,
                other => panic!("{other:?}"),
            },
            (_, bytes) => {
                sent += bytes.len();
                writer.bytes(Channel::Stdin, &bytes);
            }
        }
    }
    writer.input(Input::End {});
    assert!(matches!(writer.reply(), Reply::Stat(entry) if entry.size == 1 << 30));
    assert!(sent < 1 << 20, "{sent} bytes of a few were sent");
    let metadata = std::fs::metadata(&copy).expect("it is there");
    assert!(metadata.blocks() * 512 < 1 << 20, "the copy has holes");
    let mut middle = [0; 6];
    std::fs::File::open(&copy).expect("it").read_exact_at(&mut middle, 64 << 20).expect("data");
    assert_eq!(&middle, b"middle");
}

#[test]
fn files_of_unknown_size_are_read_to_their_end() {
    let agent = Agent::start();
    let (entry, content, _) = read(&agent, "/proc/self/status", 0, None);
    assert_eq!(entry.size, 0);
    assert!(String::from_utf8_lossy(&content).contains("ramet-agent"));
}

#[test]
fn symlinks_are_made_told_and_followed() {
    let agent = Agent::start();
    let (target, link) = (agent.path("target"), agent.path("link"));
    std::fs::write(&target, "content").expect("written");
    let request = WriteFile { symlink: Some("target".into()), ..writing(&link) };
    let Reply::Stat(entry) = write(&agent, request.clone(), b"") else { panic!("not made") };
    assert_eq!((entry.kind, entry.target.as_deref()), (FileKind::Symlink, Some("target")));
    assert_eq!(read(&agent, &link, 0, None).1, b"content");
    assert!(
        matches!(write(&agent, request, b"content"), Reply::Error(e) if e.code == "bad_request")
    );
    // Writing replaces the link, not what it points to.
    assert!(
        matches!(write(&agent, writing(&link), b"own"), Reply::Stat(e) if e.kind == FileKind::File)
    );
    assert_eq!(std::fs::read(&target).expect("there"), b"content");
}

#[test]
fn a_hang_up_leaves_the_old_file_and_nothing_else() {
    let agent = Agent::start();
    let path = agent.path("d/file");
    std::fs::create_dir(agent.path("d")).expect("a directory");
    std::fs::write(&path, "old").expect("written");
    let mut session = agent.ask(&Request::WriteFile(writing(&path)));
    session.bytes(Channel::Stdin, &vec![1; 200_000]);
    until("a temporary file is there", || names_in(&agent.path("d")).len() == 2);
    assert_eq!(std::fs::read(&path).expect("there"), b"old");
    drop(session);
    until("the temporary file is gone", || names_in(&agent.path("d")) == ["file"]);
    assert_eq!(std::fs::read(&path).expect("there"), b"old");
}

#[test]
fn what_cannot_be_written_says_why() {
    let agent = Agent::start();
    std::fs::write(agent.path("file"), "").expect("written");
    let refused = |path: &str| match write(&agent, writing(path), b"content") {
        Reply::Error(failure) => failure,
        other => panic!("{other:?}"),
    };
    let below_file = agent.path("file/below");
    let failure = refused(&below_file);
    assert!(failure.code == "not_a_directory" && failure.message.contains("file"), "{failure:?}");
    assert_eq!(refused(&agent.path("")).code, "is_a_directory");
    assert_eq!(refused("relative").code, "bad_request");
    assert_eq!(refused("/tmp/a\0b").code, "bad_request");
    assert_eq!(refused("/proc/no-such").code, "not_found");
    let owned = WriteFile { owner: Some("no-one".into()), ..writing(&agent.path("x")) };
    assert!(matches!(write(&agent, owned, b""), Reply::Error(e) if e.code == "no_such_user"));
    let odd = WriteFile { mode: Some(0o100_644), ..writing(&agent.path("x")) };
    assert!(matches!(write(&agent, odd, b""), Reply::Error(e) if e.code == "bad_request"));
    assert!(!Path::new(&agent.path("x")).exists());
}

#[test]
fn what_cannot_be_read_says_why() {
    let agent = Agent::start();
    let refused = |path: &str| {
        let request = ReadFile { path: path.into(), offset: 0, length: None };
        agent.failure(&Request::ReadFile(request)).code
    };
    agent.shell(&format!("mkfifo {}", agent.path("fifo")));
    assert_eq!(refused("/no/such"), "not_found");
    assert_eq!(refused("/etc"), "is_a_directory");
    assert_eq!(refused("/dev/zero"), "bad_request");
    assert_eq!(refused(&agent.path("fifo")), "bad_request");
    assert_eq!(refused("etc/passwd"), "bad_request");
    assert_eq!(refused("/etc/passwd/below"), "not_a_directory");
    let failure = agent.failure(&Request::Stat { path: "/no/such".into() });
    assert!(failure.message.starts_with("/no/such: "), "{failure:?}");
}

#[test]
fn a_full_disk_is_told_while_the_client_still_sends() {
    let agent = Agent::start();
    let mount = agent.path("small");
    std::fs::create_dir(&mount).expect("a directory");
    let script = format!("mount -t tmpfs -o size=1m tmpfs {mount}");
    assert_eq!(agent.shell(&script).exited.code, Some(0), "the test needs to mount");
    let mut session = agent.ask(&Request::WriteFile(writing(&format!("{mount}/big"))));
    for _ in 0..100 {
        if session.try_bytes(Channel::Stdin, &vec![1; 200_000]).is_err() {
            break;
        }
    }
    let failure = match session.reply() {
        Reply::Error(failure) => failure,
        other => panic!("{other:?}"),
    };
    let left = names_in(&mount);
    assert_eq!(agent.shell(&format!("umount -l {mount}")).exited.code, Some(0));
    assert_eq!((failure.code.as_str(), left.len()), ("no_space", 0));
}

fn list(agent: &Agent, path: &str, depth: u32) -> (Vec<Entry>, usize) {
    let mut session = agent.ask(&Request::List(List { path: path.to_owned(), depth }));
    let (mut all, mut parts) = (Vec::new(), 0);
    loop {
        match session.reply() {
            Reply::Entries { entries } => {
                parts += 1;
                assert!(entries.len() <= 256);
                all.extend(entries);
            }
            Reply::Done {} => return (all, parts),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lists_go_to_their_depth_in_order() {
    let agent = Agent::start();
    let top = agent.path("top");
    agent.shell(&format!(
        "mkdir -p {top}/b/deep/er {top}/a; touch {top}/c {top}/b/x; ln -s b {top}/z"
    ));
    let names = |depth| -> Vec<String> {
        let (entries, _) = list(&agent, &top, depth);
        entries.iter().map(|entry| entry.path[top.len() + 1..].to_owned()).collect()
    };
    assert_eq!(names(1), ["a", "b", "c", "z"]);
    assert_eq!(names(2), ["a", "b", "b/deep", "b/x", "c", "z"]);
    assert_eq!(names(u32::MAX), ["a", "b", "b/deep", "b/deep/er", "b/x", "c", "z"]);
    let refused = |path: &str, depth| {
        agent.failure(&Request::List(List { path: path.to_owned(), depth })).code
    };
    assert_eq!(refused(&top, 0), "bad_request");
    assert_eq!(refused(&format!("{top}/c"), 1), "not_a_directory");
    assert_eq!(refused("/no/such", 1), "not_found");
}

#[test]
fn long_lists_come_in_parts() {
    let agent = Agent::start();
    let top = agent.path("top");
    agent.shell(&format!("mkdir {top} && cd {top} && seq -w 1 1000 | xargs touch"));
    let (entries, parts) = list(&agent, &top, 1);
    assert!(entries.len() == 1000 && parts >= 4);
    assert!(entries.is_sorted_by(|a, b| a.path < b.path));
    std::fs::create_dir(agent.path("empty")).expect("a directory");
    assert_eq!(list(&agent, &agent.path("empty"), 1).0, []);
}

#[test]
fn directories_are_made_moved_and_removed() {
    let agent = Agent::start();
    let mkdir = |path: &str, mode| {
        agent.answer(&Request::Mkdir(Mkdir { path: path.into(), mode, owner: None }))
    };
    let deep = agent.path("a/b/c");
    assert!(matches!(mkdir(&deep, Some(0o2775)), Reply::Stat(e) if e.mode == 0o2775));
    assert_eq!(agent.stat(&agent.path("a")).mode, 0o2775);
    // One that is there stays as it is.
    assert!(matches!(mkdir(&deep, Some(0o700)), Reply::Stat(e) if e.mode == 0o2775));
    std::fs::write(agent.path("a/file"), "x").expect("written");
    assert!(
        matches!(mkdir(&agent.path("a/file"), None), Reply::Error(e) if e.code == "not_a_directory")
    );

    let moved = |from: &str, to: &str| {
        agent.answer(&Request::Move { from: agent.path(from), to: agent.path(to) })
    };
    assert_eq!(moved("a", "z"), Reply::Done {});
    assert!(matches!(moved("a", "y"), Reply::Error(e) if e.code == "not_found"));
    std::fs::write(agent.path("other"), "y").expect("written");
    assert_eq!(moved("other", "z/file"), Reply::Done {});
    assert_eq!(std::fs::read(agent.path("z/file")).expect("there"), b"y");

    let remove =
        |path: &str, recursive| agent.answer(&Request::Remove { path: path.to_owned(), recursive });
    assert!(matches!(remove(&agent.path("z"), false), Reply::Error(e) if e.code == "not_empty"));
    assert_eq!(remove(&agent.path("z/file"), false), Reply::Done {});
    assert_eq!(remove(&agent.path("z"), true), Reply::Done {});
    assert!(!Path::new(&agent.path("z")).exists());
    assert!(matches!(remove(&agent.path("z"), true), Reply::Error(e) if e.code == "not_found"));
    assert!(matches!(remove("/", true), Reply::Error(e) if e.code == "bad_request"));
}

#[test]
fn removing_a_link_leaves_its_target() {
    let agent = Agent::start();
    let script = format!("cd {}; mkdir d; touch d/keep; ln -s d l", agent.path(""));
    agent.shell(&script);
    let request = Request::Remove { path: agent.path("l"), recursive: true };
    assert_eq!(agent.answer(&request), Reply::Done {});
    assert!(Path::new(&agent.path("d/keep")).exists());
}

/// Read changes until this one.
fn wait_for(session: &mut Session, kind: ChangeKind, path: &str) {
    let mut seen = Vec::new();
    loop {
        match session.reply() {
            Reply::Changed(change) if change.kind == kind && change.path == path => return,
            Reply::Changed(change) => seen.push(change),
            other => panic!("{kind:?} {path} was due: {other:?} after {seen:?}"),
        }
    }
}

#[test]
fn changes_are_told_also_in_new_directories() {
    let agent = Agent::start();
    let top = agent.path("top");
    agent.shell(&format!("mkdir -p {top}/old"));
    let at = |name: &str| format!("{top}/{name}");
    let mut session = agent.ask(&Request::Watch { path: top.clone(), recursive: true });
    assert_eq!(session.reply(), Reply::Done {});

    std::fs::write(at("old/file"), "x").expect("written");
    wait_for(&mut session, ChangeKind::Created, &at("old/file"));
    wait_for(&mut session, ChangeKind::Written, &at("old/file"));
    agent.shell(&format!("mkdir -p {top}/new/deep; touch {top}/new/deep/first"));
    wait_for(&mut session, ChangeKind::Created, &at("new"));
    wait_for(&mut session, ChangeKind::Created, &at("new/deep/first"));
    std::fs::write(at("new/deep/second"), "x").expect("written");
    wait_for(&mut session, ChangeKind::Written, &at("new/deep/second"));

    std::fs::rename(at("new"), at("moved")).expect("moved");
    wait_for(&mut session, ChangeKind::MovedFrom, &at("new"));
    wait_for(&mut session, ChangeKind::MovedTo, &at("moved"));
    // The watch follows the directory to its new name. It is set after the move is told, so one
    // change may come too early for it.
    std::fs::set_permissions(at("old/file"), std::fs::Permissions::from_mode(0o600)).expect("mode");
    wait_for(&mut session, ChangeKind::Attributes, &at("old/file"));
    std::fs::remove_file(at("moved/deep/second")).expect("removed");
    wait_for(&mut session, ChangeKind::Removed, &at("moved/deep/second"));
}

#[test]
fn watching_one_level_or_a_file_tells_only_that() {
    let agent = Agent::start();
    let top = agent.path("top");
    agent.shell(&format!("mkdir -p {top}/below; touch {top}/file"));
    let mut flat = agent.ask(&Request::Watch { path: top.clone(), recursive: false });
    let mut file = agent.ask(&Request::Watch { path: format!("{top}/file"), recursive: false });
    assert_eq!((flat.reply(), file.reply()), (Reply::Done {}, Reply::Done {}));
    std::fs::write(format!("{top}/below/unseen"), "x").expect("written");
    std::fs::write(format!("{top}/seen"), "x").expect("written");
    std::fs::write(format!("{top}/file"), "x").expect("written");
    match flat.reply() {
        Reply::Changed(change) => assert_eq!(change.path, format!("{top}/seen")),
        other => panic!("{other:?}"),
    }
    match file.reply() {
        Reply::Changed(change) => assert_eq!(change.path, format!("{top}/file")),
        other => panic!("{other:?}"),
    }
    let failure = agent.failure(&Request::Watch { path: "/no/such".into(), recursive: true });
    assert_eq!(failure.code, "not_found");
}

#[test]
fn a_watch_that_cannot_keep_up_says_so() {
    let agent = Agent::start();
    let top = agent.path("top");
    std::fs::create_dir(&top).expect("a directory");
    let mut session = agent.ask(&Request::Watch { path: top.clone(), recursive: false });
    assert_eq!(session.reply(), Reply::Done {});
    // The client does not read, so the agent's queue in the kernel (16384 by default) fills.
    for number in 0..40_000 {
        std::fs::File::create(format!("{top}/{number}")).expect("a file");
    }
    wait_for(&mut session, ChangeKind::Overflow, &top);
}
