//! What sandboxes reach: nothing without permission, in the source and not in the child after a fork, and again when the service was
//! killed. What is outside is a server of the story on an address of this very host, which only a rule that names it reaches.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::ifaddrs::getifaddrs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_client::api::network::{CreateLink, NetworkLogQuery, NetworkRequest, PortWaitQuery};
use ramet_client::api::{CreateSandbox, ForkRequest};

use crate::bed::{self, Node, Sandbox, eventually, node, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    nothing_is_reached_without_permission,
    a_link_leads_inside,
    connections_live_on_in_the_source_only,
];

/// Says `hello`, then what it hears, to everybody.
struct Outside {
    address: IpAddr,
    port: u16,
    /// Connections so far.
    count: Arc<AtomicUsize>,
}

impl Outside {
    fn new() -> Self {
        let address = own_address();
        let listener = TcpListener::bind((address, 0)).expect("a server");
        let port = listener.local_addr().expect("its port").port();
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        // Ends with the program.
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                seen.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    let mut said = stream.write_all(b"hello\n");
                    while let (Ok(()), Ok(count @ 1..)) = (&said, stream.read(&mut bytes)) {
                        said = stream.write_all(&bytes[..count]);
                    }
                });
            }
        });
        Self { address, port, count }
    }

    fn rule(&self) -> NetworkRequest {
        let rule = format!("{}:{}/tcp", self.address, self.port);
        NetworkRequest { allow: vec![rule.parse().expect("a rule")], ..NetworkRequest::default() }
    }

    /// What a sandbox hears there.
    fn asked_by(&self, sandbox: &Sandbox<'_>) -> Result<String, String> {
        let Self { address, port, .. } = self;
        let line = format!(
            "python3 -c \"import socket; print(socket.create_connection(('{address}', {port}), 20).recv(99).decode().strip())\""
        );
        let ran = sandbox.run(&line);
        if ran.exit_code == Some(0) { Ok(ran.stdout.trim().to_owned()) } else { Err(ran.stderr) }
    }
}

/// An address of this host that is not its loopback.
fn own_address() -> IpAddr {
    let mut all = getifaddrs().expect("addresses");
    let address = all.find_map(|one| {
        let address = one.address?.as_sockaddr_in()?.ip();
        (!address.is_loopback()).then_some(IpAddr::V4(address))
    });
    address.expect("an address of this host")
}

fn create<'n>(node: &'n Node, name: &str, network: Option<NetworkRequest>) -> Sandbox<'n> {
    let name = Some(name.to_owned());
    node.create_as(CreateSandbox { name, network, ..CreateSandbox::default() })
}

fn refused(result: Result<String, String>) {
    let error = result.expect_err("it is not reached");
    assert!(error.contains("ConnectionRefusedError"), "at once, and not after a time: {error}");
}

fn nothing_is_reached_without_permission() {
    let client = &node().client;
    let shown = wait(client.node()).unwrap().network;
    assert!(shown.up, "{shown:?}");
    let outside = Outside::new();
    let closed = create(node(), "closed", None);
    refused(outside.asked_by(&closed));
    assert_eq!(outside.count.load(Ordering::Relaxed), 0);
    let log = wait(client.network_log(&closed.id, &NetworkLogQuery::default())).unwrap();
    let to = format!("{}:{}", outside.address, outside.port);
    assert!(log.iter().any(|entry| entry.to == to), "{log:?}");
    assert!(wait(client.network(&closed.id)).unwrap().stats.unwrap().refused > 0);
    // Permission is given and taken while it runs.
    wait(client.set_network(&closed.id, &outside.rule())).unwrap();
    assert_eq!(outside.asked_by(&closed).as_deref(), Ok("hello"));
    // A fork has it, too, and can give it up.
    let child = closed.fork(1).remove(0);
    assert_eq!(outside.asked_by(&child).as_deref(), Ok("hello"));
    let nothing = Some(NetworkRequest { egress: Some("none".to_owned()), ..Default::default() });
    let narrow =
        closed.fork_as(ForkRequest { network: nothing, ..ForkRequest::default() }).remove(0);
    refused(outside.asked_by(&narrow));
    wait(client.set_network(&narrow.id, &outside.rule())).unwrap();
    assert_eq!(outside.asked_by(&narrow).as_deref(), Ok("hello"), "what it gave up itself");
    closed.pause();
    closed.resume();
    assert_eq!(outside.asked_by(&closed).as_deref(), Ok("hello"), "after a pause");
    let none = node().ramet(&["net", "set", "closed", "--egress", "none"]).ok();
    assert!(none.contains("nothing"), "{none}");
    refused(outside.asked_by(&closed));
    assert!(node().ramet(&["net", "log", "closed"]).ok().contains(&to));
}

fn a_link_leads_inside() {
    let client = &node().client;
    let sandbox = bed::fresh("linked");
    let query = |timeout_s, path: Option<&str>| PortWaitQuery {
        timeout_s: Some(timeout_s),
        path: path.map(str::to_owned),
    };
    assert!(wait(client.wait_port(&sandbox.id, 8080, &query(0, None))).is_err());
    sandbox.put("/srv/www/index.html", "inside");
    sandbox.sh("nohup python3 -m http.server --directory /srv/www 8080 >/dev/null 2>&1 &");
    // A client waits for an answer no longer than a minute; a busy host may take longer to start the server.
    eventually("it answers", || {
        let ready = wait(client.wait_port(&sandbox.id, 8080, &query(20, Some("/"))));
        ready.is_ok_and(|ready| ready.status == Some(200))
    });
    let request = CreateLink { port: 8080, ..CreateLink::default() };
    let link = wait(client.create_link(&sandbox.id, &request)).unwrap();
    let path = link.path.clone().expect("its address");
    let get = format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
    let ask = || String::from_utf8(node().raw(get.as_bytes(), bed::patience())).unwrap();
    assert!(ask().ends_with("inside"));
    wait(client.delete_link(&sandbox.id, &link.id)).unwrap();
    assert!(ask().starts_with("HTTP/1.1 404"));
}

/// Holds one connection, says something on it again and again, and notes how that goes.
const HOLDER: &str = r#"
import socket, sys, time
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
stream.recv(6)
count = 0
while True:
    try:
        stream.sendall(b'x')
        if not stream.recv(1): raise OSError('closed')
        count += 1
        note = f'fine {count}'
    except OSError as error:
        note = f'broken {error}'
    open('/tmp/note.new', 'w').write(note)
    __import__('os').rename('/tmp/note.new', '/tmp/note')
    if note.startswith('broken'): break
    time.sleep(0.05)
"#;

fn note(sandbox: &Sandbox<'_>) -> String {
    sandbox.sh("cat /tmp/note")
}

/// It gets further.
fn goes_on(sandbox: &Sandbox<'_>, when: &str) {
    let before = note(sandbox);
    assert!(before.starts_with("fine"), "{when}: {before}");
    eventually(when, || {
        let now = note(sandbox);
        assert!(now.starts_with("fine"), "{when}: {now}");
        now != before
    });
}

fn connections_live_on_in_the_source_only() {
    let node = Node::new("network", &[]);
    let outside = Outside::new();
    let source = create(&node, "source", Some(outside.rule()));
    source.put("/srv/holder.py", HOLDER);
    let (address, port) = (outside.address, outside.port);
    source.sh(&format!("nohup python3 /srv/holder.py {address} {port} >/dev/null 2>&1 &"));
    eventually("it is connected", || source.run("cat /tmp/note").exit_code == Some(0));
    goes_on(&source, "before the fork");
    let child = source.fork(1).remove(0);
    eventually("the child's is reset", || note(&child).starts_with("broken"));
    goes_on(&source, "after the fork");
    assert_eq!(outside.asked_by(&child).as_deref(), Ok("hello"), "a new one is made");
    // A node that is killed leaves it alone.
    node.kill();
    node.start();
    node.await_ready();
    eventually("the node knows", || {
        wait(node.client.network(&source.id)).is_ok_and(|it| it.connected)
    });
    goes_on(&source, "after a restart of the node");
    // A service that is killed takes connections along, and comes back.
    let service = bed::network_of(node.home()).expect("the service");
    kill(Pid::from_raw(service.cast_signed()), Signal::SIGKILL).expect("a signal");
    eventually("connections end with the service", || note(&source).starts_with("broken"));
    eventually("it is started again", || outside.asked_by(&source).is_ok());
    assert_ne!(bed::network_of(node.home()), Some(service));
    assert_eq!(outside.asked_by(&child).as_deref(), Ok("hello"));
}
