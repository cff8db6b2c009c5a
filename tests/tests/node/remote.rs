//! A store elsewhere: a real S3 server, with a proxy before it that misbehaves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramet_client::api::{Code, CommitState, CreateCommit, CreateSandbox, GcRequest, State};
use ramet_store::testing::{Act, Proxy, Server};

use crate::bed::{Node, Sandbox, eventually, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    it_goes_on_from_elsewhere,
    a_store_that_is_away_for_a_while,
    a_store_that_does_not_come_back,
    wrong_bytes_are_never_used,
    two_nodes_have_one_store,
];

/// A node whose store is behind a proxy, and what starts another one like it. One story has it at a time.
struct Far {
    _server: Server,
    proxy: Proxy,
    arguments: [String; 2],
    node: Node,
}

static FAR: LazyLock<Mutex<Far>> = LazyLock::new(|| {
    let server = Server::start().expect("an S3 server");
    let proxy = wait(Proxy::start(server.address())).expect("a proxy");
    let endpoint = format!("--s3-endpoint=http://{}", proxy.address());
    let arguments = ["--store=s3://ramet/far".to_owned(), endpoint];
    let node = start("far", &[&arguments[..], &["--store-patience=20".to_owned()]].concat());
    Mutex::new(Far { _server: server, proxy, arguments, node })
});

/// The node, with a store that is well.
fn far() -> MutexGuard<'static, Far> {
    let far = FAR.lock().unwrap_or_else(PoisonError::into_inner);
    far.proxy.rule(|_| Act::Pass);
    far
}

fn start(name: &str, arguments: &[String]) -> Node {
    Node::small(name, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Takes this host's copies away.
pub fn chill(node: &Node) {
    wait(node.client.store_gc(&GcRequest { dry_run: false, copies: true })).expect("no copies");
}

/// Memory, a file and a process that count.
fn prepare(sandbox: &Sandbox<'_>) -> String {
    sandbox.sh("head -c 12000000 /dev/urandom > /dev/shm/blob");
    sandbox.sh("head -c 2000000 /dev/urandom > /root/file; sync");
    look(sandbox)
}

fn look(sandbox: &Sandbox<'_>) -> String {
    sandbox.sh("cat /dev/shm/blob /root/file | sha256sum")
}

fn it_goes_on_from_elsewhere() {
    let far = far();
    let (proxy, node) = (&far.proxy, &far.node);
    let sandbox = node.create("far");
    let before = prepare(&sandbox);
    sandbox.pause();
    assert_eq!(truth::machine_of(node, &sandbox.id), None);
    chill(node);
    assert!(!sandbox.shown().stored.expect("stored").warm);
    proxy.rule(|_| Act::Delay(Duration::from_millis(5)));
    sandbox.resume();
    assert_eq!(look(&sandbox), before);
    let usage = wait(node.client.store_usage()).unwrap();
    assert!(usage.location.starts_with("s3://ramet/far"), "{usage:?}");
}

fn a_store_that_is_away_for_a_while() {
    let far = far();
    let (proxy, node) = (&far.proxy, &far.node);
    let sandbox = node.create("away");
    let before = prepare(&sandbox);
    // Nothing can be stored: it goes on as if nothing had happened.
    proxy.rule(|_| Act::Answer(403));
    assert_eq!(
        refusal(wait(node.client.pause(&sandbox.id, &Default::default()))),
        Code::StoreUnavailable
    );
    assert_eq!((sandbox.shown().state, look(&sandbox)), (State::Running, before.clone()));
    proxy.rule(|_| Act::Pass);
    sandbox.pause();
    chill(node);
    // It goes away after a few pages have come, for ten seconds: the machine waits, and goes on.
    let (asked, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None)));
    let count = asked.clone();
    proxy.rule(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) < 60 {
            return Act::Pass;
        }
        let mut gone = gone.lock().unwrap();
        let since: &mut Instant = gone.get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_secs(10) { Act::CutBefore } else { Act::Pass }
    });
    sandbox.resume();
    assert_eq!(look(&sandbox), before);
    assert!(asked.load(Ordering::Relaxed) > 60, "it was never away");
}

fn a_store_that_does_not_come_back() {
    let far = far();
    let (proxy, node) = (&far.proxy, &far.node);
    let sandbox = node.create("left");
    let before = prepare(&sandbox);
    sandbox.pause();
    chill(node);
    let mut asked = 0;
    proxy.rule(move |_| {
        asked += 1;
        if asked < 40 { Act::Pass } else { Act::CutBefore }
    });
    // It may be told at once, or go on for a while until it needs what does not come.
    let _either = wait(node.client.resume(&sandbox.id));
    eventually("it is paused again", || sandbox.shown().state == State::Paused);
    let shown = sandbox.shown();
    assert!(shown.stored.is_some(), "{shown:?}");
    eventually("its machine is gone", || truth::machine_of(node, &sandbox.id).is_none());
    proxy.rule(|_| Act::Pass);
    sandbox.resume();
    assert_eq!(look(&sandbox), before, "nothing was lost");
}

fn wrong_bytes_are_never_used() {
    let far = far();
    let (proxy, node) = (&far.proxy, &far.node);
    let sandbox = node.create("wrong");
    let before = prepare(&sandbox);
    sandbox.pause();
    chill(node);
    proxy.rule(|request| if request.method == "GET" { Act::Flip } else { Act::Pass });
    let refused = wait(node.client.resume(&sandbox.id));
    assert_eq!(refusal(refused), Code::Damaged);
    assert_eq!(sandbox.shown().state, State::Paused);
    let mut number = 0u64;
    proxy.rule(move |request| {
        number += 1;
        let wrong = request.method == "GET" && number.is_multiple_of(5);
        if wrong { Act::Flip } else { Act::Pass }
    });
    // What comes wrong is fetched again, or it is paused again; it never goes on with it.
    eventually("it is well", || {
        let resumed = wait(node.client.resume(&sandbox.id));
        let state = sandbox.shown().state;
        if resumed.is_err() || state == State::Paused {
            proxy.rule(|_| Act::Pass);
            return false;
        }
        true
    });
    proxy.rule(|_| Act::Pass);
    eventually("all is there", || {
        sandbox.resume();
        sandbox.run("true").ok
    });
    assert_eq!(look(&sandbox), before);
}

fn two_nodes_have_one_store() {
    let far = far();
    let (one, two) = (&far.node, &start("other", &far.arguments));
    let sandbox = one.create("source");
    let before = prepare(&sandbox);
    let request =
        CreateCommit { branch: Some("main".to_owned()), wait: true, ..CreateCommit::default() };
    let commit = wait(one.client.commit(&sandbox.id, &request)).unwrap();
    assert_eq!(commit.state, CommitState::Durable);
    let paused = sandbox.pause();
    // The other knows neither the sandbox nor its state, and its collection leaves both alone.
    assert_eq!(refusal(wait(two.client.sandbox(&sandbox.id))), Code::NotFound);
    wait(two.client.store_gc(&GcRequest::default())).unwrap();
    let request = CreateSandbox { commit: Some("main".to_owned()), ..CreateSandbox::default() };
    let elsewhere = two.create_as(request);
    assert_eq!(look(&elsewhere), before);
    // Both go on from there, each on its own, and the name moves once for each.
    let request =
        CreateCommit { branch: Some("main".to_owned()), wait: true, ..CreateCommit::default() };
    elsewhere.sh("echo two > /root/mark");
    let later = wait(two.client.commit(&elsewhere.id, &request)).unwrap();
    assert_eq!(later.ancestors, std::slice::from_ref(&commit.id));
    assert_eq!(wait(one.client.get_commit("main")).unwrap().id, later.id);
    wait(two.client.delete_ref("main")).unwrap();
    wait(two.client.delete_commit(&commit.id)).unwrap();
    chill(one);
    sandbox.resume();
    assert_eq!(look(&sandbox), before, "{paused:?}");
}
