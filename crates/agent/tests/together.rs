//! Several with one process: who hears, who only speaks, and what is known of all that was started.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{Agent, Session, is_alive, shell, until};
use ramet_proto::agent::{
    Attach, Channel, Command, Exec, Exited, FileKind, Input, Reply, Request, Signal, Terminal,
    WriteFile,
};

fn join(agent: &Agent, pid: i32) -> Session {
    let mut session = agent.ask(&Request::Join(Attach { pid }));
    assert_eq!(session.started(), pid);
    session
}

fn feed(agent: &Agent, pid: i32) -> Session {
    let mut session = agent.ask(&Request::Feed(Attach { pid }));
    assert_eq!(session.started(), pid);
    session
}

fn commands(agent: &Agent) -> Vec<Command> {
    let mut session = agent.ask(&Request::Commands {});
    let mut all = Vec::new();
    loop {
        match session.reply() {
            Reply::Commands { commands } => all.extend(commands),
            Reply::Done {} => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_who_join_hear_everything_from_then_on() {
    let agent = Agent::start();
    let script = "echo one; read x; echo two $x; read y; echo three; exit 4";
    let mut first = agent.exec(&Exec { stdin: true, ..shell(script) });
    let pid = first.started();
    first.read_until("one");
    let mut second = join(&agent, pid);
    assert_eq!(agent.failure(&Request::Attach(Attach { pid })).code, "busy");
    second.bytes(Channel::Stdin, b"more\n");
    assert_eq!(first.read_until("more\n"), "two more\n");
    assert_eq!(second.read_until("more\n"), "two more\n");
    drop(first);
    let mut speaker = feed(&agent, pid);
    speaker.bytes(Channel::Stdin, b"\n");
    let ran = second.rest(pid);
    assert_eq!((ran.text(), ran.exited.code), ("three\n", Some(4)));
    assert_eq!(agent.ask(&Request::Join(Attach { pid })).run().exited.code, Some(4));
}

#[test]
fn who_only_speaks_is_answered_and_leaves_the_output_to_others() {
    let agent = Agent::start();
    let mut hearer = agent.exec(&Exec { stdin: true, ..shell("cat; echo over") });
    let pid = hearer.started();
    let mut speaker = feed(&agent, pid);
    for word in ["a", "b"] {
        speaker.bytes(Channel::Stdin, word.as_bytes());
        assert_eq!(speaker.reply(), Reply::Done {});
    }
    drop(speaker);
    let mut speaker = feed(&agent, pid);
    speaker.input(Input::End {});
    assert_eq!(speaker.reply(), Reply::Done {});
    assert_eq!(hearer.rest(pid).text(), "abover\n");
    until("its end is known", || {
        let mut session = agent.ask(&Request::Feed(Attach { pid }));
        matches!(session.reply(), Reply::Error(failure) if failure.code == "no_such_process")
    });
}

#[test]
fn input_for_nobody_is_refused() {
    let agent = Agent::start();
    let mut deaf = agent.exec(&shell("exec sleep 100"));
    let pid = deaf.started();
    let mut speaker = feed(&agent, pid);
    speaker.bytes(Channel::Stdin, b"x");
    assert!(matches!(speaker.reply(), Reply::Error(failure) if failure.code == "bad_request"));
    let mut closed = agent.exec(&Exec { stdin: true, ..shell("exec sleep 100") });
    let pid = closed.started();
    closed.input(Input::End {});
    until("it is closed", || {
        let mut speaker = feed(&agent, pid);
        speaker.bytes(Channel::Stdin, b"x");
        matches!(speaker.reply(), Reply::Error(failure) if failure.code == "bad_request")
    });
    assert_eq!(agent.failure(&Request::Feed(Attach { pid: 1 })).code, "no_such_process");
}

#[test]
fn a_terminal_is_resized_and_a_group_signalled_from_outside() {
    let agent = Agent::start();
    let terminal = Some(Terminal { columns: 80, rows: 24 });
    let script = "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.01; done";
    let mut session = agent.exec(&Exec { terminal, ..shell(script) });
    let pid = session.started();
    session.read_until("ready");
    let mut speaker = feed(&agent, pid);
    speaker.input(Input::Resize(Terminal { columns: 44, rows: 22 }));
    assert_eq!(speaker.reply(), Reply::Done {});
    let ran = session.rest(pid);
    assert!(ran.text().contains("22 44") && ran.exited.code == Some(5), "{ran:?}");
    let mut session = agent.exec(&shell("sleep 100; true"));
    let pid = session.started();
    let mut speaker = feed(&agent, pid);
    speaker.input(Input::Signal { signal: libc::SIGKILL });
    assert_eq!(speaker.reply(), Reply::Done {});
    assert_eq!(session.rest(pid).exited.signal, Some(libc::SIGKILL));
}

#[test]
fn clients_of_one_process_are_bounded() {
    let agent = Agent::start();
    let mut session = agent.exec(&shell("exec sleep 100"));
    let pid = session.started();
    let mut others: Vec<Session> = (0..31).map(|_| join(&agent, pid)).collect();
    assert_eq!(agent.failure(&Request::Join(Attach { pid })).code, "too_many");
    others.pop();
    until("there is room again", || {
        let mut session = agent.ask(&Request::Feed(Attach { pid }));
        matches!(session.reply(), Reply::Started { .. })
    });
}

#[test]
fn what_was_asked_for_is_remembered() {
    let agent = Agent::start();
    let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
    let (cwd, tag) = (Some("/usr".to_owned()), Some("mine".to_owned()));
    let exec = Exec { env: env.clone(), cwd: cwd.clone(), tag: tag.clone(), ..shell("read x") };
    let mut session = agent.exec(&Exec { stdin: true, ..exec.clone() });
    let pid = session.started();
    let known = commands(&agent);
    let (argv, terminal, ended) = (exec.argv.clone(), false, false);
    assert_eq!(known, [Command { pid, argv, env, cwd, tag, terminal, ended }]);
    session.input(Input::End {});
    session.rest(pid);
    assert!(commands(&agent)[0].ended);
    let long = Exec { argv: vec!["true".into(), "x".repeat(100_000)], ..Exec::default() };
    let pid = agent.exec(&long).run().pid;
    let known = commands(&agent).into_iter().find(|one| one.pid == pid).expect("known");
    assert_eq!(known.argv, ["true"]);
    let tag = Some("x".repeat(1000));
    let failure = agent.failure(&Request::Exec(Exec { tag, ..shell("true") }));
    assert_eq!(failure.code, "bad_request");
}

#[test]
fn one_that_lingers_ends_with_its_outputs() {
    let agent = Agent::start();
    let left = "(sleep 0.5; echo late) & echo early";
    let ran = agent.exec(&Exec { linger: true, ..shell(left) }).run();
    assert_eq!(ran.text(), "early\nlate\n");
    let begun = Instant::now();
    let long = Exec { linger: true, timeout_ms: Some(500), ..shell("sleep 100 & echo $!") };
    let ran = agent.exec(&long).run();
    let expected = Exited { code: Some(0), signal: None, timed_out: false, dropped_bytes: 0 };
    assert_eq!(ran.exited, expected);
    let time = begun.elapsed();
    assert!(time >= Duration::from_millis(400) && time < Duration::from_secs(20), "{time:?}");
    let pid = ran.text().trim().parse().expect("a pid");
    assert!(is_alive(ran.text().trim()));
    agent.answer(&Request::Signal(Signal { pid, signal: libc::SIGKILL, group: false }));
}

#[test]
fn accounts_are_told() {
    let agent = Agent::start();
    let Reply::Accounts(accounts) = agent.answer(&Request::Accounts {}) else { panic!("none") };
    let root = accounts.users.iter().find(|user| user.uid == 0).expect("root");
    assert_eq!((root.name.as_str(), root.home.as_str()), ("root", "/root"));
    assert!(accounts.groups.iter().any(|group| group.gid == 0));
}

#[test]
fn links_say_where_they_end() {
    let agent = Agent::start();
    let (directory, link, broken) = (agent.path("d"), agent.path("l"), agent.path("b"));
    agent.shell(&format!("mkdir {directory}; ln -s d {link}; ln -s nothing {broken}"));
    let end = agent.stat(&link).end.expect("it leads somewhere");
    assert_eq!((end.path, end.kind), (directory, FileKind::Directory));
    assert_eq!(agent.stat(&broken).end, None);
}

#[test]
fn attributes_go_with_a_file_and_are_replaced_with_it() {
    let agent = Agent::start();
    let path = agent.path("file");
    let write = |attributes: &[(&str, &str)]| {
        let pairs = attributes.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let attributes = pairs.collect();
        let file = WriteFile { path: path.clone(), attributes, ..WriteFile::default() };
        let mut session = agent.ask(&Request::WriteFile(file));
        session.input(Input::End {});
        session.reply()
    };
    let first = write(&[("app.a", "1"), ("app.b", "zwei")]);
    if matches!(&first, Reply::Error(failure) if failure.code == "io") {
        // The filesystem of this directory has none.
        return;
    }
    let Reply::Stat(entry) = first else { panic!("{first:?}") };
    assert_eq!(entry.attributes["app.b"], "zwei");
    let Reply::Stat(entry) = write(&[("app.c", "3")]) else { panic!("not written") };
    assert_eq!(entry.attributes.into_iter().collect::<Vec<_>>(), [("app.c".into(), "3".into())]);
}
