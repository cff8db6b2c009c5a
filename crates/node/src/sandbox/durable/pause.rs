//! Pause into the store, and resume from it.
//!
//! ```text
//!            vCPUs stop        state is stored       machine ends
//!  Running ────────────▶ Paused ──────────────▶ Paused ─────────▶ Paused
//!                       in memory               in the store      in the store
//!     ▲                     │ it failed                              │
//!     └─────────────────────┴────────────────────────────────────────┘ resume
//! ```
//!
//! A sandbox that is killed with the node somewhere on the way is paused in memory or in the store. While it is in the
//! store and somebody wants to fork or compare it, a *stand-in* is made: its machine, which never runs. A sandbox that was
//! resumed before its memory had come, and whose memory does not come, is paused again where it was.

use std::sync::Arc;
use std::time::Instant;

use ramet_proto::agent::Identity;
use ramet_proto::api::{self, EventKind, PauseRequest, SandboxFailure, StoredState};
use ramet_proto::control::Code;
use ramet_proto::needs::Needs;
use ramet_store::{NewRoot, RootMode, StateId, Tenant};
use tokio_util::sync::CancellationToken;

use super::feed::{Failed, Feed};
use super::vault::{state_id, tenant};
use crate::auth::Principal;
use crate::clock::since_us;
use crate::host::{self, Born, Engine, MachineId, Medium, Origin, Save, Saved};
use crate::random;
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::life::machine_of;
use crate::sandbox::network::Net;
use crate::sandbox::record::{Phase, Record};
use crate::sandbox::volumes;
use crate::store::Change;

/// What keeps the state of a paused sandbox.
pub const SANDBOX_ROOT: &str = "sandbox";
/// The node that a root belongs to, in its value.
pub const NODE: &str = "node";

/// A machine that was made from a state and runs.
pub struct Raised {
    /// It.
    pub born: Born,
    /// Who brings what is missing of it.
    pub feed: Option<Arc<Feed>>,
}

impl Service {
    /// Pauses a sandbox, in the store unless asked otherwise.
    pub async fn pause(
        &self,
        who: &Principal,
        key: &str,
        request: PauseRequest,
    ) -> Result<api::Sandbox, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "pause", &target, async move {
            let _own = service.own(&id).await?;
            let record = service.find(&principal, &id)?;
            check_request(&record, &request)?;
            if record.is_stored() || (request.memory && record.phase == Phase::Paused) {
                return Ok(record.shown());
            }
            if request.disk {
                service.write_out(&record, "pause").await?;
            }
            let record = service.stop(record).await?;
            service.disconnect(&id).await;
            if request.memory {
                service.events.tell(&record.owner, EventKind::Paused, &id, None, None);
                return Ok(record.shown());
            }
            let paused = service.put_away(record.clone(), request.disk).await;
            match paused {
                Ok(paused) => {
                    service.events.tell(&paused.owner, EventKind::Paused, &id, None, None);
                    Ok(service.with_warmth(paused.shown()))
                }
                Err(error) => {
                    service.go_on(record).await;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Stops the vCPUs.
    async fn stop(&self, mut record: Record) -> Result<Record, Error> {
        let machine = machine_of(&record, "pause")?;
        if record.phase == Phase::Paused {
            return Ok(record);
        }
        self.host.call(move |engine| engine.pause(&machine)).await?;
        record.phase = Phase::Paused;
        record.touch();
        let sandboxes = vec![record.clone()];
        let written = self.commit(|_| Ok(Change { sandboxes, ..Change::default() }));
        if let Err(error) = written {
            self.go_on(record).await;
            return Err(error);
        }
        Ok(record)
    }

    /// After a pause that did not succeed: as if nothing had happened.
    async fn go_on(&self, mut record: Record) {
        let Some(machine) = record.machine.clone() else { return };
        let resumed = self.host.call(move |engine| engine.resume(&machine)).await;
        if let Err(error) = resumed {
            // It stays paused, and can be resumed.
            return tracing::error!(id = record.id, ?error, "a machine does not go on");
        }
        record.phase = Phase::Running;
        let sandboxes = vec![record.clone()];
        if let Err(error) = self.commit(|_| Ok(Change { sandboxes, ..Change::default() })) {
            tracing::error!(?error, "a resume could not be written down");
        }
        self.connect(&[&record]).await;
    }

    /// Stores a sandbox whose vCPUs stand still, or only its files, and ends its machine.
    async fn put_away(&self, mut record: Record, only_disks: bool) -> Result<Record, Error> {
        let machine = machine_of(&record, "pause")?;
        self.hurry(&record);
        let value = self.root_value(&record).await?;
        let root =
            NewRoot { mode: RootMode::Replace, ..NewRoot::new(SANDBOX_ROOT, &record.id, value) };
        let owner = tenant(&record.owner)?;
        let ancestor = record.ancestor.as_deref();
        let stored = self.store_machine(&owner, machine, ancestor, root, only_disks).await?;
        record.ancestor = Some(stored.state.clone());
        record.stored = Some(stored);
        record.failure = None;
        let old = record.machine.take();
        let sandboxes = vec![record.clone()];
        self.commit(|_| Ok(Change { sandboxes, ..Change::default() }))?;
        if let Some(machine) = old {
            self.kill(machine).await;
        }
        Ok(record)
    }

    /// What the store says of a state that only this node knows.
    pub(super) async fn root_value(&self, record: &Record) -> Result<serde_json::Value, Error> {
        let node = &self.vault().await?.node;
        Ok(serde_json::json!({ "name": record.name, "template": record.template, NODE: node }))
    }

    /// Writes a machine, or only its disks, to files and those into the store.
    pub(in crate::sandbox) async fn store_machine(
        &self,
        owner: &Tenant,
        machine: MachineId,
        ancestor: Option<&str>,
        root: NewRoot,
        only_disks: bool,
    ) -> Result<StoredState, Error> {
        let began = Instant::now();
        let vault = self.vault().await?.clone();
        let parent = ancestor.map(state_id).transpose()?;
        let directory = vault.fresh()?;
        let target = directory.clone();
        let how = Save { sync: false, only_disks };
        let saved = self.host.call(move |engine| engine.save(&machine, &target, how)).await;
        let stored = match saved {
            Ok(needs) => {
                // Files alone go anywhere.
                let needs = (!only_disks).then_some(needs);
                let root = with_needs(root, needs.as_ref());
                let stored = vault.put(owner, &directory, parent, root).await;
                stored.map(|stored| StoredState { needs, disk: only_disks, ..stored })
            }
            Err(error) => Err(error.into()),
        };
        if stored.is_err() {
            let left = directory.clone();
            // What cannot be removed now goes at the next start.
            drop(tokio::task::spawn_blocking(move || std::fs::remove_dir_all(left)).await);
        }
        if let Err(error) = vault.tidy().await {
            tracing::warn!(?error, "copies of states could not be removed");
        }
        let stored = stored?;
        self.metrics.stored.observe(crate::metrics::seconds(since_us(began)));
        Ok(stored)
    }

    /// Lets a paused sandbox go on.
    pub async fn resume(&self, who: &Principal, key: &str) -> Result<api::Sandbox, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "resume", &target, async move {
            let _own = service.own(&id).await?;
            let record = service.find(&principal, &id)?;
            service.resume_one(record).await.map(|record| record.shown())
        })
        .await
    }

    async fn resume_one(&self, mut record: Record) -> Result<Record, Error> {
        if record.phase == Phase::Running {
            return Ok(record);
        }
        let dead = record.phase == Phase::Failed && record.stored.is_some();
        let made_anew = record.is_stored() || dead;
        let (mut feed, mut old) = (None, None);
        if made_anew {
            let identity = record.identity(false)?;
            let _admitted = self.admit(self.settings.sandbox_mib).await?;
            let writes = !volumes::written(&record).is_empty();
            let born = match record.machine.take() {
                // One that writes volumes is made of its state again: a fork would have copies of them.
                Some(stand_in) if !writes => {
                    let made = self.fork_machine(stand_in.clone(), vec![identity]).await?;
                    old = Some(stand_in);
                    made.only()?
                }
                stand_in => {
                    old = stand_in;
                    let raised = self.raise(&mut record, identity).await?;
                    feed = raised.feed;
                    raised.born
                }
            };
            self.limit(&born.machine, record.cpu).await?;
            record.machine = Some(born.machine);
        } else {
            let machine = machine_of(&record, "resume")?;
            self.host.call(move |engine| engine.resume(&machine)).await?;
        }
        record.phase = Phase::Running;
        record.stand_in = false;
        record.failure = None;
        record.touch();
        record.begin_time();
        let sandboxes = vec![record.clone()];
        let written = self.commit(|_| Ok(Change { sandboxes, ..Change::default() }));
        let machine = record.machine.clone();
        if let (Err(error), Some(machine)) = (&written, &machine) {
            tracing::error!(?error, id = record.id, "a resume could not be written down");
            if made_anew {
                self.kill(machine.clone()).await;
            }
        }
        written?;
        if let Some(old) = old {
            self.kill(old).await;
        }
        if let Some(machine) = machine {
            self.watch(&machine).await;
        }
        self.connect(&[&record]).await;
        // It may have been given something to trust while it was paused.
        self.settle_trust(&record, &Net::default()).await;
        self.follow(&record, feed);
        self.events.tell(&record.owner, EventKind::Resumed, &record.id, None, None);
        Ok(record)
    }

    /// Makes the machine of a sandbox from its stored state, with the volumes that it writes. If one of them was written
    /// since, by a machine of which the node had no time to take note, it goes on with copies of what they were.
    async fn raise(&self, record: &mut Record, identity: Identity) -> Result<Raised, Error> {
        let stored = record.stored.as_ref().ok_or_else(|| nothing_stored(record))?;
        let (owner, state) = (tenant(&record.owner)?, state_id(&stored.state)?);
        let origin = self.origin_over(&owner, &record.root()).await?;
        if stored.disk {
            let born = self.boot_state(&owner, state, origin, identity).await?;
            return Ok(Raised { born, feed: None });
        }
        let media = self.media(record);
        let raised = self.raise_with(&owner, state, origin.clone(), identity.clone(), media).await;
        match raised {
            Err(Error::Host(host::Error::Refused { code: Code::VolumeChanged, message })) => {
                tracing::warn!(id = record.id, message, "it goes on with snapshots");
                record.volumes = volumes::snapshots(&record.volumes);
                self.raise_state(&owner, state, origin, identity).await
            }
            raised => raised,
        }
    }

    /// Makes a machine from a state; it runs before everything has come, if it is not here.
    pub(super) async fn raise_state(
        &self,
        owner: &Tenant,
        state: StateId,
        origin: Origin,
        identity: Identity,
    ) -> Result<Raised, Error> {
        self.raise_with(owner, state, origin, identity, Vec::new()).await
    }

    async fn raise_with(
        &self,
        owner: &Tenant,
        state: StateId,
        origin: Origin,
        identity: Identity,
        volumes: Vec<Medium>,
    ) -> Result<Raised, Error> {
        let began = Instant::now();
        let vault = self.vault().await?.clone();
        let ready = vault.ready(owner, state).await?;
        let pager = ready.feed.as_ref().map(|_| vault.feeds.socket().to_owned());
        let saved = Saved { directory: ready.directory.clone(), origin, volumes, pager };
        let stop = self.stop.child_token();
        let mut given_up = None;
        let call = {
            let stop = stop.clone();
            self.host.call(move |engine| engine.restore(&saved, Some(identity), &stop))
        };
        tokio::pin!(call);
        let machine = tokio::select! {
            machine = &mut call => machine,
            why = lost(ready.feed.as_deref()) => {
                // Nobody would bring its pages: the machine goes with the call.
                given_up = Some(why);
                stop.cancel();
                call.await
            }
        };
        let machine = match (machine, given_up) {
            (Ok(machine), None) => machine,
            (Ok(machine), Some(why)) => {
                self.kill(machine).await;
                return Err(why.into());
            }
            (Err(_), Some(why)) => return Err(why.into()),
            (Err(error), None) => return Err(error.into()),
        };
        let took = since_us(began);
        Ok(Raised { born: Born { machine, entered_us: took, ready_us: took }, feed: ready.feed })
    }

    /// Boots a machine whose disks begin with those of a state; they are here before it begins.
    pub(super) async fn boot_state(
        &self,
        owner: &Tenant,
        state: StateId,
        origin: Origin,
        identity: Identity,
    ) -> Result<Born, Error> {
        let began = Instant::now();
        let ready = self.vault().await?.disks(owner, state).await?;
        let (directory, stop) = (ready.directory.clone(), self.stop.clone());
        let boot =
            move |engine: &dyn Engine| engine.boot(&origin, Some(&directory), identity, &stop);
        let machine = self.host.call(boot).await?;
        let took = since_us(began);
        Ok(Born { machine, entered_us: took, ready_us: took })
    }

    /// Sees to it that a sandbox that was resumed early either gets all of its memory or is paused again.
    pub(in crate::sandbox) fn follow(&self, record: &Record, feed: Option<Arc<Feed>>) {
        let Some(feed) = feed else { return };
        let (service, id, machine) = (self.clone(), record.id.clone(), record.machine.clone());
        self.keep(async move {
            if let Err(why) = feed.finished().await {
                service.relapse(&id, machine.as_ref(), &why).await;
            }
        });
    }

    /// Its memory does not come: it is paused again, where it was.
    async fn relapse(&self, id: &str, machine: Option<&MachineId>, why: &Failed) {
        // Nobody may hold it longer than the machine waits; it cannot do anything without its memory.
        let _own = self.own(id).await;
        let record = self.registry().get(id).cloned();
        let Some(mut record) = record
            .filter(|record| record.phase == Phase::Running && record.machine.as_ref() == machine)
        else {
            return;
        };
        let reason = format!(
            "it was paused again where it was when it was stored, because the rest of its memory did not come: {why}"
        );
        let old = record.machine.take();
        record.phase = Phase::Paused;
        // What it wrote since is not what its memory knows of.
        record.volumes = volumes::snapshots(&record.volumes);
        record.failure = Some(SandboxFailure { reason: reason.clone(), console: String::new() });
        let sandboxes = vec![record.clone()];
        if let Err(error) = self.commit(|_| Ok(Change { sandboxes, ..Change::default() })) {
            tracing::error!(?error, id, "a pause could not be written down");
        }
        self.disconnect(id).await;
        if let Some(machine) = old {
            self.kill(machine).await;
        }
        self.events.tell(&record.owner, EventKind::Paused, id, None, Some(&reason));
    }

    /// The machine of a sandbox that is to be forked or compared; for one in the store a stand-in is made.
    /// The caller shares or owns the sandbox.
    pub(in crate::sandbox) async fn present(
        &self,
        record: &Record,
        what: &str,
    ) -> Result<MachineId, Error> {
        if !record.is_stored() || record.machine.is_some() {
            self.hurry(record);
            return machine_of(record, what);
        }
        let making = self.registry().life(&record.id).making.clone();
        let _making = making.lock().await;
        let record = self.registry().get(&record.id).cloned();
        let mut record = record.ok_or_else(|| Error::Gone(String::new()))?;
        if record.machine.is_some() {
            return machine_of(&record, what);
        }
        let stored = record.stored.as_ref().ok_or_else(|| nothing_stored(&record))?;
        let owner = tenant(&record.owner)?;
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        let origin = self.origin_over(&owner, &record.root()).await?;
        let state = state_id(&stored.state)?;
        let machine = self.stand_in(&owner, state, origin, stored.disk).await?;
        record.machine = Some(machine.clone());
        record.stand_in = true;
        let sandboxes = vec![record];
        if let Err(error) = self.commit(|_| Ok(Change { sandboxes, ..Change::default() })) {
            self.kill(machine).await;
            return Err(error);
        }
        self.watch(&machine).await;
        Ok(machine)
    }

    /// A machine that is to be forked must be there as a whole.
    pub(super) fn hurry(&self, record: &Record) {
        let state = record.ancestor.as_deref().map(state_id);
        if let (Some(vault), Some(Ok(state)), Ok(owner)) =
            (self.vault.get(), state, tenant(&record.owner))
        {
            vault.hurry(&owner, state);
        }
    }

    /// A machine of a state, for forks of it: one that never runs, or one that has booted with its files.
    pub(super) async fn stand_in(
        &self,
        owner: &Tenant,
        state: StateId,
        origin: Origin,
        disk: bool,
    ) -> Result<MachineId, Error> {
        if disk {
            let identity = Identity {
                hostname: "files".to_owned(),
                instance: format!("{state}-{}", random::hex(4)?),
                ..Identity::default()
            };
            return Ok(self.boot_state(owner, state, origin, identity).await?.machine);
        }
        let directory = self.vault().await?.whole(owner, state).await?;
        let (saved, stop) = (
            Saved { directory, origin, volumes: Vec::new(), pager: None },
            CancellationToken::new(),
        );
        Ok(self.host.call(move |engine| engine.restore(&saved, None, &stop)).await?)
    }

    /// Ends stand-ins that nobody has needed for a while.
    pub(in crate::sandbox) async fn end_stand_ins(&self, idle_before_ms: u64) {
        let idle = |record: &&Record| record.stand_in && record.idle_from_ms < idle_before_ms;
        let idle: Vec<String> =
            self.registry().all().filter(idle).map(|record| record.id.clone()).collect();
        for id in idle {
            let Ok(_own) = self.own(&id).await else { continue };
            let record = self.registry().get(&id).cloned();
            let Some(mut record) = record.filter(|record| record.stand_in) else { continue };
            let old = record.machine.take();
            record.stand_in = false;
            let sandboxes = vec![record];
            if self.commit(|_| Ok(Change { sandboxes, ..Change::default() })).is_ok()
                && let Some(machine) = old
            {
                self.kill(machine).await;
            }
        }
    }

    /// After a start: a sandbox whose machine may still wait for its memory.
    pub(in crate::sandbox) async fn go_on_feeding(&self, record: &Record) -> Result<(), Error> {
        let (Phase::Running, Some(state)) = (record.phase, &record.ancestor) else { return Ok(()) };
        let feed = self.vault().await?.go_on(&tenant(&record.owner)?, state_id(state)?).await?;
        self.follow(record, feed);
        Ok(())
    }

    /// A deleted sandbox needs its state no more.
    pub(in crate::sandbox) async fn forget_stored(&self, record: &Record) {
        if let Some(stored) = &record.stored {
            self.forget_root(&record.owner, SANDBOX_ROOT, &record.id, stored).await;
        }
    }

    /// Removes what keeps a state. If that fails, the root goes when the store is collected.
    pub(super) async fn forget_root(
        &self,
        owner: &str,
        kind: &str,
        id: &str,
        stored: &StoredState,
    ) {
        let forgotten = async {
            self.vault().await?.store().delete_root(&tenant(owner)?, kind, id).await?;
            self.drop_copy(owner, stored).await
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(?error, id, "a state stays in the store for now");
        }
    }

    /// Removes this host's copy of a state that nothing of its owner needs any more.
    pub(super) async fn drop_copy(&self, owner: &str, stored: &StoredState) -> Result<(), Error> {
        if self.registry().needs(owner, &stored.state) {
            return Ok(());
        }
        self.vault().await?.chill(&tenant(owner)?, state_id(&stored.state)?).await
    }

    /// Says of a sandbox's stored state whether it is here.
    pub(in crate::sandbox) fn with_warmth(&self, mut shown: api::Sandbox) -> api::Sandbox {
        self.tell_warmth(&shown.owner, shown.stored.as_mut());
        shown
    }

    /// Says of a state whether it is here.
    pub(super) fn tell_warmth(&self, owner: &str, stored: Option<&mut StoredState>) {
        if let (Some(stored), Some(vault)) = (stored, self.vault.get()) {
            let known = tenant(owner).and_then(|owner| Ok((owner, state_id(&stored.state)?)));
            stored.warm = known.is_ok_and(|(owner, state)| vault.is_warm(&owner, state));
        }
    }
}

/// A root that says what its machine needs, so that others know before they fetch it.
fn with_needs(mut root: NewRoot, needs: Option<&Needs>) -> NewRoot {
    if let (Some(value), Ok(needs)) = (root.value.as_object_mut(), serde_json::to_value(needs)) {
        value.insert("needs".to_owned(), needs);
    }
    root
}

/// What a pause cannot do.
fn check_request(record: &Record, request: &PauseRequest) -> Result<(), Error> {
    if request.memory && request.disk {
        let text = "memory, disk: the host's memory keeps a machine as it is; ask for one of them";
        return Err(Error::Bad(text.to_owned()));
    }
    if request.disk && !record.volumes.is_empty() {
        let text = "disk: a sandbox with volumes is only paused as a whole";
        return Err(Error::Unsupported(text.to_owned()));
    }
    if request.disk && record.is_stored() && record.stored.as_ref().is_some_and(|one| !one.disk) {
        let text = format!("the sandbox {} is paused as a whole; resume it first", record.id);
        return Err(Error::WrongState(text));
    }
    Ok(())
}

fn nothing_stored(record: &Record) -> Error {
    Error::Internal(format!("the sandbox {} is paused and has no state", record.id))
}

/// Returns when a feed has failed.
async fn lost(feed: Option<&Feed>) -> Failed {
    match feed {
        Some(feed) => match feed.finished().await {
            Err(why) => why,
            Ok(()) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
