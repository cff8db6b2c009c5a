//! Reading states. Everything is verified; what is wrong is tried again from another copy, then refused.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use crate::Store;
use crate::chunk::{ChunkEntry, FRAME_PAGES, Frame, PAGE, decode_frame, decode_object};
use crate::error::{Damage, Error, Hit, Result};
use crate::id::{Hash, StateId, Tenant};
use crate::manifest::{Manifest, OBJECT_MAX};
use crate::names;

/// Frames that a reader remembers, so that reading page by page does not fetch them again: 4 MiB.
const REMEMBERED: usize = 64;
/// Pages that can be read in one call: 64 MiB.
const PAGES_MAX: u64 = 16384;

/// Reads pages of one state. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    tenant: Tenant,
    state: StateId,
    manifest: Arc<Manifest>,
    /// For each chunk, where its pages are used, by page of the chunk.
    uses: Vec<Vec<Use>>,
    remembered: Mutex<VecDeque<(usize, usize, Bytes)>>,
}

/// Where a run of pages of a chunk belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Number of the blob in the manifest.
    pub blob: usize,
    /// First page in the blob.
    pub first: u64,
    /// Number of pages.
    pub count: usize,
    /// First page in the chunk; for uses of a frame, in the frame.
    pub page: usize,
}

/// Where a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Number of the chunk in the manifest.
    pub chunk: usize,
    /// Frame of the chunk.
    pub frame: usize,
    /// Page of the frame.
    pub page: usize,
}

impl Store {
    /// A state's manifest.
    pub async fn manifest(&self, tenant: &Tenant, state: StateId) -> Result<Arc<Manifest>> {
        let path = names::manifest(tenant, state);
        if let Some(kept) = self.cache.get(&path, 0..u64::MAX).await {
            match Manifest::decode(state, &kept) {
                Ok(manifest) => return Ok(Arc::new(manifest)),
                Err(_) => self.cache.remove(&path).await,
            }
        }
        let mut reason = String::new();
        for _ in 0..2 {
            let object =
                self.backend.get(&path, OBJECT_MAX).await.map_err(|error| match error {
                    Error::NotFound { .. } => Error::NotFound { what: format!("state {state}") },
                    other => other,
                })?;
            match Manifest::decode(state, &object) {
                Ok(manifest) => {
                    if self.backend.is_remote() {
                        self.cache.put(&path, object).await;
                    }
                    return Ok(Arc::new(manifest));
                }
                Err(wrong) => reason = wrong,
            }
        }
        Err(self.damaged(tenant, &path, None, &reason))
    }

    /// The object of a chunk, verified as a whole: from the cache, or the backend, or again from there.
    pub(crate) async fn chunk_object(&self, tenant: &Tenant, entry: &ChunkEntry) -> Result<Bytes> {
        let path = names::chunk(tenant, entry.id, entry.generation);
        let all = 0..entry.frames.len();
        if let Some(kept) = self.cache.get(&path, 0..u64::MAX).await {
            match decode(entry, &all, &kept).await {
                Ok(_) => return Ok(kept),
                Err(_) => self.cache.remove(&path).await,
            }
        }
        let mut reason = String::new();
        for _ in 0..2 {
            let object = match self.backend.get_range(&path, 0..entry.object_bytes() + 1).await {
                Err(Error::NotFound { .. }) => {
                    reason = "is not there".into();
                    continue;
                }
                other => other?,
            };
            match decode(entry, &all, &object).await {
                Ok(_) => return Ok(object),
                Err(wrong) => reason = wrong,
            }
        }
        Err(self.damaged(tenant, &path, Some(entry.id), &reason))
    }

    /// A reader of a state's pages.
    pub fn reader(&self, tenant: &Tenant, state: StateId, manifest: Arc<Manifest>) -> Reader {
        let mut uses = vec![Vec::new(); manifest.chunks.len()];
        for (blob, extents) in manifest.blobs.iter().map(|blob| &blob.extents).enumerate() {
            for extent in extents {
                uses[extent.chunk as usize].push(Use {
                    blob,
                    first: extent.first,
                    count: usize::from(extent.count),
                    page: usize::from(extent.page),
                });
            }
        }
        uses.iter_mut().for_each(|uses| uses.sort_by_key(|at| at.page));
        let remembered = Mutex::new(VecDeque::new());
        let (store, tenant) = (self.clone(), tenant.clone());
        Reader { shared: Arc::new(Shared { store, tenant, state, manifest, uses, remembered }) }
    }
}

impl Reader {
    /// The state's manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.shared.manifest
    }

    /// Where a page of a blob lies; none for a page of zeros.
    pub fn locate(&self, blob: usize, page: u64) -> Option<At> {
        let extent = self.shared.manifest.blobs.get(blob)?.extent_of(page)?;
        let offset = usize::try_from(page - extent.first).ok()?;
        let in_chunk = usize::from(extent.page) + offset;
        let (frame, page) = (in_chunk / FRAME_PAGES, in_chunk % FRAME_PAGES);
        Some(At { chunk: extent.chunk as usize, frame, page })
    }

    /// Where the pages of a frame belong.
    pub fn frame_uses(&self, chunk: usize, frame: usize) -> Vec<Use> {
        self.uses(chunk, frame * FRAME_PAGES..(frame + 1) * FRAME_PAGES)
    }

    /// Where some pages of a chunk belong; pages are counted from the first of them.
    pub(crate) fn uses(&self, chunk: usize, pages: Range<usize>) -> Vec<Use> {
        let all = self.shared.uses.get(chunk).map_or(&[][..], Vec::as_slice);
        let part = |at: &Use| {
            let start = at.page.max(pages.start);
            let end = (at.page + at.count).min(pages.end);
            (start < end).then(|| Use {
                blob: at.blob,
                first: at.first + (start - at.page) as u64,
                count: end - start,
                page: start - pages.start,
            })
        };
        all.iter().filter_map(part).collect()
    }

    /// The content of a frame: up to 16 pages.
    pub async fn read_frame(&self, chunk: usize, frame: usize) -> Result<Bytes> {
        if let Some(known) = self.remembered(chunk, frame) {
            return Ok(known);
        }
        let entry = self.entry(chunk)?;
        if frame >= entry.frames.len() {
            return Err(Error::bad(format!("chunk {chunk} has no frame {frame}")));
        }
        let mut content = Bytes::new();
        self.frames(chunk, frame..frame + 1, |_, frame| content = frame.content.into()).await?;
        self.remember(chunk, frame, content.clone());
        Ok(content)
    }

    /// The contents of consecutive frames of a chunk, read at once.
    pub async fn read_frames(&self, chunk: usize, frames: Range<usize>) -> Result<Vec<Bytes>> {
        let count = self.entry(chunk)?.frames.len();
        if frames.start >= frames.end || frames.end > count {
            return Err(Error::bad(format!("chunk {chunk} has {count} frames, not {frames:?}")));
        }
        let mut contents = Vec::new();
        self.frames(chunk, frames, |_, frame| contents.push(frame.content.into())).await?;
        Ok(contents)
    }

    /// Pages of a blob, zeros where it has none. What lies after the blob's end is zero as well.
    pub async fn read_pages(&self, blob: &str, first: u64, count: u64) -> Result<Vec<u8>> {
        let manifest = &self.shared.manifest;
        let number = manifest.blobs.iter().position(|known| known.name == blob);
        let number = number.ok_or_else(|| Error::NotFound { what: format!("blob {blob}") })?;
        let end = first.checked_add(count);
        if count > PAGES_MAX || end.is_none_or(|end| end > manifest.blobs[number].pages()) {
            let message =
                format!("{count} pages of {blob} from {first}: too many or after its end");
            return Err(Error::bad(message));
        }
        let places: Vec<Option<At>> =
            (first..first + count).map(|page| self.locate(number, page)).collect();
        let wanted: BTreeSet<(usize, usize)> =
            places.iter().flatten().map(|at| (at.chunk, at.frame)).collect();
        // Frames come side by side: a server's answer takes its time.
        let frames: HashMap<(usize, usize), Bytes> = futures_util::stream::iter(wanted)
            .map(|(chunk, frame)| async move {
                Ok::<_, Error>(((chunk, frame), self.read_frame(chunk, frame).await?))
            })
            .buffer_unordered(self.shared.store.backend.limits.parallel)
            .try_collect()
            .await?;
        let mut content = vec![0; places.len() * PAGE];
        for (at, out) in places.iter().zip(content.chunks_mut(PAGE)) {
            if let Some(At { chunk, frame, page }) = at {
                out.copy_from_slice(&frames[&(*chunk, *frame)][page * PAGE..(page + 1) * PAGE]);
            }
        }
        Ok(content)
    }

    /// Hashes of all pages of a chunk.
    pub(crate) async fn page_hashes(&self, chunk: usize) -> Result<(usize, Vec<Hash>)> {
        let frames = self.entry(chunk)?.frames.len();
        let mut hashes = Vec::new();
        self.frames(chunk, 0..frames, |_, frame| hashes.extend(frame.hashes)).await?;
        Ok((chunk, hashes))
    }

    fn entry(&self, chunk: usize) -> Result<&ChunkEntry> {
        let entry = self.shared.manifest.chunks.get(chunk);
        entry.ok_or_else(|| Error::bad(format!("the state has no chunk {chunk}")))
    }

    /// Reads frames that lie one after the other, verified: from the cache, or the backend, or again from there.
    pub(crate) async fn frames(
        &self,
        chunk: usize,
        frames: Range<usize>,
        mut each: impl FnMut(usize, Frame),
    ) -> Result<()> {
        let Shared { store, tenant, .. } = &*self.shared;
        let entry = self.entry(chunk)?;
        let path = names::chunk(tenant, entry.id, entry.generation);
        let whole = frames == (0..entry.frames.len());
        let range = match whole {
            true => 0..entry.object_bytes(),
            false => entry.frame_range(frames.start).start..entry.frame_range(frames.end - 1).end,
        };
        if let Some(kept) = store.cache.get(&path, range.clone()).await {
            match decode(entry, &frames, &kept).await {
                Ok(found) => {
                    found.into_iter().for_each(|(number, frame)| each(number, frame));
                    return Ok(());
                }
                Err(_) => store.cache.remove(&path).await,
            }
        }
        let mut reason = String::new();
        for _ in 0..2 {
            let stored = match store.backend.get_range(&path, range.clone()).await {
                Err(Error::NotFound { .. }) => {
                    reason = "is not there".into();
                    continue;
                }
                other => other?,
            };
            match decode(entry, &frames, &stored).await {
                Ok(found) => {
                    if whole && store.backend.is_remote() {
                        store.cache.put(&path, stored).await;
                    }
                    found.into_iter().for_each(|(number, frame)| each(number, frame));
                    return Ok(());
                }
                Err(wrong) => reason = wrong,
            }
        }
        Err(self.damage(chunk, &reason))
    }

    fn damage(&self, chunk: usize, reason: &str) -> Error {
        let Shared { tenant, manifest, state, .. } = &*self.shared;
        let Ok(entry) = self.entry(chunk) else { return Error::bad("no such chunk") };
        let path = names::chunk(tenant, entry.id, entry.generation);
        let hits = hits(manifest, chunk, &format!("state {state}"));
        Error::Damaged(Box::new(Damage {
            tenant: tenant.to_string(),
            object: path.to_string(),
            chunk: Some(entry.id),
            reason: reason.to_owned(),
            hits,
        }))
    }

    fn remembered(&self, chunk: usize, frame: usize) -> Option<Bytes> {
        let remembered = self.shared.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let found = remembered.iter().rev().find(|(c, f, _)| (*c, *f) == (chunk, frame));
        found.map(|(_, _, content)| content.clone())
    }

    fn remember(&self, chunk: usize, frame: usize, content: Bytes) {
        let mut remembered = self.shared.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() == REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back((chunk, frame, content));
    }
}

/// Parts of a state that lie in a chunk.
pub(crate) fn hits(manifest: &Manifest, chunk: usize, state: &str) -> Vec<Hit> {
    let hit = |name: &str, extent: &crate::manifest::Extent| Hit {
        state: state.to_owned(),
        blob: name.to_owned(),
        start: extent.first * PAGE as u64,
        length: u64::from(extent.count) * PAGE as u64,
    };
    let blobs = manifest.blobs.iter();
    blobs
        .flat_map(|blob| {
            let in_chunk = blob.extents.iter().filter(|extent| extent.chunk as usize == chunk);
            in_chunk.map(|extent| hit(&blob.name, extent)).collect::<Vec<_>>()
        })
        .collect()
}

/// Unpacks and verifies frames, off the runtime's threads if it is much.
async fn decode(
    entry: &ChunkEntry,
    frames: &Range<usize>,
    stored: &Bytes,
) -> std::result::Result<Vec<(usize, Frame)>, String> {
    if frames.len() == 1 {
        return decode_now(entry, frames, stored);
    }
    let (entry, frames, stored) = (entry.clone(), frames.clone(), stored.clone());
    let decoded = tokio::task::spawn_blocking(move || decode_now(&entry, &frames, &stored)).await;
    decoded.unwrap_or_else(|error| Err(error.to_string()))
}

fn decode_now(
    entry: &ChunkEntry,
    frames: &Range<usize>,
    stored: &[u8],
) -> std::result::Result<Vec<(usize, Frame)>, String> {
    let mut found = Vec::with_capacity(frames.len());
    if *frames == (0..entry.frames.len()) && stored.len() as u64 == entry.object_bytes() {
        decode_object(entry, stored, |number, frame| found.push((number, frame)))?;
        return Ok(found);
    }
    let mut rest = stored;
    for number in frames.clone() {
        let length = entry.frames.get(number).map_or(0, |frame| frame.stored as usize);
        let (this, after) = rest.split_at_checked(length).ok_or("is too short")?;
        found.push((number, decode_frame(entry, number, this)?));
        rest = after;
    }
    match rest.is_empty() {
        true => Ok(found),
        false => Err("is too long".into()),
    }
}
