//! The conversation with the agent inside a guest.
//!
//! One operation is one connection. [`Agent`] knows how to open connections, whatever they are made
//! of (the monitor's socket, TCP), and has a method for each operation. Processes are streamed
//! ([`Process`]) or collected ([`Agent::run`]); files likewise. Nothing is buffered without bound: a
//! caller that does not read slows the guest down.

mod files;
mod frame;
mod process;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ramet_proto::agent::{self, Channel, Dial, Failure, Input, Reply, Request, Signal, Usage};

pub use files::{Content, FileReader, FileWriter, Watcher};
pub use frame::{Frame, FrameReader, FrameWriter};
pub use process::{COLLECT_MAX, Completed, Output, Process, ProcessInput, ProcessOutput};

/// Why an operation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent refused or failed, and says why.
    #[error("{message} ({code})")]
    Failure {
        /// For programs; see [`agent::Failure`].
        code: String,
        /// For people.
        message: String,
    },
    /// The agent hung up in the middle.
    #[error("the agent hung up")]
    Closed,
    /// Nothing came in time.
    #[error("the agent did not answer in time")]
    Timeout,
    /// The host failed.
    #[error("the connection to the agent failed")]
    Io(#[source] io::Error),
    /// The agent said something that is not in the protocol.
    #[error("the agent broke the protocol: {0}")]
    Protocol(String),
    /// The caller asked to collect more than is reasonable to hold in memory.
    #[error("more than {0} bytes of output; read it as a stream")]
    TooMuch(usize),
    /// The monitor did not connect us.
    #[error("the monitor did not connect to the agent")]
    Connect(#[from] crate::control::Error),
}

impl Error {
    /// The code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Failure { code, .. } => Some(code),
            _ => None,
        }
    }
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

/// What a session runs over.
pub trait Stream: Read + Write + Send + 'static {
    /// Another handle to the same connection.
    fn another(&self) -> io::Result<Box<dyn Stream>>;
    /// Nothing more will be sent.
    fn end(&self) -> io::Result<()>;
    /// Hangs up, for all handles.
    fn hang_up(&self) -> io::Result<()>;
    /// How long a read may wait.
    fn set_timeout(&self, time: Option<Duration>) -> io::Result<()>;
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn another(&self) -> io::Result<Box<dyn Stream>> {
                Ok(Box::new(self.try_clone()?))
            }

            fn end(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }

            fn hang_up(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Both)
            }

            fn set_timeout(&self, time: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(time)
            }
        }
    };
}

stream!(UnixStream);
stream!(TcpStream);

/// A connection on which one operation takes place.
struct Session {
    reader: FrameReader<Box<dyn Stream>>,
    writer: FrameWriter<Box<dyn Stream>>,
}

impl Session {
    fn new(stream: Box<dyn Stream>) -> Result<Self, Error> {
        let other = stream.another()?;
        Ok(Self { reader: FrameReader::new(stream), writer: FrameWriter::new(other) })
    }

    fn send(&mut self, request: &Request) -> Result<(), Error> {
        self.writer.message(request)
    }

    fn input(&mut self, input: &Input) -> Result<(), Error> {
        self.writer.message(input)
    }

    /// The next reply; a refusal is an error, and so are bytes.
    fn reply(&mut self) -> Result<Reply, Error> {
        match self.reader.next()? {
            Frame::Reply(Reply::Error(failure)) => Err(failure.into()),
            Frame::Reply(reply) => Ok(reply),
            Frame::Bytes(channel, _) => Err(Error::Protocol(format!("bytes on {channel:?}"))),
        }
    }

    fn done(&mut self) -> Result<(), Error> {
        match self.reply()? {
            Reply::Done {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> Error {
    Error::Protocol(format!("a reply to another request: {reply:?}"))
}

type Opener = dyn Fn() -> Result<Box<dyn Stream>, Error> + Send + Sync;

/// The agent of one guest.
pub struct Agent {
    open: Box<Opener>,
    /// How long an operation may wait for the agent's next frame, where the guest's own work is not
    /// what it waits for.
    timeout: Option<Duration>,
}

impl Agent {
    /// An agent that is reached by these connections.
    pub fn new<S: Stream>(open: impl Fn() -> Result<S, Error> + Send + Sync + 'static) -> Self {
        Self { open: Box::new(move || Ok(Box::new(open()?))), timeout: None }
    }

    /// Gives up on an operation if the agent is silent for this long. Output of processes and
    /// watched changes may take as long as they take.
    pub fn with_timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    fn session(&self, request: &Request) -> Result<Session, Error> {
        let stream = (self.open)()?;
        stream.set_timeout(self.timeout)?;
        let mut session = Session::new(stream)?;
        session.send(request)?;
        Ok(session)
    }

    /// Every process in the guest.
    pub fn processes(&self) -> Result<Vec<agent::Process>, Error> {
        match self.session(&Request::Processes {})?.reply()? {
            Reply::Processes { processes } => Ok(processes),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.session(&Request::Signal(signal))?.done()
    }

    /// What the guest uses.
    pub fn usage(&self) -> Result<Usage, Error> {
        match self.session(&Request::Usage {})?.reply()? {
            Reply::Usage(usage) => Ok(usage),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the guest. The answer comes before the end.
    pub fn shutdown(&self, reboot: bool, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.session(&Request::Shutdown { reboot, grace_ms })?.done()
    }

    /// Connects to a listener in the guest.
    pub fn dial(&self, target: Dial) -> Result<Box<dyn Stream>, Error> {
        let mut session = self.session(&Request::Dial(target))?;
        session.done()?;
        let stream = session.reader.into_inner();
        stream.set_timeout(None)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
