//! What a fork's children report to the source while they come to life, and what the source keeps of it.
//!
//! Children write [`Report`]s, each one line in one write, to a socket that the source reads. A child that is
//! settled closes its end; when nobody holds one any more, whoever has not reported is dead. A child that cannot
//! report, because the source is gone, ends itself: nobody was told of it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ramet_proto::control::{Born, Code, Failure, Saved};
use serde::{Deserialize, Serialize};

/// Longest text of a failure, so that a report is written at once.
const MESSAGE_MAX: usize = 1024;

/// From a child.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The stem made another child.
    Forked {
        /// Its number.
        index: usize,
        /// Its process.
        pid: u32,
    },
    /// A child is ready.
    Born {
        /// Its number.
        index: usize,
        /// Its times.
        born: Born,
    },
    /// The writer is done.
    Saved {
        /// Its figures, the pause left to fill in.
        saved: Saved,
    },
    /// A child is not coming.
    Failed {
        /// Its number.
        index: usize,
        /// Why.
        failure: Failure,
    },
}

/// The child's end.
pub struct Reporter(UnixStream);

impl Reporter {
    /// Writes one report. An error means that the source is gone.
    pub fn report(&mut self, mut report: Report) -> io::Result<()> {
        if let Report::Failed { failure, .. } = &mut report {
            let end = failure.message.floor_char_boundary(MESSAGE_MAX);
            failure.message.truncate(end);
        }
        let mut line = serde_json::to_vec(&report).map_err(io::Error::other)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }

    /// The descriptor.
    pub fn socket(&self) -> &UnixStream {
        &self.0
    }
}

/// Who asked, and what for.
pub enum Purpose {
    /// Children that run.
    Fork,
    /// A child that writes itself to files.
    Save,
}

/// The source's record of children on their way.
pub struct Birth {
    /// The client, and the number of its request.
    pub client: u32,
    /// Likewise.
    pub id: u64,
    /// What it asked for.
    pub purpose: Purpose,
    /// Children must be settled by then.
    pub deadline: Instant,
    /// Times of the source.
    pub rendezvous_us: u64,
    /// Likewise.
    pub pause_us: u64,
    /// Likewise.
    pub fork_us: u64,
    reader: UnixStream,
    input: Vec<u8>,
    children: Vec<Expected>,
}

#[derive(Default)]
struct Expected {
    pid: Option<u32>,
    settled: Option<Result<Settled, Failure>>,
}

/// How a child turned out.
#[derive(Debug, Clone)]
pub enum Settled {
    /// It runs, or is kept.
    Born(Born),
    /// It wrote itself.
    Saved(Saved),
}

/// Both ends of the way for reports.
pub fn channel() -> io::Result<(Reporter, UnixStream)> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    Ok((Reporter(writer), reader))
}

/// What the source knows when it begins to wait.
pub struct Begun {
    /// The client, and the number of its request.
    pub client: u32,
    /// Likewise.
    pub id: u64,
    /// What it asked for.
    pub purpose: Purpose,
    /// Children must be settled by then.
    pub deadline: Instant,
    /// From the request to the guest's arrival at the doorbell.
    pub rendezvous_us: u64,
}

impl Birth {
    /// Waits for `count` children, of which the first is the process `stem`.
    pub fn new(begun: Begun, reader: UnixStream, count: usize, stem: u32) -> Self {
        let mut children: Vec<Expected> = (0..count).map(|_| Expected::default()).collect();
        children[0].pid = Some(stem);
        Self {
            client: begun.client,
            id: begun.id,
            purpose: begun.purpose,
            deadline: begun.deadline,
            rendezvous_us: begun.rendezvous_us,
            pause_us: 0,
            fork_us: 0,
            reader,
            input: Vec::new(),
            children,
        }
    }

    /// The source's end.
    pub fn socket(&self) -> &UnixStream {
        &self.reader
    }

    /// Reads reports. True when all children are settled.
    pub fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.reader.read(&mut chunk) {
                Ok(0) => {
                    self.settle_rest(died);
                    return true;
                }
                Ok(count) => {
                    self.input.extend_from_slice(&chunk[..count]);
                    self.take_lines();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.children.iter().all(|child| child.settled.is_some()),
            }
        }
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            // Only our own children write here.
            let Ok(report) = serde_json::from_slice::<Report>(&line) else { continue };
            let (index, settled) = match report {
                Report::Forked { index, pid } => {
                    if let Some(child) = self.children.get_mut(index) {
                        child.pid = Some(pid);
                    }
                    continue;
                }
                Report::Born { index, born } => (index, Ok(Settled::Born(born))),
                Report::Saved { saved } => (0, Ok(Settled::Saved(saved))),
                Report::Failed { index, failure } => (index, Err(failure)),
            };
            if let Some(child) = self.children.get_mut(index) {
                child.settled.get_or_insert(settled);
            }
        }
    }

    /// The time is over: children that are not settled are killed.
    pub fn give_up(&mut self) {
        for child in self.children.iter().filter(|child| child.settled.is_none()) {
            if let Some(pidfd) = child.pid.and_then(|pid| crate::sys::pidfd(pid).ok()) {
                crate::sys::kill(&pidfd);
            }
        }
        self.settle_rest(|_| Failure {
            code: Code::GuestUnresponsive,
            message: "the child did not get ready in time and was killed".into(),
        });
    }

    fn settle_rest(&mut self, failure: impl Fn(Option<u32>) -> Failure) {
        for child in &mut self.children {
            let pid = child.pid;
            child.settled.get_or_insert_with(|| Err(failure(pid)));
        }
    }

    /// How all turned out, in order.
    pub fn outcomes(self) -> Vec<Result<Settled, Failure>> {
        self.children.into_iter().filter_map(|child| child.settled).collect()
    }
}

fn died(pid: Option<u32>) -> Failure {
    let who = pid.map_or_else(|| "the child".to_owned(), |pid| format!("process {pid}"));
    Failure { code: Code::ChildDied, message: format!("{who} ended before it was ready") }
}

#[cfg(test)]
mod tests;
