//! Moments that are kept, and going back to them.

use ramet_client::api::{Code, RewindRequest, State};

use crate::bed::{fresh, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![a_sandbox_goes_back, it_goes_back_as_itself, checkpoints_have_names];

fn a_sandbox_goes_back() {
    let sandbox = fresh("rewound");
    sandbox.py("steps = ['one']");
    sandbox.put("/srv/state", "one");
    sandbox.checkpoint("one");
    sandbox.py("steps.append('two')");
    sandbox.put("/srv/state", "two");
    sandbox.checkpoint("two");
    sandbox.py("steps.clear()");
    sandbox.sh("rm /srv/state");
    let told = "print(steps, open('/srv/state').read())";
    sandbox.rewind("two");
    assert_eq!(sandbox.py(told), "['one', 'two'] two");
    sandbox.rewind("one");
    assert_eq!(sandbox.py(told), "['one'] one");
    // A checkpoint stays as it was, however often it is gone back to.
    sandbox.py("steps.append('elsewhere')");
    sandbox.rewind("one");
    assert_eq!(sandbox.py(told), "['one'] one");
    sandbox.pause();
    sandbox.rewind("two");
    assert_eq!(sandbox.shown().state, State::Running);
    assert_eq!(sandbox.py(told), "['one', 'two'] two");
}

fn it_goes_back_as_itself() {
    let sandbox = fresh("itself");
    let token = sandbox.get("/run/ramet/token");
    sandbox.checkpoint("start");
    let child = sandbox.fork(1).remove(0);
    let before = sandbox.shown();
    let swapped = sandbox.rewind("start").sandbox;
    assert_eq!((&swapped.id, &swapped.name), (&before.id, &before.name));
    assert_eq!(swapped.created_at_ms, before.created_at_ms);
    assert_eq!(sandbox.py("print(os.uname().nodename)"), "itself");
    assert_ne!(sandbox.get("/run/ramet/token"), token, "the token of the past is worth nothing");
    assert_eq!(child.py("print(1)"), "1", "children live on");
    let random = "print(os.urandom(8).hex())";
    let first = sandbox.py(random);
    sandbox.rewind("start");
    assert_ne!(sandbox.py(random), first, "chance is not repeated");
}

fn checkpoints_have_names() {
    let sandbox = fresh("kept");
    let (client, id) = (&sandbox.node.client, sandbox.id.as_str());
    let first = sandbox.checkpoint("first");
    sandbox.checkpoint("second");
    let taken = ramet_client::api::CreateCheckpoint { name: Some("first".to_owned()) };
    assert_eq!(refusal(wait(client.checkpoint(id, &taken))), Code::NameTaken);
    let names = || -> Vec<String> {
        wait(client.checkpoints(id)).unwrap().into_iter().map(|kept| kept.name).collect()
    };
    assert_eq!(names(), ["first", "second"]);
    let tree = wait(client.tree()).unwrap();
    let node = tree.nodes.iter().find(|node| node.id == first.id).unwrap();
    assert_eq!(node.parent.as_deref(), Some(id));
    wait(client.delete_checkpoint(id, &first.id[..8])).unwrap();
    assert_eq!(names(), ["second"]);
    let gone = RewindRequest { checkpoint: "first".to_owned() };
    assert_eq!(refusal(wait(client.rewind(id, &gone))), Code::NotFound);
    assert_eq!(refusal(wait(client.delete_checkpoint(id, "first"))), Code::NotFound);
}
