//! SIGKILL to anyone at any moment: the others go on, and nothing is left behind.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_engine::control::Error;
use ramet_engine::monitor::Machine;

use crate::bed::{Bed, assert_counts, fill, fork, guest_hash, pattern_hash};

fn sigkill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    // Who is already gone needs no killing.
    assert!(matches!(kill(pid, Signal::SIGKILL), Ok(()) | Err(Errno::ESRCH)));
}

#[test]
fn children_outlive_their_source() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let children = fork(&source, 3);
    sigkill(source.pid());
    drop(source);
    children.iter().for_each(assert_counts);
    let grandchildren = fork(&children[0], 2);
    grandchildren.iter().for_each(assert_counts);
}

#[test]
fn siblings_outlive_each_other() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    // The first child makes the others, so it is the one to lose.
    for victim in [0, 3] {
        let mut children = fork(&source, 4);
        let lost = children.remove(victim);
        sigkill(lost.pid());
        drop(lost);
        children.iter().for_each(assert_counts);
        assert_counts(&source);
    }
    bed.await_only(&[&source]);
}

/// Pauses that spread the kill over all the steps of a fork.
fn moments() -> impl Iterator<Item = Duration> {
    (0..24).map(|number| Duration::from_micros(number * number * 40))
}

/// Kills one process that a fork is making, if one is seen in time.
fn kill_a_newcomer(bed: &Bed, known: &BTreeSet<u32>, after: Duration, last: bool) {
    for _ in 0..200 {
        let mut new: Vec<u32> = bed.processes().difference(known).copied().collect();
        if last {
            new.reverse();
        }
        if let Some(pid) = new.first() {
            thread::sleep(after);
            sigkill(*pid);
            return;
        }
    }
}

#[test]
fn a_child_killed_in_the_making() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 6);
    for (round, after) in moments().enumerate() {
        let known = bed.processes();
        let offspring = thread::scope(|scope| {
            scope.spawn(|| kill_a_newcomer(&bed, &known, after, round % 2 == 1));
            source.fork_plain(16).unwrap_or_else(|error| panic!("round {round}: {error}"))
        });
        let alive: Vec<Machine> =
            offspring.children.into_iter().flatten().map(|born| born.machine).collect();
        for child in &alive {
            let lost = child.status().is_err() && child.wait_end(Duration::from_secs(10)).unwrap();
            assert!(
                lost || child.status().is_ok(),
                "round {round}: a child that lives does not answer"
            );
        }
        assert_counts(&source);
        Machine::kill_all(alive).unwrap();
        bed.await_only(&[&source]);
    }
    assert_eq!(guest_hash(&source), pattern_hash(6));
}

#[test]
fn a_source_killed_while_it_forks() {
    let Some(bed) = Bed::new() else { return };
    for after in moments() {
        let source = bed.boot(1);
        let pid = source.pid();
        let result = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(after);
                sigkill(pid);
            });
            source.fork_plain(16)
        });
        match result {
            Ok(offspring) => {
                let children = offspring.all().expect("children of a fork that was answered");
                children.iter().for_each(assert_counts);
            }
            Err(Error::Closed) => {}
            Err(error) => panic!("after {after:?}: {error:?}"),
        }
        drop(source);
        bed.await_only(&[]);
    }
}
