//! Why an operation on sandboxes was not carried out. HTTP is not known here.

use ramet_proto::control;

use crate::host::{self, agent};
use crate::store;

/// What can be done with a state that does not run here.
pub const FILES_ONLY: &str =
    "`ramet checkout --disk` takes its files alone, which boot on any host";

/// Why an operation was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value is out of its range.
    #[error("{0}")]
    Bad(String),
    /// An option that is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// There is no such thing, for this principal.
    #[error("there is no {what} {key:?}")]
    NotFound {
        /// What it would be.
        what: &'static str,
        /// What was asked for.
        key: String,
    },
    /// It was deleted.
    #[error("the sandbox {0} was deleted")]
    Gone(String),
    /// It was promoted.
    #[error("the sandbox {id} was promoted: {to} goes on as it did")]
    Promoted {
        /// The winner.
        id: String,
        /// The sandbox that goes on.
        to: String,
    },
    /// Several begin so.
    #[error("several sandboxes begin with {0:?}; say more of the id")]
    Ambiguous(String),
    /// There is something else already.
    #[error("{0}")]
    Exists(String),
    /// The name is in use.
    #[error("the name {0:?} is taken by another sandbox")]
    NameTaken(String),
    /// The state does not allow it.
    #[error("{0}")]
    WrongState(String),
    /// The first request with this key is under way.
    #[error("the first request with this key is under way")]
    InProgress,
    /// The key belongs to another request.
    #[error("the key was used with another request")]
    Mismatch,
    /// It holds secrets, and nobody said what becomes of them.
    #[error("{0}")]
    HoldsSecrets(String),
    /// There is no network.
    #[error("{0}")]
    NoNetwork(String),
    /// What was waited for did not happen.
    #[error("{0}")]
    NotInTime(String),
    /// Only for the administrator.
    #[error("{0}")]
    Denied(String),
    /// The winner is not below the sandbox.
    #[error("{winner} does not descend from {sandbox}, so it cannot be promoted to it")]
    NotADescendant {
        /// Who would go on.
        sandbox: String,
        /// The other.
        winner: String,
    },
    /// Too little memory.
    #[error("{0}")]
    NoCapacity(String),
    /// The template is not warm.
    #[error("{0}")]
    NotReady(String),
    /// Too much at once.
    #[error("{0}")]
    TooMany(String),
    /// Something else needs it.
    #[error("{0}")]
    InUse(String),
    /// Too many bytes.
    #[error("{0}")]
    TooLarge(String),
    /// The node's disk is full.
    #[error("{0}")]
    NoSpace(String),
    /// What is in the store was damaged.
    #[error("{0}")]
    Damaged(String),
    /// The store does not answer.
    #[error("{0}")]
    StoreUnavailable(String),
    /// The state cannot go on on this host.
    #[error("{0}")]
    Incompatible(String),
    /// Not signed by a key that is trusted.
    #[error("{0}")]
    Untrusted(String),
    /// A template could not be built.
    #[error("{0}")]
    BuildFailed(String),
    /// The range is not in the file.
    #[error("the file has {size} bytes, which the range is not within")]
    BadRange {
        /// Of the file.
        size: u64,
    },
    /// The machine refused or failed.
    #[error("{0}")]
    Host(host::Error),
    /// The guest refused or failed.
    #[error("{0}")]
    Guest(agent::Error),
    /// The database failed.
    #[error("the database failed")]
    Store(#[from] store::Error),
    /// The host failed.
    #[error("the host failed")]
    Io(#[source] std::io::Error),
    /// The node failed.
    #[error("{0}")]
    Internal(String),
}

impl From<host::Error> for Error {
    fn from(error: host::Error) -> Self {
        match error {
            host::Error::Refused { code: control::Code::WrongState, message } => {
                Self::WrongState(message)
            }
            host::Error::Refused { code: control::Code::Busy, message } => Self::TooMany(message),
            host::Error::Refused {
                code: control::Code::OtherCpu | control::Code::OtherVersion,
                message,
            } => Self::Incompatible(format!("{message}; {FILES_ONLY}")),
            host::Error::Refused { code: control::Code::BadValue, message } => Self::Bad(message),
            host::Error::Unsupported(text) => Self::Unsupported(text),
            host::Error::Busy => Self::TooMany(host::Error::Busy.to_string()),
            other => Self::Host(other),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::NoSpace("the node's disk is full; remove templates or images".to_owned())
            }
            _ => Self::Io(error),
        }
    }
}

impl From<agent::Error> for Error {
    fn from(error: agent::Error) -> Self {
        Self::Guest(error)
    }
}
