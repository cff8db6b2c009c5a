//! Secrets at the edge: set on the way out, never seen inside.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use ramet_proto::net::{Authority, EdgeRule, Port};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use super::world::*;

const SECRET: &str = "Bearer the-value-itself";

struct Ca {
    pem: String,
    key: KeyPair,
    params: CertificateParams,
}

fn ca(name: &str) -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let pem = params.self_signed(&key).unwrap().pem();
    Ca { pem, key, params }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    rustls::crypto::ring::default_provider().into()
}

fn server_config(ca: &Ca, host: &str) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(ca.params.clone(), &ca.key);
    let leaf = CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap()
        .into()
}

/// An HTTPS server that keeps what it was sent. `/upgrade` becomes an echo.
fn https_server(
    world: &World,
    address: &str,
    config: Arc<ServerConfig>,
) -> Arc<Mutex<Vec<String>>> {
    let listener = world.listener(address, 443);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (kept, config) = (kept.clone(), config.clone());
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                while let Some(head) = read_head(&mut stream) {
                    let upgrade = head.starts_with("GET /upgrade");
                    let length = head.to_lowercase().lines().find_map(|line| {
                        line.strip_prefix("content-length: ")?.parse::<usize>().ok()
                    });
                    let mut body = vec![0; length.unwrap_or(0)];
                    stream.read_exact(&mut body).unwrap();
                    kept.lock().unwrap().push(head + &String::from_utf8_lossy(&body));
                    if upgrade {
                        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                        stream.write_all(head).unwrap();
                        let mut room = [0; 64];
                        while let Ok(length @ 1..) = stream.read(&mut room) {
                            stream.write_all(&room[..length]).unwrap();
                            stream.flush().unwrap();
                        }
                        return;
                    }
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
                        .unwrap();
                }
            });
        }
    });
    seen
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn client(stream: TcpStream, host: &str, trusted: &[&Ca]) -> Tls {
    let mut roots = RootCertStore::empty();
    for ca in trusted {
        roots.add(ca.params.self_signed(&ca.key).unwrap().der().clone()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), stream)
}

fn ask(stream: &mut Tls, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let head = read_head(stream).ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let length = head
        .to_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(head + &String::from_utf8_lossy(&body))
}

struct Scene {
    world: World,
    sandbox: Ca,
    outside: Ca,
    guest: Guest,
    _trust: tempfile::NamedTempFile,
}

fn scene() -> Scene {
    let (sandbox, outside) = (ca("sandbox"), ca("outside"));
    let trust = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trust.path(), &outside.pem).unwrap();
    let world = World::with(&["--trust", trust.path().to_str().unwrap()]);
    for name in ["api.test", "plain.test"] {
        world.names.set(name, &[SERVER]);
    }
    let rule =
        EdgeRule { host: "api.test".into(), header: "Authorization".into(), value: SECRET.into() };
    let authority =
        Authority { certificate: sandbox.pem.clone(), key: sandbox.key.serialize_pem() };
    let port = Port {
        edge: vec![rule],
        authority: Some(authority),
        ..port("a", &["api.test", "plain.test"])
    };
    let guest = world.guest("a", port);
    Scene { world, sandbox, outside, guest, _trust: trust }
}

#[test]
fn a_header_is_set_on_the_way_out() {
    if !can() {
        return;
    }
    let Scene { world, sandbox, outside, guest, _trust } = scene();
    let seen = https_server(&world, SERVER, server_config(&outside, "api.test"));
    let stream = guest.connect_by_name("api.test.", 443).unwrap();
    let mut tls = client(stream, "api.test", &[&sandbox]);
    let got = ask(&mut tls, "GET /one HTTP/1.1\r\nHost: api.test\r\nAuthorization: mine\r\n\r\n")
        .unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("hello\n"), "{got}");
    let body = "x".repeat(100_000);
    let got = ask(
        &mut tls,
        &format!(
            "POST /two HTTP/1.1\r\nHost: api.test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    );
    assert!(got.unwrap().ends_with("hello\n"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    for request in seen.iter() {
        assert!(request.contains(SECRET) && !request.contains("mine"), "{request}");
    }
    assert!(seen[1].starts_with("POST /two ") && seen[1].ends_with(&body));
    assert!(!format!("{:?}", world.log("a")).contains("the-value"));
}

#[test]
fn other_hosts_are_not_touched() {
    if !can() {
        return;
    }
    let Scene { world, sandbox, outside, guest, _trust } = scene();
    let seen = https_server(&world, SERVER, server_config(&outside, "plain.test"));
    guest.lookup("api.test.", hickory_proto::rr::RecordType::A);
    let stream = guest.connect_by_name("plain.test.", 443).unwrap();
    // Straight through: the guest sees the server's own certificate.
    let mut tls = client(stream, "plain.test", &[&outside]);
    assert!(ask(&mut tls, "GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n").is_ok());
    assert!(!seen.lock().unwrap()[0].contains("the-value"));
    let stream = guest.connect(SERVER, 443).unwrap();
    assert!(
        ask(
            &mut client(stream, "plain.test", &[&sandbox]),
            "GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n"
        )
        .is_err()
    );
}

#[test]
fn secrets_go_only_to_whom_they_are_for() {
    if !can() {
        return;
    }
    let Scene { world, sandbox, outside: _, guest, _trust } = scene();
    let impostor = ca("impostor");
    let seen = https_server(&world, SERVER, server_config(&impostor, "api.test"));
    let plain = world.http_server(SERVER, 80);
    let stream = guest.connect_by_name("api.test.", 443).unwrap();
    let mut tls = client(stream, "api.test", &[&sandbox]);
    assert!(ask(&mut tls, "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").is_err());
    wait("it is told", || world.logged("a", "http", "api.test", "edge_outside_failed"));
    // Nor without TLS.
    let mut stream = guest.connect(SERVER, 80).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 8]).is_err());
    assert!(world.logged("a", "http", "api.test", "plaintext"));
    assert!(seen.lock().unwrap().is_empty() && plain.lock().unwrap().is_empty());
}

#[test]
fn requests_for_other_hosts_are_misdirected() {
    if !can() {
        return;
    }
    let Scene { world, sandbox, outside, guest, _trust } = scene();
    let seen = https_server(&world, SERVER, server_config(&outside, "api.test"));
    let stream = guest.connect_by_name("api.test.", 443).unwrap();
    let mut tls = client(stream, "api.test", &[&sandbox]);
    let got = ask(&mut tls, "GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n").unwrap();
    assert!(got.starts_with("HTTP/1.1 421"), "{got}");
    assert!(seen.lock().unwrap().is_empty());
    wait("it is told", || world.logged("a", "http", "api.test", "name_mismatch"));
}

#[test]
fn connections_are_upgraded() {
    if !can() {
        return;
    }
    let Scene { world, sandbox, outside, guest, _trust } = scene();
    let seen = https_server(&world, SERVER, server_config(&outside, "api.test"));
    let stream = guest.connect_by_name("api.test.", 443).unwrap();
    let mut tls = client(stream, "api.test", &[&sandbox]);
    let got = ask(&mut tls, "GET /upgrade HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    assert!(got.starts_with("HTTP/1.1 101"), "{got}");
    for text in [b"frame", b"again"] {
        tls.write_all(text).unwrap();
        tls.flush().unwrap();
        let mut room = [0; 5];
        tls.read_exact(&mut room).unwrap();
        assert_eq!(&room, text);
    }
    assert!(seen.lock().unwrap()[0].contains(SECRET));
}
