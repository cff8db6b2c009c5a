//! Fork, checkpoint, rewind: one instant, and nothing shared after it.

use std::fs;
use std::thread;
use std::time::Duration;

use ramet_engine::monitor::Machine;
use ramet_proto::control::{Child, State};
use ramet_tests::nano::{self, Command, Gap, Mailbox};

use crate::bed::{
    Bed, MEMORY_MIB, START, THRESHOLD, assert_counts, fill, fork, fork_one, guest_hash,
    pattern_hash,
};

#[test]
fn boots_and_counts() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let mail = Mailbox::of(&machine).read().unwrap();
    assert_eq!(mail.memory, u64::from(MEMORY_MIB) << 20);
    let status = machine.status().unwrap();
    assert_eq!((status.state, status.generation, status.pid), (State::Running, 0, machine.pid()));
    fill(&machine, 5);
    assert_eq!(guest_hash(&machine), pattern_hash(5));
    machine.kill().unwrap();
    bed.await_only(&[]);
    assert_eq!(fs::read_dir(bed.run.path()).unwrap().count(), 1, "only the image is left");
}

#[test]
fn a_monitor_is_small() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let children = fork(&source, 8);
    for machine in children.iter().chain([&source]) {
        let stats = machine.stats().unwrap();
        assert!(stats.monitor_private_kib < 2048, "beside guest RAM: {stats:?}");
    }
    for child in &children {
        let stats = child.stats().unwrap();
        let own = stats.private_kib + stats.page_tables_kib;
        assert!(own < 2048, "an idle child: {stats:?}");
        assert_eq!(stats.last_pause_us, None, "it was never forked itself");
    }
}

#[test]
fn counters_agree_at_the_fork_and_diverge_after() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let held = Mailbox::of(&source).hold().unwrap();
    let child = fork_one(&source);
    assert_eq!(Mailbox::of(&child).read().unwrap(), held);
    Mailbox::of(&child).release().unwrap();
    assert_counts(&child);
    assert_eq!(Mailbox::of(&source).read().unwrap(), held, "the source is still held");
    Mailbox::of(&source).release().unwrap();
    assert_counts(&source);
    assert_eq!(child.status().unwrap().generation, 1);
}

/// The gap that a fork fell into, in each child; all must begin at one time.
fn instants(source: &Machine, children: &[Machine], vcpu: u64) -> Vec<Gap> {
    let log = Mailbox::of_vcpu(source, vcpu).read().unwrap().log;
    let cuts = children.iter().map(|child| {
        let own = Mailbox::of_vcpu(child, vcpu).read().unwrap().log;
        nano::cut(&log, &own).unwrap_or_else(|| panic!("no cut between {log:?} and {own:?}")).1
    });
    cuts.collect()
}

fn reset(machine: &Machine, vcpus: u64) {
    for vcpu in 0..vcpus {
        let command = Command::Reset { threshold: THRESHOLD, once: false };
        Mailbox::of_vcpu(machine, vcpu).order(command).unwrap();
    }
}

#[test]
fn eight_children_share_one_instant() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 8);
    reset(&source, 1);
    let children = fork(&source, 8);
    children.iter().for_each(assert_counts);
    assert_counts(&source);
    let cuts = instants(&source, &children, 0);
    assert!(cuts.iter().all(|cut| cut.start == cuts[0].start), "{cuts:?}");
    assert!(children.iter().all(|child| guest_hash(child) == pattern_hash(8)));
}

#[test]
fn both_vcpus_of_a_busy_guest_are_cut() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(2);
    for round in 0..5 {
        reset(&source, 2);
        let children = fork(&source, 2);
        for vcpu in 0..2 {
            for child in &children {
                Mailbox::of_vcpu(child, vcpu).await_counting().unwrap();
            }
            Mailbox::of_vcpu(&source, vcpu).await_counting().unwrap();
            let cuts = instants(&source, &children, vcpu);
            assert_eq!(cuts[0].start, cuts[1].start, "round {round}, vCPU {vcpu}");
        }
    }
}

#[test]
fn nothing_is_shared_after_a_fork() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 100);
    let children = fork(&source, 3);
    for (seed, child) in (0..).zip(&children[..2]) {
        fill(child, seed);
    }
    assert_eq!(guest_hash(&source), pattern_hash(100));
    fill(&source, 99);
    assert_eq!(guest_hash(&children[0]), pattern_hash(0));
    assert_eq!(guest_hash(&children[1]), pattern_hash(1));
    assert_eq!(guest_hash(&children[2]), pattern_hash(100));
    assert_eq!(guest_hash(&source), pattern_hash(99));
}

#[test]
fn a_paused_machine_forks_and_stays_paused() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    source.pause().unwrap();
    let before = Mailbox::of(&source).read().unwrap();
    let children = fork(&source, 2);
    children.iter().for_each(assert_counts);
    assert_eq!(source.status().unwrap().state, State::Paused);
    assert_eq!(Mailbox::of(&source).read().unwrap(), before);
    source.resume().unwrap();
    assert_counts(&source);
}

#[test]
fn machines_that_stood_still_together_go_on() {
    let Some(bed) = Bed::new() else { return };
    let group = [bed.boot(1), bed.boot(1)];
    group.iter().for_each(|machine| machine.pause().unwrap());
    let instants: Vec<_> =
        group.iter().map(|machine| Mailbox::of(machine).read().unwrap()).collect();
    for (machine, instant) in group.iter().zip(instants) {
        let made = machine.fork_and_resume(vec![Child::default(); 2]).unwrap();
        assert_eq!(machine.status().unwrap().state, State::Running);
        assert_counts(machine);
        for child in made.children {
            let child = child.unwrap().machine;
            assert!(Mailbox::of(&child).read().unwrap().counter >= instant.counter);
            assert_counts(&child);
        }
    }
    // One that runs is forked as usual.
    let made = group[0].fork_and_resume(vec![Child::default()]).unwrap();
    assert_eq!((made.children.len(), group[0].status().unwrap().state), (1, State::Running));
}

#[test]
fn fifty_generations() {
    let Some(bed) = Bed::new() else { return };
    let mut machine = bed.boot(1);
    for generation in 1..=50_u64 {
        let child = fork_one(&machine);
        let address = START + generation * 8;
        child.write_memory(address, &generation.to_le_bytes()).unwrap();
        machine = child;
    }
    assert_eq!(machine.status().unwrap().generation, 50);
    assert_counts(&machine);
    let words: Vec<u8> = (1..=50_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(machine.read_memory(START + 8, 400).unwrap(), words);
    bed.await_only(&[&machine]);
}

#[test]
fn a_second_fork_leaves_the_first_child_alone() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 1);
    let first = fork_one(&source);
    fill(&source, 2);
    let second = fork_one(&source);
    fill(&source, 3);
    assert_eq!(guest_hash(&first), pattern_hash(1));
    assert_eq!(guest_hash(&second), pattern_hash(2));
    assert_eq!(guest_hash(&source), pattern_hash(3));
    assert_eq!(guest_hash(&first), pattern_hash(1));
}

#[test]
fn forks_at_once_are_all_served() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 4);
    let children: Vec<Machine> = thread::scope(|scope| {
        let forks: Vec<_> = (0..4).map(|_| scope.spawn(|| fork(&source, 2))).collect();
        forks.into_iter().flat_map(|fork| fork.join().unwrap()).collect()
    });
    for child in &children {
        assert_counts(child);
        assert_eq!(guest_hash(child), pattern_hash(4));
    }
    assert_counts(&source);
    assert_eq!(bed.processes().len(), 9);
}

#[test]
fn rewind_goes_back_as_often_as_wanted() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    fill(&source, 1);
    let checkpoint = source.checkpoint().unwrap();
    assert_eq!(checkpoint.status().unwrap().state, State::Frozen);
    fill(&source, 2);
    for _ in 0..2 {
        let rewound = fork_one(&checkpoint);
        assert_eq!(rewound.status().unwrap().state, State::Running);
        assert_eq!(guest_hash(&rewound), pattern_hash(1));
        fill(&rewound, 3);
    }
    assert_eq!(guest_hash(&source), pattern_hash(2));
}

#[test]
fn a_checkpoint_never_runs() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let checkpoint = source.checkpoint().unwrap();
    let before = Mailbox::of(&checkpoint).read().unwrap();
    assert_counts(&source);
    assert_eq!(Mailbox::of(&checkpoint).read().unwrap(), before);
    drop(source);
    assert_counts(&fork_one(&checkpoint));
}

#[test]
fn largest_fork() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    Mailbox::of(&source).hold().unwrap();
    let children = fork(&source, 256);
    let last = children.last().unwrap();
    assert_eq!(Mailbox::of(last).read().unwrap(), Mailbox::of(&source).read().unwrap());
    Machine::kill_all(children).unwrap();
    bed.await_only(&[&source]);
}

#[test]
fn descriptors_do_not_pile_up() {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    drop(fork_one(&source));
    thread::sleep(Duration::from_millis(50));
    let before = count(source.pid());
    for _ in 0..100 {
        drop(fork_one(&source));
    }
    thread::sleep(Duration::from_millis(50));
    assert!(count(source.pid()) <= before, "{before} before, {} after", count(source.pid()));
    // Neither does a child inherit what its source has piled up for others.
    let (child, grandchild) = (fork_one(&source), fork_one(&source));
    assert!(count(child.pid()) <= before && count(grandchild.pid()) <= before);
    bed.await_only(&[&source, &child, &grandchild]);
}
