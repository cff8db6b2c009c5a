//! From create to delete: names, shapes, labels, lists, keys.

use ramet_client::api::{Code, CreateSandbox, ListQuery, OnTimeout, State, UpdateSandbox};

use crate::bed::{node, pairs, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    a_sandbox_is_created_used_and_deleted,
    what_cannot_be_is_refused,
    lists_have_labels_and_pages,
    a_key_makes_one_sandbox,
    a_sandbox_is_renamed,
];

fn a_sandbox_is_created_used_and_deleted() {
    let sandbox = node().create_as(CreateSandbox {
        name: Some("first".to_owned()),
        env: pairs(&[("COLOUR", "green")]),
        labels: pairs(&[("team", "a")]),
        ..CreateSandbox::default()
    });
    let shown = sandbox.shown();
    assert_eq!((shown.name.as_str(), shown.state), ("first", State::Running));
    assert_eq!((shown.vcpus, shown.memory_mib, shown.owner.as_str()), (1, 512, "admin"));
    assert_eq!((shown.parent, shown.failure), (None, None));
    assert_eq!(shown.labels, pairs(&[("team", "a")]));
    assert_eq!(sandbox.sh("hostname; echo $COLOUR; id -u"), "first\ngreen\n0");
    // By name, and by the beginning of its id.
    for key in ["first", &sandbox.id[..10], &sandbox.id[4..10]] {
        assert_eq!(wait(node().client.sandbox(key)).unwrap().id, sandbox.id);
    }
    let id = sandbox.id.clone();
    sandbox.delete();
    assert_eq!(refusal(wait(node().client.sandbox(&id))), Code::Gone);
    assert_eq!(refusal(wait(node().client.sandbox("first"))), Code::NotFound);
    assert_eq!(refusal(wait(node().client.delete(&id))), Code::Gone);
}

fn what_cannot_be_is_refused() {
    let refused = |request: CreateSandbox| refusal(wait(node().client.create(&request)));
    let named = |name: &str| CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() };
    let taken = node().create("taken");
    assert_eq!(refused(named("taken")), Code::NameTaken);
    assert_eq!(refused(named("No Good")), Code::BadRequest);
    assert_eq!(refused(named("sbx-1")), Code::BadRequest);
    let default = CreateSandbox::default;
    assert_eq!(refused(CreateSandbox { vcpus: Some(200), ..default() }), Code::BadRequest);
    assert_eq!(refused(CreateSandbox { memory_mib: Some(1), ..default() }), Code::BadRequest);
    let template = Some("no-such-template".to_owned());
    let code = refused(CreateSandbox { template, ..default() });
    assert!(matches!(code, Code::UnsupportedOption | Code::NotFound), "{code:?}");
    let id = taken.id.clone();
    taken.delete();
    let again = node().create("taken");
    assert_ne!(again.id, id);
}

fn lists_have_labels_and_pages() {
    let sandboxes: Vec<_> = (0..5)
        .map(|number: u32| {
            node().create_as(CreateSandbox {
                labels: pairs(&[("list", if number.is_multiple_of(2) { "even" } else { "odd" })]),
                ..CreateSandbox::default()
            })
        })
        .collect();
    let ids = |label: &str| -> Vec<String> {
        let query = ListQuery { label: Some(label.to_owned()), ..ListQuery::default() };
        let all = wait(node().client.list_all(&query)).unwrap();
        all.into_iter().map(|sandbox| sandbox.id).collect()
    };
    let expected: Vec<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    assert_eq!(ids("list"), expected, "oldest first");
    assert_eq!(ids("list=odd"), [expected[1], expected[3]]);
    assert_eq!(ids("list=none").len(), 0);
    let mut query =
        ListQuery { label: Some("list".to_owned()), limit: Some(2), ..ListQuery::default() };
    let mut pages = Vec::new();
    loop {
        let page = wait(node().client.list(&query)).unwrap();
        pages.push(page.sandboxes.len());
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, [2, 2, 1]);
    sandboxes[0].pause();
    let paused = ListQuery {
        label: Some("list".to_owned()),
        state: Some(State::Paused),
        ..ListQuery::default()
    };
    assert_eq!(wait(node().client.list(&paused)).unwrap().sandboxes.len(), 1);
}

fn a_key_makes_one_sandbox() {
    let request = CreateSandbox { labels: pairs(&[("keyed", "")]), ..CreateSandbox::default() };
    let create = || wait(node().client.create_with_key(&request, "a key")).unwrap();
    let (first, second) = (create(), create());
    let sandbox = node().handle(first.sandbox.id.clone());
    assert_eq!(first, second);
    let another = CreateSandbox { vcpus: Some(2), ..request.clone() };
    let mismatch = wait(node().client.create_with_key(&another, "a key"));
    assert_eq!(refusal(mismatch), Code::IdempotencyMismatch);
    let fork = ramet_client::api::ForkRequest { count: Some(2), ..Default::default() };
    let fork = || wait(node().client.fork_with_key(&sandbox.id, &fork, "another key")).unwrap();
    let (first, second) = (fork(), fork());
    assert_eq!(first, second);
    let query = ListQuery { label: Some("keyed".to_owned()), ..ListQuery::default() };
    assert_eq!(wait(node().client.list_all(&query)).unwrap().len(), 3);
    drop(node().handles(first));
}

fn a_sandbox_is_renamed() {
    let (sandbox, other) = (node().create("before"), node().create("other"));
    let update = |request: UpdateSandbox| wait(node().client.update(&sandbox.id, &request));
    let name = Some("after".to_owned());
    let changed = update(UpdateSandbox {
        name,
        labels: Some(pairs(&[("new", "1")])),
        timeout_s: Some(3600),
        on_timeout: Some(OnTimeout::Pause),
        ..UpdateSandbox::default()
    });
    let changed = changed.unwrap();
    assert_eq!(changed, wait(node().client.sandbox("after")).unwrap());
    assert_eq!((changed.timeout_s, changed.on_timeout), (3600, OnTimeout::Pause));
    assert_eq!(changed.labels, pairs(&[("new", "1")]));
    assert_eq!(refusal(wait(node().client.sandbox("before"))), Code::NotFound);
    let name = Some("other".to_owned());
    let taken = update(UpdateSandbox { name, ..UpdateSandbox::default() });
    assert_eq!(refusal(taken), Code::NameTaken);
    assert_eq!(other.shown().name, "other");
}
