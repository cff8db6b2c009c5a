//! The parent goes on as the winner.

use ramet_client::api::{Code, CreateCheckpoint, CreateSandbox, ForkRequest, PromoteRequest};

use crate::bed::{fresh, node, pairs, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![the_winner_goes_on_as_its_parent, a_grandchild_wins, only_descendants_win];

fn the_winner_goes_on_as_its_parent() {
    let sandbox = fresh("agent");
    let update = ramet_client::api::UpdateSandbox {
        labels: Some(pairs(&[("project", "x")])),
        ..Default::default()
    };
    wait(node().client.update(&sandbox.id, &update)).unwrap();
    sandbox.py("score = 0");
    let names = Some(vec!["try-1".to_owned(), "try-2".to_owned()]);
    let labels = Some(pairs(&[("attempt", "")]));
    let attempts = sandbox.fork_as(ForkRequest { names, labels, ..ForkRequest::default() });
    attempts[0].py("score = 10");
    attempts[1].py("score = 20");
    attempts[1].put("/srv/result", "the best");
    let before = sandbox.shown();
    let after = sandbox.promote(&attempts[1]).sandbox;
    assert_eq!((&after.id, &after.name, &after.labels), (&before.id, &before.name, &before.labels));
    assert_eq!(after.parent, before.parent);
    assert_eq!(sandbox.py("print(score, os.uname().nodename)"), "20 agent");
    assert_eq!(sandbox.get("/srv/result"), "the best");
    let asked = wait(node().client.sandbox(&attempts[1].id)).unwrap_err();
    let problem = asked.problem().unwrap();
    assert_eq!(problem.code, Code::Promoted);
    assert_eq!(problem.promoted_to.as_ref(), Some(&sandbox.id));
    // The loser stays until it is removed, and can still win.
    assert_eq!(attempts[0].py("print(score)"), "10");
    sandbox.promote(&attempts[0]);
    assert_eq!(sandbox.py("print(score)"), "10");
}

fn a_grandchild_wins() {
    let sandbox = fresh("grandparent");
    sandbox.checkpoint("own");
    let child = sandbox.fork(1).remove(0);
    let grandchild = child.fork(1).remove(0);
    let below = grandchild.fork(1).remove(0);
    grandchild.py("value = 'deep'");
    let request = CreateCheckpoint { name: Some("of-the-winner".to_owned()) };
    wait(node().client.checkpoint(&grandchild.id, &request)).unwrap();
    grandchild.pause();
    sandbox.promote(&grandchild);
    assert_eq!(sandbox.py("print(value)"), "deep", "a paused winner runs as its parent");
    assert_eq!(below.shown().parent.as_ref(), Some(&sandbox.id), "its children have a parent");
    assert_eq!(below.py("print(1)"), "1");
    assert_eq!(child.py("print(1)"), "1", "whoever is between them stays");
    let kept = wait(node().client.checkpoints(&sandbox.id)).unwrap();
    let kept: Vec<&str> = kept.iter().map(|kept| kept.name.as_str()).collect();
    assert_eq!(kept, ["own"], "the winner's checkpoints go, its own stay");
    sandbox.rewind("own");
    assert_eq!(sandbox.py("print('value' in globals())"), "False");
}

fn only_descendants_win() {
    let (sandbox, stranger) = (fresh("chosen"), node().create_as(CreateSandbox::default()));
    let child = sandbox.fork(1).remove(0);
    let promote = |id: &str, winner: &str| {
        wait(
            node()
                .client
                .promote(id, &PromoteRequest { winner: winner.to_owned(), inherit_secrets: None }),
        )
    };
    assert_eq!(refusal(promote(&sandbox.id, &stranger.id)), Code::NotADescendant);
    assert_eq!(refusal(promote(&child.id, &sandbox.id)), Code::NotADescendant);
    assert_eq!(refusal(promote(&sandbox.id, &sandbox.id)), Code::NotADescendant);
    assert_eq!(refusal(promote(&sandbox.id, "nobody")), Code::NotFound);
    assert_eq!(sandbox.py("print(1)"), "1");
}
