//! What a connection says of itself is held against the name that allowed it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use hickory_proto::rr::RecordType;

use super::world::*;

fn request(stream: &mut TcpStream, host: &str) -> std::io::Result<String> {
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
    let mut room = [0; 512];
    let length = stream.read(&mut room)?;
    Ok(String::from_utf8_lossy(&room[..length]).into_owned())
}

/// The first record of a TLS client for the name, or for an address.
pub fn client_hello(name: &str) -> Vec<u8> {
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn http_hosts_have_to_fit() {
    if !can() {
        return;
    }
    let world = World::new();
    let seen = world.http_server(SERVER, 80);
    world.names.set("example.test", &[SERVER]);
    world.names.set("other.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test", "third.test"]));
    let mut good = guest.connect_by_name("example.test.", 80).unwrap();
    assert!(request(&mut good, "Example.test:80").unwrap().contains("hello"));
    for host in ["other.test", "third.test", SERVER, "evil.test"] {
        let mut bad = guest.connect(SERVER, 80).unwrap();
        assert_eq!(
            request(&mut bad, host).unwrap_err().kind(),
            ErrorKind::ConnectionReset,
            "{host}"
        );
    }
    assert!(world.logged("a", "http", "other.test", "name_mismatch"));
    let mut noise = guest.connect(SERVER, 80).unwrap();
    noise.write_all(b"\x00\x01\x02 what is this").unwrap();
    assert_eq!(noise.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(world.logged("a", "tcp", "203.0.113.10:80", "not_understood"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    // Who is allowed by address says what he wants.
    drop(seen);
    let free = world.guest("b", port("b", &[SERVER]));
    let mut stream = free.connect(SERVER, 80).unwrap();
    assert!(request(&mut stream, "evil.test").unwrap().contains("hello"));
}

#[test]
fn tls_names_have_to_fit() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 443);
    world.echo_server(SERVER, 8443);
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    guest.lookup("example.test.", RecordType::A);
    let hello = client_hello("example.test");
    for number in [443, 8443] {
        assert_eq!(guest.echo(SERVER, number, &hello).unwrap(), hello);
        for wrong in [client_hello("other.test"), client_hello("192.0.2.1")] {
            assert!(guest.echo(SERVER, number, &wrong).is_err());
        }
    }
    assert!(world.logged("a", "tls", "other.test", "name_mismatch"));
    assert!(world.logged("a", "tls", "203.0.113.10:443", "name_missing"));
    // In pieces, a byte at a time.
    let mut stream = guest.connect(SERVER, 443).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in &hello {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut back = vec![0; hello.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, hello);
    // Nothing but TLS on its port.
    assert!(guest.echo(SERVER, 443, b"SSH-2.0-x\r\n").is_err());
    assert_eq!(guest.echo(SERVER, 8443, b"SSH-2.0-x\r\n").unwrap(), b"SSH-2.0-x\r\n");
}

#[test]
fn a_server_may_speak_first() {
    if !can() {
        return;
    }
    let world = World::new();
    let listener = world.listener(SERVER, 2222);
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    let mut inside = guest.connect_by_name("example.test.", 2222).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    outside.write_all(b"SSH-2.0-server\r\n").unwrap();
    let mut room = [0; 16];
    inside.read_exact(&mut room).unwrap();
    inside.write_all(b"SSH-2.0-client\r\n").unwrap();
    outside.read_exact(&mut room).unwrap();
    assert_eq!(&room, b"SSH-2.0-client\r\n");
    // One that says nothing at all and hangs up is passed on as that.
    let silent = guest.connect(SERVER, 2222).unwrap();
    let (mut outside, _) = listener.accept().unwrap();
    drop(silent);
    assert_eq!(outside.read(&mut room).unwrap(), 0);
}

#[test]
fn names_that_cannot_be_heard_are_refused() {
    if !can() {
        return;
    }
    let world = World::new();
    world.echo_server(SERVER, 443);
    world.echo_server(SERVER, 7000);
    world.names.set("example.test", &[SERVER]);
    let guest = world.guest("a", port("a", &["example.test"]));
    guest.lookup("example.test.", RecordType::A);
    let quic = guest.udp(SERVER, 443);
    quic.send(b"initial").unwrap();
    assert!(quic.recv(&mut [0; 8]).is_err());
    assert!(world.logged("a", "udp", "203.0.113.10:443", "name_unchecked"));
    let other = guest.udp(SERVER, 7000);
    other.send(b"x").unwrap();
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 1);
}
