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
use std::sync::Mutex;
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
/// Longest line of the monitor.
const LINE_BYTES: u64 = 64 * 1024;
/// Before ordinary threads, after the seizer: a meeting must not wait for a busy guest.
const PRIORITY: i32 = 50;

/// The seizer's socket, if there is one that is ready.
#[derive(Default)]
pub struct Seizer {
    socket: Mutex<Option<UnixStream>>,
}

impl Seizer {
    fn summon(&self, summons: Summons) -> io::Result<()> {
        let mut line = serde_json::to_vec(&summons)?;
        line.push(b'\n');
        match &mut *lock(&self.socket) {
            Some(socket) => socket.write_all(&line),
            None => Err(io::Error::other("the seizer is not ready")),
        }
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
            wait = if started.elapsed() > RETRY_LAST {
                RETRY_FIRST
            } else {
                wait * 2
            };
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
    calls::send(
        &mut link,
        &ToMonitor::Hello {
            version: ramet_proto::VERSION,
        },
    )?;
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
                    let report = Report {
                        meeting,
                        call,
                        ..Report::default()
                    };
                    calls.met(&report);
                }
            }
            ToAgent::Refused { call, failure } => calls.refused(call, failure),
        }
    }
}
