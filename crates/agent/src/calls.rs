//! A guest's own calls for a fork of the whole machine.
//!
//! ```text
//!  ramet-agent fork ─ Unix socket ─▶ pending ─ Rendezvous{call} ─▶ at the meeting ─▶ answered
//!                                       └──── Refused, link lost, 60 s ──▶ failed
//! ```
//!
//! Invariants: a call is answered once. A call that is at a meeting is answered by the meeting, also in
//! a child, whose link is lost at the same moment; every other call of a machine that loses its link
//! fails, because no one is left who knows of it. Nothing here runs while the vCPUs are seized.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ramet_proto::agent::{Failure, ToMonitor};
use ramet_proto::doorbell::{NOT_EXPECTED, WOKEN};
use serde::{Deserialize, Serialize};

use crate::failure::{Outcome, bad_request, failure};
use crate::identity::SOCKET;
use crate::log;
use crate::process::lock;
use crate::seize::Report;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call that is at a meeting may take beyond that.
const MEETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest line of a caller.
const LINE_BYTES: u64 = 4096;

/// A process in the guest → agent, as a JSON line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LocalRequest {
    /// Fork the machine.
    Fork {
        /// How many children.
        count: u32,
    },
}

/// Agent → process in the guest, as a JSON line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LocalReply {
    /// 0 in the source, i in child i.
    Index(u32),
    /// It did not happen.
    Failure(Failure),
}

type Answer = Sender<Outcome<u32>>;

/// Calls that wait, and the link they go over.
#[derive(Default)]
pub struct Calls {
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    link: Option<File>,
    pending: HashMap<u64, Answer>,
    at_meeting: HashMap<u64, Answer>,
}

impl Calls {
    /// Calls go over this link from now on.
    pub fn link_up(&self, link: File) {
        lock(&self.state).link = Some(link);
    }

    /// There is no link; whoever waits for one learns it.
    pub fn link_down(&self) {
        let mut state = lock(&self.state);
        state.link = None;
        for (_, answer) in state.pending.drain() {
            // A caller that gave up is not there to hear it.
            let _ = answer.send(Err(failure("io", "the connection to the monitor was lost")));
        }
    }

    /// The call is being answered by a meeting.
    pub fn meeting(&self, call: u64) {
        let mut state = lock(&self.state);
        if let Some(answer) = state.pending.remove(&call) {
            state.at_meeting.insert(call, answer);
        }
    }

    /// The monitor will not do it.
    pub fn refused(&self, call: u64, failure: Failure) {
        if let Some(answer) = lock(&self.state).pending.remove(&call) {
            // As above.
            let _ = answer.send(Err(failure));
        }
    }

    /// A meeting is over.
    pub fn met(&self, report: &Report) {
        let answer = report.call.and_then(|call| lock(&self.state).at_meeting.remove(&call));
        if let Some(answer) = answer {
            // As above.
            let _ = answer.send(index_of(report));
        }
    }

    /// The seizer is gone, and with it whatever meetings there were.
    pub fn no_meetings(&self) {
        for (_, answer) in lock(&self.state).at_meeting.drain() {
            // As above.
            let _ = answer.send(Err(failure("io", "the seizer ended during the meeting")));
        }
    }

    /// Ask the monitor for a fork and wait for the answer.
    pub fn fork(&self, count: u32) -> Outcome<u32> {
        if count == 0 {
            return Err(bad_request("a fork has at least one child"));
        }
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = channel();
        {
            let mut state = lock(&self.state);
            let Some(link) = &mut state.link else {
                return Err(failure("io", "there is no connection to the monitor"));
            };
            send(link, &ToMonitor::Fork { call, count })
                .map_err(|_| failure("io", "the connection to the monitor was lost"))?;
            state.pending.insert(call, answer);
        }
        if let Ok(outcome) = answered.recv_timeout(CALL_TIMEOUT) {
            return outcome;
        }
        lock(&self.state).pending.remove(&call);
        let late = failure("io", format!("no answer within {CALL_TIMEOUT:?}"));
        answered.recv_timeout(MEETING_TIMEOUT).unwrap_or(Err(late))
    }
}

fn index_of(report: &Report) -> Outcome<u32> {
    match report.outcome {
        None => Err(failure("io", "the vCPUs could not be seized")),
        Some(NOT_EXPECTED) => Err(failure("io", "the monitor called the meeting off")),
        Some(WOKEN) => Err(failure("io", "the machine was woken from a saved state")),
        Some(index) => Ok(index),
    }
}

/// A message of the link, as a line.
pub fn send(link: &mut File, message: &ToMonitor) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    link.write_all(&line)
}

/// Take calls from processes in the guest, root's only, for ever.
pub fn listen(calls: &'static Calls) -> io::Result<()> {
    let listener = UnixListener::bind(SOCKET)?;
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o600))?;
    for stream in listener.incoming() {
        let thread = std::thread::Builder::new().name("call".into()).stack_size(128 * 1024);
        let started = stream.and_then(|stream| thread.spawn(move || serve(&stream, calls)));
        if let Err(error) = started {
            log::line(format_args!("a call from the guest: {error}"));
        }
    }
    Ok(())
}

fn serve(mut stream: &UnixStream, calls: &Calls) {
    let mut line = String::new();
    let request = match BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line) {
        Ok(_) => serde_json::from_str(&line).map_err(|error| bad_request(error.to_string())),
        Err(error) => Err(bad_request(error.to_string())),
    };
    let outcome = request.and_then(|LocalRequest::Fork { count }| calls.fork(count));
    let reply = match outcome {
        Ok(index) => LocalReply::Index(index),
        Err(failure) => LocalReply::Failure(failure),
    };
    let text = serde_json::to_string(&reply).unwrap_or_default();
    // A caller that left does not want it.
    let _ = writeln!(stream, "{text}");
}

/// `ramet-agent fork`: the caller's side.
pub fn call(count: u32) -> Result<u32, String> {
    let failed = |error: io::Error| format!("{SOCKET}: {error}");
    let mut stream = UnixStream::connect(SOCKET).map_err(failed)?;
    let request =
        serde_json::to_string(&LocalRequest::Fork { count }).map_err(|e| e.to_string())?;
    writeln!(stream, "{request}").map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    match serde_json::from_str(&line) {
        Ok(LocalReply::Index(index)) => Ok(index),
        Ok(LocalReply::Failure(failure)) => Err(format!("{} ({})", failure.message, failure.code)),
        Err(error) => Err(format!("{SOCKET}: {error}")),
    }
}
