//! Bad input: a clear error with the right code, and the machine is unharmed.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ramet_engine::control::{Connection, Error};
use ramet_engine::monitor::Machine;
use ramet_proto::control::{
    Answer, Boot, Child, Code, Disk, Fork, LINE_MAX, Payload, Request, Restore, Start, State,
};
use ramet_tests::nano;

use crate::bed::{Bed, MEMORY_MIB, assert_counts};

fn code(machine: &Machine, request: Request, descriptors: &[BorrowedFd<'_>]) -> Option<Code> {
    let mut connection = machine.connect().unwrap();
    connection.set_deadline(Duration::from_secs(20));
    match connection.call(request, descriptors) {
        Err(Error::Failure { code, message }) => {
            assert!(!message.is_empty());
            Some(code)
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => None,
    }
}

fn raw(machine: &Machine, line: &str) -> Answer {
    let mut connection = machine.connect().unwrap();
    connection.set_deadline(Duration::from_secs(20));
    connection.call_raw(line.as_bytes(), &[]).unwrap_or_else(|error| panic!("{line}: {error:?}"))
}

#[test]
fn messages_that_are_none() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    for line in [
        "",
        "x",
        "{",
        "null",
        "[]",
        r#"{"id":1}"#,
        r#"{"id":1,"request":"status"}"#,
        r#"{"id":1,"request":{"explode":{}}}"#,
        r#"{"id":1,"request":{"status":{"verbose":true}}}"#,
        r#"{"id":1,"request":{"status":{}},"extra":1}"#,
        r#"{"id":-1,"request":{"status":{}}}"#,
        r#"{"id":1,"request":{"fork":{"children":[{"colour":"red"}]}}}"#,
        r#"{"id":1,"request":{"fork":{"children":7}}}"#,
        "\u{0}\u{0}",
    ] {
        match raw(&machine, &format!("{line}\n")) {
            Answer::Failed { failure, .. } => assert_eq!(failure.code, Code::BadMessage, "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    let mut connection = machine.connect().unwrap();
    let bytes = connection.call_raw(&[0xff, 0xfe, b'\n'], &[]).unwrap();
    assert!(matches!(bytes, Answer::Failed { .. }), "{bytes:?}");
    assert_counts(&machine);
}

#[test]
fn a_line_too_long() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let mut connection = machine.connect().unwrap();
    connection.set_deadline(Duration::from_secs(20));
    let line = "x".repeat(LINE_MAX + 10) + "\n";
    match connection.call_raw(line.as_bytes(), &[]) {
        Ok(Answer::Failed { failure, .. }) => assert_eq!(failure.code, Code::BadMessage),
        Err(Error::Closed) => {}
        other => panic!("{other:?}"),
    }
    assert_counts(&machine);
}

#[test]
fn a_caller_that_hangs_up_in_the_middle() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    for _ in 0..20 {
        let mut connection = machine.connect().unwrap();
        connection.set_deadline(Duration::from_millis(1));
        drop(connection.call_raw(b"{\"id\":1,\"requ", &[]));
    }
    assert_counts(&machine);
}

#[test]
fn numbers_of_children() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let file = fs::File::open("/dev/null").unwrap();
    let fork = |count| {
        Request::Fork(Fork { children: vec![Child::default(); count], call: None, resume: false })
    };
    assert_eq!(code(&machine, fork(0), &[]), Some(Code::BadValue));
    assert_eq!(code(&machine, fork(257), &[]), Some(Code::BadValue));
    let children = vec!["{}"; 100_000].join(",");
    let line = format!("{{\"id\":1,\"request\":{{\"fork\":{{\"children\":[{children}]}}}}}}\n");
    match raw(&machine, &line) {
        Answer::Failed { failure, .. } => assert_eq!(failure.code, Code::BadValue),
        other => panic!("{other:?}"),
    }
    assert_eq!(code(&machine, fork(1), &[]), Some(Code::BadDescriptors));
    let two = [file.as_fd(), file.as_fd()];
    assert_eq!(code(&machine, fork(1), &two), Some(Code::BadDescriptors));
    assert_eq!(code(&machine, Request::Checkpoint {}, &[]), Some(Code::BadDescriptors));
    // Nobody but a fork takes descriptors.
    assert_eq!(code(&machine, Request::Status {}, &two), Some(Code::BadDescriptors));
    // A descriptor that is no socket cannot be a child's.
    assert_eq!(code(&machine, fork(1), &two[..1]), Some(Code::BadDescriptors));
    assert_counts(&machine);
    bed.await_only(&[&machine]);
}

#[test]
fn descriptors_of_refused_requests_are_closed() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let file = fs::File::open("/dev/null").unwrap();
    let count = || fs::read_dir(format!("/proc/{}/fd", machine.pid())).unwrap().count();
    let descriptors = vec![file.as_fd(); 100];
    assert_eq!(code(&machine, Request::Status {}, &descriptors), Some(Code::BadDescriptors));
    std::thread::sleep(Duration::from_millis(50));
    let before = count();
    for _ in 0..20 {
        assert_eq!(code(&machine, Request::Status {}, &descriptors), Some(Code::BadDescriptors));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(count() <= before + 2, "{before} before, {} after", count());
}

/// A boot request with one thing changed.
fn changed(bed: &Bed, change: impl FnOnce(&mut Boot)) -> Request {
    let mut boot = nano::boot(bed.run.path(), 1, MEMORY_MIB, true).unwrap();
    change(&mut boot);
    Request::Boot(boot)
}

#[test]
fn machines_that_cannot_be() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.start();
    for (vcpus, memory_mib) in
        [(0, 64), (9, 64), (255, 64), (1, 0), (1, 62), (1, 65), (1, 16386), (1, u32::MAX)]
    {
        let request = changed(&bed, |boot| {
            (boot.vcpus, boot.memory_mib) = (vcpus, memory_mib);
        });
        let refused = code(&machine, request, &[]);
        assert_eq!(refused, Some(Code::BadValue), "{vcpus} vCPUs, {memory_mib} MiB");
        assert_eq!(machine.status().unwrap().state, State::Empty);
    }
    let text = bed.run.path().join("text");
    fs::write(&text, "no kernel").unwrap();
    let text = text.to_str().unwrap().to_owned();
    let linux = |kernel: &str, initramfs: Option<String>| Payload::Linux {
        kernel: kernel.to_owned(),
        initramfs,
        cmdline: String::new(),
    };
    let payloads = [
        linux(&text, None),
        linux("/nonexistent", None),
        linux("/", None),
        Payload::Flat { image: "/nonexistent".to_owned() },
        Payload::Flat { image: "/".to_owned() },
    ];
    for payload in payloads {
        let request = changed(&bed, |boot| {
            boot.payload = payload.clone();
            boot.identity = Some(ramet_proto::agent::Identity::default());
        });
        assert_eq!(code(&machine, request, &[]), Some(Code::BadFile), "{payload:?}");
    }
    let disk = |base: &str| vec![Disk { base: base.to_owned(), read_only: true }];
    for base in ["/nonexistent", &text, "/"] {
        let request = changed(&bed, |boot| boot.disks = disk(base));
        assert_eq!(code(&machine, request, &[]), Some(Code::BadFile), "{base}");
    }
    // After all that it can still become something.
    assert_eq!(code(&machine, changed(&bed, |_| {}), &[]), None);
    assert_counts(&machine);
}

#[test]
fn at_the_wrong_time() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.start();
    assert_eq!(machine.fork_plain(1).unwrap_err().code(), Some(Code::WrongState));
    assert_eq!(machine.checkpoint().unwrap_err().code(), Some(Code::WrongState));
    assert_eq!(machine.pause().unwrap_err().code(), Some(Code::WrongState));
    assert_eq!(machine.resume().unwrap_err().code(), Some(Code::WrongState));
    assert_eq!(machine.read_memory(0, 8).unwrap_err().code(), Some(Code::WrongState));
    let save = machine.save(&bed.run.path().join("saved"), true).unwrap_err();
    assert_eq!(save.code(), Some(Code::WrongState));
    assert_eq!(code(&machine, changed(&bed, |_| {}), &[]), None);
    assert_eq!(code(&machine, changed(&bed, |_| {}), &[]), Some(Code::WrongState));
    let restore = Restore {
        directory: "/nonexistent".to_owned(),
        start: Start::Run,
        identity: None,
        layers: None,
        bases: Vec::new(),
        volumes: Vec::new(),
        verify: false,
        pager: None,
    };
    assert_eq!(code(&machine, Request::Restore(restore.clone()), &[]), Some(Code::WrongState));
    assert_eq!(code(&bed.start(), Request::Restore(restore), &[]), Some(Code::BadFile));
    let checkpoint = machine.checkpoint().unwrap();
    assert_eq!(checkpoint.resume().unwrap_err().code(), Some(Code::WrongState));
    assert_counts(&machine);
}

#[test]
fn memory_that_is_not_there() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let end = u64::from(MEMORY_MIB) << 20;
    let read = |address, length| code(&machine, Request::ReadMemory { address, length }, &[]);
    let write = |address, hex: &str| {
        code(&machine, Request::WriteMemory { address, hex: hex.to_owned() }, &[])
    };
    for (address, length) in [(end, 1), (end - 1, 2), (u64::MAX, 8), (u64::MAX - 7, 8), (0, 65537)]
    {
        assert_eq!(read(address, length), Some(Code::BadValue), "{address:x}");
    }
    assert_eq!(read(end - 8, 8), None);
    for (address, hex) in [(end, "00"), (end - 1, "0000"), (u64::MAX, "00"), (0, "0"), (0, "zz")] {
        assert_eq!(write(address, hex), Some(Code::BadValue), "{address:x}");
    }
    assert_eq!(write(end - 1, "00"), None);
    assert_counts(&machine);
}

#[test]
fn a_guest_without_an_agent_has_no_ports() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let mut connection = Connection::open(machine.socket()).unwrap();
    connection.set_deadline(Duration::from_secs(20));
    let refused = connection.connect(1024).unwrap_err();
    assert!(
        matches!(refused.code(), Some(Code::ConnectionRefused | Code::WrongState)),
        "{refused:?}"
    );
    assert_counts(&machine);
}

#[test]
fn save_where_it_cannot_be() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let there = bed.run.path().join("there");
    fs::create_dir(&there).unwrap();
    for directory in [there.as_path(), "/nonexistent/parent".as_ref(), "/proc/x".as_ref()] {
        let refused = machine.save(directory, true).unwrap_err();
        assert!(matches!(refused.code(), Some(Code::BadFile | Code::Host)), "{refused:?}");
    }
    assert_counts(&machine);
    bed.await_only(&[&machine]);
}
