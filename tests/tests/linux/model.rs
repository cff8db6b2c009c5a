//! Random walks over a tree of machines, against a plain model: what each one's file and variable
//! must hold. A walk is its seed; a seed that found something stays in [`SEEDS`].

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use ramet_engine::monitor::Machine;
use ramet_proto::control::{Start, State};
use ramet_tests::linux;

use crate::bed::{Guest, bed, fork_with, guest, restore};

/// Walks that are always taken. The second and the third forked an interpreter while it was seeding its generators.
const SEEDS: [u64; 3] = [1, 8, 1_795_033_320];
const STEPS: usize = 25;
/// Most machines, frozen ones and saved ones of a walk.
const RUNNING_MAX: usize = 5;
const FROZEN_MAX: usize = 2;
const SAVED_MAX: usize = 2;

/// What a machine must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    file: u64,
    variable: u64,
}

struct Walk {
    random: u64,
    number: u64,
    running: Vec<(Guest, Held)>,
    frozen: Vec<(Machine, Held)>,
    saved: Vec<(PathBuf, Held)>,
    log: Vec<String>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let first = guest("walk");
        first.py("variable = 0; put('/srv/value', '0')");
        let held = Held { file: 0, variable: 0 };
        Self {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            number: 0,
            running: vec![(first, held)],
            frozen: Vec::new(),
            saved: Vec::new(),
            log: Vec::new(),
        }
    }

    /// The next random number below a bound (xorshift).
    fn below(&mut self, bound: usize) -> usize {
        for shift in [(13, true), (7, false), (17, true)] {
            let (by, left) = shift;
            self.random ^= if left { self.random << by } else { self.random >> by };
        }
        usize::try_from(self.random >> 33).unwrap() % bound
    }

    fn fresh(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// One step. What cannot be done just now is left out.
    fn step(&mut self) {
        let at = self.below(self.running.len());
        match self.below(10) {
            0 | 1 => self.write(at),
            2 | 3 => self.set(at),
            4 | 5 => self.fork(at),
            6 => self.checkpoint(at),
            7 => self.rewind(),
            8 => self.kill(at),
            _ if self.saved.len() < SAVED_MAX => self.save(at),
            _ => self.restore(),
        }
    }

    fn write(&mut self, at: usize) {
        let value = self.fresh();
        self.log.push(format!("write {value} in {at}"));
        let (guest, held) = &mut self.running[at];
        match value % 2 {
            0 => guest.put("/srv/value", &value.to_string()),
            // This one is in the cache of the guest for a while.
            _ => drop(guest.py(&format!("open('/srv/value', 'w').write('{value}')"))),
        }
        held.file = value;
    }

    fn set(&mut self, at: usize) {
        let value = self.fresh();
        self.log.push(format!("set {value} in {at}"));
        let (guest, held) = &mut self.running[at];
        guest.py(&format!("variable = {value}"));
        held.variable = value;
    }

    fn fork(&mut self, at: usize) {
        let room = RUNNING_MAX.saturating_sub(self.running.len());
        if room == 0 {
            return self.kill(at);
        }
        let count = 1 + self.below(room.min(3));
        self.log.push(format!("fork {count} of {at}"));
        let (guest, held) = &self.running[at];
        let held = held.clone();
        let identities = (0..count).map(|_| linux::identity("walk")).collect();
        for child in fork_with(guest, identities) {
            self.running.push((child, held.clone()));
        }
    }

    fn checkpoint(&mut self, at: usize) {
        if self.frozen.len() == FROZEN_MAX {
            self.frozen.remove(0);
        }
        self.log.push(format!("checkpoint of {at}"));
        let (guest, held) = &self.running[at];
        let kept = guest.checkpoint().unwrap();
        self.frozen.push((kept, held.clone()));
    }

    fn rewind(&mut self) {
        if self.frozen.is_empty() || self.running.len() >= RUNNING_MAX {
            return;
        }
        let at = self.below(self.frozen.len());
        self.log.push(format!("rewind to {at}"));
        let (kept, held) = &self.frozen[at];
        let child = fork_with(kept, vec![linux::identity("walk")]).pop().unwrap();
        self.running.push((child, held.clone()));
    }

    fn kill(&mut self, at: usize) {
        if self.running.len() > 1 {
            self.log.push(format!("kill {at}"));
            self.running.swap_remove(at).0.0.kill().unwrap();
        }
    }

    fn save(&mut self, at: usize) {
        self.log.push(format!("save {at}"));
        let name = format!("walk-{:x}-{}", self.random, self.saved.len());
        let directory = bed().directory.path().join(name);
        let (guest, held) = &self.running[at];
        guest.save(&directory, true).unwrap();
        self.saved.push((directory, held.clone()));
    }

    fn restore(&mut self) {
        if self.running.len() >= RUNNING_MAX {
            return;
        }
        let at = self.below(self.saved.len());
        self.log.push(format!("restore {at}"));
        let (directory, held) = &self.saved[at];
        let machine = bed().start();
        let identity = Some(linux::identity("walk"));
        machine.restore(restore(directory, Start::Run, identity)).unwrap();
        linux::await_ready(&machine, crate::bed::patience()).unwrap();
        self.running.push((Guest(machine), held.clone()));
    }

    /// Compares a machine with the model.
    fn check(&self, at: usize) {
        let (guest, held) = &self.running[at];
        let told = guest.py("print(open('/srv/value').read(), variable)");
        assert_eq!(told, format!("{} {}", held.file, held.variable), "machine {at}");
    }

    fn walk(&mut self) {
        for _ in 0..STEPS {
            self.step();
            let at = self.below(self.running.len());
            self.check(at);
        }
        (0..self.running.len()).for_each(|at| self.check(at));
        for (kept, held) in &self.frozen {
            assert_eq!(kept.status().unwrap().state, State::Frozen);
            let child = fork_with(kept, vec![linux::identity("walk")]).pop().unwrap();
            assert_eq!(child.get("/srv/value"), held.file.to_string());
        }
    }
}

/// Says how to take the same walk again if it does not end well.
struct Story {
    seed: u64,
    walk: Walk,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let again = "cargo xtask linux-tests -- model::other_walks";
            eprintln!("RAMET_TEST_SEED={} {again}: {}", self.seed, self.walk.log.join(", "));
        }
        for (directory, _) in &self.walk.saved {
            // The bed's directory goes at the end in any case.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn take(seed: u64) {
    eprintln!("a walk with RAMET_TEST_SEED={seed}");
    let walk = Walk::new(seed);
    Story { seed, walk }.walk.walk();
}

pub fn known_walks() {
    SEEDS.into_iter().for_each(take);
}

/// Walks that nobody has taken yet: `RAMET_TEST_WALKS` of them, from `RAMET_TEST_SEED` on.
pub fn other_walks() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed: u64 = number("RAMET_TEST_SEED").unwrap_or_else(clock);
    let walks: u64 = number("RAMET_TEST_WALKS").unwrap_or(1);
    let mut failed = Vec::new();
    for seed in seed..seed + walks {
        let taken = std::panic::catch_unwind(|| take(seed));
        failed.extend(taken.err().map(|_| seed));
    }
    assert_eq!(failed, [0; 0], "of {walks} walks");
}
