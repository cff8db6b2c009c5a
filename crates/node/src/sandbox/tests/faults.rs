//! Two nodes on one faulty store, against a model of what they owe their callers.
//!
//! The store is a real S3 server behind a proxy that answers errors, breaks off, changes bytes, or does nothing at all. The machines are
//! not real. After every step a sandbox is running or paused, with the content that the model says; at the end, when the store
//! is well again, everything that was ever said to be durable is there, and nothing else is.

use std::collections::BTreeMap;
use std::time::Duration;

use ramet_proto::api::{CommitState, CreateCommit, CreateSandbox, GcRequest, PauseRequest, State};
use ramet_store::testing::{Act, Proxy, Server};
use ramet_store::{Limits, Location};

use super::{Bed, Settings};
use crate::sandbox::Error;

/// Steps of the random walk; `RAMET_TEST_STEPS` asks for more.
const STEPS: u64 = 50;
/// Of the walk, unless `RAMET_TEST_SEED` names another.
const SEED: u64 = 56277;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Numbers that depend on the seed alone (xorshift).
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.roll(count as u64)).unwrap()
    }
}

/// How ill the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Flaky,
    Out,
}

fn infect(proxy: &Proxy, health: Health, mut dice: Dice) {
    proxy.rule(move |_| match (health, dice.roll(12)) {
        (Health::Out, 0..6) => Act::Answer(503),
        (Health::Out, _) => Act::CutBefore,
        (Health::Flaky, 0) => Act::Answer(500),
        (Health::Flaky, 1) => Act::CutAfter,
        (Health::Flaky, 2) => Act::CutMiddle,
        (Health::Flaky, 3) => Act::Flip,
        (Health::Flaky, 4) => Act::Delay(Duration::from_millis(30)),
        _ => Act::Pass,
    });
}

/// What one node owes.
#[derive(Default)]
struct Owed {
    sandboxes: BTreeMap<&'static str, String>,
    /// What a sandbox had when it was paused last.
    paused: BTreeMap<&'static str, String>,
    checkpoints: BTreeMap<&'static str, String>,
}

struct Walk {
    dice: Dice,
    proxy: Proxy,
    health: Health,
    nodes: Vec<(Option<Bed>, Owed)>,
    /// Of both nodes.
    commits: BTreeMap<String, String>,
    count: u64,
}

fn settings(location: Location) -> Settings {
    let limits = Limits {
        attempt: Duration::from_secs(2),
        request: Duration::from_secs(4),
        retries: 3,
        ..Limits::default()
    };
    Settings {
        store: Some(location),
        store_limits: limits,
        grace: Duration::from_secs(3600),
        ..Settings::default()
    }
}

impl Walk {
    fn bed(&self, node: usize) -> &Bed {
        self.nodes[node].0.as_ref().unwrap()
    }

    fn owed(&mut self, node: usize) -> &mut Owed {
        &mut self.nodes[node].1
    }

    /// Content that nobody has had before.
    fn content(&mut self) -> String {
        self.count += 1;
        (0..500).map(|_| format!("{:x}", self.dice.roll(u64::MAX))).collect::<String>()
            + &self.count.to_string()
    }

    /// A refusal is right only if the store is ill, and must be about the store.
    fn excused(&self, what: &str, error: &Error) {
        assert_ne!(self.health, Health::Well, "{what} was refused without need: {error:?}");
        let about = matches!(
            error,
            Error::StoreUnavailable(_) | Error::Damaged(_) | Error::TooMany(_) | Error::Internal(_)
        );
        assert!(about, "{what}: {error:?}");
    }

    async fn step(&mut self) {
        let node = self.dice.pick(2);
        let name = NAMES[self.dice.pick(NAMES.len())];
        match self.dice.roll(16) {
            0..3 => self.write(node, name).await,
            3..6 => self.pause(node, name).await,
            6..8 => self.resume(node, name).await,
            8..11 => self.commit(node, name).await,
            11 => self.check_out(node).await,
            12 => self.gc(node).await,
            13 => self.restart(node).await,
            14 => self.spill(node, name).await,
            _ => {
                self.health =
                    [Health::Well, Health::Flaky, Health::Out, Health::Flaky][self.dice.pick(4)];
                let dice = Dice(self.dice.roll(u64::MAX) | 1);
                infect(&self.proxy, self.health, dice);
            }
        }
        self.look(node, name).await;
    }

    /// Running with its content, or paused.
    async fn look(&mut self, node: usize, name: &'static str) {
        let Some(content) = self.nodes[node].1.sandboxes.get(name).cloned() else { return };
        let bed = self.bed(node);
        let shown = bed.service.get(&bed.me, name).unwrap();
        match shown.state {
            State::Running => assert_eq!(bed.read(name).await, content, "{name} of {node}"),
            // The rest of its memory did not come: it is where it was.
            State::Paused if shown.failure.is_some() => {
                let before = self.nodes[node].1.paused[name].clone();
                self.owed(node).sandboxes.insert(name, before);
            }
            State::Paused => {}
            other => panic!("{name} of {node} is {other:?}"),
        }
    }

    async fn write(&mut self, node: usize, name: &'static str) {
        let content = self.content();
        if !self.owed(node).sandboxes.contains_key(name) {
            self.bed(node).create(name).await;
        } else if self.bed(node).state(name) == State::Paused {
            return;
        }
        self.bed(node).write(name, &content).await;
        self.owed(node).sandboxes.insert(name, content);
    }

    async fn pause(&mut self, node: usize, name: &'static str) {
        if !self.owed(node).sandboxes.contains_key(name) {
            return;
        }
        let bed = self.bed(node);
        let before = bed.state(name);
        let paused = bed.service.pause(&bed.me, name, PauseRequest::default()).await;
        match paused {
            Ok(shown) => {
                assert_eq!(shown.state, State::Paused);
                if before == State::Running {
                    let content = self.nodes[node].1.sandboxes[name].clone();
                    self.owed(node).paused.insert(name, content);
                }
            }
            Err(error) => {
                self.excused("a pause", &error);
                assert_eq!(self.bed(node).state(name), before, "nothing has changed");
            }
        }
    }

    async fn resume(&mut self, node: usize, name: &'static str) {
        if !self.owed(node).sandboxes.contains_key(name) {
            return;
        }
        let chilled = self.dice.roll(2) == 0;
        let bed = self.bed(node);
        if chilled {
            let owner = super::super::durable::vault::tenant("me").unwrap();
            if let Some(vault) = bed.service.vault.get() {
                vault.chill_all(&owner).await.unwrap();
            }
        }
        let before = bed.state(name);
        match bed.service.resume(&bed.me, name).await {
            Ok(shown) => assert_eq!(shown.state, State::Running),
            Err(error) => {
                self.excused("a resume", &error);
                assert_eq!(self.bed(node).state(name), before, "nothing has changed");
            }
        }
    }

    async fn commit(&mut self, node: usize, name: &'static str) {
        let Some(content) = self.owed(node).sandboxes.get(name).cloned() else { return };
        let request = CreateCommit { wait: true, ..CreateCommit::default() };
        let bed = self.bed(node);
        match bed.service.commit_sandbox(&bed.me, name, request).await {
            Ok(commit) => {
                assert_eq!(commit.state, CommitState::Durable);
                self.commits.insert(commit.id, content);
            }
            Err(error) => self.excused("a commit", &error),
        }
    }

    async fn check_out(&mut self, node: usize) {
        if self.commits.is_empty() {
            return;
        }
        let at = self.dice.pick(self.commits.len());
        let (id, content) = self.commits.iter().nth(at).unwrap();
        let (id, content) = (id.clone(), content.clone());
        let bed = self.bed(node);
        let request = CreateSandbox { commit: Some(id), ..CreateSandbox::default() };
        match bed.service.create(&bed.me, request, None).await {
            Ok(made) => {
                assert_eq!(bed.read(&made.sandbox.id).await, content);
                bed.service.delete(&bed.me, &made.sandbox.id).await.unwrap();
            }
            Err(error) => self.excused("a checkout", &error),
        }
    }

    async fn gc(&mut self, node: usize) {
        let bed = self.bed(node);
        bed.service.collect_all().await;
        let request = GcRequest { dry_run: false, copies: self.count.is_multiple_of(2) };
        if let Err(error) = bed.service.store_gc(&bed.me, request).await {
            // Another collector may be at it, which is nobody's fault.
            if !matches!(error, Error::TooMany(_)) {
                self.excused("a collection", &error);
            }
        }
    }

    async fn restart(&mut self, node: usize) {
        let bed = self.nodes[node].0.take().unwrap();
        self.nodes[node].0 = Some(bed.restart().await);
    }

    /// Makes a checkpoint and has it put away, or goes back to it.
    async fn spill(&mut self, node: usize, name: &'static str) {
        let Some(content) = self.owed(node).sandboxes.get(name).cloned() else { return };
        let known = self.owed(node).checkpoints.get(name).cloned();
        let bed = self.bed(node);
        let Some(kept) = known else {
            if bed.state(name) == State::Running {
                bed.service.checkpoint(&bed.me, name, Some("moment".to_owned())).await.unwrap();
                self.owed(node).checkpoints.insert(name, content);
            }
            return;
        };
        bed.engine.set_available(1);
        bed.service.make_room(u64::MAX).await.unwrap();
        bed.engine.set_available(1 << 20);
        match bed.service.rewind(&bed.me, name, "moment".to_owned()).await {
            Ok(_) => {
                self.owed(node).sandboxes.insert(name, kept);
            }
            Err(error) => self.excused("a rewind", &error),
        }
    }

    /// The store is well: everything that was promised is there.
    async fn settle(&mut self) {
        self.health = Health::Well;
        infect(&self.proxy, Health::Well, Dice(1));
        for node in 0..2 {
            for (name, content) in self.nodes[node].1.sandboxes.clone() {
                let bed = self.bed(node);
                bed.service.resume(&bed.me, name).await.unwrap();
                assert_eq!(bed.read(name).await, content, "{name} of {node}");
                if let Some(kept) = self.nodes[node].1.checkpoints.get(name) {
                    let bed = self.bed(node);
                    bed.service.rewind(&bed.me, name, "moment".to_owned()).await.unwrap();
                    assert_eq!(bed.read(name).await, *kept, "the checkpoint of {name} of {node}");
                }
            }
        }
        for (number, (id, content)) in self.commits.clone().into_iter().enumerate() {
            let bed = self.bed(number % 2);
            let request = CreateSandbox { commit: Some(id.clone()), ..CreateSandbox::default() };
            let made = bed.service.create(&bed.me, request, None).await.unwrap().sandbox.id;
            assert_eq!(bed.read(&made).await, content, "{id}");
            bed.service.delete(&bed.me, &made).await.unwrap();
        }
    }

    /// When everything is deleted nothing is left.
    async fn leave(&mut self) {
        for node in 0..2 {
            let bed = self.bed(node);
            for name in self.nodes[node].1.sandboxes.keys() {
                bed.service.delete(&bed.me, name).await.unwrap();
            }
            let all = bed.service.commits(&bed.me, &Default::default()).await.unwrap().commits;
            for commit in all {
                bed.service.delete_commit(&bed.me, &commit.id).await.unwrap();
            }
            bed.service.forget_strays().await.unwrap();
        }
        for node in 0..2 {
            // What was on its way for a sandbox that is gone may still come.
            let mut left = self.left(node).await;
            for _ in 0..200 {
                if left == (0, 0, 1) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                left = self.left(node).await;
            }
            assert_eq!(left, (0, 0, 1), "only the template is left of {node}");
        }
    }

    /// Bytes in the store, bytes of copies, machines.
    async fn left(&self, node: usize) -> (u64, u64, usize) {
        let bed = self.bed(node);
        let vault = bed.service.vault().await.unwrap();
        let needed = bed.service.registry().states();
        vault.forget_copies(needed, Duration::ZERO).await.unwrap();
        let usage = bed.service.store_usage(&bed.me).await.unwrap();
        (usage.logical_bytes, usage.cache_bytes, bed.machines())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_promised_is_kept_whatever_the_store_does() {
    let seed = std::env::var("RAMET_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(SEED);
    let steps = std::env::var("RAMET_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    eprintln!("RAMET_TEST_SEED={seed} repeats this walk");
    let server = tokio::task::spawn_blocking(Server::start).await.unwrap().unwrap();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let place = || Location::S3(server.location(proxy.address(), &format!("walk-{seed}")));
    let nodes = [Bed::with(settings(place())).await, Bed::with(settings(place())).await];
    let nodes = nodes.into_iter().map(|bed| (Some(bed), Owed::default())).collect();
    let (dice, commits) = (Dice(seed | 1), BTreeMap::new());
    let mut walk = Walk { dice, proxy, health: Health::Well, nodes, commits, count: 0 };
    for _ in 0..steps.unwrap_or(STEPS) {
        walk.step().await;
    }
    walk.settle().await;
    walk.leave().await;
}
