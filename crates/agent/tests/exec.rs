//! Processes: how they start, speak, listen, end, and are found again.

mod common;

use std::time::{Duration, Instant};

use common::{Agent, is_alive, shell, until};
use ramet_proto::agent::{Attach, Channel, Exec, Exited, Input, Reply, Request, Signal, Terminal};

fn code(code: i32) -> Exited {
    Exited { code: Some(code), signal: None, timed_out: false, dropped_bytes: 0 }
}

#[test]
fn output_and_exit_code_come_back() {
    let agent = Agent::start();
    let ran = agent.shell("echo out; echo err >&2; exit 7");
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(ran.exited, code(7));
}

#[test]
fn a_signal_is_told_as_such() {
    let agent = Agent::start();
    for signal in [libc::SIGTERM, 48] {
        let ran = agent.shell(&format!("kill -{signal} $$"));
        assert_eq!((ran.exited.code, ran.exited.signal), (None, Some(signal)));
    }
}

#[test]
fn environment_and_directory_are_as_asked() {
    let agent = Agent::start();
    let mut exec = shell("echo $A/$PATH/$LANG/$HOME; pwd; cat; ls /proc/self/fd | wc -l");
    exec.env.insert("A".into(), "b=c".into());
    exec.cwd = Some("/usr".into());
    let text = agent.exec(&exec).run().text().to_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("b=c//usr/local/sbin:"), "{text}");
    assert!(lines[0].ends_with("/C.UTF-8//root"), "{text}");
    // No stdin, and no descriptor of the agent (ls has its directory open besides 0, 1, 2).
    assert_eq!((lines[1], lines[2].trim()), ("/usr", "4"));
}

#[test]
fn signals_are_as_in_a_fresh_program() {
    let agent = Agent::start();
    let text =
        agent.shell("grep -E 'Sig(Blk|Ign)' /proc/self/status; yes | head -1").text().to_owned();
    assert_eq!(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\ny\n");
}

#[test]
fn limits_are_those_the_agent_was_started_with() {
    let agent = Agent::start();
    assert_eq!(agent.shell("ulimit -S -n").text(), "1024\n");
}

#[test]
fn a_process_runs_as_the_user() {
    let agent = Agent::start();
    let exec = |user: &str| Exec { user: Some(user.into()), ..shell("id -u; id -g; id -G; pwd") };
    let text = agent.exec(&exec("nobody")).run().text().to_owned();
    assert!(text.starts_with("65534\n65534\n65534\n"), "{text}");
    let text = agent.exec(&exec("12345:54321")).run().text().to_owned();
    assert_eq!(text, "12345\n54321\n54321\n/\n");
    let failure = agent.failure(&Request::Exec(exec("nobody-at-all")));
    assert_eq!(failure.code, "no_such_user");
}

#[test]
fn what_cannot_start_is_refused_before_started() {
    let agent = Agent::start();
    let refused = |argv: &[&str], change: &dyn Fn(&mut Exec)| {
        let argv = argv.iter().map(|part| (*part).to_owned()).collect();
        let mut exec = Exec { argv, ..Exec::default() };
        change(&mut exec);
        let failure = agent.failure(&Request::Exec(exec));
        (failure.code, failure.message)
    };
    let unchanged = |_: &mut Exec| {};
    let (code, message) = refused(&["no-such-program"], &unchanged);
    assert!(code == "not_found" && message.contains("no-such-program"), "{code} {message}");
    assert_eq!(refused(&["/no/such/program"], &unchanged).0, "not_found");
    assert_eq!(refused(&["/etc/passwd"], &unchanged).0, "permission_denied");
    assert_eq!(refused(&[], &unchanged).0, "bad_request");
    assert_eq!(refused(&["a\0b"], &unchanged).0, "bad_request");
    let (code, message) = refused(&["true"], &|exec| exec.cwd = Some("/no/where".into()));
    assert!(code == "not_found" && message.contains("/no/where"), "{code} {message}");
    let named = |exec: &mut Exec| drop(exec.env.insert("A=B".into(), "c".into()));
    assert_eq!(refused(&["true"], &named).0, "bad_request");
}

#[test]
fn the_program_is_found_in_its_own_path() {
    let agent = Agent::start();
    let directory = agent.path("bin");
    agent.shell(&format!("mkdir {directory}; printf '#!/bin/sh\necho mine' > {directory}/tool; chmod +x {directory}/tool"));
    let mut exec = Exec { argv: vec!["tool".into()], ..Exec::default() };
    exec.env.insert("PATH".into(), format!("/nowhere:{directory}"));
    assert_eq!(agent.exec(&exec).run().text(), "mine\n");
}

#[test]
fn stdin_reaches_the_process_and_ends() {
    let agent = Agent::start();
    let mut session = agent.exec(&Exec { stdin: true, ..shell("cat; echo end") });
    let pid = session.started();
    // More than the pipe and a frame hold together, so that the agent has to wait for the process.
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut writer = common::Session { stream: session.stream.try_clone().expect("a handle") };
    let sent = content.clone();
    let feeder = std::thread::spawn(move || {
        sent.chunks(200_000).for_each(|chunk| writer.bytes(Channel::Stdin, chunk));
        writer.input(Input::End {});
    });
    let ran = session.rest(pid);
    feeder.join().expect("all was sent");
    assert!(ran.stdout == [content, b"end\n".to_vec()].concat(), "{} bytes", ran.stdout.len());
}

#[test]
fn stdin_of_a_process_that_has_none_is_refused() {
    let agent = Agent::start();
    let mut session = agent.exec(&shell("exec sleep 100"));
    let pid = session.started();
    session.bytes(Channel::Stdin, b"hello");
    assert!(matches!(session.reply(), Reply::Error(failure) if failure.code == "bad_request"));
    assert!(session.frame().is_none() && is_alive(&pid.to_string()));
}

#[test]
fn a_timeout_kills_the_whole_group() {
    let agent = Agent::start();
    let script = "sleep 100 & echo $!; sleep 100 & echo $!; wait";
    let begun = Instant::now();
    let ran = agent.exec(&Exec { timeout_ms: Some(300), ..shell(script) }).run();
    assert!(begun.elapsed() < Duration::from_secs(20));
    let expected =
        Exited { code: None, signal: Some(libc::SIGKILL), timed_out: true, dropped_bytes: 0 };
    assert_eq!(ran.exited, expected);
    for pid in ran.text().lines() {
        until("the grandchild is dead", || !is_alive(pid));
    }
}

#[test]
fn a_timeout_counts_also_when_nobody_reads() {
    let agent = Agent::start();
    let mut session = agent.exec(&Exec { timeout_ms: Some(300), ..shell("exec yes") });
    let pid = session.started();
    until("it is killed", || !is_alive(&pid.to_string()));
    assert!(session.rest(pid).exited.timed_out);
}

#[test]
fn those_left_behind_do_not_delay_the_end_and_live_on() {
    let agent = Agent::start();
    let script = "(while :; do echo noise; sleep 0.05; done) & echo $!";
    let begun = Instant::now();
    let ran = agent.shell(script);
    assert_eq!(ran.exited, code(0));
    assert!(begun.elapsed() < Duration::from_secs(10));
    let left = ran.text().lines().next().expect("its pid").to_owned();
    // It writes twenty times a second: without a reader it would be dead at its next line.
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_alive(&left));
}

#[test]
fn all_output_of_a_process_that_ends_is_delivered() {
    let agent = Agent::start();
    for _ in 0..20 {
        let ran = agent.shell("sleep 100 & head -c 60000 /dev/zero; echo $! >&2");
        assert_eq!(ran.stdout.len(), 60_000);
        let left = String::from_utf8(ran.stderr).expect("a pid");
        let pid = left.trim().parse().expect("a pid");
        agent.answer(&Request::Signal(Signal { pid, signal: libc::SIGKILL, group: false }));
    }
}

#[test]
fn a_terminal_is_one_and_is_resized() {
    let agent = Agent::start();
    let terminal = Some(Terminal { columns: 101, rows: 33 });
    let script = "tty; echo $TERM; trap 'stty size' WINCH; stty size; while [ -z \"$line\" ]; do read line; done; echo got $line; cat; echo over";
    let mut session = agent.exec(&Exec { terminal, ..shell(script) });
    let pid = session.started();
    let text = session.read_until("33 101");
    assert!(text.contains("/dev/pts/") && text.contains("xterm-256color"), "{text}");
    // The shell's read is interrupted by the signal or not; it reads again either way.
    session.input(Input::Resize(Terminal { columns: 44, rows: 22 }));
    session.bytes(Channel::Stdin, b"word\n");
    let text = session.read_until("got word");
    assert!(text.contains("22 44"), "{text}");
    session.input(Input::End {});
    let ran = session.rest(pid);
    assert!(ran.text().contains("over") && ran.exited == code(0), "{ran:?}");
}

#[test]
fn control_c_reaches_the_foreground_of_a_terminal() {
    let agent = Agent::start();
    let terminal = Some(Terminal { columns: 80, rows: 24 });
    let mut session = agent.exec(&Exec { terminal, ..shell("echo ready; exec sleep 100") });
    let pid = session.started();
    session.read_until("ready");
    session.bytes(Channel::Stdin, &[3]);
    assert_eq!(session.rest(pid).exited.signal, Some(libc::SIGINT));
}

#[test]
fn signals_reach_the_group() {
    let agent = Agent::start();
    let mut session = agent
        .exec(&shell("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done"));
    let pid = session.started();
    session.read_until("ready");
    session.input(Input::Signal { signal: libc::SIGUSR1 });
    let ran = session.rest(pid);
    assert!(ran.exited == code(3) && ran.text().contains("caught"), "{ran:?}");
    let failure = agent.failure(&Request::Signal(Signal { pid, signal: 9, group: false }));
    assert_eq!(failure.code, "no_such_process");
    let failure = agent.failure(&Request::Signal(Signal { pid: -1, signal: 9, group: false }));
    assert_eq!(failure.code, "bad_request");
}

#[test]
fn a_process_goes_on_without_its_client_and_is_found_again() {
    let agent = Agent::start();
    let mut session = agent.exec(&Exec { stdin: true, ..shell("echo one; read x; echo two $x") });
    let pid = session.started();
    session.read_until("one");
    let attach = Request::Attach(Attach { pid });
    assert_eq!(agent.failure(&attach).code, "busy");
    drop(session);
    let mut again = None;
    until("the agent has noticed", || {
        let mut session = agent.ask(&attach);
        let free = matches!(session.reply(), Reply::Started { .. });
        again = Some(session);
        free
    });
    let mut session = again.expect("attached");
    session.bytes(Channel::Stdin, b"more\n");
    let ran = session.rest(pid);
    assert!(ran.text() == "two more\n" && ran.exited == code(0), "{ran:?}");
    // Its status is known to whoever asks later.
    assert_eq!(agent.ask(&attach).run().exited, code(0));
    assert_eq!(agent.failure(&Request::Attach(Attach { pid: 1 })).code, "no_such_process");
}

#[test]
fn output_without_a_client_is_kept_within_bounds() {
    let agent = Agent::start();
    let go = agent.path("go");
    let script =
        format!("while [ ! -e {go} ]; do sleep 0.01; done; head -c 1000000 /dev/zero; echo last");
    let mut session = agent.exec(&shell(&script));
    let pid = session.started();
    drop(session);
    std::fs::write(&go, "").expect("a file");
    until("it has ended", || !is_alive(&pid.to_string()));
    let mut ran = None;
    until("its output is kept", || {
        let mut session = agent.ask(&Request::Attach(Attach { pid }));
        let attached = matches!(session.reply(), Reply::Started { .. });
        ran = attached.then(|| session.rest(pid));
        attached
    });
    let ran = ran.expect("attached");
    assert!(ran.stdout.ends_with(b"\0last\n"));
    assert!(ran.stdout.len() <= 256 * 1024 && ran.stdout.len() > 200 * 1024);
    assert_eq!(ran.exited.dropped_bytes + ran.stdout.len() as u64, 1_000_005);
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_client_that_does_not_read_costs_no_memory() {
    let agent = Agent::start();
    let mut session = agent.exec(&shell("exec yes"));
    let pid = session.started();
    session.read_until("y\n");
    let before = resident_kib(agent.pid());
    std::thread::sleep(Duration::from_secs(1));
    let after = resident_kib(agent.pid());
    assert!(after < before + 3 * 1024, "from {before} to {after} KiB");
    let io = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    assert!(is_alive(&pid.to_string()), "{io}");
    session.input(Input::Signal { signal: libc::SIGTERM });
    assert_eq!(session.rest(pid).exited.signal, Some(libc::SIGTERM));
}

#[test]
fn hundreds_run_at_once() {
    let agent = Agent::start();
    let gate = agent.path("gate");
    let mut sessions: Vec<_> = (0..300)
        .map(|number| {
            let script = format!("while [ ! -e {gate} ]; do sleep 0.2; done; echo {number}");
            agent.exec(&shell(&script))
        })
        .collect();
    let pids: Vec<i32> = sessions.iter_mut().map(common::Session::started).collect();
    // All of them run before any may end.
    assert!(pids.iter().all(|pid| is_alive(&pid.to_string())));
    std::fs::write(&gate, "").expect("a file");
    for (number, (mut session, pid)) in sessions.into_iter().zip(pids).enumerate() {
        let ran = session.rest(pid);
        assert_eq!((ran.text(), ran.exited.clone()), (format!("{number}\n").as_str(), code(0)));
    }
}

#[test]
fn sessions_are_bounded() {
    let agent = Agent::start();
    let idle: Vec<_> = (0..1024).map(|_| agent.connect()).collect();
    let mut refused = None;
    until("one is too many", || {
        let mut session = agent.connect();
        session.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let mut head = [0; 5];
        let answered = std::io::Read::read_exact(&mut session.stream, &mut head).is_ok();
        let mut body = Vec::new();
        if answered {
            std::io::Read::read_to_end(&mut session.stream, &mut body).expect("the rest");
            refused = Some(body);
        }
        answered
    });
    match serde_json::from_slice(&refused.expect("refused")).expect("a reply") {
        Reply::Error(failure) => assert_eq!(failure.code, "too_many"),
        other => panic!("{other:?}"),
    }
    drop(idle);
    until("there is room again", || matches!(agent.answer(&Request::Usage {}), Reply::Usage(_)));
}

#[test]
fn processes_and_usage_are_told() {
    let agent = Agent::start();
    let mut session =
        agent.exec(&Exec { argv: vec!["sleep".into(), "100".into()], ..Exec::default() });
    let pid = session.started();
    let mut processes = Vec::new();
    // A process is started a moment before the kernel knows its command line.
    until("it is listed with its command", || {
        let Reply::Processes { processes: listed } = agent.answer(&Request::Processes {}) else {
            panic!("no processes")
        };
        processes = listed;
        let mine = processes.iter().find(|process| process.pid == pid);
        mine.is_some_and(|process| process.command.join(" ") == "sleep 100")
    });
    let found = processes.iter().find(|process| process.pid == pid).expect("it is listed");
    assert!(found.started_here);
    assert_eq!((found.group, found.uid), (pid, 0));
    assert!(processes.iter().any(|process| process.pid == 1 && !process.started_here));
    let Reply::Usage(usage) = agent.answer(&Request::Usage {}) else { panic!("no usage") };
    assert!(usage.cpus > 0 && usage.uptime_ms > 0 && usage.processes > 1);
    assert!(usage.memory_total_bytes > usage.memory_available_bytes);
    assert!(usage.disk_total_bytes > usage.disk_free_bytes && usage.disk_free_bytes > 0);
}

#[test]
fn orphans_are_reaped() {
    let agent = Agent::start();
    let ran = agent.shell("(sleep 0.1 & echo $!) ; true");
    let orphan = ran.text().trim().to_owned();
    until("the orphan is gone for good", || !std::path::Path::new("/proc").join(&orphan).exists());
}

#[test]
fn an_agent_that_only_serves_does_not_shut_down() {
    let agent = Agent::start();
    let failure = agent.failure(&Request::Shutdown { reboot: false, grace_ms: 0 });
    assert_eq!(failure.code, "bad_request");
}
