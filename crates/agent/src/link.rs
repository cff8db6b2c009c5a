//! The agent's connection to its monitor, and the seizer it summons.
//!
//! Two threads for ever: one keeps the link (connect, say hello, hand on what comes, and again when
//! it is lost, as it is in every child), one keeps the seizer process. A message that is not
//! understood closes the link, because what it asked for would not be done.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, socket};
use ramet_proto::agent::{ToAgent, ToMonitor};
use ramet_proto::doorbell::LINK_PORT;

use crate::calls::{self, Calls};
use crate::identity::BINARY;
use crate::process::lock;
use crate::seize::{Report, Summons};
use crate::sys::kernel;
use crate::{log, shutdown};

/// The host's address on vsock.
const HOST_CID: u32 = 2;
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// A seizer that was started is ready within this time.
const READY_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest line of the monitor.
const LINE_BYTES: u64 = 64 * 1024;
/// Before ordinary threads, after the seizer: a meeting must not wait for a busy guest.
const PRIORITY: i32 = 50;

/// The seizer's socket, if there is one that is ready.
#[derive(Default)]
pub struct Seizer {
    socket: Mutex<Option<UnixStream>>,
    /// The socket was set.
    ready: Condvar,
}

impl Seizer {
    fn summon(&self, summons: Summons) -> io::Result<()> {
        let mut line = serde_json::to_vec(&summons)?;
        line.push(b'\n');
        match &mut *self.wait_until_ready() {
            Some(socket) => socket.write_all(&line),
            None => Err(io::Error::other("the seizer is not ready")),
        }
    }

    /// The socket, if there is one within [`READY_TIMEOUT`].
    fn wait_until_ready(&self) -> MutexGuard<'_, Option<UnixStream>> {
        let waited = self
            .ready
            .wait_timeout_while(lock(&self.socket), READY_TIMEOUT, |socket| socket.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keep a seizer running and take its reports, for ever.
    pub fn keep(&self, calls: &Calls) {
        let mut wait = RETRY_FIRST;
        while !shutdown::has_begun() {
            let started = Instant::now();
            if let Err(error) = self.run_once(calls) {
                log::line(format_args!("seizer: {error}"));
            }
            *lock(&self.socket) = None;
            calls.no_meetings();
            wait = if started.elapsed() > RETRY_LAST { RETRY_FIRST } else { wait * 2 };
            wait = wait.min(RETRY_LAST);
            std::thread::sleep(wait);
        }
    }

    fn run_once(&self, calls: &Calls) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        // Its status goes to the reaper; its end is seen as the end of its reports.
        Command::new(BINARY)
            .arg("seize")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        for line in BufReader::new(ours.try_clone()?).lines() {
            let report: Report = serde_json::from_str(&line?)?;
            for note in &report.notes {
                log::line(format_args!("meeting {}: {note}", report.meeting));
            }
            if report.meeting == 0 && report.outcome.is_none() && report.notes.is_empty() {
                *lock(&self.socket) = Some(ours.try_clone()?);
                self.ready.notify_all();
            } else {
                calls.met(&report);
            }
        }
        Err(io::Error::other("it ended"))
    }
}

/// Keep the link to the monitor, for ever.
pub fn keep(seizer: &Seizer, calls: &Calls) {
    if let Err(error) = kernel::realtime_priority(PRIORITY) {
        log::line(format_args!("priority of the link: {error}"));
    }
    // A hello says that meetings can be held.
    drop(seizer.wait_until_ready());
    let mut wait = RETRY_FIRST;
    loop {
        match dial() {
            Ok(link) => {
                wait = RETRY_FIRST;
                let ended = converse(link, seizer, calls);
                calls.link_down();
                if let Err(error) = ended {
                    log::line(format_args!("link: {error}"));
                }
            }
            // A machine without a monitor's listener runs on without forks.
            Err(_) => wait = (wait * 2).min(RETRY_LAST),
        }
        std::thread::sleep(wait);
    }
}

fn dial() -> io::Result<File> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &VsockAddr::new(HOST_CID, LINK_PORT))?;
    Ok(File::from(socket))
}

fn converse(mut link: File, seizer: &Seizer, calls: &Calls) -> io::Result<()> {
    calls::send(&mut link, &ToMonitor::Hello { version: ramet_proto::VERSION })?;
    calls.link_up(link.try_clone()?);
    let mut reader = BufReader::new(link);
    loop {
        let mut line = String::new();
        let read = reader.by_ref().take(LINE_BYTES).read_line(&mut line);
        match read {
            // The usual end: the machine was forked or woken, or the monitor left.
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        match serde_json::from_str(&line).map_err(io::Error::other)? {
            ToAgent::Rendezvous { meeting, call } => {
                call.iter().for_each(|call| calls.meeting(*call));
                if let Err(error) = seizer.summon(Summons { meeting, call }) {
                    log::line(format_args!("meeting {meeting}: {error}"));
                    let report = Report { meeting, call, ..Report::default() };
                    calls.met(&report);
                }
            }
            ToAgent::Refused { call, failure } => calls.refused(call, failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, JoinHandle};

    use ramet_proto::agent::Failure;

    use super::*;
    use crate::failure::{Outcome, failure};

    /// A monitor's end of a link, and a seizer that is played by the test.
    struct Stage {
        calls: &'static Calls,
        monitor: BufReader<UnixStream>,
        summons: BufReader<UnixStream>,
        link: JoinHandle<()>,
    }

    fn stage() -> Stage {
        let calls: &'static Calls = Box::leak(Box::default());
        let (link, monitor) = UnixStream::pair().expect("a pair");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        for stream in [&monitor, &theirs] {
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        }
        let seizer = Seizer { socket: Mutex::new(Some(ours)), ready: Condvar::new() };
        let link = thread::spawn(move || {
            let ended = converse(File::from(OwnedFd::from(link)), &seizer, calls);
            assert!(ended.is_ok(), "{ended:?}");
            calls.link_down();
        });
        let (monitor, summons) = (BufReader::new(monitor), BufReader::new(theirs));
        let mut stage = Stage { calls, monitor, summons, link };
        let hello = ToMonitor::Hello { version: ramet_proto::VERSION };
        assert_eq!(stage.heard(), hello);
        stage
    }

    impl Stage {
        fn heard(&mut self) -> ToMonitor {
            let mut line = String::new();
            self.monitor.read_line(&mut line).expect("a line");
            serde_json::from_str(&line).expect("a message")
        }

        fn say(&mut self, message: &ToAgent) {
            let text = serde_json::to_string(message).expect("JSON");
            writeln!(self.monitor.get_mut(), "{text}").expect("said");
        }

        /// Call from the guest, and the number that the monitor is told.
        fn call(&mut self, count: u32) -> (JoinHandle<Outcome<u32>>, u64) {
            // The link is up for callers shortly after its hello was heard.
            let calls = self.calls;
            let caller = thread::spawn(move || {
                loop {
                    match calls.fork(count) {
                        Err(failure) if failure.message.starts_with("there is no") => {
                            thread::yield_now();
                        }
                        answer => return answer,
                    }
                }
            });
            match self.heard() {
                ToMonitor::Fork { call, count: asked } if asked == count => (caller, call),
                other => panic!("{other:?}"),
            }
        }

        fn meet(&mut self, meeting: u64, call: Option<u64>) {
            self.say(&ToAgent::Rendezvous { meeting, call });
            let mut line = String::new();
            self.summons.read_line(&mut line).expect("summoned");
            let summons: Summons = serde_json::from_str(&line).expect("a summons");
            assert_eq!((summons.meeting, summons.call), (meeting, call));
        }

        fn report(&self, meeting: u64, call: Option<u64>, outcome: u32) {
            let outcome = Some(outcome);
            self.calls.met(&Report { meeting, call, outcome, notes: Vec::new() });
        }
    }

    fn join(caller: JoinHandle<Outcome<u32>>) -> Outcome<u32> {
        caller.join().expect("no panic")
    }

    #[test]
    fn a_call_is_answered_by_its_meeting_and_by_no_other() {
        let mut stage = stage();
        let (caller, call) = stage.call(3);
        stage.meet(1, None);
        stage.report(1, None, 2);
        stage.meet(2, Some(call));
        stage.report(2, Some(call), 0);
        assert_eq!(join(caller), Ok(0));
    }

    #[test]
    fn a_refusal_reaches_its_caller() {
        let mut stage = stage();
        let (caller, call) = stage.call(1);
        let failure = failure("too_many", "no more");
        stage.say(&ToAgent::Refused { call, failure: failure.clone() });
        assert_eq!(join(caller), Err(failure));
    }

    #[test]
    fn in_a_child_the_call_at_the_meeting_is_answered_and_others_fail() {
        let mut stage = stage();
        let (mine, call) = stage.call(2);
        let (other, _) = stage.call(5);
        stage.meet(7, Some(call));
        // As in a child: the link is lost before the meeting's report is read.
        let Stage { calls, monitor, link, .. } = stage;
        drop(monitor);
        link.join().expect("no panic");
        assert!(matches!(join(other), Err(Failure { code, .. }) if code == "io"));
        calls.met(&Report { meeting: 7, call: Some(call), outcome: Some(2), notes: Vec::new() });
        assert_eq!(join(mine), Ok(2));
        assert!(calls.fork(1).is_err(), "no link, no call");
    }

    #[test]
    fn a_message_that_is_not_understood_closes_the_link() {
        let calls = Calls::default();
        let (link, mut monitor) = UnixStream::pair().expect("a pair");
        writeln!(monitor, "{{\"dance\":{{}}}}").expect("said");
        let ended = converse(File::from(OwnedFd::from(link)), &Seizer::default(), &calls);
        assert!(ended.expect_err("refused").to_string().contains("dance"));
    }
}
