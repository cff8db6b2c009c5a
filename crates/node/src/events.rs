//! What happened, for whoever listens.
//!
//! A bounded channel: a listener that is too slow is told that it has missed something, and never
//! slows down the node. The latest events are kept as well, for listeners that come back. Events are told after
//! the change is in the database.
//!
//! Numbers begin anew with each start of the node, so an id also names the start.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ramet_proto::api::{Event, EventKind};
use tokio::sync::broadcast;

use crate::clock::now_ms;

/// Events that a listener may be behind.
const BEHIND_MAX: usize = 1024;
/// Events that are kept.
const KEPT_MAX: usize = 4096;

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
    /// Names this start of the node.
    start: u64,
    /// Locked while an event is told, so that whoever comes back misses none and hears none twice.
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// Number of the last event.
    last: u64,
    kept: VecDeque<Told>,
}

/// What a listener that comes back has missed.
#[derive(Debug)]
pub struct Missed {
    /// It is not all: more was told than is kept, or the node was started anew.
    pub gap: bool,
    /// Oldest first.
    pub events: Vec<Told>,
}

impl Default for Events {
    fn default() -> Self {
        let sender = broadcast::Sender::new(BEHIND_MAX);
        Self { sender, start: now_ms(), latest: Mutex::default() }
    }
}

impl Events {
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells. Nobody has to listen.
    pub fn tell(
        &self,
        owner: &str,
        kind: EventKind,
        sandbox: &str,
        other: Option<&str>,
        detail: Option<&str>,
    ) {
        let mut latest = self.latest();
        latest.last += 1;
        let event = Event {
            number: latest.last,
            at_ms: now_ms(),
            kind,
            sandbox: sandbox.to_owned(),
            other: other.map(str::to_owned),
            detail: detail.map(str::to_owned),
        };
        let told = Told { owner: owner.to_owned(), event };
        if latest.kept.len() == KEPT_MAX {
            latest.kept.pop_front();
        }
        latest.kept.push_back(told.clone());
        drop(self.sender.send(told));
    }

    /// The id of an event, for [`Self::listen_after`].
    pub fn id(&self, event: &Event) -> String {
        format!("{}-{}", self.start, event.number)
    }

    /// Hears everything from now on.
    pub fn listen(&self) -> broadcast::Receiver<Told> {
        self.sender.subscribe()
    }

    /// Hears everything after the event with this id: what is kept of it, then the rest.
    pub fn listen_after(&self, id: &str) -> (Missed, broadcast::Receiver<Told>) {
        let latest = self.latest();
        let known = id
            .split_once('-')
            .filter(|(start, _)| start.parse() == Ok(self.start))
            .and_then(|(_, number)| number.parse::<u64>().ok())
            .filter(|number| *number <= latest.last);
        let first = latest.last + 1 - latest.kept.len() as u64;
        let missed = match known {
            Some(number) => Missed {
                gap: number + 1 < first,
                events: latest
                    .kept
                    .iter()
                    .filter(|told| told.event.number > number)
                    .cloned()
                    .collect(),
            },
            None => Missed { gap: true, events: Vec::new() },
        };
        (missed, self.sender.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(missed: &Missed) -> Vec<u64> {
        missed.events.iter().map(|told| told.event.number).collect()
    }

    #[test]
    fn who_comes_back_gets_what_it_missed() {
        let events = Events::default();
        let mut listener = events.listen();
        for _ in 0..3 {
            events.tell("me", EventKind::Created, "a", None, None);
        }
        let first = events.id(&listener.try_recv().unwrap().event);
        let (missed, mut from_now_on) = events.listen_after(&first);
        assert_eq!((missed.gap, numbers(&missed)), (false, vec![2, 3]));
        assert!(from_now_on.try_recv().is_err());
        events.tell("me", EventKind::Deleted, "a", None, None);
        assert_eq!(from_now_on.try_recv().unwrap().event.number, 4);
        let last = events.id(&from_now_on_event(4));
        let (missed, _) = events.listen_after(&last);
        assert_eq!((missed.gap, numbers(&missed)), (false, Vec::new()));
    }

    fn from_now_on_event(number: u64) -> Event {
        let sandbox = String::new();
        Event { number, at_ms: 0, kind: EventKind::Created, sandbox, other: None, detail: None }
    }

    #[test]
    fn what_is_no_longer_known_is_a_gap() {
        let events = Events::default();
        for _ in 0..KEPT_MAX + 2 {
            events.tell("me", EventKind::Created, "a", None, None);
        }
        let of = |number| events.id(&from_now_on_event(number));
        let (missed, _) = events.listen_after(&of(1));
        assert!(missed.gap && missed.events.len() == KEPT_MAX);
        let (missed, _) = events.listen_after(&of(2));
        assert!(!missed.gap && missed.events.len() == KEPT_MAX);
        for other in ["", "1", "-", "1-1", &of(999_999), "nonsense", &format!("{}-x", events.start)]
        {
            let (missed, _) = events.listen_after(other);
            assert!(missed.gap && missed.events.is_empty(), "{other}");
        }
    }
}
