//! Builds under way, and what they said. In memory: after a restart of the node a build that was under way has failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::super::time;
use crate::clock::now_ms;

/// Most builds at once.
const BUILDS_MAX: usize = 4;
/// Builds whose logs are remembered.
const LOGS_MAX: usize = 64;
/// Most entries of a log, and longest one.
const ENTRIES_MAX: usize = 10_000;
const ENTRY_MAX: usize = 4096;

/// All builds of a node.
#[derive(Debug)]
pub struct Builds {
    /// Held while what is known of templates changes; never across an await.
    pub changing: Mutex<()>,
    /// One for each build under way.
    pub turns: Arc<Semaphore>,
    logs: Mutex<BTreeMap<String, Arc<Log>>>,
}

impl Default for Builds {
    fn default() -> Self {
        Self {
            changing: Mutex::default(),
            turns: Arc::new(Semaphore::new(BUILDS_MAX)),
            logs: Mutex::default(),
        }
    }
}

impl Builds {
    fn logs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Log>>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of a build that this run of the node has begun.
    pub fn log(&self, build: &str) -> Option<Arc<Log>> {
        self.logs().get(build).cloned()
    }

    /// A log for a build; the oldest are forgotten.
    pub fn begin(&self, build: &str) -> Arc<Log> {
        let (mut logs, log) = (self.logs(), Arc::new(Log::default()));
        logs.insert(build.to_owned(), log.clone());
        while logs.len() > LOGS_MAX {
            let oldest = logs.iter().min_by_key(|(_, log)| log.began_at_ms);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            logs.remove(&oldest);
        }
        log
    }
}

/// What is meant by an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What happens.
    Info,
    /// What may be wrong.
    Warn,
    /// What went wrong.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    at_ms: u64,
    level: Level,
    text: String,
    step: String,
}

/// What a build said.
#[derive(Debug)]
pub struct Log {
    began_at_ms: u64,
    entries: Mutex<Vec<Entry>>,
}

impl Default for Log {
    fn default() -> Self {
        Self { began_at_ms: now_ms(), entries: Mutex::default() }
    }
}

impl Log {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line. After the last that fits, nothing is written any more.
    pub fn write(&self, step: &str, level: Level, text: &str) {
        let mut entries = self.entries();
        let text = match entries.len() {
            ENTRIES_MAX.. => return,
            last if last == ENTRIES_MAX - 1 => "the log is full; the build goes on without it",
            _ => text,
        };
        let text = text.char_indices().take_while(|(at, _)| *at < ENTRY_MAX).map(|(_, c)| c);
        let text = text.collect();
        entries.push(Entry { at_ms: now_ms(), level, text, step: step.to_owned() });
    }

    /// Entries from a place on, at most so many, of this level and above.
    pub fn page(&self, from: usize, count: usize, least: Level) -> Vec<Value> {
        let entries = self.entries();
        let page = entries.iter().filter(|entry| entry.level >= least).skip(from).take(count);
        page.map(shown).collect()
    }
}

fn shown(entry: &Entry) -> Value {
    json!({
        "timestamp": time::of_ms(entry.at_ms),
        "level": entry.level.word(),
        "message": entry.text,
        "step": entry.step,
    })
}
