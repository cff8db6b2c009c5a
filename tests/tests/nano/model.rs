//! Random trees of machines against a plain model: a map from address to value for each.
//!
//! Machines are held still, so that memory changes only by what the test writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::Config;
use ramet_engine::monitor::Machine;
use ramet_proto::control::{Restore, Start};
use ramet_tests::nano::{Command, Mailbox};

use crate::bed::{Bed, START, fork, fork_one};

/// Words that are written: few, so that machines often differ in the same one.
const WORDS: u64 = 12;
/// Words are this far apart: some share a page, some share a huge page.
const STRIDE: u64 = 0x1_8800;
/// Most machines at one time.
const MACHINES_MAX: usize = 12;

#[derive(Debug, Clone)]
enum Act {
    /// The host writes a word of a machine.
    Write {
        machine: usize,
        word: u64,
        value: u64,
    },
    /// The guest writes a word of itself.
    GuestWrite {
        machine: usize,
        word: u64,
    },
    Fork {
        machine: usize,
        count: usize,
    },
    Checkpoint {
        machine: usize,
    },
    Rewind {
        checkpoint: usize,
    },
    Kill {
        machine: usize,
    },
    Save {
        machine: usize,
    },
    Restore {
        saved: usize,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let index = 0..64_usize;
    prop_oneof![
        6 => (index.clone(), 0..WORDS, any::<u64>())
            .prop_map(|(machine, word, value)| Act::Write { machine, word, value }),
        3 => (index.clone(), 0..WORDS).prop_map(|(machine, word)| Act::GuestWrite { machine, word }),
        4 => (index.clone(), 1..4_usize).prop_map(|(machine, count)| Act::Fork { machine, count }),
        2 => index.clone().prop_map(|machine| Act::Checkpoint { machine }),
        2 => index.clone().prop_map(|checkpoint| Act::Rewind { checkpoint }),
        2 => index.clone().prop_map(|machine| Act::Kill { machine }),
        1 => index.clone().prop_map(|machine| Act::Save { machine }),
        1 => index.prop_map(|saved| Act::Restore { saved }),
    ]
}

type Memory = BTreeMap<u64, u64>;

/// The machines, each with what its memory should be.
#[derive(Default)]
struct World {
    machines: Vec<(Machine, Memory)>,
    checkpoints: Vec<(Machine, Memory)>,
    saved: Vec<(PathBuf, Memory)>,
}

fn address(word: u64) -> u64 {
    START + word * STRIDE
}

fn restore(bed: &Bed, directory: &Path) -> Machine {
    let machine = bed.start();
    let directory = directory.to_str().unwrap().to_owned();
    let (start, identity, layers, verify) = (Start::Run, None, None, false);
    let (bases, volumes, pager) = (Vec::new(), Vec::new(), None);
    let restore = Restore { directory, start, identity, layers, bases, volumes, verify, pager };
    machine.restore(restore).unwrap();
    machine
}

impl World {
    fn apply(&mut self, bed: &Bed, act: &Act) {
        let machines = self.machines.len();
        match act {
            Act::Write { machine, word, value } => {
                let (machine, memory) = &mut self.machines[machine % machines];
                machine.write_memory(address(*word), &value.to_le_bytes()).unwrap();
                memory.insert(*word, *value);
            }
            Act::GuestWrite { machine, word } => {
                let (machine, memory) = &mut self.machines[machine % machines];
                let (start, length, stride) = (address(*word), 8, 8);
                Mailbox::of(machine).order(Command::Touch { start, length, stride }).unwrap();
                Mailbox::of(machine).hold().unwrap();
                let value = memory.entry(*word).or_default();
                *value = value.wrapping_add(1);
            }
            Act::Fork { machine, count } if machines + count <= MACHINES_MAX => {
                let (machine, memory) = &self.machines[machine % machines];
                let (children, memory) = (fork(machine, *count), memory.clone());
                self.machines.extend(children.into_iter().map(|child| (child, memory.clone())));
            }
            Act::Checkpoint { machine } if self.checkpoints.len() < 4 => {
                let (machine, memory) = &self.machines[machine % machines];
                self.checkpoints.push((machine.checkpoint().unwrap(), memory.clone()));
            }
            Act::Rewind { checkpoint }
                if !self.checkpoints.is_empty() && machines < MACHINES_MAX =>
            {
                let (checkpoint, memory) = &self.checkpoints[checkpoint % self.checkpoints.len()];
                self.machines.push((fork_one(checkpoint), memory.clone()));
            }
            Act::Kill { machine } if machines > 1 => {
                self.machines.remove(machine % machines).0.kill().unwrap();
            }
            Act::Save { machine } if self.saved.len() < 3 => {
                let (machine, memory) = &self.machines[machine % machines];
                let directory = bed.run.path().join(format!("saved{}", self.saved.len()));
                machine.save(&directory, true).unwrap();
                self.saved.push((directory, memory.clone()));
            }
            Act::Restore { saved } if !self.saved.is_empty() && machines < MACHINES_MAX => {
                let (directory, memory) = &self.saved[saved % self.saved.len()];
                self.machines.push((restore(bed, directory), memory.clone()));
            }
            // There is nothing to do it with, or no room for more.
            _ => {}
        }
    }

    fn check(&self) {
        for (machine, memory) in self.machines.iter().chain(&self.checkpoints) {
            for word in 0..WORDS {
                let bytes = machine.read_memory(address(word), 8).unwrap();
                let value = u64::from_le_bytes(bytes.try_into().unwrap());
                let expected = memory.get(&word).copied().unwrap_or_default();
                assert_eq!(value, expected, "word {word} of machine {}", machine.pid());
            }
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 12, max_shrink_iters: 60, ..Config::default() })]
    #[test]
    fn trees_behave_like_maps(acts in prop::collection::vec(act(), 1..40)) {
        let Some(bed) = Bed::new() else { return Ok(()) };
        let root = bed.boot(1);
        Mailbox::of(&root).hold().unwrap();
        let mut world = World::default();
        world.machines.push((root, Memory::new()));
        for act in &acts {
            world.apply(&bed, act);
        }
        world.check();
        drop(world);
        bed.await_only(&[]);
    }
}
