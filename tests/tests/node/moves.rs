//! Commits and templates on their way between two nodes.

use std::path::Path;

use ramet_client::api::{Code, Commit, CreateCommit, PullRequest};
use ramet_store::SigningKey;
use ramet_store::testing::OciServer;

use crate::bed::{Node, Sandbox, directory, fresh, node, ramet, ran, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![a_commit_goes_on_on_another_node, strangers_are_refused];

fn commit(sandbox: &Sandbox<'_>) -> Commit {
    let request = CreateCommit { wait: true, ..CreateCommit::default() };
    wait(sandbox.node.client.commit(&sandbox.id, &request)).expect("a commit")
}

/// What the session of a sandbox made of a commit says.
fn said_there(there: &Node, commit: &str, code: &str) -> String {
    let made = there.ramet(&["--json", "checkout", commit]).json();
    let sandbox = there.handle(made["sandbox"]["id"].as_str().expect("an id"));
    sandbox.py(code)
}

fn place(path: &Path, name: &str) -> String {
    format!("file://{}#{name}", path.display())
}

fn number(moved: &serde_json::Value, field: &str) -> u64 {
    moved["progress"][field].as_u64().unwrap_or_else(|| panic!("{moved}"))
}

fn a_commit_goes_on_on_another_node() {
    let (here, there) = (node(), Node::unready("there", &directory("there"), &[]));
    let sandbox = fresh("mover");
    sandbox.py("import hashlib\nblob = os.urandom(8 << 20)\ndef digest(): return hashlib.sha256(blob).hexdigest()");
    sandbox.sh("head -c 3000000 /dev/urandom > /root/file; sync");
    let digest = "print(digest(), hashlib.sha256(open('/root/file', 'rb').read()).hexdigest())";
    let first = (commit(&sandbox), sandbox.py(digest));

    let remote = place(&directory("remote"), "v1");
    here.ramet(&["push", &first.0.id, &remote]).ok();
    there.ramet(&["pull", &remote, "--as", "theirs"]).ok();
    assert_eq!(said_there(&there, "theirs", digest), first.1, "through a directory");

    let registry = OciServer::start().expect("a registry");
    let artifact = |tag: &str| format!("oci://{}/team/box:{tag}", registry.address());
    let pushed = here.ramet(&["--json", "push", &first.0.id, &artifact("v1")]).json();
    assert_eq!(number(&pushed, "moved_chunks"), number(&pushed, "chunks"));
    sandbox.py("blob = os.urandom(1 << 20) + blob[1 << 20:]");
    let second = (commit(&sandbox), sandbox.py(digest));
    let pushed = here.ramet(&["--json", "push", &second.0.id, &artifact("v2")]).json();
    assert!(number(&pushed, "moved_bytes") < 24 << 20, "only what changed travels: {pushed}");
    let pulled = there.ramet(&["--json", "pull", &artifact("v2")]).json();
    assert!(number(&pulled, "moved_bytes") < 24 << 20, "only what changed travels: {pulled}");
    assert_eq!(said_there(&there, &second.0.id, digest), second.1, "through a registry");

    let file = directory("packs").join("third.pack");
    sandbox.py("third = 3");
    let third = commit(&sandbox);
    here.ramet(&["pack", &third.id, "-o", file.to_str().unwrap()]).ok();
    there.ramet(&["unpack", file.to_str().unwrap(), "--as", "third"]).ok();
    assert_eq!(said_there(&there, "third", "print(third)"), "3", "through a file");

    sandbox.py("fourth = 4");
    let fourth = commit(&sandbox);
    let mut pull = ramet();
    pull.env("RAMET_URL", format!("http://{}", there.address())).env("RAMET_TOKEN", there.token());
    pull.env("RAMET_REMOTE_TOKEN", here.token());
    pull.args(["pull", &format!("http://{}/{}", here.address(), fourth.id)]);
    ran(pull, "").ok();
    assert_eq!(said_there(&there, &fourth.id, "print(third + fourth)"), "7", "from node to node");
}

fn strangers_are_refused() {
    let home = directory("keys");
    let (secret, public) = SigningKey::generate().unwrap();
    let (secret_file, public_file) = (home.join("team.key"), home.join("team.pub"));
    std::fs::write(&secret_file, secret).unwrap();
    std::fs::write(&public_file, public).unwrap();
    let sandbox = fresh("signed");
    let made = commit(&sandbox);
    let remote = directory("signed-remote");
    node().ramet(&["push", &made.id, &place(&remote, "plain")]).ok();
    let signing = ["--sign-key", secret_file.to_str().unwrap()];
    let signing = Node::unready("signing", &directory("signing"), &signing);
    signing.ramet(&["pull", &place(&remote, "plain")]).ok();
    let trust = ["--trust", public_file.to_str().unwrap()];
    let doubting = Node::unready("doubting", &directory("doubting"), &trust);
    let request = PullRequest { remote: place(&remote, "plain"), name: None, disk: false };
    let refused = wait(async { doubting.client.pull(&request).await?.end().await });
    assert_eq!(refusal(refused), Code::Untrusted);
    assert_eq!(refusal(wait(doubting.client.get_commit(&made.id))), Code::NotFound);
    signing.ramet(&["push", &made.id, &place(&remote, "signed")]).ok();
    doubting.ramet(&["pull", &place(&remote, "signed")]).ok();
    assert_eq!(wait(doubting.client.get_commit(&made.id)).unwrap().id, made.id);
}
