//! Moving states between stores. Only what is missing there travels.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt};

use crate::Store;
use crate::chunk::{ChunkEntry, Encoded};
use crate::error::{Error, Result};
use crate::gc::session::Session;
use crate::id::{ChunkId, StateId, Tenant};
use crate::manifest::Manifest;
use crate::names;
use crate::parcel::Meter;
use crate::put::{Cost, Draft};
use crate::roots::{NewRoot, Root, RootMode};
use crate::sign::{self, SIGNATURES_MAX, SigningKey, VerifyingKey};

/// What is asked of states that move.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trust<'a> {
    /// Signs what goes out.
    pub sign: Option<&'a SigningKey>,
    /// One of these must have signed what comes in; without any, nothing is asked.
    pub trusted: Option<&'a [VerifyingKey]>,
}

/// Where a copy goes.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The other store.
    pub store: &'a Store,
    /// Whose it is there.
    pub tenant: &'a Tenant,
    /// A state there that has much of it: its chunks are not even asked for. The state's parent is tried by itself.
    pub base: Option<StateId>,
    /// What to do if a root of this name is there.
    pub mode: RootMode,
    /// Where it is told how far it is.
    pub meter: Option<&'a Meter>,
}

/// What a copy did.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// The root in the other store.
    pub root: Root,
    /// Chunks that travelled.
    pub sent_chunks: u64,
    /// Bytes of these chunks.
    pub sent_bytes: u64,
    /// Chunks that were there.
    pub known_chunks: u64,
}

impl Trust<'_> {
    /// Checks what comes in, and signs what goes out: the signatures the root will have.
    pub(crate) fn signatures(&self, root: &Root, manifest: &Manifest) -> Result<Vec<String>> {
        sign::verify(root, manifest, self.trusted)?;
        let mut signatures = root.signatures.clone();
        signatures.truncate(SIGNATURES_MAX - 1);
        if let Some(key) = self.sign {
            signatures.push(key.sign(&sign::statement(root, manifest))?);
        }
        Ok(signatures)
    }
}

impl Store {
    /// Copies a root and its state to another store, under the same name.
    pub async fn copy_state(
        &self,
        tenant: &Tenant,
        root: &Root,
        destination: Destination<'_>,
        trust: Trust<'_>,
    ) -> Result<Copied> {
        let Destination { store: to, tenant: to_tenant, base, mode, meter } = destination;
        let manifest = self.manifest(tenant, root.state).await?;
        let signatures = trust.signatures(root, &manifest)?;
        let session = to.session(to_tenant).await?;
        let (base, known) = to.known_chunks(to_tenant, &session, [base, manifest.parent]).await?;
        let missing: Vec<ChunkEntry> =
            manifest.chunks.iter().filter(|chunk| !is_known(&known, chunk)).cloned().collect();
        if let Some(meter) = meter {
            meter.expect(manifest.chunks.len());
            (missing.len()..manifest.chunks.len()).for_each(|_| meter.done(None));
        }
        let session_there = &session;
        let places: Vec<(ChunkId, ChunkEntry, Option<u64>)> = futures_util::stream::iter(missing)
            .map(|chunk| async move {
                let placed =
                    self.send_chunk(tenant, to, to_tenant, session_there, chunk.clone()).await?;
                meter.inspect(|meter| meter.done(placed.written));
                Ok::<_, Error>((chunk.id, placed.entry, placed.written))
            })
            .buffer_unordered(self.backend.limits.parallel.max(to.backend.limits.parallel))
            .try_collect()
            .await?;
        let sent: Vec<u64> = places.iter().filter_map(|(_, _, written)| *written).collect();
        let mut entries = known;
        entries.extend(places.into_iter().map(|(id, entry, _)| (id, entry)));
        let manifest = rebuilt(&manifest, &entries)?;
        let mut cost = Cost::default();
        (cost.new_chunks, cost.written_bytes) = (sent.len() as u64, sent.iter().sum());
        let known_chunks = manifest.chunks.len() as u64 - cost.new_chunks;
        let draft = Draft { tenant: to_tenant.clone(), manifest, session, base, table: None, cost };
        let (kind, name, value) = (root.kind.clone(), root.name.clone(), root.value.clone());
        let published = to.publish(draft, NewRoot { kind, name, value, mode, signatures }).await?;
        Ok(Copied {
            root: published,
            sent_chunks: cost.new_chunks,
            sent_bytes: cost.written_bytes,
            known_chunks,
        })
    }

    /// Chunks of the first of these states that is here and can be counted on.
    async fn known_chunks(
        &self,
        tenant: &Tenant,
        session: &Session,
        states: [Option<StateId>; 2],
    ) -> Result<(Option<StateId>, HashMap<ChunkId, ChunkEntry>)> {
        for state in states.into_iter().flatten() {
            if let Some((id, manifest)) = self.usable_parent(tenant, session, state).await? {
                let usable = manifest.chunks.iter().filter(|chunk| {
                    !session.is_condemned(&names::chunk(tenant, chunk.id, chunk.generation))
                });
                return Ok((Some(id), usable.map(|chunk| (chunk.id, chunk.clone())).collect()));
            }
        }
        Ok((None, HashMap::new()))
    }

    /// Sees to it that a chunk of ours is there.
    async fn send_chunk(
        &self,
        tenant: &Tenant,
        to: &Store,
        to_tenant: &Tenant,
        session: &Session,
        entry: ChunkEntry,
    ) -> Result<crate::put::Placed> {
        // Asked for before it is read: what is there need not travel.
        let there = ChunkEntry { generation: 0, ..entry.clone() };
        let path = names::chunk(to_tenant, there.id, 0);
        if !session.is_condemned(&path) && to.is_stored(&path, &there).await? {
            return Ok(crate::put::Placed { entry: there, written: None });
        }
        let object = self.chunk_object(tenant, &entry).await?;
        to.place_chunk(to_tenant, session, Encoded { entry: there, object }).await
    }
}

/// Whether the other store has this chunk, packed in whatever way.
fn is_known(known: &HashMap<ChunkId, ChunkEntry>, chunk: &ChunkEntry) -> bool {
    known.contains_key(&chunk.id)
}

/// The manifest with the chunks as they are in the other store.
pub(crate) fn rebuilt(
    manifest: &Manifest,
    entries: &HashMap<ChunkId, ChunkEntry>,
) -> Result<Manifest> {
    let entry = |chunk: &ChunkEntry| {
        let found = entries.get(&chunk.id).cloned();
        found.ok_or_else(|| Error::bad(format!("chunk {} did not come along", chunk.id)))
    };
    let chunks = manifest.chunks.iter().map(entry).collect::<Result<_>>()?;
    Ok(Manifest { salt: 0, chunks, ..manifest.clone() })
}
