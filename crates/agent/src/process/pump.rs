//! The bytes of one process: from its client to it, from it to its client.
//!
//! One thread and one `poll` per process. At most one frame waits to be sent and one to be written
//! to the process; while a frame waits, the process's output is not read. So a client that
//! reads slowly slows the process down, and memory is bounded.
//!
//! Without a client, output goes to a [`Ring`] and the process goes on. A client that attaches gets
//! the ring first. A frame that a leaving client did not take whole goes back to the ring; bytes in
//! the connection's own buffers are lost. For a session, end of input is hanging up: a client that
//! wants the output keeps its side open.
//!
//! # The end
//! `Exited` follows the process's own end, not that of the last holder of its pipes. All that was
//! in a pipe when the process ended is delivered; after that, output of processes left behind is
//! taken until it pauses for [`QUIET`], and for [`GRACE`] at most. Their later output is discarded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ramet_proto::agent::{Channel, Exited, Failure, HEAD, Head, Input, Reply};

use super::ring::Ring;
use super::{Ended, Entry, Status, drain, lock, set_blocking};
use crate::failure::bad_request;
use crate::frame::{Connection, Decoder, FrameError, Received, encode};
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

struct Client {
    connection: Connection,
    decoder: Decoder,
    /// A frame, and how much of it was sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Nothing can be sent any more, but there may be input to read.
    deaf: bool,
    /// The frame is the last one.
    closing: bool,
}

struct Ending {
    status: Status,
    quiet_from: Instant,
    latest: Instant,
}

/// Moves the bytes of one process.
pub struct Pump {
    entry: Arc<Entry>,
    client: Option<Client>,
    feed: Feed,
    /// Bytes for the process that it has not taken yet.
    fed: Vec<u8>,
    fed_sent: usize,
    outputs: Vec<Stream>,
    ring: Ring,
    deadline: Option<Instant>,
    timed_out: bool,
    ending: Option<Ending>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Source {
    Wake,
    Client,
    Feed,
    Output(usize),
}

impl Stream {
    /// An output that is sent on this channel.
    pub fn new(file: File, channel: Channel) -> Self {
        Self { file, channel, open: true, owed: 0 }
    }
}

impl Client {
    fn new(connection: Connection) -> Self {
        let decoder = Decoder::default();
        Self { connection, decoder, outgoing: Vec::new(), sent: 0, deaf: false, closing: false }
    }

    fn is_idle(&self) -> bool {
        self.sent == self.outgoing.len()
    }

    fn queue(&mut self, channel: Channel, bytes: &[u8]) {
        self.outgoing.clear();
        self.sent = 0;
        let head = Head { channel, length: bytes.len() };
        self.outgoing.extend_from_slice(&head.encode());
        self.outgoing.extend_from_slice(bytes);
    }

    /// After what is on its way, one last frame.
    fn refuse(&mut self, failure: Failure) {
        self.outgoing.extend_from_slice(&encode(&Reply::Error(failure)));
        self.closing = true;
    }

    fn send_some(&mut self) {
        match self.connection.raw().write(&self.outgoing[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) if is_temporary(&error) => {}
            Err(_) => self.deaf = true,
        }
    }

    /// The output that this client did not take whole.
    fn unsent(&self) -> Option<(Channel, &[u8])> {
        let channel = Channel::from_u8(*self.outgoing.get(HEAD - 1)?)?;
        let is_output = matches!(channel, Channel::Stdout | Channel::Stderr);
        (is_output && !self.is_idle() && !self.closing).then(|| (channel, &self.outgoing[HEAD..]))
    }
}

impl Pump {
    /// For a process that has just been started, whose door is taken.
    pub fn new(
        entry: Arc<Entry>,
        feed: Feed,
        outputs: Vec<Stream>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            entry,
            client: None,
            feed,
            fed: Vec::new(),
            fed_sent: 0,
            outputs,
            ring: Ring::default(),
            deadline,
            timed_out: false,
            ending: None,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.entry.pid
    }

    /// This client listens from now on, and has been told `Started`.
    pub fn take_client(&mut self, connection: Connection) {
        match set_blocking(&connection, false) {
            Ok(()) => self.client = Some(Client::new(connection)),
            Err(_) => self.no_client(),
        }
    }

    /// Nobody listens from now on.
    pub fn no_client(&mut self) {
        if let Some(client) = self.client.take()
            && let Some((channel, bytes)) = client.unsent()
        {
            self.ring.push_front(channel, bytes);
        }
        lock(&self.entry.door).taken = false;
    }

    /// Until the process has ended and its output is delivered or kept.
    pub fn run(mut self) {
        loop {
            self.take_visitor();
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

    fn take_visitor(&mut self) {
        let visitor = lock(&self.entry.door).visitor.take();
        let Some(connection) = visitor else { return };
        match connection.send(&Reply::Started { pid: self.pid() }) {
            Ok(()) => self.take_client(connection),
            Err(_) => self.no_client(),
        }
    }

    fn check_time(&mut self) {
        if self.ending.is_none() && self.deadline.is_some_and(|at| Instant::now() >= at) {
            self.deadline = None;
            self.timed_out = true;
            if let Err(error) = self.entry.signal_group(libc::SIGKILL) {
                log::line(format_args!("killing the group of {}: {error}", self.pid()));
            }
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

    /// Give the client the next of what was kept.
    fn refill(&mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        if client.is_idle()
            && !client.deaf
            && !client.closing
            && let Some((channel, bytes)) = self.ring.pop()
        {
            client.queue(channel, &bytes);
        }
    }

    fn is_over(&self) -> bool {
        let Some(ending) = &self.ending else {
            return false;
        };
        let delivered = self.client.as_ref().is_none_or(|client| client.is_idle() || client.deaf);
        let kept = self.client.as_ref().is_none_or(|client| client.deaf) || self.ring.is_empty();
        let now = Instant::now();
        let paused = now >= ending.quiet_from + QUIET || now >= ending.latest;
        let owed = self.outputs.iter().any(|output| output.open && output.owed > 0);
        let open = self.outputs.iter().any(|output| output.open);
        delivered && kept && (!open || (paused && !owed))
    }

    fn timeout(&self) -> PollTimeout {
        let end = self.ending.as_ref().map(|end| (end.quiet_from + QUIET).min(end.latest));
        let Some(at) = (match self.ending {
            // A client that does not take its output has all the time; it is not polled for.
            Some(_) if self.client.as_ref().is_some_and(|client| !client.is_idle()) => None,
            Some(_) => end,
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
        if let Some(client) = &self.client {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, !pending && !client.closing);
            events.set(PollFlags::POLLOUT, !client.is_idle() && !client.deaf);
            // Without an interest, not even its hang-up: that would be reported for ever.
            if !events.is_empty() {
                interests.push((Source::Client, client.connection.as_fd(), events));
            }
        }
        if pending && let Feed::Pipe(file) | Feed::Terminal(file) = &self.feed {
            interests.push((Source::Feed, file.as_fd(), PollFlags::POLLOUT));
        }
        let free = self.client.as_ref().is_none_or(|client| client.is_idle() || client.deaf);
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
                Source::Client => self.serve_client(events),
                Source::Feed => self.feed_some(),
                Source::Output(index) => self.read_output(index),
            }
        }
    }

    fn serve_client(&mut self, events: PollFlags) {
        let Some(client) = &mut self.client else {
            return;
        };
        if !client.is_idle() && events.intersects(PollFlags::POLLOUT | PollFlags::POLLERR) {
            client.send_some();
        }
        if client.closing && (client.is_idle() || client.deaf) {
            return self.no_client();
        }
        let input = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        if events.intersects(input) && self.fed_sent == self.fed.len() && !client.closing {
            match client.decoder.receive(&client.connection) {
                Ok(Received::Nothing) => {}
                Ok(Received::End) | Err(FrameError::Io(_)) => self.no_client(),
                Ok(Received::Frame(channel, bytes)) => {
                    if let Err(failure) = self.take_frame(channel, bytes)
                        && let Some(client) = &mut self.client
                    {
                        client.refuse(failure);
                    }
                }
                Err(error) => client.refuse(bad_request(error.to_string())),
            }
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
        }
    }

    fn read_output(&mut self, index: usize) {
        let idle = self.client.as_ref().is_none_or(|client| client.is_idle() || client.deaf);
        let Some(output) = self.outputs.get_mut(index).filter(|_| idle) else {
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
        match &mut self.client {
            Some(client) if !client.deaf => {
                client.queue(channel, bytes);
                client.send_some();
            }
            _ => self.ring.push(channel, bytes),
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
        if let Some(client) = self.client.take()
            && !client.deaf
            && !client.closing
            && set_blocking(&client.connection, true).is_ok()
        {
            // The status stays known, so a client that missed it can attach.
            let _ = client.connection.send(&Reply::Exited(exited));
        }
        for output in self.outputs {
            if output.open && matches!(self.feed, Feed::None | Feed::Pipe(_) | Feed::Closed) {
                drain::drain(output.file);
            }
        }
        None
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
