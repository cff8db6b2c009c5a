//! Putting states into the store.
//!
//! [`Store::put_state`] writes chunks and gives a [`Draft`], which nothing keeps yet. [`Store::publish`] makes it
//! a root; what it returned is durable and stays. Between the two anything may fail: what was written then
//! is collected some time later.

mod ingest;
mod plan;
mod source;
pub(crate) mod table;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::PutPayload;
use tokio::sync::mpsc;

use crate::Store;
use crate::chunk::{ChunkEntry, Encoded, FRAME, Pool};
use crate::error::{Error, Result};
use crate::gc::session::Session;
use crate::id::{StateId, Tenant};
use crate::manifest::{Blob, Manifest, Run, Totals, check_runs};
use crate::names;
use plan::{Origin, Parent, Plan};
use table::{Place, Table, key};

/// Pages that were used in the last run, by blob.
pub type Hot = BTreeMap<String, Vec<Run>>;

/// A state whose chunks are stored, but which nothing keeps yet.
#[derive(Debug)]
pub struct Draft {
    pub(crate) tenant: Tenant,
    pub(crate) manifest: Manifest,
    pub(crate) session: Session,
    /// The parent, if its chunks are used: while its manifest is there, so are they.
    pub(crate) base: Option<StateId>,
    pub(crate) table: Option<Table>,
    /// What putting it cost.
    pub cost: Cost,
}

/// What putting a state cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Pages that the store did not have.
    pub new_pages: u64,
    /// Pages that it had, in the parent or in the state itself.
    pub known_pages: u64,
    /// Chunks that were written.
    pub new_chunks: u64,
    /// Bytes of objects that were written, the manifest not counted.
    pub written_bytes: u64,
}

impl Draft {
    /// Its sizes.
    pub fn totals(&self) -> Totals {
        self.manifest.totals()
    }

    /// What it consists of. Not final: publishing may name objects anew.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// A chunk as it is in the store now.
pub(crate) struct Placed {
    pub entry: ChunkEntry,
    /// Bytes that had to be written; none if it was there.
    pub written: Option<u64>,
}

impl Store {
    /// Stores the regular files of a directory. Only pages that the parent does not have are written.
    ///
    /// The directory must not change meanwhile. A parent that is no longer in the store is named in the manifest
    /// all the same, and everything is written. `hot` are the pages to be read first.
    pub async fn put_state(
        &self,
        tenant: &Tenant,
        directory: &Path,
        parent: Option<StateId>,
        hot: Hot,
    ) -> Result<Draft> {
        let session = self.session(tenant).await?;
        let directory = directory.to_owned();
        let blobs = blocking(move || source::scan(&directory)).await?;
        check_hot(&blobs, &hot)?;
        let base = match parent {
            Some(parent) => self.usable_parent(tenant, &session, parent).await?,
            None => None,
        };
        let plan = Plan::new(self.offer(tenant, &session, base.as_ref()).await?, blobs.len());

        let (sender, encoded) = mpsc::channel(self.backend.limits.parallel);
        let pool = Pool::default();
        let ready = ingest::Queue { sender, pool: pool.clone() };
        let threads = self.backend.limits.threads;
        let ingest = blocking(move || {
            let plan = ingest::run(&blobs, plan, threads, &ready)?;
            Ok((plan, blobs))
        });
        let upload = self.upload(tenant, &session, encoded, &pool);
        let (plan, placed) = tokio::join!(ingest, upload);
        // The uploader's error is the cause, if there is one: then the threads stop as well.
        let placed = placed?;
        let (plan, blobs) = plan?;

        let cost = Cost {
            new_pages: plan.new_pages,
            known_pages: plan.known_pages,
            new_chunks: placed.values().filter(|placed| placed.written.is_some()).count() as u64,
            written_bytes: placed.values().filter_map(|placed| placed.written).sum(),
        };
        let base_manifest = base.as_ref().map(|(_, manifest)| &**manifest);
        let chunks = chunk_table(&plan, placed, base_manifest)?;
        let manifest =
            Manifest { salt: 0, parent, blobs: blobs_of(&blobs, plan.extents, hot), chunks };
        manifest.check().map_err(Error::Bad)?;
        let base = base.map(|(id, _)| id);
        let table = Some(plan.table);
        Ok(Draft { tenant: tenant.clone(), manifest, session, base, table, cost })
    }

    /// The parent, if its chunks can be counted on: its manifest is there and is not condemned.
    pub(crate) async fn usable_parent(
        &self,
        tenant: &Tenant,
        session: &Session,
        parent: StateId,
    ) -> Result<Option<(StateId, Arc<Manifest>)>> {
        let path = names::manifest(tenant, parent);
        if session.is_condemned(&path) || self.backend.head(&path).await?.is_none() {
            return Ok(None);
        }
        match self.manifest(tenant, parent).await {
            Ok(manifest) => Ok(Some((parent, manifest))),
            Err(error) if error.is_loss() => {
                tracing::warn!(%error, "the parent cannot be used");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn offer(
        &self,
        tenant: &Tenant,
        session: &Session,
        base: Option<&(StateId, Arc<Manifest>)>,
    ) -> Result<Option<Parent>> {
        let Some((id, manifest)) = base else { return Ok(None) };
        let kept = self.cache.get(&table::path(tenant, *id), 0..u64::MAX).await;
        let table = match kept.and_then(|bytes| Table::decode(&bytes, manifest.chunks.len())) {
            Some(table) => table,
            None => self.rebuild_table(tenant, *id, manifest).await?,
        };
        let usable = |chunk: &ChunkEntry| {
            !session.is_condemned(&names::chunk(tenant, chunk.id, chunk.generation))
        };
        let usable = manifest.chunks.iter().map(usable).collect();
        Ok(Some(Parent { table, usable }))
    }

    /// Reads all chunks of a state to know its pages again. Chunks that cannot be read offer nothing.
    async fn rebuild_table(
        &self,
        tenant: &Tenant,
        id: StateId,
        manifest: &Arc<Manifest>,
    ) -> Result<Table> {
        let reader = self.reader(tenant, id, Arc::clone(manifest));
        let mut table = Table::default();
        let mut frames = futures_util::stream::iter(0..manifest.chunks.len())
            .map(|chunk| reader.page_hashes(chunk))
            .buffer_unordered(self.backend.limits.parallel);
        while let Some(read) = frames.next().await {
            let (chunk, hashes) = match read {
                Err(error) if error.is_loss() => continue,
                other => other?,
            };
            for (page, hash) in hashes.iter().enumerate() {
                let (Ok(chunk), Ok(page)) = (u32::try_from(chunk), u16::try_from(page)) else {
                    continue;
                };
                table.insert(key(hash), Place { chunk, page });
            }
        }
        Ok(table)
    }

    async fn upload(
        &self,
        tenant: &Tenant,
        session: &Session,
        mut encoded: mpsc::Receiver<ingest::Ready>,
        pool: &Pool,
    ) -> Result<HashMap<u32, Placed>> {
        futures_util::stream::poll_fn(move |context| encoded.poll_recv(context))
            .map(|(number, chunk)| async move {
                let object = chunk.object.clone();
                let placed = self.place_chunk(tenant, session, chunk).await?;
                pool.give(object);
                Ok((number, placed))
            })
            .buffer_unordered(self.backend.limits.parallel)
            .try_collect()
            .await
    }

    /// Sees to it that a chunk is in the store, in a generation that is not condemned.
    pub(crate) async fn place_chunk(
        &self,
        tenant: &Tenant,
        session: &Session,
        chunk: Encoded,
    ) -> Result<Placed> {
        let Encoded { mut entry, object } = chunk;
        loop {
            let path = names::chunk(tenant, entry.id, entry.generation);
            if !session.is_condemned(&path) {
                // Asked first: what is there need not travel.
                if self.is_stored(&path, &entry).await? {
                    return Ok(Placed { entry, written: None });
                }
                match self.backend.put_new(&path, pieces(&object)).await {
                    Ok(()) => {
                        if self.backend.is_remote() {
                            self.cache.put(&path, object.clone()).await;
                        }
                        return Ok(Placed { entry, written: Some(object.len() as u64) });
                    }
                    Err(Error::Exists { .. }) => {
                        if self.is_stored(&path, &entry).await? {
                            return Ok(Placed { entry, written: None });
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            // Condemned, or the same content packed in another way: manifests know how theirs is packed.
            entry.generation =
                entry.generation.checked_add(1).ok_or_else(|| Error::Unavailable {
                    doing: format!("writing chunk {}", entry.id),
                    reason: "all its generations are taken".into(),
                })?;
        }
    }

    /// Whether the object is the chunk, as far as its header and size tell.
    pub(crate) async fn is_stored(
        &self,
        path: &object_store::path::Path,
        entry: &ChunkEntry,
    ) -> Result<bool> {
        match self.backend.get_part(path, 0..entry.header_bytes()).await {
            Ok((header, size)) => Ok(header == entry.header() && size == entry.object_bytes()),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn check_hot(blobs: &[source::BlobFile], hot: &Hot) -> Result<()> {
    for (name, runs) in hot {
        let blob = blobs.iter().find(|blob| blob.name == *name);
        let blob =
            blob.ok_or_else(|| Error::bad(format!("hot pages of {name:?}, which is not there")))?;
        let pages = blob.length.div_ceil(crate::chunk::PAGE as u64);
        check_runs(runs, pages).map_err(|reason| Error::bad(format!("{name}: {reason}")))?;
    }
    Ok(())
}

fn blobs_of(
    files: &[source::BlobFile],
    extents: Vec<Vec<crate::manifest::Extent>>,
    mut hot: Hot,
) -> Vec<Blob> {
    let blob = |(file, extents): (&source::BlobFile, _)| Blob {
        name: file.name.clone(),
        length: file.length,
        extents,
        hot: hot.remove(&file.name).unwrap_or_default(),
    };
    files.iter().zip(extents).map(blob).collect()
}

fn chunk_table(
    plan: &Plan,
    mut placed: HashMap<u32, Placed>,
    base: Option<&Manifest>,
) -> Result<Vec<ChunkEntry>> {
    let lost = || Error::bad("a chunk was planned and not made");
    let entry = |(number, origin): (u32, &Origin)| match origin {
        Origin::New => placed.remove(&number).map(|placed| placed.entry).ok_or_else(lost),
        Origin::Parent(theirs) => {
            let known = base.and_then(|base| base.chunks.get(*theirs as usize));
            known.cloned().ok_or_else(lost)
        }
    };
    (0..).zip(&plan.origins).map(entry).collect()
}

/// An object in pieces, which a local directory writes one by one. One large write would ask the kernel for
/// large new pages of its cache, and those cost much more than small ones that were used before.
fn pieces(object: &Bytes) -> PutPayload {
    let cut = |start: usize| object.slice(start..(start + FRAME).min(object.len()));
    (0..object.len()).step_by(FRAME).map(cut).collect()
}

/// Runs on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::File { doing: "finish a thread".into(), source: std::io::Error::other(error) })
    })
}
