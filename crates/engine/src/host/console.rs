//! The console of the software host: its last lines in memory, more in a file, neither without
//! bound.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Most that the file holds. When it is full it begins anew with what is in memory.
pub const FILE_MAX: u64 = 1 << 20;
/// What is kept in memory.
const TAIL_MAX: usize = 16 << 10;
/// Lines that an error shows.
const SHOWN_LINES: usize = 25;

/// The last output, shared between the thread that reads it and whoever reports an error.
#[derive(Clone, Default)]
pub struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// The last lines.
    pub fn lines(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> =
            text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(bytes);
        let surplus = tail.len().saturating_sub(TAIL_MAX);
        tail.drain(..surplus);
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The file.
pub struct Log {
    file: File,
    written: u64,
}

impl Log {
    /// Begin a log, in place of an older one.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, written: 0 })
    }

    fn push(&mut self, bytes: &[u8], tail: &Tail) -> io::Result<()> {
        if self.written + bytes.len() as u64 > FILE_MAX {
            self.file.set_len(0)?;
            self.file.rewind()?;
            let kept = tail.bytes();
            self.file.write_all(&kept)?;
            self.written = kept.len() as u64;
            return Ok(());
        }
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

/// Follow the output to its end. Never stops reading: a full disk costs the log, not the machine.
pub fn follow(mut from: impl Read, tail: &Tail, mut log: Log) {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                tail.push(&buffer[..count]);
                if log.push(&buffer[..count], tail).is_err() {
                    log.written = 0;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_memory_nor_file_grow_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        let tail = Tail::default();
        let line = b"0123456789abcdef\n";
        let output: Vec<u8> = line.iter().copied().cycle().take(3 << 20).collect();
        follow(&output[..], &tail, Log::create(&path).unwrap());
        assert!(tail.bytes().len() <= TAIL_MAX);
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size <= FILE_MAX && size >= TAIL_MAX as u64, "{size}");
        assert_eq!(tail.lines().lines().count(), SHOWN_LINES);
    }

    #[test]
    fn the_end_is_in_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        let tail = Tail::default();
        follow(&b"one\r\n\r\nKernel panic\r\n"[..], &tail, Log::create(&path).unwrap());
        assert_eq!(tail.lines(), "one\nKernel panic");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("Kernel panic\r\n"));
    }
}
