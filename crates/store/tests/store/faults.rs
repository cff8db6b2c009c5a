//! A backend that fails, lies and waits, against a model of what must be there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use ramet_store::{Collect, Config, Depth, Draft, Error, Hot, Limits, Location, StateId, Store};

use crate::common::*;
use crate::gc::{now, objects};
use crate::hooked::{Fault, Hook, Hooked};

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

const FAULTS: [Fault; 7] =
    [Fault::Before, Fault::After, Fault::Full, Fault::Flip, Fault::Short, Fault::Hang, Fault::Slow];

/// Which requests fail, counted from now.
#[derive(Default)]
struct Script {
    made: u64,
    faults: BTreeMap<u64, Fault>,
}

fn hook(script: &Arc<Mutex<Script>>) -> Hook {
    let script = Arc::clone(script);
    Arc::new(move |_, _| {
        let mut script = script.lock().unwrap();
        let number = script.made;
        script.made += 1;
        let fault = script.faults.remove(&number).unwrap_or(Fault::None);
        Box::pin(async move { fault })
    })
}

/// What should be there.
struct Model {
    place: Place,
    /// Content of each root that was reported durable.
    roots: BTreeMap<String, Expected>,
    drafts: Vec<(Draft, PathBuf)>,
    next: u64,
    seed: u64,
}

#[derive(Clone)]
struct Expected {
    state: StateId,
    source: PathBuf,
}

impl Model {
    fn source(&mut self, dice: &mut Dice) -> PathBuf {
        self.next += 1;
        let start = dice.roll(40);
        let pages = (start..start + 1 + dice.roll(600)).filter(|n| n % 3 != 0);
        let version = dice.roll(3);
        let files =
            one("memory", pages.map(|n| (n, noise(n * 10 + u64::from(n % 50 == 0) * version))));
        self.place.state(&format!("source-{}", self.next), &files)
    }

    fn pick(&self, dice: &mut Dice) -> Option<(String, Expected)> {
        let at = dice.roll(self.roots.len().max(1) as u64);
        let found = self.roots.iter().nth(usize::try_from(at).unwrap());
        found.map(|(name, expected)| (name.clone(), expected.clone()))
    }

    /// After an error nobody knows whether the root is there. If it is, it is whole.
    async fn settle(&mut self, calm: &Store, name: &str, source: PathBuf) {
        match calm.root(&tenant("a"), "commit", name).await {
            Ok(root) => {
                let expected = Expected { state: root.state, source };
                self.verify(calm, name, &expected).await;
                self.roots.insert(name.to_owned(), expected);
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    async fn verify(&self, store: &Store, name: &str, expected: &Expected) {
        let back = self.place.path("back");
        std::fs::create_dir(&back).unwrap();
        let fetched = store.fetch_state(&tenant("a"), expected.state, &back, |_| ()).await;
        if let Err(error) = fetched {
            panic!("seed {}: {name} is lost: {error}", self.seed);
        }
        assert!(read(&back) == read(&expected.source), "seed {}: {name} has changed", self.seed);
        std::fs::remove_dir_all(&back).unwrap();
    }

    async fn step(&mut self, shaky: &Store, calm: &Store, dice: &mut Dice) {
        let t = tenant("a");
        match dice.roll(10) {
            0..=3 => {
                let source = self.source(dice);
                let parent = self.pick(dice).map(|(_, expected)| expected.state);
                let parent = parent.filter(|_| dice.roll(4) > 0);
                if let Ok(draft) = shaky.put_state(&t, &source, parent, Hot::new()).await {
                    self.drafts.push((draft, source));
                }
            }
            4..=6 => {
                if self.drafts.is_empty() {
                    return;
                }
                let (draft, source) = self.drafts.remove(0);
                self.next += 1;
                let name = format!("c{}", self.next);
                match shaky.publish(draft, root(&name)).await {
                    Ok(root) => {
                        let expected = Expected { state: root.state, source };
                        self.roots.insert(name, expected);
                    }
                    Err(_) => self.settle(calm, &name, source).await,
                }
            }
            7 => {
                let Some((name, _)) = self.pick(dice) else { return };
                let deleted = shaky.delete_root(&t, "commit", &name).await;
                let there = calm.root(&t, "commit", &name).await.is_ok();
                assert!(deleted.is_err() || !there, "seed {}: a deleted root is there", self.seed);
                if !there {
                    self.roots.remove(&name);
                }
            }
            8 => {
                // Whatever it says, nothing that counts may be gone.
                let _report = shaky.collect(None, &now()).await;
            }
            _ => {
                let Some((name, expected)) = self.pick(dice) else { return };
                let back = self.place.path("shaky-back");
                std::fs::create_dir(&back).unwrap();
                let fetched = shaky.fetch_state(&t, expected.state, &back, |_| ()).await;
                let same = || read(&back) == read(&expected.source);
                assert!(fetched.is_err() || same(), "seed {}: {name} reads wrong", self.seed);
                std::fs::remove_dir_all(&back).unwrap();
            }
        }
    }
}

async fn story(seed: u64) {
    let place = Place::new();
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let script = Arc::new(Mutex::new(Script::default()));
    let limits = Limits {
        request: Duration::from_millis(150),
        parallel: 3,
        threads: 2,
        ..Limits::default()
    };
    let config = |objects, scratch: &str, bytes| Config {
        location: Location::Custom(objects),
        scratch: place.path(scratch),
        scratch_bytes: bytes,
        limits,
    };
    let calm = Store::open(config(Arc::clone(&memory), "calm", 0)).await.unwrap();
    let hooked = Arc::new(Hooked::new(Arc::clone(&memory), hook(&script)));
    let shaky = Store::open(config(hooked, "shaky", 1 << 20)).await.unwrap();
    let mut dice = Dice(seed);
    let mut model = Model { place, roots: BTreeMap::new(), drafts: Vec::new(), next: 0, seed };
    for _ in 0..30 {
        {
            let mut script = script.lock().unwrap();
            script.made = 0;
            script.faults.clear();
            for _ in 0..dice.roll(3) {
                let at = dice.roll(25);
                let fault = FAULTS[usize::try_from(dice.roll(7)).unwrap()];
                script.faults.insert(at, fault);
            }
        }
        model.step(&shaky, &calm, &mut dice).await;
        for (name, expected) in &model.roots {
            model.verify(&calm, name, expected).await;
        }
    }
    script.lock().unwrap().faults.clear();
    let report = calm.check(None, Depth::Content, |_| ()).await.unwrap();
    assert_eq!(report.damages, [], "seed {seed}");
    model.drafts.clear();
    for name in model.roots.keys() {
        calm.delete_root(&tenant("a"), "commit", name).await.unwrap();
    }
    // A claim that a fault left behind is taken over when it is old.
    let takeover = Collect { takeover: Duration::from_millis(500), ..now() };
    let mut left = Vec::new();
    for round in 0..10 {
        // One that is too slow for its own claim stops; the next goes on.
        let _report = calm.collect(None, &takeover).await;
        left = objects(&*memory).await;
        if left.is_empty() {
            break;
        }
        if round > 2 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    assert!(left.is_empty(), "seed {seed} leaked {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_any_fault_what_was_durable_is_there_and_nothing_leaks() {
    let count: u64 = std::env::var("RAMET_TEST_FAULTS").map_or(8, |count| count.parse().unwrap());
    let seed: Option<u64> = std::env::var("RAMET_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds: Vec<u64> = seed.map_or((1..=count).collect(), |seed| vec![seed]);
    for pair in seeds.chunks(4) {
        futures_util::future::join_all(pair.iter().map(|seed| story(*seed))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_their_kinds() {
    let place = Place::new();
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let script = Arc::new(Mutex::new(Script::default()));
    let hooked = Arc::new(Hooked::new(memory, hook(&script)));
    let limits = Limits { request: Duration::from_millis(100), ..Limits::default() };
    let config = Config {
        location: Location::Custom(hooked),
        scratch: place.path("scratch"),
        scratch_bytes: 0,
        limits,
    };
    let store = Store::open(config).await.unwrap();
    let source = place.state("source", &one("memory", (0..600).map(|n| (n, noise(n)))));
    let t = tenant("a");
    let put = async |fault: Fault| {
        {
            let mut script = script.lock().unwrap();
            script.made = 0;
            script.faults = (1..40).map(|at| (at, fault)).collect();
        }
        let done = store.put_state(&t, &source, None, Hot::new()).await;
        script.lock().unwrap().faults.clear();
        done.map(|_| ()).unwrap_err()
    };
    assert!(matches!(put(Fault::Full).await, Error::Full { .. }));
    assert!(matches!(put(Fault::Before).await, Error::Unavailable { .. }));
    assert!(matches!(put(Fault::Hang).await, Error::Unavailable { .. }));

    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    let state = store.publish(draft, root("one")).await.unwrap().state;
    let read_with = async |faults: BTreeMap<u64, Fault>| {
        let manifest = store.manifest(&t, state).await.unwrap();
        let reader = store.reader(&t, state, manifest);
        {
            let mut script = script.lock().unwrap();
            script.made = 0;
            script.faults = faults;
        }
        let read = reader.read_pages("memory", 100, 1).await;
        script.lock().unwrap().faults.clear();
        read
    };
    for fault in [Fault::Flip, Fault::Short] {
        let once = read_with(BTreeMap::from([(0, fault)])).await;
        assert_eq!(once.unwrap(), noise(100), "a second try finds it");
        let twice = read_with(BTreeMap::from([(0, fault), (1, fault)])).await;
        assert!(matches!(twice, Err(Error::Damaged(_))));
    }
    let hang = read_with(BTreeMap::from([(0, Fault::Hang)])).await;
    assert!(matches!(hang, Err(Error::Unavailable { .. })));
}
