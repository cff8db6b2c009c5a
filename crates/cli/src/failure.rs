//! What goes wrong, for people and for scripts: one line, the next step, an exit code.

use std::fmt;

use ramet_client::Error;
use ramet_client::api::{Code, Problem};
use serde_json::json;

use crate::output::Paint;

/// Failed.
pub const FAILED: u8 = 1;
/// Wrong usage; clap's own.
pub const USAGE: u8 = 2;
/// No such thing.
pub const NOT_FOUND: u8 = 3;
/// No node.
pub const UNREACHABLE: u8 = 4;
/// The state does not allow it.
pub const CONFLICT: u8 = 5;
/// Not enough memory, not ready, or no store.
pub const NO_ROOM: u8 = 6;
/// The guest does not answer.
pub const UNRESPONSIVE: u8 = 7;
/// The time of a process was over.
pub const TIMED_OUT: u8 = 124;
/// ramet failed where exit codes are those of a process.
pub const OWN_FAILURE: u8 = 125;

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: u8,
    message: String,
    /// What to do about it.
    next: Option<String>,
    /// The node's code.
    code: Option<Code>,
}

impl Failure {
    /// A failure with these words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { exit: FAILED, message: message.into(), next: None, code: None }
    }

    /// Wrong usage that clap cannot see.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: USAGE, ..Self::new(message) }
    }

    /// Something failed because of something else.
    pub fn because(message: impl fmt::Display, cause: &dyn std::error::Error) -> Self {
        Self::new(format!("{message}: {}", chain(cause)))
    }

    /// With the next step.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// With this exit code.
    pub fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// Says so on standard error.
    pub fn print(&self, json: bool, paint: Paint) {
        if json {
            let error = json!({
                "error": { "message": self.message, "next": self.next, "code": self.code, "exit": self.exit }
            });
            eprintln!("{error}");
            return;
        }
        eprintln!("{} {}", paint.red("error:"), self.message);
        if let Some(next) = &self.next {
            eprintln!("  {} {next}", paint.dim("next:"));
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error with its causes, on one line. Causes that the text before already says are left out.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Refused(problem) => refused(problem),
            Error::Unreachable { .. } => Self::new(chain(&error))
                .exit(UNREACHABLE)
                .next("`ramet up` starts a node; `ramet doctor` says what is wrong"),
            Error::Address { .. } | Error::Token => Self::new(chain(&error)).exit(USAGE),
            Error::Protocol(_) => Self::new(chain(&error))
                .exit(UNREACHABLE)
                .next("check RAMET_URL, and that `ramet` and `rametd` are of one version"),
            _ => Self::new(chain(&error)),
        }
    }
}

fn refused(problem: &Problem) -> Failure {
    let (exit, next) = advice(problem);
    let message = problem.detail.clone();
    Failure { exit, message, next, code: Some(problem.code) }
}

fn advice(problem: &Problem) -> (u8, Option<String>) {
    let (exit, next) = match problem.code {
        Code::NotFound if problem.detail.starts_with("there is no template") => {
            (NOT_FOUND, "`ramet template ls` lists them; `ramet template build` makes one")
        }
        Code::NotFound if problem.detail.starts_with("there is no image") => {
            (NOT_FOUND, "`ramet image ls` lists them; `ramet image build` makes one")
        }
        Code::NotFound if problem.detail.starts_with("there is no commit") => {
            (NOT_FOUND, "`ramet log` lists them; `ramet tag` and `ramet branch` list their names")
        }
        Code::NotFound if problem.detail.starts_with("there is no volume") => {
            (NOT_FOUND, "`ramet volume ls` lists them; `ramet volume create` makes one")
        }
        Code::NotFound if problem.detail.starts_with("there is no secret") => {
            (NOT_FOUND, "`ramet secret ls` lists them; `ramet secret set` makes one")
        }
        Code::NotFound if problem.detail.starts_with("there is no link") => {
            (NOT_FOUND, "`ramet link ls` lists them")
        }
        Code::NotFound if problem.detail.starts_with("there is no token") => {
            (NOT_FOUND, "`ramet token ls` lists them")
        }
        Code::NotFound | Code::Gone => (NOT_FOUND, "`ramet ls` lists what there is"),
        Code::Promoted => {
            let next = problem.promoted_to.as_ref().map(|id| format!("it goes on as {id}"));
            return (NOT_FOUND, next);
        }
        Code::FileNotFound | Code::NoSuchProcess => return (NOT_FOUND, None),
        Code::Unauthorized => (UNREACHABLE, "set RAMET_TOKEN to the node's token"),
        Code::NameTaken => (CONFLICT, "choose another name, or `ramet rm` the one that has it"),
        Code::Ambiguous => (CONFLICT, "give more of the id"),
        Code::WrongState => (CONFLICT, "`ramet ls` shows states; see `ramet resume`"),
        Code::HoldsSecrets => {
            (CONFLICT, "add --inherit-secrets to pass them on, or --drop-secrets not to")
        }
        Code::NetworkUnavailable => (NO_ROOM, "`ramet doctor` says more; the node's log, too"),
        Code::NotADescendant => (CONFLICT, "`ramet tree` shows who comes from whom"),
        Code::InProgress
        | Code::InUse
        | Code::AlreadyExists
        | Code::NotADirectory
        | Code::IsADirectory
        | Code::NotEmpty => return (CONFLICT, None),
        Code::NoCapacity => (NO_ROOM, "`ramet rm` what is not needed; `ramet top` shows memory"),
        Code::NotReady => (NO_ROOM, "wait a moment; `ramet doctor` says more"),
        Code::TooMany => (NO_ROOM, "wait a moment and try again"),
        Code::StoreUnavailable => (NO_ROOM, "try again later; the node's log says more"),
        Code::Damaged => {
            (FAILED, "`ramet store check --deep --repair` replaces what this host has copies of")
        }
        Code::Incompatible => return (CONFLICT, None),
        Code::Untrusted => (FAILED, "the node's options --trust say which keys it trusts"),
        Code::ConnectionRefused => (FAILED, "`ramet ports` lists what listens"),
        Code::GuestUnresponsive => (UNRESPONSIVE, "`ramet logs` shows its console"),
        Code::Internal => (FAILED, "the node's log says more; `ramet doctor` says where it is"),
        _ => return (FAILED, None),
    };
    (exit, Some(next.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(code: Code) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: "t".into(),
            status: 400,
            code,
            detail: "d".into(),
            promoted_to: Some("sbx-1".into()),
        }
    }

    fn problem(code: Code) -> Failure {
        refused(&bare(code))
    }

    #[test]
    fn codes_of_the_node_become_exit_codes() {
        assert_eq!(problem(Code::NotFound).exit, NOT_FOUND);
        assert_eq!(problem(Code::NameTaken).exit, CONFLICT);
        assert_eq!(problem(Code::NoCapacity).exit, NO_ROOM);
        assert_eq!(problem(Code::BadRequest).exit, FAILED);
        assert!(problem(Code::Promoted).next.unwrap().contains("sbx-1"));
    }

    #[test]
    fn what_is_missing_is_found_where_it_is_listed() {
        let next = |detail: &str| {
            let problem = Problem { detail: detail.into(), ..bare(Code::NotFound) };
            refused(&problem).next.unwrap()
        };
        assert!(next("there is no commit \"x\"").contains("ramet log"));
        assert!(next("there is no image \"x\"").contains("ramet image ls"));
        assert!(next("there is no sandbox \"x\"").contains("ramet ls"));
        assert!(problem(Code::Damaged).next.unwrap().contains("ramet store check"));
        assert_eq!(problem(Code::StoreUnavailable).exit, NO_ROOM);
    }

    #[test]
    fn causes_are_told_once() {
        let cause = std::io::Error::other("no route");
        let url = "http://h".to_owned();
        let failure = Failure::from(Error::Unreachable { url, source: cause.into() });
        assert_eq!(failure.message, "no node answers at http://h: no route");
        assert_eq!(failure.exit, UNREACHABLE);
    }
}
