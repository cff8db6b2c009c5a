//! A network without a service, for tests: it remembers ports and what was done to them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use ramet_proto::api::network::{LogEntry, NetStats, Verdict};
use ramet_proto::net::{Code, Listed, Port};
use tokio::sync::watch;

use super::{Error, Network, State, pair};

/// The network.
pub struct FakeNet {
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    ports: BTreeMap<String, (Port, OwnedFd)>,
    attached: usize,
    starts: usize,
    broken: bool,
}

impl FakeNet {
    /// Not started yet.
    pub fn new() -> Arc<Self> {
        let state = watch::Sender::new(State::Down("not yet".to_owned()));
        Arc::new(Self { state, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn up(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        match &*self.state.borrow() {
            State::Up => Ok(self.inner()),
            State::Down(reason) => Err(Error::Down(reason.clone())),
        }
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Option<Port> {
        self.inner().ports.get(name).map(|(port, _)| port.clone())
    }

    /// Names of all ports.
    pub fn names(&self) -> Vec<String> {
        self.inner().ports.keys().cloned().collect()
    }

    /// How often a port got a link, and how often the service was started.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.attached, inner.starts)
    }

    /// From now on it cannot be started, or can.
    pub fn break_down(&self, broken: bool) {
        self.inner().broken = broken;
    }

    /// It ends, and all ports with it.
    pub fn die(&self) {
        self.inner().ports.clear();
        self.state.send_replace(State::Down("it has ended".to_owned()));
    }
}

impl Network for FakeNet {
    fn start(&self) -> Result<(), Error> {
        let mut inner = self.inner();
        if inner.broken {
            let reason = "it is broken".to_owned();
            self.state.send_replace(State::Down(reason.clone()));
            return Err(Error::Down(reason));
        }
        if *self.state.borrow() != State::Up {
            inner.starts += 1;
            self.state.send_replace(State::Up);
        }
        Ok(())
    }

    fn stop(&self) {
        self.die();
    }

    fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    fn attach(&self, port: &Port) -> Result<OwnedFd, Error> {
        let (machine, service) = pair()?;
        let mut inner = self.up()?;
        inner.attached += 1;
        inner.ports.insert(port.port.clone(), (port.clone(), service));
        Ok(machine)
    }

    fn configure(&self, port: &Port) -> Result<(), Error> {
        match self.up()?.ports.get_mut(&port.port) {
            Some((known, _)) => {
                *known = port.clone();
                Ok(())
            }
            None => Err(no_port(&port.port)),
        }
    }

    fn detach(&self, port: &str) -> Result<(), Error> {
        self.up()?.ports.remove(port);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let inner = self.up()?;
        let listed = inner
            .ports
            .iter()
            .map(|(name, (_, link))| Listed { port: name.clone(), linked: linked(link) });
        Ok(listed.collect())
    }

    fn stats(&self, port: &str) -> Result<NetStats, Error> {
        let known = self.up()?.ports.contains_key(port);
        known.then(|| NetStats { refused: 3, ..NetStats::default() }).ok_or_else(|| no_port(port))
    }

    fn log(&self, port: &str, after: u64, _: u32) -> Result<Vec<LogEntry>, Error> {
        if !self.up()?.ports.contains_key(port) {
            return Err(no_port(port));
        }
        let entry = LogEntry {
            number: 1,
            at_ms: 1,
            verdict: Verdict::Refused,
            kind: "tcp".to_owned(),
            to: "192.0.2.1:443".to_owned(),
            name: None,
            reason: "not_allowed".to_owned(),
            count: 2,
        };
        Ok(vec![entry].into_iter().filter(|entry| entry.number > after).collect())
    }
}

fn no_port(name: &str) -> Error {
    Error::Refused { code: Code::NotFound, message: format!("there is no port {name}") }
}

/// Whether the other end is open.
fn linked(link: &OwnedFd) -> bool {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut wait = [PollFd::new(link.as_fd(), PollFlags::empty())];
    poll(&mut wait, PollTimeout::ZERO).unwrap() == 0
}
