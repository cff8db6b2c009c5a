//! The conversation with the agent inside a guest, without blocking.
//!
//! One operation is one [`Session`]. The frames are those of [`ramet_proto::agent`]. Flow control is the connection's own:
//! a frame is read when it is asked for, and nothing is buffered beyond one. Every wait for the
//! agent itself has a deadline; waits for a process are bounded by the caller. Dropping a session
//! hangs up, which leaves a process running.

use std::io;
use std::time::Duration;

use ramet_proto::agent::{
    Channel, Dial, FRAME_MAX, Failure, HEAD, Head, HeadError, Input, Reply, Request,
};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Join};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// How long the agent may take to answer, and to take what it is sent.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Why an operation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent refused or failed, and says why.
    #[error("{}", .0.message)]
    Failure(Failure),
    /// The agent hung up in the middle: its machine ended, or was cut.
    #[error("the guest hung up")]
    Closed,
    /// Nothing came in time.
    #[error("the guest did not answer in time")]
    Timeout,
    /// The host failed.
    #[error("the connection to the guest failed")]
    Io(#[source] io::Error),
    /// The agent said something that is not in the protocol.
    #[error("the guest broke the protocol: {0}")]
    Protocol(String),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<HeadError> for Error {
    fn from(error: HeadError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// What the agent sends.
#[derive(Debug)]
pub enum Frame {
    /// A message; refusals are errors instead.
    Reply(Reply),
    /// Bytes of a process or file.
    Bytes(Channel, Vec<u8>),
}

/// The half that hears.
pub struct Listener {
    stream: BufReader<OwnedReadHalf>,
}

/// The half that speaks.
pub struct Speaker {
    stream: OwnedWriteHalf,
}

/// A stream to a listener in the guest. Shutting it down closes one direction.
pub type Dialled = Join<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

/// One operation.
pub struct Session {
    /// What the agent says.
    pub listener: Listener,
    /// What it is told.
    pub speaker: Speaker,
}

impl Session {
    /// Over this connection, in the runtime of the caller.
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        let listener = Listener { stream: BufReader::new(reader) };
        Ok(Self { listener, speaker: Speaker { stream: writer } })
    }

    /// Sends the request and waits for the first reply.
    pub async fn ask(&mut self, request: &Request) -> Result<Reply, Error> {
        self.speaker.message(request).await?;
        self.listener.reply().await
    }

    /// Sends the request and waits until it is done.
    pub async fn done(&mut self, request: &Request) -> Result<(), Error> {
        match self.ask(request).await? {
            Reply::Done {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Connects to a listener in the guest; the session becomes the stream to it.
    pub async fn dial(mut self, dial: Dial) -> Result<Dialled, Error> {
        self.done(&Request::Dial(dial)).await?;
        Ok(tokio::io::join(self.listener.stream, self.speaker.stream))
    }
}

impl Listener {
    /// The next reply, which the agent itself makes, soon.
    pub async fn reply(&mut self) -> Result<Reply, Error> {
        match self.soon().await? {
            Frame::Reply(reply) => Ok(reply),
            Frame::Bytes(channel, _) => Err(Error::Protocol(format!("bytes on {channel:?}"))),
        }
    }

    /// The next frame, which must come soon.
    pub async fn soon(&mut self) -> Result<Frame, Error> {
        timeout(PATIENCE, self.next()).await.unwrap_or(Err(Error::Timeout))
    }

    /// The next frame, whenever it comes. Not to be given up half-way.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head).await?;
        let Head { channel, length } = Head::decode(head)?;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        if channel != Channel::Message {
            return Ok(Frame::Bytes(channel, payload));
        }
        match serde_json::from_slice(&payload) {
            Ok(Reply::Error(failure)) => Err(Error::Failure(failure)),
            Ok(reply) => Ok(Frame::Reply(reply)),
            Err(error) => Err(Error::Protocol(error.to_string())),
        }
    }
}

impl Speaker {
    /// Sends a message.
    pub async fn message(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let payload =
            serde_json::to_vec(message).map_err(|error| Error::Protocol(error.to_string()))?;
        if payload.len() > FRAME_MAX {
            let message = format!("{} bytes of request; {FRAME_MAX} is the most", payload.len());
            return Err(Error::Failure(Failure { code: "bad_request".to_owned(), message }));
        }
        timeout(PATIENCE, self.frame(Channel::Message, &payload))
            .await
            .map_err(|_| Error::Timeout)?
    }

    /// Sends what the protocol has for later frames.
    pub async fn input(&mut self, input: &Input) -> Result<(), Error> {
        self.message(input).await
    }

    /// Sends bytes, in as many frames as they need, as fast as the guest takes them.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.chunks(FRAME_MAX) {
            self.frame(Channel::Stdin, part).await?;
        }
        Ok(())
    }

    async fn frame(&mut self, channel: Channel, payload: &[u8]) -> Result<(), Error> {
        let head = Head { channel, length: payload.len() }.encode();
        let mut frame = Vec::with_capacity(HEAD + payload.len());
        frame.extend_from_slice(&head);
        frame.extend_from_slice(payload);
        Ok(self.stream.write_all(&frame).await?)
    }
}

/// A reply that belongs to another request.
pub fn unexpected(reply: &Reply) -> Error {
    Error::Protocol(format!("a reply to another request: {reply:?}"))
}
