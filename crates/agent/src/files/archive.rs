//! Directories as tar streams, both ways, through [`ramet_archive`].
//!
//! Nothing is held whole: what is packed goes out frame by frame as the host takes it, and what comes in is
//! unpacked as it comes. An archive that is refused in the middle leaves what was unpacked before.
//!
//! The compression wants more stack than a session has, so this work has a thread of its own.

use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use ramet_archive::{Counts, Error, Owner, Pack, Specials, Unpack};
use ramet_proto::agent::{
    Channel, FRAME_MAX, Failure, Input, ReadArchive, Reply, Unpacked, WriteArchive,
};

use super::{checked_path, describe, owner};
use crate::failure::{Outcome, bad_request, failure, from_io};
use crate::frame::{Connection, Decoder, FrameError, Received};

const STACK_BYTES: usize = 1 << 20;
/// Bytes gathered for a frame.
const PIECE: usize = 64 << 10;

/// Serve a session that reads a directory as an archive.
pub fn read(connection: &Connection, request: &ReadArchive) {
    apart(connection, || {
        let path = checked_path(&request.path)?;
        let metadata = std::fs::metadata(&path).map_err(|error| from_io(path.display(), &error))?;
        if !metadata.is_dir() {
            let text = format!("{}: is not a directory", path.display());
            return Err(failure("not_a_directory", text));
        }
        if connection.send(&Reply::Stat(describe(&path, &metadata))).is_err() {
            return Ok(None);
        }
        match pack(connection, &path, request.gzip) {
            Ok(_) => Ok(Some(Reply::Done {})),
            // The host left.
            Err(Error::Stream(_)) => Ok(None),
            Err(error) => Err(told(&error)),
        }
    });
}

fn pack(connection: &Connection, path: &Path, gzip: bool) -> Result<Counts, Error> {
    let options = Pack { one_filesystem: true, owner: None };
    let mut frames = Frames { connection, gathered: Vec::with_capacity(PIECE) };
    if !gzip {
        return ramet_archive::pack(path, &mut frames, options);
    }
    let mut encoder = GzEncoder::new(&mut frames, Compression::fast());
    let counts = ramet_archive::pack(path, &mut encoder, options)?;
    let frames = encoder.finish().map_err(Error::Stream)?;
    frames.flush().map_err(Error::Stream)?;
    Ok(counts)
}

/// Serve a session that unpacks an archive.
pub fn write(connection: &Connection, request: &WriteArchive) {
    apart(connection, || {
        let path = checked_path(&request.path)?;
        let owner = match owner(request.owner.as_deref())? {
            Some((uid, gid)) => Owner::Fixed(uid, gid),
            None => Owner::Archive,
        };
        let options = Unpack { owner, mode_mask: 0o7777, specials: Specials::Make };
        let mut content = Content::new(connection);
        let unpacked = if request.gzip {
            ramet_archive::unpack(MultiGzDecoder::new(&mut content), &path, options)
        } else {
            ramet_archive::unpack(&mut content, &path, options)
        };
        if content.hung_up {
            return Ok(None);
        }
        let Counts { entries, files, bytes } = unpacked.map_err(|error| told(&error))?;
        if !content.drain() {
            return Ok(None);
        }
        Ok(Some(Reply::Unpacked(Unpacked { entries, files, bytes })))
    });
}

/// Do it on a thread with room, and answer with what came out; nothing if the host left.
fn apart(connection: &Connection, work: impl FnOnce() -> Outcome<Option<Reply>> + Send) {
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("archive".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(failure("io", "archive: broke off")))
            }
            Err(error) => Err(from_io("archive", &error)),
        }
    });
    if let Some(outcome) = outcome.transpose() {
        crate::session::answer(connection, outcome);
    }
}

fn told(error: &Error) -> Failure {
    match error {
        Error::File { path, source } => from_io(path.display(), source),
        // The host's stream is whole, so what failed is the compression.
        Error::Stream(error) => bad_request(format!("not a gzip stream: {error}")),
        Error::Malformed(_) | Error::Refused { .. } => bad_request(error.to_string()),
    }
}

/// An archive on its way out.
struct Frames<'a> {
    connection: &'a Connection,
    gathered: Vec<u8>,
}

impl Write for Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() + bytes.len() > PIECE {
            self.flush()?;
        }
        if bytes.len() >= PIECE {
            let length = bytes.len().min(FRAME_MAX);
            self.connection.send_bytes(Channel::Stdout, &bytes[..length])?;
            return Ok(length);
        }
        self.gathered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            self.connection.send_bytes(Channel::Stdout, &self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }
}

/// An archive on its way in; at its end when the host says so.
struct Content<'a> {
    connection: &'a Connection,
    decoder: Decoder,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    read: usize,
    ended: bool,
    hung_up: bool,
}

impl<'a> Content<'a> {
    fn new(connection: &'a Connection) -> Self {
        let decoder = Decoder::default();
        Self { connection, decoder, piece: Vec::new(), read: 0, ended: false, hung_up: false }
    }

    /// Take what comes behind the archive. False: the host hung up.
    fn drain(&mut self) -> bool {
        io::copy(self, &mut io::sink()).is_ok() && !self.hung_up
    }

    fn receive(&mut self) -> io::Result<()> {
        self.decoder.reuse(std::mem::take(&mut self.piece));
        self.read = 0;
        let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
        match self.decoder.receive(self.connection) {
            Ok(Received::Frame(Channel::Stdin, bytes)) => self.piece = bytes,
            Ok(Received::Frame(Channel::Message, bytes)) => match serde_json::from_slice(&bytes) {
                Ok(Input::End {}) => self.ended = true,
                _ => return Err(wrong("an archive takes bytes and an end")),
            },
            Ok(Received::Frame(..)) => {
                return Err(wrong("an archive comes on the channel of stdin"));
            }
            Ok(Received::End | Received::Nothing) | Err(FrameError::Io(_)) => {
                self.hung_up = true;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(FrameError::Head(error)) => return Err(wrong(&error.to_string())),
        }
        Ok(())
    }
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() {
            if self.ended {
                return Ok(0);
            }
            self.receive()?;
        }
        let count = into.len().min(self.piece.len() - self.read);
        into[..count].copy_from_slice(&self.piece[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}
