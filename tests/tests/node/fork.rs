//! Forks: one instant, then lives of their own; everything of the state, nothing of the identity.

use std::collections::BTreeSet;

use ramet_client::api::{Code, CreateSandbox, ForkRequest, State};

use crate::bed::{Sandbox, fresh, node, pairs, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    children_share_an_instant_and_diverge,
    nothing_of_the_identity_is_inherited,
    secrets_are_inherited_only_if_that_is_said,
    a_paused_sandbox_is_forked,
    a_kept_moment_is_forked,
    forks_of_forks,
    children_outlive_their_parent,
    a_deterministic_fork_repeats,
    what_a_fork_cannot,
];

fn names(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn children_share_an_instant_and_diverge() {
    let source = fresh("source");
    source.put("/srv/file", "before");
    source.py(
        "numbers = list(range(1000)); turns = 0; moment = time.time(); handle = open('/srv/file')",
    );
    let children = source.fork(3);
    let told = "print(os.getpid(), moment, sum(numbers), turns, handle.read())";
    let expected = source.py(told);
    for child in &children {
        assert_eq!(child.py(told), expected, "the same process, variables and open file");
        assert_eq!(child.get("/srv/file"), "before");
    }
    // Nobody sees what another does from now on.
    for (number, child) in children.iter().enumerate() {
        child.py(&format!("turns += {}; numbers.append(turns)", number + 1));
        child.put("/srv/file", &format!("child {number}"));
    }
    source.put("/srv/file", "source");
    for (number, child) in children.iter().enumerate() {
        assert_eq!(child.py("print(turns, numbers[-1])"), format!("{0} {0}", number + 1));
        assert_eq!(child.get("/srv/file"), format!("child {number}"));
        assert_eq!(child.shown().parent.as_deref(), Some(source.id.as_str()));
    }
    assert_eq!(source.py("print(turns, numbers[-1])"), "0 999");
    assert_eq!(source.get("/srv/file"), "source");
}

fn identity(sandbox: &Sandbox<'_>) -> Vec<String> {
    let code = "print(os.uname().nodename)\n\
                for file in '/run/ramet/instance', '/etc/machine-id', '/run/ramet/token':\n    \
                    print(open(file).read().strip())\n\
                print(random.random()); print(os.urandom(8).hex())";
    sandbox.py(code).lines().map(str::to_owned).collect()
}

fn nothing_of_the_identity_is_inherited() {
    let source = fresh("mother");
    let request = ForkRequest { names: names(&["daughter", "son"]), ..ForkRequest::default() };
    let children = source.fork_as(request);
    let all: Vec<Vec<String>> = [&source, &children[0], &children[1]].map(identity).into();
    for (place, name) in ["mother", "daughter", "son"].iter().enumerate() {
        assert_eq!(all[place][0], *name);
    }
    assert_eq!(all[1][1], children[0].id);
    let distinct: BTreeSet<&String> = all.iter().flatten().collect();
    assert_eq!(distinct.len(), 18, "six properties of three machines: {all:?}");
}

const SECRETS: &str = "cat /run/ramet/secrets/* 2>/dev/null; echo \" $PLACE $KEY $MORE\"";

fn secrets_are_inherited_only_if_that_is_said() {
    let source = node().create_as(CreateSandbox {
        env: pairs(&[("PLACE", "home")]),
        secrets: pairs(&[("KEY", "k-1")]),
        ..CreateSandbox::default()
    });
    assert_eq!(source.sh(SECRETS), "k-1 home k-1");
    let shown = source.shown();
    assert_eq!(shown.secret_names, ["KEY"]);
    assert!(!format!("{shown:?}").contains("k-1"));
    let unsaid = wait(node().client.fork(&source.id, &ForkRequest::default()));
    assert_eq!(refusal(unsaid), Code::HoldsSecrets);
    let without = ForkRequest { inherit_secrets: Some(false), ..ForkRequest::default() };
    let plain = source.fork_as(without).remove(0);
    assert_eq!(plain.sh(SECRETS), " home", "the environment is inherited, secrets are not");
    assert_eq!(plain.shown().secret_names.len(), 0);
    let request = ForkRequest {
        env: pairs(&[("PLACE", "away")]),
        secrets: pairs(&[("MORE", "m-2")]),
        labels: Some(pairs(&[("kind", "trusted")])),
        inherit_secrets: Some(false),
        ..ForkRequest::default()
    };
    let trusted = source.fork_as(request).remove(0);
    assert_eq!(trusted.sh(SECRETS), "m-2 away  m-2");
    assert_eq!(trusted.shown().labels, pairs(&[("kind", "trusted")]));
    assert_eq!(source.sh(SECRETS), "k-1 home k-1");
    let with = ForkRequest { inherit_secrets: Some(true), ..ForkRequest::default() };
    assert_eq!(source.fork_as(with).remove(0).sh(SECRETS), "k-1 home k-1");
}

fn a_paused_sandbox_is_forked() {
    let source = fresh("still");
    source.py("value = 41");
    source.pause();
    let children = source.fork(2);
    for child in &children {
        assert_eq!(child.shown().state, State::Running);
        assert_eq!(child.py("value += 1; print(value)"), "42");
    }
    assert_eq!(source.shown().state, State::Paused, "it stays paused");
    source.resume();
    assert_eq!(source.py("print(value)"), "41");
}

fn a_kept_moment_is_forked() {
    let source = fresh("past");
    source.py("value = 'then'");
    source.checkpoint("then");
    source.py("value = 'now'");
    let request = ForkRequest {
        checkpoint: Some("then".to_owned()),
        count: Some(2),
        ..ForkRequest::default()
    };
    for child in source.fork_as(request.clone()) {
        assert_eq!(child.py("print(value)"), "then");
        assert_eq!(child.shown().parent.as_ref(), Some(&source.id));
    }
    assert_eq!(source.py("print(value)"), "now", "the source goes on as it did");
    let nothing = ForkRequest { checkpoint: Some("never".to_owned()), ..request };
    assert_eq!(refusal(wait(node().client.fork(&source.id, &nothing))), Code::NotFound);
}

fn forks_of_forks() {
    let mut line = vec![fresh("generation")];
    line[0].py("path = [0]");
    for generation in 1..=5 {
        let last = &line[generation - 1];
        let child = last.fork(1).remove(0);
        child.py(&format!("path.append({generation})"));
        line.push(child);
    }
    for (generation, sandbox) in line.iter().enumerate() {
        let path: Vec<usize> = (0..=generation).collect();
        assert_eq!(sandbox.py("print(path)"), format!("{path:?}"));
    }
    let tree = wait(node().client.tree()).unwrap();
    for pair in line.windows(2) {
        let child = tree.nodes.iter().find(|node| node.id == pair[1].id).unwrap();
        assert_eq!(child.parent.as_ref(), Some(&pair[0].id));
    }
}

fn children_outlive_their_parent() {
    let source = fresh("parent");
    source.py("value = 'inherited'");
    source.put("/srv/file", "inherited");
    let child = source.fork(1).remove(0);
    let parent = source.id.clone();
    source.delete();
    assert_eq!(child.py("print(value, open('/srv/file').read())"), "inherited inherited");
    let grandchild = child.fork(1).remove(0);
    assert_eq!(grandchild.py("print(value)"), "inherited");
    let tree = wait(node().client.tree()).unwrap();
    let gone = tree.nodes.iter().find(|node| node.id == parent).unwrap();
    assert_eq!(gone.state, Some(State::Gone), "it is still there to explain its child");
}

fn a_deterministic_fork_repeats() {
    let source = fresh("dice");
    source.py("random.seed(7)");
    let request = ForkRequest { count: Some(2), deterministic: true, ..ForkRequest::default() };
    let same = source.fork_as(request);
    let roll = "print(random.random())";
    assert_eq!(same[0].py(roll), same[1].py(roll));
}

fn what_a_fork_cannot() {
    let source = fresh("asked");
    let refused = |request: ForkRequest| refusal(wait(node().client.fork(&source.id, &request)));
    let default = ForkRequest::default;
    assert_eq!(refused(ForkRequest { count: Some(0), ..default() }), Code::BadRequest);
    assert_eq!(refused(ForkRequest { count: Some(257), ..default() }), Code::BadRequest);
    let two = ForkRequest { count: Some(2), names: names(&["one"]), ..default() };
    assert_eq!(refused(two), Code::BadRequest);
    let twice = ForkRequest { names: names(&["same", "same"]), ..default() };
    assert_eq!(refused(twice), Code::NameTaken);
    let taken = ForkRequest { names: names(&["free", "asked"]), ..default() };
    assert_eq!(refused(taken), Code::NameTaken);
    assert_eq!(refusal(wait(node().client.sandbox("free"))), Code::NotFound, "all or none");
    assert_eq!(source.py("print(6 * 7)"), "42");
}
