//! The terminal that ramet runs on: its size, and raw mode for a terminal in a sandbox.

use std::io::{self, IsTerminal};

use ramet_client::api::Terminal;
use rustix::termios::{self, OptionalActions, Termios};

use crate::failure::{Failure, USAGE};

/// Size where it cannot be found out.
const USUAL: Terminal = Terminal { columns: 80, rows: 24 };

/// Size of the terminal.
pub fn size() -> Terminal {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Terminal { columns: size.ws_col, rows: size.ws_row }
        }
        _ => USUAL,
    }
}

/// An error if standard input is no terminal. Asked before a process is started for one.
pub fn needed() -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::new("a terminal is needed, and standard input is none")
        .exit(USAGE)
        .next("`ramet exec` without -t needs none; -i alone passes standard input on"))
}

/// What is typed meanwhile is not shown.
pub fn hidden<T>(typed: impl FnOnce() -> T) -> T {
    let before = termios::tcgetattr(io::stdin()).ok();
    if let Some(mut quiet) = before.clone() {
        quiet.local_modes.remove(termios::LocalModes::ECHO);
        // If it cannot be hidden it is still read.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &quiet);
    }
    let result = typed();
    if let Some(before) = before {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
    result
}

/// The terminal passes on every key as it is. Dropping this makes it as it was.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// From now on.
    pub fn enter() -> Result<Self, Failure> {
        needed()?;
        let cannot = |error| Failure::because("cannot use the terminal", &io::Error::from(error));
        let before = termios::tcgetattr(io::stdin()).map_err(cannot)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw).map_err(cannot)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
