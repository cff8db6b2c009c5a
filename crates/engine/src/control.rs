//! The conversation with one monitor: JSON lines and descriptors over a Unix stream.
//!
//! [`Connection::call`] sends one request and waits for its answer. A connection never reads past
//! the end of a line, so that it can become a raw stream ([`Connection::connect`]) without losing
//! the guest's first bytes. Events that arrive between answers are kept in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use ramet_proto::control::{Answer, Code, Event, Failure, LINE_MAX, Message, Outcome, Request};

/// Time that a call may take unless told otherwise: longer than a save of 16 GiB to a slow disk.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Most descriptors that Linux carries beside one message (SCM_MAX_FD).
const DESCRIPTORS_MAX: usize = 253;

/// Bytes looked at in one go while a line is read.
const LOOK: usize = 64 * 1024;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The monitor refused or failed, and says why.
    #[error("{message} ({code:?})")]
    Failure {
        /// For programs.
        code: Code,
        /// For people.
        message: String,
    },
    /// The monitor hung up: it has ended, or the line was too long for it.
    #[error("the monitor hung up")]
    Closed,
    /// No answer in time. The connection is of no more use.
    #[error("the monitor did not answer in time")]
    Timeout,
    /// The host failed.
    #[error("the connection to the monitor failed")]
    Io(#[source] io::Error),
    /// The monitor said something that is not in the protocol.
    #[error("the monitor broke the protocol: {0}")]
    Protocol(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failure { code: failure.code, message: failure.message }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl Error {
    /// The code of a refusal.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Failure { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A connection to a monitor.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Number of the next request.
    next: u64,
    /// Time that one call may take.
    deadline: Duration,
    /// Events that arrived while an answer was awaited.
    events: VecDeque<Event>,
}

impl Connection {
    /// Connects to the monitor that listens at this path.
    pub fn open(socket: &Path) -> Result<Self, Error> {
        Ok(Self::new(UnixStream::connect(socket).map_err(Error::Io)?))
    }

    /// Speaks to the monitor at the other end.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, next: 1, deadline: DEADLINE, events: VecDeque::new() }
    }

    /// Sets the time that one call may take from now on.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Asks, and waits for the answer. The descriptors travel beside the request.
    pub fn call(
        &mut self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Outcome, Error> {
        let id = self.next;
        self.next += 1;
        let mut line = serde_json::to_vec(&Message { id, request })
            .map_err(|error| Error::Protocol(error.to_string()))?;
        line.push(b'\n');
        if line.len() > LINE_MAX {
            let message = format!("the request has {} bytes, {LINE_MAX} is the most", line.len());
            return Err(Error::Failure { code: Code::BadValue, message });
        }
        let end = Instant::now() + self.deadline;
        self.stream.set_write_timeout(Some(self.deadline.max(Duration::from_millis(1))))?;
        self.send(&line, descriptors)?;
        self.answer(id, end)
    }

    /// Asks for events on this connection; they are then read with [`Self::events`].
    pub fn subscribe(mut self) -> Result<Events, Error> {
        self.call(Request::Subscribe {}, &[])?;
        Ok(Events { connection: self })
    }

    /// Turns this connection into a stream to a port of the guest.
    pub fn connect(mut self, port: u32) -> Result<UnixStream, Error> {
        self.call(Request::Connect { port }, &[])?;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok(self.stream)
    }

    /// Sends bytes as they are, and reads one answer. Only a test of the monitor needs this.
    pub fn call_raw(
        &mut self,
        line: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answer, Error> {
        let end = Instant::now() + self.deadline;
        self.stream.set_write_timeout(Some(self.deadline))?;
        self.send(line, descriptors)?;
        self.read_answer(Some(end))
    }

    /// Writes a line. Descriptors beyond what one message carries go with the line's next byte.
    fn send(&mut self, line: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let batches: Vec<&[BorrowedFd<'_>]> = descriptors.chunks(DESCRIPTORS_MAX).collect();
        let mut sent = 0;
        for batch in &batches {
            let raw: Vec<i32> = batch.iter().map(AsRawFd::as_raw_fd).collect();
            let bytes = [IoSlice::new(&line[sent..=sent])];
            let rights = [ControlMessage::ScmRights(&raw)];
            let (fd, flags) = (self.stream.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
            sent += sendmsg::<()>(fd, &bytes, &rights, flags, None).map_err(io::Error::from)?;
        }
        self.stream.write_all(&line[sent..])?;
        Ok(())
    }

    /// Reads until the answer to this request.
    fn answer(&mut self, id: u64, end: Instant) -> Result<Outcome, Error> {
        loop {
            match self.read_answer(Some(end))? {
                Answer::Done { id: its, outcome } if its == id => return Ok(outcome),
                Answer::Failed { id: its, failure } if its.is_none_or(|its| its == id) => {
                    return Err(failure.into());
                }
                Answer::Event(event) => self.events.push_back(event),
                // An earlier call was given up on; this is its answer, too late.
                Answer::Done { id: its, .. } | Answer::Failed { id: Some(its), .. } if its < id => {
                }
                other => return Err(Error::Protocol(format!("an answer to nothing: {other:?}"))),
            }
        }
    }

    /// Reads one line and makes sense of it.
    fn read_answer(&mut self, end: Option<Instant>) -> Result<Answer, Error> {
        let line = self.read_line(end)?;
        serde_json::from_slice(&line).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Reads one line, and not a byte more.
    fn read_line(&mut self, end: Option<Instant>) -> Result<Vec<u8>, Error> {
        let mut line = Vec::new();
        let mut look = vec![0; LOOK];
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Timeout);
            }
            self.stream.set_read_timeout(left)?;
            let seen = match recv(self.stream.as_raw_fd(), &mut look, MsgFlags::MSG_PEEK) {
                Ok(0) => return Err(Error::Closed),
                Ok(seen) => seen,
                Err(nix::Error::EINTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            let newline = look[..seen].iter().position(|byte| *byte == b'\n');
            let take = newline.map_or(seen, |at| at + 1);
            self.stream.read_exact(&mut look[..take])?;
            line.extend_from_slice(&look[..take]);
            if line.len() > LINE_MAX {
                return Err(Error::Protocol(format!("a line longer than {LINE_MAX} bytes")));
            }
            if newline.is_some() {
                line.pop();
                return Ok(line);
            }
        }
    }
}

/// What a subscriber hears, in order. Ends with [`Error::Closed`] when the monitor ends.
#[derive(Debug)]
pub struct Events {
    connection: Connection,
}

impl Events {
    /// Waits for the next event, at most this long.
    pub fn next(&mut self, time: Duration) -> Result<Event, Error> {
        if let Some(event) = self.connection.events.pop_front() {
            return Ok(event);
        }
        match self.connection.read_answer(Some(Instant::now() + time))? {
            Answer::Event(event) => Ok(event),
            other => Err(Error::Protocol(format!("no event: {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::thread;

    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    use ramet_proto::control::Stop;

    use super::*;

    /// A monitor that reads one line for each of the script's entries and writes that entry.
    fn scripted(script: Vec<String>) -> (Connection, thread::JoinHandle<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = thread::spawn(move || {
            let mut reader = io::BufReader::new(theirs.try_clone().unwrap());
            for entry in script {
                let mut line = String::new();
                io::BufRead::read_line(&mut reader, &mut line).unwrap();
                (&theirs).write_all(entry.as_bytes()).unwrap();
            }
            theirs
        });
        let mut connection = Connection::new(ours);
        connection.set_deadline(Duration::from_secs(5));
        (connection, peer)
    }

    const DONE: &str = r#"{"done":{"id":1,"outcome":{"nothing":{}}}}"#;

    #[test]
    fn answers_failures_and_events() {
        let (connection, peer) = scripted(vec![
            format!("{}\n{DONE}\n", r#"{"event":{"stopped":"reboot"}}"#),
            r#"{"failed":{"id":2,"failure":{"code":"wrong_state","message":"no"}}}"#.to_owned()
                + "\n",
            r#"{"failed":{"id":null,"failure":{"code":"bad_message","message":"no"}}}"#.to_owned()
                + "\n",
        ]);
        let mut events = connection.subscribe().unwrap();
        let second = events.connection.call(Request::Pause {}, &[]).unwrap_err();
        assert_eq!(second.code(), Some(Code::WrongState));
        let third = events.connection.call(Request::Pause {}, &[]).unwrap_err();
        assert_eq!(third.code(), Some(Code::BadMessage));
        assert_eq!(events.next(Duration::ZERO).unwrap(), Event::Stopped(Stop::Reboot));
        assert!(matches!(events.next(Duration::from_millis(5)), Err(Error::Timeout)));
        drop(peer.join().unwrap());
        assert!(matches!(events.next(Duration::from_secs(5)), Err(Error::Closed)));
    }

    #[test]
    fn silence_and_nonsense() {
        let (mut connection, peer) = scripted(vec![String::new()]);
        connection.set_deadline(Duration::from_millis(20));
        assert!(matches!(connection.call(Request::Status {}, &[]), Err(Error::Timeout)));
        drop(peer);
        for nonsense in
            ["x\n", "{\"done\":{}}\n", "{\"done\":{\"id\":9,\"outcome\":{\"nothing\":{}}}}\n"]
        {
            let (mut connection, _peer) = scripted(vec![nonsense.to_owned()]);
            let error = connection.call(Request::Status {}, &[]).unwrap_err();
            assert!(matches!(error, Error::Protocol(_)), "{nonsense}: {error:?}");
        }
        let (mut connection, _peer) = scripted(vec!["y".repeat(LINE_MAX + 1)]);
        let error = connection.call(Request::Status {}, &[]).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error:?}");
    }

    #[test]
    fn an_answer_that_comes_too_late_is_skipped() {
        let second = DONE.replace("\"id\":1", "\"id\":2");
        let (mut connection, _peer) = scripted(vec![String::new(), format!("{DONE}\n{second}\n")]);
        connection.set_deadline(Duration::from_millis(20));
        assert!(matches!(connection.call(Request::Status {}, &[]), Err(Error::Timeout)));
        connection.set_deadline(Duration::from_secs(5));
        assert_eq!(connection.call(Request::Status {}, &[]).unwrap(), Outcome::Nothing {});
    }

    #[test]
    fn a_raw_stream_loses_no_byte() {
        let (connection, _peer) = scripted(vec![format!("{DONE}\nhello\nworld")]);
        let mut stream = connection.connect(7).unwrap();
        let mut bytes = [0; 11];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello\nworld");
    }

    /// Reads a line and all descriptors that come with it, as the monitor does.
    fn receive(stream: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
        let (mut line, mut descriptors) = (Vec::new(), Vec::new());
        while !line.ends_with(b"\n") {
            let mut bytes = [0; 4096];
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let mut space = nix::cmsg_space!([i32; DESCRIPTORS_MAX]);
            let flags = MsgFlags::empty();
            let message =
                recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags).unwrap();
            for control in message.cmsgs().unwrap() {
                if let ControlMessageOwned::ScmRights(raw) = control {
                    descriptors.extend(raw.into_iter().map(own));
                }
            }
            let count = message.bytes;
            line.extend_from_slice(&bytes[..count]);
        }
        (line, descriptors)
    }

    #[expect(unsafe_code, reason = "a received descriptor is a bare number")]
    fn own(raw: i32) -> OwnedFd {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
        unsafe { OwnedFd::from_raw_fd(raw) }
    }

    #[test]
    fn descriptors_arrive_in_order_however_many() {
        for count in [0, 1, 253, 254, 256, 600] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let peer = thread::spawn(move || {
                let received = receive(&theirs);
                (&theirs).write_all(format!("{DONE}\n").as_bytes()).unwrap();
                received
            });
            let files: Vec<_> = (0..count).map(|_| tempfile::tempfile().unwrap()).collect();
            let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            Connection::new(ours).call(Request::Checkpoint {}, &fds).unwrap();
            let (line, received) = peer.join().unwrap();
            assert_eq!(line, b"{\"id\":1,\"request\":{\"checkpoint\":{}}}\n");
            let inode = |fd: BorrowedFd<'_>| nix::sys::stat::fstat(fd).unwrap().st_ino;
            let sent: Vec<_> = fds.iter().map(|fd| inode(*fd)).collect();
            let got: Vec<_> = received.iter().map(|fd| inode(fd.as_fd())).collect();
            assert_eq!(sent, got);
        }
    }

    #[test]
    fn a_request_too_long_is_not_sent() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let request =
            Request::Save { directory: "x".repeat(LINE_MAX), sync: true, only_disks: false };
        let error = Connection::new(ours).call(request, &[]).unwrap_err();
        assert_eq!(error.code(), Some(Code::BadValue));
    }
}
