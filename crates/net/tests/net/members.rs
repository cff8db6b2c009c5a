//! Networks: members see each other by name and address, and nobody else does.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use ramet_proto::net::{Between, Code, Member, Port, Request};

use super::world::*;

fn listen(guest: &Guest, at: &str) -> TcpListener {
    let at: SocketAddr = at.parse().unwrap();
    guest.within(move || TcpListener::bind(at).unwrap())
}

fn bind(guest: &Guest, at: &str) -> UdpSocket {
    let at: SocketAddr = at.parse().unwrap();
    let socket = guest.within(move || UdpSocket::bind(at).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn members_reach_each_other_by_name() {
    if !can() {
        return;
    }
    let world = World::new();
    let app = world.guest("app", member("app", "n", 1));
    let db = world.guest("db", member("db", "n", 2));
    for name in ["db.", "db.ramet.internal."] {
        let (code, addresses) = app.lookup(name, RecordType::A);
        assert_eq!((code, addresses), (ResponseCode::NoError, vec!["10.114.1.2".parse().unwrap()]));
        assert_eq!(
            app.lookup(name, RecordType::AAAA).1,
            vec!["fd72:616d:6574:1::2".parse::<std::net::IpAddr>().unwrap()]
        );
    }
    assert_eq!(app.lookup("web.ramet.internal.", RecordType::A).0, ResponseCode::NXDomain);
    assert_eq!(app.lookup("web.", RecordType::A).0, ResponseCode::Refused);
    for address in ["10.114.1.2", "fd72:616d:6574:1::2"] {
        let listener = listen(&db, &SocketAddr::new(address.parse().unwrap(), 5432).to_string());
        let mut client = app.connect(address, 5432).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        assert!(["10.114.1.1", "fd72:616d:6574:1::1"].contains(&peer.ip().to_string().as_str()));
        let sent = vec![7; 3_000_000];
        let writing = std::thread::spawn({
            let sent = sent.clone();
            move || client.write_all(&sent).unwrap()
        });
        let mut got = vec![0; sent.len()];
        server.read_exact(&mut got).unwrap();
        writing.join().unwrap();
        assert!(got == sent);
        assert!(app.ping(address));
    }
}

#[test]
fn nothing_crosses_networks() {
    if !can() {
        return;
    }
    let world = World::new();
    let one = world.guest("one", member("app", "one", 1));
    let two = world.guest("two", member("db", "two", 2));
    let alone = world.guest("alone", port("alone", &["*"]));
    let _listener = listen(&two, "0.0.0.0:5432");
    assert_eq!(one.lookup("db.ramet.internal.", RecordType::A).0, ResponseCode::NXDomain);
    assert!(one.connect("10.114.1.2", 5432).is_err());
    assert!(alone.connect("10.114.1.2", 5432).is_err());
    // The same place in both is fine, twice in one is not.
    let again = member("db", "one", 1);
    let (_, link) = link();
    let refused =
        world.ask(Request::Attach(Box::new(Port { port: "x".into(), ..again })), Some(&link));
    assert_eq!(refused.unwrap_err().0, Code::BadValue);
}

#[test]
fn broadcast_and_multicast_reach_all_members() {
    if !can() {
        return;
    }
    let world = World::new();
    let a = world.guest("a", member("a", "n", 1));
    let b = world.guest("b", member("b", "n", 2));
    let c = world.guest("c", member("c", "n", 3));
    let other = world.guest("o", member("o", "other", 4));
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let receivers: Vec<_> = [(&b, 2), (&c, 3), (&other, 4)]
        .map(|(guest, number)| {
            let socket = bind(guest, "0.0.0.0:9999");
            socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 114, 1, number)).unwrap();
            socket
        })
        .into();
    let sender = bind(&a, "10.114.1.1:0");
    sender.set_broadcast(true).unwrap();
    for to in ["10.114.1.255:9999", "239.1.2.3:9999"] {
        if to.starts_with("239") {
            ip(&format!("-n {} route add 239.0.0.0/8 dev tap0", a.namespace));
        }
        sender.send_to(b"all", to).unwrap();
        for receiver in &receivers[..2] {
            let mut room = [0; 8];
            let (length, from) = receiver.recv_from(&mut room).unwrap();
            assert_eq!(
                (&room[..length], from.ip().to_string().as_str()),
                (&b"all"[..], "10.114.1.1")
            );
        }
    }
    receivers[2].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(receivers[2].recv(&mut [0; 8]).is_err());
}

fn ruled(name: &str, number: u8, rules: &[(&str, &str, &[u16])]) -> Port {
    let rule = |(from, to, ports): &(&str, &str, &[u16])| Between {
        from: (*from).into(),
        to: (*to).into(),
        ports: ports.to_vec(),
    };
    let between = Some(rules.iter().map(rule).collect());
    let member = Member { network: "n".into(), name: name.into(), number, between };
    Port { member: Some(member), ..port(name, &[]) }
}

#[test]
fn rules_between_members_hold() {
    if !can() {
        return;
    }
    let world = World::new();
    let rules: &[(&str, &str, &[u16])] = &[("app", "db", &[5432, 53])];
    let app = world.guest("app", ruled("app", 1, rules));
    let db = world.guest("db", ruled("db", 2, rules));
    let good = listen(&db, "10.114.1.2:5432");
    let _closed = listen(&db, "10.114.1.2:22");
    let _back = listen(&app, "10.114.1.1:5432");
    let mut client = app.connect("10.114.1.2", 5432).unwrap();
    let (mut server, _) = good.accept().unwrap();
    client.write_all(b"q").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"a").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(app.connect("10.114.1.2", 22).unwrap_err(), ErrorKind::ConnectionRefused);
    assert_eq!(db.connect("10.114.1.1", 5432).unwrap_err(), ErrorKind::ConnectionRefused);
    assert!(world.logged("app", "tcp", "db:22", "not_between"));
    // Datagrams: answers pass, others do not.
    let (asks, answers) = (bind(&app, "10.114.1.1:4000"), bind(&db, "10.114.1.2:53"));
    answers.send_to(b"x", "10.114.1.1:4000").unwrap();
    // Each member's frames come in their order, not those of two: it has to be refused before it could be an answer.
    wait("it is refused", || world.logged("db", "udp", "app:4000", "not_between"));
    asks.send_to(b"q", "10.114.1.2:53").unwrap();
    let mut room = [0; 8];
    // What came of the first is an error of the socket, once.
    let from = loop {
        if let Ok((_, from)) = answers.recv_from(&mut room) {
            break from;
        }
    };
    answers.send_to(b"answer", from).unwrap();
    let length = asks.recv(&mut room).unwrap();
    assert_eq!(&room[..length], b"answer");
    assert!(app.ping("10.114.1.2") && !db.ping("10.114.1.1"));
}

#[test]
fn connections_between_members_outlive_their_ports() {
    if !can() {
        return;
    }
    let world = World::new();
    let rules: &[(&str, &str, &[u16])] = &[("app", "db", &[5432])];
    let app = world.guest("app", ruled("app", 1, rules));
    let db = world.guest("db", ruled("db", 2, rules));
    let listener = listen(&db, "10.114.1.2:5432");
    let mut client = app.connect("10.114.1.2", 5432).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    // As in a copy of the network: new ports, of the same members, with another network.
    for (guest, name, number) in [(&app, "app", 1), (&db, "db", 2)] {
        world.ask(Request::Detach { port: name.into() }, None).unwrap();
        let mut copy = ruled(name, number, rules);
        copy.member.as_mut().unwrap().network = "copy".into();
        world.attach(Port { port: format!("{name}-copy"), ..copy }, &guest.tap);
    }
    client.write_all(b"still").unwrap();
    let mut room = [0; 5];
    server.read_exact(&mut room).unwrap();
    server.write_all(b"there").unwrap();
    client.read_exact(&mut room).unwrap();
    assert_eq!(&room, b"there");
}

#[test]
fn a_member_that_does_not_read_disturbs_nobody() {
    if !can() {
        return;
    }
    let world = World::new();
    let a = world.guest("a", member("a", "n", 1));
    let b = world.guest("b", member("b", "n", 2));
    let deaf = world.raw(member("deaf", "n", 3));
    let flood = bind(&a, "10.114.1.1:0");
    for _ in 0..2000 {
        let _ = flood.send_to(&[0; 30_000], "10.114.1.3:1");
    }
    let listener = listen(&b, "10.114.1.2:5432");
    let mut client = a.connect("10.114.1.2", 5432).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    drop(deaf);
}
