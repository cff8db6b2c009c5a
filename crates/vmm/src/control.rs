//! Clients of the control socket: lines in, lines out, descriptors beside them.
//!
//! Nothing a client does blocks the monitor: sockets do not block, a line has a longest length, and a client
//! that does not read its answers is hung up on.
#![expect(unsafe_code, reason = "receiving descriptors")]

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use ramet_proto::control::{Answer, Code, Event, Failure, LINE_MAX, Message, Outcome};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// Descriptors that the kernel passes at once.
const DESCRIPTORS_AT_ONCE: usize = 253;
/// Descriptors that wait for their request.
const DESCRIPTORS_MAX: usize = 1024;
/// Answers that wait for the client to read.
const BACKLOG_MAX: usize = 4 << 20;

/// A connection.
pub struct Client {
    socket: UnixStream,
    input: Vec<u8>,
    /// Where in the input they came, and they. The kernel ends a read at the bytes that descriptors came
    /// with, so they belong to the line of its last byte.
    descriptors: VecDeque<(usize, OwnedFd)>,
    output: VecDeque<u8>,
    /// It wants to hear events.
    pub subscribed: bool,
}

/// A request that was read.
pub struct Received {
    /// What it says, or why it says nothing.
    pub message: Result<Message, Box<Refused>>,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// A line that is no message.
pub struct Refused {
    /// Its number, if that could be read.
    pub id: Option<u64>,
    /// What is wrong with it.
    pub failure: Failure,
}

/// The client hung up, or must be hung up on.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone;

impl Client {
    /// A new connection.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            input: Vec::new(),
            descriptors: VecDeque::new(),
            output: VecDeque::new(),
            subscribed: false,
        })
    }

    /// Its socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Gives up the connection, to be used as a stream. Fails if the client spoke on already.
    pub fn into_stream(self) -> Option<UnixStream> {
        (self.input.is_empty() && self.output.is_empty()).then_some(self.socket)
    }

    /// There are answers that the client has not read.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what has come. At most one request at a time, so that each finds the state that the one
    /// before left.
    pub fn receive(&mut self) -> Result<Option<Received>, Gone> {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                let descriptors = self.take_descriptors(end);
                return Ok(Some(Received { message: parse(&line[..end]), descriptors }));
            }
            if self.input.len() >= LINE_MAX || self.descriptors.len() > DESCRIPTORS_MAX {
                let what = format!(
                    "a line is longer than {LINE_MAX} bytes or has more than {DESCRIPTORS_MAX} \
                     descriptors; hanging up"
                );
                let failure = Failure { code: Code::BadMessage, message: what };
                let _gone = self.answer(&Answer::Failed { id: None, failure });
                return Err(Gone);
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// Those that came with the line that ends at `end` and is gone from the input.
    fn take_descriptors(&mut self, end: usize) -> Vec<OwnedFd> {
        let count = self.descriptors.iter().take_while(|(at, _)| *at <= end).count();
        let taken = self.descriptors.drain(..count).map(|(_, descriptor)| descriptor).collect();
        self.descriptors.iter_mut().for_each(|(at, _)| *at -= end + 1);
        taken
    }

    /// Reads once. False if there is nothing.
    fn read(&mut self) -> Result<bool, Gone> {
        let mut bytes = [0; CHUNK];
        let mut fds = [-1; DESCRIPTORS_AT_ONCE];
        let mut iovecs = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: CHUNK }];
        // SAFETY: the only buffer is ours and as long as said.
        let received = unsafe { self.socket.recv_with_fds(&mut iovecs, &mut fds) };
        let (count, fd_count) = match received {
            Ok(counts) => counts,
            Err(error) if [libc::EAGAIN, libc::EINTR].contains(&error.errno()) => return Ok(false),
            Err(_) => return Err(Gone),
        };
        let received: Vec<OwnedFd> = fds[..fd_count].iter().map(own).collect();
        if count == 0 {
            return Err(Gone);
        }
        self.input.extend_from_slice(&bytes[..count]);
        let last = self.input.len() - 1;
        self.descriptors.extend(received.into_iter().map(|descriptor| (last, descriptor)));
        Ok(true)
    }

    /// A request was carried out.
    pub fn done(&mut self, id: u64, outcome: Outcome) -> Result<(), Gone> {
        self.answer(&Answer::Done { id, outcome })
    }

    /// A request was not carried out.
    pub fn failed(&mut self, id: Option<u64>, failure: Failure) -> Result<(), Gone> {
        self.answer(&Answer::Failed { id, failure })
    }

    /// Something happened.
    pub fn event(&mut self, event: &Event) -> Result<(), Gone> {
        if self.subscribed { self.answer(&Answer::Event(event.clone())) } else { Ok(()) }
    }

    fn answer(&mut self, answer: &Answer) -> Result<(), Gone> {
        self.output.extend(line(answer));
        if self.output.len() > BACKLOG_MAX {
            return Err(Gone);
        }
        self.flush()
    }

    /// Writes as much as the client takes.
    pub fn flush(&mut self) -> Result<(), Gone> {
        while !self.output.is_empty() {
            match self.socket.write(self.output.as_slices().0) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }
}

/// An answer as it is sent.
pub fn line(answer: &Answer) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).expect("answers have string keys only");
    line.push(b'\n');
    line
}

fn own(fd: &RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made the descriptor for us.
    unsafe { OwnedFd::from_raw_fd(*fd) }
}

fn parse(line: &[u8]) -> Result<Message, Box<Refused>> {
    serde_json::from_slice(line).map_err(|error| {
        let loose: Option<serde_json::Value> = serde_json::from_slice(line).ok();
        Box::new(Refused {
            id: loose.and_then(|value| value.get("id")?.as_u64()),
            failure: Failure {
                code: Code::BadMessage,
                message: format!("the request cannot be read: {error}"),
            },
        })
    })
}

#[cfg(test)]
mod tests;
