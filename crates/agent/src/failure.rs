//! From what the kernel said to what a session is told.
//!
//! Every refusal of a session is a [`Failure`] whose code is one of the list beside
//! [`Failure::code`]. Nothing here prints, and no error is turned into success.

use std::io;

use nix::errno::Errno;
use ramet_proto::agent::Failure;

/// What an operation of a session gives.
pub type Outcome<T> = Result<T, Failure>;

/// A failure with this code and text.
pub fn failure(code: &str, message: impl Into<String>) -> Failure {
    Failure { code: code.to_owned(), message: message.into() }
}

/// The request itself is wrong.
pub fn bad_request(message: impl Into<String>) -> Failure {
    failure("bad_request", message)
}

/// The kernel refused `what` (a path, mostly).
pub fn from_io(what: impl std::fmt::Display, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        None if error.kind() == io::ErrorKind::TimedOut => {
            failure("timed_out", format!("{what}: no answer in time"))
        }
        Some(number) => from_errno(what, Errno::from_raw(number)),
        None => failure("io", format!("{what}: {error}")),
    }
}

/// As [`from_io`], for calls that give an [`Errno`].
pub fn from_errno(what: impl std::fmt::Display, errno: Errno) -> Failure {
    failure(code_of(errno), format!("{what}: {}", errno.desc()))
}

fn code_of(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "not_found",
        Errno::EEXIST => "already_exists",
        Errno::ENOTDIR => "not_a_directory",
        Errno::EISDIR => "is_a_directory",
        Errno::ENOTEMPTY => "not_empty",
        Errno::EACCES | Errno::EPERM | Errno::EROFS => "permission_denied",
        Errno::ENOSPC | Errno::EDQUOT => "no_space",
        Errno::ESRCH => "no_such_process",
        Errno::EBUSY | Errno::ETXTBSY => "busy",
        Errno::ECONNREFUSED => "connection_refused",
        Errno::ETIMEDOUT => "timed_out",
        Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM => "too_many",
        Errno::EINVAL | Errno::ENAMETOOLONG | Errno::ELOOP => "bad_request",
        _ => "io",
    }
}
