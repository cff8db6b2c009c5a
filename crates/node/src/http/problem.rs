//! Errors as clients see them: `application/problem+json` with a stable code.
//!
//! The only place where errors of the inner layers meet HTTP. What is nobody's business but the
//! operator's goes to the log, and the client gets its code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{Code, Problem};
use ramet_proto::control;

use crate::host;
use crate::host::agent;
use crate::sandbox::Error;
use crate::store;

/// What is said when the node itself has no room; guests tell of their own.
const FULL: &str =
    "the host's disk is full, and nothing was changed; make room, or delete sandboxes";

/// A problem on its way to a client.
#[derive(Debug)]
pub struct Refusal(pub Box<Problem>);

impl Refusal {
    /// With this code, and what was wrong.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(problem(code, detail.into())))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(Box::new(of(&error)))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&*self.0).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if self.0.code == Code::Unauthorized {
            let value = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

/// The problem that an error is.
pub fn of(error: &Error) -> Problem {
    let code = code(error);
    let detail = match error {
        Error::Host(_) | Error::Guest(_) | Error::Store(_) | Error::Io(_) | Error::Internal(_)
            if code == Code::Internal =>
        {
            tracing::error!(error = ?error, "a request failed");
            "the node failed; its log says more".to_owned()
        }
        Error::Store(_) | Error::Io(_) | Error::Host(host::Error::Io(_)) => {
            tracing::error!(error = ?error, "the disk is full");
            FULL.to_owned()
        }
        other => other.to_string(),
    };
    let mut problem = problem(code, detail);
    if let Error::Promoted { to, .. } = error {
        problem.promoted_to = Some(to.clone());
    }
    problem
}

fn problem(code: Code, detail: String) -> Problem {
    let name = serde_json::to_value(code).ok();
    let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or("unknown");
    Problem {
        kind: "about:blank".to_owned(),
        title: name.replace('_', " "),
        status: status(code),
        code,
        detail,
        promoted_to: None,
    }
}

fn code(error: &Error) -> Code {
    match error {
        Error::Bad(_) => Code::BadRequest,
        Error::Unsupported(_) => Code::UnsupportedOption,
        Error::NotFound { .. } => Code::NotFound,
        Error::Gone(_) => Code::Gone,
        Error::Promoted { .. } => Code::Promoted,
        Error::Ambiguous(_) => Code::Ambiguous,
        Error::Exists(_) => Code::AlreadyExists,
        Error::NameTaken(_) => Code::NameTaken,
        Error::WrongState(_) => Code::WrongState,
        Error::InProgress => Code::InProgress,
        Error::Mismatch => Code::IdempotencyMismatch,
        Error::NotADescendant { .. } => Code::NotADescendant,
        Error::HoldsSecrets(_) => Code::HoldsSecrets,
        Error::NoNetwork(_) => Code::NetworkUnavailable,
        Error::NotInTime(_) => Code::GuestUnresponsive,
        Error::Denied(_) => Code::PermissionDenied,
        Error::NoCapacity(_) => Code::NoCapacity,
        Error::NotReady(_) => Code::NotReady,
        Error::TooMany(_) => Code::TooMany,
        Error::InUse(_) => Code::InUse,
        Error::TooLarge(_) => Code::TooLarge,
        Error::NoSpace(_) => Code::NoSpace,
        Error::Damaged(_) => Code::Damaged,
        Error::StoreUnavailable(_) => Code::StoreUnavailable,
        Error::Incompatible(_) => Code::Incompatible,
        Error::Untrusted(_) => Code::Untrusted,
        Error::BuildFailed(_) => Code::GuestFailed,
        Error::BadRange { .. } => Code::BadRange,
        Error::Store(error) if error.is_full() => Code::NoSpace,
        Error::Io(error) | Error::Host(host::Error::Io(error)) if store::is_full(error) => {
            Code::NoSpace
        }
        Error::Host(error) => host_code(error),
        Error::Guest(error) => guest_code(error),
        Error::Store(_) | Error::Io(_) | Error::Internal(_) => Code::Internal,
    }
}

fn host_code(error: &host::Error) -> Code {
    match error {
        host::Error::Refused { code, .. } => match code {
            control::Code::GuestUnresponsive | control::Code::ConnectionRefused => {
                Code::GuestUnresponsive
            }
            control::Code::NoSpace => Code::NoSpace,
            control::Code::ChildDied => Code::GuestFailed,
            _ => Code::Internal,
        },
        host::Error::Gone(_) => Code::WrongState,
        host::Error::Timeout => Code::GuestUnresponsive,
        host::Error::NotReady { .. } | host::Error::Stopping => Code::NotReady,
        host::Error::Busy => Code::TooMany,
        host::Error::Unsupported(_) => Code::UnsupportedOption,
        host::Error::Io(_) | host::Error::Broken(_) => Code::Internal,
    }
}

fn guest_code(error: &agent::Error) -> Code {
    let agent::Error::Failure(failure) = error else {
        return match error {
            agent::Error::Timeout => Code::GuestUnresponsive,
            agent::Error::Io(_) => Code::Internal,
            _ => Code::GuestFailed,
        };
    };
    match failure.code.as_str() {
        "bad_request" => Code::BadRequest,
        "not_found" => Code::FileNotFound,
        "already_exists" => Code::AlreadyExists,
        "not_a_directory" => Code::NotADirectory,
        "is_a_directory" => Code::IsADirectory,
        "not_empty" => Code::NotEmpty,
        "permission_denied" => Code::PermissionDenied,
        "no_space" => Code::NoSpace,
        "no_such_user" => Code::NoSuchUser,
        "no_such_process" => Code::NoSuchProcess,
        "busy" | "too_many" => Code::TooMany,
        "connection_refused" => Code::ConnectionRefused,
        "timed_out" => Code::GuestUnresponsive,
        _ => Code::GuestFailed,
    }
}

fn status(code: Code) -> u16 {
    match code {
        Code::BadRequest | Code::UnsupportedOption | Code::NoSuchUser => 400,
        Code::Unauthorized => 401,
        Code::PermissionDenied | Code::Untrusted => 403,
        Code::NotFound | Code::FileNotFound | Code::NoSuchProcess => 404,
        Code::MethodNotAllowed => 405,
        Code::WrongState
        | Code::NameTaken
        | Code::Ambiguous
        | Code::InProgress
        | Code::InUse
        | Code::Incompatible
        | Code::NotADescendant
        | Code::HoldsSecrets
        | Code::AlreadyExists
        | Code::NotADirectory
        | Code::IsADirectory
        | Code::NotEmpty => 409,
        Code::Gone | Code::Promoted => 410,
        Code::TooLarge => 413,
        Code::BadRange => 416,
        Code::IdempotencyMismatch => 422,
        Code::TooMany => 429,
        Code::Internal | Code::Damaged | Code::Unknown => 500,
        Code::GuestFailed | Code::ConnectionRefused => 502,
        Code::NoCapacity | Code::NotReady | Code::StoreUnavailable | Code::NetworkUnavailable => {
            503
        }
        Code::GuestUnresponsive => 504,
        Code::NoSpace => 507,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_as_such() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let sql = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        let sql = store::Error::Sql(rusqlite::Error::SqliteFailure(sql, None));
        let path = "/x".into();
        let all = [
            Error::Io(full()),
            Error::Host(host::Error::Io(full())),
            Error::Store(sql),
            Error::Store(store::Error::File { path, source: full() }),
        ];
        for error in all {
            let problem = of(&error);
            assert_eq!((problem.status, problem.code), (507, Code::NoSpace), "{error:?}");
            assert!(problem.detail.contains("disk is full"), "{problem:?}");
        }
        assert_eq!(of(&Error::Io(std::io::ErrorKind::NotFound.into())).code, Code::Internal);
    }
}
