//! Bounds: bytes, packets, connections.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use ramet_proto::api::network::Limits;
use ramet_proto::net::Port;

use super::world::*;

fn limited(limits: Limits) -> Port {
    Port { limits, ..port("a", &["*"]) }
}

#[test]
fn connections_at_a_time() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    let guest = world.guest("a", limited(Limits { connections: 3, ..Limits::default() }));
    let mut open: Vec<_> = (0..3).map(|_| guest.connect(SERVER, 7000).unwrap()).collect();
    assert_eq!(guest.connect(SERVER, 7000).unwrap_err(), ErrorKind::ConnectionRefused);
    assert!(world.logged("a", "tcp", "203.0.113.10:7000", "too_many_connections"));
    open.pop();
    wait("there is room again", || guest.connect(SERVER, 7000).is_ok());
}

#[test]
fn bytes_per_second() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    let rate = 1_000_000;
    let guest = world.guest("a", limited(Limits { bytes_per_s: rate, ..Limits::default() }));
    let mut stream = guest.connect(SERVER, 7000).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let begin = Instant::now();
    let writing = std::thread::spawn(move || {
        stream.write_all(&vec![1; 3_000_000]).unwrap();
        stream
    });
    let mut got = vec![0; 3_000_000];
    reader.read_exact(&mut got).unwrap();
    drop(writing.join().unwrap());
    // A second's worth goes at once; the rest takes two. Slower machines take longer, never shorter.
    assert!(begin.elapsed() > Duration::from_millis(1900), "{:?}", begin.elapsed());
}

#[test]
fn packets_per_second() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 7000);
    let guest = world.guest("a", limited(Limits { packets_per_s: 100, ..Limits::default() }));
    let socket = guest.udp(SERVER, 7000);
    // What the guest's own queue has no room for never gets here: more is sent until enough came.
    wait("packets are dropped", || {
        for _ in 0..500 {
            let _ = socket.send(b"x");
        }
        world.stats("a").dropped > 1000
    });
    assert!(world.logged("a", "frame", "frames of the guest", "too_many_packets"));
}
