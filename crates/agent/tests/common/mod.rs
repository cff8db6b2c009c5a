//! An agent of its own for each test, and a client that speaks its frames.
//!
//! The client's framing is written from the protocol's text, not shared with the agent, so that a
//! mistake in one is seen by the other. Every read has a deadline: a test fails, it does not hang.
#![expect(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ramet_proto::agent::{Channel, Entry, Exec, Exited, Failure, Input, Reply, Request};

/// Nothing in these tests takes longer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running agent and a directory for its test.
pub struct Agent {
    process: Child,
    directory: tempfile::TempDir,
}

impl Agent {
    /// Start one and wait until it takes sessions.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("agent.sock");
        // The soft limit that a session of a user has: the agent must cope by itself.
        let process = Command::new("sh")
            .args(["-c", "ulimit -S -n 1024; exec \"$0\" serve --unix \"$1\""])
            .arg(env!("CARGO_BIN_EXE_ramet-agent"))
            .arg(&socket)
            .spawn()
            .expect("the agent starts");
        let agent = Self { process, directory };
        until("the agent listens", || UnixStream::connect(agent.socket()).is_ok());
        agent
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    /// A path in the test's own directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A connection on which nothing was sent.
    pub fn connect(&self) -> Session {
        let stream = UnixStream::connect(self.socket()).expect("the agent accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Session { stream }
    }

    /// A session with this request.
    pub fn ask(&self, request: &Request) -> Session {
        let mut session = self.connect();
        session.send(request);
        session
    }

    /// The only answer to a request.
    pub fn answer(&self, request: &Request) -> Reply {
        self.ask(request).reply()
    }

    pub fn failure(&self, request: &Request) -> Failure {
        match self.answer(request) {
            Reply::Error(failure) => failure,
            other => panic!("{request:?} gave {other:?}"),
        }
    }

    pub fn exec(&self, exec: &Exec) -> Session {
        self.ask(&Request::Exec(exec.clone()))
    }

    /// Run a shell script to its end.
    pub fn shell(&self, script: &str) -> Ran {
        self.exec(&shell(script)).run()
    }

    pub fn stat(&self, path: &str) -> Entry {
        match self.answer(&Request::Stat { path: path.to_owned() }) {
            Reply::Stat(entry) => entry,
            other => panic!("stat {path} gave {other:?}"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // What the test left running are the agent's children, so they are found and ended first.
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        for pid in std::fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            let _ = Command::new("kill").args(["-9", pid]).output();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `sh -c script`.
pub fn shell(script: &str) -> Exec {
    Exec { argv: vec!["sh".into(), "-c".into(), script.into()], ..Exec::default() }
}

/// Wait for something that will happen.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Is there a process with this pid that has not ended?
pub fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
}

/// What a process left.
#[derive(Debug)]
pub struct Ran {
    pub pid: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exited: Exited,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8")
    }
}

/// One connection.
pub struct Session {
    pub stream: UnixStream,
}

impl Session {
    pub fn send(&mut self, message: &impl serde::Serialize) {
        self.bytes(Channel::Message, &serde_json::to_vec(message).expect("JSON"));
    }

    pub fn input(&mut self, input: Input) {
        self.send(&input);
    }

    pub fn bytes(&mut self, channel: Channel, bytes: &[u8]) {
        self.try_bytes(channel, bytes).expect("the agent takes it");
    }

    pub fn try_bytes(&mut self, channel: Channel, bytes: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(bytes.len()).expect("short");
        self.stream.write_all(&length.to_le_bytes())?;
        self.stream.write_all(&[channel as u8])?;
        self.stream.write_all(bytes)
    }

    /// The next frame; `None` when the agent has closed.
    pub fn frame(&mut self) -> Option<(Channel, Vec<u8>)> {
        let mut head = [0; 5];
        let mut filled = 0;
        while filled < head.len() {
            match self.stream.read(&mut head[filled..]) {
                Ok(0) if filled == 0 => return None,
                Ok(0) => panic!("the agent closed within a frame"),
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                // A socket with a time limit is interrupted when its process was stopped and goes on, handlers or not.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("no frame: {error}"),
            }
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut body = vec![0; usize::try_from(length).expect("short")];
        self.stream.read_exact(&mut body).expect("a whole frame");
        Some((Channel::from_u8(head[4]).expect("a channel"), body))
    }

    /// The next frame, which is a message.
    pub fn reply(&mut self) -> Reply {
        match self.frame() {
            Some((Channel::Message, body)) => serde_json::from_slice(&body).expect("a reply"),
            other => panic!("a message was due: {other:?}"),
        }
    }

    pub fn started(&mut self) -> i32 {
        match self.reply() {
            Reply::Started { pid } => pid,
            other => panic!("started was due: {other:?}"),
        }
    }

    /// From `Started` to `Exited`.
    pub fn run(&mut self) -> Ran {
        let pid = self.started();
        self.rest(pid)
    }

    /// From here to `Exited`.
    pub fn rest(&mut self, pid: i32) -> Ran {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.frame() {
                Some((Channel::Stdout, bytes)) => stdout.extend(bytes),
                Some((Channel::Stderr, bytes)) => stderr.extend(bytes),
                Some((Channel::Message, body)) => {
                    match serde_json::from_slice(&body).expect("a reply") {
                        Reply::Exited(exited) => {
                            return Ran { pid, stdout, stderr, exited };
                        }
                        other => panic!("output or exited was due: {other:?}"),
                    }
                }
                other => panic!("output was due: {other:?}"),
            }
        }
    }

    /// Read output until it contains this.
    pub fn read_until(&mut self, text: &str) -> String {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(text) {
            match self.frame() {
                Some((Channel::Stdout | Channel::Stderr, bytes)) => all.extend(bytes),
                other => panic!("output with {text:?} was due: {other:?}"),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}
