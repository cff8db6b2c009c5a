//! What this guest has become, so that the host can tell two guests apart.
//!
//! [`layer`] lists the writable layer of the root, which holds everything that was ever changed since the
//! image: it says where to look. [`look`] describes files as processes see them, and [`digest`] what they
//! hold: that is what is compared. None of them follows symlinks.
//!
//! Invariant: what cannot be looked at is a failure of the request, never left out. Left out on purpose are
//! filesystems of the kernel, single files that are mounted over others, and the agent's own directory:
//! identities are meant to differ.

pub mod digest;
pub mod layer;
pub mod look;
pub mod mounts;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;
use ramet_proto::agent::Reply;

use crate::failure::from_io;
use crate::frame::Connection;

/// Entries in one frame.
const PART: usize = 128;
/// Bytes of paths in one frame; escaped as JSON they still fit.
const PART_BYTES: usize = 28 * 1024;

/// What the root is made of.
#[derive(Debug)]
pub struct Layers {
    /// The writable layer.
    pub upper: PathBuf,
    /// The device with the image.
    pub base: PathBuf,
}

static LAYERS: OnceLock<Layers> = OnceLock::new();

/// The root is an overlay of these.
pub fn remember(layers: Layers) {
    // Boot calls it once.
    let _ = LAYERS.set(layers);
}

/// What ends a walk early.
#[derive(Debug)]
enum Stopped {
    /// The peer left.
    Peer,
    /// Something could not be looked at.
    Failed(ramet_proto::agent::Failure),
}

impl From<ramet_proto::agent::Failure> for Stopped {
    fn from(failure: ramet_proto::agent::Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Sends entries in frames that they fit into.
struct Parts<'a, T> {
    connection: &'a Connection,
    wrap: fn(Vec<T>) -> Reply,
    entries: Vec<T>,
    bytes: usize,
}

impl<'a, T> Parts<'a, T> {
    fn new(connection: &'a Connection, wrap: fn(Vec<T>) -> Reply) -> Self {
        Self { connection, wrap, entries: Vec::new(), bytes: 0 }
    }

    fn push(&mut self, entry: T, bytes: usize) -> Result<(), Stopped> {
        self.entries.push(entry);
        self.bytes += bytes;
        if self.entries.len() < PART && self.bytes < PART_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        self.bytes = 0;
        if self.entries.is_empty() {
            return Ok(());
        }
        let part = (self.wrap)(std::mem::take(&mut self.entries));
        self.connection.send(&part).map_err(|_| Stopped::Peer)
    }
}

/// Ends a session as its walk ended.
fn finish(connection: &Connection, walked: Result<(), Stopped>) {
    match walked {
        // A peer that left does not want it.
        Ok(()) => drop(connection.send(&Reply::Done {})),
        Err(Stopped::Failed(failure)) => connection.refuse(failure),
        Err(Stopped::Peer) => {}
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// An entry of a directory, as a path.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let parent = if directory == b"/" { &[][..] } else { directory };
    [parent, b"/", name].concat()
}

/// What a call gave, or nothing if the file is not there.
fn if_there<T>(path: &[u8], result: io::Result<T>) -> Result<Option<T>, Stopped> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(from_io(as_path(path).display(), &error).into()),
    }
}

fn is_absent(error: &io::Error) -> bool {
    let absent = [Errno::ENOENT, Errno::ENOTDIR].map(|errno| Some(errno as i32));
    absent.contains(&error.raw_os_error())
}

/// Names in a directory, last first.
fn names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.push(entry?.file_name().into_encoded_bytes());
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// A directory on the way down: where, and the names still to be visited, last first.
struct Level {
    path: Vec<u8>,
    names: Vec<Vec<u8>>,
}

/// The next path of a walk, depth first.
fn next(levels: &mut Vec<Level>) -> Option<Vec<u8>> {
    loop {
        let level = levels.last_mut()?;
        match level.names.pop() {
            Some(name) => return Some(join(&level.path, &name)),
            None => drop(levels.pop()),
        }
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
