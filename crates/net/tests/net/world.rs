//! A world for a test: the host of the service, an outside, guests; and the control connection.

use std::collections::HashMap;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message as Dns, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ramet_proto::api::network::{Allow, Limits, LogEntry, NetStats, Policy};
use ramet_proto::net::{Answer, Code, Listed, Member, Message, Outcome, Port, Request};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Address of the host itself, kept.
pub const HOST: &str = "203.0.113.1";
/// Servers are here, and the resolver.
pub const SERVER: &str = "203.0.113.10";
/// Another address of the same servers.
pub const OTHER: &str = "203.0.113.11";
pub const SERVER_V6: &str = "2001:db8::10";
/// A server in a private range, and the metadata service.
pub const PRIVATE: &str = "10.9.9.9";
pub const METADATA: &str = "169.254.169.254";
/// Nobody answers there.
pub const SILENT: &str = "203.0.113.99";

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether namespaces can be made; says so if not.
pub fn can() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: network namespaces need root");
    }
    root
}

pub struct World {
    pub directory: tempfile::TempDir,
    prefix: String,
    service: Child,
    control: Mutex<Control>,
    namespaces: Mutex<Vec<String>>,
    pub names: Names,
}

struct Control {
    socket: OwnedFd,
    next: u64,
}

/// What the resolver outside knows.
#[derive(Clone, Default)]
pub struct Names(Arc<Mutex<HashMap<String, Vec<IpAddr>>>>);

impl Names {
    pub fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        self.0.lock().unwrap().insert(name.to_owned(), addresses);
    }
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs in a namespace, in a thread of its own; sockets that it makes stay there.
pub fn within<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/run/netns/{namespace}");
    std::thread::spawn(move || {
        let file = std::fs::File::open(path).unwrap();
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
    .join()
    .unwrap()
}

/// Lets everybody in the namespace send echo requests.
fn allow_echo(namespace: &str) {
    within(namespace, || {
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
    });
}

impl World {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// With more arguments for the service.
    pub fn with(arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("rn{}-{count}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        let (host, out) = (format!("{prefix}-host"), format!("{prefix}-out"));
        ip(&format!("netns add {host}"));
        ip(&format!("netns add {out}"));
        ip(&format!("link add eth0 netns {host} type veth peer name eth0 netns {out}"));
        for (namespace, addresses) in [
            (&host, &["203.0.113.1/24", "2001:db8::1/64"][..]),
            (
                &out,
                &[
                    "203.0.113.10/24",
                    "203.0.113.11/24",
                    "2001:db8::10/64",
                    "10.9.9.9/32",
                    "169.254.169.254/32",
                ],
            ),
        ] {
            ip(&format!("-n {namespace} link set lo up"));
            ip(&format!("-n {namespace} link set eth0 up"));
            for address in addresses {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                ip(&format!("-n {namespace} addr add {address} dev eth0 {nodad}"));
            }
        }
        ip(&format!("-n {host} route add default via {SERVER}"));
        allow_echo(&host);
        let names = Names::default();
        serve_names(&out, names.clone());
        let socket = directory.path().join("net.sock");
        let service = start(&host, &socket, arguments);
        let control = Mutex::new(Control { socket: connect(&socket), next: 1 });
        let namespaces = Mutex::new(vec![host, out]);
        let world = Self { directory, prefix, service, control, namespaces, names };
        assert!(matches!(world.receive(), Answer::Hello { .. }));
        world
    }

    pub fn host(&self) -> String {
        format!("{}-host", self.prefix)
    }

    pub fn out(&self) -> String {
        format!("{}-out", self.prefix)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("net.sock")
    }

    pub fn pid(&self) -> u32 {
        self.service.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.service.try_wait().unwrap().is_none()
    }

    /// Takes the control connection anew, as a node does that was started again.
    pub fn reconnect(&self) {
        self.control.lock().unwrap().socket = connect(&self.socket());
        assert!(matches!(self.receive(), Answer::Hello { .. }));
    }

    fn receive(&self) -> Answer {
        receive(&self.control.lock().unwrap().socket)
    }

    pub fn ask(&self, request: Request, fd: Option<&OwnedFd>) -> Result<Outcome, (Code, String)> {
        let mut control = self.control.lock().unwrap();
        let id = control.next;
        control.next += 1;
        let bytes = serde_json::to_vec(&Message { id, request }).unwrap();
        send(&control.socket, &bytes, fd);
        match receive(&control.socket) {
            Answer::Done { id: answered, outcome } => {
                assert_eq!(answered, id);
                Ok(outcome)
            }
            Answer::Failed { code, message, .. } => Err((code, message)),
            Answer::Hello { .. } => panic!("hello again"),
        }
    }

    pub fn send_raw(&self, bytes: &[u8]) -> Answer {
        let control = self.control.lock().unwrap();
        send(&control.socket, bytes, None);
        receive(&control.socket)
    }

    pub fn attach(&self, port: Port, link: &OwnedFd) {
        self.ask(Request::Attach(Box::new(port)), Some(link)).unwrap();
    }

    pub fn configure(&self, port: Port) {
        self.ask(Request::Configure(Box::new(port)), None).unwrap();
    }

    pub fn list(&self) -> Vec<Listed> {
        match self.ask(Request::List {}, None).unwrap() {
            Outcome::Ports(ports) => ports,
            other => panic!("{other:?}"),
        }
    }

    pub fn stats(&self, port: &str) -> NetStats {
        match self.ask(Request::Stats { port: port.into() }, None).unwrap() {
            Outcome::Stats(stats) => *stats,
            other => panic!("{other:?}"),
        }
    }

    pub fn log(&self, port: &str) -> Vec<LogEntry> {
        let request = Request::Log { port: port.into(), after: 0, limit: 10_000 };
        match self.ask(request, None).unwrap() {
            Outcome::Log(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the log has such an entry.
    pub fn logged(&self, port: &str, kind: &str, to: &str, reason: &str) -> bool {
        self.log(port).iter().any(|e| e.kind == kind && e.to == to && e.reason == reason)
    }

    /// A guest with a port of its name.
    pub fn guest(&self, name: &str, port: Port) -> Guest {
        let namespace = format!("{}-{name}", self.prefix);
        ip(&format!("netns add {namespace}"));
        self.namespaces.lock().unwrap().push(namespace.clone());
        allow_echo(&namespace);
        let tap = within(&namespace, super::tap::open);
        for arguments in [
            "link set lo up",
            "link set tap0 address 52:4d:54:00:00:02",
            "link set tap0 mtu 65520",
            "link set tap0 up",
            "addr add 10.114.0.2/24 dev tap0",
            "route add default via 10.114.0.1",
            "addr add fd72:616d:6574::2/64 dev tap0 nodad",
            "-6 route add default via fd72:616d:6574::1",
        ] {
            ip(&format!("-n {namespace} {arguments}"));
        }
        if let Some(member) = &port.member {
            let number = member.number;
            ip(&format!("-n {namespace} addr add 10.114.1.{number}/24 dev tap0"));
            ip(&format!("-n {namespace} addr add fd72:616d:6574:1::{number:x}/64 dev tap0 nodad"));
        }
        self.attach(port, &tap);
        Guest { namespace, tap }
    }

    /// A link of which the test has the other end.
    pub fn raw(&self, port: Port) -> OwnedFd {
        let (own, others) = link();
        self.attach(port, &others);
        own
    }

    /// A server outside that sends back what it gets.
    pub fn echo_server(&self, address: &str, port: u16) {
        let at = SocketAddr::new(address.parse().unwrap(), port);
        let listener = within(&self.out(), move || TcpListener::bind(at).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    let mut writer = stream;
                    let _ = std::io::copy(&mut reader, &mut writer);
                    let _ = writer.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        let socket = within(&self.out(), move || UdpSocket::bind(at).unwrap());
        std::thread::spawn(move || {
            let mut room = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut room) {
                let _ = socket.send_to(&room[..length], from);
            }
        });
    }

    /// A server outside whose connections the test takes itself.
    pub fn listener(&self, address: &str, port: u16) -> TcpListener {
        let at = SocketAddr::new(address.parse().unwrap(), port);
        within(&self.out(), move || TcpListener::bind(at).unwrap())
    }

    /// An HTTP server that answers every request with a line, and keeps what it was sent.
    pub fn http_server(&self, address: &str, port: u16) -> Arc<Mutex<Vec<String>>> {
        let listener = self.listener(address, port);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let kept = kept.clone();
                std::thread::spawn(move || {
                    while let Some(request) = read_head(&mut stream) {
                        kept.lock().unwrap().push(request);
                        let _ = stream
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
                    }
                });
            }
        });
        seen
    }
}

/// The head of a request.
pub fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
        if std::thread::panicking() {
            let log = self.directory.path().join("net.log");
            eprintln!("{}", std::fs::read_to_string(log).unwrap_or_default());
        }
        for namespace in self.namespaces.lock().unwrap().iter() {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

fn start(namespace: &str, socket: &std::path::Path, arguments: &[&str]) -> Child {
    let log = std::fs::File::create(socket.with_file_name("net.log")).unwrap();
    let child = Command::new("ip")
        .args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_ramet-net"), "--socket"])
        .arg(socket)
        .args(["--dns", SERVER])
        .args(arguments)
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap();
    wait("the service listens", || try_connect(socket).is_some());
    child
}

fn try_connect(socket: &std::path::Path) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let fd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = rustix::net::SocketAddrUnix::new(socket).unwrap();
    rustix::net::connect(&fd, &address).ok().map(|()| fd)
}

fn connect(socket: &std::path::Path) -> OwnedFd {
    try_connect(socket).unwrap()
}

fn send(socket: &OwnedFd, bytes: &[u8], fd: Option<&OwnedFd>) {
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())
        .unwrap();
}

fn receive(socket: &OwnedFd) -> Answer {
    let mut room = vec![0; 200 << 10];
    let length = rustix::io::read(socket, &mut room).unwrap();
    serde_json::from_slice(&room[..length]).unwrap()
}

/// Two ends of a link.
pub fn link() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Waits until something is so.
pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn policy(to: &[&str]) -> Policy {
    let allow = |to: &&str| Allow { to: (*to).into(), ports: vec![], protocols: vec![] };
    Policy { allow: to.iter().map(allow).collect() }
}

pub fn port(name: &str, allow: &[&str]) -> Port {
    Port {
        port: name.into(),
        policies: vec![policy(allow)],
        limits: Limits::default(),
        member: None,
        edge: vec![],
        authority: None,
    }
}

pub fn member(name: &str, network: &str, number: u8) -> Port {
    let member = Member { network: network.into(), name: name.into(), number, between: None };
    Port { member: Some(member), ..port(&format!("{network}-{name}"), &[]) }
}

/// What came of a connection.
pub type Tried = Result<TcpStream, std::io::ErrorKind>;

/// A guest with a real network stack.
pub struct Guest {
    pub namespace: String,
    pub tap: OwnedFd,
}

impl Guest {
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        within(&self.namespace, work)
    }

    pub fn connect(&self, address: &str, port: u16) -> Tried {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        self.within(move || {
            let stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(|error| error.kind())?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            Ok(stream)
        })
    }

    pub fn udp(&self, address: &str, port: u16) -> UdpSocket {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        self.within(move || {
            let any: SocketAddr =
                if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
    }

    /// What comes back of an echo server.
    pub fn echo(&self, address: &str, port: u16, text: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = self.connect(address, port)?;
        stream.write_all(text)?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back)?;
        Ok(back)
    }

    /// Whether an echo request is answered.
    pub fn ping(&self, address: &str) -> bool {
        let to = SocketAddr::new(address.parse().unwrap(), 0);
        self.within(move || ping(to).is_ok_and(|answer| answer.ends_with(b"are you there")))
    }

    /// Asks the service for a name.
    pub fn lookup(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<IpAddr>) {
        let answer = self.lookup_message(name, kind);
        let address = |record: &Record| ramet_net::dns::address(record);
        (answer.response_code(), answer.answers().iter().filter_map(address).collect())
    }

    pub fn lookup_message(&self, name: &str, kind: RecordType) -> Dns {
        let socket = self.udp("10.114.0.1", 53);
        socket.send(&question(name, kind)).unwrap();
        let mut room = vec![0; 65_536];
        let length = socket.recv(&mut room).unwrap();
        Dns::from_vec(&room[..length]).unwrap()
    }

    /// Looks a name up and connects to the first address.
    pub fn connect_by_name(&self, name: &str, port: u16) -> Tried {
        let (code, addresses) = self.lookup(name, RecordType::A);
        assert_eq!(code, ResponseCode::NoError, "{name}");
        self.connect(&addresses[0].to_string(), port)
    }
}

fn ping(to: SocketAddr) -> std::io::Result<Vec<u8>> {
    let (family, protocol, kind) = match to.is_ipv4() {
        true => (AddressFamily::INET, rustix::net::ipproto::ICMP, 8),
        false => (AddressFamily::INET6, rustix::net::ipproto::ICMPV6, 128),
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
    let patience = Some(Duration::from_secs(5));
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        patience,
    )?;
    rustix::net::connect(&socket, &to)?;
    rustix::io::write(&socket, &[&[kind, 0, 0, 0, 0, 0, 0, 1][..], b"are you there"].concat())?;
    let mut room = vec![0; 512];
    let length = rustix::io::read(&socket, &mut room)?;
    room.truncate(length);
    Ok(room)
}

pub fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Dns::new();
    message.set_id(4242).set_recursion_desired(true);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

/// A resolver outside, which knows what the test tells it.
fn serve_names(namespace: &str, names: Names) {
    let socket = within(namespace, || UdpSocket::bind((SERVER, 53)).unwrap());
    std::thread::spawn(move || {
        let mut room = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut room) {
            let Ok(message) = Dns::from_vec(&room[..length]) else { continue };
            let _ = socket.send_to(&answer(&message, &names).to_vec().unwrap(), from);
        }
    });
}

fn answer(message: &Dns, names: &Names) -> Dns {
    let query = message.queries()[0].clone();
    let mut answer = Dns::new();
    answer.set_id(message.id()).set_message_type(MessageType::Response);
    answer.set_recursion_available(true).set_authoritative(true).add_query(query.clone());
    let name = query.name().to_ascii().to_ascii_lowercase();
    let known = names.0.lock().unwrap().get(name.trim_end_matches('.')).cloned();
    match known {
        None => {
            answer.set_response_code(ResponseCode::NXDomain);
        }
        Some(addresses) => {
            for address in addresses {
                let data = match (address, query.query_type()) {
                    (IpAddr::V4(v4), RecordType::A) => RData::A(v4.into()),
                    (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA(v6.into()),
                    _ => continue,
                };
                answer.add_answer(Record::from_rdata(query.name().clone(), 300, data));
            }
        }
    }
    answer
}
