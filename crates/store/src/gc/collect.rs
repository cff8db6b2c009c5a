//! The collector. [`crate::gc`] says why it is safe.

use std::collections::HashSet;
use std::path::Path as FilePath;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::session::{Condemned, list, lists};
use crate::Store;
use crate::error::{Error, Result};
use crate::id::{StateId, Tenant};
use crate::names;
use crate::put::blocking;
use crate::roots::record;

/// Objects on one list, at most. What is left over comes on the next one.
const LIST_OBJECTS: usize = 100_000;

/// How to collect.
#[derive(Debug, Clone)]
pub struct Collect {
    /// How old an object must be to be condemned, and how long a list waits for its execution.
    pub grace: Duration,
    /// A collector that is silent for so long is dead.
    pub takeover: Duration,
    /// Only tell what would be done.
    pub dry_run: bool,
}

impl Default for Collect {
    fn default() -> Self {
        let hour = Duration::from_secs(3600);
        Self { grace: hour, takeover: hour, dry_run: false }
    }
}

/// What was found and done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects that stay.
    pub kept_objects: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Objects that were condemned now: a later run deletes them.
    pub condemned_objects: u64,
    /// Their bytes.
    pub condemned_bytes: u64,
    /// Objects that were condemned before and wait for the grace time or for another collector.
    pub waiting_objects: u64,
    /// Objects that were deleted.
    pub deleted_objects: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Files that killed writers left half written in a local directory, and that were removed.
    pub leftovers: u64,
}

/// What must stay.
struct Live {
    manifests: HashSet<StateId>,
    /// Paths of chunks.
    chunks: HashSet<String>,
}

impl Live {
    fn has(&self, path: &Path) -> bool {
        match names::parse_manifest(path) {
            Some((_, state)) => self.manifests.contains(&state),
            None => self.chunks.contains(path.as_ref()),
        }
    }
}

/// A list that waits.
struct Open {
    number: u64,
    published_ms: i64,
    objects: Vec<Path>,
}

impl Store {
    /// Deletes what was condemned long enough ago, and condemns what nothing reaches now. For one tenant, or for
    /// all.
    pub async fn collect(&self, tenant: Option<&Tenant>, how: &Collect) -> Result<Collected> {
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.tenants().await?,
        };
        let mut report = Collected::default();
        for tenant in tenants {
            self.collect_tenant(&tenant, how, &mut report).await?;
        }
        if let (Some(directory), false) = (self.backend.directory.clone(), how.dry_run) {
            let grace = how.grace;
            report.leftovers = blocking(move || Ok(sweep_leftovers(&directory, grace))).await?;
        }
        Ok(report)
    }

    async fn collect_tenant(
        &self,
        tenant: &Tenant,
        how: &Collect,
        report: &mut Collected,
    ) -> Result<()> {
        let now = self.backend_now(tenant).await?;
        let (mut open, newest) = self.open_lists(tenant).await?;
        let mut waiting = Vec::new();
        for list in std::mem::take(&mut open) {
            let ripe = now - list.published_ms >= millis(how.grace);
            if !ripe || how.dry_run || !self.claim(tenant, list.number, now, how).await? {
                report.waiting_objects += list.objects.len() as u64;
                waiting.push(list);
                continue;
            }
            let began = Instant::now();
            let (others, _) = self.open_lists(tenant).await?;
            let live = self.mark(tenant, &others).await?;
            self.execute(tenant, &list, &live, began + how.takeover / 2, report).await?;
        }
        self.condemn(tenant, newest, &waiting, now, how, report).await?;
        self.forget_lists(tenant, how).await
    }

    /// The backend's clock, in milliseconds.
    async fn backend_now(&self, tenant: &Tenant) -> Result<i64> {
        let path = names::below(&["gc", tenant.as_str(), "clock"]);
        self.backend.put(&path, Vec::new()).await?;
        let meta = self.backend.head(&path).await?;
        let meta = meta.ok_or_else(|| Error::NotFound { what: path.to_string() })?;
        Ok(meta.last_modified.timestamp_millis())
    }

    /// Lists that are not executed, and the number of the newest of all.
    async fn open_lists(&self, tenant: &Tenant) -> Result<(Vec<Open>, u64)> {
        let mut open = Vec::new();
        let mut newest = 0;
        for meta in self.backend.list(&lists(tenant)).await? {
            let Some(number) = names::parse_sequence(&meta.location) else { continue };
            newest = newest.max(number);
            if let Some(condemned) = self.read_list(tenant, number).await? {
                let published_ms = meta.last_modified.timestamp_millis();
                let objects = condemned.objects.iter().filter_map(|path| Path::parse(path).ok());
                open.push(Open { number, published_ms, objects: objects.collect() });
            }
        }
        open.sort_by_key(|list| list.number);
        Ok((open, newest))
    }

    /// Takes a list for oneself. False if somebody else has it.
    async fn claim(&self, tenant: &Tenant, number: u64, now: i64, how: &Collect) -> Result<bool> {
        let below = claims(tenant, number);
        let claims = self.backend.list(&below).await?;
        let newest = claims.iter().max_by_key(|meta| names::parse_sequence(&meta.location));
        let next = match newest {
            Some(meta) if now - meta.last_modified.timestamp_millis() < millis(how.takeover) => {
                return Ok(false);
            }
            Some(meta) => names::parse_sequence(&meta.location).map_or(1, |last| last + 1),
            None => 1,
        };
        match self.backend.put_new(&below.join(format!("{next:020}")), Vec::new()).await {
            Ok(()) => Ok(true),
            // Perhaps even ours, after a lost answer; then it waits until the claim is old.
            Err(Error::Exists { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Everything that roots reach, and what manifests reach that are on no open list. A root or manifest that
    /// cannot be read ends the collection: nobody knows what it needs.
    async fn mark(&self, tenant: &Tenant, open: &[Open]) -> Result<Live> {
        let condemned: HashSet<&Path> = open.iter().flat_map(|list| &list.objects).collect();
        let mut manifests: HashSet<StateId> =
            self.all_roots(tenant).await?.iter().map(|root| root.state).collect();
        let rooted = manifests.clone();
        let listed = self.backend.list(&names::below(&["manifests", tenant.as_str()])).await?;
        let others = listed.iter().filter(|meta| !condemned.contains(&meta.location));
        manifests.extend(others.filter_map(|meta| Some(names::parse_manifest(&meta.location)?.1)));
        let chunks = self.chunks_reached(tenant, &manifests, &rooted).await?;
        Ok(Live { manifests, chunks })
    }

    async fn chunks_reached(
        &self,
        tenant: &Tenant,
        manifests: &HashSet<StateId>,
        rooted: &HashSet<StateId>,
    ) -> Result<HashSet<String>> {
        let mut chunks = HashSet::new();
        let mut reads = futures_util::stream::iter(manifests.clone())
            .map(|state| async move { (state, self.manifest(tenant, state).await) })
            .buffer_unordered(self.backend.limits.parallel);
        while let Some((state, read)) = reads.next().await {
            let manifest = match read {
                Ok(manifest) => manifest,
                // What no root needs may be damaged or go.
                Err(error) if error.is_loss() && !rooted.contains(&state) => continue,
                Err(error) => return Err(error),
            };
            for chunk in &manifest.chunks {
                chunks.insert(names::chunk(tenant, chunk.id, chunk.generation).to_string());
            }
        }
        Ok(chunks)
    }

    async fn execute(
        &self,
        tenant: &Tenant,
        list: &Open,
        live: &Live,
        until: Instant,
        report: &mut Collected,
    ) -> Result<()> {
        let doomed = list.objects.iter().filter(|path| !live.has(path)).cloned();
        let (manifests, chunks): (Vec<Path>, Vec<Path>) =
            doomed.partition(|path| names::parse_manifest(path).is_some());
        for paths in [manifests, chunks] {
            let mut deletions = futures_util::stream::iter(paths)
                .map(|path| async move { self.delete_in_time(&path, until).await })
                .buffer_unordered(self.backend.limits.parallel);
            while let Some(bytes) = deletions.try_next().await? {
                report.deleted_objects += u64::from(bytes.is_some());
                report.deleted_bytes += bytes.unwrap_or(0);
            }
        }
        let path = super::session::list(tenant, list.number);
        let done = record(&path, &Condemned { objects: Vec::new() })?;
        self.backend.put(&path, done).await?;
        for meta in self.backend.list(&claims(tenant, list.number)).await? {
            self.backend.delete(&meta.location).await?;
        }
        Ok(())
    }

    /// Deletes an object and says its size; none if it was gone.
    async fn delete_in_time(&self, path: &Path, until: Instant) -> Result<Option<u64>> {
        let meta = self.backend.head(path).await?;
        if Instant::now() >= until {
            return Err(Error::Unavailable {
                doing: "collecting".into(),
                reason: "it took so long that another collector may have begun".into(),
            });
        }
        self.backend.delete(path).await?;
        self.cache.remove(path).await;
        Ok(meta.map(|meta| meta.size))
    }

    async fn condemn(
        &self,
        tenant: &Tenant,
        newest: u64,
        waiting: &[Open],
        now: i64,
        how: &Collect,
        report: &mut Collected,
    ) -> Result<()> {
        let mut objects = self.backend.list(&names::below(&["manifests", tenant.as_str()])).await?;
        objects.extend(self.backend.list(&names::below(&["chunks", tenant.as_str()])).await?);
        let already: HashSet<&Path> = waiting.iter().flat_map(|list| &list.objects).collect();
        let rooted: HashSet<StateId> =
            self.all_roots(tenant).await?.iter().map(|root| root.state).collect();
        let old =
            |meta: &ObjectMeta| now - meta.last_modified.timestamp_millis() >= millis(how.grace);
        let is_unrooted = |meta: &&ObjectMeta| {
            names::parse_manifest(&meta.location).is_some_and(|(_, state)| !rooted.contains(&state))
        };
        // First manifests: what they alone reach goes with them.
        let mut doomed: Vec<&ObjectMeta> = objects
            .iter()
            .filter(|meta| !already.contains(&meta.location))
            .filter(|meta| old(meta) && is_unrooted(meta))
            .collect();
        let gone: HashSet<&Path> =
            doomed.iter().map(|meta| &meta.location).chain(already.iter().copied()).collect();
        let staying = objects.iter().filter(|meta| !gone.contains(&meta.location));
        let mut manifests = rooted.clone();
        manifests.extend(staying.filter_map(|meta| Some(names::parse_manifest(&meta.location)?.1)));
        let reached = self.chunks_reached(tenant, &manifests, &rooted).await?;
        let unreached = objects.iter().filter(|meta| {
            let chunk = names::parse_chunk(&meta.location).is_some();
            chunk && old(meta) && !reached.contains(meta.location.as_ref())
        });
        doomed.extend(unreached.filter(|meta| !already.contains(&meta.location)));
        doomed.truncate(LIST_OBJECTS);

        report.condemned_objects += doomed.len() as u64;
        report.condemned_bytes += doomed.iter().map(|meta| meta.size).sum::<u64>();
        let leaving: HashSet<&Path> =
            doomed.iter().map(|meta| &meta.location).chain(already.iter().copied()).collect();
        for meta in objects.iter().filter(|meta| !leaving.contains(&meta.location)) {
            report.kept_objects += 1;
            report.kept_bytes += meta.size;
        }
        if doomed.is_empty() || how.dry_run {
            return Ok(());
        }
        let path = list(tenant, newest + 1);
        let objects = doomed.iter().map(|meta| meta.location.to_string()).collect();
        match self.backend.put_new(&path, record(&path, &Condemned { objects })?).await {
            // Another collector was faster; its list will do.
            Err(Error::Exists { .. }) => Ok(()),
            other => other,
        }
    }

    /// Removes emptied lists but the newest.
    async fn forget_lists(&self, tenant: &Tenant, how: &Collect) -> Result<()> {
        if how.dry_run {
            return Ok(());
        }
        let mut listed = self.backend.list(&lists(tenant)).await?;
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        listed.pop();
        for meta in listed {
            let Some(number) = names::parse_sequence(&meta.location) else { continue };
            if self.read_list(tenant, number).await?.is_none() {
                self.backend.delete(&meta.location).await?;
            }
        }
        Ok(())
    }
}

fn claims(tenant: &Tenant, number: u64) -> Path {
    names::below(&["gc", tenant.as_str(), "claims", &format!("{number:020}")])
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Removes files that the local backend stages before it names them, and that nobody finished. Their names end in
/// `#` and a number; no object's name does.
fn sweep_leftovers(directory: &FilePath, grace: Duration) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let mut removed = 0;
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            removed += sweep_leftovers(&entry.path(), grace);
            continue;
        }
        let name = entry.file_name();
        let staged = name.to_str().and_then(|name| name.rsplit_once('#'));
        let staged = staged.is_some_and(|(_, number)| number.parse::<u64>().is_ok());
        let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if staged && age.is_some_and(|age| age >= grace) {
            removed += u64::from(std::fs::remove_file(entry.path()).is_ok());
        }
    }
    removed
}
