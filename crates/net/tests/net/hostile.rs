//! Guests that mean no good: the policy holds, the service lives, others do not notice.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use ramet_proto::net::{GATEWAY_MAC, GUEST_MAC, GUEST_V4};

use super::world::*;

/// A frame as a link carries it.
fn frame(from: [u8; 6], kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
    [&[0; 12][..], &GATEWAY_MAC, &from, &kind, packet].concat()
}

fn ipv4(source: Ipv4Addr, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(source.octets());
    packet.extend(to.parse::<Ipv4Addr>().unwrap().octets());
    packet.extend(payload);
    packet
}

fn tcp(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    vec![a, b, c, d, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]
}

fn syn(from: u16, to: &str, port: u16) -> Vec<u8> {
    frame(GUEST_MAC, [8, 0], &ipv4(GUEST_V4, to, 6, &tcp(from, port, 2)))
}

fn send(link: &OwnedFd, message: &[u8]) {
    rustix::io::write(link, message).unwrap();
}

/// The next frame, if one comes soon.
fn receive(link: &OwnedFd, patience: Duration) -> Option<Vec<u8>> {
    let timeout = rustix::event::Timespec::try_from(patience).unwrap();
    let mut ready = [rustix::event::PollFd::new(link, rustix::event::PollFlags::IN)];
    if rustix::event::poll(&mut ready, Some(&timeout)).unwrap() == 0 {
        return None;
    }
    let mut room = vec![0; 70_000];
    let length = rustix::io::read(link, &mut room).unwrap();
    room.truncate(length);
    Some(room)
}

/// Flags of a TCP segment to the guest.
fn flags(message: &[u8]) -> u8 {
    message[12 + 14 + 20 + 13]
}

const RST: u8 = 4;

fn drain(link: &OwnedFd) {
    while receive(link, Duration::from_millis(50)).is_some() {}
}

#[test]
fn spoofed_frames_are_dropped_and_told() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7000);
    listener.set_nonblocking(true).unwrap();
    let link = world.raw(port("a", &["*"]));
    let other_mac = [0x52, 0x4d, 0x54, 0, 0, 9];
    send(&link, &frame(other_mac, [8, 0], &ipv4(GUEST_V4, SERVER, 6, &tcp(1, 7000, 2))));
    send(
        &link,
        &frame(GUEST_MAC, [8, 0], &ipv4(Ipv4Addr::new(10, 114, 0, 3), SERVER, 6, &tcp(1, 7000, 2))),
    );
    send(
        &link,
        &frame(GUEST_MAC, [8, 0], &ipv4(Ipv4Addr::new(10, 114, 1, 3), SERVER, 6, &tcp(1, 7000, 2))),
    );
    send(&link, &frame(GUEST_MAC, [8, 0], &ipv4(Ipv4Addr::LOCALHOST, SERVER, 6, &tcp(1, 7000, 2))));
    // ARP for somebody else's hardware address.
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(other_mac);
    arp.extend(GUEST_V4.octets());
    arp.extend([0; 6]);
    arp.extend([10, 114, 0, 1]);
    send(&link, &frame(GUEST_MAC, [8, 6], &arp));
    wait("all are dropped", || world.stats("a").dropped == 5);
    assert!(listener.accept().is_err());
    let log = world.log("a");
    assert_eq!((log.len(), log[0].reason.as_str(), log[0].count), (1, "spoofed", 5));
}

#[test]
fn fragments_and_malformed_frames_are_dropped() {
    if !can() {
        return;
    }
    let world = World::new();
    let link = world.raw(port("a", &["*"]));
    let mut fragment = ipv4(GUEST_V4, SERVER, 17, &[0; 16]);
    fragment[6] = 0x20;
    send(&link, &frame(GUEST_MAC, [8, 0], &fragment));
    fragment[6..8].copy_from_slice(&[0, 100]);
    send(&link, &frame(GUEST_MAC, [8, 0], &fragment));
    wait("fragments are dropped", || world.logged("a", "frame", "frames of the guest", "fragment"));
    for length in [1, 11, 12, 13, 25, 26, 30] {
        send(&link, &frame(GUEST_MAC, [8, 0], &ipv4(GUEST_V4, SERVER, 6, &tcp(1, 1, 2)))[..length]);
    }
    wait("the rest as well", || world.stats("a").dropped == 9);
    assert!(world.logged("a", "frame", "frames of the guest", "malformed"));
}

#[test]
fn segments_of_nothing_are_reset() {
    if !can() {
        return;
    }
    let world = World::new();
    let link = world.raw(port("a", &["*"]));
    for kind in [0x10, 0x18, 0x11, 0x12] {
        send(&link, &frame(GUEST_MAC, [8, 0], &ipv4(GUEST_V4, SERVER, 6, &tcp(999, 80, kind))));
        let answer = receive(&link, PATIENCE).unwrap();
        assert_eq!(flags(&answer) & RST, RST);
    }
    // But a reset is not answered.
    send(&link, &frame(GUEST_MAC, [8, 0], &ipv4(GUEST_V4, SERVER, 6, &tcp(999, 80, RST))));
    assert!(receive(&link, Duration::from_millis(300)).is_none());
}

#[test]
fn hops_that_run_out_are_told() {
    if !can() {
        return;
    }
    let world = World::new();
    let link = world.raw(port("a", &["*"]));
    let mut packet = ipv4(GUEST_V4, SERVER, 17, &[0, 9, 0, 9, 0, 8, 0, 0]);
    packet[8] = 1;
    send(&link, &frame(GUEST_MAC, [8, 0], &packet));
    let answer = receive(&link, PATIENCE).unwrap();
    let (from, icmp) = (&answer[26 + 12..26 + 16], &answer[26 + 20..]);
    assert_eq!((from, icmp[0], &icmp[8..]), (&[10, 114, 0, 1][..], 11, packet.as_slice()));
}

#[test]
fn ten_thousand_half_open_connections() {
    if !can() {
        return;
    }
    let mut world = World::new();
    world.echo_server(SERVER, 7000);
    let other = world.guest("other", port("other", &["*"]));
    let link = world.raw(port("a", &["*"]));
    let reader = link.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut count = 0u32;
        while receive(&reader, Duration::from_secs(2)).is_some() {
            count += 1;
        }
        count
    });
    // Some to a server that accepts, and is never answered; some to nobody.
    for number in 0..10_000u16 {
        let to = if number % 2 == 0 { SERVER } else { SILENT };
        send(&link, &syn(10_000 + number, to, 7000));
    }
    for _ in 0..20 {
        assert!(other.echo(SERVER, 7000, b"still here").is_ok());
    }
    wait("the rest is refused", || world.stats("a").refused >= 8000);
    let stats = world.stats("a");
    assert!(stats.connections_now <= 1024, "{stats:?}");
    assert!(reading.join().unwrap() > 8000);
    assert!(other.echo(SERVER, 7000, b"still here").is_ok());
    assert!(world.is_alive());
}

#[test]
fn floods_of_questions_for_addresses() {
    if !can() {
        return;
    }
    let mut world = World::new();
    world.echo_server(SERVER, 7000);
    let other = world.guest("other", port("other", &["*"]));
    let link = world.raw(port("a", &["*"]));
    rustix::io::ioctl_fionbio(&link, true).unwrap();
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(GUEST_MAC);
    arp.extend(GUEST_V4.octets());
    arp.extend([0; 6]);
    arp.extend([10, 114, 0, 1]);
    let arp = frame(GUEST_MAC, [8, 6], &arp);
    let mut solicit = vec![0x60, 0, 0, 0, 0, 24, 58, 255];
    solicit.extend(ramet_proto::net::GUEST_V6.octets());
    solicit.extend(ramet_proto::net::GATEWAY_V6.octets());
    solicit.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    solicit.extend(ramet_proto::net::GATEWAY_V6.octets());
    let solicit = frame(GUEST_MAC, [0x86, 0xdd], &solicit);
    // Nobody reads the answers: the service holds some, drops the rest, and goes on.
    let mut sent = 0;
    while sent < 100_000 {
        for message in [&arp, &solicit] {
            match rustix::io::write(&link, message) {
                Ok(_) => sent += 1,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
    for _ in 0..20 {
        assert!(other.echo(SERVER, 7000, b"still here").is_ok());
    }
    drain(&link);
    rustix::io::ioctl_fionbio(&link, false).unwrap();
    send(&link, &arp);
    assert!(receive(&link, PATIENCE).is_some());
    assert!(world.is_alive());
}

#[test]
fn a_slow_reader_holds_up_only_itself() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 7001);
    world.echo_server(SERVER, 7000);
    let guest = world.guest("a", port("a", &["*"]));
    let mut slow = guest.connect(SERVER, 7001).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    outside.set_nonblocking(true).unwrap();
    let mut sent = 0usize;
    let mut idle = 0;
    while idle < 20 {
        match outside.write(&[9; 65_536]) {
            Ok(length) => (sent, idle) = (sent + length, 0),
            Err(_) => {
                idle += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    // Buffers are full on all sides, and none is without bound.
    assert!(sent < 64 << 20, "{sent}");
    assert!(guest.echo(SERVER, 7000, b"another connection").is_ok());
    drop(outside);
    let mut got = 0;
    let mut room = vec![0; 1 << 20];
    loop {
        match slow.read(&mut room).unwrap() {
            0 => break,
            length => got += length,
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn noise_harms_nobody() {
    if !can() {
        return;
    }
    let mut world = World::new();
    world.names.set("example.test", &[SERVER]);
    let link = world.raw(member("a", "n", 1));
    let _peer = world.raw(member("b", "n", 2));
    let reader = link.try_clone().unwrap();
    std::thread::spawn(move || while receive(&reader, PATIENCE).is_some() {});
    let kinds = proptest::sample::select(vec![[8u8, 0], [0x86, 0xdd], [8, 6]]);
    let macs = proptest::sample::select(vec![
        GATEWAY_MAC,
        [0x52, 0x4d, 0x54, 1, 0, 2],
        [0xff; 6],
        [0x33, 0x33, 0, 0, 0, 1],
    ]);
    let bytes = proptest::collection::vec(proptest::num::u8::ANY, 0..200);
    let header = proptest::array::uniform12(proptest::num::u8::ANY);
    let mut runner = TestRunner::new(Config { cases: 5000, ..Config::default() });
    runner
        .run(
            &(kinds, macs, header, bytes, proptest::bool::ANY),
            |(kind, mac, header, mut bytes, good)| {
                if good && bytes.len() >= 40 {
                    let own = ramet_net::frame::member_addresses(1);
                    if kind == [8, 0] {
                        bytes[0] = 0x45;
                        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
                        bytes[2..4].copy_from_slice(&length);
                        bytes[6..8].fill(0);
                        bytes[9] = [6, 17, 1][usize::from(bytes[9]) % 3];
                        bytes[12..16].copy_from_slice(&own.0.octets());
                    } else {
                        bytes[0] = 0x60;
                        let length = u16::try_from(bytes.len() - 40).unwrap().to_be_bytes();
                        bytes[4..6].copy_from_slice(&length);
                        bytes[6] = [6, 17, 58][usize::from(bytes[6]) % 3];
                        bytes[8..24].copy_from_slice(&own.1.octets());
                    }
                }
                let message = [&header[..], &mac, &GUEST_MAC, &kind, &bytes].concat();
                send(&link, &message);
                Ok(())
            },
        )
        .unwrap();
    wait("all were seen", || world.stats("n-a").sent_frames >= 5000);
    assert!(world.is_alive());
    let guest = world.guest("c", port("c", &["example.test"]));
    assert_eq!(guest.lookup("example.test.", hickory_proto::rr::RecordType::A).1.len(), 1);
}
