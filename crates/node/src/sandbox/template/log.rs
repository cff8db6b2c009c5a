//! What the commands of a build write. Its end is kept, and whoever follows it is told as it grows.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Bytes that are kept.
const KEPT: usize = 256 << 10;
/// Bytes of it that are kept for good.
const TAIL: usize = 16 << 10;

#[derive(Debug, Default)]
struct Text {
    kept: String,
    /// Bytes that were written before.
    dropped: u64,
}

/// The log of one build.
#[derive(Debug)]
pub struct Log {
    text: Mutex<Text>,
    grown: watch::Sender<()>,
}

impl Default for Log {
    fn default() -> Self {
        Self { text: Mutex::default(), grown: watch::Sender::new(()) }
    }
}

impl Log {
    fn text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a command wrote. Bytes that are no text are replaced.
    pub fn write(&self, bytes: &[u8]) {
        let mut text = self.text();
        text.kept.push_str(&String::from_utf8_lossy(bytes));
        if text.kept.len() > KEPT {
            let from = text.kept.ceil_char_boundary(text.kept.len() - KEPT * 3 / 4);
            text.dropped += from as u64;
            text.kept.drain(..from);
        }
        drop(text);
        self.grown.send_replace(());
    }

    /// Adds a line of the node's own.
    pub fn line(&self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// What was written from an offset on, as far as it is kept, and where that begins.
    pub fn since(&self, offset: u64) -> (u64, String) {
        let text = self.text();
        let from = usize::try_from(offset.saturating_sub(text.dropped)).unwrap_or(usize::MAX);
        let from = text.kept.ceil_char_boundary(from.min(text.kept.len()));
        (text.dropped + from as u64, text.kept[from..].to_owned())
    }

    /// The end of it.
    pub fn tail(&self) -> String {
        let text = self.text();
        let from = text.kept.ceil_char_boundary(text.kept.len().saturating_sub(TAIL));
        text.kept[from..].to_owned()
    }

    /// Told whenever it has grown.
    pub fn follow(&self) -> watch::Receiver<()> {
        self.grown.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_offsets_stay_true() {
        let log = Log::default();
        log.line("first");
        assert_eq!(log.since(0), (0, "first\n".to_owned()));
        assert_eq!(log.since(6), (6, String::new()));
        log.write(&[b'x'; KEPT]);
        let (offset, text) = log.since(0);
        assert!(offset > 6 && text.len() <= KEPT);
        assert_eq!(offset + text.len() as u64, 6 + KEPT as u64);
        assert_eq!(log.since(u64::MAX).1, "");
        assert_eq!(log.tail().len(), TAIL);
        log.write(b"\xff");
        assert!(log.tail().ends_with('\u{fffd}'));
    }
}
