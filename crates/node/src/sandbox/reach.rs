//! What reaches into a sandbox and stays open: streams to its ports, watches of its files.
//!
//! Both belong to the machine that the sandbox has when they begin. When it is rewound or promoted they
//! end with that machine, and whoever asks again reaches the new one.

use ramet_proto::agent::{self as wire, ChangeKind, Dial, Reply, Request};
use ramet_proto::api;

use super::error::Error;
use super::guest::Busy;
use super::{Service, check};
use crate::auth::Principal;
use crate::host::agent::{Dialled, Frame, Listener, Session, Speaker, unexpected};

/// A stream to a port.
pub struct PortStream {
    /// The bytes.
    pub stream: Dialled,
    /// Until it ends.
    pub busy: Busy,
}

/// Changes below a path, until it is dropped.
pub struct Watch {
    listener: Listener,
    _speaker: Speaker,
    _busy: Busy,
}

impl Watch {
    /// Waits for the next change. Not to be given up half-way.
    pub async fn next(&mut self) -> Result<api::Change, Error> {
        match self.listener.next().await? {
            Frame::Reply(Reply::Changed(change)) => {
                Ok(api::Change { kind: kind(change.kind), path: change.path })
            }
            Frame::Reply(other) => Err(unexpected(&other).into()),
            Frame::Bytes(channel, _) => {
                let text = format!("bytes on {channel:?}");
                Err(crate::host::agent::Error::Protocol(text).into())
            }
        }
    }
}

impl Service {
    /// Sockets that wait for others.
    pub async fn ports(&self, who: &Principal, key: &str) -> Result<api::PortList, Error> {
        let (mut session, _busy) = self.session(who, key).await?;
        let mut ports: Vec<api::Port> = match session.ask(&Request::Listeners {}).await? {
            Reply::Listeners { listeners } => listeners.into_iter().map(port).collect(),
            other => return Err(unexpected(&other).into()),
        };
        ports.sort_by(|a, b| {
            (a.port, &a.protocol, &a.address).cmp(&(b.port, &b.protocol, &b.address))
        });
        Ok(api::PortList { ports })
    }

    /// Connects to a TCP port.
    pub async fn dial(&self, who: &Principal, key: &str, port: u16) -> Result<PortStream, Error> {
        if port == 0 {
            return Err(Error::Bad("port: 1 to 65535, not 0".to_owned()));
        }
        let (session, busy) = self.session(who, key).await?;
        let target = format!("{} {port}", busy.id);
        self.operate(who, "dial", &target, async move {
            let stream = session.dial(Dial::Tcp { port }).await?;
            Ok(PortStream { stream, busy })
        })
        .await
    }

    /// Begins to watch. What changes after this returns is told.
    pub async fn watch_files(
        &self,
        who: &Principal,
        key: &str,
        query: api::WatchQuery,
    ) -> Result<Watch, Error> {
        check::path("path", &query.path)?;
        let (mut session, busy) = self.session(who, key).await?;
        session.done(&Request::Watch { path: query.path, recursive: query.recursive }).await?;
        let Session { listener, speaker } = session;
        Ok(Watch { listener, _speaker: speaker, _busy: busy })
    }
}

fn port(listener: wire::Listener) -> api::Port {
    api::Port { port: listener.port, protocol: listener.protocol, address: listener.address }
}

fn kind(kind: ChangeKind) -> api::ChangeKind {
    match kind {
        ChangeKind::Created => api::ChangeKind::Created,
        ChangeKind::Written => api::ChangeKind::Written,
        ChangeKind::Removed => api::ChangeKind::Removed,
        ChangeKind::MovedFrom => api::ChangeKind::MovedFrom,
        ChangeKind::MovedTo => api::ChangeKind::MovedTo,
        ChangeKind::Attributes => api::ChangeKind::Attributes,
        ChangeKind::Overflow => api::ChangeKind::Overflow,
    }
}
