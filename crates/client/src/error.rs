//! Why a request did not succeed.
//!
//! Three kinds that callers treat differently: the node could not be reached (nothing has
//! happened), it refused and says why (nothing has happened either, see the code), or the
//! connection broke half-way (anything may have happened).

use std::time::Duration;

use crate::api::{Code, Problem};

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node's address is not one.
    #[error("{url:?} is no http:// address of a node: {reason}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token cannot be sent.
    #[error("the token has characters that no token has")]
    Token,
    /// No connection to the node.
    #[error("no node answers at {url}")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The node refused, or failed, and says why.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// The deadline is over.
    #[error("the node did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection failed after it had been made.
    #[error("the connection to the node broke")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is none of this API.
    #[error("what answers is no ramet node of this version: {0}")]
    Protocol(String),
    /// What was to be sent could not be read.
    #[error("cannot read what is to be sent")]
    Source(#[source] std::io::Error),
}

impl Error {
    /// The node's code, if it was the node that refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// The node's whole answer, if it was the node that refused.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    pub(crate) fn refused(problem: Problem) -> Self {
        Self::Refused(Box::new(problem))
    }

    pub(crate) fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Broken(error.into())
    }
}
