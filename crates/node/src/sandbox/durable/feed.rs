//! Brings the files of states from the store while machines run on them.
//!
//! A [`Feed`] belongs to one state that is on its way into a directory. Monitors of machines that go on from it connect to one
//! socket, say which directory they mean, and ask for pages ([`ramet_proto::pager`]); what they ask for comes first. Everything else
//! follows when they have been quiet for a while or somebody is in a [`Feed::hurry`]: pages that were used in the last run, then the rest.
//! A page is verified, written, and only then told of, to all who are connected. When all is there the directory gets its final name.
//!
//! A store that does not answer is asked again, for as long as the node has patience; then the feed has failed, and whoever owns it ends the
//! machines that wait. Nobody ever gets bytes that were not verified.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ramet_proto::pager::{Ask, LINE_MAX, PAGE, Tell};
use ramet_store::Reader;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OnceCell, OwnedRwLockReadGuard, RwLock, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::sandbox::error::Error;
use crate::sandbox::images::blocking;

/// Bytes of a page, in memory.
const BYTES: usize = 4096;
/// Between two tries, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Nobody has asked for this long: the rest may come.
const QUIET: Duration = Duration::from_millis(400);
/// The rest comes after this long in any case.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// Reads of the rest at once, and answers to one monitor at once.
const PARALLEL: usize = 8;
/// Frames that are read with one request when the rest comes.
const BATCH: usize = 32;
/// What a connection may be behind.
const BEHIND_MAX: usize = 4096;
/// Runs in one message.
const RUNS_MAX: usize = 8192;
/// Connections at once.
const CONNECTIONS_MAX: usize = 1024;

/// Done when all files are there.
type Finish = Box<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;
/// By chunk and frame: done when it has come.
type Frames = HashMap<(usize, usize), Arc<OnceCell<()>>>;
/// Pages of a file that have come.
type Arrived = (usize, Vec<(u64, u64)>);

/// Why a feed ended without having brought everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    text: String,
    /// What is in the store is no good; otherwise it could not be had.
    damaged: bool,
}

impl Failed {
    fn unavailable(text: String) -> Self {
        Self { text, damaged: false }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<ramet_store::Error> for Failed {
    fn from(error: ramet_store::Error) -> Self {
        use ramet_store::Error as Stored;
        let damaged = matches!(error, Stored::Damaged(_) | Stored::NotFound { .. });
        Self { text: error.to_string(), damaged }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed.damaged {
            true => Self::Damaged(failed.text),
            false => Self::StoreUnavailable(failed.text),
        }
    }
}

/// How far a feed is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Coming,
    Complete,
    Failed(Failed),
}

/// Held by whoever opens files in a feed's directory, which keeps its name meanwhile.
pub type Pin = OwnedRwLockReadGuard<()>;

/// Brings one state.
pub struct Feed {
    reader: Reader,
    directory: PathBuf,
    files: Vec<File>,
    finish: Finish,
    pins: Arc<RwLock<()>>,
    /// How long a store may not answer.
    patience: Duration,
    /// One for each frame that somebody has asked for.
    frames: Mutex<Frames>,
    arrived: broadcast::Sender<Arc<Arrived>>,
    progress: watch::Sender<Progress>,
    asked: Mutex<Instant>,
    hurry: AtomicBool,
    go: Notify,
}

impl Feed {
    /// The rest comes now, whether somebody asks or not.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
        self.go.notify_one();
    }

    /// Keeps the directory where it is; nothing if all has come and it is elsewhere.
    pub async fn pin(&self) -> Result<Option<Pin>, Failed> {
        let pin = self.pins.clone().read_owned().await;
        match &*self.progress.borrow() {
            Progress::Coming => Ok(Some(pin)),
            Progress::Complete => Ok(None),
            Progress::Failed(why) => Err(why.clone()),
        }
    }

    /// Names of the state's files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.reader.manifest().blobs.iter().map(|blob| blob.name.as_str())
    }

    /// Returns when everything is there, or never will be.
    pub async fn finished(&self) -> Result<(), Failed> {
        let mut progress = self.progress.subscribe();
        loop {
            match &*progress.borrow_and_update() {
                Progress::Complete => return Ok(()),
                Progress::Failed(why) => return Err(why.clone()),
                Progress::Coming => {}
            }
            if progress.changed().await.is_err() {
                return Err(Failed::unavailable("the node is stopping".to_owned()));
            }
        }
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, chunk: usize, frame: usize) -> Arc<OnceCell<()>> {
        self.frames().entry((chunk, frame)).or_default().clone()
    }

    fn blob(&self, name: &str) -> Option<usize> {
        self.reader.manifest().blobs.iter().position(|blob| blob.name == name)
    }

    /// Brings a whole file.
    pub async fn bring(&self, name: &str) -> Result<(), Error> {
        let Some(blob) = self.blob(name) else {
            return Err(Error::Damaged(format!("the state has no file {name}")));
        };
        let pages = self.reader.manifest().blobs[blob].pages();
        Ok(self.pages(blob, 0, pages).await?)
    }

    /// Brings pages, with whatever else is in the same frames.
    async fn pages(&self, blob: usize, first: u64, count: u64) -> Result<(), ramet_store::Error> {
        let located =
            (first..first.saturating_add(count)).map(|page| self.reader.locate(blob, page));
        let mut wanted: Vec<_> = located.flatten().map(|at| (at.chunk, at.frame)).collect();
        wanted.dedup();
        for (chunk, frame) in wanted {
            self.frame(chunk, frame).await?;
        }
        Ok(())
    }

    /// Brings a frame, once.
    async fn frame(&self, chunk: usize, frame: usize) -> Result<(), ramet_store::Error> {
        let cell = self.cell(chunk, frame);
        cell.get_or_try_init(|| async {
            let content = self.reader.read_frame(chunk, frame).await?;
            self.write(chunk, frame, &content).await
        })
        .await
        .map(drop)
    }

    async fn write(
        &self,
        chunk: usize,
        frame: usize,
        content: &[u8],
    ) -> Result<(), ramet_store::Error> {
        let uses = self.reader.frame_uses(chunk, frame);
        for part in &uses {
            let blob = &self.reader.manifest().blobs[part.blob];
            let (from, at) = (part.page * BYTES, part.first * PAGE);
            let left = usize::try_from(blob.length.saturating_sub(at)).unwrap_or(usize::MAX);
            let length = (part.count * BYTES).min(left);
            let Some(bytes) = content.get(from..from + length) else { continue };
            // A few pages into the page cache: not worth a thread.
            self.files[part.blob].write_all_at(bytes, at).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        ramet_store::Error::Full { what: self.directory.display().to_string() }
                    }
                    _ => {
                        let doing = format!("write {}", blob.name);
                        ramet_store::Error::File { doing, source }
                    }
                }
            })?;
        }
        for part in uses {
            // Nobody listens if no machine waits.
            let runs = vec![(part.first, part.count as u64)];
            let _nobody = self.arrived.send(Arc::new((part.blob, runs)));
        }
        Ok(())
    }

    /// What is there already: pages of zeros, and what has come.
    fn present(&self) -> Vec<Arrived> {
        let manifest = self.reader.manifest();
        let mut present: Vec<Arrived> = Vec::new();
        for (number, blob) in manifest.blobs.iter().enumerate() {
            let (mut runs, mut at) = (Vec::new(), 0);
            for extent in &blob.extents {
                if extent.first > at {
                    runs.push((at, extent.first - at));
                }
                at = extent.first + u64::from(extent.count);
            }
            if blob.pages() > at {
                runs.push((at, blob.pages() - at));
            }
            present.push((number, runs));
        }
        let come: Vec<(usize, usize)> = self
            .frames()
            .iter()
            .filter(|(_, cell)| cell.initialized())
            .map(|(at, _)| *at)
            .collect();
        for (chunk, frame) in come {
            for part in self.reader.frame_uses(chunk, frame) {
                present[part.blob].1.push((part.first, part.count as u64));
            }
        }
        present
    }

    /// Brings everything, in the right order and at the right time.
    async fn run(self: Arc<Self>) {
        self.wait_for_quiet().await;
        let rest = self.rest();
        let mut steps = stream::iter(rest)
            .map(|(chunk, frames)| {
                let feed = self.clone();
                async move { feed.patiently(|| feed.batch(chunk, frames.clone())).await }
            })
            .buffer_unordered(PARALLEL);
        while let Some(step) = steps.next().await {
            if let Err(error) = step {
                return self.end(Progress::Failed(error.into()));
            }
        }
        let pins = self.pins.clone().write_owned().await;
        let feed = self.clone();
        let finished = blocking(move || Ok((feed.finish)(&feed.directory)?)).await;
        self.end(match finished {
            Ok(()) => Progress::Complete,
            Err(error) => Progress::Failed(Failed::unavailable(error.to_string())),
        });
        drop(pins);
    }

    fn end(&self, how: Progress) {
        if let Progress::Failed(why) = &how {
            tracing::error!(directory = %self.directory.display(), %why, "a state did not come");
        }
        self.progress.send_replace(how);
    }

    async fn wait_for_quiet(&self) {
        let began = Instant::now();
        while !self.hurry.load(Ordering::Relaxed) && began.elapsed() < BUSY_MAX {
            let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.elapsed() >= QUIET {
                return;
            }
            let _hurried = timeout(QUIET / 4, self.go.notified()).await;
        }
    }

    /// Batches of frames of the same chunk; those with pages that were used in the last run first.
    fn rest(&self) -> Vec<(usize, std::ops::Range<usize>)> {
        let manifest = self.reader.manifest();
        let mut hot: Vec<(usize, usize)> = Vec::new();
        for (number, blob) in manifest.blobs.iter().enumerate() {
            let pages =
                blob.hot.iter().flat_map(|run| run.first..run.first.saturating_add(run.count));
            let pages = pages.take_while(|page| *page < blob.pages());
            hot.extend(
                pages
                    .filter_map(|page| self.reader.locate(number, page))
                    .map(|at| (at.chunk, at.frame)),
            );
        }
        hot.dedup();
        let mut batches: Vec<_> =
            hot.into_iter().map(|(chunk, frame)| (chunk, frame..frame + 1)).collect();
        for (number, chunk) in manifest.chunks.iter().enumerate() {
            let frames = chunk.frames.len();
            batches.extend(
                (0..frames).step_by(BATCH).map(|at| (number, at..(at + BATCH).min(frames))),
            );
        }
        batches
    }

    /// Brings the frames of a batch that have not come yet.
    async fn batch(
        &self,
        chunk: usize,
        frames: std::ops::Range<usize>,
    ) -> Result<(), ramet_store::Error> {
        let missing: Vec<usize> =
            frames.clone().filter(|frame| !self.cell(chunk, *frame).initialized()).collect();
        if missing.len() < frames.len() || frames.len() == 1 {
            for frame in missing {
                self.frame(chunk, frame).await?;
            }
            return Ok(());
        }
        let contents = self.reader.read_frames(chunk, frames.clone()).await?;
        for (frame, content) in frames.zip(contents) {
            let cell = self.cell(chunk, frame);
            cell.get_or_try_init(|| self.write(chunk, frame, &content)).await?;
        }
        Ok(())
    }

    /// Does something again and again while the store does not answer.
    async fn patiently<F: Future<Output = Result<(), ramet_store::Error>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<(), ramet_store::Error> {
        let began = Instant::now();
        let mut pause = AGAIN.0;
        loop {
            match work().await {
                Err(error @ ramet_store::Error::Unavailable { .. })
                    if began.elapsed() < self.patience =>
                {
                    tracing::warn!(%error, "a state's store does not answer; trying again");
                    sleep(pause).await;
                    pause = (pause * 2).min(AGAIN.1);
                }
                done => return done,
            }
        }
    }

    /// Answers one monitor, until it has everything or hangs up.
    async fn serve(self: Arc<Self>, stream: BufReader<UnixStream>) -> io::Result<()> {
        let (reader, mut writer) = tokio::io::split(stream);
        // Before what is there is told, so that nothing is missed in between.
        let mut arrived = self.arrived.subscribe();
        let mut progress = self.progress.subscribe();
        for (blob, runs) in self.present() {
            for some in runs.chunks(RUNS_MAX) {
                self.tell(&mut writer, blob, some.to_vec()).await?;
            }
        }
        let asker = Abort(tokio::spawn(self.clone().hear(BufReader::new(reader))));
        loop {
            if *progress.borrow() == Progress::Complete {
                return say(&mut writer, &Tell::Complete {}).await;
            }
            tokio::select! {
                some = arrived.recv() => match some {
                    Ok(some) => self.tell(&mut writer, some.0, some.1.clone()).await?,
                    // It gets everything again, on a new connection.
                    Err(_) => return Ok(()),
                },
                changed = progress.changed() => if changed.is_err() { return Ok(()) },
                () = tokio::time::sleep(Duration::from_secs(1)) => if asker.0.is_finished() { return Ok(()) },
            }
        }
    }

    async fn tell(
        &self,
        writer: &mut (impl AsyncWriteExt + Unpin),
        blob: usize,
        runs: Vec<(u64, u64)>,
    ) -> io::Result<()> {
        let file = self.reader.manifest().blobs[blob].name.clone();
        say(writer, &Tell::Arrived { file, runs }).await
    }

    /// Hears what a monitor wants, and brings it.
    async fn hear(self: Arc<Self>, mut lines: impl AsyncBufReadExt + Unpin) {
        let mut text = Vec::new();
        let wants = Arc::new(tokio::sync::Semaphore::new(PARALLEL * 4));
        loop {
            text.clear();
            match (&mut lines).take(LINE_MAX as u64).read_until(b'\n', &mut text).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
            let Ok(Ask::Want { file, first, count }) = serde_json::from_slice(&text) else {
                return;
            };
            let Some(blob) = self.blob(&file) else { return };
            *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            let count = count.min(self.reader.manifest().blobs[blob].pages().saturating_sub(first));
            let Ok(permit) = wants.clone().acquire_owned().await else { return };
            let feed = self.clone();
            tokio::spawn(async move {
                let brought = feed.patiently(|| feed.pages(blob, first, count)).await;
                if let Err(error) = brought {
                    feed.end(Progress::Failed(error.into()));
                }
                drop(permit);
            });
        }
    }
}

/// Ends a task when it is dropped.
struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn say(writer: &mut (impl AsyncWriteExt + Unpin), tell: &Tell) -> io::Result<()> {
    let mut text = serde_json::to_vec(tell)?;
    text.push(b'\n');
    writer.write_all(&text).await?;
    writer.flush().await
}

struct Open {
    feed: Arc<Feed>,
    _run: Abort,
}

/// All feeds, by directory, and the socket where monitors ask for them.
pub struct Feeds {
    socket: PathBuf,
    patience: Duration,
    open: Arc<Mutex<HashMap<PathBuf, Open>>>,
    _listen: Abort,
}

impl Feeds {
    /// Listens. A store may not answer for as long as there is patience.
    pub fn listen(socket: PathBuf, patience: Duration) -> io::Result<Self> {
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&socket)?;
        let open: Arc<Mutex<HashMap<PathBuf, Open>>> = Arc::default();
        let listen = Abort(tokio::spawn(accept_all(listener, open.clone())));
        Ok(Self { socket, patience, open, _listen: listen })
    }

    /// Where monitors ask.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn open(&self) -> MutexGuard<'_, HashMap<PathBuf, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The feed of a directory, while it is open and has not failed.
    pub fn find(&self, directory: &Path) -> Option<Arc<Feed>> {
        let feed = self.open().get(directory)?.feed.clone();
        let failed = matches!(*feed.progress.borrow(), Progress::Failed(_));
        (!failed).then_some(feed)
    }

    /// Begins to bring a state into a directory.
    pub async fn begin(
        &self,
        reader: Reader,
        directory: &Path,
        finish: Finish,
    ) -> Result<Arc<Feed>, Error> {
        let manifest = reader.manifest().clone();
        let target = directory.to_owned();
        let files = blocking(move || {
            let make = |blob: &ramet_store::manifest::Blob| {
                // What an earlier run of the node has brought is the same, and machines may have it mapped.
                let file = File::options()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(target.join(&blob.name))?;
                file.set_len(blob.length)?;
                Ok(file)
            };
            manifest.blobs.iter().map(make).collect::<Result<Vec<_>, Error>>()
        })
        .await?;
        let feed = Arc::new(Feed {
            reader,
            directory: directory.to_owned(),
            files,
            finish,
            pins: Arc::default(),
            patience: self.patience,
            frames: Mutex::default(),
            arrived: broadcast::channel(BEHIND_MAX).0,
            progress: watch::channel(Progress::Coming).0,
            asked: Mutex::new(Instant::now()),
            hurry: AtomicBool::new(false),
            go: Notify::new(),
        });
        let run = Abort(tokio::spawn(feed.clone().run()));
        let mut open = self.open();
        open.retain(|_, one| *one.feed.progress.borrow() == Progress::Coming);
        open.insert(directory.to_owned(), Open { feed: feed.clone(), _run: run });
        Ok(feed)
    }
}

async fn accept_all(listener: UnixListener, open: Arc<Mutex<HashMap<PathBuf, Open>>>) {
    let room = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let open = open.clone();
        tokio::spawn(async move {
            // A monitor that is not answered asks again.
            drop(greet(stream, &open).await);
            drop(place);
        });
    }
}

async fn greet(stream: UnixStream, open: &Mutex<HashMap<PathBuf, Open>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut text = Vec::new();
    let mut line = (&mut stream).take(LINE_MAX as u64);
    timeout(Duration::from_secs(10), line.read_until(b'\n', &mut text)).await??;
    let Ok(Ask::Hello { directory }) = serde_json::from_slice(&text) else { return Ok(()) };
    let feed = {
        let open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(Path::new(&directory)).map(|one| one.feed.clone())
    };
    match feed {
        Some(feed) => feed.serve(stream).await,
        None => Ok(()),
    }
}
