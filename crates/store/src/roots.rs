//! Roots and refs.
//!
//! A *root* keeps a state: what no root reaches is collected some time later. A *ref* is a small value that
//! changes by compare and swap; it keeps nothing. A ref's values are objects with rising
//! numbers, each written only if it is new, so two writers on any backend cannot both win.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Store;
use crate::error::{Error, Result};
use crate::id::{StateId, Tenant, check_name};
use crate::names;

/// Bytes of a root or a ref's value, at most.
const RECORD_MAX: usize = 1 << 20;
/// Values of a ref that were replaced so long ago are deleted. Who swaps a value has looked at the newest
/// one much later than that, so no number is ever written twice.
const KEPT_MS: i64 = 3_600_000;

/// What keeps a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// What sort of thing it is to the caller: `commit`, `template`, …
    #[serde(skip)]
    pub kind: String,
    /// Its name among its kind.
    #[serde(skip)]
    pub name: String,
    /// The state.
    pub state: StateId,
    /// Whatever the caller wants to know of it.
    pub value: Value,
    /// Signatures, in the format of minisign: see [`crate::sign`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
    /// Unique for each writing, so that a writer knows its own again.
    writer: String,
}

/// Name and content of a root to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRoot {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Whatever the caller wants to know of it.
    pub value: Value,
    /// What to do if there is one.
    pub mode: RootMode,
    /// Its signatures.
    pub signatures: Vec<String>,
}

/// What to do if a root of the same name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootMode {
    /// Fail.
    Create,
    /// Take its place.
    Replace,
}

/// A value of a ref and its number, which the next writer must name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Its number; 0 is none yet.
    #[serde(skip)]
    pub sequence: u64,
    /// The value. None for a ref that was deleted.
    pub value: Option<Value>,
    writer: String,
}

impl NewRoot {
    /// A root that must not exist yet.
    pub fn new(kind: impl Into<String>, name: impl Into<String>, value: Value) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
            value,
            mode: RootMode::Create,
            signatures: Vec::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("kind", &self.kind)?;
        check_name("root", &self.name)
    }
}

impl Root {
    pub(crate) fn of(new: &NewRoot, state: StateId) -> Self {
        let NewRoot { kind, name, value, signatures, .. } = new.clone();
        Self { kind, name, state, value, signatures, writer: unique() }
    }
}

/// A word that nobody else has.
pub(crate) fn unique() -> String {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => {}
        // Sixteen bytes never fail once the kernel runs; the clock and the process are unique enough.
        _ => {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_nanos());
            bytes = (now << 32 | u128::from(std::process::id())).to_le_bytes();
        }
    }
    crate::id::hex(&bytes)
}

impl Store {
    /// Writes a root's record. The caller has made sure that what it refers to stays: [`crate::gc`].
    pub(crate) async fn write_root(
        &self,
        tenant: &Tenant,
        root: &Root,
        mode: RootMode,
    ) -> Result<()> {
        let path = names::root(tenant, &root.kind, &root.name);
        let record = small_record(&path, root)?;
        if mode == RootMode::Replace {
            return self.backend.put(&path, record).await;
        }
        match self.backend.put_new(&path, record).await {
            Err(Error::Exists { .. }) => {
                // Perhaps ours: the answer to a first attempt got lost.
                let found = self.root(tenant, &root.kind, &root.name).await?;
                let what = format!("{} {}", root.kind, root.name);
                (found.writer == root.writer).then_some(()).ok_or(Error::Exists { what })
            }
            other => other,
        }
    }

    /// A root.
    pub async fn root(&self, tenant: &Tenant, kind: &str, name: &str) -> Result<Root> {
        check_name("kind", kind)?;
        check_name("root", name)?;
        let path = names::root(tenant, kind, name);
        let bytes = self.backend.get(&path, RECORD_MAX).await.map_err(|error| match error {
            Error::NotFound { .. } => Error::NotFound { what: format!("{kind} {name}") },
            other => other,
        })?;
        let mut root: Root = self.parse(tenant, &path, &bytes)?;
        (root.kind, root.name) = (kind.to_owned(), name.to_owned());
        Ok(root)
    }

    /// Roots of a kind by name, after a name, `most` at most: ask again after the last one for more.
    pub async fn roots(
        &self,
        tenant: &Tenant,
        kind: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<Root>> {
        check_name("kind", kind)?;
        let below = names::below(&["roots", tenant.as_str(), kind]);
        let after = match after {
            Some(name) => {
                check_name("root", name)?;
                Some(names::root(tenant, kind, name))
            }
            None => None,
        };
        let mut found = match self.backend.is_remote() {
            // A server lists in order of names; a directory does not.
            true => self.backend.list_from(&below, after.as_ref(), most).await?,
            false => self.backend.list_from(&below, after.as_ref(), usize::MAX).await?,
        };
        found.sort_by(|a, b| a.location.cmp(&b.location));
        found.truncate(most);
        let names: Vec<_> =
            found.iter().filter_map(|meta| names::parse_root(&meta.location)).collect();
        let reads = futures_util::stream::iter(names)
            .map(|(tenant, kind, name)| async move { self.root(&tenant, &kind, &name).await })
            .buffered(self.backend.limits.parallel);
        // One that was deleted since is not listed.
        let reads = reads.filter(|read| {
            futures_util::future::ready(!matches!(read, Err(Error::NotFound { .. })))
        });
        reads.try_collect().await
    }

    /// Paths of all roots of a tenant.
    pub(crate) async fn root_paths(&self, tenant: &Tenant) -> Result<Vec<Path>> {
        let listed = self.backend.list(&names::below(&["roots", tenant.as_str()])).await?;
        Ok(listed.into_iter().map(|meta| meta.location).collect())
    }

    /// The root at a path.
    pub(crate) async fn root_at(&self, path: &Path) -> Result<Root> {
        let (tenant, kind, name) = names::parse_root(path)
            .ok_or_else(|| Error::bad(format!("{path} is no name of a root")))?;
        self.root(&tenant, &kind, &name).await
    }

    /// All roots of a tenant. One that cannot be read fails it; one that goes meanwhile does not.
    pub(crate) async fn all_roots(&self, tenant: &Tenant) -> Result<Vec<Root>> {
        futures_util::stream::iter(self.root_paths(tenant).await?)
            .map(|path| async move { self.root_at(&path).await })
            .buffer_unordered(self.backend.limits.parallel)
            .filter(|read| {
                futures_util::future::ready(!matches!(read, Err(Error::NotFound { .. })))
            })
            .try_collect()
            .await
    }

    /// Deletes a root. The data stays until a collection finds that nothing else reaches it.
    pub async fn delete_root(&self, tenant: &Tenant, kind: &str, name: &str) -> Result<()> {
        check_name("kind", kind)?;
        check_name("root", name)?;
        let path = names::root(tenant, kind, name);
        if self.backend.head(&path).await?.is_none() {
            return Err(Error::NotFound { what: format!("{kind} {name}") });
        }
        self.backend.delete(&path).await
    }

    /// The value of a ref now. Number 0 and no value if there never was one.
    pub async fn reference(&self, tenant: &Tenant, name: &str) -> Result<Reference> {
        check_name("ref", name)?;
        // The newest may be replaced and pruned between listing and reading; then there is a newer one.
        for _ in 0..8 {
            let below = names::below(&["refs", tenant.as_str(), name]);
            let listed = self.backend.list(&below).await?;
            let newest =
                listed.iter().filter_map(|meta| names::parse_sequence(&meta.location)).max();
            let Some(sequence) = newest else {
                return Ok(Reference { sequence: 0, value: None, writer: String::new() });
            };
            match self.reference_at(tenant, name, sequence).await {
                Err(Error::NotFound { .. }) => continue,
                other => return other,
            }
        }
        Err(Error::Unavailable {
            doing: format!("reading ref {name}"),
            reason: "it changes faster than it can be read".into(),
        })
    }

    async fn reference_at(&self, tenant: &Tenant, name: &str, sequence: u64) -> Result<Reference> {
        let path = names::reference(tenant, name, sequence);
        let mut found = self.reference_at_path(tenant, &path).await?;
        found.sequence = sequence;
        Ok(found)
    }

    /// Reads one value of a ref.
    pub(crate) async fn reference_at_path(
        &self,
        tenant: &Tenant,
        path: &Path,
    ) -> Result<Reference> {
        let bytes = self.backend.get(path, RECORD_MAX).await?;
        self.parse(tenant, path, &bytes)
    }

    /// Gives a ref a new value, or none, if its number is still `expected`. [`Error::Exists`] if somebody
    /// was faster.
    pub async fn swap_reference(
        &self,
        tenant: &Tenant,
        name: &str,
        expected: u64,
        value: Option<Value>,
    ) -> Result<Reference> {
        check_name("ref", name)?;
        let sequence =
            expected.checked_add(1).ok_or_else(|| Error::bad("no such number of a ref"))?;
        let began = Instant::now();
        if self.reference(tenant, name).await?.sequence != expected {
            return Err(Error::Exists { what: format!("a newer value of ref {name}") });
        }
        let new = Reference { sequence, value, writer: unique() };
        let path = names::reference(tenant, name, sequence);
        if let Err(error) = self.backend.put_new(&path, small_record(&path, &new)?).await {
            let Error::Exists { .. } = error else { return Err(error) };
            let found = self.reference_at(tenant, name, sequence).await?;
            if found.writer != new.writer {
                return Err(Error::Exists { what: format!("a newer value of ref {name}") });
            }
        }
        if began.elapsed().as_millis() > u128::from(KEPT_MS.unsigned_abs() / 2) {
            let reason = "it took so long that the number may be an old one".into();
            return Err(Error::Unavailable { doing: format!("changing ref {name}"), reason });
        }
        self.prune(tenant, name).await;
        Ok(new)
    }

    /// Deletes old values. What cannot be deleted now is when the ref changes again.
    async fn prune(&self, tenant: &Tenant, name: &str) {
        let below = names::below(&["refs", tenant.as_str(), name]);
        let Ok(mut listed) = self.backend.list(&below).await else { return };
        listed.sort_by_key(|meta| names::parse_sequence(&meta.location));
        let Some(newest) = listed.pop() else { return };
        // Each was replaced when its successor was written, by the backend's clock.
        let age = |at: &ObjectMeta| (newest.last_modified - at.last_modified).num_milliseconds();
        let replaced = listed.windows(2).filter(|pair| age(&pair[1]) > KEPT_MS);
        for pair in replaced {
            if let Err(error) = self.backend.delete(&pair[0].location).await {
                tracing::debug!(%error, "an old value of a ref stays for now");
            }
        }
    }

    /// Names of a tenant's refs that have a value, with it.
    pub async fn references(&self, tenant: &Tenant) -> Result<Vec<(String, Reference)>> {
        let below = names::below(&["refs", tenant.as_str()]);
        let mut found = Vec::new();
        let mut named = self.backend.list_directories(&below).await?;
        named.sort();
        for name in named {
            let reference = self.reference(tenant, &name).await?;
            if reference.value.is_some() {
                found.push((name, reference));
            }
        }
        Ok(found)
    }

    fn parse<'a, T: Deserialize<'a>>(
        &self,
        tenant: &Tenant,
        path: &Path,
        bytes: &'a [u8],
    ) -> Result<T> {
        unsealed(path, bytes).ok_or_else(|| self.damaged(tenant, path, None, "is no record"))
    }
}

/// A record as it is stored: JSON, a line end, and a hash of that and of the object's path. So every flipped bit
/// shows, and also an object that lies under another's name.
pub(crate) fn record<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value).map_err(|error| Error::bad(error.to_string()))?;
    bytes.push(b'\n');
    let seal = seal(path, &bytes);
    bytes.extend_from_slice(seal.as_bytes());
    bytes.push(b'\n');
    Ok(bytes)
}

fn small_record<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let bytes = record(path, value)?;
    match bytes.len() <= RECORD_MAX {
        true => Ok(bytes),
        false => Err(Error::bad(format!("{} bytes are too much; 1 MiB is allowed", bytes.len()))),
    }
}

fn seal(path: &Path, body: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("ramet store 2026 record v1");
    hasher.update(path.as_ref().as_bytes()).update(&[0]).update(body);
    crate::id::hex(hasher.finalize().as_bytes())
}

/// Whether this is a whole record of this path.
pub(crate) fn is_record(path: &Path, bytes: &[u8]) -> bool {
    unsealed::<Value>(path, bytes).is_some()
}

/// What [`record`] made for this path; none if it is not that.
pub(crate) fn unsealed<'a, T: Deserialize<'a>>(path: &Path, bytes: &'a [u8]) -> Option<T> {
    let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(65)?)?;
    if found.strip_suffix(b"\n")? != seal(path, body).as_bytes() {
        return None;
    }
    serde_json::from_slice(body).ok()
}
