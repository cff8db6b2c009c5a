//! Every sandbox and checkpoint, in memory. Pure rules, no I/O, no locks of its own.
//!
//! Changes come as a [`Change`] that was written to the database before. Ids of all owners are
//! unique; names are unique among an owner's sandboxes that are not gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use ramet_proto::api::{self, TreeKind, TreeNode};
use tokio::sync::{Mutex, RwLock};

use super::durable::commits::{self, Commit};
use super::error::Error;
use super::network::{Attached, Link};
use super::networks::Network;
use super::record::{Checkpoint, Phase, Record};
use super::volumes::Volume;
use crate::auth::Principal;
use crate::host::MachineId;
use crate::store::Change;

/// Least digits of an id that stand for it, so that a name mistyped meets nobody.
const BEGINNING_MIN: usize = 4;

/// What belongs to a living sandbox and is not written down.
#[derive(Debug, Default)]
pub struct Life {
    /// Held for reading by what leaves the machine in its place (fork, checkpoint), for writing by what
    /// changes or ends it.
    pub lock: Arc<RwLock<()>>,
    /// Requests that are under way inside.
    pub busy: AtomicUsize,
    /// It is being paused or ended because its time is over.
    pub leaving: AtomicBool,
    /// Held while a stand-in is made.
    pub making: Arc<Mutex<()>>,
    /// Whether its machine is at the network. Never held across an await.
    pub attached: std::sync::Mutex<Attached>,
    /// Held while the interpreter is started.
    pub interpreter: Arc<Mutex<()>>,
}

/// What labels are looked for: a key, and the value if it matters.
#[derive(Debug)]
pub struct Label {
    key: String,
    value: Option<String>,
}

impl Label {
    /// `KEY` or `KEY=VALUE`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self { key: key.to_owned(), value: Some(value.to_owned()) },
            None => Self { key: text.to_owned(), value: None },
        }
    }

    /// Whether it is among these.
    pub fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = labels.get(&self.key);
        has.is_some_and(|has| self.value.as_ref().is_none_or(|value| value == has))
    }
}

/// A filter of lists.
#[derive(Debug, Default)]
pub struct Filter {
    /// With this label.
    pub label: Option<Label>,
    /// All but gone ones when absent.
    pub state: Option<api::State>,
    /// Only those that came later.
    pub after: u64,
    /// At most this many.
    pub limit: usize,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Registry {
    records: BTreeMap<u64, Record>,
    numbers: BTreeMap<String, u64>,
    checkpoints: BTreeMap<String, Checkpoint>,
    commits: BTreeMap<String, Commit>,
    volumes: BTreeMap<String, Volume>,
    links: BTreeMap<String, Link>,
    networks: BTreeMap<String, Network>,
    lives: HashMap<String, Arc<Life>>,
    last: u64,
}

impl Registry {
    /// Number for a new sandbox.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Carries out a change that was written.
    pub fn apply(&mut self, change: Change) {
        for id in change.forget {
            self.lives.remove(&id);
            if let Some(number) = self.numbers.remove(&id) {
                self.records.remove(&number);
            }
        }
        for record in change.sandboxes {
            if record.phase == Phase::Gone {
                self.lives.remove(&record.id);
            }
            self.last = self.last.max(record.number);
            self.numbers.insert(record.id.clone(), record.number);
            self.records.insert(record.number, record);
        }
        for checkpoint in change.checkpoints {
            self.checkpoints.insert(checkpoint.id.clone(), checkpoint);
        }
        for id in change.forget_checkpoints {
            self.checkpoints.remove(&id);
        }
        for commit in change.commits {
            self.commits.insert(commit.id.clone(), commit);
        }
        for id in change.forget_commits {
            self.commits.remove(&id);
        }
        for network in change.networks {
            self.networks.insert(network.id.clone(), network);
        }
        for id in change.forget_networks {
            self.lives.remove(&id);
            self.networks.remove(&id);
        }
        for volume in change.volumes {
            self.volumes.insert(volume.id.clone(), volume);
        }
        for id in change.forget_volumes {
            self.volumes.remove(&id);
        }
        for link in change.links {
            self.links.insert(link.id.clone(), link);
        }
        for id in change.forget_links {
            self.links.remove(&id);
        }
    }

    /// The sandbox with exactly this id, whosever.
    pub fn get(&self, id: &str) -> Option<&Record> {
        self.records.get(self.numbers.get(id)?)
    }

    /// Notes a request to it; this alone is not written down.
    pub fn touch(&mut self, id: &str) {
        if let Some(record) = self.numbers.get(id).and_then(|number| self.records.get_mut(number)) {
            record.touch();
        }
    }

    /// What belongs to a living sandbox.
    pub fn life(&mut self, id: &str) -> Arc<Life> {
        self.lives.entry(id.to_owned()).or_default().clone()
    }

    /// What belongs to all living sandboxes.
    pub fn lives(&self) -> impl Iterator<Item = &Arc<Life>> {
        self.lives.values()
    }

    /// All, oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// How many are in a phase.
    pub fn count(&self, phase: Phase) -> u32 {
        let count = self.records.values().filter(|record| record.phase == phase).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// All checkpoints.
    pub fn checkpoints(&self) -> impl Iterator<Item = &Checkpoint> {
        self.checkpoints.values()
    }

    /// The commit with exactly this id, whosever.
    pub fn commit(&self, id: &str) -> Option<&Commit> {
        self.commits.get(id)
    }

    /// All networks.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// All commits.
    pub fn commits(&self) -> impl Iterator<Item = &Commit> {
        self.commits.values()
    }

    /// A principal's commits.
    pub fn commits_of(&self, who: &Principal) -> impl Iterator<Item = &Commit> {
        self.commits.values().filter(|commit| commit.owner == who.name())
    }

    /// Everybody's commits.
    pub fn commits_of_all(&self) -> impl Iterator<Item = &Commit> {
        self.commits.values()
    }

    /// The commit that a principal means: by id, or the beginning of one.
    pub fn find_commit(&self, who: &Principal, key: &str) -> Result<&Commit, Error> {
        commits::meant(self.commits_of(who), key)
    }

    /// Whether an owner's sandbox or commit needs a state.
    pub fn needs(&self, owner: &str, state: &str) -> bool {
        let is = |stored: &Option<api::StoredState>| {
            stored.as_ref().is_some_and(|stored| stored.state == state)
        };
        let live = |record: &Record| record.owner == owner && record.phase != Phase::Gone;
        self.records.values().any(|record| live(record) && is(&record.stored))
            || self.commits.values().any(|commit| commit.owner == owner && is(&commit.stored))
            || self.checkpoints.values().any(|checkpoint| is(&checkpoint.stored))
    }

    /// All states that something needs.
    pub fn states(&self) -> BTreeSet<String> {
        let live = self.records.values().filter(|record| record.phase != Phase::Gone);
        let stored = live
            .map(|record| &record.stored)
            .chain(self.commits.values().map(|commit| &commit.stored))
            .chain(self.checkpoints.values().map(|checkpoint| &checkpoint.stored));
        stored.flatten().map(|stored| stored.state.clone()).collect()
    }

    /// Whether a sandbox or checkpoint lives.
    pub fn keeps(&self, id: &str) -> bool {
        self.checkpoints.contains_key(id)
            || self.get(id).is_some_and(|record| record.phase != Phase::Gone)
    }

    /// The sandbox that a principal means: by id, name, or the beginning of an id.
    pub fn find(&self, who: &Principal, key: &str) -> Result<&Record, Error> {
        let record = self.meant(who, key)?;
        match (record.phase, &record.promoted_to) {
            (Phase::Making, _) => Err(not_found(key)),
            (Phase::Gone, Some(to)) => {
                Err(Error::Promoted { id: record.id.clone(), to: to.clone() })
            }
            (Phase::Gone, None) => Err(Error::Gone(record.id.clone())),
            _ => Ok(record),
        }
    }

    fn meant(&self, who: &Principal, key: &str) -> Result<&Record, Error> {
        let mine = |record: &&Record| record.owner == who.name();
        if let Some(record) = self.get(key).filter(mine) {
            return Ok(record);
        }
        if let Some(record) = self.named(who.name(), key) {
            return Ok(record);
        }
        let beginning = key.strip_prefix("sbx-").unwrap_or(key);
        if beginning.len() < BEGINNING_MIN {
            return Err(not_found(key));
        }
        let full = format!("sbx-{beginning}");
        let (gone, live): (Vec<&Record>, Vec<&Record>) = self
            .numbers
            .range(full.clone()..)
            .take_while(|(id, _)| id.starts_with(&full))
            .filter_map(|(_, number)| self.records.get(number))
            .filter(mine)
            .partition(|record| record.phase == Phase::Gone);
        match (&live[..], &gone[..]) {
            ([one], _) | ([], [one]) => Ok(one),
            ([], []) => Err(not_found(key)),
            _ => Err(Error::Ambiguous(key.to_owned())),
        }
    }

    /// The sandbox of an owner that has this name now.
    fn named(&self, owner: &str, name: &str) -> Option<&Record> {
        let live = |record: &&Record| record.phase != Phase::Gone;
        self.records
            .values()
            .filter(live)
            .find(|record| record.owner == owner && record.name == name)
    }

    /// Whether names can be given, to a sandbox that may have one of them already.
    pub fn check_names(&self, owner: &str, names: &[(&str, &str)]) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for (id, name) in names {
            let other = self.named(owner, name).is_some_and(|record| record.id != *id);
            if other || !seen.insert(name) {
                return Err(Error::NameTaken((*name).to_owned()));
            }
        }
        Ok(())
    }

    /// A page of a principal's sandboxes, and where the next one begins.
    pub fn list(&self, who: &Principal, filter: &Filter) -> (Vec<&Record>, Option<u64>) {
        let later = self.records.range(filter.after.saturating_add(1)..).map(|(_, record)| record);
        let mut matching = later.filter(|record| record.owner == who.name() && filter.fits(record));
        let page: Vec<&Record> = matching.by_ref().take(filter.limit).collect();
        let more = matching.next().is_some();
        let next = page.last().filter(|_| more).map(|record| record.number);
        (page, next)
    }

    /// A sandbox's checkpoints, oldest first.
    pub fn checkpoints_of(&self, sandbox: &str) -> Vec<&Checkpoint> {
        let mut found: Vec<_> =
            self.checkpoints.values().filter(|checkpoint| checkpoint.sandbox == sandbox).collect();
        found.sort_by_key(|checkpoint| checkpoint.created_at_ms);
        found
    }

    /// A sandbox's checkpoint by id, name, or the beginning of its id.
    pub fn checkpoint(&self, sandbox: &str, key: &str) -> Result<&Checkpoint, Error> {
        let all = self.checkpoints_of(sandbox);
        let exact = all.iter().find(|checkpoint| checkpoint.id == key || checkpoint.name == key);
        if let Some(checkpoint) = exact {
            return Ok(checkpoint);
        }
        let beginning = key.strip_prefix("cp-").unwrap_or(key);
        let begin = |checkpoint: &&&Checkpoint| {
            let digits = checkpoint.id.strip_prefix("cp-");
            beginning.len() >= BEGINNING_MIN && digits.is_some_and(|id| id.starts_with(beginning))
        };
        match all.iter().filter(begin).collect::<Vec<_>>()[..] {
            [one] => Ok(one),
            [] => Err(Error::NotFound { what: "checkpoint", key: key.to_owned() }),
            _ => Err(Error::Ambiguous(key.to_owned())),
        }
    }

    /// A principal's checkpoint of whatever sandbox, by id or the beginning of it.
    pub fn checkpoint_of_anyone(&self, who: &Principal, key: &str) -> Result<&Checkpoint, Error> {
        let none = || Error::NotFound { what: "checkpoint", key: key.to_owned() };
        let digits = key.strip_prefix("cp-").unwrap_or(key);
        if digits.len() < BEGINNING_MIN {
            return Err(none());
        }
        let full = format!("cp-{digits}");
        let mine = |checkpoint: &&Checkpoint| {
            self.get(&checkpoint.sandbox).is_some_and(|record| record.owner == who.name())
        };
        let mut found = self
            .checkpoints
            .range(full.clone()..)
            .take_while(|(id, _)| id.starts_with(&full))
            .map(|(_, checkpoint)| checkpoint)
            .filter(mine);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(none()),
            _ => Err(Error::Ambiguous(key.to_owned())),
        }
    }

    /// Whether one sandbox descends from another.
    pub fn descends(&self, id: &str, ancestor: &str) -> bool {
        let mut at = self.get(id);
        let mut steps = self.records.len();
        while let Some(parent) = at.and_then(|record| record.parent.as_deref()) {
            if parent == ancestor {
                return true;
            }
            // Parents are older, so this ends; the bound holds even if a row says otherwise.
            if steps == 0 {
                return false;
            }
            steps -= 1;
            at = self.get(parent);
        }
        false
    }

    /// The sandboxes that were forked from this one, gone ones included.
    pub fn children(&self, id: &str) -> Vec<&Record> {
        self.records.values().filter(|record| record.parent.as_deref() == Some(id)).collect()
    }

    /// Who has this machine.
    pub fn holder(&self, machine: &MachineId) -> Option<&Record> {
        self.records.values().find(|record| record.machine.as_ref() == Some(machine))
    }

    /// Gone sandboxes that explain nothing any more: older than a moment, or too many; and nobody's
    /// parent.
    pub fn forgettable(&self, before_ms: u64, most: usize) -> Vec<String> {
        let parents: BTreeSet<&str> =
            self.records.values().filter_map(|record| record.parent.as_deref()).collect();
        let gone: Vec<&Record> =
            self.records.values().filter(|record| record.phase == Phase::Gone).collect();
        let surplus = gone.len().saturating_sub(most);
        let old = |(place, record): &(usize, &Record)| {
            *place < surplus || record.gone_at_ms.is_none_or(|at| at < before_ms)
        };
        let childless = gone.into_iter().enumerate().filter(old).map(|(_, record)| record);
        let childless = childless.filter(|record| !parents.contains(record.id.as_str()));
        childless.map(|record| record.id.clone()).collect()
    }

    /// A principal's sandboxes and checkpoints with their parents; gone ones only if something that
    /// lives descends from them.
    pub fn tree(&self, who: &Principal) -> Vec<TreeNode> {
        let mine = |record: &&Record| record.owner == who.name() && record.phase != Phase::Making;
        let mut kept = BTreeSet::new();
        for record in self.records.values().filter(mine).filter(|r| r.phase != Phase::Gone) {
            let mut at = Some(record);
            while let Some(record) = at.filter(|record| kept.insert(record.number)) {
                at = record.parent.as_deref().and_then(|parent| self.get(parent));
            }
        }
        let mut nodes = Vec::new();
        for record in kept.iter().filter_map(|number| self.records.get(number)) {
            nodes.push(self.node(record));
            nodes.extend(self.checkpoints_of(&record.id).into_iter().map(checkpoint_node));
        }
        nodes
    }

    fn node(&self, record: &Record) -> TreeNode {
        let parent = record.parent.clone().filter(|parent| self.get(parent).is_some());
        TreeNode {
            id: record.id.clone(),
            kind: TreeKind::Sandbox,
            name: record.name.clone(),
            parent: parent.or_else(|| Some(record.template_id.clone())),
            state: record.phase.shown(),
            created_at_ms: record.created_at_ms,
            labels: record.labels.clone(),
        }
    }
}

fn checkpoint_node(checkpoint: &Checkpoint) -> TreeNode {
    TreeNode {
        id: checkpoint.id.clone(),
        kind: TreeKind::Checkpoint,
        name: checkpoint.name.clone(),
        parent: Some(checkpoint.sandbox.clone()),
        state: None,
        created_at_ms: checkpoint.created_at_ms,
        labels: BTreeMap::new(),
    }
}

fn not_found(key: &str) -> Error {
    Error::NotFound { what: "sandbox", key: key.to_owned() }
}

impl Filter {
    fn fits(&self, record: &Record) -> bool {
        let state = match self.state {
            Some(state) => record.phase.shown() == Some(state),
            None => !matches!(record.phase, Phase::Making | Phase::Gone),
        };
        state && self.label.as_ref().is_none_or(|label| label.fits(&record.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Root, Wish};
    use super::*;

    #[test]
    fn beginnings_of_ids_are_unique_or_ambiguous() {
        let me = Principal::new("me");
        let mut registry = Registry::default();
        for (number, id) in (1..).zip(["sbx-aaaa0", "sbx-aaaa1", "sbx-bbbb0"]) {
            let record = Record::new(&me, Wish::default(), Root::default()).unwrap();
            let (id, name) = (id.to_owned(), id.to_owned());
            let record = Record { number, id, name, phase: Phase::Running, ..record };
            registry.apply(Change { sandboxes: vec![record], ..Change::default() });
        }
        let found = |key: &str| registry.find(&me, key).map(|record| record.id.clone());
        assert_eq!(found("bbbb").unwrap(), "sbx-bbbb0");
        assert_eq!(found("sbx-aaaa1").unwrap(), "sbx-aaaa1");
        assert!(matches!(found("aaaa"), Err(Error::Ambiguous(_))));
        assert!(matches!(found("sbx-aaaa"), Err(Error::Ambiguous(_))));
        for short in ["", "b", "bbb", "sbx-", "sbx-bbb", "cccc"] {
            assert!(matches!(found(short), Err(Error::NotFound { .. })), "{short}");
        }
        let you = Principal::new("you");
        assert!(registry.find(&you, "sbx-bbbb0").is_err());
    }
}
