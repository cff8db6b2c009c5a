//! `ramet forward`: TCP ports of a sandbox, on this machine's loopback.
//!
//! Each connection here is a stream of its own to the sandbox, at the pace of its slower end, and
//! closed one direction at a time. The sandbox is asked for anew with each connection: after a rewind or
//! promote, new connections reach the machine that goes on. A connection that cannot be made is told
//! and closed; the others go on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ramet_client::api::Code;
use ramet_client::{Client, Error, PortStream};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::failure::Failure;
use crate::output;

/// Connections at once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 512;
/// Promotes that are followed for one connection.
const PROMOTES_MAX: usize = 8;
/// Between two tries to accept when there is no descriptor left.
const AGAIN: Duration = Duration::from_millis(100);

const HELP: &str = "\
Listens on 127.0.0.1 only. LOCAL is the same number as REMOTE when absent; 0 is any free port.
Ctrl-C ends it.

Examples:
  ramet forward box 8000             127.0.0.1:8000 is port 8000 in box
  ramet forward box 5433:5432 8080   several at once
  ramet forward box 0:8000 --json    says which port was taken";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// Ports: [LOCAL:]REMOTE
    #[arg(required = true, value_name = "[LOCAL:]REMOTE", value_parser = ports)]
    ports: Vec<Ports>,
}

/// A port here, and the port there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    remote: u16,
}

fn ports(text: &str) -> Result<Ports, String> {
    let wrong = || format!("{text:?} is not [LOCAL:]REMOTE with ports from 1 to 65535");
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u16>().ok()).flatten().ok_or_else(wrong)
    };
    let (local, remote) = match text.split_once(':') {
        Some((local, remote)) => (number(local)?, number(remote)?),
        None => (number(text)?, number(text)?),
    };
    if remote == 0 { Err(wrong()) } else { Ok(Ports { local, remote }) }
}

/// Does it, until it is told to end.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let id = client.sandbox(&args.sandbox).await?.id;
    let mut stop = signals().map_err(|error| Failure::because("no signals", &error))?;
    let mut listeners = Vec::new();
    for ports in &args.ports {
        listeners.push((listen(ports.local).await?, ports.remote));
    }
    tell(&args.sandbox, &listeners, context)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let way = Arc::new(Way { client, sandbox: Mutex::new(id), room });
    let mut accepting = JoinSet::new();
    for (listener, remote) in listeners {
        accepting.spawn(accept(listener, remote, way.clone()));
    }
    tokio::select! {
        ended = accepting.join_next() => match ended {
            Some(Ok(failure)) => Err(failure),
            _ => Err(Failure::new("listening broke off")),
        },
        () = stop.heard() => Ok(()),
    }
}

struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

fn signals() -> std::io::Result<Stop> {
    let interrupt = signal(SignalKind::interrupt())?;
    Ok(Stop { interrupt, terminate: signal(SignalKind::terminate())? })
}

impl Stop {
    async fn heard(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn listen(port: u16) -> Result<TcpListener, Failure> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address).await.map_err(|error| {
        Failure::because(format!("cannot listen on {address}"), &error)
            .next("choose another port: LOCAL:REMOTE, with 0 for any free one")
    })
}

fn tell(sandbox: &str, listeners: &[(TcpListener, u16)], context: &Context) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::because("cannot say where this listens", &error);
    let mut all = Vec::new();
    for (listener, remote) in listeners {
        all.push((listener.local_addr().map_err(cannot)?, *remote));
    }
    if context.json {
        let entry =
            |(local, remote): &(SocketAddr, u16)| json!({ "local": local, "remote": remote });
        output::json(&all.iter().map(entry).collect::<Vec<_>>());
    } else {
        let line = |(local, remote): &(SocketAddr, u16)| format!("{local} -> {sandbox}:{remote}\n");
        output::print(&all.iter().map(line).collect::<String>());
    }
    Ok(())
}

/// The way to the sandbox.
struct Way {
    client: Client,
    /// Its id; another one after it was promoted.
    sandbox: Mutex<String>,
    room: Arc<Semaphore>,
}

/// Takes connections until the sandbox is gone.
async fn accept(listener: TcpListener, remote: u16, way: Arc<Way>) -> Failure {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, permit) = next(&listener, &way) => {
                let way = way.clone();
                connections.spawn(async move {
                    let carried = carry(stream, remote, &way).await;
                    drop(permit);
                    carried
                });
            }
            Some(ended) = connections.join_next() => match ended {
                Ok(Err(error)) if is_gone(&error) => return error.into(),
                Ok(Err(error)) => eprintln!("port {remote}: {}", Failure::from(error)),
                _ => {}
            },
        }
    }
}

async fn next(listener: &TcpListener, way: &Way) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    loop {
        // Never closed, so this only waits.
        let permit = way.room.clone().acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                eprintln!("a connection could not be accepted: {error}");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// One connection, to its end.
async fn carry(mut local: TcpStream, remote: u16, way: &Way) -> Result<(), Error> {
    let mut stream = way.open(remote).await?;
    // Only a matter of latency.
    let _ = local.set_nodelay(true);
    // One that breaks off is over for both ends; that is theirs to notice.
    let _ = tokio::io::copy_bidirectional(&mut local, &mut stream).await;
    Ok(())
}

impl Way {
    fn sandbox(&self) -> String {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A stream to the sandbox, wherever it goes on.
    async fn open(&self, remote: u16) -> Result<PortStream, Error> {
        let mut tries = 0;
        loop {
            let error = match self.client.tcp(&self.sandbox(), remote).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let to = error.problem().and_then(|problem| problem.promoted_to.clone());
            tries += 1;
            match to {
                Some(to) if tries <= PROMOTES_MAX => {
                    *self.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = to;
                }
                _ => return Err(error),
            }
        }
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.code(), Some(Code::Gone | Code::NotFound | Code::Unauthorized))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        assert_eq!(ports("80"), Ok(Ports { local: 80, remote: 80 }));
        assert_eq!(ports("8080:80"), Ok(Ports { local: 8080, remote: 80 }));
        assert_eq!(ports("0:80"), Ok(Ports { local: 0, remote: 80 }));
        for wrong in ["", ":", "80:", ":80", "0", "80:0", "x", "70000", "1:2:3", "+80", "-1"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
