//! What files hold, as digests.
//!
//! Blocks of zeros count as holes, so a digest does not tell how a file is stored, and a sparse file costs
//! what it really holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use nix::unistd::{Whence, lseek};
use ramet_proto::agent::{Name, Reply};

use super::{Parts, Stopped, as_path, finish};
use crate::frame::Connection;

/// What is read, and looked at for zeros, at once.
const BLOCK: u64 = 64 * 1024;
/// Bytes of a digest in a frame.
const DIGEST_BYTES: usize = 64;
/// Longest time that a request may ask for.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Serve a digest session.
pub fn digest(connection: &Connection, paths: &[Name], time_ms: u64) {
    let end = Instant::now() + Duration::from_millis(time_ms).min(TIME_MAX);
    finish(connection, serve(connection, paths, end));
}

fn serve(connection: &Connection, paths: &[Name], end: Instant) -> Result<(), Stopped> {
    let mut parts = Parts::new(connection, |digests| Reply::Digests { digests });
    for path in paths {
        // What cannot be read has no digest; the host knows what that means.
        parts.push(of(path, end).ok().flatten(), DIGEST_BYTES)?;
    }
    parts.flush()
}

/// The digest of a regular file; none if the time is over.
fn of(path: &Name, end: Instant) -> io::Result<Option<String>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let found = std::fs::symlink_metadata(as_path(path.bytes()))?;
    if !found.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).custom_flags(flags).open(as_path(path.bytes()))?;
    let size = file.metadata()?.size();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&size.to_le_bytes());
    let mut buffer = vec![0; usize::try_from(BLOCK).unwrap_or(1 << 16)];
    let mut at = 0;
    while at < size {
        if Instant::now() >= end {
            return Ok(None);
        }
        at = next_data(&file, at, size) / BLOCK * BLOCK;
        let count = fill(&file, &mut buffer, at)?;
        if count == 0 {
            break;
        }
        let block = &buffer[..count];
        if block.iter().any(|byte| *byte != 0) {
            hasher.update(&at.to_le_bytes()).update(block);
        }
        at += BLOCK;
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

/// Where data begins at or after `at`; a file that knows no holes is all data.
fn next_data(file: &File, at: u64, size: u64) -> u64 {
    let Ok(offset) = i64::try_from(at) else { return at };
    match lseek(file, offset, Whence::SeekData) {
        Ok(data) => data.unsigned_abs(),
        Err(nix::errno::Errno::ENXIO) => size.next_multiple_of(BLOCK),
        Err(_) => at,
    }
}

fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn content_counts_and_holes_do_not() {
        let root = tempfile::tempdir().expect("a directory");
        let name = |file: &str| Name::new(root.path().join(file).as_os_str().as_encoded_bytes());
        let make = |file: &str, parts: &[(u64, &[u8])], size: u64| {
            let made = File::create(root.path().join(file)).expect("made");
            made.set_len(size).expect("set");
            parts.iter().for_each(|(at, bytes)| made.write_all_at(bytes, *at).expect("written"));
        };
        let size = 40 * BLOCK + 5;
        make("sparse", &[(30 * BLOCK + 7, b"x")], size);
        make("zeros", &[(0, &vec![0; 20 * 65536]), (30 * BLOCK + 7, b"x")], size);
        make("other", &[(29 * BLOCK + 7, b"x")], size);
        make("longer", &[(30 * BLOCK + 7, b"x")], size + 1);
        let digest = |file| of(&name(file), soon()).expect("read").expect("in time");
        assert_eq!(digest("sparse"), digest("zeros"));
        assert_ne!(digest("sparse"), digest("other"));
        assert_ne!(digest("sparse"), digest("longer"));
        make("huge", &[(1 << 40, b"end")], 1 << 41);
        assert_ne!(digest("huge"), digest("sparse"));
    }

    #[test]
    fn what_is_no_file_or_too_late_has_none() {
        let root = tempfile::tempdir().expect("a directory");
        let name = |file: &str| Name::new(root.path().join(file).as_os_str().as_encoded_bytes());
        nix::unistd::mkfifo(&root.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU)
            .expect("made");
        assert_eq!(of(&name("fifo"), soon()).expect("looked at"), None);
        assert_eq!(of(&name("."), soon()).expect("looked at"), None);
        assert!(of(&name("missing"), soon()).is_err());
        std::fs::write(root.path().join("file"), "x").expect("written");
        assert_eq!(of(&name("file"), Instant::now()).expect("looked at"), None);
        std::os::unix::fs::symlink("file", root.path().join("link")).expect("made");
        assert_eq!(of(&name("link"), soon()).expect("looked at"), None);
    }
}
