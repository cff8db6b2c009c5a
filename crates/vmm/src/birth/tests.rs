//! What the source makes of its children's reports.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::Duration;

use ramet_proto::needs::Needs;

use super::*;

fn birth(count: usize, stem: u32) -> (Reporter, Birth) {
    let (reporter, reader) = channel().unwrap();
    let begun = Begun {
        client: 1,
        id: 2,
        purpose: Purpose::Fork,
        deadline: Instant::now() + Duration::from_secs(60),
        rendezvous_us: 0,
    };
    (reporter, Birth::new(begun, reader, count, stem))
}

fn born(index: usize) -> Report {
    let pid = 100 + u32::try_from(index).unwrap();
    Report::Born { index, born: Born { pid, entered_us: 1, ready_us: 2 } }
}

fn failed(index: usize, message: &str) -> Report {
    Report::Failed { index, failure: Failure { code: Code::Kvm, message: message.into() } }
}

/// The pid or the message of each child.
fn outcomes(birth: Birth) -> Vec<String> {
    let text = |outcome| match outcome {
        Ok(Settled::Born(born)) => born.pid.to_string(),
        Ok(Settled::Saved(saved)) => format!("{} bytes", saved.memory_bytes),
        Err(Failure { code, message }) => format!("{code:?}: {message}"),
    };
    birth.outcomes().into_iter().map(text).collect()
}

#[test]
fn children_settle_in_any_order() {
    let (mut reporter, mut birth) = birth(3, 10);
    assert!(!birth.read());
    reporter.report(born(2)).unwrap();
    reporter.report(Report::Forked { index: 1, pid: 11 }).unwrap();
    assert!(!birth.read());
    reporter.report(failed(1, "no memory")).unwrap();
    assert!(!birth.read());
    reporter.report(born(0)).unwrap();
    assert!(birth.read());
    assert_eq!(outcomes(birth), ["100", "Kvm: no memory", "102"]);
}

#[test]
fn reports_come_in_pieces() {
    let (mut reporter, mut birth) = birth(1, 10);
    let line = [serde_json::to_vec(&born(0)).unwrap(), b"\n".to_vec()].concat();
    for byte in line {
        assert!(!birth.read());
        reporter.0.write_all(&[byte]).unwrap();
    }
    assert!(birth.read());
    assert_eq!(outcomes(birth), ["100"]);
}

#[test]
fn the_first_report_of_a_child_counts() {
    let (mut reporter, mut birth) = birth(1, 10);
    reporter.report(born(0)).unwrap();
    reporter.report(failed(0, "late")).unwrap();
    assert!(birth.read());
    assert_eq!(outcomes(birth), ["100"]);
}

#[test]
fn nonsense_and_strangers_are_not_heard() {
    let (mut reporter, mut birth) = birth(2, 10);
    reporter.0.write_all(b"nonsense\n\n{}\n\xff\n").unwrap();
    reporter.report(born(2)).unwrap();
    reporter.report(Report::Forked { index: usize::MAX, pid: 1 }).unwrap();
    assert!(!birth.read());
    reporter.report(born(1)).unwrap();
    reporter.report(born(0)).unwrap();
    assert!(birth.read());
    assert_eq!(outcomes(birth), ["100", "101"]);
}

#[test]
fn who_has_not_reported_when_all_are_gone_is_dead() {
    let (mut reporter, mut birth) = birth(4, 10);
    reporter.report(Report::Forked { index: 1, pid: 11 }).unwrap();
    reporter.report(born(3)).unwrap();
    reporter.0.write_all(b"{\"Born\":{\"index\":0,").unwrap();
    drop(reporter);
    assert!(birth.read());
    let died = |who| format!("ChildDied: {who} ended before it was ready");
    let expected = [died("process 10"), died("process 11"), died("the child"), "103".into()];
    assert_eq!(outcomes(birth), expected);
}

#[test]
fn a_saved_machine_is_reported_by_its_writer() {
    let (mut reporter, mut birth) = birth(1, 10);
    let saved = Saved {
        pause_us: 0,
        write_us: 1,
        memory_bytes: 4096,
        disk_bytes: 0,
        needs: Needs::default(),
    };
    reporter.report(Report::Saved { saved }).unwrap();
    assert!(birth.read());
    assert_eq!(outcomes(birth), ["4096 bytes"]);
}

#[test]
fn long_messages_are_cut_between_characters() {
    let (mut reporter, mut birth) = birth(1, 10);
    reporter.report(failed(0, &"é\u{1}".repeat(MESSAGE_MAX))).unwrap();
    assert!(birth.read());
    let message = outcomes(birth).remove(0);
    assert!((MESSAGE_MAX - 4..MESSAGE_MAX + 6).contains(&message.len()), "{}", message.len());
}

#[test]
fn a_child_learns_that_its_source_is_gone() {
    let (mut reporter, birth) = birth(1, 10);
    drop(birth);
    assert!(reporter.report(born(0)).is_err());
}

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn children_that_are_late_are_killed_and_others_are_not() {
    let (mut late, mut later, mut ready) = (sleeper(), sleeper(), sleeper());
    let (mut reporter, mut birth) = birth(4, late.id());
    reporter.report(Report::Forked { index: 1, pid: later.id() }).unwrap();
    reporter.report(Report::Forked { index: 2, pid: ready.id() }).unwrap();
    reporter.report(born(2)).unwrap();
    assert!(!birth.read());
    birth.give_up();
    assert_eq!(late.wait().unwrap().signal(), Some(9));
    assert_eq!(later.wait().unwrap().signal(), Some(9));
    assert!(ready.try_wait().unwrap().is_none());
    ready.kill().unwrap();
    ready.wait().unwrap();
    let late = "GuestUnresponsive: the child did not get ready in time and was killed";
    assert_eq!(outcomes(birth), [late, late, "102", late]);
}

#[test]
fn giving_up_on_a_process_that_is_gone_hurts_nobody() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let (_reporter, mut birth) = birth(1, child.id());
    birth.give_up();
    assert!(outcomes(birth)[0].starts_with("GuestUnresponsive"));
}
