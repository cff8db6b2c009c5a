//! SIGKILL to a source or a child at any moment of a fork: the others work, and nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_engine::control::Error;
use ramet_engine::monitor::{Machine, Monitor};
use ramet_proto::control::{Child, Start};
use ramet_tests::linux;

use crate::bed::{Guest, bed, eventually, fork_with, restore};

/// Children of one fork.
const COUNT: usize = 4;
/// Forks that somebody is killed in, of either kind.
const ROUNDS: u64 = 5;

/// Machines with a run directory of their own, so that their processes can be told from others'.
struct Nest {
    run: PathBuf,
    template: Machine,
}

impl Nest {
    fn new(name: &str) -> Self {
        let run = bed().directory.path().join(name);
        fs::create_dir(&run).unwrap();
        let template = Monitor::find(&run).unwrap().start().unwrap();
        template.restore(restore(bed().saved_seed(), Start::Frozen, None)).unwrap();
        Self { run, template }
    }

    fn processes(&self) -> BTreeSet<u32> {
        linux::processes_of(&self.run).unwrap()
    }

    fn hatch(&self, name: &str) -> Guest {
        fork_with(&self.template, vec![linux::identity(name)]).pop().unwrap()
    }

    /// Waits until these processes are all there are.
    fn await_only(&self, guests: &[&Guest]) {
        let mut expected: BTreeSet<u32> = guests.iter().map(|guest| guest.pid()).collect();
        expected.insert(self.template.pid());
        eventually("nothing is left", || self.processes() == expected);
    }
}

fn sigkill(pid: u32) {
    // Who is already gone needs no killing.
    let killed = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    assert!(matches!(killed, Ok(()) | Err(Errno::ESRCH)));
}

fn children(round: u64) -> Vec<Child> {
    let identity = |number| linux::identity(&format!("round-{round}-{number}"));
    let child = |number| Child { identity: Some(identity(number)) };
    (0..COUNT).map(child).collect()
}

pub fn a_child_is_killed_while_it_is_made() {
    let nest = Nest::new("nest-of-children");
    let source = nest.hatch("parent");
    source.py("value = 0");
    for round in 0..ROUNDS {
        let known = nest.processes();
        let offspring = thread::scope(|scope| {
            scope.spawn(|| {
                let mut newest = None;
                eventually("a child is seen", || {
                    let new: Vec<u32> = nest.processes().difference(&known).copied().collect();
                    newest = if round % 2 == 0 { new.first() } else { new.last() }.copied();
                    newest.is_some()
                });
                thread::sleep(Duration::from_millis(round * 60));
                newest.into_iter().for_each(sigkill);
            });
            source.fork(children(round)).unwrap()
        });
        let alive = offspring.children.into_iter().flatten().map(|born| Guest(born.machine));
        let mut alive: Vec<Guest> = alive.collect();
        // One may have been killed when it was ready already.
        alive.retain(|child| !child.wait_end(Duration::ZERO).unwrap());
        for child in &alive {
            assert_eq!(child.py("print(value)"), round.to_string());
            assert!(child.name().starts_with(&format!("round-{round}-")));
        }
        source.py("value += 1");
        drop(alive);
        nest.await_only(&[&source]);
    }
}

pub fn a_source_is_killed_while_it_forks() {
    let nest = Nest::new("nest-of-sources");
    for round in 0..ROUNDS {
        let source = nest.hatch("doomed");
        let pid = source.pid();
        let result = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(round * round * 40));
                sigkill(pid);
            });
            source.fork(children(round))
        });
        match result {
            Ok(offspring) => {
                let machines = offspring.all().expect("children of a fork that was answered");
                for child in machines.into_iter().map(Guest) {
                    assert!(child.name().starts_with(&format!("round-{round}-")));
                }
            }
            Err(Error::Closed) => {}
            Err(error) => panic!("round {round}: {error:?}"),
        }
        drop(source);
        nest.await_only(&[]);
    }
    assert_eq!(nest.hatch("survivor").sh("hostname"), "survivor");
}
