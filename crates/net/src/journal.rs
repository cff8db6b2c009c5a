//! What was refused at a port: a ring of entries, equal ones counted together.

use std::collections::{HashMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use ramet_proto::api::network::{LogEntry, Verdict};

/// Most entries.
const ENTRIES_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    kind: &'static str,
    to: String,
    name: Option<String>,
    reason: &'static str,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    at_ms: u64,
    count: u64,
}

/// The ring of one port.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<Entry>,
    numbers: HashMap<Key, u64>,
    /// Number of the newest entry; they have no gaps.
    last: u64,
}

impl Journal {
    /// Notes a refusal.
    pub fn refused(
        &mut self,
        kind: &'static str,
        to: impl Into<String>,
        name: Option<&str>,
        reason: &'static str,
    ) {
        let key = Key { kind, to: to.into(), name: name.map(str::to_owned), reason };
        if let Some(entry) = self.find(&key) {
            entry.count += 1;
            return;
        }
        if self.entries.len() >= ENTRIES_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            self.numbers.remove(&oldest.key);
        }
        self.last += 1;
        self.numbers.insert(key.clone(), self.last);
        self.entries.push_back(Entry { key, at_ms: now_ms(), count: 1 });
    }

    /// Entries after a number: the newest, oldest first.
    #[must_use]
    pub fn after(&self, number: u64, limit: usize) -> Vec<LogEntry> {
        let oldest = self.oldest();
        let known =
            usize::try_from(number.saturating_add(1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        let from = known.max(self.entries.len().saturating_sub(limit)).min(self.entries.len());
        let numbered = (oldest..).zip(&self.entries).skip(from);
        numbered.map(|(number, entry)| entry.show(number)).collect()
    }

    fn oldest(&self) -> u64 {
        self.last + 1 - self.entries.len() as u64
    }

    fn find(&mut self, key: &Key) -> Option<&mut Entry> {
        let index = self.numbers.get(key)?.checked_sub(self.oldest())?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }
}

impl Entry {
    fn show(&self, number: u64) -> LogEntry {
        LogEntry {
            number,
            at_ms: self.at_ms,
            verdict: Verdict::Refused,
            kind: self.key.kind.to_owned(),
            to: self.key.to.clone(),
            name: self.key.name.clone(),
            reason: self.key.reason.to_owned(),
            count: self.count,
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_entries_are_counted_and_old_ones_go() {
        let mut journal = Journal::default();
        for _ in 0..3 {
            journal.refused("tcp", "192.0.2.1:80", None, "not_allowed");
        }
        journal.refused("dns", "example.org", None, "not_allowed");
        let entries = journal.after(0, 10);
        assert_eq!((entries.len(), entries[0].count, entries[0].number), (2, 3, 1));
        assert_eq!(journal.after(1, 10).len(), 1);
        assert_eq!(journal.after(0, 1)[0].kind, "dns");
        for port in 0..5000 {
            journal.refused("tcp", format!("192.0.2.1:{port}"), None, "not_allowed");
        }
        assert_eq!(journal.entries.len(), ENTRIES_MAX);
        assert_eq!(journal.numbers.len(), ENTRIES_MAX);
        assert_eq!(journal.after(0, 5000).last().unwrap().to, "192.0.2.1:4999");
    }
}
