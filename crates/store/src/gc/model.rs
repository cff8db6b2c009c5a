//! A small model of writers and collectors, walked through in every order of their steps.
//!
//! What the model knows: one content that every state consists of, stored as chunks of rising generations;
//! manifests, each of one chunk; roots; lists. Two writers, of which the second may take the first one's state for its
//! parent; two collectors, each condemning and executing; somebody who deletes the first root. Every step is one
//! request or a few that only read. Time is in it only as the two promises of [`crate::gc`]: a list is not executed
//! while a writer is between steps 3 and 4 since before the list was published, and a list has one
//! executor at a time.
//!
//! All orders of two writers with one collector, and of one writer with two collectors, are walked through. That the
//! model can tell right from wrong is seen by weakening the rules: then it finds a loss.
//!
//! What must hold: when a writer says durable, its root's manifest and chunk are there, now and ever after.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;

type Number = u8;

/// A chunk, or a manifest with its salt and chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Object {
    Chunk(Number),
    Manifest { owner: Number, salt: Number, chunk: Number },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum List {
    Open(BTreeSet<Object>),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Begin,
    Reuse,
    Place,
    Renew,
    Manifest,
    Root,
    Confirm,
    Durable,
    GivenUp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    name: Number,
    step: Step,
    epoch: usize,
    condemned: BTreeSet<Object>,
    chunk: Number,
    /// The parent, whose chunk is there while its manifest is.
    base: Option<Object>,
    manifest: Option<Object>,
    /// Lists that were made before the writer was last between steps 3 and 4.
    window: Option<usize>,
    rounds: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Collector {
    Idle,
    /// Has marked, and will publish this as that list.
    Condemning(usize, BTreeSet<Object>),
    /// Has claimed this list.
    Claimed(usize),
    /// Has marked, and will delete this, manifests first.
    Deleting(usize, Vec<Object>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    objects: BTreeSet<Object>,
    roots: BTreeMap<Number, Object>,
    /// All lists there ever were; number 1 is the first.
    lists: Vec<List>,
    writers: Vec<Writer>,
    collectors: Vec<Collector>,
    rules: Rules,
}

/// What is walked through, and which rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Rules {
    writers: Number,
    collectors: usize,
    /// Lists that are made, at most.
    lists: usize,
    /// Times that a writer begins again, at most.
    rounds: u8,
    /// Writers look at the lists again after their root.
    confirm: bool,
    /// Lists are not executed while a writer is between steps 3 and 4.
    grace: bool,
    /// Collectors mark again before they delete.
    mark_again: bool,
}

const RIGHT: Rules = Rules {
    writers: 2,
    collectors: 1,
    lists: 2,
    rounds: 1,
    confirm: true,
    grace: true,
    mark_again: true,
};

fn chunk_of(manifest: Object) -> Option<Number> {
    match manifest {
        Object::Manifest { chunk, .. } => Some(chunk),
        Object::Chunk(_) => None,
    }
}

impl World {
    fn new(rules: Rules) -> Self {
        let parent = Object::Manifest { owner: 0, salt: 0, chunk: 0 };
        let writer = |name| Writer {
            name,
            step: Step::Begin,
            epoch: 0,
            condemned: BTreeSet::new(),
            chunk: 0,
            base: None,
            manifest: None,
            window: None,
            rounds: 0,
        };
        Self {
            objects: BTreeSet::from([Object::Chunk(0), parent]),
            roots: BTreeMap::from([(0, parent)]),
            lists: Vec::new(),
            writers: (1..=rules.writers).map(writer).collect(),
            collectors: vec![Collector::Idle; rules.collectors],
            rules,
        }
    }

    fn open(&self) -> BTreeSet<Object> {
        let open = self.lists.iter().filter_map(|list| match list {
            List::Open(objects) => Some(objects),
            List::Done => None,
        });
        open.flatten().copied().collect()
    }

    /// What roots reach, and what manifests reach that are on no open list.
    fn live(&self, gone: &BTreeSet<Object>) -> BTreeSet<Object> {
        let rooted: BTreeSet<Object> = self.roots.values().copied().collect();
        let is_manifest = |object: &&Object| chunk_of(**object).is_some();
        let staying =
            self.objects.iter().filter(is_manifest).filter(|object| !gone.contains(object));
        let mut live: BTreeSet<Object> =
            rooted.union(&staying.copied().collect()).copied().collect();
        live.extend(live.clone().into_iter().filter_map(chunk_of).map(Object::Chunk));
        live
    }

    fn unreached(&self) -> BTreeSet<Object> {
        let open = self.open();
        let rooted: BTreeSet<Object> = self.roots.values().copied().collect();
        let manifests = self.objects.iter().filter(|object| chunk_of(**object).is_some());
        let unrooted = manifests.filter(|object| !rooted.contains(object)).copied();
        let gone: BTreeSet<Object> = unrooted.chain(open.iter().copied()).collect();
        let live = self.live(&gone);
        self.objects.iter().filter(|at| !live.contains(at) && !open.contains(at)).copied().collect()
    }

    /// Whether a list may be executed: nobody is between steps 3 and 4 since before it was there.
    fn ripe(&self, number: usize) -> bool {
        !self.rules.grace
            || !self.writers.iter().any(|writer| writer.window.is_some_and(|seen| seen < number))
    }

    fn broken(&self) -> Option<String> {
        let durable = self.writers.iter().filter(|writer| writer.step == Step::Durable);
        for writer in durable {
            let Some(root) = self.roots.get(&writer.name) else { continue };
            let chunk = chunk_of(*root).map(Object::Chunk);
            if !self.objects.contains(root) || chunk.is_none_or(|at| !self.objects.contains(&at)) {
                return Some(format!("writer {} lost something", writer.name));
            }
        }
        None
    }

    /// All worlds that one step leads to.
    fn next(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        if self.roots.contains_key(&0) {
            let mut world = self.clone();
            world.roots.remove(&0);
            worlds.push(world);
        }
        for number in 0..self.writers.len() {
            worlds.extend(self.write(number));
        }
        for number in 0..self.collectors.len() {
            worlds.extend(self.collect(number));
        }
        worlds
    }

    /// What a look at the lists tells a writer: whether any is new, and whether one went unseen.
    fn renew(&self, writer: &mut Writer) -> (bool, bool) {
        let mut missed = false;
        for list in &self.lists[writer.epoch..] {
            match list {
                List::Open(objects) => writer.condemned.extend(objects),
                List::Done => missed = true,
            }
        }
        let any = self.lists.len() > writer.epoch;
        writer.epoch = self.lists.len();
        (any, missed)
    }

    fn write(&self, number: usize) -> Vec<World> {
        let mut world = self.clone();
        let mut writer = self.writers[number].clone();
        let mut worlds = Vec::new();
        match writer.step {
            Step::Begin => {
                self.renew(&mut writer);
                writer.step = Step::Reuse;
            }
            Step::Reuse => {
                // Each root that is there may be the parent, or none.
                for parent in self.roots.values().filter(|root| self.objects.contains(root)) {
                    let chunk = chunk_of(*parent).unwrap_or(0);
                    let fine = |object| !writer.condemned.contains(&object);
                    if fine(*parent) && fine(Object::Chunk(chunk)) {
                        let base = Some(*parent);
                        let child = Writer { step: Step::Renew, chunk, base, ..writer.clone() };
                        worlds.push(self.with(number, child));
                    }
                }
                writer.step = Step::Place;
            }
            Step::Place => {
                // The first generation that is not condemned, there or new.
                let free = (0..).find(|at| !writer.condemned.contains(&Object::Chunk(*at)));
                writer.chunk = free.unwrap_or(0);
                world.objects.insert(Object::Chunk(writer.chunk));
                (writer.base, writer.step) = (None, Step::Renew);
            }
            Step::Renew => {
                let (any, missed) = self.renew(&mut writer);
                writer.window = (!any).then_some(self.lists.len());
                writer.step = match any {
                    false => Step::Manifest,
                    true => self.settle(&mut writer, missed),
                };
            }
            Step::Manifest => {
                let made =
                    |salt| Object::Manifest { owner: writer.name, salt, chunk: writer.chunk };
                let salt = (0..).find(|salt| !writer.condemned.contains(&made(*salt)));
                let manifest = made(salt.unwrap_or(0));
                world.objects.insert(manifest);
                (writer.manifest, writer.step) = (Some(manifest), Step::Root);
            }
            Step::Root => {
                world.roots.extend(writer.manifest.map(|manifest| (writer.name, manifest)));
                (writer.window, writer.step) = (None, Step::Confirm);
            }
            Step::Confirm => {
                let (any, missed) = self.renew(&mut writer);
                writer.step = match any && self.rules.confirm {
                    false => Step::Durable,
                    true => self.settle(&mut writer, missed),
                };
            }
            Step::Durable | Step::GivenUp => return worlds,
        }
        if writer.step == Step::GivenUp {
            world.roots.remove(&writer.name);
        }
        world.writers[number] = writer;
        worlds.push(world);
        worlds
    }

    /// After new lists: what is condemned is written again, what is doubtful is looked for.
    fn settle(&self, writer: &mut Writer, missed: bool) -> Step {
        writer.rounds += 1;
        let chunk = Object::Chunk(writer.chunk);
        let base = writer
            .base
            .is_some_and(|base| self.objects.contains(&base) && !writer.condemned.contains(&base));
        let gone = missed && !base && !self.objects.contains(&chunk);
        match () {
            () if writer.rounds > self.rules.rounds || gone => Step::GivenUp,
            () if !writer.condemned.contains(&chunk) => Step::Renew,
            () if self.objects.contains(&chunk) => Step::Place,
            () => Step::GivenUp,
        }
    }

    fn with(&self, number: usize, writer: Writer) -> World {
        let mut world = self.clone();
        world.writers[number] = writer;
        world
    }

    fn collect(&self, number: usize) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut to = |change: &dyn Fn(&mut World), then: Collector| {
            let mut world = self.clone();
            change(&mut world);
            world.collectors[number] = then;
            worlds.push(world);
        };
        match &self.collectors[number] {
            Collector::Idle => {
                let doomed = self.unreached();
                if !doomed.is_empty() && self.lists.len() < self.rules.lists {
                    to(&|_| (), Collector::Condemning(self.lists.len(), doomed));
                }
                for (at, list) in self.lists.iter().enumerate() {
                    let taken = self.collectors.iter().any(|other| match other {
                        Collector::Claimed(list) | Collector::Deleting(list, _) => *list == at,
                        _ => false,
                    });
                    if matches!(list, List::Open(_)) && !taken && self.ripe(at + 1) {
                        to(&|_| (), Collector::Claimed(at));
                    }
                }
            }
            Collector::Condemning(at, doomed) => to(
                &|world| {
                    // Created only if it is new.
                    if world.lists.len() == *at {
                        world.lists.push(List::Open(doomed.clone()));
                    }
                },
                Collector::Idle,
            ),
            Collector::Claimed(at) => {
                let live = match self.rules.mark_again {
                    true => self.live(&self.open()),
                    false => BTreeSet::new(),
                };
                let List::Open(listed) = &self.lists[*at] else { return worlds };
                let mut doomed: Vec<_> = listed.difference(&live).copied().collect();
                // Deleted from the end: manifests before chunks.
                doomed.sort();
                to(&|_| (), Collector::Deleting(*at, doomed));
            }
            Collector::Deleting(at, doomed) => match doomed.split_last() {
                Some((first, rest)) => to(
                    &|world| {
                        world.objects.remove(first);
                    },
                    Collector::Deleting(*at, rest.to_vec()),
                ),
                None => to(&|world| world.lists[*at] = List::Done, Collector::Idle),
            },
        }
        worlds
    }
}

/// Walks through all worlds. Gives their number, or how the first broken one came about.
fn walk(rules: Rules) -> Result<usize, String> {
    let hasher = std::hash::RandomState::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut waiting = vec![World::new(rules)];
    while let Some(world) = waiting.pop() {
        for next in world.next() {
            if let Some(reason) = next.broken() {
                return Err(format!("{reason}:\nfrom {world:#?}\nto {next:#?}"));
            }
            if seen.insert(hasher.hash_one(&next)) {
                waiting.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_steps_loses_anything() {
    let mut all = vec![
        RIGHT,
        Rules { writers: 1, collectors: 2, ..RIGHT },
        // One writer alone needs no clock.
        Rules { writers: 1, lists: 3, rounds: 2, grace: false, ..RIGHT },
    ];
    if std::env::var_os("RAMET_TEST_MODEL").is_some() {
        all.push(Rules { rounds: 2, ..RIGHT });
        all.push(Rules { writers: 1, collectors: 2, lists: 3, rounds: 2, ..RIGHT });
    }
    for rules in all {
        match walk(rules) {
            Ok(worlds) => println!("{worlds} worlds of {rules:?}"),
            Err(trace) => panic!("{trace}"),
        }
    }
}

#[test]
fn weaker_rules_lose_something() {
    let alone = Rules { writers: 1, grace: false, ..RIGHT };
    assert!(walk(Rules { confirm: false, ..alone }).is_err());
    assert!(walk(Rules { mark_again: false, ..alone }).is_err());
    assert!(walk(Rules { grace: false, ..RIGHT }).is_err());
}
