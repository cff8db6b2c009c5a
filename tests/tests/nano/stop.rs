//! How a guest ends is told as what it was.

use std::time::Duration;

use ramet_proto::control::{Code, Event, State, Stop};
use ramet_tests::nano::{Command, Mailbox};

use crate::bed::{Bed, assert_counts, fork_one};

fn ends(command: Command, expected: &Stop) {
    let Some(bed) = Bed::new() else { return };
    let source = bed.boot(1);
    let machine = fork_one(&source);
    let mut events = machine.events().unwrap();
    Mailbox::of(&machine).post(command).unwrap();
    let event = events.next(Duration::from_secs(10)).unwrap();
    assert_eq!(event, Event::Stopped(expected.clone()));
    assert_eq!(machine.status().unwrap().state, State::Stopped(expected.clone()));
    let refused = machine.fork_plain(1).unwrap_err();
    assert_eq!(refused.code(), Some(Code::WrongState));
    assert_eq!(machine.resume().unwrap_err().code(), Some(Code::WrongState));
    assert_counts(&source);
    machine.kill().unwrap();
    bed.await_only(&[&source]);
}

#[test]
fn power_off() {
    ends(Command::Out { port: 0x604, value: 0x34 }, &Stop::Shutdown);
}

#[test]
fn reboot() {
    ends(Command::Out { port: 0x605, value: 0x01 }, &Stop::Reboot);
}

#[test]
fn panic() {
    ends(Command::Out { port: 0x505, value: 0x01 }, &Stop::Panic);
}

#[test]
fn triple_fault() {
    ends(Command::Fault, &Stop::TripleFault);
}

#[test]
fn a_port_that_is_nothing_does_no_harm() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    for port in [0x10, 0x80, 0x604, 0x605, 0xffff] {
        Mailbox::of(&machine).order(Command::Out { port, value: 0 }).unwrap();
    }
    assert_counts(&machine);
}

#[test]
fn the_console_is_kept_and_forked() {
    let Some(bed) = Bed::new() else { return };
    let machine = bed.boot(1);
    let say = |machine, text: &str| {
        for value in text.bytes() {
            Mailbox::of(machine).order(Command::Out { port: 0x3f8, value }).unwrap();
        }
    };
    say(&machine, "hello\n");
    assert_eq!(machine.console().unwrap(), (6, "hello\n".to_owned()));
    let child = fork_one(&machine);
    say(&child, "child\n");
    let (_, text) = child.console().unwrap();
    assert!(text.ends_with("child\n"), "{text:?}");
    assert_eq!(machine.console().unwrap(), (6, "hello\n".to_owned()));
}
