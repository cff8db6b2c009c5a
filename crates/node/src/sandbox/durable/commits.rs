//! Commits: moments of sandboxes that are kept for good, with a message and a lineage.
//!
//! A commit begins as a checkpoint: its moment is a machine that never runs. The answer is given then. A task writes that machine into the
//! store, makes a root of it, and ends it; only from then on the commit is durable. The database names the machine, so
//! a node that was killed goes on with it. The root in the store carries the commit's description: another node with the
//! same store learns of the commit from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ramet_proto::agent::{Identity, Request};
use ramet_proto::api::{
    self, CommitList, CommitState, CommitsQuery, CreateCommit, EventKind, PutRef, RefKind, RefList,
    StoredState,
};
use ramet_proto::needs::Needs;
use ramet_store::NewRoot;
use serde::{Deserialize, Serialize};

use super::vault::{state_id, tenant};
use crate::auth::Principal;
use crate::clock::{now_ms, since_us};
use crate::host::MachineId;
use crate::random;
use crate::sandbox::error::Error;
use crate::sandbox::line::Line;
use crate::sandbox::record::{Phase, Record, Root};
use crate::sandbox::registry::Label;
use crate::sandbox::volumes::{self, Attachment};
use crate::sandbox::{Service, check};
use crate::store::Change;

/// What keeps the state of a commit.
pub const COMMIT_ROOT: &str = "commit";
/// Ancestors that a commit names.
pub(super) const ANCESTORS_MAX: usize = 1000;
/// Longest message.
pub(super) const MESSAGE_MAX: usize = 4096;
/// Longest author.
pub(super) const AUTHOR_MAX: usize = 256;
/// Least digits of an id that stand for it.
const BEGINNING_MIN: usize = 4;
/// How long a guest may take to write out what it has in memory.
const SYNC: Duration = Duration::from_secs(30);

/// A commit, as it is written down here and, without its machine, in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// Id.
    pub id: String,
    /// Principal.
    pub owner: String,
    /// Message.
    pub message: Option<String>,
    /// Author.
    pub author: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Commits before it, nearest first.
    pub ancestors: Vec<String>,
    /// Sandbox that it was made of.
    pub sandbox: String,
    /// Its name then.
    pub sandbox_name: String,
    /// What the sandbox's line began with.
    pub root: Root,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Where its state comes from.
    pub line: Line,
    /// When its moment was.
    pub created_at_ms: u64,
    /// Time that keeping it took.
    pub kept_us: u64,
    /// It has only the files.
    #[serde(default)]
    pub disk: bool,
    /// Where it is, when it is durable.
    pub stored: Option<StoredState>,
    /// What its machine needs of a host; not known of old ones.
    #[serde(default)]
    pub needs: Option<Needs>,
    /// Its moment, until then.
    #[serde(default)]
    pub machine: Option<MachineId>,
    /// The state that its memory comes from.
    #[serde(default)]
    pub ancestor: Option<String>,
    /// Volumes that the sandbox had.
    #[serde(default)]
    pub volumes: Vec<Attachment>,
    /// The branch that moves on to it.
    #[serde(default)]
    pub branch: Option<String>,
    /// Why it could not be written.
    #[serde(default)]
    pub failure: Option<String>,
    /// Its guest trusts an authority that was the sandbox's own.
    #[serde(default)]
    pub trusts: bool,
}

impl Commit {
    fn shown(&self, refs: &[api::Ref]) -> api::Commit {
        let state = match (&self.stored, &self.failure) {
            (Some(_), _) => CommitState::Durable,
            (None, None) => CommitState::Writing,
            (None, Some(_)) => CommitState::Failed,
        };
        let names = refs.iter().filter(|one| one.commit == self.id);
        api::Commit {
            id: self.id.clone(),
            state,
            failure: self.failure.clone(),
            owner: self.owner.clone(),
            message: self.message.clone(),
            author: self.author.clone(),
            labels: self.labels.clone(),
            ancestors: self.ancestors.clone(),
            sandbox: self.sandbox.clone(),
            sandbox_name: self.sandbox_name.clone(),
            template: self.root.template.clone(),
            vcpus: self.root.shape.vcpus,
            memory_mib: self.root.shape.memory_mib,
            disk_mib: self.root.shape.disk_mib,
            created_at_ms: self.created_at_ms,
            kept_us: self.kept_us,
            disk: self.disk,
            stored: self.stored.clone(),
            refs: names.map(|one| one.name.clone()).collect(),
        }
    }

    /// As the store tells it to other nodes.
    fn described(&self) -> Result<serde_json::Value, Error> {
        let described = Self { machine: None, ancestor: None, stored: None, ..self.clone() };
        serde_json::to_value(described).map_err(|error| Error::Internal(error.to_string()))
    }
}

/// Memory is kept as it is, and with it what processes know.
fn check_secrets(record: &Record, request: &CreateCommit) -> Result<(), Error> {
    match request.inherit_secrets {
        _ if request.disk || !record.holds_secrets() => Ok(()),
        Some(true) => Ok(()),
        Some(false) => Err(Error::Unsupported(format!(
            "inherit_secrets: memory is kept as it is, so the secrets of {} cannot be left out; commit its files alone (`disk`)",
            record.name
        ))),
        None => crate::sandbox::life::refuse_secrets(record, "committed"),
    }
}

/// The value of a ref.
#[derive(Serialize, Deserialize)]
struct Target {
    commit: String,
    kind: RefKind,
    updated_at_ms: u64,
}

impl Service {
    /// Keeps a moment of a sandbox for good.
    pub async fn commit_sandbox(
        &self,
        who: &Principal,
        key: &str,
        request: CreateCommit,
    ) -> Result<api::Commit, Error> {
        check_request(&request)?;
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "commit", &target, async move {
            let wait = request.wait;
            let commit = service.keep_moment(&principal, &id, request).await?;
            if commit.machine.is_none() || !wait {
                return Ok(commit.shown(&[]));
            }
            let mut settled = service.settled.subscribe();
            loop {
                let now = service.commit_known(&principal, &commit.id)?;
                match (&now.stored, now.failure) {
                    (Some(_), _) => break,
                    (None, Some(failure)) => return Err(Error::StoreUnavailable(failure)),
                    (None, None) => {}
                }
                tokio::select! {
                    _ = settled.changed() => {}
                    () = service.stop.cancelled() => {
                        let text = "the node is stopping; the commit is written at its next start";
                        return Err(Error::NotReady(text.to_owned()));
                    }
                }
            }
            let refs = service.refs_of(&principal).await?;
            Ok(service.commit_known(&principal, &commit.id)?.shown(&refs))
        })
        .await
    }

    async fn keep_moment(
        &self,
        who: &Principal,
        id: &str,
        request: CreateCommit,
    ) -> Result<Commit, Error> {
        let began = Instant::now();
        let _share = self.share(id).await?;
        let record = self.find(who, id)?;
        check_secrets(&record, &request)?;
        let mut commit = self.describe(who, &record, request)?;
        let stored = record.stored.clone().filter(|_| record.is_stored());
        let files = stored.as_ref().is_some_and(|stored| stored.disk);
        if commit.disk && !files {
            self.write_out(&record, "commit").await?;
        }
        commit.disk |= files;
        if let Some(stored) = stored {
            return self.commit_stored(commit, &record, stored, began).await;
        }
        let source = crate::sandbox::life::machine_of(&record, "be committed")?;
        self.hurry(&record);
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        commit.line = record.line.branch(now_ms())?;
        let machine = self.host.call(move |engine| engine.checkpoint(&source)).await?;
        commit.machine = Some(machine.clone());
        commit.kept_us = since_us(began);
        let written = self.commit(|registry| {
            // Somebody may have changed it meanwhile; only the commit is new.
            let mut noted = registry.get(id).unwrap_or(&record).clone();
            noted.commit = Some(commit.id.clone());
            noted.touch();
            let commits = vec![commit.clone()];
            Ok(Change { sandboxes: vec![noted], commits, ..Change::default() })
        });
        if let Err(error) = written {
            self.kill(machine).await;
            return Err(error);
        }
        self.events.tell(&record.owner, EventKind::Committed, id, Some(&commit.id), None);
        self.write_commit(commit.clone());
        Ok(commit)
    }

    /// Before the disks of a machine are kept alone: what its processes have written is on them.
    pub(super) async fn write_out(&self, record: &Record, what: &str) -> Result<(), Error> {
        if record.phase != Phase::Running {
            let text = format!(
                "the sandbox {} is not running, and files that it has not written to its disk yet would be missing; resume it first, or {what} it as a whole",
                record.id
            );
            return Err(Error::WrongState(text));
        }
        let machine = crate::sandbox::life::machine_of(record, what)?;
        let written = async {
            let mut session = self.host.agent(&machine).await?;
            Ok(session.done(&Request::Sync {}).await?)
        };
        let late = || {
            Error::TooMany(format!(
                "its disk is busy: nothing was written out within {SYNC:?}; try again"
            ))
        };
        tokio::time::timeout(SYNC, written).await.map_err(|_| late())?
    }

    /// A commit of a paused sandbox: its state is in the store already.
    async fn commit_stored(
        &self,
        mut commit: Commit,
        record: &Record,
        stored: StoredState,
        began: Instant,
    ) -> Result<Commit, Error> {
        let vault = self.vault().await?;
        let owner = tenant(&record.owner)?;
        commit.line = record.line.clone();
        commit.kept_us = since_us(began);
        commit.needs.clone_from(&stored.needs);
        self.keep_bases(&mut commit.root).await?;
        let root = NewRoot::new(COMMIT_ROOT, &commit.id, commit.described()?);
        let root = vault.store().put_root(&owner, state_id(&stored.state)?, root).await?;
        commit.stored = Some(StoredState {
            state: root.state.to_string(),
            written_bytes: 0,
            stored_at_ms: now_ms(),
            ..stored
        });
        self.put_commit(commit.clone())?;
        self.events.tell(&record.owner, EventKind::Durable, &record.id, Some(&commit.id), None);
        self.move_branch(&commit).await?;
        Ok(commit)
    }

    fn describe(
        &self,
        who: &Principal,
        record: &Record,
        request: CreateCommit,
    ) -> Result<Commit, Error> {
        let mut ancestors = Vec::new();
        if let Some(parent) = &record.commit {
            ancestors.push(parent.clone());
            let registry = self.registry();
            ancestors
                .extend(registry.commit(parent).into_iter().flat_map(|one| one.ancestors.clone()));
            ancestors.truncate(ANCESTORS_MAX);
        }
        Ok(Commit {
            id: format!("cm-{}", random::hex(8)?),
            owner: record.owner.clone(),
            message: request.message,
            author: request.author.unwrap_or_else(|| who.name().to_owned()),
            labels: request.labels,
            ancestors,
            sandbox: record.id.clone(),
            sandbox_name: record.name.clone(),
            root: record.root(),
            env: record.env.clone(),
            line: Line::default(),
            created_at_ms: now_ms(),
            kept_us: 0,
            disk: request.disk,
            stored: None,
            needs: None,
            machine: None,
            ancestor: record.ancestor.clone(),
            volumes: volumes::snapshots(&record.volumes),
            branch: request.branch,
            failure: None,
            trusts: record.network.authority.is_some(),
        })
    }

    /// Writes a commit's moment into the store, in the background.
    pub(in crate::sandbox) fn write_commit(&self, commit: Commit) {
        let service = self.clone();
        self.keep(async move {
            let id = commit.id.clone();
            if let Err(error) = service.write_one(commit).await {
                tracing::error!(?error, id, "a commit is not durable");
            }
            service.settled.send_modify(|count| *count += 1);
        });
    }

    async fn write_one(&self, mut commit: Commit) -> Result<(), Error> {
        let Some(machine) = commit.machine.clone() else { return Ok(()) };
        let _turn = self.writers.acquire().await.map_err(|e| Error::Internal(e.to_string()))?;
        // The sandbox's newest state may be nearer than the one that was known when the moment was kept.
        let nearest = {
            let registry = self.registry();
            let parent = commit.ancestors.first().and_then(|parent| registry.commit(parent));
            parent.and_then(|parent| parent.stored.clone()).map(|stored| stored.state)
        };
        let ancestor = nearest.or_else(|| commit.ancestor.clone());
        let owner = tenant(&commit.owner)?;
        let kept = self.keep_bases(&mut commit.root).await;
        let root = NewRoot {
            mode: ramet_store::RootMode::Replace,
            ..NewRoot::new(COMMIT_ROOT, &commit.id, commit.described()?)
        };
        let stored = match kept {
            Ok(()) => {
                let (source, ancestor) = (machine.clone(), ancestor.as_deref());
                self.store_machine(&owner, source, ancestor, root, commit.disk).await
            }
            Err(error) => Err(error),
        };
        let (mut done, event) = (Commit { machine: None, ..commit.clone() }, &commit.sandbox);
        let outcome = match stored {
            Ok(stored) => {
                done.needs.clone_from(&stored.needs);
                done.stored = Some(stored);
                self.put_commit(done.clone())?;
                self.note_ancestor(&done)?;
                let durable = (EventKind::Durable, None);
                self.move_branch(&done).await.map(|()| durable)
            }
            Err(error) => {
                done.failure = Some(error.to_string());
                self.put_commit(done.clone())?;
                Ok((EventKind::CommitFailed, Some(error.to_string())))
            }
        };
        self.kill(machine).await;
        let (kind, text) = outcome?;
        self.events.tell(&done.owner, kind, event, Some(&done.id), text.as_deref());
        Ok(())
    }

    pub(super) fn put_commit(&self, commit: Commit) -> Result<(), Error> {
        self.commit(|_| Ok(Change { commits: vec![commit], ..Change::default() }))
    }

    /// What a sandbox writes next is compared with its newest commit.
    fn note_ancestor(&self, commit: &Commit) -> Result<(), Error> {
        let Some(stored) = &commit.stored else { return Ok(()) };
        self.commit(|registry| {
            let record = registry.get(&commit.sandbox).cloned();
            let record = record.filter(|record| record.commit.as_ref() == Some(&commit.id));
            let note = |record| Record { ancestor: Some(stored.state.clone()), ..record };
            Ok(Change { sandboxes: record.map(note).into_iter().collect(), ..Change::default() })
        })
    }

    async fn move_branch(&self, commit: &Commit) -> Result<(), Error> {
        let Some(branch) = &commit.branch else { return Ok(()) };
        let who = Principal::new(&commit.owner);
        self.point(&who, branch, &commit.id, RefKind::Branch, true).await.map(drop)
    }

    fn commit_known(&self, who: &Principal, key: &str) -> Result<Commit, Error> {
        self.registry().find_commit(who, key).cloned()
    }

    /// The commit that is meant: by id, the beginning of one, or a name; also of other nodes with the same store.
    pub(in crate::sandbox) async fn find_commit(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<Commit, Error> {
        match self.commit_known(who, key) {
            Err(Error::NotFound { .. }) => {}
            found => return found,
        }
        let refs = self.refs_of(who).await?;
        let id = refs.into_iter().find(|one| one.name == key).map(|one| one.commit);
        self.learn(who).await?;
        self.commit_known(who, id.as_deref().unwrap_or(key))
    }

    /// Learns of commits that other nodes have made or deleted.
    async fn learn(&self, who: &Principal) -> Result<(), Error> {
        let (vault, owner) = (self.vault().await?, tenant(who.name())?);
        // Those that are not there any more were deleted by another node.
        let mut gone: BTreeSet<String> = {
            let registry = self.registry();
            let durable = registry.commits_of(who).filter(|commit| commit.stored.is_some());
            durable.map(|commit| commit.id.clone()).collect()
        };
        let mut commits = Vec::new();
        for root in vault.roots(&owner, COMMIT_ROOT).await? {
            gone.remove(&root.name);
            if self.registry().commit(&root.name).is_some() {
                continue;
            }
            let Ok(described) = serde_json::from_value::<Commit>(root.value) else { continue };
            if described.id != root.name {
                continue;
            }
            let totals = vault.store().manifest(&owner, root.state).await?.totals();
            let stored = StoredState {
                state: root.state.to_string(),
                logical_bytes: totals.content_bytes,
                written_bytes: totals.stored_bytes,
                stored_bytes: totals.stored_bytes,
                stored_at_ms: described.created_at_ms,
                warm: false,
                disk: described.disk,
                needs: described.needs.clone(),
            };
            // Whatever the description says, it is the caller's that asks.
            let owner = who.name().to_owned();
            commits.push(Commit { stored: Some(stored), machine: None, owner, ..described });
        }
        let forget_commits = gone.into_iter().collect();
        self.commit(|_| Ok(Change { commits, forget_commits, ..Change::default() }))
    }

    /// A commit.
    pub async fn get_commit(&self, who: &Principal, key: &str) -> Result<api::Commit, Error> {
        let commit = self.find_commit(who, key).await?;
        let refs = self.refs_of(who).await?;
        Ok(self.commit_shown(&commit, &refs))
    }

    pub(super) fn commit_shown(&self, commit: &Commit, refs: &[api::Ref]) -> api::Commit {
        let mut shown = commit.shown(refs);
        self.tell_warmth(&commit.owner, shown.stored.as_mut());
        shown
    }

    /// A page of commits, newest first.
    pub async fn commits(
        &self,
        who: &Principal,
        query: &CommitsQuery,
    ) -> Result<CommitList, Error> {
        let limit = query.limit.unwrap_or(100);
        if !(1..=1000).contains(&limit) {
            return Err(Error::Bad(format!("limit: 1 to 1000, not {limit}")));
        }
        let label = query.label.as_deref().map(Label::parse);
        self.learn(who).await?;
        let line = match &query.of {
            Some(of) => Some(self.line_of(who, of).await?),
            None => None,
        };
        let refs = self.refs_of(who).await?;
        let fits = |commit: &&Commit| {
            line.as_ref().is_none_or(|line| line.contains(&commit.id))
                && label.as_ref().is_none_or(|label| label.fits(&commit.labels))
        };
        let mut found: Vec<Commit> =
            self.registry().commits_of(who).filter(fits).cloned().collect();
        found.sort_by_key(|commit| (std::cmp::Reverse(commit.created_at_ms), commit.id.clone()));
        let from = match &query.cursor {
            None => 0,
            Some(cursor) => {
                let at = found.iter().position(|commit| commit.id == *cursor);
                at.ok_or_else(|| Error::Bad("cursor: not one of this node".to_owned()))? + 1
            }
        };
        let page: Vec<&Commit> = found.iter().skip(from).take(limit as usize).collect();
        let more = found.len() > from + page.len();
        Ok(CommitList {
            next_cursor: page.last().filter(|_| more).map(|commit| commit.id.clone()),
            commits: page.into_iter().map(|commit| self.commit_shown(commit, &refs)).collect(),
        })
    }

    /// A commit and its ancestors, or those of a sandbox.
    async fn line_of(&self, who: &Principal, key: &str) -> Result<BTreeSet<String>, Error> {
        let head = match self.find(who, key) {
            Ok(record) => match record.commit {
                Some(commit) => commit,
                None => return Ok(BTreeSet::new()),
            },
            Err(_) => self.find_commit(who, key).await?.id,
        };
        let ancestors = self.registry().commit(&head).map(|one| one.ancestors.clone());
        Ok(ancestors.unwrap_or_default().into_iter().chain([head]).collect())
    }

    /// Forgets a commit. What only it needed is collected later.
    pub async fn delete_commit(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let commit = self.find_commit(who, key).await?;
        let (service, principal, target) = (self.clone(), who.clone(), commit.id.clone());
        self.operate(who, "commit_delete", &target, async move {
            if commit.machine.is_some() {
                let text = format!("the commit {} is being written; wait for it", commit.id);
                return Err(Error::WrongState(text));
            }
            let refs = service.refs_of(&principal).await?;
            if let Some(name) = refs.iter().find(|one| one.commit == commit.id) {
                let text =
                    format!("the name {:?} points to it; delete or move that first", name.name);
                return Err(Error::InUse(text));
            }
            let (vault, owner) = (service.vault().await?, tenant(&commit.owner)?);
            match vault.store().delete_root(&owner, COMMIT_ROOT, &commit.id).await {
                // Another node was faster.
                Ok(()) | Err(ramet_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let forget_commits = vec![commit.id.clone()];
            service.commit(|_| Ok(Change { forget_commits, ..Change::default() }))?;
            service.drop_bases(&commit.root).await;
            match &commit.stored {
                Some(stored) => service.drop_copy(&commit.owner, stored).await,
                None => Ok(()),
            }
        })
        .await
    }

    /// Names of commits.
    pub async fn refs(&self, who: &Principal) -> Result<RefList, Error> {
        Ok(RefList { refs: self.refs_of(who).await? })
    }

    pub(super) async fn refs_of(&self, who: &Principal) -> Result<Vec<api::Ref>, Error> {
        let all = self.vault().await?.store().references(&tenant(who.name())?).await?;
        let shown = |(name, reference): (String, ramet_store::Reference)| {
            let target: Target = serde_json::from_value(reference.value?).ok()?;
            let Target { commit, kind, updated_at_ms } = target;
            Some(api::Ref { name, kind, commit, updated_at_ms })
        };
        Ok(all.into_iter().filter_map(shown).collect())
    }

    /// Points a name to a commit.
    pub async fn put_ref(
        &self,
        who: &Principal,
        name: &str,
        request: PutRef,
    ) -> Result<api::Ref, Error> {
        check_ref(name)?;
        let commit = self.find_commit(who, &request.commit).await?;
        if commit.stored.is_none() {
            let text = format!("the commit {} is not durable yet; wait for it", commit.id);
            return Err(Error::WrongState(text));
        }
        let (service, principal, name) = (self.clone(), who.clone(), name.to_owned());
        let target = format!("{name} {}", commit.id);
        self.operate(who, "ref", &target, async move {
            let PutRef { kind, force, .. } = request;
            service.point(&principal, &name, &commit.id, kind, force).await
        })
        .await
    }

    pub(super) async fn point(
        &self,
        who: &Principal,
        name: &str,
        commit: &str,
        kind: RefKind,
        force: bool,
    ) -> Result<api::Ref, Error> {
        let (store, owner) = (self.vault().await?.store(), tenant(who.name())?);
        // Somebody else may move it at the same time; then it is looked at again.
        for _ in 0..16 {
            let now = store.reference(&owner, name).await?;
            let before: Option<Target> =
                now.value.and_then(|value| serde_json::from_value(value).ok());
            if let Some(before) = before.filter(|before| before.commit != commit && !force) {
                let text =
                    format!("the name {name:?} points to {}; move it with force", before.commit);
                return Err(Error::Exists(text));
            }
            let target = Target { commit: commit.to_owned(), kind, updated_at_ms: now_ms() };
            let shown = api::Ref {
                name: name.to_owned(),
                kind,
                commit: commit.to_owned(),
                updated_at_ms: target.updated_at_ms,
            };
            let value = serde_json::to_value(target).map_err(|e| Error::Internal(e.to_string()))?;
            match store.swap_reference(&owner, name, now.sequence, Some(value)).await {
                Err(ramet_store::Error::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(shown),
            }
        }
        Err(Error::TooMany(format!("the name {name:?} is moved all the time; try again")))
    }

    /// Forgets a name.
    pub async fn delete_ref(&self, who: &Principal, name: &str) -> Result<(), Error> {
        check_ref(name)?;
        let (service, principal, name) = (self.clone(), who.clone(), name.to_owned());
        let target = name.clone();
        self.operate(who, "ref_delete", &target, async move {
            let (store, owner) = (service.vault().await?.store(), tenant(principal.name())?);
            let now = store.reference(&owner, &name).await?;
            if now.value.is_none() {
                return Err(Error::NotFound { what: "name of a commit", key: name });
            }
            Ok(store.swap_reference(&owner, &name, now.sequence, None).await.map(drop)?)
        })
        .await
    }

    /// A machine that goes on from a commit, for a sandbox with this identity; or one that boots with its files.
    pub(in crate::sandbox) async fn check_out(
        &self,
        commit: &Commit,
        only_disk: bool,
        identity: Identity,
    ) -> Result<super::pause::Raised, Error> {
        let stored = commit.stored.as_ref().ok_or_else(|| not_durable(commit))?;
        let (owner, state) = (tenant(&commit.owner)?, state_id(&stored.state)?);
        let files = only_disk || commit.disk;
        if !files {
            self.check_needs(commit.needs.as_ref(), &format!("the commit {}", commit.id)).await?;
        }
        let origin = self.origin_over(&owner, &commit.root).await?;
        if files {
            let born = self.boot_state(&owner, state, origin, identity).await?;
            return Ok(super::pause::Raised { born, feed: None });
        }
        self.raise_state(&owner, state, origin, identity).await
    }

    /// A machine of a commit, for forks of it.
    pub(in crate::sandbox) async fn commit_machine(
        &self,
        commit: &Commit,
    ) -> Result<MachineId, Error> {
        let stored = commit.stored.as_ref().ok_or_else(|| not_durable(commit))?;
        let (owner, state) = (tenant(&commit.owner)?, state_id(&stored.state)?);
        let origin = self.origin_over(&owner, &commit.root).await?;
        self.stand_in(&owner, state, origin, commit.disk).await
    }
}

pub(in crate::sandbox) fn not_durable(commit: &Commit) -> Error {
    let why = commit.failure.as_ref().map_or_else(
        || "it is being written; wait for it".to_owned(),
        |failure| format!("it could not be written: {failure}"),
    );
    Error::WrongState(format!("the commit {} is not durable: {why}", commit.id))
}

fn check_request(request: &CreateCommit) -> Result<(), Error> {
    let long = |name: &str, text: &Option<String>, most: usize| match text {
        Some(text) if text.len() > most => {
            Err(Error::Bad(format!("{name}: {} bytes, at most {most}", text.len())))
        }
        _ => Ok(()),
    };
    long("message", &request.message, MESSAGE_MAX)?;
    long("author", &request.author, AUTHOR_MAX)?;
    check::labels(&request.labels)?;
    request.branch.as_deref().map_or(Ok(()), check_ref)
}

/// A name that cannot be taken for an id.
pub(super) fn check_ref(name: &str) -> Result<(), Error> {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let plain = name.bytes().all(fits) && !name.starts_with(['.', '-']);
    if (1..=63).contains(&name.len())
        && plain
        && !name.starts_with("cm-")
        && !name.starts_with("sbx-")
    {
        return Ok(());
    }
    Err(Error::Bad(format!(
        "{name:?} is no name of a commit: 1 to 63 lower-case letters, digits, hyphens and dots, not beginning like an id"
    )))
}

/// The commit that is meant among a principal's, by id or the beginning of one.
pub fn meant<'a>(mine: impl Iterator<Item = &'a Commit>, key: &str) -> Result<&'a Commit, Error> {
    let digits = key.strip_prefix("cm-").unwrap_or(key);
    let full = format!("cm-{digits}");
    let none = || Error::NotFound { what: "commit", key: key.to_owned() };
    if digits.len() < BEGINNING_MIN {
        return Err(none());
    }
    let mut found = mine.filter(|commit| commit.id.starts_with(&full));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(none()),
        _ => Err(Error::Ambiguous(key.to_owned())),
    }
}
