//! Whoever has a connection to a process.
//!
//! At most one frame waits to be sent to each, but for a refusal, which is the last. One that only speaks gets no output, and
//! an answer for every frame once the process has what was in it; its next frame is read after that.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;
use ramet_proto::agent::{Channel, Failure, HEAD, Head, Reply};

use super::is_temporary;
use crate::frame::{Connection, Decoder, FrameError, Received, encode};

/// What somebody wants of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Its output.
    Hear,
    /// To speak to it, and no more.
    Speak,
}

/// A connection to a process.
pub struct Client {
    /// Names it among those of its process.
    pub number: u64,
    manner: Manner,
    connection: Connection,
    decoder: Decoder,
    /// A frame, and how much of it was sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Nothing can be sent any more, but there may be input to read.
    pub deaf: bool,
    /// The frame is the last one.
    pub closing: bool,
}

impl Client {
    /// On a connection that does not block.
    pub fn new(number: u64, connection: Connection, manner: Manner) -> Self {
        let (decoder, outgoing) = (Decoder::default(), Vec::new());
        Self { number, manner, connection, decoder, outgoing, sent: 0, deaf: false, closing: false }
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// It is here for the output, and can still take some.
    pub fn hears(&self) -> bool {
        self.manner == Manner::Hear && !self.deaf && !self.closing
    }

    /// It only speaks.
    pub fn is_mute(&self) -> bool {
        self.manner == Manner::Speak
    }

    /// Everything that was queued was sent.
    pub fn is_idle(&self) -> bool {
        self.sent == self.outgoing.len()
    }

    /// It keeps output from being read.
    pub fn is_behind(&self) -> bool {
        self.manner == Manner::Hear && !self.is_idle() && !self.deaf
    }

    /// What is worth waiting for, if its input can be taken.
    pub fn interest(&self, input: bool) -> PollFlags {
        let mut events = PollFlags::empty();
        let answered = !self.is_mute() || self.is_idle() || self.deaf;
        events.set(PollFlags::POLLIN, input && answered && !self.closing);
        events.set(PollFlags::POLLOUT, !self.is_idle() && !self.deaf);
        events
    }

    /// The next frame of its input.
    pub fn receive(&mut self) -> Result<Received, FrameError> {
        self.decoder.receive(&self.connection)
    }

    /// Bytes for it. The frame before was sent.
    pub fn queue(&mut self, channel: Channel, bytes: &[u8]) {
        self.outgoing.clear();
        self.sent = 0;
        let head = Head { channel, length: bytes.len() };
        self.outgoing.extend_from_slice(&head.encode());
        self.outgoing.extend_from_slice(bytes);
    }

    /// The answer to its frame.
    pub fn answer(&mut self) {
        self.outgoing = encode(&Reply::Done {});
        self.sent = 0;
        self.send_some();
    }

    /// After what is on its way, one last frame.
    pub fn refuse(&mut self, failure: Failure) {
        self.outgoing.extend_from_slice(&encode(&Reply::Error(failure)));
        self.closing = true;
    }

    /// As much as it takes now.
    pub fn send_some(&mut self) {
        match self.connection.raw().write(&self.outgoing[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) if is_temporary(&error) => {}
            Err(_) => self.deaf = true,
        }
    }

    /// The output that it did not take whole.
    pub fn unsent(&self) -> Option<(Channel, &[u8])> {
        let channel = Channel::from_u8(*self.outgoing.get(HEAD - 1)?)?;
        let is_output = matches!(channel, Channel::Stdout | Channel::Stderr);
        (is_output && !self.is_idle() && !self.closing).then(|| (channel, &self.outgoing[HEAD..]))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
