//! The network that is made of a `ramet-net` process.
//!
//! It has a process group of its own and its socket in the run directory, so it and all connections of machines live on when the
//! node ends, and the next start takes hold of it again. One connection carries one call at a time; calls take microseconds. A
//! thread waits for the end of the process and tells of it; whoever keeps the network ([`crate::sandbox`]) starts it again.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use ramet_proto::api::network::{LogEntry, NetStats};
use ramet_proto::net::{Answer, Code, Listed, MESSAGE_MAX, Message, Outcome, Port, Request};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use super::{Error, Network, State, pair};

/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Time for a new process to listen, and for one to end.
const START: Duration = Duration::from_secs(10);
/// Between two looks at a process that starts.
const LOOK: Duration = Duration::from_millis(5);
/// Length of its log beyond which a start begins it anew.
const LOG_MAX: u64 = 1 << 20;

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Places {
    /// `ramet-net`; looked for beside the running program when absent.
    pub program: Option<PathBuf>,
    /// Directory of its socket and its log.
    pub run: PathBuf,
    /// What else it is told.
    pub arguments: Vec<String>,
}

/// The network.
pub struct Service {
    places: Places,
    state: Arc<watch::Sender<State>>,
    line: Mutex<Option<Line>>,
}

/// A connection to the service.
struct Line {
    socket: OwnedFd,
    next: u64,
    process: OwnedFd,
}

impl Service {
    /// Not started yet.
    pub fn new(places: Places) -> Self {
        let state = watch::Sender::new(State::Down("it was not started yet".to_owned()));
        Self { places, state: Arc::new(state), line: Mutex::default() }
    }

    fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn socket(&self) -> PathBuf {
        self.places.run.join("net.sock")
    }

    fn call(&self, request: Request, link: Option<&OwnedFd>) -> Result<Outcome, Error> {
        let mut line = self.line();
        let Some(open) = line.as_mut() else {
            let State::Down(reason) = &*self.state.borrow() else {
                return Err(Error::Down("it has just ended".to_owned()));
            };
            return Err(Error::Down(reason.clone()));
        };
        let called = open.call(request, link);
        if !matches!(called, Ok(_) | Err(Error::Refused { .. })) {
            // What comes on it later would be taken for another answer.
            *line = Line::open(&self.socket()).ok();
        }
        called
    }

    fn program(&self) -> Result<PathBuf, Error> {
        if let Some(program) = &self.places.program {
            return Ok(program.clone());
        }
        let own = std::env::current_exe()?;
        let mut beside = own.ancestors().skip(1).take(2).map(|place| place.join("ramet-net"));
        beside.find(|path| path.is_file()).ok_or_else(|| {
            let own = own.display();
            Error::Down(format!("there is no ramet-net beside {own}, and RAMET_NET is not set"))
        })
    }

    /// The service of an earlier start, if it runs and speaks as this node does.
    fn adopt(&self) -> Option<Line> {
        match Line::open(&self.socket()) {
            Ok(line) => Some(line),
            Err(Error::Protocol(text)) => {
                tracing::warn!(
                    text,
                    "the network service that runs is of another version, and ended"
                );
                if let Ok(Some(process)) = process_at(&self.socket()) {
                    end(&process);
                }
                None
            }
            Err(_) => None,
        }
    }

    fn spawn(&self) -> Result<Line, Error> {
        let program = self.program()?;
        let socket = self.socket();
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let log = log(&self.places.run)?;
        let mut command = Command::new(&program);
        // In one word: a sweep takes `--socket` and a path for a monitor.
        command.arg(format!("--socket={}", socket.display())).args(&self.places.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let mut child = command.spawn().map_err(|error| {
            Error::Down(format!("{} cannot be started: {error}", program.display()))
        })?;
        let line = await_line(&socket, &mut child);
        if line.is_err() {
            // It may have ended by itself.
            let _gone = child.kill();
        }
        thread::spawn(move || child.wait());
        line
    }

    /// Tells when the process ends.
    fn watch(&self, process: OwnedFd) {
        let state = self.state.clone();
        thread::spawn(move || {
            while !ended(&process, PollTimeout::NONE) {}
            state.send_replace(State::Down("it has ended; it is started again".to_owned()));
        });
    }
}

impl Network for Service {
    fn start(&self) -> Result<(), Error> {
        if *self.state.borrow() == State::Up && self.line().is_some() {
            return Ok(());
        }
        *self.line() = None;
        let line = match self.adopt() {
            Some(line) => Ok(line),
            None => self.spawn(),
        };
        let line = line.inspect_err(|error| {
            self.state.send_replace(State::Down(match error {
                Error::Down(reason) => reason.clone(),
                other => other.to_string(),
            }));
        })?;
        let process = line.process.try_clone()?;
        *self.line() = Some(line);
        self.state.send_replace(State::Up);
        self.watch(process);
        Ok(())
    }

    fn stop(&self) {
        let process = self.line().as_ref().and_then(|line| line.process.try_clone().ok());
        // It may hang up before it has answered.
        drop(self.call(Request::Stop {}, None));
        if let Some(process) = process {
            end(&process);
        }
    }

    fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    fn attach(&self, port: &Port) -> Result<OwnedFd, Error> {
        let (machine, service) = pair()?;
        let request = Request::Attach(Box::new(port.clone()));
        self.call(request, Some(&service)).map(|_| machine)
    }

    fn configure(&self, port: &Port) -> Result<(), Error> {
        self.call(Request::Configure(Box::new(port.clone())), None).map(drop)
    }

    fn detach(&self, port: &str) -> Result<(), Error> {
        match self.call(Request::Detach { port: port.to_owned() }, None) {
            Err(Error::Refused { code: Code::NotFound, .. }) => Ok(()),
            detached => detached.map(drop),
        }
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        match self.call(Request::List {}, None)? {
            Outcome::Ports(ports) => Ok(ports),
            other => Err(unexpected(&other)),
        }
    }

    fn stats(&self, port: &str) -> Result<NetStats, Error> {
        match self.call(Request::Stats { port: port.to_owned() }, None)? {
            Outcome::Stats(stats) => Ok(*stats),
            other => Err(unexpected(&other)),
        }
    }

    fn log(&self, port: &str, after: u64, limit: u32) -> Result<Vec<LogEntry>, Error> {
        match self.call(Request::Log { port: port.to_owned(), after, limit }, None)? {
            Outcome::Log(entries) => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }
}

impl Line {
    /// Connects, and hears who is there.
    fn open(path: &Path) -> Result<Self, Error> {
        let socket = dial(path)?;
        let (version, pid) = match receive(&socket)? {
            Answer::Hello { version, pid } => (version, pid),
            other => return Err(Error::Protocol(format!("no greeting: {other:?}"))),
        };
        if version != ramet_proto::VERSION {
            return Err(Error::Protocol(format!("it speaks version {version}")));
        }
        Ok(Self { socket, next: 1, process: process(pid)? })
    }

    fn call(&mut self, request: Request, link: Option<&OwnedFd>) -> Result<Outcome, Error> {
        let id = self.next;
        self.next += 1;
        let text = serde_json::to_vec(&Message { id, request });
        let text = text.map_err(|error| Error::Protocol(error.to_string()))?;
        if text.len() > MESSAGE_MAX {
            let message =
                format!("the configuration has {} bytes, at most {MESSAGE_MAX}", text.len());
            return Err(Error::Refused { code: Code::BadValue, message });
        }
        send(&self.socket, &text, link)?;
        loop {
            match receive(&self.socket)? {
                Answer::Done { id: its, outcome } if its == id => return Ok(outcome),
                Answer::Failed { id: its, code, message } if its.is_none_or(|its| its == id) => {
                    return Err(Error::Refused { code, message });
                }
                Answer::Done { id: its, .. } | Answer::Failed { id: Some(its), .. } if its < id => {
                }
                other => return Err(Error::Protocol(format!("an answer to nothing: {other:?}"))),
            }
        }
    }
}

fn dial(path: &Path) -> Result<OwnedFd, Error> {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).map_err(io::Error::from)?;
    let time = TimeVal::new(i64::try_from(ANSWER.as_secs()).unwrap_or(i64::MAX), 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &time).map_err(io::Error::from)?;
    setsockopt(&socket, sockopt::SendTimeout, &time).map_err(io::Error::from)?;
    let address = UnixAddr::new(path).map_err(io::Error::from)?;
    connect(socket.as_raw_fd(), &address).map_err(io::Error::from)?;
    Ok(socket)
}

fn send(socket: &OwnedFd, text: &[u8], link: Option<&OwnedFd>) -> Result<(), Error> {
    let raw: Vec<i32> = link.iter().map(|link| link.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
    sendmsg::<()>(fd, &[IoSlice::new(text)], rights, flags, None).map(drop).map_err(late)
}

fn receive(socket: &OwnedFd) -> Result<Answer, Error> {
    let mut text = vec![0; MESSAGE_MAX];
    match recv(socket.as_raw_fd(), &mut text, MsgFlags::empty()).map_err(late)? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        length => serde_json::from_slice(&text[..length])
            .map_err(|error| Error::Protocol(error.to_string())),
    }
}

fn late(error: nix::Error) -> Error {
    match error {
        nix::Error::EAGAIN => Error::Timeout,
        error => Error::Io(error.into()),
    }
}

fn process(pid: u32) -> Result<OwnedFd, Error> {
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let number = number.ok_or_else(|| Error::Protocol(format!("its process is {pid}")))?;
    Ok(pidfd_open(number, PidfdFlags::empty()).map_err(io::Error::from)?)
}

/// The process that listens there, whatever it speaks.
fn process_at(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let socket = dial(path)?;
    let peer = nix::sys::socket::getsockopt(&socket, sockopt::PeerCredentials);
    let pid = u32::try_from(peer.map_err(io::Error::from)?.pid()).unwrap_or(0);
    process(pid).map(Some)
}

/// Whether a process has ended, waiting for it at most so long.
fn ended(process: &OwnedFd, time: PollTimeout) -> bool {
    let mut wait = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut wait, time), Ok(count) if count > 0)
}

/// Ends a process: asks it, and after a while forces it.
fn end(process: &OwnedFd) {
    let patience = PollTimeout::try_from(START).unwrap_or(PollTimeout::MAX);
    for signal in [Signal::TERM, Signal::KILL] {
        // One that has ended needs no signal.
        let _gone = pidfd_send_signal(process, signal);
        if ended(process, patience) {
            return;
        }
    }
}

/// Waits until a new process listens.
fn await_line(socket: &Path, child: &mut Child) -> Result<Line, Error> {
    let end = Instant::now() + START;
    loop {
        match Line::open(socket) {
            Ok(line) => return Ok(line),
            Err(error @ Error::Protocol(_)) => return Err(error),
            Err(error) => match child.try_wait()? {
                Some(status) => {
                    let text = format!("it ended at once ({status}); its log is beside its socket");
                    return Err(Error::Down(text));
                }
                None if Instant::now() > end => return Err(error),
                None => thread::sleep(LOOK),
            },
        }
    }
}

/// Where it writes what it has to say; begun anew when it has grown.
fn log(run: &Path) -> io::Result<fs::File> {
    let path = run.join("network.log");
    match fs::metadata(&path) {
        Ok(found) if found.len() > LOG_MAX => fs::remove_file(&path)?,
        _ => {}
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn unexpected(outcome: &Outcome) -> Error {
    Error::Protocol(format!("an answer to another request: {outcome:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(run: &Path, program: &str) -> Service {
        let program = Some(program.into());
        Service::new(Places { program, run: run.to_owned(), arguments: Vec::new() })
    }

    #[test]
    fn a_program_that_ends_at_once_is_no_network() {
        let run = tempfile::tempdir().unwrap();
        for (program, said) in [("/bin/false", "ended at once"), ("/no/such", "cannot be started")]
        {
            let network = service(run.path(), program);
            let Err(Error::Down(reason)) = network.start() else { panic!("it runs") };
            assert!(reason.contains(said), "{reason}");
            assert_eq!(*network.state().borrow(), State::Down(reason.clone()));
            assert!(matches!(network.list(), Err(Error::Down(same)) if same == reason));
        }
    }

    /// A process that listens, greets, and answers as the script says; it hears which descriptors came.
    fn scripted(
        socket: &Path,
        version: u32,
        script: Vec<&'static str>,
    ) -> thread::JoinHandle<Vec<String>> {
        use nix::sys::socket::{Backlog, accept, bind, listen};
        let listener = socket_for_tests();
        bind(listener.as_raw_fd(), &UnixAddr::new(socket).unwrap()).unwrap();
        listen(&listener, Backlog::new(4).unwrap()).unwrap();
        thread::spawn(move || {
            let raw = accept(listener.as_raw_fd()).unwrap();
            let hello =
                format!(r#"{{"hello":{{"version":{version},"pid":{}}}}}"#, std::process::id());
            let say = |text: &str| {
                nix::sys::socket::send(raw, text.as_bytes(), MsgFlags::empty()).unwrap()
            };
            say(&hello);
            let mut heard = Vec::new();
            for answer in script {
                let mut text = vec![0; MESSAGE_MAX];
                let length = recv(raw, &mut text, MsgFlags::empty()).unwrap();
                heard.push(String::from_utf8_lossy(&text[..length]).into_owned());
                say(answer);
            }
            nix::unistd::close(raw).unwrap();
            heard
        })
    }

    fn socket_for_tests() -> OwnedFd {
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
    }

    #[test]
    fn one_that_runs_is_taken_hold_of() {
        let run = tempfile::tempdir().unwrap();
        let script = vec![
            r#"{"done":{"id":1,"outcome":{"ports":[{"port":"sbx-1","linked":true}]}}}"#,
            r#"{"failed":{"id":2,"code":"not_found","message":"no"}}"#,
            r#"{"failed":{"id":3,"code":"bad_value","message":"a rule"}}"#,
        ];
        let peer = scripted(&run.path().join("net.sock"), ramet_proto::VERSION, script);
        let network = service(run.path(), "/no/such");
        network.start().unwrap();
        assert_eq!(*network.state().borrow(), State::Up);
        assert_eq!(network.list().unwrap(), [Listed { port: "sbx-1".into(), linked: true }]);
        network.detach("sbx-2").unwrap();
        let refused = network.stats("sbx-1");
        assert!(matches!(refused, Err(Error::Refused { code: Code::BadValue, .. })), "{refused:?}");
        let heard = peer.join().unwrap();
        assert_eq!(heard[1], r#"{"id":2,"request":{"detach":{"port":"sbx-2"}}}"#);
        // It has hung up, and nobody else is there.
        assert!(network.list().is_err());
        assert!(matches!(network.list(), Err(Error::Down(_))));
    }

    #[test]
    fn frames_keep_their_edges() {
        let (one, other) = pair().unwrap();
        for length in [1, 60_000, 7] {
            let bytes = vec![7; length];
            send(&one, &bytes, None).unwrap();
            let mut got = vec![0; 1 << 17];
            assert_eq!(recv(other.as_raw_fd(), &mut got, MsgFlags::empty()).unwrap(), length);
        }
    }
}
