//! Who may do what: tokens and owners.

use ramet_client::Client;
use ramet_client::api::{
    Code, CreateSandbox, ExecRequest, ForkRequest, ListQuery, PauseRequest, PromoteRequest,
};

use crate::bed::{fresh, node, patience, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![without_a_token_nothing_is_told, a_guest_is_no_client, owners_do_not_meet];

fn without_a_token_nothing_is_told() {
    let url = format!("http://{}", node().address());
    let stranger = Client::new(&url, "a-token-that-nobody-gave").unwrap();
    wait(stranger.health()).expect("health needs no token");
    assert_eq!(refusal(wait(stranger.node())), Code::Unauthorized);
    assert_eq!(refusal(wait(stranger.list(&ListQuery::default()))), Code::Unauthorized);
    assert_eq!(refusal(wait(stranger.create(&CreateSandbox::default()))), Code::Unauthorized);
    let events = wait(stranger.events(&Default::default()));
    assert_eq!(refusal(events.map(drop)), Code::Unauthorized);
    let stream = wait(stranger.exec_stream("seed", Default::default()));
    assert_eq!(refusal(stream.map(drop)), Code::Unauthorized);
    let answer = node().raw(b"GET /v1/sandboxes HTTP/1.0\r\n\r\n", patience());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.0 401"), "{answer}");
    assert!(answer.to_lowercase().contains("www-authenticate: bearer"), "{answer}");
}

fn a_guest_is_no_client() {
    let sandbox = fresh("guest");
    let token = sandbox.get("/run/ramet/token");
    let guest = Client::new(&format!("http://{}", node().address()), &token).unwrap();
    assert_eq!(refusal(wait(guest.node())), Code::Unauthorized);
}

fn owners_do_not_meet() {
    let (mine, other) = (fresh("mine"), &node().other);
    let theirs = wait(
        other.create(&CreateSandbox { name: Some("mine".to_owned()), ..CreateSandbox::default() }),
    );
    let theirs = theirs.expect("names are each owner's own").sandbox;
    assert_eq!(theirs.owner, "other");
    let exec = ExecRequest { command: Some("true".to_owned()), ..ExecRequest::default() };
    for key in [mine.id.as_str(), &mine.id[..12]] {
        assert_eq!(refusal(wait(other.sandbox(key))), Code::NotFound);
        assert_eq!(refusal(wait(other.exec(key, &exec))), Code::NotFound);
        assert_eq!(refusal(wait(other.fork(key, &ForkRequest::default()))), Code::NotFound);
        assert_eq!(refusal(wait(other.pause(key, &PauseRequest::default()))), Code::NotFound);
        assert_eq!(refusal(wait(other.logs(key))), Code::NotFound);
        assert_eq!(refusal(wait(other.delete(key))), Code::NotFound);
        let promote = PromoteRequest { winner: key.to_owned(), inherit_secrets: None };
        assert_eq!(refusal(wait(other.promote(&theirs.id, &promote))), Code::NotFound);
    }
    let all = wait(other.list_all(&ListQuery::default())).unwrap();
    assert!(all.iter().all(|sandbox| sandbox.owner == "other"), "{all:?}");
    let tree = wait(other.tree()).unwrap();
    assert!(tree.nodes.iter().all(|node| node.id != mine.id));
    assert_eq!(refusal(wait(node().client.sandbox(&theirs.id))), Code::NotFound);
    wait(other.delete("mine")).unwrap();
    assert_eq!(mine.py("print(1)"), "1", "it was the other's own");
}
