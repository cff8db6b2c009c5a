//! Trees of files as tar streams, for both ends: the agent in a guest and the command line.
//!
//! [`pack`] writes a directory, [`unpack`] reads one. Both work on plain blocking streams, hold a few blocks of
//! memory whatever the size of the tree, and know nothing of guests, frames or HTTP.
//!
//! An archive is input from somebody else. Whatever it says, [`unpack`] touches nothing outside its
//! target: names that are absolute or contain `..` are refused, and every directory is opened by the
//! kernel with the rule that it lies beneath the target (`openat2`, `RESOLVE_BENEATH`), so a symlink that
//! leads out is refused, too, also one that appears meanwhile.
//!
//! Kept: names (any bytes), kinds, modes, numeric owners, times of files, symlinks, hard links, holes.
//! Not kept: extended attributes, times of directories, sockets.

mod pack;
mod unpack;

use std::io;
use std::path::PathBuf;

pub use pack::{Pack, pack};
pub use unpack::{Owner, Specials, Unpack, unpack};

/// Size of a tar block.
const BLOCK: usize = 512;
/// Bytes copied at a time. Longer runs of zeros of this length become holes.
const PIECE: usize = 64 << 10;

/// What was packed or unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries of any kind.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of regular files, holes included.
    pub bytes: u64,
}

/// Why it was not done to the end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the tree could not be read or made.
    #[error("{}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The stream could not be read or written.
    #[error("the archive's stream failed")]
    Stream(#[source] io::Error),
    /// What is read is no archive.
    #[error("not a tar archive: {0}")]
    Malformed(String),
    /// An entry that is not taken.
    #[error("entry {name:?}: {reason}")]
    Refused {
        /// Its name, as far as it is text.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}
