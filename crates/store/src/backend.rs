//! The one door to the objects: every request passes here, gets a deadline and an error of ours.
//!
//! On every backend a put that returned is durable: object storage promises it, and the local directory
//! syncs the file before its name appears, and the name before the put returns. So an object that exists is
//! whole, whatever happened to the writer.
//!
//! `put_new` is the only conditional write the store needs, and every backend has it. A request that was
//! repeated after a lost answer meets its own object; who must know the difference writes something unique.

use std::error::Error as _;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutPayload, RetryConfig,
};

use crate::error::{Error, Result, is_full};

/// Where the objects are.
#[derive(Debug, Clone)]
pub enum Location {
    /// A directory of this machine.
    Local(PathBuf),
    /// S3 or something that speaks it.
    S3(S3),
    /// Any other implementation.
    Custom(Arc<dyn ObjectStore>),
}

/// How to reach S3 or something that speaks it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct S3 {
    /// Bucket.
    pub bucket: String,
    /// Path in the bucket; empty for all of it.
    pub prefix: String,
    /// Address of the server, if it is not Amazon's.
    pub endpoint: Option<String>,
    /// Region.
    pub region: Option<String>,
    /// Key's name. Without keys the environment is asked (`AWS_ACCESS_KEY_ID` and so on).
    pub access_key: Option<String>,
    /// The key.
    pub secret_key: Option<String>,
    /// Whether the server may be talked to without TLS.
    pub allow_http: bool,
}

impl std::fmt::Debug for S3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bucket, prefix, endpoint) = (&self.bucket, &self.prefix, &self.endpoint);
        write!(f, "S3 {{ bucket: {bucket:?}, prefix: {prefix:?}, endpoint: {endpoint:?}, .. }}")
    }
}

/// How long things may take and how much may be done at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// One attempt of a request to a server.
    pub attempt: Duration,
    /// One request, with all its attempts.
    pub request: Duration,
    /// Attempts after the first.
    pub retries: usize,
    /// Requests at once.
    pub parallel: usize,
    /// Threads that hash and compress.
    pub threads: usize,
    /// What each request takes longer than it would: a store far away, for measurements.
    pub distance: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            attempt: Duration::from_secs(20),
            request: Duration::from_secs(60),
            retries: 6,
            parallel: 8,
            threads: cores.clamp(2, 8),
            distance: Duration::ZERO,
        }
    }
}

/// The objects.
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    objects: Arc<dyn ObjectStore>,
    /// The directory, for what only a directory has.
    pub directory: Option<PathBuf>,
    pub limits: Limits,
    /// How often a conditional write is repeated.
    repeats: usize,
    moved: Arc<Moved>,
}

#[derive(Debug, Default)]
struct Moved {
    read: AtomicU64,
    written: AtomicU64,
}

/// What went to and fro since a store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of objects that were read, not counting what was at hand.
    pub read_bytes: u64,
    /// Bytes of objects that were written.
    pub written_bytes: u64,
}

/// Pause after the first failure; each is twice as long as the one before.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

impl Backend {
    pub fn open(location: &Location, limits: Limits) -> Result<Self> {
        let mut directory = None;
        let objects: Arc<dyn ObjectStore> = match location {
            Location::Local(path) => {
                std::fs::create_dir_all(path)
                    .map_err(|error| Error::file("make directory", path, error))?;
                let local = LocalFileSystem::new_with_prefix(path)
                    .map_err(|error| failure("opening", "the directory", error))?;
                directory = Some(path.clone());
                Arc::new(local.with_fsync(true))
            }
            Location::S3(s3) => connect(s3, limits)?,
            Location::Custom(objects) => Arc::clone(objects),
        };
        let repeats = match location {
            Location::S3(_) => limits.retries,
            Location::Local(_) | Location::Custom(_) => 0,
        };
        Ok(Self { objects, directory, limits, repeats, moved: Arc::default() })
    }

    pub fn traffic(&self) -> Traffic {
        Traffic {
            read_bytes: self.moved.read.load(Ordering::Relaxed),
            written_bytes: self.moved.written.load(Ordering::Relaxed),
        }
    }

    fn count_read(&self, bytes: &Bytes) {
        self.moved.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    fn count_written(&self, payload: &PutPayload) {
        self.moved.written.fetch_add(payload.content_length() as u64, Ordering::Relaxed);
    }

    /// Whether reading costs the network.
    pub fn is_remote(&self) -> bool {
        self.directory.is_none() || !self.limits.distance.is_zero()
    }

    /// The way to a store that is far away.
    async fn travel(&self) {
        if !self.limits.distance.is_zero() {
            tokio::time::sleep(self.limits.distance).await;
        }
    }

    async fn request<T>(
        &self,
        doing: &str,
        path: &Path,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let work = async {
            self.travel().await;
            work.await
        };
        match tokio::time::timeout(self.limits.request, work).await {
            Ok(done) => done.map_err(|error| failure(doing, path.as_ref(), error)),
            Err(_) => Err(Error::Unavailable {
                doing: format!("{doing} {path}"),
                reason: format!("no answer within {:?}", self.limits.request),
            }),
        }
    }

    /// Writes, over whatever is there.
    pub async fn put(&self, path: &Path, payload: impl Into<PutPayload>) -> Result<()> {
        let payload = payload.into();
        self.count_written(&payload);
        let put = self.objects.put(path, payload);
        self.request("writing", path, put).await.map(|_| ())
    }

    /// Writes what must not exist yet. [`Error::Exists`] if it does.
    /// A repeated request may meet its own object; our callers know their own.
    pub async fn put_new(&self, path: &Path, payload: impl Into<PutPayload>) -> Result<()> {
        let payload = payload.into();
        self.count_written(&payload);
        let put =
            self.repeat(|| self.objects.put_opts(path, payload.clone(), PutMode::Create.into()));
        self.request("writing", path, put).await.map(|_| ())
    }

    /// Repeats what failed for no reason of its own. The client does so for most requests, but not for conditional
    /// writes, nor when an answer breaks off.
    async fn repeat<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        work: impl Fn() -> F,
    ) -> object_store::Result<T> {
        let mut pause = BACKOFF_FIRST;
        for _ in 0..self.repeats {
            match work().await {
                Err(error) if is_passing(&error) => {
                    tracing::debug!(%error, "trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MOST);
                }
                other => return other,
            }
        }
        work().await
    }

    /// Reads an object that must not be larger than `most`.
    pub async fn get(&self, path: &Path, most: usize) -> Result<Bytes> {
        let get = self.repeat(|| async {
            let found = self.objects.get(path).await?;
            match found.meta.size <= most as u64 {
                true => found.bytes().await.map(Some),
                false => Ok(None),
            }
        });
        let read = self.request("reading", path, get).await?;
        read.iter().for_each(|bytes| self.count_read(bytes));
        read.filter(|bytes| bytes.len() <= most)
            .ok_or_else(|| Error::bad(format!("{path} has more than {most} bytes")))
    }

    /// Reads a part of an object. What is shorter than asked for is given as it is.
    pub async fn get_range(&self, path: &Path, range: Range<u64>) -> Result<Bytes> {
        self.get_part(path, range).await.map(|(bytes, _)| bytes)
    }

    /// Reads a part of an object and says the object's size.
    pub async fn get_part(&self, path: &Path, range: Range<u64>) -> Result<(Bytes, u64)> {
        let length = range.end - range.start;
        let get = self.repeat(|| async {
            let options = GetOptions::new().with_range(Some(GetRange::Bounded(range.clone())));
            let found = self.objects.get_opts(path, options).await?;
            let size = found.meta.size;
            match found.range.end - found.range.start <= length {
                true => found.bytes().await.map(|bytes| (bytes, size)),
                // A server that ignores ranges. What it sends is not what was asked for.
                false => Ok((Bytes::new(), size)),
            }
        });
        let read = self.request("reading", path, get).await?;
        self.count_read(&read.0);
        Ok(read)
    }

    /// What is known of an object; none if it is not there.
    pub async fn head(&self, path: &Path) -> Result<Option<ObjectMeta>> {
        match self.request("looking at", path, self.objects.head(path)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes. What is not there counts as deleted.
    pub async fn delete(&self, path: &Path) -> Result<()> {
        match self.request("deleting", path, self.objects.delete(path)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// All objects below a path, in no order. Each page of the answer has the request's deadline.
    pub async fn list(&self, below: &Path) -> Result<Vec<ObjectMeta>> {
        self.list_from(below, None, usize::MAX).await
    }

    /// Objects below a path and after another, `most` at most.
    pub async fn list_from(
        &self,
        below: &Path,
        after: Option<&Path>,
        most: usize,
    ) -> Result<Vec<ObjectMeta>> {
        let begin = |after: Option<&Path>| match after {
            Some(after) => self.objects.list_with_offset(Some(below), after),
            None => self.objects.list(Some(below)),
        };
        self.travel().await;
        let mut found: Vec<ObjectMeta> = Vec::new();
        let mut listing = begin(after);
        let (mut failures, mut pause) = (0, BACKOFF_FIRST);
        // Each object that comes starts the clock again.
        let mut until = Instant::now() + self.limits.request;
        while found.len() < most {
            let left = until.saturating_duration_since(Instant::now());
            let next = tokio::time::timeout(left, listing.try_next());
            match next.await.unwrap_or_else(|_| Err(late(self.limits.request))) {
                Ok(Some(meta)) => {
                    found.push(meta);
                    until = Instant::now() + self.limits.request;
                }
                Ok(None) => break,
                // A directory that is listed while somebody deletes: what is gone is not listed.
                Err(object_store::Error::NotFound { .. }) => {}
                // A server lists in order, so it can go on where it broke off.
                Err(error)
                    if is_passing(&error) && failures < self.repeats && Instant::now() < until =>
                {
                    failures += 1;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MOST);
                    listing = begin(found.last().map(|meta| &meta.location).or(after));
                }
                Err(error) => return Err(failure("listing", below.as_ref(), error)),
            }
        }
        Ok(found)
    }

    /// Names of the directories right below a path.
    pub async fn list_directories(&self, below: &Path) -> Result<Vec<String>> {
        let list = self.repeat(|| self.objects.list_with_delimiter(Some(below)));
        let found = match self.request("listing", below, list).await {
            Err(Error::NotFound { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        let names = found.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(names.map(str::to_owned).collect())
    }
}

fn connect(s3: &S3, limits: Limits) -> Result<Arc<dyn ObjectStore>> {
    // Another part of the process may have chosen a provider already; any will do.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: BACKOFF_FIRST,
            max_backoff: BACKOFF_MOST,
            base: 2.0,
        },
        max_retries: limits.retries,
        retry_timeout: limits.request,
    };
    let options = ClientOptions::new()
        .with_timeout(limits.attempt)
        .with_connect_timeout(limits.attempt.min(Duration::from_secs(5)))
        .with_allow_http(s3.allow_http);
    let keys_given = s3.access_key.is_some();
    let mut builder = match keys_given {
        true => AmazonS3Builder::new(),
        false => AmazonS3Builder::from_env(),
    };
    builder = builder
        .with_bucket_name(&s3.bucket)
        .with_region(s3.region.as_deref().unwrap_or("us-east-1"))
        .with_client_options(options)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch);
    if let Some(endpoint) = &s3.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let (Some(name), Some(key)) = (&s3.access_key, &s3.secret_key) {
        builder = builder.with_access_key_id(name).with_secret_access_key(key);
    }
    let built = builder.build().map_err(|error| Error::bad(error.to_string()))?;
    Ok(match s3.prefix.trim_matches('/') {
        "" => Arc::new(built),
        prefix => Arc::new(PrefixStore::new(built, prefix)),
    })
}

/// Our error for theirs.
fn failure(doing: &str, path: &str, error: object_store::Error) -> Error {
    use object_store::Error as Theirs;
    let what = || path.to_owned();
    let doing = format!("{doing} {path}");
    match error {
        Theirs::NotFound { .. } => Error::NotFound { what: what() },
        Theirs::AlreadyExists { .. } | Theirs::Precondition { .. } => {
            Error::Exists { what: what() }
        }
        Theirs::PermissionDenied { .. } | Theirs::Unauthenticated { .. } => {
            Error::Denied { doing, reason: error.to_string() }
        }
        other if is_full_inside(&other) => Error::Full { what: what() },
        other => Error::Unavailable { doing, reason: other.to_string() },
    }
}

/// Whether another attempt may do better.
fn is_passing(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. }) && !is_full_inside(error)
}

fn late(limit: Duration) -> object_store::Error {
    let source = format!("no answer within {limit:?}").into();
    object_store::Error::Generic { store: "any", source }
}

fn is_full_inside(error: &object_store::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if inner.downcast_ref::<io::Error>().is_some_and(is_full) {
            return true;
        }
        cause = inner.source();
    }
    false
}
