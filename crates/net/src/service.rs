//! All ports of the node: the one owner of their tasks.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ramet_proto::net::{Code, Listed, MESSAGE_MAX, Outcome, Port as Configuration, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::port::setup::Setup;
use crate::port::{Command, Port, Shared, taken};
use crate::ranges::{Kept, Range};

/// Most ports. A list of them fits into one message.
pub const PORTS_MAX: usize = 2048;
/// Commands of a port that wait.
const COMMANDS_MAX: usize = 16;
/// How long a port may take for a command: it is never busy for long.
const COMMAND: Duration = Duration::from_secs(10);
/// How often the host is looked at again.
const LOOK: Duration = Duration::from_secs(30);
/// Room in a message beside what it lists.
const ENVELOPE: usize = 1 << 10;

/// Why a request failed.
pub type Failure = (Code, String);

/// The ports.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    ports: BTreeMap<String, Handle>,
}

#[derive(Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    linked: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    /// No ports yet.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, ports: BTreeMap::new() }
    }

    /// Does what the node asks, except to stop.
    ///
    /// # Errors
    /// What was wrong; nothing changed then.
    pub async fn handle(
        &mut self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        match (request, fds.len()) {
            (Request::Attach(port), 1) => {
                let link = fds.into_iter().next();
                self.attach(&port, link).await
            }
            (Request::Attach(_), count) => Err((
                Code::BadDescriptors,
                format!("attach comes with one descriptor, not {count}"),
            )),
            (_, count) if count > 0 => Err((
                Code::BadDescriptors,
                format!("this request comes with no descriptor, not {count}"),
            )),
            (Request::Configure(port), _) => {
                let setup = parse(&port)?;
                self.configure(&port.port, setup, None).await
            }
            (Request::Detach { port }, _) => self.detach(&port).await,
            (Request::List {}, _) => Ok(Outcome::Ports(self.list())),
            (Request::Stats { port }, _) => {
                let stats = self.ask(&port, Command::Stats).await?;
                Ok(Outcome::Stats(Box::new(stats)))
            }
            (Request::Log { port, after, limit }, _) => {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let log = self.ask(&port, |reply| Command::Log { after, limit, reply }).await?;
                Ok(Outcome::Log(that_fits(log)))
            }
            (Request::Stop {}, _) => Ok(Outcome::Nothing {}),
        }
    }

    async fn attach(
        &mut self,
        port: &Configuration,
        link: Option<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let setup = parse(port)?;
        let Some(link) = link else {
            return Err((Code::BadDescriptors, "attach comes with one descriptor".into()));
        };
        if self.ports.get(&port.port).is_some_and(|handle| !handle.task.is_finished()) {
            return self.configure(&port.port, setup, Some(link)).await;
        }
        if self.ports.len() >= PORTS_MAX {
            return Err((Code::TooMany, format!("there are {PORTS_MAX} ports already")));
        }
        if let Some(member) = &setup.member
            && self.shared.switch.is_taken(member, None)
        {
            return Err((Code::BadValue, taken(member)));
        }
        let linked = Arc::new(AtomicBool::new(true));
        let made = Port::new(self.shared.clone(), setup, link, linked.clone())
            .map_err(|error| (Code::BadDescriptors, format!("the link does not work: {error}")))?;
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let task = tokio::spawn(made.run(receiver));
        self.ports.insert(port.port.clone(), Handle { commands, linked, task });
        Ok(Outcome::Nothing {})
    }

    async fn configure(
        &self,
        port: &str,
        setup: Setup,
        link: Option<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let setup = Box::new(setup);
        let done = self.ask(port, |done| Command::Configure { setup, link, done }).await?;
        done.map(|()| Outcome::Nothing {}).map_err(|message| (Code::BadValue, message))
    }

    /// Waits until the port is gone, so that its place in a network is free when the node is told.
    async fn detach(&mut self, port: &str) -> Result<Outcome, Failure> {
        let mut handle = self.ports.remove(port).ok_or_else(|| not_found(port))?;
        handle.task.abort();
        // It ends at its next wait; how it ended does not matter.
        drop(tokio::time::timeout(COMMAND, &mut handle.task).await);
        Ok(Outcome::Nothing {})
    }

    fn list(&self) -> Vec<Listed> {
        let listed = |(port, handle): (&String, &Handle)| Listed {
            port: port.clone(),
            linked: handle.linked.load(Ordering::Relaxed),
        };
        self.ports.iter().map(listed).collect()
    }

    async fn ask<T>(
        &self,
        port: &str,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Failure> {
        let handle = self.ports.get(port).ok_or_else(|| not_found(port))?;
        let (reply, answer) = oneshot::channel();
        let command = command(reply);
        let asked = async {
            handle.commands.send(command).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(COMMAND, asked).await {
            Ok(Some(answer)) => Ok(answer),
            _ => Err((Code::NotFound, format!("port {port:?} has ended"))),
        }
    }
}

fn not_found(port: &str) -> Failure {
    (Code::NotFound, format!("there is no port {port:?}"))
}

fn parse(port: &Configuration) -> Result<Setup, Failure> {
    Setup::parse(port).map_err(|error| {
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        (Code::BadValue, message)
    })
}

/// The newest that fit into a message.
fn that_fits<T: serde::Serialize>(mut entries: Vec<T>) -> Vec<T> {
    let mut room = MESSAGE_MAX - ENVELOPE;
    let length = |entry: &T| serde_json::to_vec(entry).map_or(0, |text| text.len() + 1);
    let mut first = entries.len();
    while first > 0 && length(&entries[first - 1]) <= room {
        first -= 1;
        room -= length(&entries[first]);
    }
    entries.drain(..first);
    entries
}

/// Looks at the host again and again: its own addresses are kept, its resolver may change.
pub async fn look_at_host(shared: Arc<Shared>, refused: Vec<Range>) {
    let mut every = tokio::time::interval(LOOK);
    loop {
        every.tick().await;
        let kept = Arc::new(Kept { more: [own_addresses(), refused.clone()].concat() });
        *shared.kept.write().unwrap_or_else(PoisonError::into_inner) = kept;
        shared.upstream.refresh();
    }
}

/// Addresses of this host.
#[must_use]
pub fn own_addresses() -> Vec<Range> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        let v6 = || address.as_sockaddr_in6().map(|v6| v6.ip().into());
        v4.or_else(v6).map(Range::one)
    };
    interfaces.filter_map(address).collect()
}
