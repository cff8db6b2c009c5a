//! Fifty clients at once.

use std::thread;

use ramet_client::api::{ForkRequest, ListFilesQuery};

use crate::bed::{fresh, node, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![fifty_clients_at_once];

const CLIENTS: usize = 50;

fn fifty_clients_at_once() {
    let source = fresh("crowd");
    source.put("/srv/base", "shared");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let source = &source.id;
                scope.spawn(move || client(source, number))
            })
            .collect();
        for client in clients {
            client.join().expect("every client is served");
        }
    });
    assert_eq!(source.get("/srv/base"), "shared");
}

/// Forks, works in its own fork, looks that nobody else was there, and removes it.
fn client(source: &str, number: usize) {
    let name = format!("crowd-{number}");
    let request = ForkRequest { names: Some(vec![name.clone()]), ..ForkRequest::default() };
    let forked = wait(node().client.fork(source, &request)).unwrap_or_else(|e| node().fail(&e));
    let own = node().handles(forked).remove(0);
    own.put("/srv/own", &name);
    assert_eq!((own.get("/srv/base"), own.get("/srv/own")), ("shared".to_owned(), name.clone()));
    let list = ListFilesQuery { path: "/srv".to_owned(), depth: None };
    let list = wait(node().client.list_files(&own.id, &list)).unwrap_or_else(|e| node().fail(&e));
    assert_eq!(list.len(), 2, "nobody else was here: {list:?}");
    // Programs are slow in an emulated host, so not everybody runs one.
    if number.is_multiple_of(5) {
        assert_eq!(own.sh("hostname"), name);
    }
    own.delete();
}
