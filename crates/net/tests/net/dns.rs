//! Names: who may ask for what, and what an answer is good for.

use std::io::{ErrorKind, Read, Write};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

use super::world::*;

#[test]
fn names_are_resolved_if_they_are_allowed() {
    if !can() {
        return;
    }
    let world = World::new();
    world.names.set("example.test", &[SERVER, SERVER_V6]);
    world.names.set("a.below.test", &[OTHER]);
    let guest = world.guest("a", port("a", &["example.test", "*.below.test"]));
    assert_eq!(
        guest.lookup("example.test.", RecordType::A),
        (ResponseCode::NoError, vec![SERVER.parse().unwrap()])
    );
    assert_eq!(
        guest.lookup("EXAMPLE.test.", RecordType::AAAA),
        (ResponseCode::NoError, vec![SERVER_V6.parse().unwrap()])
    );
    assert_eq!(guest.lookup("a.below.test.", RecordType::A).1.len(), 1);
    assert_eq!(guest.lookup("b.below.test.", RecordType::A).0, ResponseCode::NXDomain);
    assert_eq!(guest.lookup("below.test.", RecordType::A).0, ResponseCode::Refused);
    assert_eq!(guest.lookup("other.test.", RecordType::A).0, ResponseCode::Refused);
    assert_eq!(guest.lookup("example.test.", RecordType::HTTPS), (ResponseCode::NoError, vec![]));
    assert!(world.logged("a", "dns", "other.test", "not_allowed"));
}

#[test]
fn an_address_is_reached_by_its_name_only() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(OTHER, 7000);
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    assert_eq!(guest.connect(SERVER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
    assert!(guest.connect_by_name("example.test.", 7000).is_ok());
    assert_eq!(guest.connect(OTHER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
    // What one port looked up is nothing to another.
    let other = world.guest("b", port("b", &["example.test"]));
    assert_eq!(other.connect(SERVER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
}

#[test]
fn names_cannot_lead_inside() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(PRIVATE, 7000);
    for (name, address) in [
        ("private.test", PRIVATE),
        ("metadata.test", METADATA),
        ("loop.test", "127.0.0.1"),
        ("host.test", HOST),
        ("mapped.test", "::ffff:10.9.9.9"),
        ("translated.test", "64:ff9b::a09:909"),
    ] {
        world.names.set(name, &[address]);
    }
    world.names.set("mixed.test", &[SERVER, PRIVATE]);
    let guest = world.guest("a", port("a", &["*"]));
    for name in ["private.test.", "metadata.test.", "loop.test.", "host.test."] {
        assert_eq!(guest.lookup(name, RecordType::A), (ResponseCode::NoError, vec![]), "{name}");
    }
    for name in ["mapped.test.", "translated.test."] {
        assert_eq!(guest.lookup(name, RecordType::AAAA), (ResponseCode::NoError, vec![]), "{name}");
    }
    assert_eq!(
        guest.lookup("mixed.test.", RecordType::A).1,
        vec![SERVER.parse::<std::net::IpAddr>().unwrap()]
    );
    assert!(world.logged("a", "dns", "private.test", "private_address"));
    assert!(guest.connect(PRIVATE, 7000).is_err());
    // Unless it is named.
    let named = world.guest("b", port("b", &["private.test", "10.9.9.0/24"]));
    assert!(named.connect_by_name("private.test.", 7000).is_ok());
}

#[test]
fn rebinding_changes_nothing() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.names.set("turning.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["turning.test"]));
    assert!(guest.connect_by_name("turning.test.", 7000).is_ok());
    world.names.set("turning.test", &[PRIVATE]);
    world.echo_server(PRIVATE, 7000);
    let _ = guest.lookup("turning.test.", RecordType::A);
    assert!(guest.connect(PRIVATE, 7000).is_err());
}

#[test]
fn names_are_asked_over_tcp_too() {
    if !can() {
        return;
    }
    let world = World::new();
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    for gateway in ["10.114.0.1", "fd72:616d:6574::1"] {
        let mut stream = guest.connect(gateway, 53).unwrap();
        for _ in 0..3 {
            let question = question("example.test.", RecordType::A);
            let length = u16::try_from(question.len()).unwrap().to_be_bytes();
            stream.write_all(&[&length[..], &question].concat()).unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut answer = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(Message::from_vec(&answer).unwrap().answers().len(), 1);
        }
    }
    assert_eq!(guest.connect("10.114.0.1", 80).unwrap_err(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_outside_resolver_is_not_reached_by_name_rules() {
    if !can() {
        return;
    }
    let world = World::new();
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    let socket = guest.udp(SERVER, 53);
    socket.send(&question("secret.test.", RecordType::A)).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err());
}
