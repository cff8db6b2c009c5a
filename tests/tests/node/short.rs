//! Long ways in one short story each: what `cargo xtask test` asks of states that travel, and of code.
//!
//! `remote`, `moves`, `crash` and `tests/e2b` say more about each of these, and take longer.

use ramet_client::api::{CommitState, CreateCommit, State};
use ramet_store::testing::Server;

use crate::bed::{Node, Sandbox, directory, fresh, wait};
use crate::{Story, remote, stories, truth};

/// With the node that is shared.
pub const SHARED: &[Story] = stories![a_context_is_forked];
/// With nodes of their own.
pub const OWN: &[Story] = stories![a_state_goes_through_a_bucket_to_another_node];

fn code(sandbox: &Sandbox<'_>, code: &str) -> String {
    sandbox.node.ramet(&["code", &sandbox.id, "-c", code]).ok()
}

fn a_context_is_forked() {
    let source = fresh("coder");
    code(&source, "import random\nrandom.seed(1)\nx = [41]");
    let children = source.fork(2);
    code(&children[0], "x.append(1)");
    assert_eq!(code(&children[0], "print(sum(x))"), "42");
    assert_eq!(code(&children[1], "print(sum(x))"), "41");
    assert_eq!(code(&source, "print(sum(x))"), "41");
    let drawn =
        [&source, &children[0], &children[1]].map(|one| code(one, "print(random.random())"));
    assert_eq!(drawn[0], "0.13436424411240122", "the source's generator was not touched");
    assert!(drawn[1] != drawn[0] && drawn[2] != drawn[0] && drawn[1] != drawn[2], "{drawn:?}");
}

/// Of memory and disk, and a process that goes on.
const DIGEST: &str = "cat /dev/shm/blob /root/file | sha256sum; pidof sleep";

fn a_state_goes_through_a_bucket_to_another_node() {
    let server = Server::start().expect("an S3 server");
    let endpoint = format!("--s3-endpoint=http://{}", server.address());
    let here = Node::small("bucket", &["--store=s3://ramet/short", &endpoint]);
    let sandbox = here.create("traveller");
    sandbox.sh("sleep 100000 >/dev/null 2>&1 & head -c 8000000 /dev/urandom > /dev/shm/blob");
    sandbox.sh("head -c 2000000 /dev/urandom > /root/file; sync");
    let before = sandbox.sh(DIGEST);

    sandbox.pause();
    assert_eq!(truth::machine_of(&here, &sandbox.id), None, "a paused sandbox costs no memory");
    remote::chill(&here);
    assert!(!sandbox.shown().stored.expect("stored").warm);
    sandbox.resume();
    assert_eq!(sandbox.sh(DIGEST), before, "paused into the bucket, and back from there alone");

    here.restart();
    assert_eq!(sandbox.shown().state, State::Running, "its node was killed");
    assert_eq!(sandbox.sh(DIGEST), before);

    let request = CreateCommit { wait: true, ..CreateCommit::default() };
    let commit = wait(here.client.commit(&sandbox.id, &request)).expect("a commit");
    assert_eq!(commit.state, CommitState::Durable);
    sandbox.sh("rm /dev/shm/blob");
    let remote = format!("file://{}#v1", directory("way").display());
    here.ramet(&["push", &commit.id, &remote]).ok();
    let there = Node::small("elsewhere", &[]);
    there.ramet(&["pull", &remote, "--as", "theirs"]).ok();
    let made = there.ramet(&["--json", "checkout", "theirs"]).json();
    let id = made["sandbox"]["id"].as_str().expect("an id");
    assert_eq!(there.handle(id).sh(DIGEST), before, "pushed here, pulled there");
}
