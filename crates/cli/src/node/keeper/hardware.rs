//! rametd on this machine.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{END_TIME, Event, PORT, Plan, Verdict, next_event};
use crate::failure::Failure;
use crate::node::home::AUTHORITY;
use crate::node::names::Domain;

/// Runs rametd once, to its end.
pub fn run(
    plan: &Plan,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Verdict, Failure> {
    let cannot = |error: &dyn std::error::Error| Failure::because("cannot start rametd", error);
    let port = choose_port(plan.options.port).map_err(|error| cannot(&error))?;
    plan.home.set_stage("starting the node");
    let mut command = Command::new(&plan.rametd);
    command.arg("--listen").arg(format!("{}:{port}", Ipv4Addr::LOCALHOST));
    command.arg("--data-dir").arg(plan.home.node_dir());
    command.arg("--token-file").arg(plan.home.token_file());
    command.args(["--host-mode", "hardware"]).args(plan.options.store.arguments());
    command.env("RAMET_VMM", &plan.vmm).env("RAMET_GUEST_DIR", &plan.guest);
    let names = |domain: &Domain| (Ipv4Addr::LOCALHOST, domain.port).into();
    command.args(plan.options.network.arguments()).args(plan.options.names.for_rametd(names));
    command.envs(plan.net.as_ref().map(|net| ("RAMET_NET", net)));
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    let mut child = command.spawn().map_err(|error| cannot(&error))?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|error| cannot(&error))?);
    plan.publish(format!("http://{}:{port}", Ipv4Addr::LOCALHOST))?;
    plan.home.set_stage("warming the template");
    let sender = sender.clone();
    thread::spawn(move || {
        let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        // Nobody listens only when the keeper ends.
        let _ = sender.send(Event::Ended(format!("rametd ended: {how}")));
    });
    let authority = plan.home.node_dir().join(AUTHORITY);
    match next_event(plan, events, || std::fs::read(&authority).ok()) {
        Ok(Event::Ended(how)) => Ok(Verdict::Again(how)),
        _ => {
            stop(pid, events);
            Ok(Verdict::Stopped)
        }
    }
}

/// Asks rametd to end, and kills it if it does not.
fn stop(pid: Pid, events: &Receiver<Event>) {
    // It may have ended by itself in this moment; then nothing is left to do.
    let _ = kill(pid, Signal::SIGTERM);
    if events.recv_timeout(END_TIME).is_err() {
        eprintln!("keeper: rametd did not end and is killed");
        let _ = kill(pid, Signal::SIGKILL);
        let _ = events.recv_timeout(END_TIME);
    }
}

/// The port that is wished for, or the usual one, or a free one.
fn choose_port(wish: Option<u16>) -> std::io::Result<u16> {
    let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr();
    match wish {
        Some(port) => free(port),
        None => free(PORT).or_else(|_| free(0)),
    }
    .map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_not_chosen() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(choose_port(Some(port)).is_err());
        let _usual = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT));
        assert_ne!(choose_port(None).unwrap(), 0);
    }
}
