//! Limits in time and in room.

use std::fs;
use std::path::{Path, PathBuf};

use ramet_client::api::{
    Code, CreateSandbox, ExecRequest, ForkRequest, OnTimeout, State, TemplateState, UpdateSandbox,
};

use crate::bed::{Node, Sandbox, directory, eventually, node, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    its_life_is_over,
    it_idles_and_is_paused,
    limits_are_inherited,
    processors_are_shared_as_asked,
    processes_are_counted,
    there_is_no_room,
];

fn is_gone(id: &str) -> bool {
    let asked = wait(node().client.sandbox(id));
    asked.is_err_and(|error| error.code() == Some(Code::Gone))
}

fn its_life_is_over() {
    let short = CreateSandbox { timeout_s: Some(2), ..CreateSandbox::default() };
    let killed = node().create_as(short.clone());
    let paused = node().create_as(CreateSandbox { on_timeout: OnTimeout::Pause, ..short });
    eventually("its end", || is_gone(&killed.id));
    eventually("its pause", || paused.shown().state == State::Paused);
    // A resume begins its time anew; without a limit it stays.
    let update = UpdateSandbox { timeout_s: Some(0), ..UpdateSandbox::default() };
    wait(node().client.update(&paused.id, &update)).unwrap();
    paused.resume();
    assert_eq!(paused.sh("echo on"), "on");
}

fn it_idles_and_is_paused() {
    let idle = node().create_as(CreateSandbox {
        idle_timeout_s: Some(2),
        on_timeout: OnTimeout::Pause,
        ..CreateSandbox::default()
    });
    // Who works is not idle, however long it takes.
    let command = Some("sleep 5; echo done".to_owned());
    let result = idle.exec(&ExecRequest { command, ..ExecRequest::default() });
    assert_eq!(result.unwrap().stdout, "done\n");
    eventually("its pause", || idle.shown().state == State::Paused);
    idle.resume();
    assert_eq!(idle.sh("echo on"), "on");
}

fn limits_are_inherited() {
    let source = node().create_as(CreateSandbox {
        timeout_s: Some(3600),
        idle_timeout_s: Some(1800),
        on_timeout: OnTimeout::Pause,
        ..CreateSandbox::default()
    });
    let shown = source.fork(1).remove(0).shown();
    assert_eq!((shown.timeout_s, shown.idle_timeout_s), (3600, 1800));
    assert_eq!(shown.on_timeout, OnTimeout::Pause);
}

/// The control group of a sandbox's machine.
fn group(sandbox: &Sandbox<'_>) -> PathBuf {
    let pid = truth::monitor_of(sandbox.node, &sandbox.id);
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its group");
    let path =
        text.lines().find_map(|line| line.strip_prefix("0::/")).expect("a group of version 2");
    Path::new("/sys/fs/cgroup").join(path)
}

fn told(group: &Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).expect("a file of the group").trim().to_owned()
}

fn throttled(group: &Path) -> u64 {
    let stat = told(group, "cpu.stat");
    let count = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    count.expect("a count").parse().expect("a number")
}

fn processors_are_shared_as_asked() {
    let sandbox = node().create_as(CreateSandbox {
        cpu_weight: Some(50),
        cpu_quota_percent: Some(30),
        ..CreateSandbox::default()
    });
    let own = group(&sandbox);
    assert_eq!(
        (told(&own, "cpu.weight"), told(&own, "cpu.max")),
        ("50".into(), "30000 100000".into())
    );
    let before = throttled(&own);
    sandbox.sh("timeout 2 sh -c 'while :; do :; done'; true");
    assert!(throttled(&own) > before, "it was not held back");
    let child = sandbox.fork(1).remove(0);
    let its = group(&child);
    assert_ne!(its, own, "each has its own share");
    assert_eq!(told(&its, "cpu.max"), "30000 100000");
    let update = UpdateSandbox { cpu_quota_percent: Some(0), ..UpdateSandbox::default() };
    wait(node().client.update(&sandbox.id, &update)).unwrap();
    assert_eq!(told(&own, "cpu.max"), "max 100000");
    sandbox.delete();
    child.delete();
    eventually("their groups go with them", || !own.exists() && !its.exists());
    let free = node().create("unlimited");
    assert!(!group(&free).starts_with(own.parent().expect("a parent")), "no limit, no group");
}

fn processes_are_counted() {
    let sandbox =
        node().create_as(CreateSandbox { pids_max: Some(20), ..CreateSandbox::default() });
    let many = "for i in $(seq 40); do sleep 3 & done; wait";
    assert!(sandbox.run(many).stderr.to_lowercase().contains("fork"), "nothing was refused");
    let child = sandbox.fork(1).remove(0);
    assert!(child.run(many).stderr.to_lowercase().contains("fork"), "a fork has the limit too");
    assert_eq!(sandbox.sh("echo fine"), "fine", "the agent is not counted");
}

fn there_is_no_room() {
    // More memory is to be left alone than there is, so not even a template boots.
    let home = directory("no-room");
    let small = Node::unready("no-room", &home, &["--reserve", "100000000"]);
    let error = wait(small.client.create(&CreateSandbox::default())).unwrap_err();
    assert_eq!(error.code(), Some(Code::NoCapacity));
    assert!(error.to_string().contains("MiB"), "it says how much: {error}");
    assert_eq!(refusal(wait(small.client.ready())), Code::NotReady);
    eventually("its template says why", || {
        let shown = wait(small.client.node()).unwrap();
        shown.templates.iter().any(|template| {
            let reason = template.reason.as_deref().unwrap_or_default();
            template.state == TemplateState::Failed && reason.contains("MiB")
        })
    });
    let ran = small.ramet(&["new", "--json"]);
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.err.contains("\"no_capacity\""), "{ran:?}");
    // A node with one place: the second sandbox, and all children of a fork, are refused.
    drop(small);
    let sandbox = node().create_as(CreateSandbox::default());
    let limits = wait(node().client.node()).unwrap().limits;
    let count = Some(limits.fork_max + 1);
    let fork = ForkRequest { count, ..ForkRequest::default() };
    assert_eq!(refusal(wait(node().client.fork(&sandbox.id, &fork))), Code::BadRequest);
}
