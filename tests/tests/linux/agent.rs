//! The agent through the real vsock: processes, terminals, files, ports.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use ramet_engine::session::{Content, Output, Process};
use ramet_proto::agent::{ChangeKind, Dial, Exec, FileKind, ReadFile, Signal, Terminal, WriteFile};
use ramet_proto::control::State;

use crate::bed::{bed, command, eventually, guest, patience, shell};

pub fn knows_who_it_is() {
    let seed = bed().seed();
    let status = seed.status().unwrap();
    assert_eq!((status.state, status.ready), (State::Running, true));
    assert_eq!(status.generation, 0);
    assert_eq!(seed.sh("hostname; cat /etc/hostname"), "seed\nseed");
    let instance = seed.sh("cat /run/ramet/instance");
    assert!(instance.starts_with("seed-"), "{instance}");
    assert!(seed.sh("cat /run/ramet/token").starts_with("token-"));
    let machine_id = seed.sh("cat /etc/machine-id");
    assert!(machine_id.len() == 32 && machine_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(seed.sh("cat /proc/sys/kernel/tainted"), "0");
}

pub fn exec_tells_how_it_ended() {
    let guest = guest("exec");
    assert_eq!(guest.run(&shell("exit 7")).exited.code, Some(7));
    assert_eq!(guest.run(&shell("kill -9 $$")).exited.signal, Some(9));

    let both = guest.run(&shell("echo out; echo err >&2"));
    assert_eq!((&both.stdout[..], &both.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));

    let missing = guest.agent().exec(&command(&["/no/such/program"]));
    assert_eq!(
        missing.err().and_then(|error| error.code().map(str::to_owned)),
        Some("not_found".into())
    );
}

pub fn exec_gets_what_it_was_given() {
    let guest = guest("given");
    let exec = Exec {
        env: BTreeMap::from([("COLOUR".to_owned(), "blue green".to_owned())]),
        cwd: Some("/usr/lib".to_owned()),
        user: Some("user".to_owned()),
        ..shell("echo $COLOUR; pwd; id -un; echo $HOME")
    };
    assert_eq!(guest.run(&exec).text(), "blue green\n/usr/lib\nuser\n/home/user\n");

    let echoed = guest.agent().run_with_input(&command(&["tr", "a-z", "A-Z"]), b"to be raised");
    assert_eq!(echoed.unwrap().stdout, b"TO BE RAISED");
}

pub fn a_timeout_ends_the_whole_group() {
    let guest = guest("timeout");
    let exec = Exec { timeout_ms: Some(500), ..shell("sleep 3611 & sleep 3612") };
    let exited = guest.run(&exec).exited;
    assert!(exited.timed_out, "{exited:?}");
    eventually("both sleepers are gone", || {
        let all = guest.agent().processes().unwrap();
        !all.iter().any(|process| process.command.iter().any(|word| word.starts_with("361")))
    });
}

/// Reads output until it contains a text.
fn read_until(process: &mut Process, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match process.next().unwrap() {
            Output::Stdout(bytes) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

pub fn a_terminal_has_a_size() {
    let guest = guest("terminal");
    let exec = Exec {
        terminal: Some(Terminal { columns: 80, rows: 24 }),
        ..shell("stty size; read answer; stty size; test -t 0 && echo $answer")
    };
    let mut process = guest.agent().exec(&exec).unwrap();
    process.set_timeout(Some(patience())).unwrap();
    read_until(&mut process, "24 80");
    process.input().resize(Terminal { columns: 132, rows: 50 }).unwrap();
    process.input().write(b"yes it is\n").unwrap();
    let rest = process.collect().unwrap();
    assert!(rest.text().contains("50 132") && rest.text().ends_with("yes it is\r\n"), "{rest:?}");
}

pub fn files_go_in_and_out() {
    let guest = guest("files");
    let agent = guest.agent();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let file = WriteFile {
        path: "/srv/new/parents/file".to_owned(),
        mode: Some(0o640),
        owner: Some("user".to_owned()),
        ..WriteFile::default()
    };
    let entry = agent.write_file_from(file, &bytes[..]).unwrap();
    assert_eq!((entry.size, entry.mode, entry.uid), (100_000, 0o640, 1000));
    assert_eq!(agent.read_file("/srv/new/parents/file").unwrap(), bytes);

    let link = WriteFile {
        path: "/srv/link".to_owned(),
        symlink: Some("new/parents/file".to_owned()),
        ..WriteFile::default()
    };
    agent.write_file_from(link, &[][..]).unwrap();
    let entry = agent.stat("/srv/link").unwrap();
    assert_eq!(
        (entry.kind, entry.target.as_deref()),
        (FileKind::Symlink, Some("new/parents/file"))
    );
    assert_eq!(guest.sh("wc -c < /srv/link"), "100000");

    agent.rename("/srv/new/parents/file", "/srv/moved").unwrap();
    let entries = agent.list("/srv", 3).unwrap();
    let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/srv/link", "/srv/moved", "/srv/new", "/srv/new/parents"]);
    let refused = |result: Result<(), ramet_engine::session::Error>| {
        result.unwrap_err().code().map(str::to_owned).unwrap()
    };
    assert_eq!(refused(agent.remove("/srv/new", false)), "not_empty");
    agent.remove("/srv/new", true).unwrap();
    assert_eq!(refused(agent.stat("/srv/new").map(drop)), "not_found");
    assert_eq!(refused(agent.read_file("/srv").map(drop)), "is_a_directory");
}

pub fn holes_stay_holes() {
    let guest = guest("holes");
    let agent = guest.agent();
    let file = WriteFile { path: "/srv/sparse".to_owned(), ..WriteFile::default() };
    let mut writer = agent.create_file(file).unwrap();
    writer.hole(512 << 20).unwrap();
    writer.data(b"the end").unwrap();
    writer.finish().unwrap();
    assert_eq!(guest.sh("stat -c %s /srv/sparse"), ((512 << 20) + 7).to_string());
    let occupied: u64 = guest.sh("du -k /srv/sparse | cut -f1").parse().unwrap();
    assert!(occupied < 1024, "{occupied} KiB");

    let file = ReadFile { path: "/srv/sparse".to_owned(), offset: 0, length: None };
    let mut reader = agent.open_file(file).unwrap();
    let (mut hole, mut data) = (0, Vec::new());
    while let Some(content) = reader.next().unwrap() {
        match content {
            Content::Hole(length) => hole += length,
            Content::Data(bytes) => data.extend(bytes),
        }
    }
    assert!(hole >= (512 << 20) - 4096, "{hole} bytes of holes");
    assert!(data.ends_with(b"the end"));
}

pub fn changes_are_reported() {
    let guest = guest("watch");
    guest.sh("mkdir -p /srv/watched");
    let mut watcher = guest.agent().watch("/srv/watched", true).unwrap();
    guest.sh("mkdir /srv/watched/sub");
    let mut seen = Vec::new();
    let mut await_change = |kind, path: &str| {
        while !seen.iter().any(|(k, p): &(ChangeKind, String)| *k == kind && p == path) {
            let change = watcher.next(Some(patience())).unwrap();
            seen.push((change.kind, change.path));
        }
    };
    await_change(ChangeKind::Created, "/srv/watched/sub");
    guest.sh("echo x > /srv/watched/sub/file");
    await_change(ChangeKind::Created, "/srv/watched/sub/file");
    guest.sh("echo y >> /srv/watched/sub/file");
    await_change(ChangeKind::Written, "/srv/watched/sub/file");
    guest.sh("rm /srv/watched/sub/file");
    await_change(ChangeKind::Removed, "/srv/watched/sub/file");
}

pub fn processes_and_usage() {
    let guest = guest("usage");
    let sleeper = guest.agent().exec(&command(&["sleep", "3600"])).unwrap();
    let pid = sleeper.pid();
    let of_sleeper = || {
        let all = guest.agent().processes().unwrap();
        all.into_iter().find(|process| process.pid == pid)
    };
    let process = of_sleeper().expect("it runs");
    assert!(process.started_here && process.command == ["sleep", "3600"], "{process:?}");
    let signal = 15;
    guest.agent().signal(Signal { pid, signal, group: false }).unwrap();
    assert_eq!(sleeper.collect().unwrap().exited.signal, Some(15));
    eventually("it is reaped", || of_sleeper().is_none());

    let usage = guest.agent().usage().unwrap();
    assert_eq!(usage.cpus, 1);
    let total_mib = usage.memory_total_bytes >> 20;
    assert!((128..=256).contains(&total_mib), "{total_mib} MiB");
    assert!(usage.memory_available_bytes < usage.memory_total_bytes);
    assert!(usage.disk_free_bytes > 3 << 30, "{} bytes", usage.disk_free_bytes);
    assert!(usage.uptime_ms > 0 && usage.cpu_busy_ms > 0 && usage.processes > 1);
}

pub fn hundreds_of_streams() {
    const STREAMS: usize = 104;
    let guest = guest("streams");
    let agent = guest.agent();
    let exec = Exec { stdin: true, ..command(&["cat"]) };
    let mut streams: Vec<Process> = (0..STREAMS).map(|_| agent.exec(&exec).unwrap()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.set_timeout(Some(patience())).unwrap();
        stream.input().write(format!("stream {number};").as_bytes()).unwrap();
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        read_until(stream, &format!("stream {number};"));
        stream.input().end().unwrap();
    }
    for stream in streams {
        assert!(stream.collect().unwrap().ok());
    }
}

/// Bytes that do not repeat at any power of two.
fn pattern(at: u64) -> u8 {
    u8::try_from((at ^ (at >> 8) ^ (at >> 16) ^ (at / 251)) & 0xff).unwrap()
}

pub fn a_large_file_up_and_down() {
    const SIZE: u64 = 64 << 20;
    const PIECE: u64 = 1 << 20;
    let guest = guest("large");
    let file = WriteFile { path: "/srv/large".to_owned(), ..WriteFile::default() };
    let piece = |start: u64| (start..start + PIECE).map(pattern).collect::<Vec<u8>>();
    let mut writer = guest.agent().create_file(file).unwrap();
    for start in (0..SIZE).step_by(1 << 20) {
        writer.data(&piece(start)).unwrap();
    }
    assert_eq!(writer.finish().unwrap().size, SIZE);
    let file = ReadFile { path: "/srv/large".to_owned(), offset: 0, length: None };
    let mut reader = guest.agent().open_file(file).unwrap();
    let mut at = 0;
    while let Some(content) = reader.next().unwrap() {
        let Content::Data(bytes) = content else { panic!("a hole at {at}") };
        let wrong = bytes.iter().zip(at..).position(|(byte, at)| *byte != pattern(at));
        assert_eq!(wrong, None, "in the {} bytes at {at}", bytes.len());
        at += bytes.len() as u64;
    }
    assert_eq!(at, SIZE);
}

pub fn a_slow_reader_slows_the_guest() {
    let guest = guest("slow");
    let before = guest.stats().unwrap().monitor_private_kib;
    let mut process = guest.agent().exec(&command(&["cat", "/dev/zero"])).unwrap();
    process.set_timeout(Some(patience())).unwrap();
    let written = || {
        let io = guest.sh(&format!("grep wchar /proc/{}/io", process.pid()));
        io.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut last = written();
    eventually("it waits for its reader", || {
        thread::sleep(Duration::from_millis(300));
        let now = written();
        now == std::mem::replace(&mut last, now) && now > 0
    });
    assert!(last < 8 << 20, "{last} bytes are on their way");
    let grown = guest.stats().unwrap().monitor_private_kib.saturating_sub(before);
    assert!(grown < 4096, "the monitor has grown by {grown} KiB");

    let mut taken = 0;
    while taken < last + (1 << 20) {
        match process.next().unwrap() {
            Output::Stdout(bytes) => taken += bytes.len() as u64,
            other => panic!("{other:?}"),
        }
    }
    process.input().signal(9).unwrap();
    let exited = process.stream(|_| {}).unwrap();
    assert_eq!(exited.signal, Some(9));
}

pub fn a_server_is_dialled() {
    let guest = guest("server");
    let agent = guest.agent();
    let refused = agent.dial(Dial::Tcp { port: 8000 }).err().unwrap();
    assert_eq!(refused.code(), Some("connection_refused"));
    guest.sh("mkdir /srv/www; echo it works > /srv/www/index.html");
    let line = ["python3", "-m", "http.server", "-d", "/srv/www", "-b", "127.0.0.1", "8000"];
    let server = agent.exec(&command(&line)).unwrap();
    let mut dialled = None;
    eventually("the server listens", || {
        dialled = agent.dial(Dial::Tcp { port: 8000 }).ok();
        dialled.is_some()
    });
    let mut stream = dialled.unwrap();
    stream.set_timeout(Some(patience())).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    stream.end().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK") && text.ends_with("it works\n"), "{text}");
    drop(server);
}
