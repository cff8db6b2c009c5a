//! Limits in time and in room.

use ramet_client::api::{
    Code, CreateSandbox, ExecRequest, ForkRequest, OnTimeout, State, TemplateState, UpdateSandbox,
};

use crate::bed::{Node, directory, eventually, node, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![its_life_is_over, it_idles_and_is_paused, limits_are_inherited, there_is_no_room];

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
