//! The bytes of one process: from its clients to it, from it to its clients.
//!
//! One thread and one `poll` per process. At most one frame waits to be sent to each client and one to be written
//! to the process; while a frame waits, the process's output is not read. So a client that
//! reads slowly slows the process down, and memory is bounded. Each client that hears gets all output.
//!
//! Without a client that hears, output goes to a [`Ring`] and the process goes on. A client that attaches gets
//! the ring first. A frame that the last client did not take whole goes back to the ring; bytes in
//! the connection's own buffers are lost. For a session, end of input is hanging up: a client that
//! wants the output keeps its side open.
//!
//! # The end
//! `Exited` follows the process's own end, not that of the last holder of its pipes. All that was
//! in a pipe when the process ended is delivered; after that, output of processes left behind is
//! taken until it pauses for [`QUIET`], and for [`GRACE`] at most. Their later output is discarded. With
//! `linger`, `Exited` waits for them: until the outputs are closed, or the process's time is over.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ramet_proto::agent::{Channel, Exited, Failure, Input, Reply};

use super::client::{Client, Manner};
use super::ring::Ring;
use super::{Ended, Entry, Status, Visitor, drain, is_temporary, lock, set_blocking};
use crate::failure::{bad_request, failure};
use crate::frame::{Connection, FrameError, Received};
use crate::log;
use crate::sys::kernel;

/// After the process's end, its output is over when nothing came for this long.
const QUIET: Duration = Duration::from_millis(100);
/// ... or after this long.
const GRACE: Duration = Duration::from_secs(1);
/// Most bytes of output in a frame.
const READ_BYTES: usize = 64 * 1024;
/// What ends input on a terminal.
const END_OF_TRANSMISSION: u8 = 4;

/// Where the process's input goes.
pub enum Feed {
    /// It has none.
    None,
    /// A pipe that does not block.
    Pipe(File),
    /// The terminal's master, which does not block.
    Terminal(File),
    /// It was closed, by the client or by the process.
    Closed,
}

/// One output of the process.
pub struct Stream {
    /// Pipe or terminal; does not block.
    pub file: File,
    channel: Channel,
    open: bool,
    /// Bytes that were there when the process ended and are still to be read.
    owed: usize,
}

struct Ending {
    status: Status,
    quiet_from: Instant,
    latest: Instant,
}

/// Moves the bytes of one process.
pub struct Pump {
    entry: Arc<Entry>,
    clients: Vec<Client>,
    /// Number of the next client.
    next: u64,
    feed: Feed,
    /// Bytes for the process that it has not taken yet.
    fed: Vec<u8>,
    fed_sent: usize,
    /// The client that is to be told when it has.
    owing: Option<u64>,
    outputs: Vec<Stream>,
    ring: Ring,
    deadline: Option<Instant>,
    linger: bool,
    timed_out: bool,
    ending: Option<Ending>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Source {
    Wake,
    Client(u64),
    Feed,
    Output(usize),
}

impl Stream {
    /// An output that is sent on this channel.
    pub fn new(file: File, channel: Channel) -> Self {
        Self { file, channel, open: true, owed: 0 }
    }
}

impl Pump {
    /// For a process that has just been started, whose door counts one client.
    pub fn new(
        entry: Arc<Entry>,
        feed: Feed,
        outputs: Vec<Stream>,
        deadline: Option<Instant>,
        linger: bool,
    ) -> Self {
        Self {
            entry,
            clients: Vec::new(),
            next: 0,
            feed,
            fed: Vec::new(),
            fed_sent: 0,
            owing: None,
            outputs,
            ring: Ring::default(),
            deadline,
            linger,
            timed_out: false,
            ending: None,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.entry.pid
    }

    /// This client is here from now on, and has been told `Started`.
    pub fn take_client(&mut self, connection: Connection, manner: Manner) {
        match set_blocking(&connection, false) {
            Ok(()) => {
                self.clients.push(Client::new(self.next, connection, manner));
                self.next += 1;
            }
            Err(_) => self.no_client(manner),
        }
    }

    /// A client that the door counts is not here any more.
    pub fn no_client(&self, manner: Manner) {
        lock(&self.entry.door).left(manner);
    }

    fn drop_client(&mut self, number: u64) {
        let Some(index) = self.clients.iter().position(|client| client.number == number) else {
            return;
        };
        let client = self.clients.swap_remove(index);
        if !self.clients.iter().any(Client::hears)
            && let Some((channel, bytes)) = client.unsent()
        {
            self.ring.push_front(channel, bytes);
        }
        self.no_client(if client.is_mute() { Manner::Speak } else { Manner::Hear });
    }

    /// Until the process has ended and its output is delivered or kept.
    pub fn run(mut self) {
        loop {
            self.take_visitors();
            self.check_time();
            self.note_end();
            self.refill();
            if self.is_over() {
                match self.finish() {
                    Some(again) => self = again,
                    None => return,
                }
                continue;
            }
            self.wait();
        }
    }

    fn take_visitors(&mut self) {
        let visitors = std::mem::take(&mut lock(&self.entry.door).visitors);
        for Visitor { connection, manner } in visitors {
            match connection.send(&Reply::Started { pid: self.pid() }) {
                Ok(()) => self.take_client(connection, manner),
                Err(_) => self.no_client(manner),
            }
        }
    }

    fn check_time(&mut self) {
        if self.deadline.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.deadline = None;
        if self.ending.is_some() {
            self.linger = false;
            return;
        }
        self.timed_out = true;
        if let Err(error) = self.entry.signal_group(libc::SIGKILL) {
            log::line(format_args!("killing the group of {}: {error}", self.pid()));
        }
    }

    fn note_end(&mut self) {
        let Some(status) = self.entry.status.get() else {
            return;
        };
        if self.ending.is_none() {
            let now = Instant::now();
            for output in &mut self.outputs {
                output.owed = kernel::readable_bytes(output.file.as_fd());
            }
            let ending = Ending { status: *status, quiet_from: now, latest: now + GRACE };
            self.ending = Some(ending);
        }
    }

    /// Give the clients the next of what was kept.
    fn refill(&mut self) {
        if self.clients.iter().any(Client::is_behind) || !self.clients.iter().any(Client::hears) {
            return;
        }
        if let Some((channel, bytes)) = self.ring.pop() {
            for client in self.clients.iter_mut().filter(|client| client.hears()) {
                client.queue(channel, &bytes);
            }
        }
    }

    fn is_over(&self) -> bool {
        let Some(ending) = &self.ending else {
            return false;
        };
        let delivered = !self.clients.iter().any(Client::is_behind);
        let kept = !self.clients.iter().any(Client::hears) || self.ring.is_empty();
        let now = Instant::now();
        let paused = now >= ending.quiet_from + QUIET || now >= ending.latest;
        let owed = self.outputs.iter().any(|output| output.open && output.owed > 0);
        delivered && kept && (!self.is_open() || (paused && !owed && !self.linger))
    }

    fn is_open(&self) -> bool {
        self.outputs.iter().any(|output| output.open)
    }

    fn timeout(&self) -> PollTimeout {
        let Some(at) = (match &self.ending {
            // A client that does not take its output has all the time; it is not polled for.
            Some(_) if self.clients.iter().any(Client::is_behind) => None,
            Some(_) if self.linger && self.is_open() => self.deadline,
            Some(end) => Some((end.quiet_from + QUIET).min(end.latest)),
            None => self.deadline,
        }) else {
            return PollTimeout::NONE;
        };
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    /// What is worth waiting for now.
    fn interests(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut interests = vec![(Source::Wake, self.entry.wake.as_fd(), PollFlags::POLLIN)];
        let pending = self.fed_sent < self.fed.len();
        for client in &self.clients {
            let events = client.interest(!pending);
            // Without an interest, not even its hang-up: that would be reported for ever.
            if !events.is_empty() {
                interests.push((Source::Client(client.number), client.as_fd(), events));
            }
        }
        if pending && let Feed::Pipe(file) | Feed::Terminal(file) = &self.feed {
            interests.push((Source::Feed, file.as_fd(), PollFlags::POLLOUT));
        }
        let free = !self.clients.iter().any(Client::is_behind);
        for (index, output) in self.outputs.iter().enumerate() {
            if output.open && free {
                interests.push((Source::Output(index), output.file.as_fd(), PollFlags::POLLIN));
            }
        }
        interests
    }

    fn wait(&mut self) {
        let interests = self.interests();
        let mut fds: Vec<PollFd<'_>> =
            interests.iter().map(|(_, fd, events)| PollFd::new(*fd, *events)).collect();
        if poll(&mut fds, self.timeout()).is_err() {
            return;
        }
        let ready: Vec<(Source, PollFlags)> = interests
            .iter()
            .zip(&fds)
            .map(|((source, ..), fd)| (*source, fd.revents().unwrap_or(PollFlags::POLLERR)))
            .filter(|(_, events)| !events.is_empty())
            .collect();
        for (source, events) in ready {
            match source {
                // An empty counter is no news.
                Source::Wake => drop(self.entry.wake.read()),
                Source::Client(number) => self.serve_client(number, events),
                Source::Feed => self.feed_some(),
                Source::Output(index) => self.read_output(index),
            }
        }
    }

    fn client(&mut self, number: u64) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.number == number)
    }

    fn serve_client(&mut self, number: u64, events: PollFlags) {
        let fed = self.fed_sent == self.fed.len();
        let Some(client) = self.client(number) else {
            return;
        };
        if !client.is_idle() && events.intersects(PollFlags::POLLOUT | PollFlags::POLLERR) {
            client.send_some();
        }
        if client.closing && (client.is_idle() || client.deaf) {
            return self.drop_client(number);
        }
        let input = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        if events.intersects(input) && fed && !client.closing {
            let mute = client.is_mute();
            match client.receive() {
                Ok(Received::Nothing) => {}
                Ok(Received::End) | Err(FrameError::Io(_)) => self.drop_client(number),
                Ok(Received::Frame(channel, bytes)) => {
                    self.owing = mute.then_some(number);
                    match self.take_frame(channel, bytes) {
                        Ok(()) => self.settle(),
                        Err(failure) => {
                            self.owing = None;
                            self.client(number)
                                .into_iter()
                                .for_each(|it| it.refuse(failure.clone()));
                        }
                    }
                }
                Err(error) => client.refuse(bad_request(error.to_string())),
            }
        }
    }

    /// Tells who waits for it that the process has all that was in its frame.
    fn settle(&mut self) {
        if self.fed_sent == self.fed.len()
            && let Some(number) = self.owing.take()
            && let Some(client) = self.client(number)
        {
            client.answer();
        }
    }

    fn take_frame(&mut self, channel: Channel, bytes: Vec<u8>) -> Result<(), Failure> {
        match channel {
            Channel::Stdin => self.take_input(bytes),
            Channel::Message => {
                let input = serde_json::from_slice(&bytes)
                    .map_err(|error| bad_request(format!("not an input: {error}")))?;
                self.take_message(input)
            }
            Channel::Stdout | Channel::Stderr => {
                Err(bad_request("a client sends on the channels of messages and stdin only"))
            }
        }
    }

    fn take_input(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        match self.feed {
            Feed::None => return Err(bad_request("the process was started without stdin")),
            // Who hears it will hear of its end; who only speaks would never know.
            Feed::Closed if self.owing.is_some() => {
                return Err(bad_request("the standard input of the process is closed"));
            }
            // It no longer reads, as a process in a pipeline may; the bytes have no one to go to.
            Feed::Closed => {}
            Feed::Pipe(_) | Feed::Terminal(_) => {
                self.fed = bytes;
                self.fed_sent = 0;
                self.feed_some();
            }
        }
        Ok(())
    }

    fn take_message(&mut self, input: Input) -> Result<(), Failure> {
        match input {
            Input::End {} => match self.feed {
                Feed::Terminal(_) => self.take_input(vec![END_OF_TRANSMISSION]),
                Feed::None => Ok(()),
                Feed::Pipe(_) | Feed::Closed => {
                    self.feed = Feed::Closed;
                    Ok(())
                }
            },
            Input::Resize(size) => match &self.feed {
                Feed::Terminal(file) => kernel::resize_terminal(file.as_fd(), size)
                    .map_err(|error| crate::failure::from_io("resize", &error)),
                _ => Err(bad_request("the process has no terminal to resize")),
            },
            Input::Signal { signal } => self
                .entry
                .signal_group(signal)
                .map_err(|error| crate::failure::from_io(format_args!("signal {signal}"), &error)),
            Input::Hole { .. } => Err(bad_request("a hole is for files, not for a process")),
        }
    }

    fn feed_some(&mut self) {
        let (Feed::Pipe(file) | Feed::Terminal(file)) = &mut self.feed else {
            self.fed.clear();
            self.fed_sent = 0;
            return;
        };
        match file.write(&self.fed[self.fed_sent..]) {
            Ok(count) => self.fed_sent += count,
            Err(error) if is_temporary(&error) => {}
            Err(_) => {
                self.feed = Feed::Closed;
                self.fed_sent = self.fed.len();
            }
        }
        if self.fed_sent == self.fed.len() {
            self.fed = Vec::new();
            self.fed_sent = 0;
            self.settle();
        }
    }

    fn read_output(&mut self, index: usize) {
        let behind = self.clients.iter().any(Client::is_behind);
        let Some(output) = self.outputs.get_mut(index).filter(|_| !behind) else {
            return;
        };
        let count = match output.file.read(&mut self.buffer) {
            Ok(0) => return output.open = false,
            Ok(count) => count,
            Err(error) if is_temporary(&error) => return output.owed = 0,
            // A terminal says EIO once nobody has it open.
            Err(_) => return output.open = false,
        };
        output.owed = output.owed.saturating_sub(count);
        if let Some(ending) = &mut self.ending {
            ending.quiet_from = Instant::now();
        }
        let (channel, bytes) = (output.channel, &self.buffer[..count]);
        if !self.clients.iter().any(Client::hears) {
            return self.ring.push(channel, bytes);
        }
        for client in self.clients.iter_mut().filter(|client| client.hears()) {
            client.queue(channel, bytes);
            client.send_some();
        }
    }

    /// Tell the client, keep what is left, let go of the pipes. Gives itself back if someone
    /// attached at the last moment.
    fn finish(mut self) -> Option<Self> {
        let status = self.ending.as_ref().map(|ending| ending.status);
        let exited = Exited {
            code: status.and_then(|status| match status {
                Status::Code(code) => Some(code),
                Status::Signal(_) => None,
            }),
            signal: status.and_then(|status| match status {
                Status::Code(_) => None,
                Status::Signal(signal) => Some(signal),
            }),
            timed_out: self.timed_out,
            dropped_bytes: self.ring.dropped,
        };
        let output = std::mem::take(&mut self.ring);
        // First known, then told: a client that has read `Exited` may attach at once.
        if let Some(ended) = self.entry.retire(Ended { exited: exited.clone(), output }) {
            self.ring = ended.output;
            return Some(self);
        }
        for client in &self.clients {
            let last = match client.is_mute() {
                true => Reply::Error(failure("no_such_process", "the process has ended")),
                false => Reply::Exited(exited.clone()),
            };
            let open = !client.deaf && !client.closing && client.is_idle();
            if open && set_blocking(client, true).is_ok() {
                // The status stays known, so a client that missed it can attach.
                let _ = client.connection().send(&last);
            }
        }
        for output in self.outputs {
            if output.open && matches!(self.feed, Feed::None | Feed::Pipe(_) | Feed::Closed) {
                drain::drain(output.file);
            }
        }
        None
    }
}
