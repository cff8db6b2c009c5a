//! Sandboxes: the registry, their life, their tree. Knows machines through `host`, and no HTTP.
//!
//! [`Service`] is the one place that every operation passes. An operation is noted in the database with who asked
//! for what, and what came of it; it runs in a task of the service, so a client that hangs up does not
//! leave it half done. The order of every change is: make machines, write the change in one
//! transaction, change the memory, end machines that are no longer needed. After a crash at any
//! point, what the database says is true, and machines that it does not name are ended.

mod about;
pub mod boot;
mod calls;
pub mod check;
mod code;
mod diff;
pub mod durable;
pub mod error;
mod groups;
mod guest;
pub mod images;
mod inside;
mod library;
mod life;
mod limits;
pub mod line;
pub mod network;
pub mod networks;
mod notes;
mod reach;
pub mod record;
mod recover;
pub mod registry;
mod renew;
mod swap;
pub mod template;
#[cfg(test)]
mod tests;
mod tokens;
mod undo;
pub mod volumes;

use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramet_proto::api;
use ramet_store::{Login, Repository};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use code::{CodeStream, INTERPRETER_PORT, INTERPRETER_TAG};
pub use error::Error;
pub use guest::{Busy, ByteRange, FileSource, GuestStream, Upload};
pub use inside::{Live, Mouth};
#[cfg(test)]
pub use library::tiny_image;
pub use reach::{PortStream, Watch};
pub use renew::Renewal;

use crate::auth::Principal;
use crate::clock::now_ms;
use crate::events::Events;
use crate::host::{Host, MachineId};
use crate::metrics::Metrics;
use crate::store::{Change, Known, Store};
use record::{Phase, Record};
use registry::Registry;

/// How long an operation waits for another one on the same sandbox.
const TURN: Duration = Duration::from_secs(60);

/// Commits that are written at once.
const WRITERS_MAX: usize = 2;

/// Operations that make room.
const REMOVALS: [&str; 6] = [
    "delete",
    "checkpoint_delete",
    "commit_delete",
    "volume_delete",
    "secret_delete",
    "link_delete",
];

/// What a node allows.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where guests run.
    pub host_mode: api::HostMode,
    /// Most sandboxes that are not gone.
    pub sandboxes_max: u32,
    /// Most checkpoints of one sandbox.
    pub checkpoints_max: usize,
    /// Memory that is left to the host.
    pub reserve_mib: u64,
    /// Memory that a new sandbox must find.
    pub sandbox_mib: u64,
    /// Most live sandboxes of one owner that were made by calls from inside others.
    pub called_max: usize,
    /// Directory of images and templates.
    pub data_dir: PathBuf,
    /// Directory of the guest's files.
    pub guest_dir: PathBuf,
    /// Where states are kept; in the data directory when absent.
    pub store: Option<ramet_store::Location>,
    /// Bytes of copies of states on this host, at most.
    pub copies_max: u64,
    /// Memory beyond the reserve that checkpoints give up before it is needed.
    pub relief_mib: u64,
    /// How long requests to the store may take, and how many are made at once.
    pub store_limits: ramet_store::Limits,
    /// How long a machine waits for a store that does not answer, before its sandbox is paused again.
    pub store_patience: Duration,
    /// How long objects that nothing needs stay in the store.
    pub grace: Duration,
    /// How S3 is reached, where a remote is in it.
    pub s3: ramet_store::S3,
    /// What remotes begin with that others than the administrator may use.
    pub remotes: Vec<String>,
    /// File with logins for registries.
    pub logins: Option<PathBuf>,
    /// Signs what goes out.
    pub sign: Option<Arc<ramet_store::SigningKey>>,
    /// One of these must have signed what comes in; without any, nothing is asked.
    pub trusted: Option<Arc<[ramet_store::VerifyingKey]>>,
    /// What names of presets stand for, besides those that every node has.
    pub presets: network::Presets,
}

impl Settings {
    /// A repository of a registry, with the login that there is for it.
    fn registry(&self, repository: &Repository) -> Result<ramet_store::Registry, Error> {
        let login = match &self.logins {
            Some(file) => Login::find(file, repository)?,
            None => Login::Anonymous,
        };
        Ok(ramet_store::Registry::new(repository, login)?)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host_mode: api::HostMode::Hardware,
            sandboxes_max: 1000,
            checkpoints_max: 64,
            reserve_mib: 256,
            sandbox_mib: 16,
            called_max: 256,
            data_dir: PathBuf::new(),
            guest_dir: PathBuf::new(),
            store: None,
            copies_max: 32 << 30,
            relief_mib: 512,
            store_limits: ramet_store::Limits::default(),
            store_patience: Duration::from_secs(120),
            grace: Duration::from_secs(3600),
            s3: ramet_store::S3::default(),
            remotes: Vec::new(),
            logins: None,
            sign: None,
            trusted: None,
            presets: network::Presets::new(),
        }
    }
}

/// All sandboxes of a node.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

/// Shared by all clones.
pub struct Inner {
    host: Host,
    store: Arc<Store>,
    /// Never held across an await; the mutex is std's for that reason.
    registry: Mutex<Registry>,
    /// Files of images and templates.
    library: Arc<library::Library>,
    /// Machines that were booted from images.
    boots: boot::Boots,
    /// Templates that were built.
    shelf: template::Shelf,
    images: images::Images,
    /// States that outlive machines.
    vault: OnceCell<Arc<durable::vault::Vault>>,
    /// Told when a commit was written, or could not be.
    settled: watch::Sender<u64>,
    /// Commits that are written at once.
    writers: Semaphore,
    /// Held by whoever makes room in memory.
    spilling: tokio::sync::Mutex<()>,
    /// Moves that are under way at once.
    moves: Arc<Semaphore>,
    /// What happens.
    pub events: Events,
    /// Figures.
    pub metrics: Metrics,
    /// What is allowed.
    pub settings: Settings,
    /// Owns every task of the service.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Memory promised to operations under way.
    promised_mib: Arc<AtomicU64>,
    recovered: AtomicBool,
    /// When the node was started.
    pub started_at_ms: u64,
}

impl Deref for Service {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Memory promised to an operation, for as long as this exists.
struct Admitted {
    promised: Arc<AtomicU64>,
    mib: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.promised.fetch_sub(self.mib, Ordering::Relaxed);
    }
}

impl Service {
    /// With nothing in it yet; see [`Service::recover`].
    pub fn new(host: Host, store: Arc<Store>, settings: Settings) -> Self {
        Self(Arc::new(Inner {
            host,
            store,
            registry: Mutex::default(),
            library: Arc::new(library::Library::new(
                settings.data_dir.clone(),
                settings.guest_dir.clone(),
            )),
            boots: boot::Boots::default(),
            shelf: template::Shelf::default(),
            images: images::Images::default(),
            vault: OnceCell::new(),
            settled: watch::Sender::new(0),
            writers: Semaphore::new(WRITERS_MAX),
            spilling: tokio::sync::Mutex::default(),
            moves: Arc::new(Semaphore::new(durable::moves::MOVES_MAX)),
            events: Events::default(),
            metrics: Metrics::default(),
            settings,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            promised_mib: Arc::default(),
            recovered: AtomicBool::new(false),
            started_at_ms: now_ms(),
        }))
    }

    /// Lets operations end, and the background work. Machines live on; but a node without sandboxes leaves nothing
    /// behind, templates included.
    pub async fn shut_down(&self, patience: Duration) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!("operations were still under way; the next start settles them");
            return;
        }
        let lives = |record: &Record| matches!(record.phase, Phase::Running | Phase::Paused);
        let empty = !self.registry().all().any(lives);
        if empty {
            self.end_templates().await;
            self.end_network().await;
        }
    }

    /// Told when the node shuts down.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Carries on with something that outlives its request, until it ends or the node stops.
    pub fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        });
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an operation in a task of the service, and notes it.
    async fn operate<T: Send + 'static>(
        &self,
        who: &Principal,
        kind: &'static str,
        target: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let begin = || self.store.begin_operation(who.name(), kind, target, now_ms());
        let number = match begin() {
            // What makes room must not fail for want of it.
            Err(error) if error.is_full() && REMOVALS.contains(&kind) => {
                self.store.give_reserve();
                begin()?
            }
            number => number?,
        };
        let service = self.clone();
        let task = self.tasks.spawn(async move {
            let result = work.await;
            service.note(number, kind, result.as_ref().err());
            result
        });
        task.await
            .unwrap_or_else(|error| Err(Error::Internal(format!("{kind} broke off: {error}"))))
    }

    fn note(&self, number: i64, kind: &'static str, error: Option<&Error>) {
        let outcome = error.map_or_else(|| "ok".to_owned(), Error::to_string);
        self.metrics.operation(kind, if error.is_none() { "ok" } else { "failed" });
        if let Err(error) = self.store.end_operation(number, &outcome, now_ms()) {
            tracing::error!(?error, kind, "an operation's end could not be noted");
        }
    }

    /// Carries out work once for a key, and gives its answer again afterwards.
    async fn once<T: Serialize + DeserializeOwned>(
        &self,
        who: &Principal,
        key: Option<(String, String)>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some((key, request)) = key else { return work.await };
        let answer = match self.store.take_key(who.name(), &key, &request, now_ms())? {
            Known::New => work.await,
            Known::Pending => return Err(Error::InProgress),
            Known::Mismatch => return Err(Error::Mismatch),
            Known::Answered(text) => {
                return serde_json::from_str(&text).map_err(|e| Error::Internal(e.to_string()));
            }
        };
        let text = match &answer {
            Ok(answer) => {
                Some(serde_json::to_string(answer).map_err(|e| Error::Internal(e.to_string()))?)
            }
            Err(_) => None,
        };
        self.store.settle_key(who.name(), &key, text.as_deref())?;
        answer
    }

    /// Changes the state: what the closure gives is written, then done.
    fn commit(
        &self,
        change: impl FnOnce(&mut Registry) -> Result<Change, Error>,
    ) -> Result<(), Error> {
        let mut registry = self.registry();
        let change = change(&mut registry)?;
        self.store.apply(&change)?;
        registry.apply(change);
        Ok(())
    }

    /// Promises memory, if there is enough.
    async fn admit(&self, mib: u64) -> Result<Admitted, Error> {
        let mut memory = self.host.call(|engine| engine.memory()).await?;
        let before = self.promised_mib.fetch_add(mib, Ordering::Relaxed);
        let admitted = Admitted { promised: self.promised_mib.clone(), mib };
        let needed = before + mib + self.settings.reserve_mib;
        if memory.available_mib < needed {
            self.make_room(needed).await?;
            memory = self.host.call(|engine| engine.memory()).await?;
        }
        if memory.available_mib < needed {
            return Err(Error::NoCapacity(format!(
                "the host has {} MiB available and this needs {needed}, of which {} stay in reserve; remove or \
                 pause sandboxes",
                memory.available_mib, self.settings.reserve_mib
            )));
        }
        Ok(admitted)
    }

    /// The sandbox that is meant.
    fn find(&self, who: &Principal, key: &str) -> Result<Record, Error> {
        self.registry().find(who, key).cloned()
    }

    /// Keeps the machine of a sandbox in its place, as long as the guard lives.
    async fn share(&self, id: &str) -> Result<OwnedRwLockReadGuard<()>, Error> {
        let lock = self.registry().life(id).lock.clone();
        timeout(TURN, lock.read_owned()).await.map_err(|_| busy(id))
    }

    /// Nothing else changes the sandbox, as long as the guard lives.
    async fn own(&self, id: &str) -> Result<OwnedRwLockWriteGuard<()>, Error> {
        let lock = self.registry().life(id).lock.clone();
        timeout(TURN, lock.write_owned()).await.map_err(|_| busy(id))
    }

    /// Ends a machine that is no longer needed. A failure is logged: the next start sweeps it up.
    async fn kill(&self, machine: MachineId) {
        let name = machine.clone();
        if let Err(error) = self.host.call(move |engine| engine.kill(&machine)).await {
            tracing::error!(%name, ?error, "a machine could not be ended");
        }
    }
}

fn busy(id: &str) -> Error {
    Error::TooMany(format!("another operation on {id} takes long; try again"))
}
