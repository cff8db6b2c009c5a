//! What is allowed is reached, what is not is refused at once: TCP, UDP, echo requests, both families.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use ramet_proto::api::network::{Allow, Policy, PortRange, Protocol};
use ramet_proto::net::Port;

use super::world::*;

#[test]
fn allowed_addresses_are_reached_over_tcp_and_udp() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(SERVER_V6, 7000);
    let guest = world.guest("a", port("a", &["203.0.113.0/24", "2001:db8::/32"]));
    for address in [SERVER, SERVER_V6] {
        assert_eq!(guest.echo(address, 7000, b"over tcp").unwrap(), b"over tcp");
        let socket = guest.udp(address, 7000);
        socket.send(b"over udp").unwrap();
        let mut room = [0; 64];
        let length = socket.recv(&mut room).unwrap();
        assert_eq!(&room[..length], b"over udp");
        assert!(guest.ping(address), "{address}");
    }
    let stats = world.stats("a");
    assert_eq!(stats.refused, 0, "{:?}", world.log("a"));
    assert!(stats.connections >= 6 && stats.sent_frames > 0 && stats.received_bytes > 0);
}

#[test]
fn nothing_is_reached_without_a_rule() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(SERVER_V6, 7000);
    let none = Port { policies: vec![], ..port("none", &[]) };
    for (name, port) in [("none", none), ("empty", port("empty", &[]))] {
        let guest = world.guest(name, port);
        for address in [SERVER, SERVER_V6] {
            assert_eq!(guest.connect(address, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
            let socket = guest.udp(address, 7000);
            socket.send(b"x").unwrap();
            assert!(socket.recv(&mut [0; 8]).is_err());
            assert!(!guest.ping(address));
        }
        assert!(world.logged(name, "tcp", "203.0.113.10:7000", "not_allowed"));
        assert!(world.logged(name, "udp", "[2001:db8::10]:7000", "not_allowed"));
        assert!(world.logged(name, "icmp", "203.0.113.10", "not_allowed"));
        assert!(world.stats(name).refused >= 6);
    }
}

#[test]
fn ports_and_protocols_are_kept_to() {
    if !can() {
        return;
    }
    let world = World::new();
    for number in [7000, 7001] {
        world.echo_server(SERVER, number);
    }
    let allow = Allow {
        to: "203.0.113.0/24".into(),
        ports: vec![PortRange { first: 7000, last: 7000 }],
        protocols: vec![Protocol::Tcp],
    };
    let guest =
        world.guest("a", Port { policies: vec![Policy { allow: vec![allow] }], ..port("a", &[]) });
    assert!(guest.echo(SERVER, 7000, b"x").is_ok());
    assert_eq!(guest.connect(SERVER, 7001).unwrap_err(), ErrorKind::ConnectionRefused);
    let socket = guest.udp(SERVER, 7000);
    socket.send(b"x").unwrap();
    assert!(socket.recv(&mut [0; 8]).is_err());
    assert!(!guest.ping(SERVER));
}

#[test]
fn all_policies_have_to_allow() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(OTHER, 7000);
    let both = Port { policies: vec![policy(&["*"]), policy(&[SERVER])], ..port("a", &[]) };
    let guest = world.guest("a", both);
    assert!(guest.echo(SERVER, 7000, b"x").is_ok());
    assert_eq!(guest.connect(OTHER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
}

#[test]
fn private_addresses_and_the_host_itself_have_to_be_named() {
    if !can() {
        return;
    }
    let world = World::with(&["--refuse", "203.0.113.11"]);
    for address in [PRIVATE, METADATA, OTHER] {
        world.echo_server(address, 7000);
    }
    let own = within(&world.host(), || std::net::TcpListener::bind(("0.0.0.0", 7000)).unwrap());
    let open = world.guest("open", port("open", &["*", "0.0.0.0/0", "::/0"]));
    for address in
        [PRIVATE, METADATA, OTHER, HOST, "127.0.0.1", "fe80::1", "::1", "10.114.0.1", "10.114.1.1"]
    {
        if address == "127.0.0.1" || address == "::1" {
            continue; // The guest's own.
        }
        assert!(open.connect(address, 7000).is_err(), "{address}");
    }
    assert!(world.logged("open", "tcp", "169.254.169.254:7000", "private_address"));
    assert!(world.logged("open", "tcp", "203.0.113.1:7000", "private_address"));
    let named = [PRIVATE, METADATA, OTHER, HOST];
    let guest = world.guest("named", port("named", &named));
    for address in [PRIVATE, METADATA, OTHER] {
        assert!(guest.echo(address, 7000, b"x").is_ok(), "{address}");
    }
    assert!(guest.connect(HOST, 7000).is_ok());
    drop(own);
}

#[test]
fn what_the_outside_says_reaches_the_guest() {
    if !can() {
        return;
    }
    let world = World::new();
    let guest = world.guest("a", port("a", &["*"]));
    assert_eq!(guest.connect(SERVER, 9).unwrap_err(), ErrorKind::ConnectionRefused);
    // The host's kernel finds nobody with that address after a few seconds.
    assert_eq!(guest.connect(SILENT, 9).unwrap_err(), ErrorKind::HostUnreachable);
    let socket = guest.udp(SERVER, 9);
    socket.send(b"x").unwrap();
    assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(guest.ping("10.114.0.1") && guest.ping("fd72:616d:6574::1"));
}

#[test]
fn each_way_is_closed_on_its_own() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut inside = guest.connect(SERVER, 7000).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    inside.write_all(b"question").unwrap();
    inside.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    outside.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    outside.write_all(b"answer").unwrap();
    drop(outside);
    text.clear();
    inside.read_to_string(&mut text).unwrap();
    assert_eq!(text, "answer");
    wait("the connection is gone", || world.stats("a").connections_now == 0);
    // And the other way round.
    let mut inside = guest.connect(SERVER, 7000).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    outside.write_all(b"greeting").unwrap();
    outside.shutdown(Shutdown::Write).unwrap();
    text.clear();
    inside.read_to_string(&mut text).unwrap();
    assert_eq!(text, "greeting");
    inside.write_all(b"thanks").unwrap();
    drop(inside);
    text.clear();
    outside.read_to_string(&mut text).unwrap();
    assert_eq!(text, "thanks");
    wait("the connection is gone", || world.stats("a").connections_now == 0);
}

#[test]
fn many_bytes_go_both_ways_at_once() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    world.echo_server(SERVER_V6, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    for address in [SERVER, SERVER_V6] {
        let mut stream = guest.connect(address, 7000).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let sent: Vec<u8> =
            (0..8_000_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        let expected = sent.clone();
        let reading = std::thread::spawn(move || {
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            back
        });
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(reading.join().unwrap() == expected);
    }
}

#[test]
fn a_reset_outside_is_a_reset_inside() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut inside = guest.connect(SERVER, 7000).unwrap();
    let (outside, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_linger(&outside, Some(std::time::Duration::ZERO)).unwrap();
    drop(outside);
    assert_eq!(inside.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let inside = guest.connect(SERVER, 7000).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    outside.set_read_timeout(Some(PATIENCE)).unwrap();
    rustix::net::sockopt::set_socket_linger(&inside, Some(std::time::Duration::ZERO)).unwrap();
    drop(inside);
    assert_eq!(outside.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}
