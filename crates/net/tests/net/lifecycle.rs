//! Ports come and go, nodes come and go, the service stays; and what it is told is checked.

use std::io::{ErrorKind, Read, Write};

use ramet_proto::api::network::{Allow, Limits, Policy};
use ramet_proto::net::{Answer, Code, EdgeRule, Port, Request};

use super::world::*;

#[test]
fn ports_outlive_the_node() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut stream = guest.connect(SERVER, 7000).unwrap();
    world.reconnect();
    assert_eq!(world.list().len(), 1);
    assert!(world.list()[0].linked);
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    assert!(guest.echo(SERVER, 7000, b"new").is_ok());
}

#[test]
fn a_link_that_closes_leaves_its_port() {
    if !can() {
        return;
    }
    let world = World::new();
    let link = world.raw(port("a", &["*"]));
    assert!(world.list()[0].linked);
    drop(link);
    wait("the link is seen closed", || !world.list()[0].linked);
    assert_eq!(world.stats("a").connections_now, 0);
    let guest = world.guest("a", port("a", &["*"]));
    assert!(world.list()[0].linked);
    assert!(guest.ping("10.114.0.1"));
}

#[test]
fn attach_again_resets_and_a_fork_begins_empty() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut inherited = guest.connect(SERVER, 7000).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    inherited.write_all(b"x").unwrap();
    outside.read_exact(&mut [0]).unwrap();
    // The same machine's packets now come over a new link, as those of a child do.
    world.attach(port("a", &["*"]), &guest.tap);
    outside.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(outside.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Either the write or the read after it tells.
    let written = inherited.write_all(b"y").err();
    let told = written.or_else(|| inherited.read(&mut [0]).err()).expect("the end");
    assert_eq!(told.kind(), ErrorKind::ConnectionReset);
    assert!(guest.connect(SERVER, 7000).is_ok());
}

#[test]
fn what_is_not_allowed_any_more_is_reset() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(OTHER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut stays = guest.connect(SERVER, 7000).unwrap();
    let mut goes = guest.connect(OTHER, 7000).unwrap();
    for stream in [&mut stays, &mut goes] {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    world.configure(port("a", &[SERVER]));
    assert_eq!(goes.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    stays.write_all(b"x").unwrap();
    stays.read_exact(&mut [0]).unwrap();
    assert_eq!(guest.connect(OTHER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
    world.configure(port("a", &[SERVER, OTHER]));
    assert!(guest.connect(OTHER, 7000).is_ok());
}

#[test]
fn detached_is_gone() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let _stream = guest.connect(SERVER, 7000).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    world.ask(Request::Detach { port: "a".into() }, None).unwrap();
    assert!(world.list().is_empty());
    outside.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(outside.read(&mut [0]), Ok(0) | Err(_)));
    for request in [
        Request::Detach { port: "a".into() },
        Request::Stats { port: "a".into() },
        Request::Log { port: "a".into(), after: 0, limit: 1 },
        Request::Configure(Box::new(port("a", &[]))),
    ] {
        assert_eq!(world.ask(request, None).unwrap_err().0, Code::NotFound);
    }
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    if !can() {
        return;
    }
    let world = World::new();
    let (_own, link) = link();
    let bad = |port: Port| world.ask(Request::Attach(Box::new(port)), Some(&link)).unwrap_err();
    let policy = |to: &str| {
        vec![Policy { allow: vec![Allow { to: to.into(), ports: vec![], protocols: vec![] }] }]
    };
    let edge = EdgeRule { host: "a.test".into(), header: "x".into(), value: "v".into() };
    for wrong in [
        Port { port: "a b".into(), ..port("a", &[]) },
        Port { policies: policy("exa mple"), ..port("a", &[]) },
        Port { policies: policy("10.0.0.1/8"), ..port("a", &[]) },
        Port { limits: Limits { connections: 1_000_000, ..Limits::default() }, ..port("a", &[]) },
        Port { edge: vec![edge], ..port("a", &[]) },
        member("a.b", "n", 1),
        member("a", "n", 0),
        member("a", "n", 251),
    ] {
        let (code, message) = bad(wrong);
        assert_eq!(code, Code::BadValue, "{message}");
        assert!(!message.is_empty());
    }
    let without = world.ask(Request::Attach(Box::new(port("a", &[]))), None);
    assert_eq!(without.unwrap_err().0, Code::BadDescriptors);
    let with = world.ask(Request::List {}, Some(&link));
    assert_eq!(with.unwrap_err().0, Code::BadDescriptors);
    for noise in [&b"{}"[..], b"nonsense", b"{\"id\":1,\"request\":{\"list\":{\"x\":1}}}"] {
        assert!(matches!(world.send_raw(noise), Answer::Failed { code: Code::BadMessage, .. }));
    }
    assert!(world.list().is_empty());
}

#[test]
fn nobody_else_can_connect_and_privileges_are_gone() {
    if !can() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!((field("NoNewPrivs:"), field("CapEff:")), ("1".into(), "0000000000000000".into()));
    assert_eq!(field("CapPrm:"), "0000000000000000");
}

#[test]
fn the_service_stops_when_told() {
    if !can() {
        return;
    }
    let mut world = World::new();
    let _guest = world.guest("a", port("a", &["*"]));
    world.ask(Request::Stop {}, None).unwrap();
    wait("the service ends", || !world.is_alive());
}
