//! Monitors as processes, machines as handles.
//!
//! [`Monitor`] starts `ramet-vmm` processes whose sockets live in one run directory. Each process is
//! one [`Machine`]; a fork makes more of both. A handle owns its machine: dropping it kills the
//! process and removes its socket, unless it was [detached](Machine::detach). A process is held by
//! pidfd, because a forked monitor is nobody's child that we could wait for.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as ChildProcess, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ramet_proto::agent::PORT;
use ramet_proto::control::{
    Attach, Boot, Child, Code, Failure, Fork, Forked, Outcome, Request, Restore, Saved, Stats,
    Status,
};
use ramet_proto::needs::Needs;

use crate::control::{Connection, Error, Events};
use crate::session::Agent;
use crate::sys::PidFd;

/// Time for a monitor to come up.
const START: Duration = Duration::from_secs(10);
/// Time for a monitor to end after it was asked to, before SIGKILL, and again after that.
const END: Duration = Duration::from_secs(5);

/// Starts monitors.
#[derive(Debug, Clone)]
pub struct Monitor {
    program: PathBuf,
    run: Arc<RunDirectory>,
    /// Where monitors write what they have to say; our own standard error when absent.
    log: Option<PathBuf>,
}

/// Where the sockets of machines are, and the number of the next one.
#[derive(Debug)]
struct RunDirectory {
    path: PathBuf,
    next: AtomicU64,
}

impl RunDirectory {
    fn socket(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join(format!("{number}.sock"))
    }
}

impl Monitor {
    /// Uses the program named by `RAMET_VMM`, or else `ramet-vmm` beside the running program or in
    /// the directory above it (where cargo puts it for tests). The run directory must exist.
    pub fn find(run_directory: &Path) -> Result<Self, Error> {
        let program = match env::var_os("RAMET_VMM") {
            Some(path) => PathBuf::from(path),
            None => beside().map_err(Error::Io)?,
        };
        Ok(Self::new(program, run_directory))
    }

    /// Uses this program.
    pub fn new(program: PathBuf, run_directory: &Path) -> Self {
        let run = RunDirectory { path: run_directory.to_owned(), next: AtomicU64::new(0) };
        Self { program, run: Arc::new(run), log: None }
    }

    /// Writes the layers of a volume into its base, within this time. False if somebody reads the volume: then it
    /// stays as it is.
    pub fn fold(&self, volume: &Path, time: Duration) -> Result<bool, Error> {
        let child = Command::new(&self.program)
            .arg("fold")
            .arg(volume)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::Io)?;
        let process = PidFd::open(child.id()).map_err(Error::Io)?;
        if !process.wait(time).map_err(Error::Io)? {
            // It is begun anew the next time.
            process.kill().map_err(Error::Io)?;
        }
        let output = child.wait_with_output().map_err(Error::Io)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let message = format!("the layers of a volume cannot be folded: {}", text.trim());
            return Err(Failure { code: Code::Host, message }.into());
        }
        Ok(output.stdout.starts_with(b"folded"))
    }

    /// Has monitors append to this file what they have to say. Without it they hold our standard
    /// error open, and whoever reads that to its end waits for them.
    pub fn with_log(mut self, path: PathBuf) -> Self {
        self.log = Some(path);
        self
    }

    /// Starts a process whose machine is empty.
    pub fn start(&self) -> Result<Machine, Error> {
        let socket = self.run.socket();
        let stderr = match &self.log {
            Some(path) => fs::OpenOptions::new().create(true).append(true).open(path)?.into(),
            None => Stdio::inherit(),
        };
        let mut child = Command::new(&self.program)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            // A signal to the group of whoever starts it, such as from a terminal, is not for it.
            .process_group(0)
            .spawn()
            .map_err(Error::Io)?;
        let process = PidFd::open(child.id()).map_err(Error::Io)?;
        let stream = await_socket(&socket, &mut child);
        let pid = child.id();
        let machine =
            Machine::new(self.run.clone(), socket, Process { pid, process, child: Some(child) });
        machine.keep(Connection::new(stream?));
        Ok(machine)
    }

    /// What machines that boot here will need to go on elsewhere.
    pub fn needs(&self) -> Result<Needs, Error> {
        let mut child = Command::new(&self.program)
            .arg("needs")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::Io)?;
        let end = Instant::now() + START;
        // It says less than a pipe holds, so it ends without being read.
        while child.try_wait().map_err(Error::Io)?.is_none() {
            if Instant::now() > end {
                // Whether it could be killed does not matter: it is given up.
                let _killed = child.kill();
                let _ended = child.wait();
                return Err(Error::Timeout);
            }
            thread::sleep(Duration::from_millis(2));
        }
        let said = child.wait_with_output().map_err(Error::Io)?;
        serde_json::from_slice(&said.stdout).map_err(|_| {
            let text = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            Error::Protocol(format!("it does not tell what it needs: {text}"))
        })
    }

    /// Takes hold of a machine whose handle was detached.
    pub fn adopt(&self, socket: &Path) -> Result<Machine, Error> {
        let mut connection = Connection::open(socket)?;
        let status = expect_status(connection.call(Request::Status {}, &[])?)?;
        let process = PidFd::open(status.pid).map_err(Error::Io)?;
        let process = Process { pid: status.pid, process, child: None };
        let machine = Machine::new(self.run.clone(), socket.to_owned(), process);
        machine.keep(connection);
        Ok(machine)
    }
}

/// `ramet-vmm` near the running program.
fn beside() -> io::Result<PathBuf> {
    let own = env::current_exe()?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("ramet-vmm"))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let text = format!("no ramet-vmm beside {} and RAMET_VMM is not set", own.display());
            io::Error::new(io::ErrorKind::NotFound, text)
        })
}

/// Waits until a new process listens.
fn await_socket(socket: &Path, child: &mut ChildProcess) -> Result<UnixStream, Error> {
    let end = Instant::now() + START;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(_) if child.try_wait().map_err(Error::Io)?.is_some() => return Err(Error::Closed),
            Err(error) if Instant::now() > end => return Err(Error::Io(error)),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The process of a machine.
#[derive(Debug)]
struct Process {
    pid: u32,
    process: PidFd,
    /// Only if we started it ourselves: it must be reaped.
    child: Option<ChildProcess>,
}

/// A machine and the process that it is.
#[derive(Debug)]
pub struct Machine {
    run: Arc<RunDirectory>,
    socket: PathBuf,
    process: Process,
    /// One connection is kept between calls; calls at the same time open their own.
    connection: Mutex<Option<Connection>>,
    detached: bool,
}

/// What came of a fork.
#[derive(Debug)]
pub struct Offspring {
    /// From the request to the moment the guest was at the doorbell.
    pub rendezvous_us: u64,
    /// What the source lost.
    pub pause_us: u64,
    /// The part of it spent in fork(2).
    pub fork_us: u64,
    /// One for each child that was asked for, in order.
    pub children: Vec<Result<Newborn, Failure>>,
}

/// A child of a fork. Times count from the source's stop.
#[derive(Debug)]
pub struct Newborn {
    /// Its handle.
    pub machine: Machine,
    /// Its guest was entered.
    pub entered_us: u64,
    /// Its agent has its identity.
    pub ready_us: u64,
}

impl Offspring {
    /// All machines, or the first failure; then the others are killed.
    pub fn all(self) -> Result<Vec<Machine>, Error> {
        let children = self.children.into_iter();
        children.map(|child| child.map(|born| born.machine).map_err(Error::from)).collect()
    }
}

impl Machine {
    fn new(run: Arc<RunDirectory>, socket: PathBuf, process: Process) -> Self {
        Self { run, socket, process, connection: Mutex::new(None), detached: false }
    }

    /// Where its monitor listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The monitor's process.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Opens another connection.
    pub fn connect(&self) -> Result<Connection, Error> {
        Connection::open(&self.socket)
    }

    /// Asks the monitor.
    pub fn call(&self, request: Request) -> Result<Outcome, Error> {
        self.call_with(request, &[])
    }

    /// Makes the machine.
    pub fn boot(&self, boot: Boot) -> Result<(), Error> {
        expect_nothing(self.call(Request::Boot(boot))?)
    }

    /// Makes the machine from a directory that [`Self::save`] wrote.
    pub fn restore(&self, restore: Restore) -> Result<(), Error> {
        expect_nothing(self.call(Request::Restore(restore))?)
    }

    /// What it is.
    pub fn status(&self) -> Result<Status, Error> {
        expect_status(self.call(Request::Status {})?)
    }

    /// Stops the vCPUs.
    pub fn pause(&self) -> Result<(), Error> {
        expect_nothing(self.call(Request::Pause {})?)
    }

    /// Goes on.
    pub fn resume(&self) -> Result<(), Error> {
        expect_nothing(self.call(Request::Resume {})?)
    }

    /// Makes children of this machine, all from one instant.
    pub fn fork(&self, children: Vec<Child>) -> Result<Offspring, Error> {
        self.fork_for(children, None)
    }

    /// As [`Self::fork`], in answer to the guest's own call.
    pub fn fork_for(&self, children: Vec<Child>, call: Option<u64>) -> Result<Offspring, Error> {
        let count = children.len();
        self.multiply(Request::Fork(Fork { children, call, resume: false }), count)
    }

    /// As [`Self::fork`], of a machine that is paused and goes on afterwards.
    pub fn fork_and_resume(&self, children: Vec<Child>) -> Result<Offspring, Error> {
        let count = children.len();
        self.multiply(Request::Fork(Fork { children, call: None, resume: true }), count)
    }

    /// As [`Self::fork`], with that many children that need no identity.
    pub fn fork_plain(&self, count: usize) -> Result<Offspring, Error> {
        self.fork(vec![Child::default(); count])
    }

    /// Makes a copy that never runs.
    pub fn checkpoint(&self) -> Result<Machine, Error> {
        let mut machines = self.multiply(Request::Checkpoint {}, 1)?.all()?;
        machines.pop().ok_or_else(|| Error::Protocol("a checkpoint without a child".to_owned()))
    }

    /// Writes the machine to a directory while it runs on. With `sync`, it is on the disk at the end.
    pub fn save(&self, directory: &Path, sync: bool) -> Result<Saved, Error> {
        self.write(directory, sync, false)
    }

    /// Likewise, but only its disks; another machine can boot with them.
    pub fn save_disks(&self, directory: &Path, sync: bool) -> Result<Saved, Error> {
        self.write(directory, sync, true)
    }

    fn write(&self, directory: &Path, sync: bool, only_disks: bool) -> Result<Saved, Error> {
        let directory = text(directory)?;
        match self.call(Request::Save { directory, sync, only_disks })? {
            Outcome::Saved(saved) => Ok(saved),
            other => Err(unexpected(&other)),
        }
    }

    /// Puts a volume into a slot.
    pub fn attach(&self, slot: u8, volume: &Path, read_only: bool) -> Result<(), Error> {
        let attach = Attach { slot, volume: text(volume)?, read_only };
        expect_nothing(self.call(Request::Attach(attach))?)
    }

    /// Empties a slot.
    pub fn detach_volume(&self, slot: u8) -> Result<(), Error> {
        expect_nothing(self.call(Request::Detach { slot })?)
    }

    /// Connects the network device to this link, or to none.
    pub fn plug(&self, link: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        expect_nothing(self.call_with(Request::Plug {}, link.as_slice())?)
    }

    /// Figures.
    pub fn stats(&self) -> Result<Stats, Error> {
        match self.call(Request::Stats {})? {
            Outcome::Stats(stats) => Ok(*stats),
            other => Err(unexpected(&other)),
        }
    }

    /// The console's latest output, and how much was ever written.
    pub fn console(&self) -> Result<(u64, String), Error> {
        match self.call(Request::Console {})? {
            Outcome::Console { written, text } => Ok((written, text)),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads guest memory, at most 64 KiB.
    pub fn read_memory(&self, address: u64, length: u32) -> Result<Vec<u8>, Error> {
        match self.call(Request::ReadMemory { address, length })? {
            Outcome::Memory { hex } => {
                from_hex(&hex).ok_or_else(|| Error::Protocol("memory that is no hex".to_owned()))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Writes guest memory, at most 64 KiB.
    pub fn write_memory(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        expect_nothing(self.call(Request::WriteMemory { address, hex: to_hex(bytes) })?)
    }

    /// Hears what happens.
    pub fn events(&self) -> Result<Events, Error> {
        self.connect()?.subscribe()
    }

    /// The agent inside, through the monitor's socket. It is usable without this handle.
    pub fn agent(&self) -> Agent {
        let socket = self.socket.clone();
        Agent::new(move || Ok(Connection::open(&socket)?.connect(PORT)?))
    }

    /// Ends the process and waits for its end; SIGKILL if it does not go by itself.
    pub fn kill(mut self) -> Result<(), Error> {
        if let Ok(mut connection) = self.connect() {
            connection.set_deadline(END);
            // The answer may not arrive, so what it says does not matter; the end does.
            drop(connection.call(Request::Kill {}, &[]));
        }
        self.end(END)
    }

    /// Ends the process with SIGKILL, whatever it is doing.
    pub fn kill_hard(mut self) -> Result<(), Error> {
        self.end(Duration::ZERO)
    }

    /// As [`Self::kill_hard`] for many: all are told before the first is waited for, so that those
    /// that run do not keep the processors from those that end.
    pub fn kill_all(machines: Vec<Self>) -> Result<(), Error> {
        for machine in &machines {
            machine.process.process.kill().map_err(Error::Io)?;
        }
        machines.into_iter().try_for_each(Self::kill_hard)
    }

    /// Waits until the process has ended by itself; false if it has not within this time.
    pub fn wait_end(&self, time: Duration) -> Result<bool, Error> {
        self.process.process.wait(time).map_err(Error::Io)
    }

    /// Lets the machine live on after this handle. [`Monitor::adopt`] takes hold of it again.
    pub fn detach(mut self) -> PathBuf {
        self.detached = true;
        self.socket.clone()
    }

    fn call_with(
        &self,
        request: Request,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Outcome, Error> {
        let kept = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut connection = kept.map_or_else(|| self.connect(), Ok)?;
        let result = connection.call(request, descriptors);
        if matches!(result, Ok(_) | Err(Error::Failure { .. })) {
            self.keep(connection);
        }
        result
    }

    fn keep(&self, connection: Connection) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// Sends a request that makes children, with a socket for each.
    fn multiply(&self, request: Request, count: usize) -> Result<Offspring, Error> {
        let mut sockets = Vec::with_capacity(count);
        for _ in 0..count {
            sockets.push(Socket::listen(self.run.socket()).map_err(Error::Io)?);
        }
        let descriptors: Vec<_> = sockets.iter().map(|socket| socket.listener.as_fd()).collect();
        let forked = match self.call_with(request, &descriptors) {
            Ok(Outcome::Forked(forked)) if forked.children.len() == count => forked,
            Err(refused @ Error::Failure { .. }) => return Err(refused),
            other => {
                sockets.into_iter().for_each(Socket::clear);
                let error = || Error::Protocol("children of another number".to_owned());
                return Err(other.err().unwrap_or_else(error));
            }
        };
        Ok(self.take_children(forked, sockets))
    }

    fn take_children(&self, forked: Forked, sockets: Vec<Socket>) -> Offspring {
        let Forked { rendezvous_us, pause_us, fork_us, children } = forked;
        let children = children.into_iter().zip(sockets).map(|(child, socket)| {
            let born = child?;
            let process = PidFd::open(born.pid).map_err(|error| Failure {
                code: Code::ChildDied,
                message: format!("process {} of the child is gone: {error}", born.pid),
            })?;
            let process = Process { pid: born.pid, process, child: None };
            let machine = Machine::new(self.run.clone(), socket.keep(), process);
            Ok(Newborn { machine, entered_us: born.entered_us, ready_us: born.ready_us })
        });
        Offspring { rendezvous_us, pause_us, fork_us, children: children.collect() }
    }

    /// Waits for the end of the process this long, then forces it.
    fn end(&mut self, grace: Duration) -> Result<(), Error> {
        self.detached = true;
        *self.connection.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let process = &mut self.process;
        let mut gone = process.process.wait(grace).map_err(Error::Io)?;
        if !gone {
            process.process.kill().map_err(Error::Io)?;
            gone = process.process.wait(END).map_err(Error::Io)?;
        }
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::Io(error)),
            _ => {}
        }
        if !gone {
            return Err(Error::Timeout);
        }
        if let Some(child) = &mut process.child {
            child.wait().map_err(Error::Io)?;
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !self.detached
            && let Err(error) = self.end(Duration::ZERO)
        {
            eprintln!("ramet-engine: machine {} did not end: {error}", self.process.pid);
        }
    }
}

/// A listening socket for a child to be.
struct Socket {
    listener: UnixListener,
    name: Name,
}

/// The socket's name, which goes unless the child takes it over.
struct Name {
    path: PathBuf,
    kept: bool,
}

impl Socket {
    fn listen(path: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(&path)?;
        let name = Name { path, kept: false };
        Ok(Self { listener, name })
    }

    fn keep(self) -> PathBuf {
        let mut name = self.name;
        name.kept = true;
        name.path.clone()
    }

    /// The source did not live to say what came of this child: whoever serves the socket is to end.
    fn clear(self) {
        // Without our own hold on it, a socket that no child has refuses connections.
        drop(self.listener);
        if let Ok(mut connection) = Connection::open(&self.name.path) {
            connection.set_deadline(END);
            // A child that ends by itself does not answer, and neither does one that obeys.
            drop(connection.call(Request::Kill {}, &[]));
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: the caller gets the error that made it useless.
            drop(fs::remove_file(&self.path));
        }
    }
}

fn text(path: &Path) -> Result<String, Error> {
    path.to_str().map(str::to_owned).ok_or_else(|| Error::Failure {
        code: Code::BadValue,
        message: format!("{} is no UTF-8", path.display()),
    })
}

fn unexpected(outcome: &Outcome) -> Error {
    Error::Protocol(format!("an outcome of another request: {outcome:?}"))
}

fn expect_nothing(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Nothing {} => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn expect_status(outcome: Outcome) -> Result<Status, Error> {
    match outcome {
        Outcome::Status(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hex_round_trip(bytes: Vec<u8>) {
            prop_assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn hex_refuses() {
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
        assert_eq!(from_hex("00ff"), Some(vec![0, 255]));
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported() {
        let run = tempfile::tempdir().unwrap();
        let monitor = Monitor::new(PathBuf::from("/bin/false"), run.path());
        assert!(matches!(monitor.start(), Err(Error::Closed)));
        let monitor = Monitor::new(PathBuf::from("/nonexistent"), run.path());
        assert!(matches!(monitor.start(), Err(Error::Io(_))));
    }
}
