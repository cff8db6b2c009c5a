//! States on their way from one place to another: what everything that moves has in common.
//!
//! A [`Parcel`] is roots and manifests, everything but the chunks. Who gets one looks at it, leaves out what it does
//! not want, and begins an [`Intake`]: signatures are verified first, then the chunks that are not here are asked for
//! and each is verified before it is stored, and the roots are made at the end. An intake that is dropped leaves chunks
//! that nothing reaches, and no more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Store;
use crate::chunk::{self, ChunkEntry, Encoded};
use crate::error::{Error, Result};
use crate::gc::session::Session;
use crate::id::{ChunkId, StateId, Tenant};
use crate::manifest::Manifest;
use crate::names;
use crate::put::{Cost, Draft};
use crate::roots::{NewRoot, Root, RootMode};
use crate::sign::SIGNATURES_MAX;
use crate::transfer::{Trust, rebuilt};

/// Roots that move together, at most.
pub(crate) const ROOTS_MAX: usize = 1000;

/// How far a move is; others look at it while it goes on.
#[derive(Debug, Default)]
pub struct Meter {
    chunks: AtomicU64,
    done: AtomicU64,
    moved: AtomicU64,
    bytes: AtomicU64,
}

/// What a [`Meter`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Chunks of everything that moves.
    pub chunks: u64,
    /// Chunks that are there by now.
    pub done: u64,
    /// Chunks that travelled.
    pub moved: u64,
    /// Bytes of these.
    pub bytes: u64,
}

impl Meter {
    /// What there is to do becomes known.
    pub(crate) fn expect(&self, chunks: usize) {
        self.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
    }

    /// A chunk is there; these bytes travelled for it.
    pub(crate) fn done(&self, travelled: Option<u64>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if let Some(bytes) = travelled {
            self.moved.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How far it is.
    pub fn read(&self) -> Moved {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Moved {
            chunks: read(&self.chunks),
            done: read(&self.done),
            moved: read(&self.moved),
            bytes: read(&self.bytes),
        }
    }
}

/// A root in a parcel.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedRoot {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The state, as it is named where it comes from.
    pub state: StateId,
    /// Whatever its maker wants to be known of it.
    pub value: Value,
    /// Its signatures.
    pub signatures: Vec<String>,
}

/// Roots and manifests of states that move.
#[derive(Debug, Clone, Default)]
pub struct Parcel {
    pub(crate) roots: Vec<PackedRoot>,
    pub(crate) manifests: BTreeMap<StateId, Arc<Manifest>>,
}

impl Parcel {
    /// The roots. What they say is somebody else's word, even if it is signed.
    pub fn roots(&self) -> &[PackedRoot] {
        &self.roots
    }

    /// Leaves out roots, and what only they need.
    pub fn retain(&mut self, keep: impl FnMut(&PackedRoot) -> bool) {
        self.roots.retain(keep);
        let states: HashSet<StateId> = self.roots.iter().map(|root| root.state).collect();
        self.manifests.retain(|state, _| states.contains(state));
    }

    /// Every chunk, once, in order.
    pub(crate) fn chunks(&self) -> Vec<ChunkEntry> {
        let mut seen = HashSet::new();
        let chunks = self.manifests.values().flat_map(|manifest| &manifest.chunks);
        chunks.filter(|chunk| seen.insert((chunk.id, chunk.generation))).cloned().collect()
    }

    /// Chunks by name. Manifests that do not agree about one are refused.
    pub(crate) fn by_name(&self) -> Result<HashMap<(ChunkId, u32), ChunkEntry>> {
        let mut all: HashMap<(ChunkId, u32), ChunkEntry> = HashMap::new();
        for chunk in self.manifests.values().flat_map(|manifest| &manifest.chunks) {
            let known = all.insert((chunk.id, chunk.generation), chunk.clone());
            if known.is_some_and(|known| known != *chunk) {
                return Err(Error::bad("manifests that do not agree about a chunk"));
            }
        }
        Ok(all)
    }
}

impl Store {
    /// What has to be known of roots to move them, signed.
    pub async fn parcel(
        &self,
        tenant: &Tenant,
        roots: &[Root],
        trust: Trust<'_>,
    ) -> Result<Parcel> {
        if roots.is_empty() || roots.len() > ROOTS_MAX {
            return Err(Error::bad(format!("1 to {ROOTS_MAX} roots move together")));
        }
        let mut parcel = Parcel::default();
        for root in roots {
            let manifest = self.manifest(tenant, root.state).await?;
            parcel.roots.push(PackedRoot {
                kind: root.kind.clone(),
                name: root.name.clone(),
                state: root.state,
                value: root.value.clone(),
                signatures: trust.signatures(root, &manifest)?,
            });
            parcel.manifests.insert(root.state, manifest);
        }
        Ok(parcel)
    }

    /// Begins to take a parcel in. Nothing is stored if a signature is not right.
    pub async fn intake(
        &self,
        tenant: &Tenant,
        parcel: Parcel,
        mode: RootMode,
        trust: Trust<'_>,
    ) -> Result<Intake> {
        let mut roots = Vec::new();
        for packed in &parcel.roots {
            let manifest = parcel.manifests.get(&packed.state);
            let manifest = manifest.ok_or_else(|| Error::bad("a root without its state"))?;
            roots.push((packed.state, checked(packed.clone(), manifest, mode, trust)?));
        }
        let wanted = parcel.by_name()?;
        let session = self.session(tenant).await?;
        Ok(Intake {
            store: self.clone(),
            tenant: tenant.clone(),
            session,
            roots,
            manifests: parcel.manifests,
            wanted,
            placed: HashMap::new(),
        })
    }
}

/// A root of a parcel, checked, to be made.
fn checked(
    packed: PackedRoot,
    manifest: &Manifest,
    mode: RootMode,
    trust: Trust<'_>,
) -> Result<NewRoot> {
    if packed.signatures.len() > SIGNATURES_MAX {
        return Err(Error::bad("too many signatures"));
    }
    let PackedRoot { kind, name, state, value, signatures } = packed;
    let mut new = NewRoot { kind, name, value, mode, signatures };
    new.check()?;
    new.signatures = trust.signatures(&Root::of(&new, state), manifest)?;
    Ok(new)
}

/// A parcel that is being taken in.
pub struct Intake {
    store: Store,
    tenant: Tenant,
    session: Session,
    roots: Vec<(StateId, NewRoot)>,
    manifests: BTreeMap<StateId, Arc<Manifest>>,
    /// Chunks that are not here, as far as is known, by their names where they come from.
    wanted: HashMap<(ChunkId, u32), ChunkEntry>,
    /// As they are here.
    placed: HashMap<ChunkId, ChunkEntry>,
}

impl Intake {
    /// Finds chunks that are here already. Says how many.
    pub async fn look(&mut self) -> Result<usize> {
        let (store, tenant, session) = (&self.store, &self.tenant, &self.session);
        let wanted: Vec<ChunkEntry> = self.wanted.values().cloned().collect();
        let looks = futures_util::stream::iter(wanted).map(|chunk| async move {
            let here = ChunkEntry { generation: 0, ..chunk.clone() };
            let path = names::chunk(tenant, here.id, 0);
            let there = !session.is_condemned(&path) && store.is_stored(&path, &here).await?;
            Ok::<_, Error>(there.then_some((chunk, here)))
        });
        let looks = looks.buffer_unordered(store.backend.limits.parallel);
        let found: Vec<_> = looks.try_filter_map(|found| async { Ok(found) }).try_collect().await?;
        let count = found.len();
        for (chunk, here) in found {
            self.wanted.remove(&(chunk.id, chunk.generation));
            self.placed.insert(here.id, here);
        }
        Ok(count)
    }

    /// What has to come.
    pub(crate) fn wanted(&self) -> Vec<ChunkEntry> {
        self.wanted.values().cloned().collect()
    }

    /// Whether a chunk has to come, and as what.
    pub(crate) fn wants(&self, id: ChunkId, generation: u32) -> Option<&ChunkEntry> {
        self.wanted.get(&(id, generation))
    }

    /// Verifies a chunk that came, and stores it.
    pub(crate) async fn store_chunk(
        &self,
        chunk: &ChunkEntry,
        object: Bytes,
    ) -> Result<ChunkEntry> {
        let entry = ChunkEntry { generation: 0, ..chunk.clone() };
        let (verified, copy) = (entry.clone(), object.clone());
        let good =
            crate::put::blocking(move || Ok(chunk::decode_object(&verified, &copy, |_, _| ())));
        good.await?.map_err(|reason| Error::bad(format!("a chunk that {reason}")))?;
        let chunk = Encoded { entry, object };
        Ok(self.store.place_chunk(&self.tenant, &self.session, chunk).await?.entry)
    }

    /// A chunk is here now.
    pub(crate) fn settle(&mut self, chunk: &ChunkEntry, here: ChunkEntry) {
        self.wanted.remove(&(chunk.id, chunk.generation));
        self.placed.insert(here.id, here);
    }

    /// Everything is here: makes the roots.
    pub(crate) async fn finish(self) -> Result<Vec<Root>> {
        if let Some(chunk) = self.wanted.values().next() {
            return Err(Error::bad(format!("chunk {} did not come along", chunk.id)));
        }
        let mut made = Vec::new();
        for (state, new) in self.roots {
            let Some(manifest) = self.manifests.get(&state) else { continue };
            let manifest = rebuilt(manifest, &self.placed)?;
            let (tenant, session) = (self.tenant.clone(), self.session.clone());
            let draft =
                Draft { tenant, manifest, session, base: None, table: None, cost: Cost::default() };
            made.push(self.store.publish(draft, new).await?);
        }
        Ok(made)
    }
}
