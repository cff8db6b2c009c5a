//! Commits and templates on their way to and from other places: remotes, and packs in streams.
//!
//! What moves is a *subject* with what it is over ([`super::bases`]). Every way in is the same: the description is read and
//! checked, needs are compared with this host, signatures are verified, chunks that are missing come and are verified,
//! the root is made, and the database learns of it last. What breaks off leaves chunks, or an image, that nothing names
//! and that are collected; never a commit or template that is not whole.
//!
//! A remote is used with the node's own files, keys and network. So the administrator may name any, and others only what
//! the node's configuration lists.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramet_proto::api::{self, MoveProgress, Moved, RefKind, StoredState, TemplateState};
use ramet_store::{
    Config, Destination, Hot, Limits, Location, Meter, NewRoot, Pack, Packing, Remote, RootMode,
    StateId, Store, Tenant, Trust, Unpacking,
};
use tokio::io::{AsyncRead, DuplexStream};
use tokio::sync::oneshot;

use super::bases::Base;
use super::commits::{COMMIT_ROOT, Commit, check_ref, not_durable};
use super::incoming::Subject;
use super::vault::{STAMPS, stamp, state_id, tenant};
use crate::auth::{ADMIN, Principal};
use crate::clock::now_ms;
use crate::sandbox::error::Error;
use crate::sandbox::images::blocking;
use crate::sandbox::template::{TEMPLATES_MAX, Template};
use crate::sandbox::{Service, check};

/// What keeps the state of a template in the store, while it has one.
pub const TEMPLATE_ROOT: &str = "template";
/// Bytes of a pack that wait for a slow receiver.
const AHEAD: usize = 1 << 20;
/// Commits that a receiver can say it has.
const HAVE_MAX: usize = 1000;
/// Bytes that are kept of a remote store to speed it up.
const REMOTE_SCRATCH: u64 = 256 << 20;
/// How long a receiver may take for a chunk.
const STALL: Duration = Duration::from_secs(120);
/// Moves under way, at most.
pub const MOVES_MAX: usize = 8;

/// What is to be moved, as a caller names it.
#[derive(Debug, Clone)]
pub enum What {
    /// A commit, by id or name.
    Commit(String),
    /// A template, by id or name.
    Template(String),
}

/// How something that comes is to be taken.
#[derive(Debug, Clone, Default)]
struct Wish {
    /// Its name here.
    name: Option<String>,
    /// For its files alone.
    disk: bool,
}

/// What a parcel brings.
enum Expected {
    /// Something that may come.
    New(Subject),
    /// Nothing that is not here; the answer.
    Known(Box<Moved>),
}

/// A move under way.
pub struct Moving {
    /// How far it is.
    pub meter: Arc<Meter>,
    /// What came of it.
    pub done: oneshot::Receiver<Result<Moved, Error>>,
}

/// A pack on its way out.
pub struct PackStream {
    /// Its bytes.
    pub bytes: DuplexStream,
    /// Whether they were all.
    pub done: oneshot::Receiver<Result<(), Error>>,
}

/// How far a move is, as clients see it.
pub fn progress(meter: &Meter) -> MoveProgress {
    let moved = meter.read();
    MoveProgress {
        chunks: moved.chunks,
        done_chunks: moved.done,
        moved_chunks: moved.moved,
        moved_bytes: moved.bytes,
    }
}

impl Service {
    fn trust(&self) -> Trust<'_> {
        Trust { sign: self.settings.sign.as_deref(), trusted: None }
    }

    /// What is asked of what comes in. What was signed elsewhere is not signed again.
    fn doubt(&self) -> Trust<'_> {
        Trust { sign: None, trusted: self.settings.trusted.as_deref() }
    }

    fn remote(&self, who: &Principal, text: &str) -> Result<Remote, Error> {
        let allowed = |prefix: &String| text.starts_with(prefix.as_str());
        if who.name() != ADMIN && !self.settings.remotes.iter().any(allowed) {
            return Err(Error::Bad(format!(
                "remote: this node does not let you use {text}; its options --remote say what you can use"
            )));
        }
        Ok(Remote::parse(text, &self.settings.s3)?)
    }

    /// Begins something that may take long, and that others may watch.
    fn begin_move<F: Future<Output = Result<Moved, Error>> + Send + 'static>(
        &self,
        who: &Principal,
        kind: &'static str,
        target: String,
        work: impl FnOnce(Self, Arc<Meter>) -> F,
    ) -> Result<Moving, Error> {
        let turn = self.moves.clone().try_acquire_owned().map_err(|_| {
            Error::TooMany(format!("{MOVES_MAX} moves are under way already; try again"))
        })?;
        let meter = Arc::new(Meter::default());
        let (told, done) = oneshot::channel();
        let (service, who) = (self.clone(), who.clone());
        let work = work(self.clone(), meter.clone());
        self.tasks.spawn(async move {
            let stop = service.stop.clone();
            let stopped = async move {
                tokio::select! {
                    done = work => done,
                    () = stop.cancelled() => {
                        Err(Error::NotReady("the node is stopping; move it again".to_owned()))
                    }
                }
            };
            let result = service.operate(&who, kind, &target, stopped).await;
            drop(turn);
            // Nobody may listen any more.
            drop(told.send(result));
        });
        Ok(Moving { meter, done })
    }

    /// The subject that is meant, which must be whole.
    async fn subject(&self, who: &Principal, what: &What) -> Result<Subject, Error> {
        match what {
            What::Commit(key) => {
                let commit = self.find_commit(who, key).await?;
                match commit.stored {
                    Some(_) => Ok(Subject::Commit(Box::new(commit))),
                    None => Err(not_durable(&commit)),
                }
            }
            What::Template(key) => Ok(Subject::Template(Box::new(self.usable_template(who, key)?))),
        }
    }

    /// Roots of a subject and of what it is over, that first.
    async fn roots_of(
        &self,
        owner: &Tenant,
        subject: &Subject,
    ) -> Result<Vec<ramet_store::Root>, Error> {
        let line = subject.root();
        if line.image.is_empty() || line.data.is_empty() {
            return Err(Error::WrongState(format!(
                "{} is older than moving, and does not say what its disks are over; make it again",
                subject.named()
            )));
        }
        let mut roots = self.store_bases(owner, &line).await?;
        roots.push(match subject {
            Subject::Commit(commit) => {
                self.vault().await?.store().root(owner, COMMIT_ROOT, &commit.id).await?
            }
            Subject::Template(template) => self.store_template(owner, template).await?,
        });
        Ok(roots)
    }

    /// The root of a template's state, whose files are put into the store if they are not there.
    async fn store_template(
        &self,
        owner: &Tenant,
        template: &Template,
    ) -> Result<ramet_store::Root, Error> {
        let store = self.vault().await?.store().clone();
        match store.root(owner, TEMPLATE_ROOT, &template.id).await {
            Err(ramet_store::Error::NotFound { .. }) => {}
            found => return Ok(found?),
        }
        let described = Template {
            owner: String::new(),
            machine: None,
            log: String::new(),
            reason: None,
            ..template.clone()
        };
        let value = serde_json::to_value(described).map_err(|e| Error::Internal(e.to_string()))?;
        let directory = self.library.template(&template.id);
        let draft = store.put_state(owner, &directory, None, Hot::new()).await?;
        let root = NewRoot::new(TEMPLATE_ROOT, &template.id, value);
        match store.publish(draft, root).await {
            Err(ramet_store::Error::Exists { .. }) => {
                Ok(store.root(owner, TEMPLATE_ROOT, &template.id).await?)
            }
            published => Ok(published?),
        }
    }

    /// A template that is forgotten needs no state.
    pub(in crate::sandbox) async fn forget_template_state(&self, template: &Template) {
        // A store that nobody has needed yet holds nothing.
        let Some(vault) = self.vault.get() else { return };
        let forgotten = async {
            let owner = tenant(&template.owner)?;
            Ok::<(), Error>(vault.store().delete_root(&owner, TEMPLATE_ROOT, &template.id).await?)
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(?error, id = template.id, "a state stays in the store without need");
        }
    }

    /// Begins to push something to a remote.
    pub async fn push(
        &self,
        who: &Principal,
        what: What,
        request: api::PushRequest,
    ) -> Result<Moving, Error> {
        let remote = self.remote(who, &request.remote)?;
        let subject = self.subject(who, &what).await?;
        let name = match &what {
            // A name that was asked for is a name there, too.
            What::Commit(key) if check_ref(key).is_ok() && !is_beginning(key, &subject) => {
                Some(key.clone())
            }
            What::Commit(_) => None,
            What::Template(_) => match &subject {
                Subject::Template(template) => Some(template.name.clone()),
                Subject::Commit(_) => None,
            },
        };
        let target = format!("{} {}", subject.root_name().1, request.remote);
        let who_asks = who.clone();
        self.begin_move(who, "push", target, |service, meter| async move {
            let owner = tenant(who_asks.name())?;
            let roots = service.roots_of(&owner, &subject).await?;
            match remote {
                Remote::Store { location, name: there } => {
                    let name = there.or(name);
                    service.push_store(&owner, location, &roots, name.as_deref(), &meter).await?;
                }
                Remote::Registry(repository) => {
                    let store = service.vault().await?.store();
                    let registry = service.settings.registry(&repository)?;
                    store.push(&owner, &roots, &registry, service.trust(), &meter).await?;
                }
            }
            service.moved(&who_asks, &subject, false, &meter).await
        })
    }

    async fn moved(
        &self,
        who: &Principal,
        subject: &Subject,
        known: bool,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let progress = progress(meter);
        let (mut commit, mut template) = (None, None);
        match subject {
            Subject::Commit(one) => commit = Some(self.get_commit(who, &one.id).await?),
            Subject::Template(one) => {
                let query = api::TemplateQuery::default();
                template = Some(self.get_template(who, &one.id, &query).await?);
            }
        }
        Ok(Moved { commit, template, known, progress })
    }

    async fn push_store(
        &self,
        owner: &Tenant,
        location: Location,
        roots: &[ramet_store::Root],
        name: Option<&str>,
        meter: &Meter,
    ) -> Result<(), Error> {
        let there = self.open_remote(location).await?;
        let (store, shared) = (self.vault().await?.store(), Remote::tenant()?);
        for root in roots {
            let destination = Destination {
                store: &there,
                tenant: &shared,
                base: None,
                mode: RootMode::Replace,
                meter: Some(meter),
            };
            store.copy_state(owner, root, destination, self.trust()).await?;
        }
        Ok(there.share(roots, name).await?)
    }

    /// A store outside, as this node reaches it.
    async fn open_remote(&self, location: Location) -> Result<Store, Error> {
        let own = |path: &Path| path.starts_with(self.settings.data_dir.join("store"));
        if matches!(&location, Location::Local(path) if own(path)) {
            return Err(Error::Bad("remote: that is this node's own store".to_owned()));
        }
        let place = blake3::hash(format!("{location:?}").as_bytes()).to_hex();
        let scratch = self.settings.data_dir.join("remotes").join(&place[..16]);
        let limits = Limits::default();
        let config = Config { location, scratch, scratch_bytes: REMOTE_SCRATCH, limits };
        Ok(Store::open(config).await?)
    }

    /// Begins to pull something from a remote.
    pub async fn pull(&self, who: &Principal, request: api::PullRequest) -> Result<Moving, Error> {
        let remote = self.remote(who, &request.remote)?;
        let (who_asks, wish) = (who.clone(), Wish { name: request.name, disk: request.disk });
        self.begin_move(who, "pull", request.remote, |service, meter| async move {
            match remote {
                Remote::Store { location, name: which } => {
                    service.pull_store(&who_asks, location, which.as_deref(), wish, &meter).await
                }
                Remote::Registry(repository) => {
                    let registry = service.settings.registry(&repository)?;
                    let artifact = registry.open().await?;
                    service.pull_artifact(&who_asks, artifact, wish, &meter).await
                }
            }
        })
    }

    async fn pull_store(
        &self,
        who: &Principal,
        location: Location,
        which: Option<&str>,
        wish: Wish,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let there = self.open_remote(location).await?;
        let shared = Remote::tenant()?;
        let roots = there.shared(which).await.map_err(|error| match error {
            ramet_store::Error::NotFound { .. } => Error::NotFound {
                what: "state in that remote",
                key: which.unwrap_or_default().to_owned(),
            },
            other => other.into(),
        })?;
        // Signatures of all of them are verified, before anything is stored.
        let mut parcel = there.parcel(&shared, &roots, self.doubt()).await?;
        let subject = Subject::among(parcel.roots(), who)?;
        let (kind, id) = (subject.root_name().0, subject.root_name().1.to_owned());
        let Some(subject) = self.admit_subject(who, subject, &wish).await? else {
            return self.known(who, kind, &id, wish.name, meter).await;
        };
        self.leave_out(&subject, &mut parcel).await?;
        let wanted = |root: &&ramet_store::Root| {
            parcel.roots().iter().any(|one| one.kind == root.kind && one.name == root.name)
        };
        let (store, owner) = (self.vault().await?.store(), tenant(who.name())?);
        let mut made = Vec::new();
        for root in roots.iter().filter(wanted) {
            let destination = Destination {
                store,
                tenant: &owner,
                base: None,
                mode: RootMode::Replace,
                meter: Some(meter),
            };
            made.push(there.copy_state(&shared, root, destination, self.doubt()).await?.root);
        }
        self.settle_roots(who, subject, &made, wish.name, meter).await
    }

    async fn pull_artifact(
        &self,
        who: &Principal,
        mut artifact: ramet_store::Artifact,
        wish: Wish,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let subject = match self.expect(who, &mut artifact.parcel, &wish, meter).await? {
            Expected::New(subject) => subject,
            Expected::Known(moved) => return Ok(*moved),
        };
        let (store, owner) = (self.vault().await?.store(), tenant(who.name())?);
        let taking = Unpacking { mode: RootMode::Replace, trust: self.doubt(), meter: Some(meter) };
        let roots = store.pull(&owner, artifact, taking).await?;
        self.settle_roots(who, subject, &roots, wish.name, meter).await
    }

    /// Looks at a parcel before it comes. What is here already of what it is over is left out.
    async fn expect(
        &self,
        who: &Principal,
        parcel: &mut ramet_store::Parcel,
        wish: &Wish,
        meter: &Meter,
    ) -> Result<Expected, Error> {
        let subject = Subject::among(parcel.roots(), who)?;
        let (kind, id) = (subject.root_name().0, subject.root_name().1.to_owned());
        let Some(subject) = self.admit_subject(who, subject, wish).await? else {
            let known = self.known(who, kind, &id, wish.name.clone(), meter).await?;
            return Ok(Expected::Known(Box::new(known)));
        };
        self.leave_out(&subject, parcel).await?;
        Ok(Expected::New(subject))
    }

    /// What is here already need not come.
    async fn leave_out(
        &self,
        subject: &Subject,
        parcel: &mut ramet_store::Parcel,
    ) -> Result<(), Error> {
        let line = subject.root();
        for (base, digest) in Base::of(&line) {
            if self.has_base(base, &line).await? {
                parcel.retain(|root| root.kind != base.kind() || root.name != digest);
            } else if !parcel.roots().iter().any(|root| root.name == digest) {
                return Err(Error::Bad(format!(
                    "{} is over the {} {digest}, which is neither here nor came along",
                    subject.named(),
                    base.kind()
                )));
            }
        }
        Ok(())
    }

    /// Whether a subject may come here. None if it is here already.
    async fn admit_subject(
        &self,
        who: &Principal,
        subject: Subject,
        wish: &Wish,
    ) -> Result<Option<Subject>, Error> {
        let name = wish.name.as_deref();
        let here = match &subject {
            Subject::Commit(commit) => {
                if let Some(name) = name {
                    check_ref(name)?;
                    self.free_ref(who, name, &commit.id).await?;
                }
                self.find_commit(who, &commit.id).await.is_ok_and(|one| one.stored.is_some())
            }
            Subject::Template(template) => {
                name.map_or(Ok(()), check::name)?;
                let query = api::TemplateQuery::default();
                self.get_template(who, &template.id, &query).await.is_ok()
            }
        };
        if here {
            return Ok(None);
        }
        let fits = self.check_needs(subject.needs(), &subject.named()).await;
        match (fits, &subject) {
            (Ok(()), _) => Ok(Some(subject)),
            (Err(Error::Incompatible(_)), Subject::Commit(_)) if wish.disk => Ok(Some(subject)),
            (Err(Error::Incompatible(text)), Subject::Commit(_)) => {
                Err(Error::Incompatible(format!("{text}; move it with --disk for that")))
            }
            (Err(error), _) => Err(error),
        }
    }

    async fn free_ref(&self, who: &Principal, name: &str, commit: &str) -> Result<(), Error> {
        let refs = self.refs_of(who).await?;
        match refs.iter().find(|one| one.name == name && one.commit != commit) {
            None => Ok(()),
            Some(taken) => Err(Error::Exists(format!(
                "the name {name:?} points to {}; choose another",
                taken.commit
            ))),
        }
    }

    /// The answer for something that is here already.
    async fn known(
        &self,
        who: &Principal,
        kind: &str,
        id: &str,
        name: Option<String>,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let what = match kind {
            COMMIT_ROOT => What::Commit(id.to_owned()),
            _ => What::Template(id.to_owned()),
        };
        let subject = self.subject(who, &what).await?;
        if let (Subject::Commit(commit), Some(name)) = (&subject, &name) {
            self.point(who, name, &commit.id, RefKind::Tag, false).await?;
        }
        self.moved(who, &subject, true, meter).await
    }

    async fn settle_roots(
        &self,
        who: &Principal,
        subject: Subject,
        roots: &[ramet_store::Root],
        name: Option<String>,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let id = subject.root_name().1;
        let root = roots.iter().find(|root| root.name == id);
        let state = root.ok_or_else(|| Error::Internal("its root was not made".to_owned()))?.state;
        self.take(who, subject, state, name, meter).await
    }

    /// The subject is in the store: what it is over comes to its place, and the database learns of it.
    async fn take(
        &self,
        who: &Principal,
        subject: Subject,
        state: StateId,
        name: Option<String>,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let owner = tenant(who.name())?;
        let taken = async {
            self.origin_over(&owner, &subject.root()).await?;
            match &subject {
                Subject::Commit(commit) => self.take_commit(&owner, commit, state, meter).await,
                Subject::Template(template) => {
                    self.take_template(&owner, template, state, name.clone()).await
                }
            }
        };
        if let Err(error) = taken.await {
            let (kind, id) = subject.root_name();
            // It is not half there. Whatever this fails for, the error before it matters more.
            let forgotten = self.vault().await?.store().delete_root(&owner, kind, id).await;
            forgotten.unwrap_or_else(|error| tracing::warn!(?error, id, "a root stays"));
            return Err(error);
        }
        if let (Subject::Commit(commit), Some(name)) = (&subject, name) {
            // It is here; that its name was taken meanwhile is told.
            self.point(who, &name, &commit.id, RefKind::Tag, false).await?;
        }
        self.moved(who, &subject, false, meter).await
    }

    async fn take_commit(
        &self,
        owner: &Tenant,
        commit: &Commit,
        state: StateId,
        meter: &Meter,
    ) -> Result<(), Error> {
        let totals = self.vault().await?.store().manifest(owner, state).await?.totals();
        let stored = StoredState {
            state: state.to_string(),
            logical_bytes: totals.content_bytes,
            written_bytes: meter.read().bytes,
            stored_bytes: totals.stored_bytes,
            stored_at_ms: now_ms(),
            warm: false,
            disk: commit.disk,
            needs: commit.needs.clone(),
        };
        self.put_commit(Commit { stored: Some(stored), ..commit.clone() })
    }

    async fn take_template(
        &self,
        owner: &Tenant,
        template: &Template,
        state: StateId,
        name: Option<String>,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let template = Template {
            name: name.unwrap_or_else(|| template.name.clone()),
            created_at_ms: now_ms(),
            ..template.clone()
        };
        if self.shelf.all().len() >= TEMPLATES_MAX {
            let text = format!("this node has {TEMPLATES_MAX} templates, the most; delete some");
            return Err(Error::TooMany(text));
        }
        // In memory alone: after a crash there is nothing of it.
        let work = self.shelf.put(template.clone());
        let brought = async {
            let vault = self.vault().await?.clone();
            let directory = vault.fresh()?;
            let made = directory.clone();
            blocking(move || Ok(std::fs::create_dir_all(&made)?)).await?;
            vault.store().fetch_state(owner, state, &directory, |_| ()).await?;
            let (library, id) = (self.library.clone(), template.id.clone());
            blocking(move || settle_files(&directory, &library.place_template(&id)?)).await?;
            let ready = Template { state: TemplateState::Ready, ..template.clone() };
            self.settle_template(ready, began, &work).await
        };
        let brought = brought.await;
        if brought.is_err() {
            self.drop_template(&template.id).await?;
        }
        brought
    }

    /// Begins to write something to a stream, without what the receiver has.
    pub async fn pack(
        &self,
        who: &Principal,
        what: What,
        query: &api::PackQuery,
    ) -> Result<PackStream, Error> {
        let subject = self.subject(who, &what).await?;
        let have = self.states_of(who, query.have.as_deref().unwrap_or(""))?;
        let owner = tenant(who.name())?;
        let roots = self.roots_of(&owner, &subject).await?;
        let store = self.vault().await?.store().clone();
        let (ours, bytes) = tokio::io::duplex(AHEAD);
        let target = subject.root_name().1.to_owned();
        let moving = self.begin_move(who, "pack", target, |service, meter| async move {
            let packing = Packing { have: &have, trust: service.trust(), meter: Some(&meter) };
            tokio::select! {
                packed = store.pack(&owner, &roots, ours, packing) => packed.map(drop)?,
                () = stalled(&meter) => {
                    return Err(Error::Bad("the receiver does not take the pack".to_owned()));
                }
            }
            Ok(Moved { commit: None, template: None, known: false, progress: progress(&meter) })
        })?;
        let (told, done) = oneshot::channel();
        self.tasks.spawn(async move {
            let result = moving.done.await;
            let result = result.unwrap_or_else(|_| Err(Error::Internal("nobody packs".to_owned())));
            // Nobody may listen any more.
            drop(told.send(result.map(drop)));
        });
        Ok(PackStream { bytes, done })
    }

    /// States of commits, those that are not known left out.
    fn states_of(&self, who: &Principal, ids: &str) -> Result<Vec<StateId>, Error> {
        let ids: Vec<&str> = ids.split(',').filter(|id| !id.is_empty()).collect();
        if ids.len() > HAVE_MAX {
            return Err(Error::Bad(format!("have: at most {HAVE_MAX} commits")));
        }
        let registry = self.registry();
        let mine = |id: &&str| registry.commit(id).filter(|commit| commit.owner == who.name());
        let stored = ids.iter().filter_map(mine).filter_map(|commit| commit.stored.as_ref());
        stored.map(|stored| state_id(&stored.state)).collect()
    }

    /// Takes in what a stream holds.
    pub async fn unpack(
        &self,
        who: &Principal,
        stream: impl AsyncRead + Unpin + Send + 'static,
        query: api::UnpackQuery,
    ) -> Result<Moved, Error> {
        let who_asks = who.clone();
        let moving =
            self.begin_move(who, "unpack", String::new(), |service, meter| async move {
                let wish = Wish { name: query.name, disk: query.disk };
                service.unpack_stream(&who_asks, stream, wish, &meter).await
            })?;
        moving.done.await.unwrap_or_else(|_| Err(Error::Internal("nobody unpacks".to_owned())))
    }

    async fn unpack_stream(
        &self,
        who: &Principal,
        stream: impl AsyncRead + Unpin + Send,
        wish: Wish,
        meter: &Meter,
    ) -> Result<Moved, Error> {
        let mut pack = Pack::open(stream).await.map_err(broken_off)?;
        let subject = match self.expect(who, &mut pack.parcel, &wish, meter).await? {
            Expected::New(subject) => subject,
            Expected::Known(moved) => return Ok(*moved),
        };
        let (store, owner) = (self.vault().await?.store(), tenant(who.name())?);
        let taking = Unpacking { mode: RootMode::Replace, trust: self.doubt(), meter: Some(meter) };
        let roots = store.unpack(&owner, pack, taking).await.map_err(broken_off)?;
        self.settle_roots(who, subject, &roots, wish.name, meter).await
    }
}

/// Returns when nothing has moved for a while.
async fn stalled(meter: &Meter) {
    let mut before = None;
    loop {
        let now = meter.read();
        if before == Some(now) {
            return;
        }
        before = Some(now);
        tokio::time::sleep(STALL).await;
    }
}

/// A stream that ends early is the sender's doing.
fn broken_off(error: ramet_store::Error) -> Error {
    match error {
        ramet_store::Error::File { doing, source } if doing.ends_with("the pack") => {
            Error::Bad(format!("the pack broke off: {source}"))
        }
        other => other.into(),
    }
}

/// Whether a key is the beginning of the subject's id, with or without what ids begin with.
fn is_beginning(key: &str, subject: &Subject) -> bool {
    let id = subject.root_name().1;
    id.starts_with(key) || id.strip_prefix("cm-").is_some_and(|digits| digits.starts_with(key))
}

/// Files that were fetched are on the disk, noted as verified, and get their place.
fn settle_files(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(from)? {
        std::fs::File::open(entry?.path())?.sync_all()?;
    }
    stamp(from)?;
    std::fs::File::open(from.join(STAMPS))?.sync_all()?;
    std::fs::rename(from, to)?;
    if let Some(parent) = to.parent() {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}
