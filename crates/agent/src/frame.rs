//! Connections and the frames on them.
//!
//! A [`Connection`] is one session's socket, whatever its family. [`Decoder`] reads frames and
//! never a byte beyond the frame it returns, so that the raw stream of a dialled session begins
//! exactly where its frames end. It refuses frames longer than [`FRAME_MAX`] before it makes room for
//! them, and channels that do not exist.
//!
//! Invariant: a frame is written whole or the connection is given up; nothing is written after a
//! failed write.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramet_proto::agent::{Channel, FRAME_MAX, Failure, HEAD, Head, HeadError, Reply};

/// One of the bounded number of sessions; given back when dropped.
pub struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Take one, unless `limit` are taken.
    pub fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let less = |now| (now < limit).then_some(now + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The socket of a session.
pub struct Connection {
    /// A socket; `File` because reading and writing is all that the families share.
    socket: File,
    /// Held as long as the socket is open.
    _permit: Option<Permit>,
}

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed.
    #[error("connection failed")]
    Io(#[from] io::Error),
    /// The peer announced too much, or a channel that does not exist.
    #[error("{0}")]
    Head(#[from] HeadError),
}

/// What [`Decoder::receive`] found.
pub enum Received {
    /// A whole frame.
    Frame(Channel, Vec<u8>),
    /// Not all of a frame yet (only on a socket that does not block).
    Nothing,
    /// The peer has closed.
    End,
}

/// Reads frames, across as many calls as it takes.
#[derive(Default)]
pub struct Decoder {
    head: [u8; HEAD],
    head_filled: usize,
    body: Vec<u8>,
    body_filled: usize,
    /// Room for the next body, from [`Decoder::reuse`].
    spare: Vec<u8>,
}

impl Connection {
    /// The session on this socket.
    pub fn new(socket: OwnedFd, permit: Option<Permit>) -> Self {
        Self { socket: File::from(socket), _permit: permit }
    }

    /// Send one message, waiting as long as the peer needs.
    pub fn send(&self, reply: &Reply) -> io::Result<()> {
        self.write_all(&encode(reply))
    }

    /// Send bytes on a channel.
    pub fn send_bytes(&self, channel: Channel, bytes: &[u8]) -> io::Result<()> {
        let head = Head { channel, length: bytes.len() }.encode();
        let mut parts = [IoSlice::new(&head), IoSlice::new(bytes)];
        let mut parts: &mut [IoSlice<'_>] = &mut parts;
        while !parts.is_empty() {
            match (&self.socket).write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Send the failure as the last frame, and let the peer read it even if it is still sending.
    pub fn refuse(&self, failure: Failure) {
        if self.send(&Reply::Error(failure)).is_err() {
            return;
        }
        self.shut_write();
        let patience = nix::sys::time::TimeVal::new(1, 0);
        if nix::sys::socket::setsockopt(
            &self.socket,
            nix::sys::socket::sockopt::ReceiveTimeout,
            &patience,
        )
        .is_err()
        {
            return;
        }
        // Closing with unread input would reset the connection and might overtake the frame.
        let mut waste = vec![0; 64 * 1024];
        for _ in 0..4096 {
            match (&self.socket).read(&mut waste) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// No more is sent; the peer reads an end.
    pub fn shut_write(&self) {
        // It fails only on a connection that is gone already.
        let _ = nix::sys::socket::shutdown(
            std::os::fd::AsRawFd::as_raw_fd(&self.socket),
            nix::sys::socket::Shutdown::Write,
        );
    }

    /// Another handle for the same socket.
    pub fn duplicate(&self) -> io::Result<File> {
        self.socket.try_clone()
    }

    /// The socket for plain reads and writes.
    pub fn raw(&self) -> &File {
        &self.socket
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.socket).write_all(bytes)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Decoder {
    /// Read on, until a frame is whole, the socket has no more for now, or the peer has closed.
    pub fn receive(&mut self, connection: &Connection) -> Result<Received, FrameError> {
        let mut socket = connection.raw();
        while self.head_filled < HEAD {
            match read(&mut socket, &mut self.head[self.head_filled..])? {
                Some(0) if self.head_filled == 0 => return Ok(Received::End),
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(count) => self.head_filled += count,
                None => return Ok(Received::Nothing),
            }
            if self.head_filled == HEAD {
                let Head { length, .. } = Head::decode(self.head)?;
                self.body = std::mem::take(&mut self.spare);
                self.body.resize(length, 0);
                self.body_filled = 0;
            }
        }
        while self.body_filled < self.body.len() {
            match read(&mut socket, &mut self.body[self.body_filled..])? {
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(count) => self.body_filled += count,
                None => return Ok(Received::Nothing),
            }
        }
        let Head { channel, .. } = Head::decode(self.head)?;
        self.head_filled = 0;
        Ok(Received::Frame(channel, std::mem::take(&mut self.body)))
    }

    /// Give back the body of a frame that is done with: large transfers need no new memory then.
    pub fn reuse(&mut self, body: Vec<u8>) {
        self.spare = body;
    }
}

/// `None`: would block.
fn read(socket: &mut &File, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match socket.read(into) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// A message as a frame. One that would be too long is replaced by an error saying so.
pub fn encode(reply: &Reply) -> Vec<u8> {
    let mut frame = vec![0; HEAD];
    let written = serde_json::to_writer(&mut frame, reply);
    if written.is_err() || frame.len() - HEAD > FRAME_MAX {
        let text = "the answer does not fit into a frame";
        return encode(&Reply::Error(crate::failure::failure("io", text)));
    }
    let head = Head { channel: Channel::Message, length: frame.len() - HEAD };
    frame[..HEAD].copy_from_slice(&head.encode());
    frame
}
