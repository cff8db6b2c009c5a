//! Fifty clients at once.

use std::thread;

use ramet_client::api::{ExecRequest, ForkRequest};

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
    let command = Some("cat /srv/base /srv/own; hostname; ls /srv | wc -l".to_owned());
    let result = own.exec(&ExecRequest { command, ..ExecRequest::default() });
    let result = result.unwrap_or_else(|error| node().fail(&error));
    assert_eq!(result.stdout, format!("shared{name}{name}\n2\n"));
    own.delete();
}
