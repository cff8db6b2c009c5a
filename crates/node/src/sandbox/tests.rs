//! The rules of sandboxes, on an engine without machines.

mod branches;
mod durable;
mod faults;
mod groups;
mod moves;
mod network;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ramet_proto::api::{
    CreateSandbox, EventKind, ExecRequest, ForkRequest, ListQuery, OnTimeout, PauseRequest,
    PromoteRequest, Sandbox, State, TreeKind, UpdateSandbox, WriteQuery,
};

use super::{Error, Renewal, Service, Settings};
use crate::auth::Principal;
use crate::clock::uptime_ms;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::host::{Cpu, Host};
use crate::http::problem_of;
use crate::store::Store;

struct Bed {
    engine: Arc<Fake>,
    network: Arc<FakeNet>,
    store: Arc<Store>,
    service: Service,
    me: Principal,
    data: Arc<tempfile::TempDir>,
    settings: Settings,
}

impl Bed {
    async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let data = Arc::new(tempfile::tempdir().unwrap());
        let store = Arc::new(Store::in_memory().unwrap());
        Self::on(Fake::new(), FakeNet::new(), store, data, settings).await
    }

    async fn on(
        engine: Arc<Fake>,
        network: Arc<FakeNet>,
        store: Arc<Store>,
        data: Arc<tempfile::TempDir>,
        settings: Settings,
    ) -> Self {
        let settings = Settings { data_dir: data.path().to_owned(), ..settings };
        let host = Host::new(engine.clone(), network.clone());
        let service = Service::new(host, store.clone(), settings.clone());
        service.recover().await.unwrap();
        service.start_network().await;
        Self { engine, network, store, service, me: Principal::new("me"), data, settings }
    }

    /// As after a kill -9: the same machines, the same database, another process.
    async fn restart(self) -> Self {
        self.service.stop.cancel();
        Self::on(self.engine, self.network, self.store, self.data, self.settings).await
    }

    /// Waits for what is done in the background.
    async fn eventually(&self, what: &str, so: impl Fn(&Self) -> bool) {
        for _ in 0..500 {
            if so(self) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("{what}: not in time");
    }

    async fn create(&self, name: &str) -> Sandbox {
        let request = CreateSandbox { name: Some(name.to_owned()), ..CreateSandbox::default() };
        self.service.create(&self.me, request, None).await.unwrap().sandbox
    }

    async fn fork(&self, source: &str, names: &[&str]) -> Vec<Sandbox> {
        self.fork_as(source, names, ForkRequest::default()).await
    }

    async fn fork_as(&self, source: &str, names: &[&str], request: ForkRequest) -> Vec<Sandbox> {
        let names = Some(names.iter().map(|&name| name.to_owned()).collect());
        let request = ForkRequest { names, ..request };
        let forked = self.service.fork(&self.me, source, request, None, problem_of).await.unwrap();
        forked.children.into_iter().map(|child| child.sandbox.unwrap()).collect()
    }

    async fn write(&self, key: &str, text: &str) {
        let query = WriteQuery { path: "/f".to_owned(), ..WriteQuery::default() };
        let mut sink = self.service.write_file(&self.me, key, query).await.unwrap();
        sink.data(text.as_bytes()).await.unwrap();
        sink.finish().await.unwrap();
    }

    async fn read(&self, key: &str) -> String {
        let mut source = self.service.read_file(&self.me, key, "/f", None).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = source.next().await.unwrap() {
            text.extend(piece);
        }
        String::from_utf8(text).unwrap()
    }

    async fn run(&self, key: &str, command: &str) -> String {
        let request = ExecRequest { command: Some(command.to_owned()), ..ExecRequest::default() };
        self.service.exec(&self.me, key, request).await.unwrap().stdout
    }

    fn machines(&self) -> usize {
        self.engine.counts().0
    }

    fn state(&self, key: &str) -> State {
        self.service.get(&self.me, key).unwrap().state
    }
}

fn won(winner: &str) -> PromoteRequest {
    PromoteRequest { winner: winner.to_owned(), inherit_secrets: None }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn create_is_a_fork_of_one_template() {
    let bed = Bed::new().await;
    let (a, b) = (bed.create("a").await, bed.create("b").await);
    assert_ne!(a.id, b.id);
    assert_eq!(bed.engine.counts(), (3, 1), "two sandboxes and the template of one boot");
    assert_eq!(bed.run("a", "hostname").await, "a");
    let big = CreateSandbox { memory_mib: Some(1024), ..CreateSandbox::default() };
    let big = bed.service.create(&bed.me, big, None).await.unwrap().sandbox;
    assert_eq!((big.memory_mib, big.name.clone()), (1024, big.id));
    assert_eq!(bed.engine.counts(), (5, 2));
}

#[tokio::test]
async fn children_inherit_state_and_neither_identity_nor_secrets() {
    let bed = Bed::new().await;
    let request = CreateSandbox {
        name: Some("root".to_owned()),
        env: pairs(&[("A", "1")]),
        secrets: pairs(&[("KEY", "s3cret")]),
        labels: pairs(&[("team", "x")]),
        ..CreateSandbox::default()
    };
    let root = bed.service.create(&bed.me, request, None).await.unwrap().sandbox;
    assert_eq!(root.secret_names, ["KEY"]);
    bed.write("root", "state").await;
    let unsaid = bed.service.fork(&bed.me, "root", ForkRequest::default(), None, problem_of).await;
    assert!(
        matches!(&unsaid, Err(Error::HoldsSecrets(text)) if text.contains("KEY")),
        "{unsaid:?}"
    );
    let without = ForkRequest { inherit_secrets: Some(false), ..ForkRequest::default() };
    let kids = bed.fork_as("root", &["one", "two"], without).await;
    assert_eq!(kids[0].parent, Some(root.id));
    assert!(root.holds_secrets && !kids[0].holds_secrets);
    assert_eq!(kids[0].labels, pairs(&[("team", "x")]));
    bed.write("one", "other").await;
    assert_eq!(bed.read("root").await, "state");
    assert_eq!(bed.read("two").await, "state");
    assert_eq!(bed.run("two", "hostname").await, "two");
    assert_eq!(bed.run("two", "env A").await, "1");
    assert_eq!(bed.run("two", "env KEY").await, "");
    assert_eq!(bed.run("root", "env KEY").await, "s3cret");
    let secrets = pairs(&[("MORE", "x")]);
    let with = ForkRequest { inherit_secrets: Some(true), secrets, ..ForkRequest::default() };
    bed.fork_as("root", &["heir"], with).await;
    assert_eq!(bed.run("heir", "env KEY").await, "s3cret");
    assert_eq!(bed.run("heir", "env MORE").await, "x");
}

#[tokio::test]
async fn a_child_that_fails_is_an_error_in_its_place() {
    let bed = Bed::new().await;
    bed.create("root").await;
    bed.engine.fail_children(&[1]);
    let names = Some(["a", "b", "c"].map(str::to_owned).to_vec());
    let request = ForkRequest { names, ..ForkRequest::default() };
    let forked = bed.service.fork(&bed.me, "root", request, None, problem_of).await.unwrap();
    let made: Vec<bool> = forked.children.iter().map(|child| child.sandbox.is_some()).collect();
    assert_eq!(made, [true, false, true]);
    assert!(forked.children[1].error.is_some());
    assert!(matches!(bed.service.get(&bed.me, "b"), Err(Error::NotFound { .. })));
    bed.fork("root", &["b"]).await;
}

#[tokio::test]
async fn names_are_unique_and_ids_have_beginnings() {
    let bed = Bed::new().await;
    let a = bed.create("a").await;
    let again = CreateSandbox { name: Some("a".to_owned()), ..CreateSandbox::default() };
    let taken = bed.service.create(&bed.me, again.clone(), None).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))));
    let two = Some(vec!["x".to_owned(), "x".to_owned()]);
    let request = ForkRequest { names: two, ..ForkRequest::default() };
    let taken = bed.service.fork(&bed.me, "a", request, None, problem_of).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))));
    for key in [&a.id[..], &a.id[..9], &a.id[4..9], "a"] {
        assert_eq!(bed.service.get(&bed.me, key).unwrap().id, a.id, "{key}");
    }
    bed.create("c").await;
    assert!(matches!(bed.service.get(&bed.me, ""), Err(Error::NotFound { .. })));
    bed.service.delete(&bed.me, "a").await.unwrap();
    assert!(matches!(bed.service.get(&bed.me, &a.id), Err(Error::Gone(_))));
    assert_ne!(bed.service.create(&bed.me, again, None).await.unwrap().sandbox.id, a.id);
    let rename = UpdateSandbox { name: Some("c".to_owned()), ..UpdateSandbox::default() };
    let taken = bed.service.update(&bed.me, "a", rename).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))));
}

#[tokio::test]
async fn owners_do_not_see_each_other() {
    let bed = Bed::new().await;
    let mine = bed.create("a").await;
    let you = Principal::new("you");
    assert!(matches!(bed.service.get(&you, &mine.id), Err(Error::NotFound { .. })));
    assert!(matches!(bed.service.delete(&you, "a").await, Err(Error::NotFound { .. })));
    assert!(bed.service.list(&you, &ListQuery::default()).unwrap().sandboxes.is_empty());
    let tree = bed.service.tree(&you);
    assert!(tree.nodes.iter().all(|node| node.kind == TreeKind::Template));
    let same = CreateSandbox { name: Some("a".to_owned()), ..CreateSandbox::default() };
    bed.service.create(&you, same, None).await.unwrap();
    let kid = bed.fork("a", &["kid"]).await;
    assert!(bed.service.promote(&you, "a", &won(&kid[0].id)).await.is_err());
}

#[tokio::test]
async fn a_key_makes_one_sandbox() {
    let bed = Bed::new().await;
    let request = CreateSandbox { name: Some("a".to_owned()), ..CreateSandbox::default() };
    let key = || Some("k".to_owned());
    let first = bed.service.create(&bed.me, request.clone(), key()).await.unwrap();
    let second = bed.service.create(&bed.me, request.clone(), key()).await.unwrap();
    assert_eq!(first, second);
    let other = CreateSandbox::default();
    assert!(matches!(bed.service.create(&bed.me, other, key()).await, Err(Error::Mismatch)));
    let failed = bed.service.create(&bed.me, request, Some("n".to_owned())).await;
    assert!(matches!(failed, Err(Error::NameTaken(_))));
    let fine = CreateSandbox::default();
    bed.service.create(&bed.me, fine, Some("n".to_owned())).await.unwrap();
    bed.engine.slow_down(Duration::from_millis(200));
    let fork = || {
        let request = ForkRequest { count: Some(2), ..ForkRequest::default() };
        bed.service.fork(&bed.me, "a", request, key(), problem_of)
    };
    assert!(matches!(fork().await, Err(Error::Mismatch)));
    let fork = || {
        let request = ForkRequest { count: Some(2), ..ForkRequest::default() };
        bed.service.fork(&bed.me, "a", request, Some("f".to_owned()), problem_of)
    };
    let (one, other) = tokio::join!(fork(), fork());
    assert!(matches!(
        (&one, &other),
        (Ok(_), Err(Error::InProgress)) | (Err(Error::InProgress), Ok(_))
    ));
    assert_eq!(fork().await.unwrap(), one.or(other).unwrap());
}

#[tokio::test]
async fn rewind_goes_back_and_keeps_the_identity() {
    let bed = Bed::new().await;
    let root = bed.create("root").await;
    bed.write("root", "before").await;
    let checkpoint = bed.service.checkpoint(&bed.me, "root", Some("cut".into())).await.unwrap();
    let taken = bed.service.checkpoint(&bed.me, "root", Some("cut".into())).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))));
    bed.write("root", "after").await;
    let machines = bed.machines();
    for key in ["cut", &checkpoint.id, &checkpoint.id[3..9]] {
        let swapped = bed.service.rewind(&bed.me, "root", key.to_owned()).await.unwrap();
        assert_eq!(swapped.sandbox.id, root.id);
        assert_eq!(bed.read("root").await, "before");
        bed.write("root", "after").await;
    }
    assert_eq!(bed.run("root", "hostname").await, "root");
    assert_eq!(bed.machines(), machines, "the old machines are gone");
    let unknown = bed.service.rewind(&bed.me, "root", "nothing".to_owned()).await;
    assert!(matches!(unknown, Err(Error::NotFound { what: "checkpoint", .. })));
    bed.service.delete_checkpoint(&bed.me, "root", "cut").await.unwrap();
    assert!(bed.service.checkpoints(&bed.me, "root").unwrap().checkpoints.is_empty());
    assert_eq!(bed.machines(), machines - 1);
}

#[tokio::test]
async fn the_parent_goes_on_as_the_winner() {
    let bed = Bed::new().await;
    let root = bed.create("root").await;
    let kids = bed.fork("root", &["one", "two"]).await;
    let grandchild = bed.fork("two", &["deep"]).await;
    bed.write("two", "won").await;
    bed.service.checkpoint(&bed.me, "two", None).await.unwrap();
    let other = bed.create("other").await;
    let wrong = bed.service.promote(&bed.me, "root", &won(&other.id)).await;
    assert!(matches!(wrong, Err(Error::NotADescendant { .. })));
    assert!(bed.service.promote(&bed.me, "one", &won("root")).await.is_err());
    assert!(bed.service.promote(&bed.me, "root", &won("root")).await.is_err());
    let machines = bed.machines();
    let swapped = bed.service.promote(&bed.me, "root", &won("two")).await.unwrap();
    assert_eq!(swapped.sandbox.id, root.id);
    assert_eq!(bed.read("root").await, "won");
    assert_eq!(bed.run("root", "hostname").await, "root");
    assert_eq!(bed.machines(), machines - 2, "winner and its checkpoint go, the parent has one");
    let promoted = bed.service.get(&bed.me, &kids[1].id);
    assert!(matches!(promoted, Err(Error::Promoted { to, .. }) if to == root.id));
    assert_eq!(bed.state("one"), State::Running, "the losers stay");
    let deep = bed.service.get(&bed.me, &grandchild[0].id).unwrap();
    assert_eq!(deep.parent, Some(root.id), "children of the winner are children of the parent");
    bed.service.promote(&bed.me, "root", &won("deep")).await.unwrap();
}

#[tokio::test]
async fn the_tree_keeps_gone_parents_of_the_living() {
    let bed = Bed::new().await;
    bed.create("root").await;
    bed.fork("root", &["kid"]).await;
    bed.fork("kid", &["deep"]).await;
    bed.service.checkpoint(&bed.me, "deep", Some("cut".into())).await.unwrap();
    bed.service.delete(&bed.me, "kid").await.unwrap();
    let tree = bed.service.tree(&bed.me);
    let names: Vec<_> = tree.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["base 1x512", "root", "kid", "deep", "cut"]);
    assert_eq!(tree.nodes[2].state, Some(State::Gone));
    for node in tree.nodes.iter().skip(1) {
        let parent = node.parent.as_ref().unwrap();
        assert!(tree.nodes.iter().any(|other| other.id == *parent), "{node:?}");
    }
    bed.service.delete(&bed.me, "deep").await.unwrap();
    assert_eq!(bed.service.tree(&bed.me).nodes.len(), 2, "template and root");
    assert_eq!(bed.machines(), 2);
    bed.service.clean(u64::MAX);
    assert!(matches!(bed.service.get(&bed.me, "kid"), Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn pause_and_resume() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.service.pause(&bed.me, "a", PauseRequest { memory: true, disk: false }).await.unwrap();
    assert_eq!(
        bed.service
            .pause(&bed.me, "a", PauseRequest { memory: true, disk: false })
            .await
            .unwrap()
            .state,
        State::Paused
    );
    let exec = ExecRequest { command: Some("true".to_owned()), ..ExecRequest::default() };
    let refused = bed.service.exec(&bed.me, "a", exec).await;
    assert!(matches!(refused, Err(Error::WrongState(_))));
    bed.fork("a", &["b"]).await;
    assert_eq!(bed.state("b"), State::Running);
    assert_eq!(bed.service.resume(&bed.me, "a").await.unwrap().state, State::Running);
}

#[tokio::test]
async fn admission_is_by_memory() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.engine.set_available(256 + 40);
    let count = |count| ForkRequest { count: Some(count), ..ForkRequest::default() };
    let refused = bed.service.fork(&bed.me, "a", count(3), None, problem_of).await;
    assert!(matches!(refused, Err(Error::NoCapacity(_))));
    bed.service.fork(&bed.me, "a", count(2), None, problem_of).await.unwrap();
    bed.engine.set_available(0);
    let refused = bed.service.create(&bed.me, CreateSandbox::default(), None).await;
    assert!(matches!(refused, Err(Error::NoCapacity(_))));
    assert_eq!(bed.service.list(&bed.me, &ListQuery::default()).unwrap().sandboxes.len(), 3);
}

#[tokio::test]
async fn a_machine_that_ends_fails_its_sandbox_and_nothing_else() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.fork("a", &["b"]).await;
    bed.service.checkpoint(&bed.me, "a", Some("cut".into())).await.unwrap();
    let mut events = bed.service.events.listen();
    let machine = bed.service.find(&bed.me, "a").unwrap().machine.unwrap();
    bed.engine.crash(&machine);
    let told = events.recv().await.unwrap();
    assert_eq!(told.event.kind, EventKind::Failed);
    let failed = bed.service.get(&bed.me, "a").unwrap();
    let failure = failed.failure.unwrap();
    assert_eq!((failed.state, failure.console.as_str()), (State::Failed, "oops"));
    assert_eq!(bed.service.logs(&bed.me, "a").await.unwrap().text, "oops");
    assert_eq!(bed.state("b"), State::Running);
    let count = ForkRequest::default();
    assert!(bed.service.fork(&bed.me, "a", count, None, problem_of).await.is_err());
    bed.service.rewind(&bed.me, "a", "cut".to_owned()).await.unwrap();
    assert_eq!(bed.state("a"), State::Running);
}

#[tokio::test]
async fn a_restart_takes_hold_of_what_lives_and_ends_what_nobody_knows() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.fork("a", &["b", "c"]).await;
    bed.service.checkpoint(&bed.me, "a", Some("cut".into())).await.unwrap();
    bed.service.pause(&bed.me, "b", PauseRequest { memory: true, disk: false }).await.unwrap();
    bed.write("a", "kept").await;
    let lost = bed.service.find(&bed.me, "c").unwrap().machine.unwrap();
    let before = bed.machines();
    bed.engine.orphan();
    let bed = bed.restart().await;
    assert_eq!(bed.machines(), before, "the orphan is gone, the others live");
    let (a, b) = (bed.state("a"), bed.state("b"));
    assert_eq!((a, b), (State::Running, State::Paused));
    assert_eq!(bed.read("a").await, "kept");
    bed.engine.vanish(&lost);
    let bed = bed.restart().await;
    assert_eq!(bed.state("c"), State::Failed);
    assert!(bed.service.get(&bed.me, "c").unwrap().failure.unwrap().reason.contains("started"));
    bed.service.rewind(&bed.me, "a", "cut".to_owned()).await.unwrap();
    let boots = bed.engine.counts().1;
    bed.create("d").await;
    assert_eq!(bed.engine.counts().1, boots, "the template was taken hold of, too");
    let machine = bed.service.find(&bed.me, "d").unwrap().machine.unwrap();
    let mut events = bed.service.events.listen();
    bed.engine.crash(&machine);
    assert_eq!(events.recv().await.unwrap().event.kind, EventKind::Failed);
}

#[tokio::test]
async fn an_operation_that_broke_off_is_undone() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let machines = bed.machines();
    bed.engine.slow_down(Duration::from_millis(300));
    let service = bed.service.clone();
    let me = bed.me.clone();
    let names = Some(vec!["half".to_owned()]);
    let request = ForkRequest { names, ..ForkRequest::default() };
    tokio::spawn(
        async move { service.fork(&me, "a", request, Some("k".into()), problem_of).await },
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    // What a crash leaves: the row of a child to be, and later a machine that no row names.
    let (records, _) = bed.store.load().unwrap();
    let half = records.into_iter().find(|record| record.name == "half").unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    let change = crate::store::Change { sandboxes: vec![half], ..Default::default() };
    bed.store.apply(&change).unwrap();
    bed.engine.slow_down(Duration::ZERO);
    let bed = bed.restart().await;
    assert_eq!(bed.machines(), machines);
    assert!(matches!(bed.service.get(&bed.me, "half"), Err(Error::NotFound { .. })));
    bed.fork("a", &["half"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limits_end_or_pause() {
    let bed = Bed::new().await;
    let limited = |name: &str, timeout_s, idle_timeout_s, on_timeout| CreateSandbox {
        name: Some(name.to_owned()),
        timeout_s: Some(timeout_s),
        idle_timeout_s: Some(idle_timeout_s),
        on_timeout,
        ..CreateSandbox::default()
    };
    for request in [
        limited("killed", 10, 0, OnTimeout::Kill),
        limited("paused", 10, 0, OnTimeout::Pause),
        limited("idle", 0, 10, OnTimeout::Kill),
        limited("free", 0, 0, OnTimeout::Kill),
    ] {
        bed.service.create(&bed.me, request, None).await.unwrap();
    }
    let now = uptime_ms();
    bed.service.enforce(now + 5_000).await;
    assert_eq!(bed.service.list(&bed.me, &ListQuery::default()).unwrap().sandboxes.len(), 4);
    let busy = bed.service.stream(
        &bed.me,
        "idle",
        ramet_proto::api::StreamRequest::Exec(ramet_proto::api::StreamExec {
            command: Some("wait".to_owned()),
            stdin: true,
            ..Default::default()
        }),
    );
    let busy = busy.await.unwrap();
    bed.service.enforce(now + 11_000).await;
    assert!(matches!(bed.service.get(&bed.me, "killed"), Err(Error::NotFound { .. })));
    bed.eventually("its pause", |bed| {
        bed.service.get(&bed.me, "paused").is_ok_and(|paused| paused.stored.is_some())
    })
    .await;
    assert_eq!(bed.state("idle"), State::Running, "a stream is no idleness");
    drop(busy);
    bed.service.enforce(now + 30_000).await;
    assert!(bed.service.get(&bed.me, "idle").is_err());
    assert_eq!(bed.state("free"), State::Running);
    bed.service.resume(&bed.me, "paused").await.unwrap();
    bed.service.enforce(uptime_ms() + 5_000).await;
    assert_eq!(bed.state("paused"), State::Running, "its time counts anew");
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let bed = Bed::new().await;
    for number in 0..5 {
        let request = CreateSandbox {
            name: Some(format!("s{number}")),
            labels: pairs(&[("odd", if number % 2 == 1 { "yes" } else { "no" })]),
            ..CreateSandbox::default()
        };
        bed.service.create(&bed.me, request, None).await.unwrap();
    }
    let mut query = ListQuery { limit: Some(2), ..ListQuery::default() };
    let mut names = Vec::new();
    loop {
        let page = bed.service.list(&bed.me, &query).unwrap();
        assert!(page.sandboxes.len() <= 2);
        names.extend(page.sandboxes.into_iter().map(|sandbox| sandbox.name));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, ["s0", "s1", "s2", "s3", "s4"]);
    let count = |label: &str, state| {
        let query = ListQuery { label: Some(label.to_owned()), state, ..ListQuery::default() };
        bed.service.list(&bed.me, &query).unwrap().sandboxes.len()
    };
    assert_eq!(count("odd=yes", None), 2);
    assert_eq!(count("odd", None), 5);
    assert_eq!(count("even", None), 0);
    bed.service.delete(&bed.me, "s1").await.unwrap();
    assert_eq!((count("odd=yes", None), count("odd", Some(State::Gone))), (1, 1));
}

#[tokio::test]
async fn every_operation_is_noted() {
    let bed = Bed::new().await;
    let a = bed.create("a").await;
    bed.run("a", "hello").await;
    let _ = bed.service.rewind(&bed.me, "a", "nothing".to_owned()).await;
    bed.service.delete(&bed.me, "a").await.unwrap();
    let noted = bed.store.operations(10).unwrap();
    let kinds: Vec<_> = noted.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(kinds, ["delete", "rewind", "exec", "create"]);
    assert!(noted.iter().all(|row| row[0] == "me" && !row[3].is_empty()));
    assert_eq!((noted[0][2].as_str(), noted[0][3].as_str()), (a.id.as_str(), "ok"));
    assert!(noted[1][3].contains("nothing"));
}

#[tokio::test]
async fn many_at_once_leave_nothing_behind() {
    let bed = Bed::new().await;
    bed.create("root").await;
    let one = |number: usize| {
        let (service, me) = (bed.service.clone(), bed.me.clone());
        async move {
            let names = Some(vec![format!("kid-{number}")]);
            let request = ForkRequest { names, ..ForkRequest::default() };
            service.fork(&me, "root", request, None, problem_of).await.unwrap();
            service.delete(&me, &format!("kid-{number}")).await.unwrap();
        }
    };
    let all: Vec<_> = (0..50).map(|number| tokio::spawn(one(number))).collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(bed.machines(), 2, "template and root");
    bed.service.clean(u64::MAX);
    assert_eq!(bed.store.load().unwrap().0.len(), 1);
}

#[tokio::test]
async fn limits_follow_the_sandbox() {
    let bed = Bed::new().await;
    let request = CreateSandbox {
        name: Some("a".to_owned()),
        cpu_weight: Some(50),
        cpu_quota_percent: Some(150),
        pids_max: Some(64),
        ..CreateSandbox::default()
    };
    bed.service.create(&bed.me, request, None).await.unwrap();
    let child = bed.fork("a", &["b"]).await.remove(0);
    assert_eq!((child.cpu_weight, child.cpu_quota_percent, child.pids_max), (50, 150, 64));
    let limits = (Cpu { weight: 50, quota_percent: 150 }, Some(64));
    assert_eq!([bed.engine.limits("a"), bed.engine.limits("b")], [limits, limits]);
    let update = UpdateSandbox { cpu_quota_percent: Some(0), ..UpdateSandbox::default() };
    bed.service.update(&bed.me, "a", update).await.unwrap();
    bed.service.promote(&bed.me, "a", &won("b")).await.unwrap();
    assert_eq!(bed.engine.limits("a").0, Cpu { weight: 50, quota_percent: 0 });
    for bad in [
        CreateSandbox { cpu_weight: Some(0), ..CreateSandbox::default() },
        CreateSandbox { cpu_quota_percent: Some(801), ..CreateSandbox::default() },
        CreateSandbox { pids_max: Some(2), ..CreateSandbox::default() },
    ] {
        let refused = bed.service.create(&bed.me, bad, None).await;
        assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn an_unanswered_request_with_a_key_is_undone() {
    let bed = Bed::new().await;
    bed.create("root").await;
    let request = || ForkRequest { names: Some(vec!["kid".into()]), ..ForkRequest::default() };
    let key = || Some("k".to_owned());
    let forked = bed.service.fork(&bed.me, "root", request(), key(), problem_of).await.unwrap();
    // As if the node had been killed between making it and noting the answer.
    bed.store.settle_key("me", "k", None).unwrap();
    bed.store.take_key("me", "k", "the request", 1).unwrap();
    let bed = bed.restart().await;
    assert_eq!(bed.machines(), 2, "template and root");
    let again = bed.service.fork(&bed.me, "root", request(), key(), problem_of).await.unwrap();
    assert_ne!(again.children[0].sandbox, forked.children[0].sandbox);
    let bed = bed.restart().await;
    assert_eq!(bed.state("kid"), State::Running, "an answered one stays");
    let answer = bed.service.fork(&bed.me, "root", request(), key(), problem_of).await.unwrap();
    assert_eq!(answer, again);
}

#[tokio::test]
async fn a_checkpoint_is_forked() {
    let bed = Bed::new().await;
    bed.create("root").await;
    bed.write("root", "then").await;
    bed.service.checkpoint(&bed.me, "root", Some("kept".to_owned())).await.unwrap();
    bed.write("root", "now").await;
    let fork = async |name: &str, checkpoint: &str| {
        let (names, checkpoint) = (Some(vec![name.to_owned()]), Some(checkpoint.to_owned()));
        let request = ForkRequest { names, checkpoint, ..ForkRequest::default() };
        bed.service.fork(&bed.me, "root", request, None, problem_of).await
    };
    fork("kid", "kept").await.unwrap();
    assert_eq!((bed.read("kid").await, bed.read("root").await), ("then".into(), "now".into()));
    assert!(matches!(fork("other", "nothing").await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_node_without_sandboxes_leaves_nothing_behind() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.service.shut_down(Duration::from_secs(1)).await;
    assert_eq!(bed.machines(), 2, "what lives goes on, with its template");
    let bed = Bed::on(bed.engine, bed.network, bed.store, bed.data, bed.settings).await;
    bed.service.delete(&bed.me, "a").await.unwrap();
    bed.service.shut_down(Duration::from_secs(1)).await;
    assert_eq!(bed.machines(), 0);
    let bed = Bed::on(bed.engine, bed.network, bed.store, bed.data, bed.settings).await;
    bed.create("b").await;
    assert_eq!(bed.engine.counts(), (2, 2), "a new template was booted");
}

#[tokio::test]
async fn time_counts_anew_from_a_renewal() {
    let bed = Bed::new().await;
    let timeout_s = Some(100);
    let request = CreateSandbox { timeout_s, ..CreateSandbox::default() };
    // Ends that long after it was asked for, however long it took; a millisecond is lost between the clocks.
    let lasts = |sandbox: &Sandbox, asked_ms: u64, seconds: u64| {
        let (end, lasts) = (sandbox.ends_at_ms.unwrap(), seconds * 1000);
        let possible = asked_ms + lasts - 1..=crate::clock::now_ms() + lasts + 1;
        assert!(possible.contains(&end), "{end} is not in {possible:?}");
    };
    let asked = crate::clock::now_ms();
    let made = bed.service.create(&bed.me, request, None).await.unwrap().sandbox;
    lasts(&made, asked, 100);
    let renew = async |how| bed.service.renew(&bed.me, &made.id, how).await.unwrap();
    // More is kept, less is not.
    assert_eq!(renew(Renewal::AtLeast(50)).await.timeout_s, 100);
    let asked = crate::clock::now_ms();
    lasts(&renew(Renewal::AtLeast(150)).await, asked, 150);
    let asked = crate::clock::now_ms();
    lasts(&renew(Renewal::Set(5)).await, asked, 5);
    // Children have a time of their own.
    let wish = ForkRequest {
        timeout_s: Some(60),
        on_timeout: Some(OnTimeout::Pause),
        ..ForkRequest::default()
    };
    let asked = crate::clock::now_ms();
    let child = bed.fork_as(&made.id, &["child"], wish).await.remove(0);
    lasts(&child, asked, 60);
    bed.service.enforce(uptime_ms() + 6_000).await;
    assert!(bed.service.get(&bed.me, &made.id).is_err());
    assert_eq!(bed.state("child"), State::Running);
    let forever = bed.service.renew(&bed.me, "child", Renewal::Set(0)).await.unwrap();
    assert_eq!(forever.ends_at_ms, None);
}
