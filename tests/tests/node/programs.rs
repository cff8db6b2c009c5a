//! Programs that people use, in guests with a network: `curl`, `dig`, `iperf3`.
//!
//! What is outside are servers in a network namespace of the story: for names, for pages, and `iperf3`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use ramet_client::api::network::{Allow, EdgeRequest, NetworkRequest};
use ramet_client::api::{CreateSandbox, ForkRequest};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::bed::{Node, Sandbox, directory, eventually, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![programs_reach_what_is_allowed];

/// The two ends of the way outside.
const HERE: &str = "203.0.113.1";
const THERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const API: &str = "api.example.test";
const WEB: &str = "web.example.test";

/// A network namespace, and a way to it; both go with this.
struct Outside {
    name: String,
}

impl Drop for Outside {
    fn drop(&mut self) {
        // The way goes with either end.
        drop(Command::new("ip").args(["netns", "del", &self.name]).status());
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Outside {
    fn new() -> Self {
        let name = format!("ramet-{}", std::process::id());
        ip(&format!("netns add {name}"));
        let outside = Self { name };
        let (name, link) = (&outside.name, format!("out{}", std::process::id()));
        ip(&format!("link add {link} type veth peer name eth0 netns {name}"));
        ip(&format!("addr add {HERE}/24 dev {link}"));
        ip(&format!("link set {link} up"));
        ip(&format!("-n {name} addr add {THERE}/24 dev eth0"));
        ip(&format!("-n {name} link set lo up"));
        ip(&format!("-n {name} link set eth0 up"));
        outside
    }

    /// Does something there, in a thread of its own; sockets that it makes stay there.
    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace");
        let there = thread::spawn(move || {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns");
            work()
        });
        there.join().expect("work")
    }

    fn listen(&self, port: u16) -> TcpListener {
        self.within(move || TcpListener::bind((THERE, port)).expect("a port"))
    }

    /// Answers every question for an IPv4 address with that of the servers, and every other with nothing. Ends with the program.
    fn serve_names(&self) {
        let socket = self.within(|| UdpSocket::bind((THERE, 53)).expect("port 53"));
        thread::spawn(move || {
            let mut room = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut room) {
                let Some(mut answer) = question(&room[..length]) else { continue };
                let found = u8::from(answer[answer.len() - 3] == 1);
                answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, found, 0, 0, 0, 0]);
                if found == 1 {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                    answer.extend(THERE.octets());
                }
                // Who has gone asks again.
                let _ = socket.send_to(&answer, from);
            }
        });
    }

    /// Servers on ports 80 and 443 that answer with what they were asked. They end with the program.
    fn serve_pages(&self, config: Arc<ServerConfig>) {
        let (plain, secure) = (self.listen(80), self.listen(443));
        // A client that hangs up is its own story.
        thread::spawn(move || {
            plain.incoming().flatten().for_each(|mut stream| drop(answer(&mut stream)));
        });
        thread::spawn(move || {
            for stream in secure.incoming().flatten() {
                let connection = ServerConnection::new(config.clone()).expect("a connection");
                let mut stream = StreamOwned::new(connection, stream);
                if answer(&mut stream).is_ok() {
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
    }
}

/// Head and question of a query, without what comes after.
fn question(query: &[u8]) -> Option<Vec<u8>> {
    let name = query.get(12..)?.iter().position(|byte| *byte == 0)?;
    query.get(..12 + name + 5).map(<[u8]>::to_vec)
}

/// Certificates of an authority that the node trusts, for these hosts.
fn certificates(hosts: &[&str]) -> (PathBuf, Arc<ServerConfig>) {
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "outside");
    let key = KeyPair::generate().unwrap();
    let file = directory("outside").join("authority.pem");
    std::fs::write(&file, authority.self_signed(&key).unwrap().pem()).unwrap();
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let own = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, key);
    let leaf = CertificateParams::new(hosts).unwrap().signed_by(&own, &issuer).unwrap();
    let own = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], own)
        .unwrap();
    (file, config.into())
}

/// Answers a request with its head.
fn answer(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let length = head.len();
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")?;
    stream.write_all(&head)?;
    stream.flush()
}

/// `iperf3` as a server on this host, ended with this.
struct Iperf(Child);

const IPERF: u16 = 5201;

impl Iperf {
    fn start(outside: &Outside) -> Self {
        let place = directory("netprograms");
        let archive = std::env::var_os("RAMET_NETPROGRAMS").expect("RAMET_NETPROGRAMS");
        let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&place).status();
        assert!(unpacked.expect("tar").success());
        let mut server = Command::new("ip");
        server.args(["netns", "exec", &outside.name]).arg(place.join("usr/bin/iperf3"));
        server.args(["-s", "-p", &IPERF.to_string()]);
        server.env("LD_LIBRARY_PATH", place.join("usr/lib/x86_64-linux-gnu"));
        Self(server.stdout(Stdio::null()).spawn().expect("iperf3"))
    }
}

impl Drop for Iperf {
    fn drop(&mut self) {
        // It may have ended by itself; a story that goes on without it fails elsewhere.
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

fn rule(text: String) -> Allow {
    text.parse().expect("a rule")
}

/// Exit code and output of `curl`.
fn curl(sandbox: &Sandbox<'_>, arguments: &str) -> (Option<i32>, String) {
    let ran = sandbox.run(&format!("curl -sS -m 60 {arguments}"));
    (ran.exit_code, ran.stdout + &ran.stderr)
}

fn programs_reach_what_is_allowed() {
    let outside = Outside::new();
    let (trust, config) = certificates(&[API, WEB]);
    outside.serve_names();
    outside.serve_pages(config);
    let _iperf = Iperf::start(&outside);
    let (dns, trust) = (format!("{THERE}:53"), trust.to_str().expect("UTF-8"));
    let node = Node::new("programs", &["--dns", &dns, "--edge-trust", trust]);
    wait(node.client.put_secret("API_KEY", "the-value-itself")).unwrap();
    let edge = EdgeRequest {
        host: API.to_owned(),
        header: "authorization".to_owned(),
        value: "Bearer {secret:API_KEY}".to_owned(),
    };
    let network = NetworkRequest {
        allow: vec![
            rule(format!("{API}:443/tcp")),
            rule(format!("{WEB}:80/tcp")),
            rule(format!("{THERE}:{IPERF}/tcp")),
        ],
        edge: vec![edge],
        ..NetworkRequest::default()
    };
    let sandbox = node.create_as(CreateSandbox {
        name: Some("user".to_owned()),
        network: Some(network),
        ..CreateSandbox::default()
    });
    sandbox.unpack("RAMET_NETPROGRAMS");
    names(&sandbox);
    requests(&sandbox);
    secrets(&sandbox);
    transfers(&sandbox);
}

fn names(sandbox: &Sandbox<'_>) {
    assert_eq!(sandbox.sh(&format!("dig +short {WEB}")), THERE.to_string());
    assert_eq!(sandbox.sh(&format!("dig +tcp +short {API}")), THERE.to_string());
    assert_eq!(sandbox.sh(&format!("dig +short AAAA {API}")), "");
    let other = sandbox.run("dig other.example.test");
    assert!(other.stdout.contains("status: REFUSED"), "{other:?}");
}

fn requests(sandbox: &Sandbox<'_>) {
    let (code, said) = curl(sandbox, &format!("http://{WEB}/page"));
    assert!(code == Some(0) && said.starts_with("GET /page"), "{said}");
    // By address, by a name that is not allowed, and under another name than the one that was asked for.
    let (code, said) = curl(sandbox, &format!("http://{THERE}/"));
    assert!(code != Some(0) && !said.contains("GET"), "{said}");
    let (code, said) = curl(sandbox, "http://other.example.test/");
    assert_eq!(code, Some(6), "it has no address: {said}");
    let (code, said) = curl(sandbox, &format!("-H 'Host: other.example.test' http://{WEB}/"));
    assert!(code != Some(0) && !said.contains("GET"), "{said}");
    let (code, said) = curl(sandbox, &format!("--connect-to ::{API}:443 https://{WEB}/"));
    assert!(code != Some(0) && !said.contains("GET"), "another TLS name: {said}");
}

fn secrets(sandbox: &Sandbox<'_>) {
    const SET: &str = "authorization: Bearer the-value-itself";
    let asked = format!("-H 'Authorization: mine' https://{API}/v1");
    let (code, said) = curl(sandbox, &asked);
    assert!(code == Some(0) && said.to_lowercase().contains(&SET.to_lowercase()), "{said}");
    assert!(!said.contains("mine"), "{said}");
    let inside = sandbox.run("grep -rs the-value-itself /etc /run /root /tmp /proc/*/environ");
    assert_eq!(inside.exit_code, Some(1), "it is nowhere inside: {inside:?}");
    let kept = ForkRequest { keep_edge: true, ..ForkRequest::default() };
    let (with, without) = (sandbox.fork_as(kept).remove(0), sandbox.fork(1).remove(0));
    let (code, said) = curl(&with, &asked);
    assert!(code == Some(0) && said.contains("the-value-itself"), "{said}");
    let (_, said) = curl(&without, &format!("-k {asked}"));
    assert!(!said.contains("the-value-itself"), "it was not passed on: {said}");
    let shown = sandbox.node.ramet(&["--json", "net", "show", "user"]).ok();
    assert!(shown.contains("secret:API_KEY") && !shown.contains("the-value-itself"), "{shown}");
}

/// Both ways, and while it is forked: the source's does not break, the child's ends.
fn transfers(sandbox: &Sandbox<'_>) {
    let back = sandbox.sh(&format!("iperf3 -J -c {THERE} -p {IPERF} -t 2 -R"));
    let back: serde_json::Value = serde_json::from_str(&back).expect("JSON");
    assert!(back["end"]["sum_received"]["bytes"].as_u64() > Some(0), "{back}");
    let line =
        format!("iperf3 -J -c {THERE} -p {IPERF} -t 12 > /tmp/up.json 2>&1; echo $? > /tmp/code");
    sandbox.sh(&format!("(setsid sh -c '{line}' >/dev/null 2>&1 &)"));
    eventually("it transfers", || {
        let stats = wait(sandbox.node.client.network(&sandbox.id)).unwrap().stats;
        stats.is_some_and(|stats| stats.sent_bytes > 2 << 20)
    });
    let children = sandbox.fork(2);
    let ended = |sandbox: &Sandbox<'_>| sandbox.run("cat /tmp/code").stdout.trim().to_owned();
    for child in &children {
        eventually("the child's ends", || !ended(child).is_empty());
        // With `-J` it says in its report, and not by its exit code, that it failed.
        let said = child.sh("cat /tmp/up.json");
        assert!(said.contains("Connection reset by peer"), "{said}");
    }
    eventually("the source's ends", || !ended(sandbox).is_empty());
    let said = sandbox.sh("cat /tmp/up.json");
    assert_eq!(ended(sandbox), "0", "{said}");
    let up: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(up["error"].is_null(), "{up}");
    let seconds = up["end"]["sum_sent"]["seconds"].as_f64();
    assert!(seconds > Some(11.0), "it was not cut short: {up}");
}
