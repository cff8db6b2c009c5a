//! A process in a sandbox on ramet's own input and output, to its end.
//!
//! Signals go to the process: the first Ctrl-C is its business, the second one ends ramet and leaves
//! the process running. On a raw terminal Ctrl-C is a key like any other.

use std::io::{self, Read, Write};
use std::time::Duration;

use ramet_client::api::Terminal;
use ramet_client::{ExecInput, ExecStream, Exited, Output};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::failure::{Failure, TIMED_OUT};
use crate::terminal::{self, Raw};

/// Bytes of standard input that are read at once.
const PIECE: usize = 64 << 10;
/// Pieces on their way to the process.
const AHEAD: usize = 4;
/// How long telling a process that it is over may take.
const HANG_UP_TIME: Duration = Duration::from_secs(1);
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// Exit code of a program whose output nobody wants: 128 + SIGPIPE.
const NOT_WANTED: u8 = 141;
const INTERRUPTED: u8 = 130;

/// What of ramet's own the process gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// Output only.
    Output,
    /// Standard input, too.
    Input,
    /// The whole terminal.
    Terminal,
}

enum ToProcess {
    Bytes(Vec<u8>),
    End,
    Resize(Terminal),
    Signal(i32),
}

/// Passes everything on until the process ends. Its exit code.
pub async fn run(stream: ExecStream, standard: Standard) -> Result<u8, Failure> {
    let _raw = if standard == Standard::Terminal { Some(Raw::enter()?) } else { None };
    let (input, mut output) = stream.split();
    let (to_process, messages) = mpsc::channel(AHEAD);
    let feeder = tokio::spawn(feed(input, messages));
    if standard != Standard::Output {
        read_input(to_process.clone());
    }
    let mut signals = Signals::new().map_err(|error| Failure::because("no signals", &error))?;
    let mut interrupts = 0;
    loop {
        let message = tokio::select! {
            next = output.next() => match next? {
                Output::Exited(exited) => return Ok(exit_code(&exited)),
                Output::Stdout(bytes) => match write(io::stdout().lock(), &bytes) {
                    Ok(()) => continue,
                    Err(_) => {
                        hang_up(to_process, feeder).await;
                        return Ok(NOT_WANTED);
                    }
                },
                Output::Stderr(bytes) => {
                    // Errors that nobody wants to see are no reason to end.
                    let _ = write(io::stderr().lock(), &bytes);
                    continue;
                }
            },
            message = signals.next() => message,
        };
        if matches!(message, ToProcess::Signal(_)) {
            interrupts += 1;
        }
        // A full queue means that the process does not read; the second signal ends us.
        if to_process.try_send(message).is_err() && interrupts > 0 || interrupts > 1 {
            return Ok(INTERRUPTED);
        }
    }
}

/// Tells the process that nobody wants its output, and waits until that is sent. Whether it heeds
/// it is its own business.
async fn hang_up(to_process: mpsc::Sender<ToProcess>, feeder: JoinHandle<()>) {
    let told = async {
        // Fails only if the connection is gone.
        let _ = to_process.send(ToProcess::Signal(SIGHUP)).await;
        drop(to_process);
        let _ = feeder.await;
    };
    // A process that does not read its input keeps what is behind it from being sent.
    let _ = tokio::time::timeout(HANG_UP_TIME, told).await;
}

/// As a shell would give it.
pub fn exit_code(exited: &Exited) -> u8 {
    if exited.timed_out {
        return TIMED_OUT;
    }
    match (exited.exit_code, exited.signal) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (None, None) => u8::MAX,
    }
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Sends messages on, in order. Errors show in the output, which ends then.
async fn feed(mut input: ExecInput, mut messages: mpsc::Receiver<ToProcess>) {
    while let Some(message) = messages.recv().await {
        let sent = match message {
            ToProcess::Bytes(bytes) => input.write(&bytes).await,
            ToProcess::End => input.end().await,
            ToProcess::Resize(terminal) => input.resize(terminal).await,
            ToProcess::Signal(signal) => input.signal(signal).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Reads standard input on a thread of its own, which may wait there for ever.
fn read_input(to_process: mpsc::Sender<ToProcess>) {
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut piece = vec![0; PIECE];
        loop {
            let message = match stdin.read(&mut piece) {
                Ok(0) | Err(_) => ToProcess::End,
                Ok(length) => ToProcess::Bytes(piece[..length].to_vec()),
            };
            let last = matches!(message, ToProcess::End);
            if to_process.blocking_send(message).is_err() || last {
                return;
            }
        }
    });
}

struct Signals {
    size: Signal,
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            size: signal(SignalKind::window_change())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> ToProcess {
        tokio::select! {
            _ = self.size.recv() => ToProcess::Resize(terminal::size()),
            _ = self.interrupt.recv() => ToProcess::Signal(SIGINT),
            _ = self.terminate.recv() => ToProcess::Signal(SIGTERM),
            _ = self.hang_up.recv() => ToProcess::Signal(SIGHUP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let exited = |exit_code, signal, timed_out| {
            super::exit_code(&Exited { exit_code, signal, timed_out, dropped_bytes: 0 })
        };
        assert_eq!(exited(Some(0), None, false), 0);
        assert_eq!(exited(Some(7), None, false), 7);
        assert_eq!(exited(None, Some(9), false), 137);
        assert_eq!(exited(None, Some(9), true), 124);
        assert_eq!(exited(None, None, false), 255);
    }
}
