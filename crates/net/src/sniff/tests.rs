//! Names in first bytes, whole, in pieces, and mangled.

use proptest::prelude::*;

use super::*;

/// A ClientHello for a name, as rustls writes it.
fn client_hello(name: &str) -> Vec<u8> {
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

/// The same handshake in records of a few bytes.
fn in_small_records(hello: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1][..], &length, part].concat()
    };
    hello[5..].chunks(size).flat_map(record).collect()
}

#[test]
fn tls_names_are_heard_whole_and_in_pieces() {
    let hello = client_hello("Api.Example.org");
    let expected = Heard::Tls(Some("api.example.org".into()));
    assert_eq!(listen(&hello), expected);
    for end in 0..hello.len() {
        assert_eq!(listen(&hello[..end]), Heard::More, "{end}");
    }
    for size in [1, 7, 100] {
        let small = in_small_records(&hello, size);
        assert_eq!(listen(&small), expected);
        assert_eq!(listen(&small[..small.len() - 1]), Heard::More);
    }
}

#[test]
fn tls_without_a_name_has_none() {
    assert_eq!(listen(&client_hello("192.0.2.1")), Heard::Tls(None));
}

#[test]
fn http_hosts_are_heard() {
    let heard = |text: &str| listen(text.as_bytes());
    let example = Heard::Http(Some("example.org".into()));
    assert_eq!(heard("GET / HTTP/1.1\r\nHost: Example.org\r\n\r\n"), example);
    assert_eq!(heard("POST /x HTTP/1.1\r\na: b\r\nhOsT:example.org:8080\r\n\r\nbody"), example);
    assert_eq!(heard("GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"), example);
    for other in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
        "GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n",
        "CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n",
    ] {
        assert_eq!(heard(other), Heard::Http(None), "{other}");
    }
    assert_eq!(heard("GET / HTTP/1.1\r\nHost: exam"), Heard::More);
    assert_eq!(heard("GE"), Heard::More);
}

#[test]
fn other_protocols_are_other() {
    assert_eq!(listen(b"SSH-2.0-OpenSSH_9.2\r\n"), Heard::Other);
    assert_eq!(listen(b"\x00\x00\x00\x08\x04\xd2\x16\x2f"), Heard::Other);
    assert_eq!(listen(b"\x16\x03\x01\x00\x00"), Heard::Other);
    assert_eq!(listen(b"hello"), Heard::Other);
    assert_eq!(listen(&[b'A'; 30]), Heard::Other);
    let endless = [b"GET /".to_vec(), vec![b'a'; NEEDED_MAX]].concat();
    assert_eq!(listen(&endless), Heard::Other);
}

proptest! {
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = listen(&bytes);
    }

    /// A mangled hello never gives a name that is not in it.
    #[test]
    fn mangled_hellos_do_not_panic(at: prop::sample::Index, byte: u8) {
        let mut hello = client_hello("example.org");
        let at = at.index(hello.len());
        hello[at] = byte;
        let _ = listen(&hello);
    }
}
