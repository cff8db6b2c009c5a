//! Bringing a whole state into files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};

use crate::Store;
use crate::chunk::{FRAME_PAGES, PAGE};
use crate::error::{Error, Result};
use crate::id::{StateId, Tenant};
use crate::manifest::Manifest;
use crate::put::blocking;
use crate::read::{Reader, Use};

/// How far a fetch is. Bytes are of content, holes not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are in the files now.
    pub done: u64,
    /// Bytes there will be.
    pub total: u64,
    /// Bytes of hot pages that are not there yet.
    pub hot_left: u64,
}

/// Frames of a chunk that are read with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch {
    chunk: usize,
    frames: std::ops::Range<usize>,
    /// Bytes of hot pages in it.
    hot: u64,
}

impl Store {
    /// Writes the files of a state to a directory, which must exist and have none of them: sparse, hot pages
    /// first. `progress` is called after each step. The files are not synced: they are a copy.
    pub async fn fetch_state(
        &self,
        tenant: &Tenant,
        state: StateId,
        directory: &Path,
        progress: impl Fn(Progress) + Send + Sync,
    ) -> Result<Arc<Manifest>> {
        let manifest = self.manifest(tenant, state).await?;
        let files = make_files(&manifest, directory).await?;
        let reader = self.reader(tenant, state, Arc::clone(&manifest));
        let batches = batches(&reader);
        let mut now = Progress {
            done: 0,
            total: manifest.totals().content_bytes,
            hot_left: batches.iter().map(|batch| batch.hot).sum(),
        };
        progress(now);
        let mut steps = futures_util::stream::iter(batches)
            .map(|batch| fetch(&reader, &files, batch))
            .buffer_unordered(self.backend.limits.parallel);
        while let Some((bytes, hot)) = steps.try_next().await? {
            now.done += bytes;
            now.hot_left -= hot;
            progress(now);
        }
        drop(steps);
        Ok(manifest)
    }
}

async fn make_files(manifest: &Manifest, directory: &Path) -> Result<Arc<Vec<File>>> {
    let directory = directory.to_owned();
    let wanted: Vec<_> =
        manifest.blobs.iter().map(|blob| (blob.name.clone(), blob.length)).collect();
    blocking(move || {
        let make = |(name, length): &(String, u64)| {
            let path = directory.join(name);
            let file = File::create_new(&path).and_then(|file| {
                file.set_len(*length)?;
                Ok(file)
            });
            file.map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Error::Exists { what: path.display().to_string() },
                _ => Error::file("make", &path, error),
            })
        };
        Ok(Arc::new(wanted.iter().map(make).collect::<Result<Vec<_>>>()?))
    })
    .await
}

/// What to read, in order: frames with hot pages, then the others. Frames nobody uses are left out.
fn batches(reader: &Reader) -> Vec<Batch> {
    let manifest = reader.manifest();
    let mut batches: Vec<Batch> = Vec::new();
    for (chunk, entry) in manifest.chunks.iter().enumerate() {
        for frame in 0..entry.frames.len() {
            let uses = reader.frame_uses(chunk, frame);
            if uses.is_empty() {
                continue;
            }
            let hot = uses.iter().map(|at| hot_bytes(manifest, at)).sum();
            match batches.last_mut() {
                Some(last)
                    if last.chunk == chunk
                        && last.frames.end == frame
                        && (last.hot > 0) == (hot > 0) =>
                {
                    last.frames.end += 1;
                    last.hot += hot;
                }
                _ => batches.push(Batch { chunk, frames: frame..frame + 1, hot }),
            }
        }
    }
    batches.sort_by_key(|batch| batch.hot == 0);
    batches
}

/// Bytes of hot pages in a run.
fn hot_bytes(manifest: &Manifest, at: &Use) -> u64 {
    let hot = &manifest.blobs[at.blob].hot;
    let end = at.first + at.count as u64;
    let from = hot.partition_point(|run| run.first + run.count <= at.first);
    let inside = hot[from..].iter().take_while(|run| run.first < end);
    let pages: u64 =
        inside.map(|run| (run.first + run.count).min(end) - run.first.max(at.first)).sum();
    pages * PAGE as u64
}

/// Reads a batch and writes its pages to where they belong. Gives the bytes of content, and of hot pages.
async fn fetch(reader: &Reader, files: &Arc<Vec<File>>, batch: Batch) -> Result<(u64, u64)> {
    let Batch { chunk, frames, hot } = batch;
    let uses = reader.uses(chunk, frames.start * FRAME_PAGES..frames.end * FRAME_PAGES);
    let mut content = Vec::with_capacity(frames.len() * FRAME_PAGES * PAGE);
    reader.frames(chunk, frames, |_, frame| content.extend(frame.content)).await?;
    let lengths: Vec<u64> = reader.manifest().blobs.iter().map(|blob| blob.length).collect();
    let files = Arc::clone(files);
    blocking(move || {
        let mut bytes = 0;
        for at in uses {
            let start = at.first * PAGE as u64;
            let end = (start + (at.count * PAGE) as u64).min(lengths[at.blob]);
            let length = usize::try_from(end - start).unwrap_or(0);
            let source = &content[at.page * PAGE..][..length];
            files[at.blob]
                .write_all_at(source, start)
                .map_err(|error| Error::file("write", Path::new("a fetched state"), error))?;
            bytes += (at.count * PAGE) as u64;
        }
        Ok((bytes, hot))
    })
    .await
}
