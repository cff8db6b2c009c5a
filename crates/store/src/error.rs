//! Why an operation of the store failed, in the few kinds a caller can act upon.

use std::io;
use std::path::Path;

use crate::id::ChunkId;

/// Result of the store's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why it failed. The variants are stable; the messages are for people.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such thing in the store.
    #[error("{what} is not in the store")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// It exists already, and the caller asked for something new; or somebody else changed it first.
    #[error("{what} exists already")]
    Exists {
        /// What.
        what: String,
    },
    /// Stored bytes are not what they were. Nothing of them was given out.
    #[error("{0}")]
    Damaged(Box<Damage>),
    /// The backend does not answer, or not in time.
    #[error("the store's backend does not do {doing}: {reason}")]
    Unavailable {
        /// The operation and its object.
        doing: String,
        /// What the backend said last.
        reason: String,
    },
    /// The backend refuses: keys or permissions are wrong.
    #[error("the store's backend refuses {doing}: {reason}")]
    Denied {
        /// The operation and its object.
        doing: String,
        /// What the backend said.
        reason: String,
    },
    /// No space is left, in the store or on this machine.
    #[error("no space is left for {what}")]
    Full {
        /// What was being written.
        what: String,
    },
    /// The caller's input cannot be used.
    #[error("{0}")]
    Bad(String),
    /// A file of this machine could not be read or written.
    #[error("cannot {doing}")]
    File {
        /// The operation and the path.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// A signature is missing, wrong, or of nobody trusted.
    #[error("{0}")]
    Untrusted(String),
    /// A draft waited so long that parts of it were collected. Put the state again.
    #[error("the draft is too old: {0}; put the state again")]
    Expired(String),
}

impl Error {
    /// A file's failure; a full disk is told apart.
    pub(crate) fn file(doing: &str, path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::Full { what: path.display().to_string() };
        }
        Self::File { doing: format!("{doing} {}", path.display()), source }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::Bad(message.into())
    }

    /// Whether another try may find the thing itself, not only the backend, in a better mood.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Damaged(_))
    }
}

/// Which bytes are damaged, and whom it hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Whose.
    pub tenant: String,
    /// The object, as the backend names it.
    pub object: String,
    /// The chunk, if the object is one.
    pub chunk: Option<ChunkId>,
    /// What is wrong with it.
    pub reason: String,
    /// Blobs and ranges of bytes that cannot be read without it, as far as known.
    pub hits: Vec<Hit>,
}

/// A part of a state that a damage hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Where it is seen from: a root's name, or a state's id.
    pub state: String,
    /// The blob.
    pub blob: String,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of tenant {} is damaged: {}", self.object, self.tenant, self.reason)?;
        for (number, hit) in self.hits.iter().take(3).enumerate() {
            let word = if number == 0 { "; it holds" } else { "," };
            let end = hit.start + hit.length;
            write!(f, "{word} bytes {}..{end} of {} in {}", hit.start, hit.blob, hit.state)?;
        }
        match self.hits.len() {
            0..=3 => Ok(()),
            more => write!(f, " and {} other places", more - 3),
        }
    }
}

/// Whether this is a full disk or a spent quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
