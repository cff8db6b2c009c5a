//! A content-addressed store of saved states.
//!
//! A *state* is a directory's regular files, called *blobs*. Their pages of 4 KiB that are not zero go into
//! *chunks*, immutable objects of up to 2 MiB that are named by their content ([`chunk`]). A *manifest* says what a
//! state consists of ([`manifest`]). A *root* keeps a state; what no root reaches is collected ([`gc`]). The
//! objects lie in a directory, in S3, or in anything that `object_store` knows ([`backend`]).
//!
//! What holds:
//! - What [`Store::publish`] returned is durable, and stays while its root is there.
//! - Everything that is read is verified. What is damaged is named and refused, never given out.
//! - A tenant's objects are its own: nothing is shared between tenants.
//! - Any number of processes work on one store at once; all of them may be killed at any moment.
//! - The store knows no machines and runs nothing by itself: every call is the caller's.

pub mod backend;
mod cache;
mod check;
pub mod chunk;
mod error;
mod fetch;
pub mod gc;
mod id;
mod login;
pub mod manifest;
mod names;
mod pack;
mod parcel;
mod publish;
mod put;
mod read;
mod registry;
mod remote;
mod roots;
pub mod sign;
#[cfg(feature = "testing")]
pub mod testing;
mod transfer;

use std::path::PathBuf;

use object_store::path::Path;

pub use backend::{Limits, Location, S3, Traffic};
pub use check::{CheckProgress, Checked, Depth, Repaired, Usage};
pub use error::{Damage, Error, Hit, Result};
pub use fetch::Progress;
pub use gc::{Collect, Collected};
pub use id::{ChunkId, Hash, StateId, Tenant, check_name};
pub use manifest::{Manifest, Run, Totals};
pub use pack::{Pack, Packing, Unpacking};
pub use parcel::{Intake, Meter, Moved, PackedRoot, Parcel};
pub use put::{Cost, Draft, Hot};
pub use read::{At, Reader, Use};
pub use registry::{Artifact, Login, Registry};
pub use remote::{Remote, Repository};
pub use roots::{NewRoot, Reference, Root, RootMode};
pub use sign::{SigningKey, VerifyingKey};
pub use transfer::{Copied, Destination, Trust};

/// What a store is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the objects are.
    pub location: Location,
    /// A directory of this machine, of this process alone: page tables and the cache. It may be deleted
    /// while the store is closed; that costs only time.
    pub scratch: PathBuf,
    /// Bytes in it, at most.
    pub scratch_bytes: u64,
    /// How long things may take.
    pub limits: Limits,
}

impl Config {
    /// A store in a directory.
    pub fn local(directory: impl Into<PathBuf>, scratch: impl Into<PathBuf>) -> Self {
        Self {
            location: Location::Local(directory.into()),
            scratch: scratch.into(),
            scratch_bytes: 4 << 30,
            limits: Limits::default(),
        }
    }
}

/// A store. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) backend: backend::Backend,
    pub(crate) cache: cache::Cache,
}

/// Version of the layout, as the object `format` says it.
const FORMAT: &[u8] = b"ramet store 1\n";

impl Store {
    /// Opens a store, and makes it if there is none.
    pub async fn open(config: Config) -> Result<Self> {
        let opened = put::blocking(move || {
            let backend = backend::Backend::open(&config.location, config.limits)?;
            let cache = cache::Cache::open(config.scratch, config.scratch_bytes)?;
            Ok(Self { backend, cache })
        });
        let store = opened.await?;
        store.check_format().await?;
        Ok(store)
    }

    async fn check_format(&self) -> Result<()> {
        let path = Path::from("format");
        let found = match self.backend.get(&path, 1024).await {
            Err(Error::NotFound { .. }) => match self.backend.put_new(&path, FORMAT).await {
                Ok(()) | Err(Error::Exists { .. }) => self.backend.get(&path, 1024).await?,
                Err(error) => return Err(error),
            },
            other => other?,
        };
        match found == FORMAT {
            true => Ok(()),
            false => Err(Error::bad("this is no store of a version that is known here")),
        }
    }

    /// What went to and fro since this was opened.
    pub fn traffic(&self) -> Traffic {
        self.backend.traffic()
    }

    /// Gives up copies that save requests. Bytes that are free then.
    pub async fn forget_cached(&self) -> u64 {
        self.cache.clear().await
    }

    /// Names of all tenants that have anything here.
    pub async fn tenants(&self) -> Result<Vec<Tenant>> {
        let mut found = Vec::new();
        for top in ["roots", "manifests", "chunks", "refs", "gc"] {
            let names = self.backend.list_directories(&Path::from(top)).await?;
            found.extend(names.into_iter().filter_map(|name| Tenant::new(name).ok()));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    pub(crate) fn damaged(
        &self,
        tenant: &Tenant,
        path: &Path,
        chunk: Option<ChunkId>,
        reason: &str,
    ) -> Error {
        Error::Damaged(Box::new(Damage {
            tenant: tenant.to_string(),
            object: path.to_string(),
            chunk,
            reason: reason.to_owned(),
            hits: Vec::new(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Futures of the store can be given to any thread. Compiled, never run.
    #[expect(dead_code, reason = "compiling it is the test")]
    fn futures_are_send(
        store: &Store,
        tenant: &Tenant,
        draft: Draft,
        new: NewRoot,
        state: StateId,
    ) {
        fn send<T: Send>(_: T) {}
        let path = std::path::Path::new("/");
        send(store.put_state(tenant, path, None, Hot::new()));
        send(store.publish(draft, new.clone()));
        send(store.put_root(tenant, state, new));
        send(store.manifest(tenant, state));
        send(async {
            let reader = store.reader(tenant, state, store.manifest(tenant, state).await?);
            reader.read_pages("memory", 0, 1).await
        });
        send(store.fetch_state(tenant, state, path, |_| ()));
        send(store.roots(tenant, "kind", None, 1));
        send(store.delete_root(tenant, "kind", "name"));
        send(store.reference(tenant, "name"));
        send(store.references(tenant));
        send(store.swap_reference(tenant, "name", 0, None));
        send(store.collect(None, &Collect::default()));
        send(store.check(None, Depth::Content, |_| ()));
        send(store.repair(None, None));
        send(store.usage(tenant));
        let root = Root::of(&NewRoot::new("kind", "name", serde_json::Value::Null), state);
        let trust = Trust::default();
        let (mode, meter) = (RootMode::Create, None);
        let there = Destination { store, tenant, base: None, mode, meter };
        send(store.copy_state(tenant, &root, there, trust));
        let packing = Packing::default();
        send(store.pack(tenant, std::slice::from_ref(&root), tokio::io::sink(), packing));
        send(async {
            let pack = Pack::open(tokio::io::empty()).await?;
            store.unpack(tenant, pack, Unpacking { mode, trust, meter }).await
        });
    }
}
