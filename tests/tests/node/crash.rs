//! `kill -9`, of the node at any moment and of monitors: what was answered as done is there, what was not is done or
//! undone, and nobody else notices.
//!
//! The moments follow from a seed: `RAMET_TEST_SEED` names another, `RAMET_TEST_CRASHES` sets how many.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_client::Error;
use ramet_client::api::{
    Code, CreateCheckpoint, CreateSandbox, ForkRequest, ListQuery, PauseRequest, PromoteRequest,
    RewindRequest, State,
};
use ramet_tests::linux;

use crate::bed::{Node, Sandbox, eventually, fresh, node, pairs, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    a_killed_monitor_takes_only_its_sandbox,
    a_child_killed_at_birth_is_told,
    a_node_killed_at_any_moment,
];

fn sigkill(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("a signal");
}

fn a_killed_monitor_takes_only_its_sandbox() {
    let (victim, sibling) = (fresh("victim"), fresh("sibling"));
    victim.py("value = 1");
    victim.checkpoint("before");
    let child = victim.fork(1).remove(0);
    victim.sh("echo last words > /dev/console");
    let logs = wait(node().client.logs(&victim.id)).unwrap();
    assert!(logs.text.contains("last words"), "{logs:?}");
    sigkill(truth::monitor_of(node(), &victim.id));
    eventually("it has failed", || victim.shown().state == State::Failed);
    let failure = victim.shown().failure.expect("a failure");
    assert!(failure.reason.contains("monitor"), "{failure:?}");
    assert_eq!(sibling.py("print(1)"), "1");
    assert_eq!(child.py("print(value)"), "1");
    let refused = victim.try_get("/etc/hostname");
    assert_eq!(refusal(refused), Code::WrongState);
    victim.rewind("before");
    assert_eq!(victim.py("print(value)"), "1", "its past is still there");
    assert_eq!(victim.shown().failure, None);
}

fn a_child_killed_at_birth_is_told() {
    let source = fresh("cradle");
    source.py("value = 'kept'");
    for _ in 0..10 {
        let before = linux::processes_of(node().home()).expect("/proc");
        let request = ForkRequest { count: Some(3), ..ForkRequest::default() };
        let forked = thread::scope(|scope| {
            let forking = scope.spawn(|| wait(node().client.fork(&source.id, &request)));
            while !forking.is_finished() {
                let now = linux::processes_of(node().home()).expect("/proc");
                if let Some(pid) = now.difference(&before).last() {
                    // It may have ended for another reason by now.
                    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                    break;
                }
            }
            forking.join().expect("no panic")
        });
        assert_eq!(source.py("print(value)"), "kept", "the source goes on");
        let forked = forked.unwrap_or_else(|error| node().fail(&error));
        assert_eq!(forked.children.len(), 3);
        let failed = forked.children.iter().filter(|child| child.error.is_some()).count();
        let living = forked.children.into_iter().filter_map(|child| child.sandbox);
        let living: Vec<Sandbox<'_>> = living.map(|sandbox| node().handle(sandbox.id)).collect();
        let fine = living.iter().filter(|child| child.shown().state == State::Running);
        fine.for_each(|child| assert_eq!(child.py("print(value)"), "kept"));
        if failed > 0 {
            assert_eq!(living.len(), 3 - failed);
            return;
        }
    }
    panic!("no child was hit in ten forks");
}

/// Crashes unless the environment says otherwise, and the latest moment of one.
const CRASHES: u64 = 5;
const SEED: u64 = 1;
const LATEST_MS: u64 = 2500;
/// Families that live at the same time.
const FAMILIES: usize = 3;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Numbers that look random (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn a_node_killed_at_any_moment() {
    let seed = variable("RAMET_TEST_SEED").unwrap_or(SEED);
    eprintln!("RAMET_TEST_SEED={seed}");
    let mut chance = Chance(seed);
    let node = Node::new("crash", &[]);
    let mut families: Vec<Family> =
        (0..FAMILIES).map(|number| Family::new(&node, number, chance.below(u64::MAX))).collect();
    for crash in 0..variable("RAMET_TEST_CRASHES").unwrap_or(CRASHES) {
        let moment = Duration::from_millis(chance.below(LATEST_MS));
        thread::scope(|scope| {
            for family in &mut families {
                let node = &node;
                scope.spawn(move || family.live(node));
            }
            thread::sleep(moment);
            node.kill();
        });
        node.start();
        node.await_ready();
        truth::holds(&node);
        for family in &mut families {
            family.check(&node);
        }
        truth::holds(&node);
        let count: usize = families.iter().map(|family| family.members.len()).sum();
        eprintln!("crash {crash} after {moment:?}: {count} sandboxes are as they were answered");
    }
}

/// What is known of a sandbox. Where an answer did not come, more than one thing is possible.
#[derive(Debug, Clone)]
struct Member {
    contents: BTreeSet<String>,
    paused: Option<bool>,
    /// What the file held at a checkpoint.
    kept: Option<BTreeSet<String>>,
}

/// A sandbox and its children, each with a file whose content is known.
struct Family {
    name: String,
    chance: Chance,
    next: u32,
    members: BTreeMap<String, Member>,
    gone: Vec<String>,
    /// An operation that was not answered: whether these are there is not known.
    unsure: Vec<(String, Option<(ForkRequest, String)>)>,
}

const FILE: &str = "/srv/content";

impl Family {
    fn new(node: &Node, number: usize, seed: u64) -> Self {
        let name = format!("f{number}");
        let root = node.create_as(CreateSandbox {
            name: Some(name.clone()),
            labels: pairs(&[("family", &name)]),
            ..CreateSandbox::default()
        });
        root.put(FILE, "0");
        root.keep();
        let contents = BTreeSet::from(["0".to_owned()]);
        let members =
            BTreeMap::from([(name.clone(), Member { contents, paused: Some(false), kept: None })]);
        let (gone, unsure) = (Vec::new(), Vec::new());
        Self { name, chance: Chance(seed), next: 0, members, gone, unsure }
    }

    /// Does one thing after the other until the node is gone.
    fn live(&mut self, node: &Node) {
        loop {
            let done = match self.chance.below(12) {
                0..3 => self.fork(node),
                3..6 => self.write(node),
                6..8 => self.turn(node),
                8 => self.keep(node),
                9 => self.rewind(node),
                10 => self.promote(node),
                _ => self.remove(node),
            };
            match done {
                Ok(()) => {}
                Err(error) if error.code().is_some() => node.fail(&error),
                Err(_) => return,
            }
        }
    }

    fn some(&mut self) -> String {
        let place = self.chance.below(self.members.len() as u64);
        let place = usize::try_from(place).expect("a place");
        self.members.keys().nth(place).expect("a member").clone()
    }

    fn some_child(&mut self) -> Option<String> {
        let name = self.some();
        (name != self.name).then_some(name)
    }

    fn fork(&mut self, node: &Node) -> Result<(), Error> {
        let source = self.some();
        self.next += 1;
        let name = format!("{}-{}", self.name, self.next);
        let request = ForkRequest { names: Some(vec![name.clone()]), ..ForkRequest::default() };
        let member = Member { paused: Some(false), kept: None, ..self.members[&source].clone() };
        // What is not answered is asked for again with the same key.
        self.unsure.push((name.clone(), Some((request.clone(), source.clone()))));
        self.members.insert(name.clone(), member);
        wait(node.client.fork_with_key(&source, &request, &name))?;
        self.unsure.pop();
        Ok(())
    }

    fn write(&mut self, node: &Node) -> Result<(), Error> {
        let name = self.some();
        if self.members[&name].paused != Some(false) {
            return Ok(());
        }
        self.next += 1;
        let content = self.next.to_string();
        let member = self.members.get_mut(&name).expect("a member");
        member.contents.insert(content.clone());
        let handle = node.handle(name);
        let written = handle.try_put(FILE, &content);
        handle.keep();
        written?;
        member.contents = BTreeSet::from([content]);
        Ok(())
    }

    fn turn(&mut self, node: &Node) -> Result<(), Error> {
        let name = self.some();
        let member = self.members.get_mut(&name).expect("a member");
        let pause = member.paused.take() == Some(false);
        match pause {
            true => wait(node.client.pause(&name, &PauseRequest::default()))?,
            false => wait(node.client.resume(&name))?,
        };
        member.paused = Some(pause);
        Ok(())
    }

    fn keep(&mut self, node: &Node) -> Result<(), Error> {
        let name = self.some();
        let member = self.members.get_mut(&name).expect("a member");
        if member.kept.is_some() {
            return Ok(());
        }
        let request = CreateCheckpoint { name: Some("kept".to_owned()) };
        // Unanswered, it may be there; then nobody asks for it.
        wait(node.client.checkpoint(&name, &request))?;
        member.kept = Some(member.contents.clone());
        Ok(())
    }

    fn rewind(&mut self, node: &Node) -> Result<(), Error> {
        let name = self.some();
        let member = self.members.get_mut(&name).expect("a member");
        let Some(kept) = member.kept.clone() else { return Ok(()) };
        member.contents.extend(kept.clone());
        let before = member.paused.take();
        wait(node.client.rewind(&name, &RewindRequest { checkpoint: "kept".to_owned() }))
            .inspect_err(|_| member.paused = before.filter(|paused| !paused))?;
        (member.contents, member.paused) = (kept, Some(false));
        Ok(())
    }

    fn promote(&mut self, node: &Node) -> Result<(), Error> {
        let Some(winner) = self.some_child() else { return Ok(()) };
        let contents = self.members[&winner].contents.clone();
        let root = self.members.get_mut(&self.name).expect("the root");
        root.contents.extend(contents.clone());
        let before = root.paused.take();
        self.unsure.push((winner.clone(), None));
        wait(node.client.promote(
            &self.name,
            &PromoteRequest { winner: winner.clone(), inherit_secrets: None },
        ))
        .inspect_err(|_| root.paused = before.filter(|paused| !paused))?;
        (root.contents, root.paused) = (contents, Some(false));
        self.unsure.pop();
        self.members.remove(&winner);
        self.gone.push(winner);
        Ok(())
    }

    fn remove(&mut self, node: &Node) -> Result<(), Error> {
        let Some(name) = self.some_child() else { return Ok(()) };
        self.unsure.push((name.clone(), None));
        wait(node.client.delete(&name))?;
        self.unsure.pop();
        self.members.remove(&name);
        self.gone.push(name);
        Ok(())
    }

    /// What was answered is so; what was not is one thing or the other from now on.
    fn check(&mut self, node: &Node) {
        for (name, asked) in std::mem::take(&mut self.unsure) {
            match asked {
                Some((request, source)) => {
                    let again = wait(node.client.fork_with_key(&source, &request, &name));
                    again.unwrap_or_else(|error| node.fail(&(name, error)));
                }
                None if wait(node.client.sandbox(&name)).is_err() => {
                    self.members.remove(&name);
                    self.gone.push(name);
                }
                None => {}
            }
        }
        for (name, member) in &mut self.members {
            check_member(node, name, member);
        }
        for name in self.gone.drain(..) {
            assert_eq!(refusal(wait(node.client.sandbox(&name))), Code::NotFound, "{name}");
        }
        let query =
            ListQuery { label: Some(format!("family={}", self.name)), ..Default::default() };
        let listed = wait(node.client.list_all(&query)).expect("a list");
        let listed: BTreeSet<String> = listed.into_iter().map(|sandbox| sandbox.name).collect();
        assert_eq!(listed, self.members.keys().cloned().collect(), "no other is there");
    }
}

fn check_member(node: &Node, name: &str, member: &mut Member) {
    let shown = wait(node.client.sandbox(name)).unwrap_or_else(|error| node.fail(&(name, error)));
    let state = match shown.state {
        State::Running => false,
        State::Paused => true,
        _ => node.fail(&shown),
    };
    assert!(member.paused.is_none_or(|paused| paused == state), "{shown:?}, not {member:?}");
    let handle = node.handle(name);
    if state {
        handle.resume();
    }
    member.paused = Some(false);
    let content = handle.get(FILE);
    handle.keep();
    assert!(member.contents.contains(&content), "{name} holds {content}, not {member:?}");
    member.contents = BTreeSet::from([content]);
}
