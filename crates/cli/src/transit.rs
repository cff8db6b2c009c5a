//! Moves that this machine carries out itself, between a node that cannot reach a remote and the remote.
//!
//! A node in the software host has no network and none of this machine's files. So what it packs is read here and goes
//! on to the remote, and the other way round. Keys are the node's: it signs what it packs, and verifies what it unpacks.
//! Between two nodes it is the same: one packs, the other unpacks.

use std::sync::Arc;

use ramet_client::api::{CommitsQuery, MoveProgress, Moved, UnpackQuery};
use ramet_client::{Client, FileReader};
use ramet_store::{
    Config, Limits, Location, Login, Meter, Pack, Packing, Registry, Remote, Repository, RootMode,
    S3, Store, Trust, Unpacking,
};

use crate::failure::Failure;

/// Bytes that are kept of a store to speed it up.
const SCRATCH: u64 = 64 << 20;
/// Bytes of a pack on its way that wait.
const AHEAD: usize = 1 << 20;
/// Commits that a receiver says it has, at most: the newest.
const HAVE_MAX: u32 = 200;

/// What moves.
#[derive(Debug, Clone)]
pub enum What {
    /// A commit.
    Commit(String),
    /// A template.
    Template(String),
}

impl What {
    /// As a commit, unless it is said to be a template.
    pub fn new(name: &str, template: bool) -> Self {
        match template {
            true => Self::Template(name.to_owned()),
            false => Self::Commit(name.to_owned()),
        }
    }

    /// It as a stream, without what the receiver has.
    pub async fn pack(&self, client: &Client, have: &[String]) -> Result<FileReader, Failure> {
        Ok(match self {
            Self::Commit(commit) => client.pack_commit(commit, have).await?,
            Self::Template(name) => client.pack_template(name, have).await?,
        })
    }
}

impl From<ramet_store::Error> for Failure {
    fn from(error: ramet_store::Error) -> Self {
        Self::because("the remote", &error)
    }
}

/// How far a move is.
pub fn progress(meter: &Meter) -> MoveProgress {
    let moved = meter.read();
    MoveProgress {
        chunks: moved.chunks,
        done_chunks: moved.done,
        moved_chunks: moved.moved,
        moved_bytes: moved.bytes,
    }
}

/// A remote, as this machine reaches it.
pub fn remote(text: &str) -> Result<Remote, Failure> {
    let endpoint = std::env::var("RAMET_S3_ENDPOINT").ok();
    let allow_http = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    Remote::parse(text, &S3 { endpoint, allow_http, ..S3::default() })
        .map_err(|error| Failure::usage(error.to_string()))
}

/// A repository, with the login that this user has for it.
fn registry(repository: &Repository) -> Result<Registry, Failure> {
    let file = std::env::var_os("RAMET_REGISTRY_AUTH").map(std::path::PathBuf::from);
    let home = || Some(std::path::PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    let place = || std::env::var_os("DOCKER_CONFIG").map(Into::into).or_else(home);
    let login = match file.or_else(|| Some(place()?.join("config.json"))) {
        Some(file) => Login::find(&file, repository)?,
        None => Login::Anonymous,
    };
    Ok(Registry::new(repository, login)?)
}

/// A store, and the directory for what it keeps by itself, which goes with it.
struct Opened {
    store: Store,
    _scratch: tempfile::TempDir,
}

async fn open(location: Location) -> Result<Opened, Failure> {
    let made = tempfile::tempdir();
    let scratch = made.map_err(|error| Failure::because("a temporary directory", &error))?;
    let limits = Limits::default();
    let path = scratch.path().join("scratch");
    let config = Config { location, scratch: path, scratch_bytes: SCRATCH, limits };
    Ok(Opened { store: Store::open(config).await?, _scratch: scratch })
}

/// A store that is gone with the handle.
async fn passing() -> Result<(Opened, tempfile::TempDir), Failure> {
    let made = tempfile::tempdir();
    let place = made.map_err(|error| Failure::because("a temporary directory", &error))?;
    Ok((open(Location::Local(place.path().join("store"))).await?, place))
}

fn taking(meter: Option<&Meter>) -> Unpacking<'_> {
    Unpacking { mode: RootMode::Replace, trust: Trust::default(), meter }
}

/// From a node to a remote.
pub async fn push(
    client: &Client,
    what: &What,
    name: Option<&str>,
    remote: Remote,
    meter: &Meter,
) -> Result<(), Failure> {
    let pack = Pack::open(what.pack(client, &[]).await?.into_reader()).await?;
    let tenant = Remote::tenant()?;
    match remote {
        Remote::Store { location, name: there } => {
            let to = open(location).await?;
            let roots = to.store.unpack(&tenant, pack, taking(Some(meter))).await?;
            Ok(to.store.share(&roots, there.as_deref().or(name)).await?)
        }
        Remote::Registry(repository) => {
            let (here, _place) = passing().await?;
            let roots = here.store.unpack(&tenant, pack, taking(None)).await?;
            let registry = registry(&repository)?;
            Ok(here.store.push(&tenant, &roots, &registry, Trust::default(), meter).await?)
        }
    }
}

/// From a remote to a node.
pub async fn pull(
    client: &Client,
    query: &UnpackQuery,
    remote: Remote,
    meter: Arc<Meter>,
) -> Result<Moved, Failure> {
    let tenant = Remote::tenant()?;
    let mut place = None;
    let (from, roots) = match remote {
        Remote::Store { location, name: which } => {
            let from = open(location).await?;
            let roots = from.store.shared(which.as_deref()).await?;
            (from, roots)
        }
        Remote::Registry(repository) => {
            let artifact = registry(&repository)?.open().await?;
            let (here, directory) = passing().await?;
            place = Some(directory);
            let roots = here.store.pull(&tenant, artifact, taking(Some(&meter))).await?;
            (here, roots)
        }
    };
    let (ours, theirs) = tokio::io::duplex(AHEAD);
    let told = place.is_none().then(|| meter.clone());
    let packing = async {
        let packing = Packing { meter: told.as_deref(), ..Packing::default() };
        from.store.pack(&tenant, &roots, ours, packing).await
    };
    let (packed, moved) = tokio::join!(packing, client.unpack(query, theirs));
    // What the node says is why the pack could not be written.
    let moved = moved?;
    packed.map(drop).or_else(|error| if moved.known { Ok(()) } else { Err(error) })?;
    Ok(moved)
}

/// From one node to another.
pub async fn between(
    from: &Client,
    to: &Client,
    what: &What,
    query: &UnpackQuery,
) -> Result<Moved, Failure> {
    let newest = CommitsQuery { limit: Some(HAVE_MAX), ..CommitsQuery::default() };
    let have: Vec<String> =
        to.commits(&newest).await?.commits.into_iter().map(|commit| commit.id).collect();
    let pack = what.pack(from, &have).await?;
    match to.unpack(query, pack.into_reader()).await {
        // It may count on something that is no longer there.
        Err(error) if error.to_string().contains("chunks are missing") && !have.is_empty() => {
            let pack = what.pack(from, &[]).await?;
            Ok(to.unpack(query, pack.into_reader()).await?)
        }
        moved => Ok(moved?),
    }
}
