//! States of machines: in the store, where they are safe, and in files of this host, where machines go on from them.
//!
//! | path below the data directory | content |
//! |---|---|
//! | `store/` | the store, unless it is elsewhere |
//! | `scratch/` | what the store keeps for itself |
//! | `states/OWNER/STATE/` | the files of a state, whole: it is *warm* |
//! | `states/OWNER/.STATE/` | the same on their way, brought by a [`Feed`] |
//! | `states/.new/` | what monitors write, until the store has it |
//! | `node` | this node's name, for others with the same store |
//! | `pager.sock` | where monitors ask for what is missing |
//!
//! Files of states are copies: what is not warm is fetched. When they take more room than they may, those go that were used
//! least lately; a machine that was made from them has them open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ramet_proto::api::StoredState;
use ramet_store::{Config, Hot, Limits, Location, NewRoot, Root, Run, StateId, Store, Tenant};
use serde::Serialize;
use tokio::sync::Mutex;

use super::feed::{Feed, Feeds, Pin};
use crate::clock::now_ms;
use crate::random;
use crate::sandbox::error::Error;
use crate::sandbox::images::blocking;

/// Written by the monitor: pages that were touched.
const HOT: &str = "hot";
/// For the monitor: files that were checked when they were fetched.
pub const STAMPS: &str = "stamps";
/// Files that a machine is made from first.
const FIRST: [&str; 2] = ["state", "disks"];
/// The file that a machine that boots does not need.
const MEMORY: &str = "memory";

/// Roots that are asked for at once.
const PAGE: usize = 1000;

/// Where states are kept, and how much room their copies may take.
#[derive(Debug, Clone)]
pub struct Place {
    /// The store.
    pub location: Location,
    /// The node's data directory.
    pub data: PathBuf,
    /// Bytes of copies, at most.
    pub copies_max: u64,
    /// Of requests to the store.
    pub limits: Limits,
    /// How long a machine waits for a store that does not answer.
    pub patience: Duration,
}

/// A state to go on from.
pub struct Ready {
    /// Its files.
    pub directory: PathBuf,
    /// Who brings what is missing of them; nothing is missing if absent.
    pub feed: Option<Arc<Feed>>,
    /// While it is held the directory keeps its name.
    _pin: Option<Pin>,
}

/// The states.
pub struct Vault {
    /// Names this node among those that have the same store.
    pub node: String,
    store: Store,
    place: Place,
    /// Who brings what.
    pub feeds: Feeds,
    /// Held while files of a state are made or removed.
    making: Mutex<()>,
}

impl Vault {
    /// Opens the store, and begins to listen to monitors.
    pub async fn open(place: Place) -> Result<Self, Error> {
        let config = Config {
            location: place.location.clone(),
            limits: place.limits,
            ..Config::local(PathBuf::new(), place.data.join("scratch"))
        };
        let store = Store::open(config).await?;
        let news = place.data.join("states/.new");
        blocking(move || {
            // What was being written when the node ended is nobody's.
            match fs::remove_dir_all(&news) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(fs::create_dir_all(&news)?),
            }
        })
        .await?;
        let file = place.data.join("node");
        let node = blocking(move || node_name(&file)).await?;
        let feeds = Feeds::listen(place.data.join("pager.sock"), place.patience)?;
        Ok(Self { node, store, place, feeds, making: Mutex::default() })
    }

    /// The store itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// All roots of a kind.
    pub async fn roots(&self, tenant: &Tenant, kind: &str) -> Result<Vec<Root>, Error> {
        let mut all: Vec<Root> = Vec::new();
        loop {
            let after = all.last().map(|root| root.name.clone());
            let page = self.store.roots(tenant, kind, after.as_deref(), PAGE).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Where it is, in words.
    pub fn location(&self) -> String {
        match &self.place.location {
            Location::Local(path) => path.display().to_string(),
            Location::S3(s3) => format!("s3://{}/{}", s3.bucket, s3.prefix),
            Location::Custom(_) => "elsewhere".to_owned(),
        }
    }

    /// A directory for a monitor to write to, which does not exist yet.
    pub fn fresh(&self) -> Result<PathBuf, Error> {
        Ok(self.place.data.join("states/.new").join(random::hex(8)?))
    }

    fn directory(&self, tenant: &Tenant, state: StateId) -> PathBuf {
        self.place.data.join("states").join(tenant.as_str()).join(state.to_string())
    }

    /// Where a state is while it is on its way.
    fn unfinished(&self, tenant: &Tenant, state: StateId) -> PathBuf {
        self.place.data.join("states").join(tenant.as_str()).join(format!(".{state}"))
    }

    /// Stores what a monitor has written, and keeps the files as a copy.
    pub async fn put(
        &self,
        tenant: &Tenant,
        written: &Path,
        parent: Option<StateId>,
        root: NewRoot,
    ) -> Result<StoredState, Error> {
        let directory = written.to_owned();
        let hot = blocking(move || take_hot(&directory)).await?;
        let mut draft = self.store.put_state(tenant, written, parent, hot.clone()).await?;
        let mut cost = draft.cost;
        let totals = draft.totals();
        let published = match self.store.publish(draft, root.clone()).await {
            // It took so long that what it shares with others may be gone: once more, all of it.
            Err(ramet_store::Error::Expired(_)) => {
                draft = self.store.put_state(tenant, written, None, hot).await?;
                cost = draft.cost;
                self.store.publish(draft, root).await?
            }
            published => published?,
        };
        let state = published.state;
        let _making = self.making.lock().await;
        let (from, to) = (written.to_owned(), self.directory(tenant, state));
        // Without the copy it is fetched.
        let kept = blocking(move || Ok(keep(&from, &to)?)).await;
        if let Err(error) = kept {
            tracing::warn!(?error, %state, "a state's files could not be kept");
        }
        Ok(StoredState {
            state: state.to_string(),
            logical_bytes: totals.content_bytes,
            written_bytes: cost.written_bytes,
            stored_bytes: totals.stored_bytes,
            stored_at_ms: now_ms(),
            warm: true,
            disk: false,
            needs: None,
        })
    }

    /// Whether a machine can go on from a state's files here.
    pub fn is_warm(&self, tenant: &Tenant, state: StateId) -> bool {
        self.directory(tenant, state).is_dir()
    }

    /// A state's files, all of them; fetched if they are not here.
    pub async fn whole(&self, tenant: &Tenant, state: StateId) -> Result<PathBuf, Error> {
        let Ready { directory, feed, .. } = self.ready(tenant, state).await?;
        let Some(feed) = feed else { return Ok(directory) };
        feed.hurry();
        feed.finished().await?;
        Ok(self.directory(tenant, state))
    }

    /// A state's files, of which those of the disks are here.
    pub async fn disks(&self, tenant: &Tenant, state: StateId) -> Result<Ready, Error> {
        let ready = self.ready(tenant, state).await?;
        if let Some(feed) = &ready.feed {
            for name in feed.names().filter(|name| *name != MEMORY) {
                feed.bring(name).await?;
            }
        }
        Ok(ready)
    }

    /// A state's files, which may be on their way; those that a machine is made from first are there.
    pub async fn ready(&self, tenant: &Tenant, state: StateId) -> Result<Ready, Error> {
        loop {
            let Ready { directory, feed, .. } = self.found(tenant, state).await?;
            let Some(feed) = feed else { return Ok(Ready { directory, feed, _pin: None }) };
            // If it has ended meanwhile, the directory has another name.
            if let Some(pin) = feed.pin().await? {
                for name in FIRST.iter().filter(|first| feed.names().any(|name| name == **first)) {
                    feed.bring(name).await?;
                }
                return Ok(Ready { directory, feed: Some(feed), _pin: Some(pin) });
            }
        }
    }

    async fn found(&self, tenant: &Tenant, state: StateId) -> Result<Ready, Error> {
        let _making = self.making.lock().await;
        let directory = self.directory(tenant, state);
        if directory.is_dir() {
            let used = directory.clone();
            blocking(move || Ok(touch(&used)?)).await?;
            return Ok(Ready { directory, feed: None, _pin: None });
        }
        let directory = self.unfinished(tenant, state);
        if let Some(feed) = self.feeds.find(&directory) {
            return Ok(Ready { directory, feed: Some(feed), _pin: None });
        }
        let feed = self.feed(tenant, state).await?;
        Ok(Ready { directory, feed: Some(feed), _pin: None })
    }

    /// Begins to bring a state's files.
    async fn feed(&self, tenant: &Tenant, state: StateId) -> Result<Arc<Feed>, Error> {
        let manifest = self.store.manifest(tenant, state).await?;
        let reader = self.store.reader(tenant, state, manifest);
        let (unfinished, whole) = (self.unfinished(tenant, state), self.directory(tenant, state));
        let made = unfinished.clone();
        blocking(move || Ok(fs::create_dir_all(&made)?)).await?;
        let finish = move |from: &Path| -> io::Result<()> {
            stamp(from)?;
            fs::rename(from, &whole)
        };
        self.feeds.begin(reader, &unfinished, Box::new(finish)).await
    }

    /// After a restart of the node: machines of these states may still wait for their files.
    pub async fn go_on(&self, tenant: &Tenant, state: StateId) -> Result<Option<Arc<Feed>>, Error> {
        if self.is_warm(tenant, state) || !self.unfinished(tenant, state).is_dir() {
            return Ok(None);
        }
        Ok(self.ready(tenant, state).await?.feed)
    }

    /// Somebody needs all of a state that is on its way.
    pub fn hurry(&self, tenant: &Tenant, state: StateId) {
        if let Some(feed) = self.feeds.find(&self.unfinished(tenant, state)) {
            feed.hurry();
        }
    }

    /// After a start: removes what was on its way for machines that are gone.
    pub async fn sweep(&self) -> Result<(), Error> {
        let _making = self.making.lock().await;
        let root = self.place.data.join("states");
        let all = blocking(move || Ok(states(&root, true)?)).await?;
        let all = all.into_iter().map(|state| state.path());
        let left: Vec<PathBuf> = all.filter(|path| self.feeds.find(path).is_none()).collect();
        blocking(move || Ok(left.iter().try_for_each(fs::remove_dir_all)?)).await
    }

    /// Bytes that copies take here.
    pub async fn copies_bytes(&self) -> Result<u64, Error> {
        let root = self.place.data.join("states");
        blocking(move || Ok(copies(&root)?.iter().map(|copy| copy.bytes).sum())).await
    }

    /// Removes copies that were used least lately, until the rest takes no more room than it may.
    pub async fn tidy(&self) -> Result<(), Error> {
        let _making = self.making.lock().await;
        let (root, most) = (self.place.data.join("states"), self.place.copies_max);
        blocking(move || {
            let mut found = copies(&root)?;
            found.sort_by_key(|copy| copy.used);
            let mut bytes: u64 = found.iter().map(|copy| copy.bytes).sum();
            for copy in found {
                if bytes <= most {
                    break;
                }
                fs::remove_dir_all(&copy.path)?;
                bytes = bytes.saturating_sub(copy.bytes);
            }
            Ok(())
        })
        .await
    }

    /// Removes copies that nobody has used for this long and that are of no state that is named.
    pub async fn forget_copies(
        &self,
        needed: BTreeSet<String>,
        idle: Duration,
    ) -> Result<(), Error> {
        let _making = self.making.lock().await;
        let root = self.place.data.join("states");
        blocking(move || {
            let named = |copy: &Copy| {
                copy.path.file_name().is_some_and(|name| needed.contains(&*name.to_string_lossy()))
            };
            let idle = |copy: &Copy| copy.used.elapsed().is_ok_and(|since| since >= idle);
            let found = copies(&root)?;
            let left = found.iter().filter(|copy| !named(copy) && idle(copy));
            Ok(left.map(|copy| &copy.path).try_for_each(fs::remove_dir_all)?)
        })
        .await
    }

    /// Removes all copies of a tenant's states, and what saves requests to the store.
    pub async fn chill_all(&self, tenant: &Tenant) -> Result<(), Error> {
        let _making = self.making.lock().await;
        let (root, owner) = (self.place.data.join("states"), tenant.as_str().to_owned());
        blocking(move || {
            let own = |state: &fs::DirEntry| {
                state.path().parent().is_some_and(|parent| parent.ends_with(&owner))
            };
            let found = states(&root, false)?;
            Ok(found
                .iter()
                .filter(|state| own(state))
                .map(fs::DirEntry::path)
                .try_for_each(fs::remove_dir_all)?)
        })
        .await?;
        self.store.forget_cached().await;
        Ok(())
    }

    /// Removes a state's files here; it is cold then.
    pub async fn chill(&self, tenant: &Tenant, state: StateId) -> Result<(), Error> {
        let _making = self.making.lock().await;
        let directory = self.directory(tenant, state);
        blocking(move || match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        })
        .await
    }
}

/// This node's name, which is made once.
fn node_name(file: &Path) -> Result<String, Error> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        name => return Ok(name?.trim().to_owned()),
    }
    let (name, unfinished) = (random::hex(8)?, file.with_extension("new"));
    fs::write(&unfinished, &name)?;
    fs::rename(&unfinished, file)?;
    Ok(name)
}

/// Whose states they are. Owners' names that the store does not take are hashed.
pub fn tenant(owner: &str) -> Result<Tenant, Error> {
    let hashed = || format!("owner-{}", &blake3::hash(owner.as_bytes()).to_hex()[..32]);
    Ok(Tenant::new(owner).or_else(|_| Tenant::new(hashed()))?)
}

/// A state's name, as it is written down.
pub fn state_id(text: &str) -> Result<StateId, Error> {
    text.parse().map_err(|_| Error::Internal(format!("{text:?} names no state")))
}

/// Takes the note of touched pages out of what a monitor has written.
fn take_hot(directory: &Path) -> Result<Hot, Error> {
    let path = directory.join(HOT);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Hot::new()),
        text => text?,
    };
    fs::remove_file(&path)?;
    // Without them everything is read in order.
    let runs: Vec<(u64, u64)> = serde_json::from_slice(&text).unwrap_or_default();
    let runs: Vec<Run> = runs.into_iter().map(|(first, count)| Run { first, count }).collect();
    Ok(BTreeMap::from([("memory".to_owned(), runs)]))
}

fn keep(from: &Path, to: &Path) -> io::Result<()> {
    if to.is_dir() {
        return fs::remove_dir_all(from);
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(from, to)
}

fn touch(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.set_modified(SystemTime::now())
}

struct Copy {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Directories of states: those that are on their way, or those that are whole.
fn states(root: &Path, on_their_way: bool) -> io::Result<Vec<fs::DirEntry>> {
    let hidden = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    let mut found = Vec::new();
    for owner in fs::read_dir(root)? {
        let owner = owner?;
        if hidden(&owner) {
            continue;
        }
        let all = fs::read_dir(owner.path())?.collect::<Result<Vec<_>, _>>()?;
        found.extend(all.into_iter().filter(|state| hidden(state) == on_their_way));
    }
    Ok(found)
}

/// The files of states that are whole.
fn copies(root: &Path) -> io::Result<Vec<Copy>> {
    let measured = |state: fs::DirEntry| {
        let mut bytes = 0;
        for file in fs::read_dir(state.path())? {
            bytes += file?.metadata()?.blocks() * 512;
        }
        Ok(Copy { path: state.path(), bytes, used: state.metadata()?.modified()? })
    };
    states(root, false)?.into_iter().map(measured).collect()
}

/// What tells whether a file was touched; the monitor compares it.
#[derive(Serialize)]
struct Stamp {
    size: u64,
    inode: u64,
    changed: (i64, i64),
}

/// Notes that the files, which were verified when they were read, are as they should be.
pub fn stamp(directory: &Path) -> io::Result<()> {
    let mut stamps = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.metadata()?;
        let changed = (file.ctime(), file.ctime_nsec());
        let stamp = Stamp { size: file.len(), inode: file.ino(), changed };
        stamps.insert(entry.file_name().to_string_lossy().into_owned(), stamp);
    }
    fs::write(directory.join(STAMPS), serde_json::to_vec(&stamps)?)
}
