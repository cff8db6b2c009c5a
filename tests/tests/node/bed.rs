//! Nodes with real guests, and sandboxes as stories see them.
//!
//! A [`Node`] is a `rametd` process with a home of its own. One is shared by all stories that do it no harm ([`node`]); a
//! story that kills or starves a node starts its own. A [`Sandbox`] is a handle that deletes its sandbox when
//! it goes. Its methods panic with the whole story when something is not as expected, so that a test reads as
//! what should happen.
//!
//! Most stories begin with [`fresh`]: a fork of the seed, in which a Python session runs. The session is a
//! process that was started by an exec; [`Sandbox::py`] attaches to it, in every fork alike.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ramet_client::api::{
    Checkpoint, Code, CreateCheckpoint, CreateSandbox, ExecRequest, ExecResult, ForkRequest,
    Forked, PauseRequest, PromoteRequest, RewindRequest, Sandbox as Shown, StreamExec, Swapped,
    TemplateState, WriteArchiveQuery, WriteQuery,
};
use ramet_client::{Client, Error, ExecStream, Output};
use ramet_node::auth;
use ramet_node::store::Store;
use ramet_tests::linux;
use ramet_tests::patience::stretched;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::truth;

/// Time for a node to get ready: its template boots in an emulated host.
const READY: Duration = Duration::from_secs(240);
/// Time for anything else that a story waits for.
const PATIENCE: Duration = Duration::from_secs(90);
/// Token of somebody who is not the administrator.
pub const OTHER_TOKEN: &str = "another-token-of-another-principal";
/// Lines of a node's log in a report.
const LOG_SHOWN: usize = 30;

/// Reads code, a JSON string on a line each, runs it, and says when it is done.
const SESSION: &str = "\
import json, os, random, sys, time
while line := sys.stdin.readline():
    try: exec(json.loads(line), globals())
    except BaseException as error: print('!', repr(error))
    print(chr(4), flush=True)
";
const DONE: &[u8] = b"\x04\n";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
});

/// Time for anything that a story waits for, on this machine.
pub fn patience() -> Duration {
    stretched(PATIENCE)
}

/// Waits for something asynchronous.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.block_on(work)
}

/// Waits until something is so.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + patience();
    // Asking costs time that an emulated host needs for the work itself.
    let mut pause = Duration::from_millis(20);
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {:?}", patience());
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(400));
    }
}

/// The code of a request that must be refused.
pub fn refusal<T>(result: Result<T, Error>) -> Code {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.code().unwrap_or_else(|| panic!("no refusal: {error:?}")),
    }
}

/// Names and values.
pub fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What all stories share.
struct Bed {
    directory: TempDir,
    node: OnceLock<Node>,
    seed: OnceLock<(String, i32)>,
    /// Processes of every node that was started, for the watchdog.
    started: Mutex<Vec<(u32, PathBuf)>>,
}

static BED: LazyLock<Bed> = LazyLock::new(|| Bed {
    directory: TempDir::with_prefix("node").expect("a directory"),
    node: OnceLock::new(),
    seed: OnceLock::new(),
    started: Mutex::default(),
});

/// The node that all gentle stories share.
pub fn node() -> &'static Node {
    BED.node.get_or_init(|| Node::new("shared", &[]))
}

/// A directory for a story's own files.
pub fn directory(name: &str) -> PathBuf {
    let path = BED.directory.path().join(name);
    fs::create_dir_all(&path).expect("a directory");
    path
}

/// The guest's files, with the image that `cargo xtask node-tests` made instead of the usual one.
fn small_guest() -> PathBuf {
    static LINKS: LazyLock<PathBuf> = LazyLock::new(|| {
        let variable = |name| PathBuf::from(std::env::var_os(name).expect(name));
        let (guest, links) = (variable("RAMET_GUEST_DIR"), directory("small"));
        for name in ["vmlinux", "initramfs.cpio", "data.ext4"] {
            symlink(guest.join(name), links.join(name)).expect("a link");
        }
        // What is moved to other nodes has to be a file of its own.
        fs::copy(variable("RAMET_SMALL"), links.join("base.erofs")).expect("a copy");
        links
    });
    LINKS.clone()
}

/// A fork of the seed, in which the session runs.
pub fn fresh(name: &str) -> Sandbox<'static> {
    let (seed, _) = BED.seed.get_or_init(plant);
    let request = ForkRequest { names: Some(vec![name.to_owned()]), ..ForkRequest::default() };
    let forked = wait(node().client.fork(seed, &request)).unwrap_or_else(|e| node().fail(&e));
    node().handles(forked).pop().expect("one child")
}

fn plant() -> (String, i32) {
    let seed = node().create("seed");
    let argv = ["python3", "-uc", SESSION].map(str::to_owned).to_vec();
    let exec = StreamExec { argv: Some(argv), stdin: true, ..StreamExec::default() };
    let mut process = seed.stream(exec);
    let pid = process.pid();
    wait(async {
        let code = format!("{}\n", serde_json::json!("print('up')"));
        process.input().write(code.as_bytes()).await?;
        assert_eq!(heard(&mut process).await?, "up\n");
        process.input().close().await
    })
    .expect("the session answers");
    (seed.keep(), pid)
}

/// What the session says to one piece of code.
async fn heard(process: &mut ExecStream) -> Result<String, Error> {
    let mut text = Vec::new();
    while !text.ends_with(DONE) {
        match process.next().await? {
            Output::Stdout(bytes) => text.extend_from_slice(&bytes),
            Output::Stderr(bytes) => eprint!("{}", String::from_utf8_lossy(&bytes)),
            Output::Exited(exited) => panic!("the session ended: {exited:?}"),
        }
    }
    Ok(String::from_utf8_lossy(&text[..text.len() - DONE.len()]).into_owned())
}

/// Ends the shared node, and says what is left in spite of it.
pub fn end() -> Vec<String> {
    let left = BED.node.get().map(Node::end).unwrap_or_default();
    // The bed is not dropped; what cannot be removed is in a directory for such things.
    drop(fs::remove_dir_all(BED.directory.path()));
    left
}

/// The network service of the node with this home.
pub fn network_of(home: &Path) -> Option<u32> {
    let socket = format!("--socket={}/", home.display());
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("ramet-net") && line.contains(&socket)
    })
}

/// Every process of every node.
pub fn processes() -> Vec<u32> {
    let started = BED.started.lock().unwrap_or_else(PoisonError::into_inner);
    let monitors =
        started.iter().flat_map(|(_, home)| linux::processes_of(home).unwrap_or_default());
    let networks = started.iter().filter_map(|(_, home)| network_of(home));
    started.iter().map(|(pid, _)| *pid).chain(monitors).chain(networks).collect()
}

/// What a run of `ramet` said.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// It must have succeeded; its output without the last newline.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out.trim_end().to_owned()
    }

    /// It must have succeeded; its output as JSON.
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A node: a home, and a process while it runs.
pub struct Node {
    name: String,
    home: PathBuf,
    port: u16,
    arguments: Vec<String>,
    process: Mutex<Option<Child>>,
    /// Who asks is the administrator.
    pub client: Client,
    /// Who asks is somebody else.
    pub other: Client,
}

impl Drop for Node {
    fn drop(&mut self) {
        let left = self.end();
        if !left.is_empty() && !thread::panicking() {
            panic!("left of the node {}: {left:?}", self.name);
        }
    }
}

impl Node {
    /// A node that is ready, with these further options.
    pub fn new(name: &str, arguments: &[&str]) -> Self {
        let node = Self::unready(name, &directory(name), arguments);
        node.await_ready();
        node
    }

    /// A ready node whose guests have a small image, with BusyBox and nothing else: states are quickly carried about.
    pub fn small(name: &str, arguments: &[&str]) -> Self {
        let guest = small_guest();
        let guest = guest.to_str().expect("UTF-8");
        Self::new(name, &[arguments, &["--guest-dir", guest]].concat())
    }

    /// A node with this home, not yet ready.
    pub fn unready(name: &str, home: &Path, arguments: &[&str]) -> Self {
        let store = Store::open(&home.join("ramet.db")).expect("a database");
        store.add_token(&auth::hash(OTHER_TOKEN), "other", 0).expect("another principal");
        drop(store);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let url = format!("http://127.0.0.1:{port}");
        let mut node = Self {
            name: name.to_owned(),
            home: home.to_owned(),
            port,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            process: Mutex::default(),
            client: Client::new(&url, "not yet").expect("a client"),
            other: Client::new(&url, OTHER_TOKEN).expect("a client"),
        };
        node.start();
        node.client = Client::new(&url, &node.token()).expect("a client");
        node
    }

    /// Where everything of it is.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The administrator's token.
    pub fn token(&self) -> String {
        fs::read_to_string(self.home.join("token")).expect("a token").trim().to_owned()
    }

    /// Its address, without the scheme.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process of rametd.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("it runs").id()
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_file(&self) -> PathBuf {
        BED.directory.path().join(format!("{}.log", self.name))
    }

    /// Starts rametd and waits until it answers.
    pub fn start(&self) {
        self.start_with(&[]);
    }

    /// Likewise, this time with more arguments.
    pub fn start_with(&self, more: &[&str]) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file());
        let program = std::env::var_os("RAMETD").expect("RAMETD; `cargo xtask node-tests` sets it");
        let child = Command::new(program)
            .args(["--listen", &self.address()])
            .arg("--data-dir")
            .arg(&self.home)
            .args(&self.arguments)
            .args(more)
            .env("NO_COLOR", "1")
            .envs([("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")])
            .stdin(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("rametd");
        let mut started = BED.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.push((child.id(), self.home.clone()));
        drop(started);
        *self.process() = Some(child);
        eventually("the node answers", || {
            let ended = self.process().as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "rametd ended: {ended:?}\n{}", self.log());
            wait(self.client.health()).is_ok()
        });
    }

    /// Waits until sandboxes can be created.
    pub fn await_ready(&self) {
        let end = Instant::now() + stretched(READY);
        while let Err(error) = wait(self.client.ready()) {
            let shown = wait(self.client.node()).map(|node| node.templates).unwrap_or_default();
            let failed = shown.iter().any(|template| template.state == TemplateState::Failed);
            assert!(!failed && Instant::now() < end, "not ready: {error}\n{}", self.log());
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// SIGKILL to rametd alone.
    pub fn kill(&self) {
        if let Some(mut child) = self.process().take() {
            child.kill().expect("a signal");
            child.wait().expect("its end");
        }
    }

    /// As after a power failure of rametd alone.
    pub fn restart(&self) {
        self.kill();
        self.start();
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_SHOWN)..].join("\n")
    }

    /// Panics with what the node has to say about it.
    pub fn fail(&self, error: &dyn std::fmt::Debug) -> ! {
        panic!("{error:?}\nthe log of the node {}:\n{}", self.name, self.log())
    }

    /// Ends everything and says what should not have been there.
    fn end(&self) -> Vec<String> {
        let mut left = Vec::new();
        if self.process().is_some() {
            let all = wait(self.client.list_all(&Default::default())).unwrap_or_default();
            for sandbox in all {
                // The seed may have no handle; what else is there shows below.
                drop(wait(self.client.delete(&sandbox.id)));
            }
            left = truth::differences(self);
        }
        self.kill();
        let monitors = linux::processes_of(&self.home).unwrap_or_default();
        for pid in monitors.into_iter().chain(network_of(&self.home)) {
            // Who has ended meanwhile needs no killing.
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        left
    }

    /// A sandbox from the template.
    pub fn create(&self, name: &str) -> Sandbox<'_> {
        let name = Some(name.to_owned());
        self.create_as(CreateSandbox { name, ..CreateSandbox::default() })
    }

    /// A sandbox as asked for.
    pub fn create_as(&self, request: CreateSandbox) -> Sandbox<'_> {
        let created = wait(self.client.create(&request)).unwrap_or_else(|error| self.fail(&error));
        self.handle(created.sandbox.id)
    }

    /// A handle of a sandbox that is there.
    pub fn handle(&self, id: impl Into<String>) -> Sandbox<'_> {
        Sandbox { node: self, id: id.into(), kept: false }
    }

    /// Handles of all children; none may have failed.
    pub fn handles(&self, forked: Forked) -> Vec<Sandbox<'_>> {
        let child = |child: ramet_client::api::ForkedChild| match child.sandbox {
            Some(sandbox) => self.handle(sandbox.id),
            None => self.fail(&child.error),
        };
        forked.children.into_iter().map(child).collect()
    }

    /// Runs the command line against this node.
    pub fn ramet(&self, arguments: &[&str]) -> Ran {
        self.ramet_fed("", arguments)
    }

    /// Runs the command line with this standard input.
    pub fn ramet_fed(&self, input: &str, arguments: &[&str]) -> Ran {
        let mut command = ramet();
        command.env("RAMET_URL", format!("http://{}", self.address()));
        command.env("RAMET_TOKEN", self.token()).args(arguments);
        ran(command, input)
    }

    /// Sends bytes as they are, and gives everything that comes back until nothing has come for this long.
    pub fn raw(&self, request: &[u8], silence: Duration) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address()).expect("a connection");
        stream.set_read_timeout(Some(silence)).expect("a timeout");
        // A node that has heard enough hangs up; what it said before counts.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// A page as text, by GET, with the status before it.
    pub fn page(&self, path: &str) -> (u16, String) {
        let token = self.token();
        let request = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n");
        let answer =
            String::from_utf8_lossy(&self.raw(request.as_bytes(), patience())).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (status.unwrap_or_else(|| panic!("{answer}")), body.unwrap_or_default())
    }
}

/// The command line, without a node.
pub fn ramet() -> Command {
    let program = std::env::var_os("RAMET").expect("RAMET; `cargo xtask node-tests` sets it");
    let mut command = Command::new(program);
    command.env_remove("RAMET_URL").env_remove("RAMET_TOKEN").env("HOME", "/nonexistent");
    command
}

/// Runs a command to its end.
pub fn ran(mut command: Command, input: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a program");
    let mut stdin = child.stdin.take().expect("its input");
    // Whoever does not read its input may be gone already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or(-1);
    Ran { code, out: text(&output.stdout), err: text(&output.stderr) }
}

/// A sandbox, deleted when this goes.
pub struct Sandbox<'n> {
    /// Its node.
    pub node: &'n Node,
    /// Its id.
    pub id: String,
    kept: bool,
}

impl Drop for Sandbox<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // A story may have deleted it.
            drop(wait(self.node.client.delete(&self.id)));
        }
    }
}

impl<'n> Sandbox<'n> {
    /// Leaves it alone from now on.
    pub fn keep(mut self) -> String {
        self.kept = true;
        self.id.clone()
    }

    fn must<T>(&self, result: Result<T, Error>) -> T {
        result.unwrap_or_else(|error| self.node.fail(&error))
    }

    /// What the node says of it.
    pub fn shown(&self) -> Shown {
        self.must(wait(self.node.client.sandbox(&self.id)))
    }

    /// Runs a process to its end.
    pub fn exec(&self, request: &ExecRequest) -> Result<ExecResult, Error> {
        wait(self.node.client.exec(&self.id, request))
    }

    /// Runs a line for the shell to its end, whatever that is.
    pub fn run(&self, line: &str) -> ExecResult {
        let command = Some(line.to_owned());
        self.must(self.exec(&ExecRequest { command, ..ExecRequest::default() }))
    }

    /// What a line for the shell prints; it must succeed.
    pub fn sh(&self, line: &str) -> String {
        let result = self.run(line);
        assert!(result.ok, "{line}: {result:?}");
        result.stdout.trim_end().to_owned()
    }

    /// Starts a process whose output is streamed.
    pub fn stream(&self, exec: StreamExec) -> ExecStream {
        self.must(wait(self.node.client.exec_stream(&self.id, exec)))
    }

    /// Joins a process, when whoever had it before has let go.
    pub fn attach(&self, pid: i32) -> ExecStream {
        let end = Instant::now() + patience();
        loop {
            match wait(self.node.client.attach(&self.id, pid)) {
                Err(error) if error.code() == Some(Code::TooMany) && Instant::now() < end => {
                    thread::sleep(Duration::from_millis(20));
                }
                result => return self.must(result),
            }
        }
    }

    /// What code prints in the session; without the last newline.
    pub fn py(&self, code: &str) -> String {
        let (_, pid) = BED.seed.get().expect("a seed");
        let mut process = self.attach(*pid);
        let line = format!("{}\n", serde_json::json!(code));
        let said = wait(async {
            process.input().write(line.as_bytes()).await?;
            let said = tokio::time::timeout(patience(), heard(&mut process)).await;
            let said = said.unwrap_or_else(|_| panic!("{code}: no answer"))?;
            process.input().close().await?;
            Ok(said)
        });
        let said: String = self.must(said);
        assert!(!said.starts_with('!'), "{code}: {said}");
        said.trim_end().to_owned()
    }

    /// Unpacks an archive over its files: one that `cargo xtask node-tests` made and left the name of in this variable.
    pub fn unpack(&self, variable: &str) {
        let archive = fs::read(std::env::var_os(variable).expect(variable)).expect("an archive");
        let query = WriteArchiveQuery { path: "/".to_owned(), ..WriteArchiveQuery::default() };
        let archive = std::io::Cursor::new(archive);
        self.must(wait(self.node.client.write_archive(&self.id, &query, archive)));
    }

    /// Writes a file.
    pub fn put(&self, path: &str, content: &str) {
        self.must(self.try_put(path, content));
    }

    /// Writes a file, or says why not.
    pub fn try_put(&self, path: &str, content: &str) -> Result<(), Error> {
        let query = WriteQuery { path: path.to_owned(), ..WriteQuery::default() };
        let content = content.as_bytes().to_vec();
        wait(self.node.client.write_file(&self.id, &query, content)).map(drop)
    }

    /// A whole file, as text.
    pub fn get(&self, path: &str) -> String {
        self.must(self.try_get(path))
    }

    /// A whole file, or why not.
    pub fn try_get(&self, path: &str) -> Result<String, Error> {
        wait(async {
            let mut reader = self.node.client.read_file(&self.id, path).await?;
            let mut content = Vec::new();
            while let Some(bytes) = reader.next().await? {
                content.extend_from_slice(&bytes);
            }
            Ok(String::from_utf8_lossy(&content).into_owned())
        })
    }

    /// Children, all there.
    pub fn fork(&self, count: u32) -> Vec<Sandbox<'n>> {
        self.fork_as(ForkRequest { count: Some(count), ..ForkRequest::default() })
    }

    /// Children as asked for, all there.
    pub fn fork_as(&self, request: ForkRequest) -> Vec<Sandbox<'n>> {
        self.node.handles(self.must(wait(self.node.client.fork(&self.id, &request))))
    }

    /// Keeps this moment.
    pub fn checkpoint(&self, name: &str) -> Checkpoint {
        let request = CreateCheckpoint { name: Some(name.to_owned()) };
        self.must(wait(self.node.client.checkpoint(&self.id, &request)))
    }

    /// Goes back.
    pub fn rewind(&self, checkpoint: &str) -> Swapped {
        let request = RewindRequest { checkpoint: checkpoint.to_owned() };
        self.must(wait(self.node.client.rewind(&self.id, &request)))
    }

    /// Goes on as another did.
    pub fn promote(&self, winner: &Sandbox<'_>) -> Swapped {
        let request = PromoteRequest { winner: winner.id.clone(), inherit_secrets: None };
        self.must(wait(self.node.client.promote(&self.id, &request)))
    }

    /// Stands still.
    pub fn pause(&self) -> Shown {
        self.must(wait(self.node.client.pause(&self.id, &PauseRequest::default())))
    }

    /// Goes on.
    pub fn resume(&self) -> Shown {
        self.must(wait(self.node.client.resume(&self.id)))
    }

    /// Is no more.
    pub fn delete(self) {
        self.must(wait(self.node.client.delete(&self.id)));
    }
}
