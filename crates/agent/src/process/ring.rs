//! The latest output of a process that nobody listens to.
//!
//! Invariant: at most [`KEPT_BYTES`] are kept, both streams together, in the order in which they
//! were read; what had to make room is counted.

use std::collections::VecDeque;

use ramet_proto::agent::Channel;

/// How much output is kept.
pub const KEPT_BYTES: usize = 256 * 1024;

/// Oldest output is dropped in pieces of this size at most.
const PIECE_BYTES: usize = 16 * 1024;

/// Output in order, bounded.
#[derive(Default, Clone)]
pub struct Ring {
    pieces: VecDeque<(Channel, Vec<u8>)>,
    bytes: usize,
    /// How much was dropped since the process began.
    pub dropped: u64,
}

impl Ring {
    /// Keep this output, dropping the oldest if need be.
    pub fn push(&mut self, channel: Channel, bytes: &[u8]) {
        for part in bytes.chunks(PIECE_BYTES) {
            self.bytes += part.len();
            match self.pieces.back_mut() {
                Some((last, piece))
                    if *last == channel && piece.len() + part.len() <= PIECE_BYTES =>
                {
                    piece.extend_from_slice(part);
                }
                _ => self.pieces.push_back((channel, part.to_vec())),
            }
        }
        while self.bytes > KEPT_BYTES {
            let Some((_, piece)) = self.pieces.pop_front() else {
                return;
            };
            self.bytes -= piece.len();
            self.dropped += piece.len() as u64;
        }
    }

    /// Put back what [`Self::pop`] gave and could not be delivered.
    pub fn push_front(&mut self, channel: Channel, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.pieces.push_front((channel, bytes.to_vec()));
    }

    /// Take the oldest output.
    pub fn pop(&mut self) -> Option<(Channel, Vec<u8>)> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.1.len();
        Some(piece)
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest_and_counts_the_rest() {
        let mut ring = Ring::default();
        for number in 0..100_u8 {
            ring.push(Channel::Stdout, &[number; 10_000]);
        }
        let mut kept = Vec::new();
        while let Some((_, piece)) = ring.pop() {
            kept.extend(piece);
        }
        assert!(kept.len() <= KEPT_BYTES && kept.len() > KEPT_BYTES - 2 * PIECE_BYTES);
        assert_eq!(kept.len() as u64 + ring.dropped, 1_000_000);
        assert_eq!(kept.last(), Some(&99));
    }

    #[test]
    fn keeps_the_order_of_streams() {
        let mut ring = Ring::default();
        ring.push(Channel::Stdout, b"a");
        ring.push(Channel::Stderr, b"b");
        ring.push(Channel::Stdout, b"c");
        ring.push(Channel::Stdout, b"d");
        let (first, second) = (ring.pop(), ring.pop());
        assert_eq!(first, Some((Channel::Stdout, b"a".to_vec())));
        assert_eq!(second, Some((Channel::Stderr, b"b".to_vec())));
        assert_eq!(ring.pop(), Some((Channel::Stdout, b"cd".to_vec())));
        assert!(ring.is_empty());
    }
}
