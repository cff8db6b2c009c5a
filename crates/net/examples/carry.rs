//! Measures the service beside slirp4netns and pasta, all in the same way: a guest in a network namespace behind a TAP device, a server in
//! another, the program under test between them. Prints JSON.
//!
//! `carry [--seconds N] [--service PATH]`; needs root, `ip`, `iperf3`, and for comparison `slirp4netns` and `pasta`.

#[path = "../tests/net/tap.rs"]
mod tap;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ramet_proto::api::network::{Allow, Limits, Policy};
use ramet_proto::net::{Answer, Member, Message, Port, Request};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde_json::{Value, json};

const SERVER: &str = "203.0.113.10";
const ECHO: u16 = 7000;
const IDLE_PORTS: u32 = 1000;

#[derive(Debug, Parser)]
struct Arguments {
    /// Of each transfer.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// The service. Beside this program if it is not given.
    #[arg(long)]
    service: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let service = match arguments.service.clone() {
        Some(path) => path,
        None => beside()?,
    };
    let ground = Ground::new()?;
    let echo = ground.echo_server()?;
    let mut results = serde_json::Map::new();
    for contestant in [Contestant::Ramet, Contestant::Slirp, Contestant::Pasta] {
        let result = match ground.measure(contestant, &service, arguments.seconds) {
            Ok(result) => result,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        results.insert(contestant.name().to_owned(), result);
    }
    results.insert("between".into(), ground.between(&service, arguments.seconds)?);
    results.insert("policy".into(), ground.policy(&service)?);
    results.insert("idle".into(), ground.idle(&service)?);
    results.insert("ratio".into(), ratio(&results));
    drop(echo);
    println!("{}", serde_json::to_string_pretty(&results)?);
    Ok(())
}

fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("ramet-net")).find(|path| path.exists());
    found.context("ramet-net is not beside this program: build it, or say --service")
}

/// Of the faster of the others.
fn ratio(results: &serde_json::Map<String, Value>) -> Value {
    let rate =
        |name: &str, way: &str| results.get(name).and_then(|r| r[way].as_f64()).unwrap_or(0.0);
    let way = |way: &str| {
        let best = rate("slirp4netns", way).max(rate("pasta", way));
        if best > 0.0 { json!(rate("ramet_net", way) / best) } else { Value::Null }
    };
    json!({ "up": way("up_gbit_s"), "down": way("down_gbit_s") })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contestant {
    Ramet,
    Slirp,
    Pasta,
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Self::Ramet => "ramet_net",
            Self::Slirp => "slirp4netns",
            Self::Pasta => "pasta",
        }
    }
}

/// A process that ends with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Namespaces: the host of the program under test, and the outside.
struct Ground {
    prefix: String,
    directory: tempfile::TempDir,
}

impl Drop for Ground {
    fn drop(&mut self) {
        for name in ["host", "out", "ramet_net", "slirp4netns", "pasta", "policy", "app", "db"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(name)])
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    ensure!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn within<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let path = format!("/run/netns/{namespace}");
    let thread = std::thread::spawn(move || {
        nix::sched::setns(std::fs::File::open(path)?, nix::sched::CloneFlags::CLONE_NEWNET)?;
        work()
    });
    thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
}

impl Ground {
    fn new() -> Result<Self> {
        let prefix = format!("rnb{}", std::process::id());
        let ground = Self { prefix, directory: tempfile::tempdir()? };
        let (host, out) = (ground.namespace("host"), ground.namespace("out"));
        for namespace in [&host, &out] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        ip(&format!("link add eth0 netns {host} type veth peer name eth0 netns {out}"))?;
        ip(&format!("-n {host} addr add 203.0.113.1/24 dev eth0"))?;
        ip(&format!("-n {out} addr add {SERVER}/24 dev eth0"))?;
        ip(&format!("-n {out} addr add 203.0.113.254/24 dev eth0"))?;
        ip(&format!("-n {host} link set eth0 up"))?;
        ip(&format!("-n {out} link set eth0 up"))?;
        ip(&format!("-n {host} route add default via 203.0.113.254"))?;
        Ok(ground)
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn run(&self, namespace: &str, command: &[&str]) -> Command {
        let mut run = Command::new("ip");
        run.args(["netns", "exec", &self.namespace(namespace)]).args(command);
        run.stdout(Stdio::null()).stderr(Stdio::null());
        run
    }

    fn echo_server(&self) -> Result<Running> {
        let at: SocketAddr = format!("{SERVER}:{ECHO}").parse()?;
        let listener = within(&self.namespace("out"), move || Ok(TcpListener::bind(at)?))?;
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    let mut room = [0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut room) {
                        if stream.write_all(&room[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let child = self.run("out", &["iperf3", "--server"]).spawn().context("iperf3 is needed")?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(Running(child))
    }

    fn measure(&self, contestant: Contestant, service: &Path, seconds: u32) -> Result<Value> {
        let guest = self.namespace(contestant.name());
        ip(&format!("netns add {guest}"))?;
        ip(&format!("-n {guest} link set lo up"))?;
        let _under_test = match contestant {
            Contestant::Ramet => {
                let service = Service::start(self, service)?;
                let tap = self.tap(contestant.name())?;
                service.attach(port("bench", vec![any()]), &tap)?;
                (service.running, Some(tap))
            }
            Contestant::Slirp => {
                let path = format!("/run/netns/{guest}");
                let command = [
                    "slirp4netns",
                    "--netns-type=path",
                    "--mtu=65520",
                    "--configure",
                    &path,
                    "tap0",
                ];
                (Running(self.run("host", &command).spawn()?), None)
            }
            Contestant::Pasta => {
                let path = format!("/run/netns/{guest}");
                let command = [
                    "pasta",
                    "--foreground",
                    "--config-net",
                    "--no-map-gw",
                    "--mtu",
                    "65520",
                    "--runas",
                    "0",
                    "--netns",
                    &path,
                ];
                (Running(self.run("host", &command).spawn()?), None)
            }
        };
        self.reach(&guest)?;
        let up = self.iperf(&guest, SERVER, seconds, false)?;
        let down = self.iperf(&guest, SERVER, seconds, true)?;
        let round_trip = self.round_trip(&guest)?;
        let per_second = self.connections(&guest, Duration::from_secs(2))?;
        Ok(json!({
            "up_gbit_s": up,
            "down_gbit_s": down,
            "request_us_p50": round_trip,
            "connections_per_s": per_second,
        }))
    }

    /// A TAP device as the agent of a guest sets up its own.
    fn tap(&self, name: &str) -> Result<OwnedFd> {
        let namespace = self.namespace(name);
        let tap = within(&namespace, || Ok(tap::open()))?;
        for arguments in [
            "link set tap0 address 52:4d:54:00:00:02",
            "link set tap0 mtu 65520",
            "link set tap0 up",
            "addr add 10.114.0.2/24 dev tap0",
            "route add default via 10.114.0.1",
        ] {
            ip(&format!("-n {namespace} {arguments}"))?;
        }
        Ok(tap)
    }

    fn reach(&self, guest: &str) -> Result<()> {
        for _ in 0..50 {
            if connect(guest).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the server is not reached")
    }

    fn iperf(&self, guest: &str, server: &str, seconds: u32, reverse: bool) -> Result<f64> {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            guest,
            "iperf3",
            "--json",
            "--client",
            server,
            "--time",
            &seconds.to_string(),
        ]);
        if reverse {
            command.arg("--reverse");
        }
        let output = command.output()?;
        let report: Value =
            serde_json::from_slice(&output.stdout).context("iperf3 says nothing")?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        bits.map(|bits| bits / 1e9).with_context(|| report["error"].to_string())
    }

    fn round_trip(&self, guest: &str) -> Result<f64> {
        let mut stream = connect(guest)?;
        let mut times = Vec::new();
        for _ in 0..2000 {
            let begin = Instant::now();
            stream.write_all(&[1; 100])?;
            stream.read_exact(&mut [0; 100])?;
            times.push(begin.elapsed());
        }
        Ok(median(&mut times))
    }

    fn connections(&self, guest: &str, time: Duration) -> Result<f64> {
        let guest = guest.to_owned();
        within(&guest, move || {
            let to: SocketAddr = format!("{SERVER}:{ECHO}").parse()?;
            let begin = Instant::now();
            let mut count = 0u32;
            while begin.elapsed() < time {
                let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
                // Ports do not run out while they wait for late packets.
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                count += 1;
            }
            Ok(f64::from(count) / begin.elapsed().as_secs_f64())
        })
    }

    /// Throughput between two members of a network.
    fn between(&self, service: &Path, seconds: u32) -> Result<Value> {
        let service = Service::start(self, service)?;
        let mut taps = Vec::new();
        for (name, number) in [("app", 1), ("db", 2)] {
            let namespace = self.namespace(name);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            let tap = self.tap(name)?;
            ip(&format!("-n {namespace} addr add 10.114.1.{number}/24 dev tap0"))?;
            let (network, name) = ("bench".to_owned(), name.to_owned());
            let member = Some(Member { network, name, number, between: None });
            service.attach(Port { member, ..port(&namespace, vec![]) }, &tap)?;
            taps.push(tap);
        }
        let _server = Running(self.run("db", &["iperf3", "--server"]).spawn()?);
        std::thread::sleep(Duration::from_millis(500));
        let rate = self.iperf(&self.namespace("app"), "10.114.1.2", seconds, false)?;
        Ok(json!({ "gbit_s": rate }))
    }

    /// Time to connect with a policy of one rule, and with one of a hundred of which the last fits; in turns, so that both see the same machine.
    fn policy(&self, service: &Path) -> Result<Value> {
        let namespace = self.namespace("policy");
        ip(&format!("netns add {namespace}"))?;
        let service = Service::start(self, service)?;
        let tap = self.tap("policy")?;
        let mut hundred: Vec<Allow> = (0..99).map(|i| allow(&format!("*.n{i}.example"))).collect();
        hundred.push(allow("203.0.113.0/24"));
        let policies = [vec![any()], vec![Policy { allow: hundred }]];
        service.attach(port("policy", policies[0].clone()), &tap)?;
        self.reach(&namespace)?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..40 {
            for (times, policies) in times.iter_mut().zip(&policies) {
                service
                    .ask(Request::Configure(Box::new(port("policy", policies.clone()))), None)?;
                times.extend(set_up_times(&namespace)?);
            }
        }
        let [mut one, mut hundred] = times;
        let (one, hundred) = (median(&mut one), median(&mut hundred));
        Ok(json!({ "one_rule_us": one, "hundred_rules_us": hundred, "added": hundred / one - 1.0 }))
    }

    /// Memory of the service for each port that does nothing.
    fn idle(&self, service: &Path) -> Result<Value> {
        let service = Service::start(self, service)?;
        let before = service.resident()?;
        let mut links = Vec::new();
        for number in 0..IDLE_PORTS {
            let flags = SocketFlags::CLOEXEC;
            let (own, others) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            service.attach(port(&format!("idle-{number}"), vec![any()]), &others)?;
            links.push(own);
        }
        let after = service.resident()?;
        let each = after.saturating_sub(before) as f64 / f64::from(IDLE_PORTS);
        Ok(json!({ "ports": IDLE_PORTS, "service_kib": before, "port_kib": each }))
    }
}

fn connect(guest: &str) -> Result<TcpStream> {
    within(guest, || {
        let to: SocketAddr = format!("{SERVER}:{ECHO}").parse()?;
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

fn set_up_times(guest: &str) -> Result<Vec<Duration>> {
    within(guest, || {
        let to: SocketAddr = format!("{SERVER}:{ECHO}").parse()?;
        let mut times = Vec::new();
        for _ in 0..50 {
            let begin = Instant::now();
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
            times.push(begin.elapsed());
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        }
        Ok(times)
    })
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn allow(to: &str) -> Allow {
    Allow { to: to.into(), ports: vec![], protocols: vec![] }
}

fn any() -> Policy {
    Policy { allow: vec![allow("*")] }
}

fn port(name: &str, policies: Vec<Policy>) -> Port {
    Port {
        port: name.into(),
        policies,
        limits: Limits::default(),
        member: None,
        edge: vec![],
        authority: None,
    }
}

/// The service and its control connection.
struct Service {
    running: Running,
    control: OwnedFd,
}

impl Service {
    fn start(ground: &Ground, program: &Path) -> Result<Self> {
        let socket = ground.directory.path().join("net.sock");
        let program = program.to_str().context("a path that is text")?;
        let path = socket.to_str().context("a path that is text")?;
        let running =
            Running(ground.run("host", &[program, "--socket", path, "--dns", SERVER]).spawn()?);
        for _ in 0..100 {
            let flags = SocketFlags::CLOEXEC;
            let control =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            if rustix::net::connect(&control, &rustix::net::SocketAddrUnix::new(&socket)?).is_ok() {
                let service = Self { running, control };
                service.receive()?;
                return Ok(service);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the service does not listen")
    }

    fn attach(&self, port: Port, link: &OwnedFd) -> Result<()> {
        self.ask(Request::Attach(Box::new(port)), Some(link))
    }

    fn ask(&self, request: Request, fd: Option<&OwnedFd>) -> Result<()> {
        let bytes = serde_json::to_vec(&Message { id: 1, request })?;
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        rustix::net::sendmsg(
            &self.control,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::empty(),
        )?;
        match self.receive()? {
            Answer::Failed { message, .. } => bail!(message),
            _ => Ok(()),
        }
    }

    fn receive(&self) -> Result<Answer> {
        let mut room = vec![0; 200 << 10];
        let length = rustix::io::read(&self.control, &mut room)?;
        Ok(serde_json::from_slice(&room[..length])?)
    }

    /// KiB.
    fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.0.id()))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let number = line.split_whitespace().next().context("no number")?;
        Ok(number.parse()?)
    }
}
