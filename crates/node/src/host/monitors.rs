//! The engine that is made of `ramet-vmm` processes.
//!
//! Monitors outlive the node: they have process groups of their own, their sockets stay in the run
//! directory, and a handle that is dropped lets go of its machine instead of ending it. Every start
//! of the node makes sockets in a new numbered directory below the run directory, so names never meet. A
//! [`MachineId`] is the socket's path below the run directory.
//!
//! Only one node may use a run directory: its owner holds a lock (see `main`), and
//! [`Engine::sweep`] ends every monitor there that is not known.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_engine::control::{Connection, Error as ControlError};
use ramet_engine::host::disk;
use ramet_engine::monitor::{self, Machine, Monitor};
use ramet_image::data;
use ramet_proto::agent::{Identity, PORT};
use ramet_proto::api::DISK_MIB;
use ramet_proto::control::{
    Answer, Attach, Boot, Child, Code, Disk, Event, Message, Outcome, Payload, Request, Restore,
    Start, State, Stats, Stop,
};
use ramet_proto::needs::Needs;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::groups::Groups;
use super::{
    Born, Condition, Cpu, End, Engine, Error, ForkCall, HostMemory, MachineId, Medium, Offspring,
    Origin, SLOTS, Save, Saved, Watched,
};

/// Time for a guest to boot; an emulated host is slow.
const BOOT: Duration = Duration::from_secs(240);
/// Time for the monitor to connect to the agent, and to end.
const SHORT: Duration = Duration::from_secs(15);
/// Time to fold the layers of a volume.
const FOLD: Duration = Duration::from_secs(600);
/// Length of the monitors' log beyond which a start begins it anew.
const LOG_MAX: u64 = 1 << 20;
/// Calls from inside one machine that wait.
const CALLS_MAX: usize = 16;
/// What is kept of a console when a machine ends.
const CONSOLE_END: usize = 8 << 10;
/// Between two looks at a console: a monitor that is killed takes its console with it, and what was seen last is
/// what there is to tell.
const CONSOLE_EVERY: Duration = Duration::from_secs(10);

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Places {
    /// `ramet-vmm`; looked for beside the running program when absent.
    pub program: Option<PathBuf>,
    /// For sockets.
    pub run: PathBuf,
    /// For the data of writable disk layers.
    pub layers: PathBuf,
    /// For empty disks, one for each size that was asked for. They are never written again.
    pub disks: PathBuf,
    /// vmlinux, initramfs.cpio, base.erofs, data.ext4.
    pub guest: PathBuf,
}

/// The engine.
pub struct Monitors {
    places: Places,
    monitor: Monitor,
    /// This start's own directory in the run directory.
    generation: PathBuf,
    groups: Groups,
    /// Every machine that was made or adopted and not killed.
    machines: Mutex<HashMap<MachineId, Arc<Held>>>,
    /// Held while an empty disk is made.
    making: Mutex<()>,
    /// What machines that boot here need, once it is known.
    needs: OnceLock<Needs>,
}

/// A machine that lives on when the handle goes, unless it was given up.
struct Held {
    /// Taken only when dropped.
    machine: Option<Machine>,
    given_up: AtomicBool,
    /// The end of its console when it was last looked at.
    console: Mutex<String>,
}

impl Held {
    fn new(machine: Machine) -> Self {
        Self { machine: Some(machine), given_up: AtomicBool::new(false), console: Mutex::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, String> {
        self.console.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Result<&Machine, Error> {
        self.machine.as_ref().ok_or_else(|| Error::Broken("a handle without machine".to_owned()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.machine.take() {
            Some(machine) if self.given_up.load(Ordering::Relaxed) => drop(machine),
            Some(machine) => drop(machine.detach()),
            None => {}
        }
    }
}

impl Monitors {
    /// Makes the directories that are missing.
    pub fn new(places: Places) -> Result<Self, Error> {
        fs::create_dir_all(&places.run)?;
        fs::create_dir_all(&places.layers)?;
        fs::create_dir_all(&places.disks)?;
        let last = generations(&places.run)?.into_iter().map(|(number, _)| number).max();
        let generation = places.run.join((last.unwrap_or(0) + 1).to_string());
        fs::create_dir(&generation)?;
        let monitor = match &places.program {
            Some(program) => Monitor::new(program.clone(), &generation),
            None => Monitor::find(&generation).map_err(broken)?,
        };
        let monitor = monitor.with_log(log(&places.run)?);
        let groups = Groups::new(&places.run);
        Ok(Self {
            places,
            monitor,
            generation,
            groups,
            machines: Mutex::default(),
            making: Mutex::default(),
            needs: OnceLock::new(),
        })
    }

    fn machines(&self) -> std::sync::MutexGuard<'_, HashMap<MachineId, Arc<Held>>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, id: &MachineId) -> Result<Arc<Held>, Error> {
        self.machines().get(id).cloned().ok_or_else(|| Error::Gone(id.clone()))
    }

    fn hold(&self, machine: Machine) -> MachineId {
        let socket = machine.socket();
        let name = socket.strip_prefix(&self.places.run).unwrap_or(socket);
        let id = MachineId(name.to_string_lossy().into_owned());
        self.machines().insert(id.clone(), Arc::new(Held::new(machine)));
        id
    }

    fn socket(&self, id: &MachineId) -> PathBuf {
        self.places.run.join(&id.0)
    }

    fn part(&self, name: &str) -> Result<String, Error> {
        let path = self.places.guest.join(name);
        if !path.is_file() {
            let text = format!("{} is missing; `cargo xtask guest` makes it", path.display());
            return Err(Error::Io(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        Ok(path.to_string_lossy().into_owned())
    }

    fn multiply(
        &self,
        source: &MachineId,
        children: Vec<Identity>,
        fork: impl FnOnce(&Machine, Vec<Child>) -> Result<monitor::Offspring, ControlError>,
    ) -> Result<Offspring, Error> {
        let held = self.held(source)?;
        let child = |identity| Child { identity: Some(identity) };
        let children = children.into_iter().map(child).collect();
        let offspring = fork(held.get()?, children).map_err(broken)?;
        let children = offspring.children.into_iter().map(|child| match child {
            Ok(born) => {
                self.groups.release(source, born.machine.pid())?;
                Ok(Born {
                    entered_us: born.entered_us,
                    ready_us: born.ready_us,
                    machine: self.hold(born.machine),
                })
            }
            Err(failure) => Err(Error::Refused { code: failure.code, message: failure.message }),
        });
        Ok(Offspring {
            rendezvous_us: offspring.rendezvous_us,
            pause_us: offspring.pause_us,
            fork_us: offspring.fork_us,
            children: children.collect(),
        })
    }

    /// The base images of a machine's disks: its root filesystem, and an empty disk.
    fn bases(&self, origin: &Origin) -> Result<[String; 2], Error> {
        let root = match &origin.root {
            Some(root) => root.to_string_lossy().into_owned(),
            None => self.part("base.erofs")?,
        };
        let data = match &origin.data {
            Some(data) => data.clone(),
            None => self.disk(origin.shape.disk_mib)?,
        };
        Ok([root, data.to_string_lossy().into_owned()])
    }

    /// The empty disk with this much free space; made if it is not there.
    fn disk(&self, free_mib: u32) -> Result<PathBuf, Error> {
        let path = self.places.disks.join(format!("data-{free_mib}.ext4"));
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if !path.is_file() {
            let shipped = self.places.guest.join("data.ext4");
            let length = data::size_mib(free_mib.into()) << 20;
            let fits = free_mib == DISK_MIB
                && fs::metadata(&shipped).is_ok_and(|file| file.len() == length);
            if fits {
                disk::copy_sparse(&shipped, &path)?;
            } else {
                make_disk(&path, free_mib, "disk_mib")?;
            }
        }
        Ok(path)
    }

    fn boot_of(
        &self,
        origin: &Origin,
        disks: Option<&Path>,
        identity: Identity,
    ) -> Result<Boot, Error> {
        let payload = Payload::Linux {
            kernel: self.part("vmlinux")?,
            initramfs: Some(self.part("initramfs.cpio")?),
            cmdline: "ramet.root=/dev/vda ramet.data=/dev/vdb".to_owned(),
        };
        let [root, data] = self.bases(origin)?;
        Ok(Boot {
            vcpus: origin.shape.vcpus,
            memory_mib: origin.shape.memory_mib,
            huge_pages: true,
            payload,
            disks: vec![
                Disk { base: root, read_only: true },
                Disk { base: data, read_only: false },
            ],
            slots: SLOTS,
            network: true,
            layers: Some(self.places.layers.to_string_lossy().into_owned()),
            saved: disks.map(|directory| directory.to_string_lossy().into_owned()),
            identity: Some(identity),
        })
    }
}

/// Makes an empty disk. It appears when it is whole.
fn make_disk(path: &Path, free_mib: u32, asked: &str) -> Result<(), Error> {
    let unfinished = path.with_extension("unfinished");
    let made = data::make(&|_| {}, &unfinished, free_mib.into());
    if let Err(error) = made {
        let message = format!("{asked}: this host cannot make a disk of {free_mib} MiB: {error}");
        return Err(Error::Refused { code: Code::BadValue, message });
    }
    Ok(fs::rename(&unfinished, path)?)
}

fn attach_of(medium: &Medium) -> Attach {
    let volume = medium.volume.to_string_lossy().into_owned();
    Attach { slot: medium.slot, volume, read_only: medium.read_only }
}

impl Engine for Monitors {
    fn boot(
        &self,
        origin: &Origin,
        disks: Option<&Path>,
        identity: Identity,
        stop: &CancellationToken,
    ) -> Result<MachineId, Error> {
        let boot = self.boot_of(origin, disks, identity)?;
        let machine = self.monitor.start().map_err(broken)?;
        machine.boot(boot).map_err(broken)?;
        await_ready(&machine, BOOT, stop)?;
        Ok(self.hold(machine))
    }

    fn fork(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error> {
        self.multiply(source, children, |machine, children| machine.fork(children))
    }

    fn fork_held(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error> {
        self.multiply(source, children, |machine, children| machine.fork_and_resume(children))
    }

    fn answer_fork(
        &self,
        source: &MachineId,
        call: u64,
        children: Vec<Identity>,
    ) -> Result<Offspring, Error> {
        self.multiply(source, children, |machine, children| machine.fork_for(children, Some(call)))
    }

    fn refuse_fork(&self, machine: &MachineId, call: u64, message: String) -> Result<(), Error> {
        let refusal = Request::RefuseFork { call, message };
        self.held(machine)?.get()?.call(refusal).map(drop).map_err(broken)
    }

    fn checkpoint(&self, source: &MachineId) -> Result<MachineId, Error> {
        let machine = self.held(source)?.get()?.checkpoint().map_err(broken)?;
        self.groups.release(source, machine.pid())?;
        Ok(self.hold(machine))
    }

    fn save(&self, machine: &MachineId, directory: &Path, how: Save) -> Result<Needs, Error> {
        let held = self.held(machine)?;
        let machine = held.get()?;
        let saved = match how.only_disks {
            true => machine.save_disks(directory, how.sync),
            false => machine.save(directory, how.sync),
        };
        Ok(saved.map_err(broken)?.needs)
    }

    fn restore(
        &self,
        saved: &Saved,
        identity: Option<Identity>,
        stop: &CancellationToken,
    ) -> Result<MachineId, Error> {
        let start = if identity.is_some() { Start::Run } else { Start::Frozen };
        let bases = self.bases(&saved.origin)?.to_vec();
        let machine = self.monitor.start().map_err(broken)?;
        let restore = Restore {
            directory: saved.directory.to_string_lossy().into_owned(),
            start,
            identity,
            layers: Some(self.places.layers.to_string_lossy().into_owned()),
            bases,
            volumes: saved.volumes.iter().map(attach_of).collect(),
            verify: false,
            pager: saved.pager.as_ref().map(|socket| socket.to_string_lossy().into_owned()),
        };
        machine.restore(restore).map_err(broken)?;
        if start == Start::Run {
            await_ready(&machine, BOOT, stop)?;
        }
        Ok(self.hold(machine))
    }

    fn make_volume(&self, directory: &Path, size_mib: u32) -> Result<(), Error> {
        make_disk(&directory.join("base"), size_mib, "size_mib")?;
        Ok(fs::File::open(directory.join("base"))?.sync_all()?)
    }

    fn fold_volume(&self, directory: &Path) -> Result<bool, Error> {
        self.monitor.fold(directory, FOLD).map_err(broken)
    }

    fn attach(&self, machine: &MachineId, medium: &Medium) -> Result<(), Error> {
        let Medium { slot, volume, read_only } = medium;
        self.held(machine)?.get()?.attach(*slot, volume, *read_only).map_err(broken)
    }

    fn detach(&self, machine: &MachineId, slot: u8) -> Result<(), Error> {
        self.held(machine)?.get()?.detach_volume(slot).map_err(broken)
    }

    fn plug(&self, machine: &MachineId, link: Option<OwnedFd>) -> Result<(), Error> {
        let link = link.as_ref().map(AsFd::as_fd);
        self.held(machine)?.get()?.plug(link).map_err(broken)
    }

    fn pause(&self, machine: &MachineId) -> Result<(), Error> {
        self.held(machine)?.get()?.pause().map_err(broken)
    }

    fn resume(&self, machine: &MachineId) -> Result<(), Error> {
        self.held(machine)?.get()?.resume().map_err(broken)
    }

    fn limit(&self, machine: &MachineId, cpu: Cpu) -> Result<(), Error> {
        self.groups.limit(machine, self.held(machine)?.get()?.pid(), cpu)
    }

    fn connect(&self, machine: &MachineId) -> Result<UnixStream, Error> {
        let socket = self.held(machine)?.get()?.socket().to_owned();
        let mut connection = Connection::open(&socket).map_err(broken)?;
        connection.set_deadline(SHORT);
        connection.connect(PORT).map_err(broken)
    }

    fn stats(&self, machine: &MachineId) -> Result<Stats, Error> {
        self.held(machine)?.get()?.stats().map_err(broken)
    }

    fn console(&self, machine: &MachineId) -> Result<(u64, String), Error> {
        let held = self.held(machine)?;
        let (written, text) = held.get()?.console().map_err(broken)?;
        *held.seen() = last(&text);
        Ok((written, text))
    }

    fn watch(&self, machine: &MachineId) -> Result<Watched, Error> {
        let held = self.held(machine)?;
        let mut stream = UnixStream::connect(held.get()?.socket())?;
        stream.set_write_timeout(Some(SHORT))?;
        for (id, request) in [(1, Request::Subscribe {}), (2, Request::Status {})] {
            stream.write_all(&line(id, request)?)?;
        }
        stream.set_nonblocking(true)?;
        let (told, end) = oneshot::channel();
        let (called, calls) = mpsc::channel(CALLS_MAX);
        let followed = follow(stream, Arc::downgrade(&held), told, called);
        tokio::runtime::Handle::current().spawn(followed);
        Ok(Watched { end, calls })
    }

    fn kill(&self, machine: &MachineId) -> Result<(), Error> {
        let Some(held) = self.machines().remove(machine) else { return Ok(()) };
        held.given_up.store(true, Ordering::Relaxed);
        self.groups.lift(machine);
        if let Ok(mut connection) = held.get()?.connect() {
            connection.set_deadline(SHORT);
            // The answer may not arrive, so what it says does not matter; the end does.
            drop(connection.call(Request::Kill {}, &[]));
        }
        // If it does not go by itself, dropping the last handle forces it.
        held.get()?.wait_end(SHORT).map(drop).map_err(broken)?;
        self.groups.remove(machine)
    }

    fn adopt(&self, machine: &MachineId) -> Result<Condition, Error> {
        let adopted = match self.monitor.adopt(&self.socket(machine)) {
            Ok(adopted) => adopted,
            Err(ControlError::Closed) => return Err(Error::Gone(machine.clone())),
            Err(ControlError::Io(error)) if is_absent(&error) => {
                return Err(Error::Gone(machine.clone()));
            }
            Err(error) => return Err(broken(error)),
        };
        let status = adopted.status().map_err(broken)?;
        let condition = match status.state {
            State::Running => Condition::Running,
            State::Paused => Condition::Paused,
            State::Frozen => Condition::Frozen,
            State::Empty => Condition::Ended(end("its machine was never made", String::new())),
            State::Stopped(stop) => {
                let (_, console) = adopted.console().map_err(broken)?;
                Condition::Ended(end(&describe(&stop), console))
            }
        };
        self.hold(adopted);
        Ok(condition)
    }

    fn sweep(&self, keep: &BTreeSet<MachineId>) -> Result<usize, Error> {
        let known: BTreeSet<u32> = self
            .machines()
            .values()
            .filter_map(|held| Some(held.machine.as_ref()?.pid()))
            .collect();
        let mut count = 0;
        for pid in processes_of(&self.places.run)?.difference(&known) {
            let Ok(number) = i32::try_from(*pid) else { continue };
            // One that has ended meanwhile needs no signal.
            count += usize::from(kill(Pid::from_raw(number), Signal::SIGKILL).is_ok());
        }
        for (_, directory) in generations(&self.places.run)? {
            self.clean(&directory, keep)?;
        }
        self.groups.sweep(keep)?;
        Ok(count)
    }

    fn memory(&self) -> Result<HostMemory, Error> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        };
        match (field("MemTotal"), field("MemAvailable")) {
            (Some(total), Some(available)) => {
                Ok(HostMemory { total_mib: total / 1024, available_mib: available / 1024 })
            }
            _ => Err(Error::Broken("/proc/meminfo says nothing of memory".to_owned())),
        }
    }

    fn needs(&self) -> Result<Needs, Error> {
        if let Some(needs) = self.needs.get() {
            return Ok(needs.clone());
        }
        let needs = self.monitor.needs().map_err(broken)?;
        Ok(self.needs.get_or_init(|| needs).clone())
    }

    fn empty_disk(&self, free_mib: u32) -> Result<PathBuf, Error> {
        self.disk(free_mib)
    }
}

impl Monitors {
    /// Removes sockets of machines that are not kept, and the directory if it is then empty.
    fn clean(&self, directory: &Path, keep: &BTreeSet<MachineId>) -> Result<(), Error> {
        let mut left = false;
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(&self.places.run).unwrap_or(&path);
            if keep.contains(&MachineId(name.to_string_lossy().into_owned())) {
                left = true;
            } else {
                fs::remove_file(&path)?;
            }
        }
        if !left && directory != self.generation {
            fs::remove_dir(directory)?;
        }
        Ok(())
    }
}

/// Where monitors write what they have to say; begun anew when it has grown.
fn log(run: &Path) -> io::Result<PathBuf> {
    let path = run.join("monitors.log");
    match fs::metadata(&path) {
        Ok(found) if found.len() > LOG_MAX => fs::remove_file(&path)?,
        _ => {}
    }
    Ok(path)
}

/// The numbered directories of all starts.
fn generations(run: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number {
            found.push((number, path));
        }
    }
    Ok(found)
}

/// Every monitor that was started in this run directory, or forked from one that was: they keep
/// the command line of the first.
fn processes_of(run: &Path) -> io::Result<BTreeSet<u32>> {
    let below = format!("{}/", run.display());
    let ours = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).skip(1);
        words.next().is_some_and(|word| word == "--socket")
            && words.next().is_some_and(|word| word.starts_with(&below))
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Who has ended meanwhile has no command line.
        if ours(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()) {
            found.insert(pid);
        }
    }
    Ok(found)
}

fn await_ready(machine: &Machine, time: Duration, stop: &CancellationToken) -> Result<(), Error> {
    let end = Instant::now() + time;
    loop {
        // The machine goes with its handle.
        if stop.is_cancelled() {
            return Err(Error::Stopping);
        }
        let status = machine.status().map_err(broken)?;
        if status.ready {
            return Ok(());
        }
        if status.state != State::Running || Instant::now() > end {
            let (_, console) = machine.console().map_err(broken)?;
            let reason = format!("it is {:?}", status.state);
            return Err(Error::NotReady { reason, console: last(&console) });
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn broken(error: ControlError) -> Error {
    match error {
        ControlError::Failure { code, message } => Error::Refused { code, message },
        ControlError::Timeout => Error::Timeout,
        ControlError::Io(error) => Error::Io(error),
        ControlError::Closed => Error::Broken("the monitor hung up".to_owned()),
        ControlError::Protocol(text) => Error::Broken(text),
    }
}

fn line(id: u64, request: Request) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Message { id, request })?;
    line.push(b'\n');
    Ok(line)
}

fn describe(stop: &Stop) -> String {
    match stop {
        Stop::Shutdown => "the guest powered off".to_owned(),
        Stop::Reboot => "the guest asked for a reboot".to_owned(),
        Stop::Panic => "the guest's kernel panicked".to_owned(),
        Stop::TripleFault => "the guest's processor gave up (triple fault)".to_owned(),
        Stop::Failure { message } => format!("the machine failed: {message}"),
    }
}

fn end(reason: &str, console: String) -> End {
    End { reason: reason.to_owned(), console: last(&console) }
}

/// The last of a text.
fn last(text: &str) -> String {
    let from = text.ceil_char_boundary(text.len().saturating_sub(CONSOLE_END));
    text[from..].to_owned()
}

/// Follows a machine's events to its end. Ends with the machine, or when nobody waits any more.
async fn follow(
    stream: UnixStream,
    held: Weak<Held>,
    mut told: oneshot::Sender<End>,
    called: mpsc::Sender<ForkCall>,
) {
    tokio::select! {
        end = followed(stream, &held, &called) => drop(told.send(end)),
        () = told.closed() => {}
    }
}

async fn followed(stream: UnixStream, held: &Weak<Held>, called: &mpsc::Sender<ForkCall>) -> End {
    let seen = || held.upgrade().map(|held| held.seen().clone()).unwrap_or_default();
    let gone = || end("its monitor process ended", seen());
    let Ok(stream) = tokio::net::UnixStream::from_std(stream) else { return gone() };
    let mut stream = BufReader::new(stream);
    let mut stopped: Option<String> = None;
    let mut looks = tokio::time::interval(CONSOLE_EVERY);
    let mut text = Vec::new();
    loop {
        let request = tokio::select! {
            // What was read before a look stays in the text.
            read = stream.read_until(b'\n', &mut text) => match read {
                Ok(count) if count > 0 => {
                    let answer = serde_json::from_slice(&text);
                    text.clear();
                    match heard(answer.ok(), &mut stopped, held, called) {
                        Heard::Ask(request) => *request,
                        Heard::Nothing => continue,
                        Heard::End(end) => return end,
                    }
                }
                _ => return stopped.map_or_else(gone, |reason| end(&reason, seen())),
            },
            _ = looks.tick() => Request::Console {},
        };
        // If it cannot be sent the monitor has ended, and the next read says so.
        if let Ok(line) = line(3, request) {
            drop(stream.get_mut().write_all(&line).await);
        }
    }
}

/// What follows from a line of a monitor.
enum Heard {
    Nothing,
    Ask(Box<Request>),
    End(End),
}

fn heard(
    answer: Option<Answer>,
    stopped: &mut Option<String>,
    held: &Weak<Held>,
    called: &mpsc::Sender<ForkCall>,
) -> Heard {
    let ask = |request: Option<Request>| {
        request.map_or(Heard::Nothing, |request| Heard::Ask(Box::new(request)))
    };
    match answer {
        Some(Answer::Event(Event::Stopped(stop))) => ask(ask_console(stopped, &stop)),
        Some(Answer::Done { outcome: Outcome::Status(status), .. }) => match status.state {
            State::Stopped(stop) => ask(ask_console(stopped, &stop)),
            _ => Heard::Nothing,
        },
        Some(Answer::Done { outcome: Outcome::Console { text, .. }, .. }) => {
            if let Some(reason) = stopped {
                return Heard::End(end(reason, text));
            }
            if let Some(held) = held.upgrade() {
                *held.seen() = last(&text);
            }
            Heard::Nothing
        }
        Some(Answer::Event(Event::GuestFork { call, count })) => {
            let message = "too many fork calls at once; try again".to_owned();
            let full = called.try_send(ForkCall { number: call, count }).is_err();
            ask(full.then_some(Request::RefuseFork { call, message }))
        }
        _ => Heard::Nothing,
    }
}

fn ask_console(stopped: &mut Option<String>, stop: &Stop) -> Option<Request> {
    let first = stopped.is_none();
    *stopped = Some(describe(stop));
    first.then_some(Request::Console {})
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    fn places(root: &Path) -> Places {
        Places {
            program: Some("/bin/false".into()),
            run: root.join("run"),
            layers: root.join("layers"),
            disks: root.join("disks"),
            guest: root.join("guest"),
        }
    }

    #[test]
    fn every_start_has_names_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let first = Monitors::new(places(root.path())).unwrap();
        let second = Monitors::new(places(root.path())).unwrap();
        assert_ne!(first.generation, second.generation);
        fs::write(first.generation.join("7.sock"), "").unwrap();
        second.sweep(&BTreeSet::new()).unwrap();
        assert!(!first.generation.exists() && second.generation.exists());
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().unwrap();
        let engine = Monitors::new(places(root.path())).unwrap();
        let origin = Origin { shape: Shape::default(), root: None, data: None };
        let stop = CancellationToken::new();
        let error = engine.boot(&origin, None, Identity::default(), &stop).unwrap_err();
        assert!(matches!(&error, Error::Io(source) if source.to_string().contains("vmlinux")));
        let nobody = MachineId("1/1.sock".to_owned());
        assert!(matches!(engine.adopt(&nobody), Err(Error::Gone(_))));
        assert!(matches!(engine.stats(&nobody), Err(Error::Gone(_))));
        engine.kill(&nobody).unwrap();
        assert!(engine.memory().unwrap().available_mib > 0);
    }

    #[test]
    fn an_empty_disk_is_made_once_for_each_size() {
        let root = tempfile::tempdir().unwrap();
        let engine = Monitors::new(places(root.path())).unwrap();
        let small = engine.empty_disk(64).unwrap();
        let made = fs::metadata(&small).unwrap();
        assert_eq!(made.len(), data::size_mib(64) << 20);
        assert_eq!(engine.empty_disk(64).unwrap(), small);
        assert_eq!(fs::metadata(&small).unwrap().modified().unwrap(), made.modified().unwrap());
        // The usual one comes with the guest's files.
        fs::create_dir(root.path().join("guest")).unwrap();
        let shipped = fs::File::create(root.path().join("guest/data.ext4")).unwrap();
        shipped.set_len(data::size_mib(DISK_MIB.into()) << 20).unwrap();
        let usual = engine.empty_disk(DISK_MIB).unwrap();
        assert_eq!(fs::metadata(usual).unwrap().len(), shipped.metadata().unwrap().len());
        assert_eq!(fs::read_dir(root.path().join("disks")).unwrap().count(), 2);
    }

    #[test]
    fn the_last_of_a_console_is_cut_at_a_character() {
        assert_eq!(last(&"ä".repeat(CONSOLE_END)).len(), CONSOLE_END);
        assert_eq!(last("x"), "x");
    }
}
