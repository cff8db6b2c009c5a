//! Machines at the network, and the one task that keeps them there.
//!
//! A sandbox that runs has a port, named by its id; the records say what it allows. One that is paused, failed or gone has none. A new
//! machine of a sandbox (rewind, promote, resume) gets the port anew, which resets connections to the outside.
//!
//! The keeper starts the service, and again when it ends. It then compares what should be with what is: after a start of the node ports
//! live on, after one of the service all machines are connected anew, and what failed is tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ramet_proto::agent::{self, Request};
use ramet_proto::api::TemplateState;
use ramet_proto::api::network::{Layer, NetStats};
use ramet_proto::net::{Listed, Port};
use tokio::time::{sleep, timeout};

use super::port;
use crate::host::net::{Network, State};
use crate::host::{Engine, MachineId};
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::record::{Phase, Record};

/// Between two looks whether all is as it should be.
const LOOK: Duration = Duration::from_secs(2);
/// Before the service is started again: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A service that ran for this long was fine.
const FINE: Duration = Duration::from_secs(60);
/// Before a machine that could not be connected is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether a sandbox's machine is at the network. Not written down.
#[derive(Debug, Default)]
pub enum Attached {
    /// Nobody knows, or it is not.
    #[default]
    No,
    /// This one is.
    Yes(MachineId),
    /// It could not be, when, and why.
    Failed(MachineId, Instant, String),
}

/// A machine with its port.
type Wanted = (MachineId, Port);

fn bring(engine: &dyn Engine, network: &dyn Network, wanted: &Wanted) -> Result<(), String> {
    let (machine, port) = wanted;
    let link = network.attach(port).map_err(|error| error.to_string())?;
    engine.plug(machine, Some(link)).map_err(|error| {
        // Its link is closed, so nothing passes there; it goes at the next look.
        let _gone = network.detach(&port.port);
        error.to_string()
    })
}

pub(super) fn is_at_work(record: &Record) -> bool {
    record.phase == Phase::Running && record.machine.is_some() && !record.stand_in
}

impl Service {
    /// The port of a sandbox, as the service is told.
    fn port_of(&self, record: &Record) -> Result<Port, Error> {
        Ok(Port {
            member: record.network.member.clone(),
            edge: self.edge_rules(record)?,
            authority: record.network.authority.clone(),
            ..port(&record.id, record.layers(), record.network.limits)
        })
    }

    fn set_attached(&self, id: &str, attached: Attached) {
        let life = self.registry().life(id);
        *life.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = attached;
    }

    /// Whether a sandbox's machine is at the network; if not, why.
    pub(super) fn attached(&self, record: &Record) -> Result<(), String> {
        if let State::Down(reason) = &*self.host.network().borrow() {
            return Err(format!("the network service does not run: {reason}"));
        }
        if !is_at_work(record) {
            return Err("it does not run".to_owned());
        }
        let life = self.registry().life(&record.id);
        let attached = life.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*attached {
            Attached::Yes(machine) if Some(machine) == record.machine.as_ref() => Ok(()),
            Attached::Failed(_, _, reason) => Err(reason.clone()),
            _ => Err("it is being connected".to_owned()),
        }
    }

    /// Connects the machines of sandboxes that run. What fails is noted, and tried again.
    pub(in crate::sandbox) async fn connect(&self, records: &[&Record]) {
        // When it is up again, the keeper connects all.
        if *self.host.network().borrow() != State::Up {
            return;
        }
        let mut wanted = Vec::new();
        for record in records.iter().filter(|record| is_at_work(record)) {
            match (record.machine.clone(), self.port_of(record)) {
                (Some(machine), Ok(port)) => wanted.push((machine, port)),
                (_, Err(error)) => tracing::error!(id = record.id, ?error, "it has no port"),
                (None, _) => {}
            }
        }
        let brought = self.host.network_call(move |engine, network| {
            let bring = |wanted: Wanted| (bring(engine, network, &wanted), wanted);
            wanted.into_iter().map(bring).collect::<Vec<_>>()
        });
        let brought = match brought.await {
            Ok(brought) => brought,
            Err(error) => return tracing::warn!(?error, "machines are not connected yet"),
        };
        for (done, (machine, port)) in brought {
            let attached = match done {
                Ok(()) => Attached::Yes(machine),
                Err(reason) => {
                    tracing::warn!(id = port.port, reason, "a machine is not connected");
                    Attached::Failed(machine, Instant::now(), reason)
                }
            };
            self.set_attached(&port.port, attached);
        }
    }

    /// Takes a sandbox, or a build, from the network.
    pub(in crate::sandbox) async fn disconnect(&self, id: &str) {
        if self.registry().keeps(id) {
            self.set_attached(id, Attached::No);
        }
        let name = id.to_owned();
        let detached = self.host.network_call(move |_, network| network.detach(&name)).await;
        // A service that does not run has no ports; one that is left is removed at the next look.
        if let Ok(Err(error)) = detached {
            tracing::debug!(id, ?error, "a port is not removed yet");
        }
    }

    /// Tells the service of a change. If it cannot be told, the machine is connected anew, or not at all: nothing passes that is
    /// not allowed any more.
    pub(in crate::sandbox) async fn configure(&self, record: &Record) {
        let Some(machine) = record.machine.clone().filter(|_| is_at_work(record)) else { return };
        if *self.host.network().borrow() != State::Up {
            return;
        }
        let port = match self.port_of(record) {
            Ok(port) => port,
            Err(error) => {
                tracing::error!(id = record.id, ?error, "it has no port");
                return self.disconnect(&record.id).await;
            }
        };
        let told = self.host.network_call(move |engine, network| {
            let told = network.configure(&port);
            let Err(error) = told else { return Ok(()) };
            bring(engine, network, &(machine.clone(), port)).map_err(|again| {
                // The last resort is the machine's own end of the link.
                let unplugged = engine.plug(&machine, None);
                tracing::warn!(?error, again, ?unplugged, "a machine is disconnected");
                (machine, again)
            })
        });
        match told.await {
            Ok(Err((machine, reason))) => {
                self.set_attached(&record.id, Attached::Failed(machine, Instant::now(), reason));
            }
            Ok(Ok(())) => {}
            Err(error) => {
                tracing::error!(id = record.id, ?error, "its network is not told of a change")
            }
        }
    }

    /// Tells a guest what to trust, and its place among the members of a network.
    pub(in crate::sandbox) async fn tell_guest(&self, record: &Record) -> Result<(), Error> {
        let Some(machine) = &record.machine else { return Ok(()) };
        let request = Request::Network(agent::Network {
            member: record.network.member.as_ref().map(|member| member.number),
            authority: record.network.authority.as_ref().map(|one| one.certificate.clone()),
        });
        let mut session = self.host.agent(machine).await?;
        Ok(session.done(&request).await?)
    }

    /// After a fork or a swap: a guest whose state comes from one that trusted something else is told. That it could not be told is
    /// noted: nobody but this node has the key of what it still trusts.
    pub(in crate::sandbox) async fn settle_trust(&self, record: &Record, before: &super::Net) {
        let known = before.authority == record.network.authority
            && before.number() == record.network.number();
        if known {
            return;
        }
        self.reset_trust(record).await;
    }

    /// A guest whose state comes from one that may have trusted something trusts what its record says, which may be nothing.
    pub(in crate::sandbox) async fn reset_trust(&self, record: &Record) {
        if let Err(error) = self.tell_guest(record).await {
            tracing::warn!(id = record.id, ?error, "a guest was not told what to trust");
        }
    }

    /// Connects the machine in which a template is built.
    pub(in crate::sandbox) async fn connect_build(
        &self,
        name: &str,
        machine: &MachineId,
        layers: Vec<Layer>,
    ) -> Result<(), Error> {
        let wanted = (machine.clone(), port(name, layers, Default::default()));
        let brought =
            self.host.network_call(move |engine, network| bring(engine, network, &wanted));
        brought.await?.map_err(Error::NoNetwork)
    }

    /// Starts the service, or takes hold of it, and connects what should be.
    pub async fn start_network(&self) -> bool {
        let started = self.host.network_call(|_, network| network.start()).await;
        match started {
            Ok(Ok(())) => self.look_after().await,
            other => {
                tracing::warn!(?other, "there is no network; everything else works");
                return false;
            }
        }
        true
    }

    /// Keeps the service running, and machines connected. Ends with the node.
    pub fn keep_network(&self) {
        let service = self.clone();
        self.keep(async move {
            let mut pause = PAUSE_MIN;
            loop {
                let began = Instant::now();
                if service.start_network().await {
                    service.until_it_ends().await;
                    tracing::error!("the network service has ended");
                    service.forget_attached();
                }
                pause = if began.elapsed() > FINE { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
                sleep(pause).await;
            }
        });
    }

    /// Nobody is at a network that has ended.
    fn forget_attached(&self) {
        for life in self.registry().lives() {
            *life.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Attached::No;
        }
    }

    async fn until_it_ends(&self) {
        let mut state = self.host.network();
        // The sender lives as long as the host.
        while timeout(LOOK, state.wait_for(|state| *state != State::Up)).await.is_err() {
            self.look_after().await;
        }
    }

    /// Compares what should be with what is, and sees to it.
    async fn look_after(&self) {
        let listed = self.host.network_call(|_, network| network.list()).await;
        let Ok(Ok(listed)) = listed else { return };
        let linked: BTreeMap<String, bool> =
            listed.into_iter().map(|Listed { port, linked }| (port, linked)).collect();
        // Read after the list: whoever is in the list was known before.
        let records: Vec<Record> =
            self.registry().all().filter(|record| is_at_work(record)).cloned().collect();
        for name in linked.keys().filter(|name| records.iter().all(|one| one.id != **name)) {
            self.remove_stray(name).await;
        }
        for record in &records {
            self.look_at(record, linked.get(&record.id).copied()).await;
        }
    }

    async fn remove_stray(&self, name: &str) {
        let building = self
            .shelf
            .all()
            .into_iter()
            .any(|template| template.id == name && template.state == TemplateState::Building);
        let known = self.registry().keeps(name);
        let lock = known.then(|| self.registry().life(name).lock.clone());
        // Somebody is about to change it; there is another look.
        let turn = lock.map(|lock| lock.try_write_owned());
        if building || matches!(turn, Some(Err(_))) {
            return;
        }
        let runs = self.registry().get(name).is_some_and(is_at_work);
        if !runs {
            self.disconnect(name).await;
        }
    }

    async fn look_at(&self, record: &Record, linked: Option<bool>) {
        let Some(machine) = &record.machine else { return };
        let adopt = {
            let life = self.registry().life(&record.id);
            let attached = life.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match (&*attached, linked) {
                (Attached::Yes(its), Some(true)) if its == machine => return,
                (Attached::Failed(its, at, _), _) if its == machine && at.elapsed() < AGAIN => {
                    return;
                }
                // Connected by an earlier run of the node.
                (Attached::No, Some(true)) => true,
                _ => false,
            }
        };
        let lock = self.registry().life(&record.id).lock.clone();
        let Ok(_turn) = lock.try_write_owned() else { return };
        // Looked at again: it may have got another machine.
        let now = self.registry().get(&record.id).cloned();
        let Some(now) = now.filter(|now| is_at_work(now) && now.machine == record.machine) else {
            return;
        };
        if adopt {
            self.set_attached(&now.id, Attached::Yes(machine.clone()));
            self.configure(&now).await;
        } else {
            self.connect(&[&now]).await;
        }
    }

    /// A node without sandboxes leaves nothing behind.
    pub(in crate::sandbox) async fn end_network(&self) {
        if let Err(error) = self.host.network_call(|_, network| network.stop()).await {
            tracing::warn!(?error, "the network service stays");
        }
    }

    /// Figures of all ports.
    pub(in crate::sandbox) async fn network_figures(&self) -> Vec<(String, NetStats)> {
        let figures = self.host.network_call(|_, network| {
            let ports = network.list().unwrap_or_default().into_iter();
            let figures =
                ports.filter_map(|one| Some((one.port.clone(), network.stats(&one.port).ok()?)));
            figures.collect()
        });
        figures.await.unwrap_or_default()
    }
}
