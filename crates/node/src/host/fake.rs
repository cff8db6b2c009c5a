//! An engine without machines, for tests: what a fork copies is a map of files.
//!
//! Its agent knows a handful of commands: `hostname`, `env NAME`, `cat` (its input), `spam N` (bytes of output), `fail`
//! (exit code 3), `wait` (until the client goes), `place` (its user and directory), `put FILE TEXT`, and everything else is an echo. Files
//! are real enough to write, read, list and remove; an archive is any bytes, and one that begins with `bad` is refused. Its ports are those
//! of this very machine. One process runs that can be joined and fed: what it is fed is the file `/fed`. A watch tells of one change and of an overflow; below `/gone` it then breaks off.
//! Volumes can be mounted anywhere but at `/refused`, and are in use while there is a file `/busy`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ramet_engine::session::{FrameReader, FrameWriter};
use ramet_proto::agent::{
    Account, Accounts, Change, ChangeKind, Channel, Command, Dial, Entry, Exec, Exited, Failure,
    FileKind, Group, Identity, Layered, LayeredKind, Listener, Name, Place, Process, Reply,
    Request, Seen, SeenKind, Unpacked, Usage, path_order, path_within,
};
use ramet_proto::control::{Code, Stats};
use ramet_proto::needs::Needs;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Born, Condition, Cpu, End, Engine, Error, ForkCall, HostMemory, MachineId, Medium, Offspring,
    Origin, Save, Saved, Watched,
};

/// Where guests have their interpreter.
const INTERPRETER_PORT: u16 = 49_999;
/// Names of the files of a saved machine.
const STATE: &str = "state";
const DISKS: &str = "disks";

type Files = BTreeMap<String, Vec<u8>>;

struct Machine {
    identity: Identity,
    condition: Condition,
    cpu: Cpu,
    files: Arc<Mutex<Files>>,
    media: BTreeMap<u8, Medium>,
    link: Option<OwnedFd>,
    trusts: Arc<Mutex<Option<String>>>,
    told: Option<oneshot::Sender<End>>,
    called: Option<mpsc::Sender<ForkCall>>,
}

#[derive(Default)]
struct State {
    machines: BTreeMap<MachineId, Machine>,
    next: u64,
    available_mib: u64,
    failing: BTreeSet<usize>,
    boots: usize,
    slow: Duration,
    agent: Option<PathBuf>,
    answers: Vec<(u64, Result<usize, String>)>,
    pss_kib: u64,
    needs: Needs,
    disk: Option<PathBuf>,
    restored: Option<Saved>,
    changed: BTreeSet<PathBuf>,
    no_network: bool,
    interpreters: BTreeMap<String, u16>,
}

/// The engine.
#[derive(Default)]
pub struct Fake(Mutex<State>);

impl Fake {
    /// With memory for everything.
    pub fn new() -> Arc<Self> {
        let fake = Self::default();
        fake.state().available_mib = 1 << 20;
        Arc::new(fake)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// How much memory the host has from now on.
    pub fn set_available(&self, mib: u64) {
        self.state().available_mib = mib;
    }

    /// Children of the next fork that fail.
    pub fn fail_children(&self, which: &[usize]) {
        self.state().failing = which.iter().copied().collect();
    }

    /// Every fork takes this long.
    pub fn slow_down(&self, time: Duration) {
        self.state().slow = time;
    }

    /// Who asks for the agent of any machine speaks with the one at this socket from now on.
    pub fn speak_with(&self, socket: PathBuf) {
        self.state().agent = Some(socket);
    }

    /// The interpreter of guests with this host name listens on this port of this machine from now on.
    pub fn interpret_at(&self, hostname: &str, port: u16) {
        self.state().interpreters.insert(hostname.to_owned(), port);
    }

    /// Machines that live, and machines ever booted.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.machines.len(), state.boots)
    }

    /// Share and process limit of the machine with this host name.
    pub fn limits(&self, hostname: &str) -> (Cpu, Option<u32>) {
        let state = self.state();
        let found = state.machines.values().find(|machine| machine.identity.hostname == hostname);
        let machine = found.unwrap();
        (machine.cpu, machine.identity.pids_max)
    }

    /// The machine of the sandbox with this id.
    pub fn machine_of(&self, instance: &str) -> MachineId {
        let state = self.state();
        let mut all = state.machines.iter();
        all.find(|(_, machine)| machine.identity.instance == instance).unwrap().0.clone()
    }

    /// A machine ends by itself.
    pub fn crash(&self, machine: &MachineId) {
        let mut state = self.state();
        let gone = state.machines.remove(machine).unwrap();
        let end = End { reason: "the guest's kernel panicked".into(), console: "oops".into() };
        drop(gone.told.map(|told| told.send(end)));
    }

    /// What this host gives from now on.
    pub fn set_needs(&self, needs: Needs) {
        self.state().needs = needs;
    }

    /// The empty disk of this host.
    pub fn set_disk(&self, path: PathBuf) {
        self.state().disk = Some(path);
    }

    /// What the last machine that was restored was made from.
    pub fn restored(&self) -> Option<Saved> {
        self.state().restored.clone()
    }

    /// What every machine holds from now on.
    pub fn set_pss(&self, kib: u64) {
        self.state().pss_kib = kib;
    }

    /// A process in a machine calls for a fork; what it is told.
    pub async fn call(
        &self,
        machine: &MachineId,
        number: u64,
        count: u32,
    ) -> Result<usize, String> {
        let called = self.state().get(machine).unwrap().called.clone().unwrap();
        called.send(ForkCall { number, count }).await.unwrap();
        loop {
            let answers = &self.state().answers.clone();
            if let Some((_, answer)) = answers.iter().find(|(call, _)| *call == number) {
                return answer.clone();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Volumes in the slots of the machine with this host name: the directory's name, and whether it is written.
    pub fn media(&self, hostname: &str) -> Vec<(String, bool)> {
        let state = self.state();
        let found = state.machines.values().find(|machine| machine.identity.hostname == hostname);
        let shown = |medium: &Medium| {
            let name = medium.volume.file_name().unwrap().to_str().unwrap().to_owned();
            (name, !medium.read_only)
        };
        found.unwrap().media.values().map(shown).collect()
    }

    /// Whether the machine with this host name runs.
    pub fn runs(&self, hostname: &str) -> bool {
        let state = self.state();
        let mut all = state.machines.values();
        all.any(|one| one.identity.hostname == hostname && one.condition == Condition::Running)
    }

    /// Whether the machine with this host name is connected to a network.
    pub fn plugged(&self, hostname: &str) -> bool {
        self.named(hostname, |machine| machine.link.is_some())
    }

    /// The authority that the guest with this host name trusts.
    pub fn trusts(&self, hostname: &str) -> Option<String> {
        self.named(hostname, |machine| machine.trusts.lock().unwrap().clone())
    }

    fn named<T>(&self, hostname: &str, see: impl FnOnce(&Machine) -> T) -> T {
        let state = self.state();
        let found = state.machines.values().find(|machine| machine.identity.hostname == hostname);
        see(found.unwrap())
    }

    /// Machines have no network device from now on.
    pub fn without_network(&self) {
        self.state().no_network = true;
    }

    /// Somebody has written a volume.
    pub fn change(&self, volume: PathBuf) {
        self.state().changed.insert(volume);
    }

    /// A machine vanishes while nobody watches.
    pub fn vanish(&self, machine: &MachineId) {
        self.state().machines.remove(machine);
    }

    /// A machine that no database knows.
    pub fn orphan(&self) {
        self.state().add(Identity::default(), Condition::Running, Files::new());
    }
}

impl State {
    fn add(&mut self, identity: Identity, condition: Condition, files: Files) -> MachineId {
        self.next += 1;
        let id = MachineId(format!("m{}", self.next));
        let files = Arc::new(Mutex::new(files));
        let cpu = Cpu::default();
        let media = BTreeMap::new();
        let (link, trusts, told, called) = (None, Arc::default(), None, None);
        let machine =
            Machine { identity, condition, cpu, files, media, link, trusts, told, called };
        self.machines.insert(id.clone(), machine);
        id
    }

    fn get(&mut self, id: &MachineId) -> Result<&mut Machine, Error> {
        self.machines.get_mut(id).ok_or_else(|| Error::Gone(id.clone()))
    }

    fn files(&mut self, id: &MachineId) -> Result<Files, Error> {
        Ok(self.get(id)?.files.lock().unwrap().clone())
    }
}

/// Files that were written with a machine.
fn read(directory: &Path, name: &str) -> Result<Files, Error> {
    let files = std::fs::read(directory.join(name)).ok();
    files.and_then(|files| serde_json::from_slice(&files).ok()).ok_or_else(|| {
        let message = format!("{} is damaged", directory.join(name).display());
        Error::Refused { code: Code::Damaged, message }
    })
}

impl Engine for Fake {
    fn boot(
        &self,
        _: &Origin,
        disks: Option<&Path>,
        identity: Identity,
        _: &CancellationToken,
    ) -> Result<MachineId, Error> {
        let files = disks.map_or(Ok(Files::new()), |directory| read(directory, DISKS))?;
        let mut state = self.state();
        state.boots += 1;
        Ok(state.add(identity, Condition::Running, files))
    }

    fn fork(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error> {
        thread::sleep(self.state().slow);
        let mut state = self.state();
        let files = state.files(source)?;
        let trusts = state.get(source)?.trusts.lock().unwrap().clone();
        let failing = std::mem::take(&mut state.failing);
        let born = children.into_iter().enumerate().map(|(number, identity)| {
            if failing.contains(&number) {
                let message = "the child died".to_owned();
                return Err(Error::Refused { code: Code::ChildDied, message });
            }
            let machine = state.add(identity, Condition::Running, files.clone());
            state.get(&machine)?.trusts = Arc::new(Mutex::new(trusts.clone()));
            Ok(Born { machine, entered_us: 1, ready_us: 2 })
        });
        let children = born.collect();
        Ok(Offspring { rendezvous_us: 1, pause_us: 5, fork_us: 2, children })
    }

    fn fork_held(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error> {
        let made = self.fork(source, children)?;
        self.resume(source)?;
        Ok(made)
    }

    fn answer_fork(
        &self,
        source: &MachineId,
        call: u64,
        children: Vec<Identity>,
    ) -> Result<Offspring, Error> {
        let made = self.fork(source, children)?;
        self.state().answers.push((call, Ok(made.children.len())));
        Ok(made)
    }

    fn refuse_fork(&self, _: &MachineId, call: u64, message: String) -> Result<(), Error> {
        self.state().answers.push((call, Err(message)));
        Ok(())
    }

    fn checkpoint(&self, source: &MachineId) -> Result<MachineId, Error> {
        let mut state = self.state();
        let files = state.files(source)?;
        let trusts = state.get(source)?.trusts.lock().unwrap().clone();
        let frozen = state.add(Identity::default(), Condition::Frozen, files);
        state.get(&frozen)?.trusts = Arc::new(Mutex::new(trusts));
        Ok(frozen)
    }

    fn save(&self, machine: &MachineId, directory: &Path, how: Save) -> Result<Needs, Error> {
        let files = self.state().files(machine)?;
        std::fs::create_dir(directory)?;
        let files = serde_json::to_vec(&files).unwrap();
        if !how.only_disks {
            std::fs::write(directory.join(STATE), &files)?;
        }
        std::fs::write(directory.join(DISKS), &files)?;
        self.needs()
    }

    fn restore(
        &self,
        saved: &Saved,
        identity: Option<Identity>,
        _: &CancellationToken,
    ) -> Result<MachineId, Error> {
        self.state().restored = Some(saved.clone());
        let files = read(&saved.directory, STATE)?;
        let condition = if identity.is_some() { Condition::Running } else { Condition::Frozen };
        let mut state = self.state();
        let changed = |medium: &Medium| state.changed.contains(&medium.volume);
        if saved.volumes.iter().any(changed) {
            let message = "the volume was written since".to_owned();
            return Err(Error::Refused { code: Code::VolumeChanged, message });
        }
        let machine = state.add(identity.unwrap_or_default(), condition, files);
        let media = saved.volumes.iter().map(|medium| (medium.slot, medium.clone())).collect();
        state.get(&machine)?.media = media;
        Ok(machine)
    }

    fn make_volume(&self, directory: &Path, _: u32) -> Result<(), Error> {
        Ok(std::fs::write(directory.join("base"), [])?)
    }

    fn fold_volume(&self, _: &Path) -> Result<bool, Error> {
        Ok(true)
    }

    fn attach(&self, machine: &MachineId, medium: &Medium) -> Result<(), Error> {
        let mut state = self.state();
        let media = &mut state.get(machine)?.media;
        assert!(media.insert(medium.slot, medium.clone()).is_none(), "the slot is taken");
        Ok(())
    }

    fn detach(&self, machine: &MachineId, slot: u8) -> Result<(), Error> {
        self.state().get(machine)?.media.remove(&slot);
        Ok(())
    }

    fn plug(&self, machine: &MachineId, link: Option<OwnedFd>) -> Result<(), Error> {
        let mut state = self.state();
        if state.no_network {
            let message = "the machine has no network device".to_owned();
            return Err(Error::Refused { code: Code::WrongState, message });
        }
        state.get(machine)?.link = link;
        Ok(())
    }

    fn pause(&self, machine: &MachineId) -> Result<(), Error> {
        self.state().get(machine)?.condition = Condition::Paused;
        Ok(())
    }

    fn limit(&self, machine: &MachineId, cpu: Cpu) -> Result<(), Error> {
        self.state().get(machine)?.cpu = cpu;
        Ok(())
    }

    fn resume(&self, machine: &MachineId) -> Result<(), Error> {
        self.state().get(machine)?.condition = Condition::Running;
        Ok(())
    }

    fn connect(&self, machine: &MachineId) -> Result<UnixStream, Error> {
        let mut state = self.state();
        if let Some(socket) = &state.agent {
            return Ok(UnixStream::connect(socket)?);
        }
        let machine = state.get(machine)?;
        let (ours, theirs) = UnixStream::pair()?;
        let (identity, files) = (machine.identity.clone(), machine.files.clone());
        let trusts = machine.trusts.clone();
        let interpreter = state.interpreters.get(&identity.hostname).copied();
        thread::spawn(move || Agent::new(&theirs, identity, files, trusts).serve(interpreter));
        Ok(ours)
    }

    fn stats(&self, machine: &MachineId) -> Result<Stats, Error> {
        let mut state = self.state();
        let pss_kib = state.pss_kib.max(7);
        state.get(machine).map(|_| Stats { pss_kib, ..Stats::default() })
    }

    fn console(&self, machine: &MachineId) -> Result<(u64, String), Error> {
        self.state().get(machine).map(|_| (5, "hello".to_owned()))
    }

    fn watch(&self, machine: &MachineId) -> Result<Watched, Error> {
        let (told, end) = oneshot::channel();
        let (called, calls) = mpsc::channel(1);
        let mut state = self.state();
        let machine = state.get(machine)?;
        (machine.told, machine.called) = (Some(told), Some(called));
        Ok(Watched { end, calls })
    }

    fn kill(&self, machine: &MachineId) -> Result<(), Error> {
        self.state().machines.remove(machine);
        Ok(())
    }

    fn adopt(&self, machine: &MachineId) -> Result<Condition, Error> {
        Ok(self.state().get(machine)?.condition.clone())
    }

    fn sweep(&self, keep: &BTreeSet<MachineId>) -> Result<usize, Error> {
        let mut state = self.state();
        let before = state.machines.len();
        state.machines.retain(|id, _| keep.contains(id));
        Ok(before - state.machines.len())
    }

    fn memory(&self) -> Result<HostMemory, Error> {
        Ok(HostMemory { total_mib: 1 << 20, available_mib: self.state().available_mib })
    }

    fn needs(&self) -> Result<Needs, Error> {
        Ok(self.state().needs.clone())
    }

    fn empty_disk(&self, _: u32) -> Result<PathBuf, Error> {
        // Nothing, which has a length and a digest like everything else.
        Ok(self.state().disk.clone().unwrap_or_else(|| PathBuf::from("/dev/null")))
    }
}

/// One session with the guest.
struct Agent {
    stream: UnixStream,
    reader: FrameReader<UnixStream>,
    writer: FrameWriter<UnixStream>,
    identity: Identity,
    files: Arc<Mutex<Files>>,
    trusts: Arc<Mutex<Option<String>>>,
}

impl Agent {
    fn new(
        stream: &UnixStream,
        identity: Identity,
        files: Arc<Mutex<Files>>,
        trusts: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let another = || stream.try_clone().unwrap();
        let (reader, writer) = (FrameReader::new(another()), FrameWriter::new(another()));
        Self { stream: another(), reader, writer, identity, files, trusts }
    }

    /// Whoever hangs up ends it.
    fn serve(mut self, interpreter: Option<u16>) {
        let Ok((_, payload)) = self.reader.next_raw() else { return };
        let request = serde_json::from_slice(&payload).unwrap();
        let reply = match request {
            Request::Exec(exec) => return self.exec(&exec),
            Request::ReadFile(file) => return self.read(&file.path, file.offset, file.length),
            Request::WriteFile(file) => {
                let bytes = self.input();
                self.files.lock().unwrap().insert(file.path.clone(), bytes);
                self.stat(&file.path)
            }
            Request::List(_) => {
                let entries = self.files.lock().unwrap().iter().map(entry).collect();
                drop(self.writer.message(&Reply::Entries { entries }));
                Ok(Reply::Done {})
            }
            Request::Stat { path } => self.stat(&path),
            Request::Mkdir(mkdir) => Ok(Reply::Stat(Entry {
                kind: FileKind::Directory,
                ..entry((&mkdir.path, &Vec::new()))
            })),
            Request::Move { from, to } => self.rename(&from, to),
            Request::Remove { path, .. } => {
                let gone = self.files.lock().unwrap().remove(&path);
                gone.map(|_| Reply::Done {}).ok_or_else(|| failure("not_found", &path))
            }
            Request::Layer { paths } => return self.layer(&paths),
            Request::Look { places } => Ok(self.look(&places)),
            Request::Digest { paths, .. } => {
                let digests = paths.iter().map(|path| self.digest(path)).collect();
                drop(self.writer.message(&Reply::Digests { digests }));
                Ok(Reply::Done {})
            }
            Request::Dial(Dial::Tcp { port }) => return self.dial(port, interpreter),
            Request::Listeners {} => Ok(Reply::Listeners { listeners: vec![listener()] }),
            Request::Watch { path, .. } => return self.watch(&path),
            Request::ReadArchive(archive) => return self.read(&archive.path, 0, None),
            Request::WriteArchive(archive) => {
                let bytes = self.input();
                let unpacked = Unpacked { entries: 1, files: 1, bytes: bytes.len() as u64 };
                let bad = bytes.starts_with(b"bad");
                self.files.lock().unwrap().insert(archive.path, bytes);
                if bad {
                    Err(failure("bad_request", "no tar"))
                } else {
                    Ok(Reply::Unpacked(unpacked))
                }
            }
            Request::Sync {} => Ok(Reply::Done {}),
            Request::Network(network) => {
                *self.trusts.lock().unwrap() = network.authority;
                Ok(Reply::Done {})
            }
            Request::Mount(mount) if mount.path == "/refused" => {
                Err(failure("already_exists", "something is mounted there already"))
            }
            Request::Mount(_) => Ok(Reply::Done {}),
            Request::Unmount { .. } if self.files.lock().unwrap().contains_key("/busy") => {
                Err(failure("busy", "it is in use"))
            }
            Request::Unmount { .. } => Ok(Reply::Done {}),
            Request::Usage {} => Ok(Reply::Usage(Usage { cpus: 1, ..Usage::default() })),
            other => return self.serve_process(&other),
        };
        drop(self.writer.message(&reply.unwrap_or_else(Reply::Error)));
    }

    /// What is about processes and users.
    fn serve_process(mut self, request: &Request) {
        let reply = match request {
            Request::Attach(_) => Err(failure("no_such_process", "no such process")),
            Request::Join(join) if join.pid == 42 => return self.joined(),
            Request::Feed(feed) if feed.pid == 42 => return self.fed(),
            Request::Join(_) | Request::Feed(_) => {
                Err(failure("no_such_process", "no such process"))
            }
            Request::Commands {} => {
                drop(self.writer.message(&Reply::Commands { commands: vec![command()] }));
                Ok(Reply::Done {})
            }
            Request::Accounts {} => Ok(Reply::Accounts(accounts())),
            Request::Processes {} => Ok(Reply::Processes { processes: vec![process()] }),
            Request::Signal(signal) if signal.pid == 42 => Ok(Reply::Done {}),
            Request::Signal(_) => Err(failure("no_such_process", "no such process")),
            _ => Err(failure("bad_request", "not in tests")),
        };
        drop(self.writer.message(&reply.unwrap_or_else(Reply::Error)));
    }

    /// To a port of this machine.
    fn dial(mut self, port: u16, interpreter: Option<u16>) {
        let port = if port == INTERPRETER_PORT { interpreter.unwrap_or(0) } else { port };
        let dialled = match TcpStream::connect(("127.0.0.1", port)) {
            Ok(dialled) => dialled,
            Err(_) => {
                let refused = failure("connection_refused", "nobody there");
                return drop(self.writer.message(&Reply::Error(refused)));
            }
        };
        drop(self.writer.message(&Reply::Done {}));
        let (mut from, mut to) = (self.stream.try_clone().unwrap(), dialled.try_clone().unwrap());
        let upward = thread::spawn(move || {
            drop(std::io::copy(&mut from, &mut to));
            drop(to.shutdown(Shutdown::Write));
        });
        drop(std::io::copy(&mut &dialled, &mut self.stream));
        drop(self.stream.shutdown(Shutdown::Write));
        upward.join().unwrap();
    }

    fn watch(mut self, path: &str) {
        drop(self.writer.message(&Reply::Done {}));
        for kind in [ChangeKind::Created, ChangeKind::Overflow] {
            let change = Change { kind, path: format!("{path}/f") };
            drop(self.writer.message(&Reply::Changed(change)));
        }
        if path != "/gone" {
            self.input();
        }
    }

    fn stat(&self, path: &str) -> Result<Reply, Failure> {
        let files = self.files.lock().unwrap();
        let found = files.get_key_value(path).map(|found| Reply::Stat(entry(found)));
        found.ok_or_else(|| failure("not_found", path))
    }

    /// Nothing is known of layers here, so everything is looked at.
    fn layer(&mut self, paths: &[String]) {
        let elsewhere = |path: &String| Layered {
            path: Name::new(path.as_bytes()),
            kind: LayeredKind::Elsewhere,
            inode: 0,
            size: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            modified_ns: 0,
            changed_ns: 0,
        };
        let entries = paths.iter().map(elsewhere).collect();
        drop(self.writer.message(&Reply::Layer { base: "fake".to_owned() }));
        drop(self.writer.message(&Reply::Layered { entries }));
        drop(self.writer.message(&Reply::Done {}));
    }

    fn look(&mut self, places: &[Place]) -> Reply {
        let mut entries = Vec::new();
        for (path, bytes) in &*self.files.lock().unwrap() {
            let path = Name::new(path.as_bytes());
            if places.iter().any(|place| path_within(path.bytes(), place.path.bytes())) {
                entries.push(Seen {
                    path,
                    kind: SeenKind::File,
                    size: bytes.len() as u64,
                    mode: 0o644,
                    uid: 0,
                    gid: 0,
                    modified_ns: 0,
                    target: None,
                });
            }
        }
        entries.sort_by(|a, b| path_order(a.path.bytes(), b.path.bytes()));
        drop(self.writer.message(&Reply::Seen { entries }));
        Reply::Done {}
    }

    fn digest(&self, path: &Name) -> Option<String> {
        let files = self.files.lock().unwrap();
        Some(blake3::hash(files.get(&path.shown())?).to_hex().to_string())
    }

    fn rename(&self, from: &str, to: String) -> Result<Reply, Failure> {
        let mut files = self.files.lock().unwrap();
        let bytes = files.remove(from).ok_or_else(|| failure("not_found", from))?;
        files.insert(to, bytes);
        Ok(Reply::Done {})
    }

    fn read(&mut self, path: &str, offset: u64, length: Option<u64>) {
        let stat = self.stat(path).unwrap_or_else(Reply::Error);
        drop(self.writer.message(&stat));
        let bytes = self.files.lock().unwrap().get(path).cloned().unwrap_or_default();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let rest = &bytes[from..];
        let count = length.map_or(rest.len(), |n| usize::try_from(n).unwrap().min(rest.len()));
        drop(self.writer.bytes(Channel::Stdout, &rest[..count]));
        drop(self.writer.message(&Reply::Done {}));
    }

    /// Everything up to the end of the input.
    fn input(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Ok((Channel::Stdin, more)) = self.reader.next_raw() {
            bytes.extend(more);
        }
        bytes
    }

    fn exec(&mut self, exec: &Exec) {
        let line = exec.argv.last().unwrap().clone();
        if line == "missing" {
            return drop(self.writer.message(&Reply::Error(failure("not_found", "no program"))));
        }
        drop(self.writer.message(&Reply::Started { pid: 42 }));
        let words: Vec<&str> = line.split(' ').collect();
        let (stdout, code) = match words[..] {
            ["hostname"] => (self.identity.hostname.clone().into_bytes(), 0),
            ["env", name] => (self.variable(name).into_bytes(), 0),
            ["cat"] => (self.input(), 0),
            ["spam", count] => (vec![b'x'; count.parse().unwrap()], 0),
            ["fail"] => (Vec::new(), 3),
            ["wait"] => (self.input(), 0),
            ["place"] => (format!("{:?} {:?}", exec.user, exec.cwd).into_bytes(), 0),
            ["put", path, text] => {
                self.files.lock().unwrap().insert(path.to_owned(), text.as_bytes().to_vec());
                (Vec::new(), 0)
            }
            _ => (line.into_bytes(), 0),
        };
        drop(self.writer.bytes(Channel::Stdout, &stdout));
        drop(self.writer.bytes(Channel::Stderr, b"err"));
        let exited = Exited { code: Some(code), signal: None, timed_out: false, dropped_bytes: 0 };
        drop(self.writer.message(&Reply::Exited(exited)));
    }

    fn joined(&mut self) {
        drop(self.writer.message(&Reply::Started { pid: 42 }));
        drop(self.writer.bytes(Channel::Stdout, b"joined"));
        let exited = Exited { code: None, signal: Some(9), timed_out: false, dropped_bytes: 0 };
        drop(self.writer.message(&Reply::Exited(exited)));
    }

    /// What it is fed is a file.
    fn fed(&mut self) {
        drop(self.writer.message(&Reply::Started { pid: 42 }));
        while let Ok((_, bytes)) = self.reader.next_raw() {
            self.files.lock().unwrap().entry("/fed".to_owned()).or_default().extend(bytes);
            drop(self.writer.message(&Reply::Done {}));
        }
    }

    fn variable(&self, name: &str) -> String {
        let value = self.identity.env.get(name).or_else(|| self.identity.secrets.get(name));
        value.cloned().unwrap_or_default()
    }
}

fn failure(code: &str, message: &str) -> Failure {
    Failure { code: code.to_owned(), message: message.to_owned() }
}

fn entry((path, bytes): (&String, &Vec<u8>)) -> Entry {
    Entry {
        path: path.clone(),
        kind: FileKind::File,
        size: bytes.len() as u64,
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified_ns: 0,
        target: None,
        end: None,
        attributes: BTreeMap::new(),
    }
}

fn listener() -> Listener {
    Listener { protocol: "tcp".to_owned(), address: "127.0.0.1".to_owned(), port: 8000 }
}

fn command() -> Command {
    Command {
        pid: 42,
        argv: ["sleep", "9"].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        cwd: Some("/srv".to_owned()),
        tag: Some("nap".to_owned()),
        terminal: false,
        ended: false,
    }
}

fn accounts() -> Accounts {
    let account =
        |name: &str, uid, home: &str| Account { name: name.to_owned(), uid, home: home.to_owned() };
    let users = vec![account("root", 0, "/root"), account("user", 1000, "/home/user")];
    Accounts { users, groups: vec![Group { name: "wheel".to_owned(), gid: 0 }] }
}

fn process() -> Process {
    Process {
        pid: 42,
        parent: 1,
        group: 42,
        uid: 0,
        state: "S".to_owned(),
        command: vec!["sleep".to_owned()],
        cpu_ms: 0,
        rss_bytes: 0,
        started_here: true,
    }
}
