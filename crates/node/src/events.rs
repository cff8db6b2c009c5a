//! What happened, for whoever listens.
//!
//! A bounded channel: a listener that is too slow is told that it has missed something, and never
//! slows down the node. Events are told after the change is in the database.

use std::sync::atomic::{AtomicU64, Ordering};

use ramet_proto::api::{Event, EventKind};
use tokio::sync::broadcast;

use crate::clock::now_ms;

/// Events that a listener may be behind.
const BEHIND_MAX: usize = 1024;

/// An event and whom it concerns.
#[derive(Debug, Clone)]
pub struct Told {
    /// Owner of the sandbox.
    pub owner: String,
    /// The event.
    pub event: Event,
}

/// Where events are told and heard.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Told>,
    next: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BEHIND_MAX), next: AtomicU64::new(1) }
    }
}

impl Events {
    /// Tells. Nobody has to listen.
    pub fn tell(
        &self,
        owner: &str,
        kind: EventKind,
        sandbox: &str,
        other: Option<&str>,
        detail: Option<&str>,
    ) {
        let event = Event {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            at_ms: now_ms(),
            kind,
            sandbox: sandbox.to_owned(),
            other: other.map(str::to_owned),
            detail: detail.map(str::to_owned),
        };
        drop(self.sender.send(Told { owner: owner.to_owned(), event }));
    }

    /// Hears everything from now on.
    pub fn listen(&self) -> broadcast::Receiver<Told> {
        self.sender.subscribe()
    }
}
