//! What differs between two sandboxes, checkpoints or templates.
//!
//! ```text
//!  each side: a still fork ─▶ 1. its writable layer ──▶ where the layers differ: places
//!                             2. a look at the places ─▶ what differs, or is undecided
//!                             3. digests of the undecided, 4. patches, processes, sockets
//! ```
//!
//! The image below the layers is never walked, and only what may have changed since the sides parted is read: see
//! [`rules`] for why nothing is missed. If the sides lie on different images, everything below
//! the paths is looked at.
//!
//! A side is looked at in a fork in which no process but the agent runs ([`Identity::still`]). The database does not
//! know it, so whatever happens, it ends: with the operation, or at the next start of the node.

mod patch;
mod rules;
mod streams;
mod variables;

use std::time::{Duration, Instant};

use ramet_proto::agent::{Identity, Name, Place, Seen, path_order, path_within};
use ramet_proto::api::{
    Diff, DiffAspect, DiffCost, DiffFile, DiffFileKind, DiffKind, DiffRequest, DiffState, NoPatch,
};
use tokio::time::timeout;

use self::rules::{Reach, Trust, Verdict};
use self::streams::{Guest, next};
use super::durable::commits::Commit;
use super::error::Error;
use super::life::machine_of;
use super::line::Line;
use super::record::{Checkpoint, Record};
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::{now_ms, since_us};
use crate::host::MachineId;

/// Where is looked when nothing is said.
const PATHS: [&str; 4] = ["/home", "/root", "/tmp", "/workspace"];
/// Most paths.
const PATHS_MAX: usize = 64;
/// Most differences that are told.
const FILES_MAX: usize = 20_000;
/// Most places that are looked at.
const PLACES_MAX: usize = 200_000;
/// Most files whose content is compared.
const UNDECIDED_MAX: usize = 100_000;
/// Places or files of one request to an agent, and bytes of their paths: they fit into a frame.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 24 << 10;
/// Time for all digests.
const DIGEST_TIME: Duration = Duration::from_secs(120);
/// Time for everything.
const TIME: Duration = Duration::from_secs(300);

/// Before the name of a commit.
const COMMIT: &str = "commit:";

/// One side of a comparison.
struct Side {
    id: String,
    of: Of,
    line: Line,
    /// Its sandbox, which must not lose the machine meanwhile.
    sandbox: Option<String>,
}

/// What a side is looked at in.
enum Of {
    Machine(MachineId),
    Checkpoint(Box<Checkpoint>),
    /// A sandbox that may be in the store.
    Sandbox(Box<Record>),
    Commit(Box<Commit>),
}

/// A machine that is looked at and then gone.
struct Still {
    service: Service,
    machine: Option<MachineId>,
}

impl Still {
    async fn end(mut self) {
        if let Some(machine) = self.machine.take() {
            self.service.kill(machine).await;
        }
    }
}

impl Drop for Still {
    /// When the operation broke off.
    fn drop(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        let service = self.service.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let work = async move { service.kill(machine).await };
            drop(self.service.tasks.spawn_on(work, &runtime));
        }
    }
}

/// What a comparison of files found.
#[derive(Default)]
struct Found {
    files: Vec<(Name, DiffFile)>,
    truncated: bool,
    cost: DiffCost,
}

impl Service {
    /// What differs between two sides.
    pub async fn diff(
        &self,
        who: &Principal,
        key: &str,
        request: DiffRequest,
    ) -> Result<Diff, Error> {
        let paths = checked_paths(request.paths)?;
        let before = self.side(who, &request.against).await?;
        let after = self.side(who, key).await?;
        let target = format!("{} {}", after.id, before.id);
        let (service, principal) = (self.clone(), who.clone());
        let (old, new, wanted) = (request.against, key.to_owned(), request.variables);
        self.operate(who, "diff", &target, async move {
            let began = Instant::now();
            let work = service.diff_one(&principal, [&old, &new], paths, request.content);
            let mut diff = timeout(TIME, work).await.map_err(|_| too_long())??;
            match service.compare_variables(&principal, (&before, &after), wanted).await {
                Some(Ok(variables)) => diff.variables = Some(variables),
                Some(Err(reason)) => diff.no_variables = Some(reason),
                None => {}
            }
            diff.cost.total_us = since_us(began);
            Ok(diff)
        })
        .await
    }

    async fn diff_one(
        &self,
        who: &Principal,
        keys: [&str; 2],
        paths: Vec<String>,
        content: bool,
    ) -> Result<Diff, Error> {
        let _admitted = self.admit(2 * self.settings.sandbox_mib).await?;
        let (one, other) = tokio::join!(self.still(who, keys[0]), self.still(who, keys[1]));
        // Both are awaited before either error is told, so that what was made is ended.
        let ((before, old), (after, new)) = (one?, other?);
        let guest = |still: &Still| {
            let machine = still.machine.clone().unwrap_or_else(|| MachineId(String::new()));
            Guest::new(self.host.clone(), machine)
        };
        let guests = (guest(&old), guest(&new));
        let found = compare(&guests, (&before, &after), &paths, content).await;
        tokio::join!(old.end(), new.end());
        let mut diff = found?;
        diff.paths = paths;
        Ok(diff)
    }

    /// What a key means.
    async fn side(&self, who: &Principal, key: &str) -> Result<Side, Error> {
        if key.starts_with("cm-") || key.starts_with(COMMIT) {
            let commit = self.find_commit(who, key.strip_prefix(COMMIT).unwrap_or(key)).await?;
            let (id, line) = (commit.id.clone(), commit.line.clone());
            return Ok(Side { id, of: Of::Commit(Box::new(commit)), line, sandbox: None });
        }
        if key.starts_with("tmpl-") {
            let (machine, line) = self.template_found(who, key).ok_or_else(|| Error::NotFound {
                what: "template that is warm",
                key: key.to_owned(),
            })?;
            return Ok(Side { id: key.to_owned(), of: Of::Machine(machine), line, sandbox: None });
        }
        let registry = self.registry();
        let checkpoint = match key.split_once('@') {
            Some((sandbox, checkpoint)) => {
                let id = &registry.find(who, sandbox)?.id;
                Some(registry.checkpoint(id, checkpoint)?)
            }
            None if key.starts_with("cp-") => Some(registry.checkpoint_of_anyone(who, key)?),
            None => None,
        };
        if let Some(found) = checkpoint {
            let (id, line, sandbox) = (found.id.clone(), found.line.clone(), found.sandbox.clone());
            let of = Of::Checkpoint(Box::new(found.clone()));
            return Ok(Side { id, of, line, sandbox: Some(sandbox) });
        }
        let record = registry.find(who, key)?;
        if !record.is_stored() {
            machine_of(record, "be compared")?;
        }
        let (sandbox, line) = (Some(record.id.clone()), record.line.clone());
        let of = Of::Sandbox(Box::new(record.clone()));
        Ok(Side { id: record.id.clone(), of, line, sandbox })
    }

    /// A copy of a side in which nothing runs.
    async fn still(&self, who: &Principal, key: &str) -> Result<(Side, Still), Error> {
        let mut side = self.side(who, key).await?;
        let _share = match &side.sandbox {
            Some(sandbox) => Some(self.share(sandbox).await?),
            None => None,
        };
        // Looked at again: a rewind may have given it another machine meanwhile.
        side = self.side(who, key).await?;
        side.line = side.line.branch(now_ms())?;
        side.sandbox.iter().for_each(|sandbox| self.registry().touch(sandbox));
        let identity = Identity {
            hostname: "diff".to_owned(),
            instance: format!("diff-{}", crate::random::hex(8)?),
            still: true,
            ..Identity::default()
        };
        let (machine, temporary) = match &side.of {
            Of::Machine(machine) => (machine.clone(), None),
            Of::Checkpoint(checkpoint) => (self.checkpoint_machine(checkpoint).await?, None),
            Of::Sandbox(record) => (self.present(record, "be compared").await?, None),
            Of::Commit(commit) => {
                let machine = self.commit_machine(commit).await?;
                let service = self.clone();
                (machine.clone(), Some(Still { service, machine: Some(machine) }))
            }
        };
        let made = self.fork_machine(machine, vec![identity]).await;
        if let Some(temporary) = temporary {
            temporary.end().await;
        }
        let born = made?.only()?;
        Ok((side, Still { service: self.clone(), machine: Some(born.machine) }))
    }
}

fn too_long() -> Error {
    Error::TooMany(format!("the comparison took more than {TIME:?}; compare less"))
}

/// Everything about two sides.
async fn compare(
    guests: &(Guest, Guest),
    sides: (&Side, &Side),
    paths: &[String],
    content: bool,
) -> Result<Diff, Error> {
    let (before, after) = sides;
    let parted_at_ms = before.line.parted(&after.line, now_ms());
    let began = before.line.began_at_ms().max(after.line.began_at_ms());
    let mut found = compare_files(guests, paths, Trust::new(began, parted_at_ms)).await?;
    if content {
        add_patches(guests, &mut found.files).await?;
    }
    let (old, new) = guests;
    let (old_processes, new_processes) = tokio::try_join!(old.processes(), new.processes())?;
    let (old_listeners, new_listeners) = tokio::try_join!(old.listeners(), new.listeners())?;
    Ok(Diff {
        id: after.id.clone(),
        against: before.id.clone(),
        paths: Vec::new(),
        parted_at_ms,
        files: found.files.into_iter().map(|(_, file)| file).collect(),
        truncated: found.truncated,
        processes: rules::processes(&old_processes, &new_processes),
        listeners: rules::listeners(&old_listeners, &new_listeners),
        variables: None,
        no_variables: None,
        cost: found.cost,
    })
}

async fn compare_files(
    guests: &(Guest, Guest),
    paths: &[String],
    trust: Trust,
) -> Result<Found, Error> {
    let mut found = Found::default();
    let places = find_places(guests, paths, trust, &mut found).await?;
    let mut undecided: Vec<(Name, DiffFile)> = Vec::new();
    for batch in batches(&places, |place| place.path.bytes().len()) {
        look(guests, batch, &mut found, &mut undecided).await?;
        if found.truncated {
            break;
        }
    }
    decide(guests, undecided, &mut found).await?;
    found.files.sort_by(|(a, _), (b, _)| path_order(a.bytes(), b.bytes()));
    found.truncated |= found.files.len() > FILES_MAX;
    found.files.truncate(FILES_MAX);
    Ok(found)
}

/// Where the sides may differ, in order, none below another that is deep.
async fn find_places(
    guests: &(Guest, Guest),
    paths: &[String],
    trust: Trust,
    found: &mut Found,
) -> Result<Vec<Place>, Error> {
    let ((old_base, mut old), (new_base, mut new)) =
        tokio::try_join!(guests.0.layer(paths), guests.1.layer(paths))?;
    if old_base != new_base {
        let deep = |path: &String| Place { path: Name::new(path.as_bytes()), deep: true };
        return Ok(paths.iter().map(deep).collect());
    }
    let mut places: Vec<Place> = Vec::new();
    while let Some((a, b)) = next(&mut old, &mut new).await? {
        let Some(path) = a.as_ref().or(b.as_ref()).map(|entry| entry.path.clone()) else {
            continue;
        };
        let covered = |last: &Place| last.deep && path_within(path.bytes(), last.path.bytes());
        if places.last().is_some_and(covered) {
            continue;
        }
        if let Some(reach) = rules::place(a.as_ref(), b.as_ref(), trust) {
            places.push(Place { path, deep: reach == Reach::Deep });
        }
        if places.len() >= PLACES_MAX {
            found.truncated = true;
            break;
        }
    }
    found.cost.layered = old.count() + new.count();
    Ok(places)
}

/// Looks at places of both sides.
async fn look(
    guests: &(Guest, Guest),
    places: &[Place],
    found: &mut Found,
    undecided: &mut Vec<(Name, DiffFile)>,
) -> Result<(), Error> {
    let (mut old, mut new) = tokio::try_join!(guests.0.look(places), guests.1.look(places))?;
    while let Some((before, after)) = next::<Seen>(&mut old, &mut new).await? {
        let Some(path) = before.as_ref().or(after.as_ref()).map(|seen| seen.path.clone()) else {
            continue;
        };
        match rules::compare(before.as_ref(), after.as_ref()) {
            Verdict::Same => {}
            Verdict::Differs(file) => found.files.push((path, file)),
            Verdict::Undecided(file) => undecided.push((path, file)),
        }
        if found.files.len() >= FILES_MAX || undecided.len() >= UNDECIDED_MAX {
            found.truncated = true;
            break;
        }
    }
    found.cost.looked_at += old.count() + new.count();
    Ok(())
}

/// Compares what files hold.
async fn decide(
    guests: &(Guest, Guest),
    undecided: Vec<(Name, DiffFile)>,
    found: &mut Found,
) -> Result<(), Error> {
    let end = Instant::now() + DIGEST_TIME;
    found.cost.digested = undecided.len() as u64;
    for batch in batches(&undecided, |(path, _)| path.bytes().len()) {
        let paths: Vec<Name> = batch.iter().map(|(path, _)| path.clone()).collect();
        let left = end.saturating_duration_since(Instant::now());
        let (old, new) =
            tokio::try_join!(guests.0.digests(&paths, left), guests.1.digests(&paths, left))?;
        for (((path, file), old), new) in batch.iter().cloned().zip(old).zip(new) {
            let decided = rules::decide(file, old.as_deref(), new.as_deref());
            found.files.extend(decided.map(|file| (path, file)));
        }
    }
    Ok(())
}

/// Adds what changed within text files.
async fn add_patches(guests: &(Guest, Guest), files: &mut [(Name, DiffFile)]) -> Result<(), Error> {
    let mut total = 0;
    for (path, file) in files.iter_mut().filter(|(_, file)| is_patched(file)) {
        match patch_of(guests, path, file, total).await? {
            Ok(patch) => {
                total += patch.len();
                file.patch = Some(patch);
            }
            Err(reason) => file.no_patch = Some(reason),
        }
    }
    Ok(())
}

/// Whether a patch could say what changed.
fn is_patched(file: &DiffFile) -> bool {
    match file.change {
        DiffKind::Changed => file.differs.contains(&DiffAspect::Content),
        _ => [&file.before, &file.after].into_iter().flatten().any(is_file),
    }
}

fn is_file(state: &DiffState) -> bool {
    state.kind == DiffFileKind::File
}

async fn patch_of(
    guests: &(Guest, Guest),
    path: &Name,
    file: &DiffFile,
    total: usize,
) -> Result<Result<String, NoPatch>, Error> {
    if total >= patch::TOTAL_MAX {
        return Ok(Err(NoPatch::TooMany));
    }
    let Name::Text(path) = path else { return Ok(Err(NoPatch::Unreadable)) };
    let mut contents = [None, None];
    let sides = [(&guests.0, &file.before), (&guests.1, &file.after)];
    for (content, (guest, state)) in contents.iter_mut().zip(sides) {
        let Some(state) = state else { continue };
        if state.size > patch::FILE_MAX as u64 {
            return Ok(Err(NoPatch::TooLarge));
        }
        match guest.read(path, patch::FILE_MAX).await {
            Ok(Some(bytes)) => *content = Some(bytes),
            Ok(None) => return Ok(Err(NoPatch::TooLarge)),
            Err(Error::Guest(crate::host::agent::Error::Failure(_))) => {
                return Ok(Err(NoPatch::Unreadable));
            }
            Err(error) => return Err(error),
        }
    }
    let (path, [before, after]) = (path.clone(), contents);
    let made = tokio::task::spawn_blocking(move || {
        patch::patch(&path, before.as_deref(), after.as_deref())
    });
    let made = made.await.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(made.and_then(|patch| {
        let fits = total + patch.len() <= patch::TOTAL_MAX;
        if fits { Ok(patch) } else { Err(NoPatch::TooMany) }
    }))
}

/// Parts of a list that fit into one request each.
fn batches<T>(list: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (index, item) in list.iter().enumerate() {
        if index - first >= BATCH || (size + bytes(item) > BATCH_BYTES && index > first) {
            batches.push(&list[first..index]);
            (first, size) = (index, 0);
        }
        size += bytes(item);
    }
    if first < list.len() {
        batches.push(&list[first..]);
    }
    batches
}

/// The paths in their shortest form and in order, none below another.
fn checked_paths(paths: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    let paths = paths.unwrap_or_else(|| PATHS.map(str::to_owned).to_vec());
    if paths.is_empty() || paths.len() > PATHS_MAX {
        return Err(Error::Bad(format!("paths: 1 to {PATHS_MAX}, not {}", paths.len())));
    }
    let mut shortest = Vec::with_capacity(paths.len());
    for path in &paths {
        check::path("paths", path)?;
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| matches!(*part, "." | "..")) {
            return Err(Error::Bad(format!("paths: {path:?} has . or .. in it")));
        }
        shortest.push(format!("/{}", parts.join("/")));
    }
    shortest.sort_by(|a, b| path_order(a.as_bytes(), b.as_bytes()));
    let mut kept: Vec<String> = Vec::new();
    for path in shortest {
        if !kept.last().is_some_and(|last| path_within(path.as_bytes(), last.as_bytes())) {
            kept.push(path);
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain_or_refused() {
        let plain = |paths: &[&str]| {
            checked_paths(Some(paths.iter().map(|&path| path.to_owned()).collect()))
        };
        assert_eq!(plain(&["/b//c/", "/a", "/a-b", "/a/x", "/a"]).unwrap(), ["/a", "/a-b", "/b/c"]);
        assert_eq!(plain(&["/home", "/"]).unwrap(), ["/"]);
        assert_eq!(checked_paths(None).unwrap(), PATHS);
        for bad in [&["relative"][..], &[""], &["/a/../b"], &["/a\0"], &[], &["/x"; 65]] {
            assert!(plain(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn requests_fit_into_frames() {
        let long: Vec<String> = (0..3000).map(|n| "x".repeat(n % 200)).collect();
        let parts = batches(&long, String::len);
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 3000);
        assert!(parts.iter().all(|part| part.len() <= BATCH));
        assert!(
            parts.iter().all(|part| part.iter().map(String::len).sum::<usize>() <= BATCH_BYTES)
        );
        let huge = vec!["x".repeat(2 * BATCH_BYTES), "y".to_owned()];
        assert_eq!(batches(&huge, String::len).len(), 2);
        assert!(batches(&[], String::len).is_empty());
    }
}
