//! Checking everything that roots reach, and repairing it.
//!
//! A check reads from the backend, never from the cache. It reports every damage with all it hits. A root that was
//! deleted is a deleted root: only who keeps a list of roots can miss it.
//!
//! A repair takes what is missing or wrong from this machine's cache, or from another store that has
//! it. Whatever is replaced or cannot be repaired is kept under `quarantine/`: the last copy of anything is never
//! deleted. A chunk in quarantine is written anew by the next state that contains it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;

use crate::Store;
use crate::chunk::{ChunkEntry, Encoder, OBJECT_MAX, PAGE, decode_object, page_hash, parse_object};
use crate::error::{Damage, Error, Hit, Result};
use crate::id::{ChunkId, StateId, Tenant};
use crate::manifest::{self, Manifest};
use crate::names;
use crate::put::blocking;
use crate::read::hits;

/// Damages that are reported, at most. Others are only counted.
const REPORTED: usize = 10_000;
/// Generations of a chunk that a repair looks at.
const GENERATIONS: u32 = 4;

/// How much a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Roots, refs and manifests; of chunks only whether they are there in full length.
    Presence,
    /// Everything.
    Content,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Roots.
    pub roots: u64,
    /// States they name.
    pub states: u64,
    /// Chunks those refer to.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
    /// What is wrong, 10000 at most.
    pub damages: Vec<Damage>,
    /// How many are wrong.
    pub damaged: u64,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Damages that are gone.
    pub repaired: Vec<Damage>,
    /// Damages that remain. What was left of the object is in quarantine.
    pub lost: Vec<Damage>,
}

/// How far a check is, in chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Chunks that were looked at.
    pub done: u64,
    /// Chunks there are.
    pub total: u64,
}

/// What is known of a tenant's states while it is checked.
#[derive(Default)]
struct Survey {
    /// States, each with the roots that name it.
    states: BTreeMap<StateId, Vec<String>>,
    manifests: HashMap<StateId, Arc<Manifest>>,
    /// Chunks by path, with states that use them and their number there.
    chunks: BTreeMap<String, (ChunkEntry, Vec<(StateId, usize)>)>,
}

impl Checked {
    fn add(&mut self, damage: Damage) {
        self.damaged += 1;
        if self.damages.len() < REPORTED {
            self.damages.push(damage);
        }
    }

    /// Notes a damage; passes on other errors, and things that are gone.
    fn take(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Damaged(damage) => self.add(*damage),
            Error::NotFound { .. } => {}
            other => return Err(other),
        }
        Ok(())
    }
}

impl Store {
    /// Checks the states of a tenant, or of all.
    pub async fn check(
        &self,
        tenant: Option<&Tenant>,
        depth: Depth,
        progress: impl Fn(CheckProgress) + Send + Sync,
    ) -> Result<Checked> {
        self.check_all(tenant, depth, &progress, &mut HashMap::new()).await
    }

    /// Checks, and notes what manifests say of chunks that are damaged.
    async fn check_all(
        &self,
        tenant: Option<&Tenant>,
        depth: Depth,
        progress: &(impl Fn(CheckProgress) + Send + Sync),
        entries: &mut HashMap<String, ChunkEntry>,
    ) -> Result<Checked> {
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.tenants().await?,
        };
        let mut report = Checked::default();
        self.check_format().await?;
        for tenant in tenants {
            let survey = self.survey(&tenant, &mut report).await?;
            self.check_refs(&tenant, &mut report).await?;
            self.check_lists(&tenant, &mut report).await?;
            let before = report.damages.len();
            self.check_chunks(&tenant, depth, &survey, &mut report, progress).await?;
            for damage in &report.damages[before..] {
                let known = survey.chunks.get(&damage.object);
                entries.extend(known.map(|(entry, _)| (damage.object.clone(), entry.clone())));
            }
        }
        Ok(report)
    }

    async fn survey(&self, tenant: &Tenant, report: &mut Checked) -> Result<Survey> {
        let mut survey = Survey::default();
        for path in self.root_paths(tenant).await? {
            report.roots += 1;
            let read = match names::parse_root(&path) {
                Some(_) => self.root_at(&path).await,
                None => Err(self.damaged(tenant, &path, None, "has no name of a root")),
            };
            match read {
                Ok(root) => {
                    let name = format!("{} {}", root.kind, root.name);
                    survey.states.entry(root.state).or_default().push(name);
                }
                Err(error) => report.take(error)?,
            }
        }
        report.states += survey.states.len() as u64;
        let states: Vec<StateId> = survey.states.keys().copied().collect();
        let mut reads = futures_util::stream::iter(states)
            .map(|state| async move { (state, self.stored_manifest(tenant, state).await) })
            .buffered(self.backend.limits.parallel);
        while let Some((state, read)) = reads.next().await {
            match read {
                Ok(manifest) => survey.add(tenant, state, manifest),
                Err(Error::Damaged(mut damage)) => {
                    damage.hits = whole(survey.states.get(&state));
                    report.add(*damage);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(survey)
    }

    /// A manifest as the backend has it; missing counts as damaged.
    async fn stored_manifest(&self, tenant: &Tenant, state: StateId) -> Result<Arc<Manifest>> {
        let path = names::manifest(tenant, state);
        let object = match self.backend.get(&path, manifest::OBJECT_MAX).await {
            Err(Error::NotFound { .. }) => {
                return Err(self.damaged(tenant, &path, None, "is not there"));
            }
            Err(Error::Bad(reason)) => return Err(self.damaged(tenant, &path, None, &reason)),
            other => other?,
        };
        let decoded = Manifest::decode(state, &object);
        decoded.map(Arc::new).map_err(|reason| self.damaged(tenant, &path, None, &reason))
    }

    async fn check_refs(&self, tenant: &Tenant, report: &mut Checked) -> Result<()> {
        for meta in self.backend.list(&names::below(&["refs", tenant.as_str()])).await? {
            if let Err(error) = self.reference_at_path(tenant, &meta.location).await {
                report.take(error)?;
            }
        }
        Ok(())
    }

    async fn check_lists(&self, tenant: &Tenant, report: &mut Checked) -> Result<()> {
        for meta in self.backend.list(&crate::gc::session::lists(tenant)).await? {
            let Some(number) = names::parse_sequence(&meta.location) else { continue };
            if let Err(error) = self.read_list(tenant, number).await {
                report.take(error)?;
            }
        }
        Ok(())
    }

    async fn check_chunks(
        &self,
        tenant: &Tenant,
        depth: Depth,
        survey: &Survey,
        report: &mut Checked,
        progress: &(impl Fn(CheckProgress) + Send + Sync),
    ) -> Result<()> {
        let listed = self.backend.list(&names::below(&["chunks", tenant.as_str()])).await?;
        let sizes: HashMap<String, u64> =
            listed.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect();
        let mut now = CheckProgress { done: 0, total: survey.chunks.len() as u64 };
        let paths: Vec<(String, ChunkEntry)> =
            survey.chunks.iter().map(|(path, (entry, _))| (path.clone(), entry.clone())).collect();
        let mut looks = futures_util::stream::iter(paths)
            .map(|(path, entry)| {
                let size = sizes.get(&path).copied();
                async move {
                    let looked = self.look(&path, &entry, size, depth).await;
                    (path, entry, looked)
                }
            })
            .buffer_unordered(self.backend.limits.parallel);
        while let Some((path, entry, looked)) = looks.next().await {
            report.chunks += 1;
            report.bytes += entry.object_bytes();
            if let Some(reason) = looked? {
                let users = survey.chunks.get(&path).map_or(&[][..], |(_, users)| users);
                report.add(Damage {
                    tenant: tenant.to_string(),
                    object: path,
                    chunk: Some(entry.id),
                    reason,
                    hits: survey.hits(users),
                });
            }
            now.done += 1;
            progress(now);
        }
        Ok(())
    }

    /// What is wrong with a chunk.
    async fn look(
        &self,
        path: &str,
        entry: &ChunkEntry,
        size: Option<u64>,
        depth: Depth,
    ) -> Result<Option<String>> {
        let wanted = entry.object_bytes();
        match size {
            None => return Ok(Some("is not there".into())),
            Some(size) if size != wanted => {
                return Ok(Some(format!("has {size} bytes of {wanted}")));
            }
            Some(_) if depth == Depth::Presence => return Ok(None),
            Some(_) => {}
        }
        match self.backend.get(&Path::from(path), OBJECT_MAX).await {
            Ok(object) => Ok(verify(entry, object).await?.err()),
            Err(Error::NotFound { .. }) => Ok(Some("is not there".into())),
            Err(Error::Bad(reason)) => Ok(Some(reason)),
            Err(error) => Err(error),
        }
    }

    /// Checks everything, and repairs what can be: from the cache, or from another store.
    pub async fn repair(
        &self,
        tenant: Option<&Tenant>,
        source: Option<&Store>,
    ) -> Result<Repaired> {
        let mut done = Repaired::default();
        // A manifest that is back names chunks that may be damaged, too.
        for _ in 0..3 {
            let mut entries = HashMap::new();
            let found = self.check_all(tenant, Depth::Content, &|_| (), &mut entries).await?;
            let fresh = found.damages.into_iter().filter(|damage| !done.knows(damage));
            let fresh: Vec<_> = fresh.collect();
            if fresh.is_empty() {
                break;
            }
            for damage in fresh {
                let entry = entries.get(&damage.object);
                match self.repair_one(&damage, entry, source).await? {
                    true => done.repaired.push(damage),
                    false => done.lost.push(damage),
                }
            }
        }
        Ok(done)
    }

    async fn repair_one(
        &self,
        damage: &Damage,
        entry: Option<&ChunkEntry>,
        source: Option<&Store>,
    ) -> Result<bool> {
        let tenant = Tenant::new(damage.tenant.clone())?;
        let path = Path::from(damage.object.as_str());
        let good = match entry {
            Some(entry) => self.good_chunk(&tenant, &path, entry, source).await?,
            None => self.good_object(&path, source).await?,
        };
        self.quarantine(&path).await?;
        match good {
            Some(object) => self.backend.put(&path, object).await?,
            None => {
                self.backend.delete(&path).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A good copy of a manifest, root or ref.
    async fn good_object(&self, path: &Path, source: Option<&Store>) -> Result<Option<Bytes>> {
        let good = |object: &Bytes| match names::parse_manifest(path) {
            Some((_, state)) => Manifest::decode(state, object).is_ok(),
            None => crate::roots::is_record(path, object),
        };
        if let Some(kept) = self.cache.get(path, 0..u64::MAX).await.filter(good) {
            return Ok(Some(kept));
        }
        let Some(source) = source else { return Ok(None) };
        match source.backend.get(path, manifest::OBJECT_MAX).await {
            Ok(object) => Ok(Some(object).filter(good)),
            Err(error) if error.is_loss() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A good copy of a chunk, packed as its manifests know it.
    async fn good_chunk(
        &self,
        tenant: &Tenant,
        path: &Path,
        entry: &ChunkEntry,
        source: Option<&Store>,
    ) -> Result<Option<Bytes>> {
        let kept = self.cache.get(path, 0..u64::MAX).await;
        if let Some(kept) = kept
            && verify(entry, kept.clone()).await?.is_ok()
        {
            return Ok(Some(kept));
        }
        let stores = [Some(self), source].into_iter().flatten();
        for store in stores {
            for generation in 0..GENERATIONS {
                let other = names::chunk(tenant, entry.id, generation);
                let object = match store.backend.get(&other, OBJECT_MAX).await {
                    Ok(object) => object,
                    Err(Error::NotFound { .. } | Error::Bad(_)) => continue,
                    Err(error) => return Err(error),
                };
                if let Some(good) = repacked(entry, object).await? {
                    return Ok(Some(good));
                }
            }
        }
        Ok(None)
    }

    /// Keeps what is left of an object.
    async fn quarantine(&self, path: &Path) -> Result<()> {
        let object = match self.backend.get(path, manifest::OBJECT_MAX).await {
            Err(Error::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        let number = crate::roots::unique();
        let kept = names::below(&["quarantine", &format!("{number}-{path}").replace('/', "-")]);
        self.backend.put_new(&kept, object).await
    }
}

impl Survey {
    fn add(&mut self, tenant: &Tenant, state: StateId, manifest: Arc<Manifest>) {
        for (number, chunk) in manifest.chunks.iter().enumerate() {
            let path = names::chunk(tenant, chunk.id, chunk.generation).to_string();
            let known = self.chunks.entry(path).or_insert_with(|| (chunk.clone(), Vec::new()));
            known.1.push((state, number));
        }
        self.manifests.insert(state, manifest);
    }

    /// Everything that uses a chunk.
    fn hits(&self, users: &[(StateId, usize)]) -> Vec<Hit> {
        let mut found = Vec::new();
        for (state, number) in users {
            let Some(manifest) = self.manifests.get(state) else { continue };
            for root in self.states.get(state).into_iter().flatten() {
                found.extend(hits(manifest, *number, root));
            }
        }
        found.truncate(REPORTED);
        found
    }
}

impl Repaired {
    fn knows(&self, damage: &Damage) -> bool {
        self.repaired.iter().chain(&self.lost).any(|known| known.object == damage.object)
    }
}

/// Whole states.
fn whole(roots: Option<&Vec<String>>) -> Vec<Hit> {
    let hit = |state: &String| Hit { state: state.clone(), blob: "*".into(), start: 0, length: 0 };
    roots.into_iter().flatten().map(hit).collect()
}

async fn verify(entry: &ChunkEntry, object: Bytes) -> Result<std::result::Result<(), String>> {
    let entry = entry.clone();
    blocking(move || Ok(decode_object(&entry, &object, |_, _| ()))).await
}

/// The object if it is good, or its content packed again if that is what the entry says.
async fn repacked(entry: &ChunkEntry, object: Bytes) -> Result<Option<Bytes>> {
    let entry = entry.clone();
    blocking(move || {
        if decode_object(&entry, &object, |_, _| ()).is_ok() {
            return Ok(Some(object));
        }
        let Ok(other) = parse_object(entry.id, &object) else { return Ok(None) };
        let mut content = Vec::with_capacity(usize::from(entry.pages) * PAGE);
        if decode_object(&other, &object, |_, frame| content.extend(frame.content)).is_err() {
            return Ok(None);
        }
        let hashes: Vec<_> = content.chunks(PAGE).map(page_hash).collect();
        let mut encoder = Encoder::new()
            .map_err(|source| Error::File { doing: "make a compressor".into(), source })?;
        let again = encoder.encode(&content, &hashes);
        Ok((again.entry.frames == entry.frames).then_some(again.object))
    })
    .await
}

/// What a tenant's states cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Roots.
    pub roots: u64,
    /// Different states.
    pub states: u64,
    /// Bytes of the files of all roots, holes included.
    pub logical_bytes: u64,
    /// Bytes of pages that are not zero, of all roots.
    pub content_bytes: u64,
    /// Bytes of the objects that the roots need, each counted once.
    pub stored_bytes: u64,
    /// Chunks among them.
    pub chunks: u64,
}

impl Store {
    /// Meters what a tenant's roots keep.
    pub async fn usage(&self, tenant: &Tenant) -> Result<Usage> {
        let mut usage = Usage::default();
        let mut states: BTreeMap<StateId, u64> = BTreeMap::new();
        for root in self.all_roots(tenant).await? {
            usage.roots += 1;
            *states.entry(root.state).or_default() += 1;
        }
        usage.states = states.len() as u64;
        let listed = self.backend.list(&names::below(&["manifests", tenant.as_str()])).await?;
        let of_roots = listed.iter().filter(|meta| {
            names::parse_manifest(&meta.location)
                .is_some_and(|(_, state)| states.contains_key(&state))
        });
        usage.stored_bytes = of_roots.map(|meta| meta.size).sum();
        let mut chunks: HashMap<(ChunkId, u32), u64> = HashMap::new();
        let mut reads = futures_util::stream::iter(states)
            .map(|(state, count)| async move {
                Ok::<_, Error>((self.manifest(tenant, state).await?, count))
            })
            .buffer_unordered(self.backend.limits.parallel);
        while let Some((manifest, count)) = reads.try_next().await? {
            let totals = manifest.totals();
            usage.logical_bytes += count * totals.logical_bytes;
            usage.content_bytes += count * totals.content_bytes;
            let entries = manifest.chunks.iter();
            chunks
                .extend(entries.map(|chunk| ((chunk.id, chunk.generation), chunk.object_bytes())));
        }
        usage.chunks = chunks.len() as u64;
        usage.stored_bytes += chunks.values().sum::<u64>();
        Ok(usage)
    }
}
