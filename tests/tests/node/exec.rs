//! Processes: waited for, streamed, on a terminal, left alone and found again.

use ramet_client::api::{Code, Encoding, ExecRequest, SignalRequest, StreamExec, Terminal};
use ramet_client::{ExecStream, Exited, Output};

use crate::bed::{Sandbox, eventually, fresh, pairs, patience, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    a_process_is_waited_for,
    a_process_gets_what_it_was_given,
    a_process_has_its_time,
    a_process_is_streamed,
    a_process_runs_on_a_terminal,
    a_process_is_left_and_found_again,
    processes_are_listed_and_signalled,
];

fn shell(line: &str) -> ExecRequest {
    ExecRequest { command: Some(line.to_owned()), ..ExecRequest::default() }
}

fn a_process_is_waited_for() {
    let sandbox = fresh("waited");
    let result = sandbox.run("echo out; echo err >&2; exit 7");
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((result.exit_code, result.signal, result.ok), (Some(7), None, false));
    let killed = sandbox.run("kill -9 $$");
    assert_eq!((killed.exit_code, killed.signal, killed.ok), (None, Some(9), false));
    let argv = Some(vec!["printf".to_owned(), "%s".to_owned(), "$HOME".to_owned()]);
    let result = sandbox.exec(&ExecRequest { argv, ..ExecRequest::default() }).unwrap();
    assert_eq!((result.stdout.as_str(), result.ok), ("$HOME", true), "no shell, no variable");
    let missing = ExecRequest { argv: Some(vec!["/no/program".into()]), ..ExecRequest::default() };
    assert_eq!(refusal(sandbox.exec(&missing)), Code::FileNotFound);
}

fn a_process_gets_what_it_was_given() {
    let sandbox = fresh("given");
    let result = sandbox.exec(&ExecRequest {
        env: pairs(&[("WORD", "a b")]),
        cwd: Some("/usr".to_owned()),
        user: Some("nobody".to_owned()),
        stdin: Some("typed".to_owned()),
        ..shell("pwd; id -un; echo \"$WORD\"; cat")
    });
    assert_eq!(result.unwrap().stdout, "/usr\nnobody\na b\ntyped");
    let bytes =
        ExecRequest { stdin: Some("AP+A".to_owned()), encoding: Encoding::Base64, ..shell("cat") };
    assert_eq!(sandbox.exec(&bytes).unwrap().stdout, "AP+A");
    let nobody = ExecRequest { user: Some("no-such-user".to_owned()), ..shell("true") };
    assert_eq!(refusal(sandbox.exec(&nobody)), Code::NoSuchUser);
    let nowhere = ExecRequest { cwd: Some("/no/where".to_owned()), ..shell("true") };
    assert_eq!(refusal(sandbox.exec(&nowhere)), Code::FileNotFound);
}

fn a_process_has_its_time() {
    let sandbox = fresh("timed");
    let result = sandbox.exec(&ExecRequest {
        timeout_ms: Some(1000),
        ..shell("echo begun; sleep 1000 & sleep 1000; echo never")
    });
    let result = result.unwrap();
    assert_eq!((result.stdout.as_str(), result.timed_out, result.ok), ("begun\n", true, false));
    eventually("those it started are gone, too", || {
        let processes = wait(sandbox.node.client.processes(&sandbox.id)).unwrap();
        !processes.iter().any(|process| process.command.iter().any(|word| word == "1000"))
    });
}

/// Standard output and how it ended.
fn rest(process: &mut ExecStream) -> (String, Exited) {
    let mut text = Vec::new();
    let all = async {
        loop {
            match process.next().await.expect("output or an end") {
                Output::Stdout(bytes) => text.extend_from_slice(&bytes),
                Output::Stderr(_) => {}
                Output::Exited(exited) => return exited,
            }
        }
    };
    let exited = wait(async { tokio::time::timeout(patience(), all).await });
    let exited = exited.expect("an end in time");
    (String::from_utf8_lossy(&text).into_owned(), exited)
}

/// Reads until this has been said.
fn until(process: &mut ExecStream, text: &str) {
    let mut heard = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&heard).contains(text) {
            match process.next().await.expect("output") {
                Output::Stdout(bytes) | Output::Stderr(bytes) => heard.extend_from_slice(&bytes),
                Output::Exited(exited) => panic!("it ended without {text:?}: {exited:?}"),
            }
        }
    };
    let read = wait(async { tokio::time::timeout(patience(), reading).await });
    assert!(read.is_ok(), "it said {:?}, and not {text:?}", String::from_utf8_lossy(&heard));
}

fn streamed(sandbox: &Sandbox<'_>, line: &str, exec: StreamExec) -> ExecStream {
    sandbox.stream(StreamExec { command: Some(line.to_owned()), ..exec })
}

fn a_process_is_streamed() {
    let sandbox = fresh("streamed");
    let line = "read word; echo got $word; cat; exit 3";
    let mut process = streamed(&sandbox, line, StreamExec { stdin: true, ..Default::default() });
    wait(process.input().write(b"one\n")).unwrap();
    until(&mut process, "got one\n");
    wait(async {
        process.input().write(b"two").await.unwrap();
        process.input().end().await.unwrap();
    });
    let (text, exited) = rest(&mut process);
    assert_eq!((text.as_str(), exited.exit_code), ("two", Some(3)));
    // More than all buffers on its way hold.
    let mut process = streamed(&sandbox, "seq 200000", StreamExec::default());
    let (text, exited) = rest(&mut process);
    assert_eq!((text.lines().count(), exited.exit_code), (200_000, Some(0)));
    assert!(text.ends_with("\n200000\n"));
    let exec = StreamExec { timeout_ms: Some(500), ..Default::default() };
    let (_, exited) = rest(&mut streamed(&sandbox, "sleep 1000", exec));
    assert!(exited.timed_out);
}

fn a_process_runs_on_a_terminal() {
    let sandbox = fresh("terminal");
    let terminal = |columns, rows| Terminal { columns, rows };
    let exec = StreamExec { terminal: Some(terminal(100, 30)), stdin: true, ..Default::default() };
    let line = "stty -echo; tty; stty size; read -r _; stty size; trap 'echo caught; exit 5' INT; \
                echo ready; while :; do sleep 0.1; done";
    let mut process = streamed(&sandbox, line, exec);
    until(&mut process, "30 100");
    wait(async {
        process.input().resize(terminal(90, 20)).await.unwrap();
        process.input().write(b"\n").await.unwrap();
    });
    until(&mut process, "20 90");
    until(&mut process, "ready");
    wait(process.input().write(b"\x03")).unwrap();
    let (text, exited) = rest(&mut process);
    assert!(text.contains("caught"), "{text:?}");
    assert_eq!(exited.exit_code, Some(5));
}

fn a_process_is_left_and_found_again() {
    let sandbox = fresh("left");
    let line = "echo before; read word; echo $word after; exit 4";
    let mut process = streamed(&sandbox, line, StreamExec { stdin: true, ..Default::default() });
    let pid = process.pid();
    wait(process.input().close()).unwrap();
    drop(process);
    let mut process = sandbox.attach(pid);
    until(&mut process, "before");
    let busy = wait(sandbox.node.client.attach(&sandbox.id, pid));
    assert_eq!(refusal(busy.map(drop)), Code::TooMany);
    wait(process.input().write(b"long\n")).unwrap();
    let (text, exited) = rest(&mut process);
    assert_eq!((text.as_str(), exited.exit_code), ("long after\n", Some(4)));
    // How it ended is known for a while.
    assert_eq!(rest(&mut sandbox.attach(pid)).1.exit_code, Some(4));
    let nobody = wait(sandbox.node.client.attach(&sandbox.id, 99_999));
    assert_eq!(refusal(nobody.map(drop)), Code::NoSuchProcess);
}

fn processes_are_listed_and_signalled() {
    let sandbox = fresh("signalled");
    let process = streamed(&sandbox, "exec sleep 12345", StreamExec::default());
    let pid = process.pid();
    let found = || {
        let all = wait(sandbox.node.client.processes(&sandbox.id)).unwrap();
        all.into_iter().find(|process| process.command == ["sleep", "12345"])
    };
    eventually("it is listed", || found().is_some());
    let listed = found().unwrap();
    assert_eq!((listed.pid, listed.uid, listed.started_here), (pid, 0, true));
    let signal = |pid, signal| {
        let request = SignalRequest { signal, group: false };
        wait(sandbox.node.client.signal(&sandbox.id, pid, &request))
    };
    signal(pid, 15).unwrap();
    let mut process = process;
    assert_eq!(rest(&mut process).1.signal, Some(15));
    eventually("it is not listed", || found().is_none());
    assert_eq!(refusal(signal(pid, 15)), Code::NoSuchProcess);
    assert_eq!(refusal(signal(1, 99)), Code::BadRequest);
}
