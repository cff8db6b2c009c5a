//! What differs: the rules, without any I/O.
//!
//! [`place`] looks at the writable layers of both sides and says where the sides may differ; a superset is
//! right, anything less is a bug. [`compare`] looks at files as processes see them, and says what
//! does differ, or that the content must be compared.

use ramet_proto::agent::{Layered, LayeredKind, Listener, Process, Seen, SeenKind};
use ramet_proto::api::{
    DiffAspect, DiffFile, DiffFileKind, DiffKind, DiffListener, DiffProcess, DiffState,
};

/// How far a guest's clock may be off, at least.
const MARGIN_MS: u64 = 60_000;
/// And for how much of its age: more than clocks drift, and more than a host's is corrected by.
const DRIFT_PARTS: u64 = 1000;
/// How long before it was known a machine may have begun to boot.
const BOOT_MS: u64 = 600_000;

/// Whether two entries of layers that look the same are the same: only if both were last changed when the sides were
/// still one. A clock of the guest that was set to before its machine was booted, or to the future, is
/// not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trust {
    from_ns: i64,
    until_ns: i64,
}

impl Trust {
    /// Nothing is the same without a look.
    pub const NONE: Self = Self { from_ns: 1, until_ns: 0 };

    /// For sides that parted then, of a line that began then.
    pub fn new(began_at_ms: u64, parted_at_ms: Option<u64>) -> Self {
        let Some(parted) = parted_at_ms else { return Self::NONE };
        let age = parted.saturating_sub(began_at_ms);
        let ns = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        Self {
            from_ns: ns(began_at_ms.saturating_sub(BOOT_MS)),
            until_ns: ns(parted.saturating_sub(MARGIN_MS + age / DRIFT_PARTS)),
        }
    }

    fn covers(self, changed_ns: i64) -> bool {
        (self.from_ns..self.until_ns).contains(&changed_ns)
    }
}

/// Where to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// At the path itself; what is below has entries of its own.
    Here,
    /// At everything below, too.
    Deep,
}

/// Where to look, given what the layers of both sides hold at a path (not both nothing).
pub fn place(a: Option<&Layered>, b: Option<&Layered>, trust: Trust) -> Option<Reach> {
    use LayeredKind::{Directory, Elsewhere, Opaque, Removed};
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        // Only the image shows through on the other side: its entries are met one by one.
        (Some(one), None) | (None, Some(one)) if one.kind == Directory => return Some(Reach::Here),
        // The other side may have a directory there that the layers do not tell of.
        _ => return Some(Reach::Deep),
    };
    let same_owner = (a.mode, a.uid, a.gid) == (b.mode, b.uid, b.gid);
    match (a.kind, b.kind) {
        (Elsewhere, _) | (_, Elsewhere) => Some(Reach::Deep),
        (Directory, Directory) | (Opaque, Opaque) => (!same_owner).then_some(Reach::Here),
        (Removed, Removed) => None,
        (Directory | Opaque | Removed, _) | (_, Directory | Opaque | Removed) => Some(Reach::Deep),
        _ if a == b && trust.covers(a.changed_ns) => None,
        _ => Some(Reach::Here),
    }
}

/// What came of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing differs.
    Same,
    /// This differs.
    Differs(DiffFile),
    /// What they hold decides; so far, this differs, which may be nothing.
    Undecided(DiffFile),
}

/// Compares a file of both sides (not both nothing).
pub fn compare(before: Option<&Seen>, after: Option<&Seen>) -> Verdict {
    let mut file = DiffFile {
        path: before.or(after).map(|seen| seen.path.shown()).unwrap_or_default(),
        change: DiffKind::Changed,
        differs: Vec::new(),
        assumed: false,
        before: before.map(state),
        after: after.map(state),
        patch: None,
        no_patch: None,
    };
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, None) => return Verdict::Same,
        (None, Some(_)) => {
            file.change = DiffKind::Added;
            return Verdict::Differs(file);
        }
        (Some(_), None) => {
            file.change = DiffKind::Removed;
            return Verdict::Differs(file);
        }
    };
    let same_kind = before.kind == after.kind;
    let regular = same_kind && before.kind == SeenKind::File;
    let aspects = [
        (DiffAspect::Type, !same_kind),
        (DiffAspect::Content, regular && before.size != after.size),
        // A symlink's permission bits mean nothing.
        (
            DiffAspect::Mode,
            same_kind && before.kind != SeenKind::Symlink && before.mode != after.mode,
        ),
        (DiffAspect::Owner, (before.uid, before.gid) != (after.uid, after.gid)),
        (DiffAspect::Target, same_kind && before.target != after.target),
    ];
    file.differs =
        aspects.into_iter().filter(|(_, differs)| *differs).map(|(aspect, _)| aspect).collect();
    match () {
        () if regular && before.size == after.size && before.size > 0 => Verdict::Undecided(file),
        () if file.differs.is_empty() => Verdict::Same,
        () => Verdict::Differs(file),
    }
}

/// Decides what was undecided, by the digests of both sides.
pub fn decide(mut file: DiffFile, before: Option<&str>, after: Option<&str>) -> Option<DiffFile> {
    let assumed = before.is_none() || after.is_none();
    if assumed || before != after {
        let place = usize::from(file.differs.first() == Some(&DiffAspect::Type));
        file.differs.insert(place, DiffAspect::Content);
        file.assumed = assumed;
    }
    (!file.differs.is_empty()).then_some(file)
}

fn state(seen: &Seen) -> DiffState {
    DiffState {
        kind: match seen.kind {
            SeenKind::File => DiffFileKind::File,
            SeenKind::Directory => DiffFileKind::Directory,
            SeenKind::Symlink => DiffFileKind::Symlink,
            SeenKind::Fifo => DiffFileKind::Fifo,
            SeenKind::Socket => DiffFileKind::Socket,
            SeenKind::CharacterDevice => DiffFileKind::CharacterDevice,
            SeenKind::BlockDevice => DiffFileKind::BlockDevice,
        },
        size: seen.size,
        mode: seen.mode,
        uid: seen.uid,
        gid: seen.gid,
        modified_ns: seen.modified_ns,
        target: seen.target.as_ref().map(|target| target.shown()),
    }
}

/// Processes that only one side has: as many of the same owner and command as there are more.
pub fn processes(before: &[Process], after: &[Process]) -> Vec<DiffProcess> {
    let mut removed: Vec<&Process> = before.iter().filter(|one| !is_of_the_kernel(one)).collect();
    let mut added: Vec<&Process> = Vec::new();
    for one in after.iter().filter(|one| !is_of_the_kernel(one)) {
        let same = |other: &&Process| (other.uid, &other.command) == (one.uid, &one.command);
        match removed.iter().position(same) {
            Some(place) => drop(removed.remove(place)),
            None => added.push(one),
        }
    }
    let shown = |change: DiffKind| {
        move |one: &Process| DiffProcess {
            change,
            pid: one.pid,
            uid: one.uid,
            command: one.command.clone(),
        }
    };
    let removed = removed.into_iter().map(shown(DiffKind::Removed));
    removed.chain(added.into_iter().map(shown(DiffKind::Added))).collect()
}

/// The kernel's threads are children of process 2.
fn is_of_the_kernel(process: &Process) -> bool {
    process.pid == 2 || process.parent == 2
}

/// Sockets that only one side has waiting.
pub fn listeners(before: &[Listener], after: &[Listener]) -> Vec<DiffListener> {
    let shown = |change: DiffKind| {
        move |one: &Listener| DiffListener {
            change,
            protocol: one.protocol.clone(),
            address: one.address.clone(),
            port: one.port,
        }
    };
    let removed = before.iter().filter(|one| !after.contains(one)).map(shown(DiffKind::Removed));
    let added = after.iter().filter(|one| !before.contains(one)).map(shown(DiffKind::Added));
    removed.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ramet_proto::agent::{Name, path_order, path_within};

    use super::*;

    fn layered(path: &str, kind: LayeredKind) -> Layered {
        Layered {
            path: Name::new(path.as_bytes()),
            kind,
            inode: 7,
            size: 3,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified_ns: 1,
            changed_ns: 5_000_000_000_000_000,
        }
    }

    const BEGAN_MS: u64 = 4_000_000_000;
    const PARTED_MS: u64 = 6_000_000_000;

    #[test]
    fn the_same_is_trusted_only_from_when_the_sides_were_one() {
        let trust = Trust::new(BEGAN_MS, Some(PARTED_MS));
        let file = layered("/f", LayeredKind::File);
        assert_eq!(place(Some(&file), Some(&file), trust), None);
        assert_eq!(place(Some(&file), Some(&file), Trust::NONE), Some(Reach::Here));
        // At the same tick on both sides after they parted, or shortly before.
        for changed_ms in [PARTED_MS + 1, PARTED_MS - 1000, PARTED_MS - MARGIN_MS] {
            let changed_ns = i64::try_from(changed_ms).unwrap() * 1_000_000;
            let late = Layered { changed_ns, ..file.clone() };
            assert_eq!(place(Some(&late), Some(&late), trust), Some(Reach::Here));
        }
        // By a clock that was set back to before there was a machine.
        let early = Layered { changed_ns: 1_500_000_000_000_000, ..file.clone() };
        assert_eq!(place(Some(&early), Some(&early), trust), Some(Reach::Here));
        // Anything that can be seen from outside counts.
        for other in [
            Layered { inode: 8, ..file.clone() },
            Layered { size: 4, ..file.clone() },
            Layered { modified_ns: 2, ..file.clone() },
            Layered { changed_ns: file.changed_ns + 1, ..file.clone() },
            Layered { mode: 0o600, ..file.clone() },
        ] {
            assert_eq!(place(Some(&file), Some(&other), trust), Some(Reach::Here));
        }
    }

    fn seen(path: &str, kind: SeenKind, size: u64) -> Seen {
        let path = Name::new(path.as_bytes());
        Seen { path, kind, size, mode: 0o644, uid: 0, gid: 0, modified_ns: 0, target: None }
    }

    #[test]
    fn every_aspect_is_told() {
        let file = seen("/f", SeenKind::File, 3);
        let differs = |after: Seen| match compare(Some(&file), Some(&after)) {
            Verdict::Differs(file) | Verdict::Undecided(file) => file.differs,
            Verdict::Same => Vec::new(),
        };
        assert_eq!(differs(Seen { size: 4, ..file.clone() }), [DiffAspect::Content]);
        assert_eq!(differs(Seen { mode: 0o600, ..file.clone() }), [DiffAspect::Mode]);
        assert_eq!(differs(Seen { gid: 1, ..file.clone() }), [DiffAspect::Owner]);
        assert_eq!(differs(seen("/f", SeenKind::Fifo, 0)), [DiffAspect::Type]);
        let empty = seen("/f", SeenKind::File, 0);
        assert_eq!(compare(Some(&empty), Some(&empty)), Verdict::Same);
        let link =
            |to: &[u8]| Seen { target: Some(Name::new(to)), ..seen("/l", SeenKind::Symlink, 1) };
        let Verdict::Differs(found) = compare(Some(&link(b"a")), Some(&link(b"b"))) else {
            panic!()
        };
        assert_eq!(found.differs, [DiffAspect::Target]);
        let Verdict::Differs(found) = compare(None, Some(&file)) else { panic!() };
        assert_eq!((found.change, found.before), (DiffKind::Added, None));
    }

    #[test]
    fn content_decides_where_nothing_else_does() {
        let file = seen("/f", SeenKind::File, 3);
        let undecided = |after: &Seen| match compare(Some(&file), Some(after)) {
            Verdict::Undecided(found) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(decide(undecided(&file), Some("x"), Some("x")), None);
        let found = decide(undecided(&file), Some("x"), Some("y")).unwrap();
        assert_eq!((found.differs, found.assumed), (vec![DiffAspect::Content], false));
        let found = decide(undecided(&file), None, Some("y")).unwrap();
        assert!(found.assumed);
        let chmod = Seen { mode: 0o600, ..file.clone() };
        let found = decide(undecided(&chmod), Some("x"), Some("x")).unwrap();
        assert_eq!(found.differs, [DiffAspect::Mode]);
    }

    fn process(pid: i32, parent: i32, command: &str) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            uid: 0,
            state: "S".to_owned(),
            command: vec![command.to_owned()],
            cpu_ms: 0,
            rss_bytes: 0,
            started_here: false,
        }
    }

    #[test]
    fn processes_are_counted_by_what_they_are() {
        let before = [process(1, 0, "init"), process(10, 1, "a"), process(11, 1, "a")];
        let after =
            [process(1, 0, "init"), process(12, 1, "a"), process(13, 1, "b"), process(40, 2, "k")];
        let found = processes(&before, &after);
        let told: Vec<_> = found.iter().map(|one| (one.change, one.pid)).collect();
        assert_eq!(told, [(DiffKind::Removed, 11), (DiffKind::Added, 13)]);
    }

    /// A guest's files as an overlay has them: an image, and what was done to it.
    #[derive(Clone, Default)]
    struct Guest {
        image: BTreeMap<String, Option<u8>>,
        layer: BTreeMap<String, Layered>,
        content: BTreeMap<String, Option<u8>>,
        clock: i64,
    }

    impl Guest {
        fn with_image(files: &[(&str, Option<u8>)]) -> Self {
            let image: BTreeMap<_, _> =
                files.iter().map(|(path, what)| ((*path).to_owned(), *what)).collect();
            let clock = i64::try_from(BEGAN_MS).unwrap() * 1_000_000;
            Self { content: image.clone(), image, layer: BTreeMap::new(), clock }
        }

        fn parent(path: &str) -> String {
            path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default()
        }

        /// Directories on the way are copied up.
        fn copy_up(&mut self, path: &str) {
            let parent = Self::parent(path);
            if !parent.is_empty() && !self.layer.contains_key(&parent) {
                self.copy_up(&parent);
                self.put(&parent, LayeredKind::Directory);
            }
        }

        fn put(&mut self, path: &str, kind: LayeredKind) {
            self.clock += 1;
            let entry = Layered { changed_ns: self.clock, ..layered(path, kind) };
            self.layer.insert(path.to_owned(), entry);
        }

        fn shows_image(&self, path: &str) -> bool {
            let mut at = path.to_owned();
            while !at.is_empty() {
                use LayeredKind::{Directory, Opaque};
                match self.layer.get(&at).map(|entry| entry.kind) {
                    None | Some(Directory) => {}
                    Some(Opaque) if at == path => return false,
                    Some(_) => return false,
                }
                at = Self::parent(&at);
            }
            self.image.contains_key(path)
        }

        fn remove(&mut self, path: &str) {
            if !self.content.contains_key(path) {
                return;
            }
            let within = |one: &str| path_within(one.as_bytes(), path.as_bytes());
            let image = self.image.contains_key(path) && {
                let parent = Self::parent(path);
                parent.is_empty() || self.shows_image(&parent)
            };
            self.content.retain(|one, _| !within(one));
            self.layer.retain(|one, _| !within(one));
            if image {
                self.copy_up(path);
                self.put(path, LayeredKind::Removed);
            }
        }

        fn make(&mut self, path: &str, what: Option<u8>) {
            let parent = Self::parent(path);
            if !parent.is_empty() && self.content.get(&parent) != Some(&None) {
                return;
            }
            match (self.content.get(path), what) {
                (Some(None), None) => return,
                (Some(None), Some(_)) | (Some(Some(_)), None) => self.remove(path),
                _ => {}
            }
            self.copy_up(path);
            let kind = match what {
                Some(_) => LayeredKind::File,
                None if self.layer.contains_key(path) => LayeredKind::Opaque,
                None => LayeredKind::Directory,
            };
            self.put(path, kind);
            self.content.insert(path.to_owned(), what);
        }
    }

    /// Every path at which two guests differ is at or below a place that is looked at.
    fn check(a: &Guest, b: &Guest, parted_ns: i64) {
        let trust = Trust { from_ns: 0, until_ns: parted_ns };
        let mut paths: Vec<&String> = a.layer.keys().chain(b.layer.keys()).collect();
        paths.sort_by(|x, y| path_order(x.as_bytes(), y.as_bytes()));
        paths.dedup();
        let mut places: Vec<(&String, Reach)> = Vec::new();
        for path in paths {
            if let Some(reach) = place(a.layer.get(path), b.layer.get(path), trust) {
                places.push((path, reach));
            }
        }
        let all: BTreeSet<&String> = a.content.keys().chain(b.content.keys()).collect();
        for path in all.into_iter().filter(|path| a.content.get(*path) != b.content.get(*path)) {
            let found = places.iter().any(|(place, reach)| match reach {
                Reach::Here => *place == path,
                Reach::Deep => path_within(path.as_bytes(), place.as_bytes()),
            });
            assert!(found, "{path} differs; looked at {places:?}\n{:?}\n{:?}", a.layer, b.layer);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_difference_is_missed(
            common in proptest::collection::vec((0usize..9, 0u8..4), 0..12),
            left in proptest::collection::vec((0usize..9, 0u8..4), 0..12),
            right in proptest::collection::vec((0usize..9, 0u8..4), 0..12),
        ) {
            const PATHS: [&str; 9] =
                ["/d", "/d/e", "/d/e/f", "/d/x", "/d/y", "/g", "/g/h", "/n", "/n/m"];
            let image = [("/d", None), ("/d/e", None), ("/d/e/f", Some(9)), ("/d/x", Some(9)), ("/g", Some(9))];
            let mut source = Guest::with_image(&image);
            let act = |guest: &mut Guest, (path, what): (usize, u8)| match what {
                0 => guest.remove(PATHS[path]),
                1 => guest.make(PATHS[path], None),
                byte => guest.make(PATHS[path], Some(byte)),
            };
            common.into_iter().for_each(|step| act(&mut source, step));
            let parted = source.clock + 1;
            source.clock = parted;
            // Both go on with the same clock, so that changes meet at the same tick.
            let (mut a, mut b) = (source.clone(), source);
            left.into_iter().for_each(|step| act(&mut a, step));
            right.into_iter().for_each(|step| act(&mut b, step));
            check(&a, &b, parted);
        }
    }
}
