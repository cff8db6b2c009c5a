//! Reading, hashing and compressing a state, on threads.
//!
//! Each thread takes the next region, reads and hashes it, waits for its turn to let the [`Plan`] decide (so that
//! regions are planned in order, whoever was first), then compresses what became a chunk and hands it to the
//! uploader. A thread takes its next region only after its chunk was taken, so memory is bounded by the number of
//! threads and the uploader's queue; and whoever waits for its turn waits for threads that read or
//! plan, never for the uploader: nobody waits in a circle.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::plan::{Content, Job, Page, Plan};
use super::source::{BlobFile, REGION};
use crate::chunk::{CHUNK_PAGES, Encoded, Encoder, PAGE, Pool, is_zero, page_hash};
use crate::error::{Error, Result};

/// A chunk for the uploader, with its number in the manifest.
pub(crate) type Ready = (u32, Encoded);

/// The way to the uploader, and memory that comes back from there.
pub(crate) struct Queue {
    pub sender: mpsc::Sender<Ready>,
    pub pool: Pool,
}

/// Runs to the end, or until somebody fails or the uploader is gone.
pub(crate) fn run(blobs: &[BlobFile], plan: Plan, threads: usize, ready: &Queue) -> Result<Plan> {
    let regions: Vec<(usize, u64)> = blobs
        .iter()
        .enumerate()
        .flat_map(|(blob, file)| file.regions().into_iter().map(move |region| (blob, region)))
        .collect();
    let turns = Turns {
        state: Mutex::new(State { turn: 0, plan, failure: None }),
        changed: Condvar::new(),
    };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, regions.len().max(1)) {
            let (regions, turns, next) = (&regions, &turns, &next);
            scope.spawn(move || {
                if let Err(error) = work(blobs, regions, turns, next, ready) {
                    turns.fail(error);
                }
            });
        }
    });
    let mut state = turns.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.failure {
        return Err(error);
    }
    if let Some(job) = state.plan.rest() {
        let mut encoder = encoder()?;
        hand_over(&mut encoder, job, &mut [], ready)?;
    }
    Ok(state.plan)
}

struct State {
    /// The region whose turn it is.
    turn: usize,
    plan: Plan,
    failure: Option<Error>,
}

struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a region when it is its turn; none if another thread failed.
    fn plan(&self, turn: usize, decide: impl FnOnce(&mut Plan) -> Vec<Job>) -> Option<Vec<Job>> {
        let waiting = |state: &mut State| state.turn != turn && state.failure.is_none();
        let mut state =
            self.changed.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        if state.failure.is_some() {
            return None;
        }
        let jobs = decide(&mut state.plan);
        state.turn += 1;
        drop(state);
        self.changed.notify_all();
        Some(jobs)
    }

    fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.changed.notify_all();
    }
}

fn encoder() -> Result<Encoder> {
    Encoder::new().map_err(|source| Error::File { doing: "make a compressor".into(), source })
}

fn work(
    blobs: &[BlobFile],
    regions: &[(usize, u64)],
    turns: &Turns,
    next: &AtomicUsize,
    ready: &Queue,
) -> Result<()> {
    let mut encoder = encoder()?;
    let mut buffer = vec![0; REGION];
    loop {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        let Some(&(blob, region)) = regions.get(turn) else { return Ok(()) };
        let file = &blobs[blob];
        let numbers = file.read(region, &mut buffer).map_err(|source| Error::File {
            doing: format!("read {}, which must not change meanwhile", file.name),
            source,
        })?;
        let pages = hash(&buffer, numbers);
        let first = region * CHUNK_PAGES as u64;
        let planned = turns.plan(turn, |plan| plan.region(blob, first, &buffer, &pages));
        let Some(jobs) = planned else { return Ok(()) };
        for job in jobs {
            hand_over(&mut encoder, job, &mut buffer, ready)?;
        }
    }
}

/// Hashes of the pages that are not zero.
fn hash(buffer: &[u8], numbers: Vec<u16>) -> Vec<Page> {
    let page = |number: u16| &buffer[usize::from(number) * PAGE..][..PAGE];
    let full = numbers.into_iter().filter(|number| !is_zero(page(*number)));
    full.map(|number| Page { number, hash: page_hash(page(number)) }).collect()
}

/// Makes a chunk and gives it to the uploader. A job in the region moves the pages to the buffer's front.
fn hand_over(encoder: &mut Encoder, job: Job, buffer: &mut [u8], ready: &Queue) -> Result<()> {
    let encoded = match &job.content {
        Content::Gathered(content) => encoder.encode_into(content, &job.hashes, ready.pool.take()),
        Content::Region(numbers) => {
            for (to, from) in numbers.iter().map(|number| usize::from(*number)).enumerate() {
                if to != from {
                    buffer.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                }
            }
            encoder.encode_into(&buffer[..numbers.len() * PAGE], &job.hashes, ready.pool.take())
        }
    };
    // The uploader goes away when it failed, or with the caller; its error is the one that counts.
    ready.sender.blocking_send((job.chunk, encoded)).map_err(|_| Error::Unavailable {
        doing: "uploading".into(),
        reason: "it was given up".into(),
    })
}
