//! Directories as archives, both ways.

mod common;

use std::os::unix::fs::{MetadataExt, symlink};

use common::{Agent, Session};
use ramet_proto::agent::{Channel, FRAME_MAX, Input, ReadArchive, Reply, Request, WriteArchive};

fn read(agent: &Agent, path: &str, gzip: bool) -> Result<Vec<u8>, String> {
    let request = ReadArchive { path: path.to_owned(), gzip };
    let mut session = agent.ask(&Request::ReadArchive(request));
    assert!(matches!(session.reply(), Reply::Stat(_)));
    let mut bytes = Vec::new();
    loop {
        match session.frame().expect("more") {
            (Channel::Stdout, more) => bytes.extend(more),
            (_, body) => match serde_json::from_slice(&body).expect("a reply") {
                Reply::Done {} => return Ok(bytes),
                Reply::Error(failure) => return Err(failure.message),
                other => panic!("{other:?}"),
            },
        }
    }
}

fn writing(agent: &Agent, path: &str, gzip: bool) -> Session {
    let request = WriteArchive { path: path.to_owned(), gzip, owner: None };
    agent.ask(&Request::WriteArchive(request))
}

fn write(agent: &Agent, path: &str, gzip: bool, bytes: &[u8]) -> Reply {
    let mut session = writing(agent, path, gzip);
    for piece in bytes.chunks(FRAME_MAX) {
        session.bytes(Channel::Stdin, piece);
    }
    session.input(Input::End {});
    session.reply()
}

#[test]
fn a_tree_of_a_thousand_files_goes_there_and_back() {
    let agent = Agent::start();
    let from = agent.path("from");
    for directory in 0..10 {
        std::fs::create_dir_all(format!("{from}/{directory}/deep")).expect("made");
        for file in 0..100 {
            let text = format!("{directory} {file} ").repeat(file);
            std::fs::write(format!("{from}/{directory}/deep/{file}"), text).expect("written");
        }
    }
    symlink("0/deep", format!("{from}/link")).expect("a link");
    std::os::unix::fs::chown(format!("{from}/3"), Some(7), Some(8)).expect("an owner");
    for gzip in [false, true] {
        let bytes = read(&agent, &from, gzip).expect("read");
        let to = agent.path(if gzip { "gz/to" } else { "to" });
        let Reply::Unpacked(unpacked) = write(&agent, &to, gzip, &bytes) else { panic!("refused") };
        assert_eq!((unpacked.files, unpacked.entries), (1000, 1000 + 1 + 20 + 1));
        let diff = std::process::Command::new("diff").args(["-r", &from, &to]).status();
        assert!(diff.expect("diff runs").success());
        assert_eq!(std::fs::metadata(format!("{to}/3")).expect("there").uid(), 7);
        let plain = read(&agent, &from, false).expect("read").len();
        assert!(!gzip || bytes.len() < plain / 4, "{} of {plain}", bytes.len());
    }
}

#[test]
fn an_owner_can_be_named() {
    let agent = Agent::start();
    std::fs::create_dir(agent.path("from")).expect("made");
    std::fs::write(agent.path("from/f"), "x").expect("written");
    let bytes = read(&agent, &agent.path("from"), false).expect("read");
    let owner = |name: &str| {
        let owner = Some(name.to_owned());
        let request = WriteArchive { path: agent.path("to"), gzip: false, owner };
        let mut session = agent.ask(&Request::WriteArchive(request));
        session.bytes(Channel::Stdin, &bytes);
        session.input(Input::End {});
        session.reply()
    };
    assert!(matches!(owner("nobody"), Reply::Unpacked(_)));
    assert_eq!(agent.stat(&agent.path("to/f")).uid, 65534);
    assert!(matches!(owner("nobody-at-all"), Reply::Error(e) if e.code == "no_such_user"));
}

#[test]
fn what_is_no_archive_is_refused_at_once() {
    let agent = Agent::start();
    let to = agent.path("to");
    for (gzip, bytes) in
        [(false, &[7; 2048][..]), (true, b"no gzip at all"), (true, &[0x1f, 0x8b, 9])]
    {
        let reply = write(&agent, &to, gzip, bytes);
        assert!(matches!(&reply, Reply::Error(e) if e.code == "bad_request"), "{reply:?}");
    }
    // Refused in the middle of much more.
    let mut session = writing(&agent, &to, false);
    let mut sent = Ok(());
    for _ in 0..64 {
        sent = sent.and_then(|()| session.try_bytes(Channel::Stdin, &[7; FRAME_MAX]));
    }
    assert!(matches!(session.reply(), Reply::Error(e) if e.code == "bad_request"));
    let failure = agent
        .failure(&Request::ReadArchive(ReadArchive { path: "/etc/passwd".into(), gzip: false }));
    assert_eq!(failure.code, "not_a_directory");
    let failure =
        agent.failure(&Request::ReadArchive(ReadArchive { path: "/no/such".into(), gzip: true }));
    assert_eq!(failure.code, "not_found");
    for path in ["relative", "/a\0b"] {
        let request = WriteArchive { path: path.into(), gzip: false, owner: None };
        assert_eq!(agent.failure(&Request::WriteArchive(request)).code, "bad_request");
    }
}

#[test]
fn a_host_that_leaves_ends_it() {
    let agent = Agent::start();
    std::fs::create_dir(agent.path("from")).expect("made");
    std::fs::write(agent.path("from/f"), vec![1; 8 << 20]).expect("written");
    let mut session = writing(&agent, &agent.path("to"), false);
    session.bytes(Channel::Stdin, &[0; 100]);
    drop(session);
    let request = ReadArchive { path: agent.path("from"), gzip: true };
    let mut session = agent.ask(&Request::ReadArchive(request));
    assert!(matches!(session.reply(), Reply::Stat(_)));
    drop(session);
    assert!(matches!(agent.answer(&Request::Usage {}), Reply::Usage(_)));
}
