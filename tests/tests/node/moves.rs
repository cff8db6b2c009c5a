//! Commits and templates on their way between two nodes.

use std::path::Path;

use ramet_client::api::{Code, Commit, CreateCommit, PullRequest};
use ramet_store::SigningKey;
use ramet_store::testing::OciServer;

use crate::bed::{Node, Sandbox, directory, ramet, ran, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![a_commit_goes_on_on_another_node];

fn commit(sandbox: &Sandbox<'_>) -> Commit {
    let request = CreateCommit { wait: true, ..CreateCommit::default() };
    wait(sandbox.node.client.commit(&sandbox.id, &request)).expect("a commit")
}

/// What a line for the shell prints in a sandbox made of a commit.
fn said_there(there: &Node, commit: &str, line: &str) -> String {
    let made = there.ramet(&["--json", "checkout", commit]).json();
    there.handle(made["sandbox"]["id"].as_str().expect("an id")).sh(line)
}

fn place(path: &Path, name: &str) -> String {
    format!("file://{}#{name}", path.display())
}

fn number(moved: &serde_json::Value, field: &str) -> u64 {
    moved["progress"][field].as_u64().unwrap_or_else(|| panic!("{moved}"))
}

/// What is in memory and on disk, and a process that goes on.
const DIGEST: &str = "cat /dev/shm/blob /root/file | sha256sum; pidof sleep";

fn a_commit_goes_on_on_another_node() {
    let (here, there) = (Node::small("here", &[]), Node::small("there", &[]));
    let sandbox = here.create("mover");
    sandbox.sh("sleep 100000 >/dev/null 2>&1 & head -c 8000000 /dev/urandom > /dev/shm/blob");
    sandbox.sh("head -c 3000000 /dev/urandom > /root/file; sync");
    let first = (commit(&sandbox), sandbox.sh(DIGEST));

    let remote = place(&directory("remote"), "v1");
    here.ramet(&["push", &first.0.id, &remote]).ok();
    there.ramet(&["pull", &remote, "--as", "theirs"]).ok();
    assert_eq!(said_there(&there, "theirs", DIGEST), first.1, "through a directory");

    let registry = OciServer::start().expect("a registry");
    let artifact = |tag: &str| format!("oci://{}/team/box:{tag}", registry.address());
    let pushed = here.ramet(&["--json", "push", &first.0.id, &artifact("v1")]).json();
    assert_eq!(number(&pushed, "moved_chunks"), number(&pushed, "chunks"));
    let all = number(&pushed, "moved_bytes");
    sandbox.sh("dd if=/dev/urandom of=/dev/shm/blob bs=1000000 count=1 conv=notrunc");
    let second = (commit(&sandbox), sandbox.sh(DIGEST));
    let pushed = here.ramet(&["--json", "push", &second.0.id, &artifact("v2")]).json();
    assert!(number(&pushed, "moved_bytes") < all / 2, "only what changed travels: {pushed}");
    let pulled = there.ramet(&["--json", "pull", &artifact("v2")]).json();
    assert!(number(&pulled, "moved_bytes") < all / 2, "only what changed travels: {pulled}");
    assert_eq!(said_there(&there, &second.0.id, DIGEST), second.1, "through a registry");

    let file = directory("packs").join("third.pack");
    sandbox.sh("echo third > /dev/shm/word");
    let third = commit(&sandbox);
    here.ramet(&["pack", &third.id, "-o", file.to_str().unwrap()]).ok();
    there.ramet(&["unpack", file.to_str().unwrap(), "--as", "third"]).ok();
    assert_eq!(said_there(&there, "third", "cat /dev/shm/word"), "third", "through a file");

    sandbox.sh("echo fourth >> /dev/shm/word");
    let fourth = commit(&sandbox);
    let mut pull = ramet();
    pull.env("RAMET_URL", format!("http://{}", there.address())).env("RAMET_TOKEN", there.token());
    pull.env("RAMET_REMOTE_TOKEN", here.token());
    pull.args(["pull", &format!("http://{}/{}", here.address(), fourth.id)]);
    ran(pull, "").ok();
    let said = said_there(&there, &fourth.id, "cat /dev/shm/word");
    assert_eq!(said, "third\nfourth", "from node to node");
    strangers_are_refused(&sandbox, &fourth);
}

/// Nodes that sign, and that trust only what is signed.
fn strangers_are_refused(sandbox: &Sandbox<'_>, made: &Commit) {
    let home = directory("keys");
    let (secret, public) = SigningKey::generate().unwrap();
    let (secret_file, public_file) = (home.join("team.key"), home.join("team.pub"));
    std::fs::write(&secret_file, secret).unwrap();
    std::fs::write(&public_file, public).unwrap();
    let remote = directory("signed-remote");
    sandbox.node.ramet(&["push", &made.id, &place(&remote, "plain")]).ok();
    let signing = ["--sign-key", secret_file.to_str().unwrap()];
    let signing = Node::small("signing", &signing);
    signing.ramet(&["pull", &place(&remote, "plain")]).ok();
    let trust = ["--trust", public_file.to_str().unwrap()];
    let doubting = Node::small("doubting", &trust);
    let request = PullRequest { remote: place(&remote, "plain"), name: None, disk: false };
    let refused = wait(async { doubting.client.pull(&request).await?.end().await });
    assert_eq!(refusal(refused), Code::Untrusted);
    assert_eq!(refusal(wait(doubting.client.get_commit(&made.id))), Code::NotFound);
    signing.ramet(&["push", &made.id, &place(&remote, "signed")]).ok();
    doubting.ramet(&["pull", &place(&remote, "signed")]).ok();
    assert_eq!(wait(doubting.client.get_commit(&made.id)).unwrap().id, made.id);
}
