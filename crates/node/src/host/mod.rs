//! Machines, behind one narrow interface.
//!
//! [`Engine`] is all that the sandbox logic knows of machines: blocking calls that do one thing and
//! say how it went. [`monitors`] implements it with `ramet-vmm` processes; tests have their own.
//! [`Host`] runs the calls on blocking threads, a bounded number at a time, and [`agent`] speaks
//! with the guest. Nothing here knows sandboxes, owners or HTTP.

pub mod agent;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod groups;
pub mod monitors;
pub mod net;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ramet_proto::agent::Identity;
use ramet_proto::api::DISK_MIB;
use ramet_proto::control;
use ramet_proto::needs::Needs;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use net::Network;

/// Most calls into the engine at once; each has a thread.
const CALLS_MAX: usize = 64;
/// How long a call may wait for its turn.
const TURN: Duration = Duration::from_secs(60);

/// Volumes that a machine can have at once.
pub const SLOTS: u8 = 4;

/// The device that the guest sees in a slot: slots come after the root and the disk.
pub fn slot_device(slot: u8) -> String {
    format!("/dev/vd{}", char::from(b'c' + slot))
}

/// A volume in a slot of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Medium {
    /// Number of the slot.
    pub slot: u8,
    /// Directory of the volume.
    pub volume: PathBuf,
    /// It is not written.
    pub read_only: bool,
}

/// Names a machine for as long as it lives, also across restarts of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MachineId(pub String);

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How large a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    /// vCPUs.
    pub vcpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// Free space of its disk.
    #[serde(default = "usual_disk")]
    pub disk_mib: u32,
}

fn usual_disk() -> u32 {
    DISK_MIB
}

impl Default for Shape {
    fn default() -> Self {
        Self { vcpus: 1, memory_mib: 512, disk_mib: DISK_MIB }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.vcpus, self.memory_mib)?;
        match self.disk_mib {
            DISK_MIB => Ok(()),
            disk => write!(f, "x{disk}"),
        }
    }
}

/// A machine's share of the host's processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Against other machines, when there is too little for all.
    pub weight: u32,
    /// Most of it, in percent of one processor; 0 is no limit.
    pub quota_percent: u32,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { weight: 100, quota_percent: 0 }
    }
}

/// What a machine begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// How large it is.
    pub shape: Shape,
    /// Its root filesystem; the base image of the guest's files when absent.
    pub root: Option<PathBuf>,
    /// Its disk when it was empty; this host's own of its size when absent.
    pub data: Option<PathBuf>,
}

/// A machine in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Where they are.
    pub directory: PathBuf,
    /// What it began with; its disks are still those, wherever they are now.
    pub origin: Origin,
    /// Volumes that it wrote and goes on to write; it refuses if one was written since.
    pub volumes: Vec<Medium>,
    /// Socket of whoever brings what is missing of the files while the machine runs.
    pub pager: Option<PathBuf>,
}

/// A child of a fork. Times count from the source's stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Born {
    /// The child.
    pub machine: MachineId,
    /// Its guest was entered.
    pub entered_us: u64,
    /// Its agent has its identity.
    pub ready_us: u64,
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
    /// One for each child, in order.
    pub children: Vec<Result<Born, Error>>,
}

impl Offspring {
    /// The child of a fork that was to make one.
    pub fn only(self) -> Result<Born, Error> {
        let child = self.children.into_iter().next();
        child.unwrap_or_else(|| Err(Error::Broken("a fork without a child".to_owned())))
    }
}

/// How a machine ended that nobody had asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// In words.
    pub reason: String,
    /// The end of its console; empty if it could not be had.
    pub console: String,
}

/// A process in a guest asks for a fork of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkCall {
    /// Names the call.
    pub number: u64,
    /// How many children it wants.
    pub count: u32,
}

/// How a machine is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Save {
    /// It is on the disk at the end.
    pub sync: bool,
    /// Its disks alone.
    pub only_disks: bool,
}

/// Hears of a machine.
pub struct Watched {
    /// Told once, if it ends by itself.
    pub end: oneshot::Receiver<End>,
    /// Calls from inside; each wants an answer.
    pub calls: mpsc::Receiver<ForkCall>,
}

/// What a machine does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// vCPUs run.
    Running,
    /// vCPUs are stopped.
    Paused,
    /// It never runs: a checkpoint or template.
    Frozen,
    /// It is over.
    Ended(End),
}

/// Memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it.
    pub total_mib: u64,
    /// What can be had without swapping (`MemAvailable`).
    pub available_mib: u64,
}

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine refused or failed, and says why.
    #[error("{message}")]
    Refused {
        /// For programs.
        code: control::Code,
        /// For people.
        message: String,
    },
    /// There is no such machine, or it has ended.
    #[error("the machine {0} is gone")]
    Gone(MachineId),
    /// No answer in time.
    #[error("the machine did not answer in time")]
    Timeout,
    /// A guest did not get ready.
    #[error("the guest did not get ready: {reason}; the end of its console:\n{console}")]
    NotReady {
        /// What it did instead.
        reason: String,
        /// Its console.
        console: String,
    },
    /// This host cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// Too many calls at once.
    #[error("too many calls to machines at once")]
    Busy,
    /// The node is told to stop, and does not begin anything.
    #[error("the node is stopping")]
    Stopping,
    /// The host failed.
    #[error("the host failed")]
    Io(#[from] io::Error),
    /// The monitor broke the protocol, or the engine itself failed.
    #[error("{0}")]
    Broken(String),
}

/// Makes and ends machines. Calls block, each with a deadline of its own.
///
/// Dropping an engine leaves its machines alive; [`Engine::adopt`] takes hold of them again.
pub trait Engine: Send + Sync + 'static {
    /// Boots a machine and waits until its agent is up, or until it is told to stop. Its disks begin with what
    /// [`Self::save`] wrote to a directory, if one is given.
    fn boot(
        &self,
        origin: &Origin,
        disks: Option<&Path>,
        identity: Identity,
        stop: &CancellationToken,
    ) -> Result<MachineId, Error>;
    /// Makes children, all from one instant.
    fn fork(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error>;
    /// As [`Self::fork`], of a machine that is paused and goes on right afterwards.
    fn fork_held(&self, source: &MachineId, children: Vec<Identity>) -> Result<Offspring, Error>;
    /// Makes a copy that never runs.
    fn checkpoint(&self, source: &MachineId) -> Result<MachineId, Error>;
    /// Writes a machine to a directory while it runs on, and says what it needs to go on.
    fn save(&self, machine: &MachineId, directory: &Path, how: Save) -> Result<Needs, Error>;
    /// Makes a machine from all that [`Self::save`] wrote; it runs if it gets an identity, and then its agent is
    /// waited for, or until it is told to stop.
    fn restore(
        &self,
        saved: &Saved,
        identity: Option<Identity>,
        stop: &CancellationToken,
    ) -> Result<MachineId, Error>;
    /// Makes the files of an empty volume in a directory that is there.
    fn make_volume(&self, directory: &Path, size_mib: u32) -> Result<(), Error>;
    /// Brings a volume's files into their simplest form, unless somebody reads them. Nobody may attach it meanwhile.
    fn fold_volume(&self, directory: &Path) -> Result<bool, Error>;
    /// Puts a volume into an empty slot of a machine that runs.
    fn attach(&self, machine: &MachineId, medium: &Medium) -> Result<(), Error>;
    /// Empties a slot, after everything was written. One that is empty is no error.
    fn detach(&self, machine: &MachineId, slot: u8) -> Result<(), Error>;
    /// Connects the machine's network device to a link, or to nothing.
    fn plug(&self, machine: &MachineId, link: Option<OwnedFd>) -> Result<(), Error>;
    /// Stops the vCPUs.
    fn pause(&self, machine: &MachineId) -> Result<(), Error>;
    /// Goes on.
    fn resume(&self, machine: &MachineId) -> Result<(), Error>;
    /// Gives a machine its share of the processors.
    fn limit(&self, machine: &MachineId, cpu: Cpu) -> Result<(), Error>;
    /// Opens a connection to the agent inside.
    fn connect(&self, machine: &MachineId) -> Result<UnixStream, Error>;
    /// Figures.
    fn stats(&self, machine: &MachineId) -> Result<control::Stats, Error>;
    /// Bytes ever written to the console, and the last of them.
    fn console(&self, machine: &MachineId) -> Result<(u64, String), Error>;
    /// Makes children in answer to a call from inside: it returns 0 there and i in child i.
    fn answer_fork(
        &self,
        source: &MachineId,
        call: u64,
        children: Vec<Identity>,
    ) -> Result<Offspring, Error>;
    /// Tells a caller inside why there are no children.
    fn refuse_fork(&self, machine: &MachineId, call: u64, message: String) -> Result<(), Error>;
    /// Tells if the machine ends by itself, and of calls from inside. Called in the node's runtime.
    fn watch(&self, machine: &MachineId) -> Result<Watched, Error>;
    /// Ends a machine and waits for its end. One that is gone is no error.
    fn kill(&self, machine: &MachineId) -> Result<(), Error>;
    /// Takes hold of a machine of an earlier run of the node.
    fn adopt(&self, machine: &MachineId) -> Result<Condition, Error>;
    /// Ends every machine that nobody has made or adopted, and says how many. At start only.
    fn sweep(&self, keep: &BTreeSet<MachineId>) -> Result<usize, Error>;
    /// Memory of the host.
    fn memory(&self) -> Result<HostMemory, Error>;
    /// What this host gives to machines: what those that boot here need elsewhere.
    fn needs(&self) -> Result<Needs, Error>;
    /// The file of this host's own empty disk of a size, which is never written again.
    fn empty_disk(&self, free_mib: u32) -> Result<PathBuf, Error>;
}

/// Engine and network, for callers that must not block.
#[derive(Clone)]
pub struct Host {
    engine: Arc<dyn Engine>,
    network: Arc<dyn Network>,
    calls: Arc<Semaphore>,
}

impl Host {
    /// With this engine and this network.
    pub fn new(engine: Arc<dyn Engine>, network: Arc<dyn Network>) -> Self {
        Self { engine, network, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// Whether there is a network.
    pub fn network(&self) -> watch::Receiver<net::State> {
        self.network.state()
    }

    /// Runs a call on a blocking thread that concerns the network, and machines at it.
    pub async fn network_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Engine, &dyn Network) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let network = self.network.clone();
        self.call(move |engine| Ok(call(engine, &*network))).await
    }

    /// Runs a call on a blocking thread. It is carried out to its end even if nobody waits for it.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = timeout(TURN, self.calls.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Error::Busy) };
        let engine = self.engine.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = call(&*engine);
            drop(turn);
            result
        });
        task.await.unwrap_or_else(|error| Err(Error::Broken(error.to_string())))
    }

    /// A session with the agent of a machine.
    pub async fn agent(&self, machine: &MachineId) -> Result<agent::Session, Error> {
        let machine = machine.clone();
        let stream = self.call(move |engine| engine.connect(&machine)).await?;
        Ok(agent::Session::new(stream)?)
    }
}
