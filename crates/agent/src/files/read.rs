//! Read a file, or a part of it, hole by hole.
//!
//! Files whose size the kernel does not know (in `/proc`, `/sys`) are read to their end. A file that
//! changes meanwhile is sent as it is found. Refuses directories, devices, fifos and sockets, which
//! have no end or would wait for somebody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::unistd::{Whence, lseek};
use ramet_proto::agent::{Channel, FRAME_MAX, ReadFile, Reply};

use super::{checked_path, describe, refuse_special};
use crate::failure::{Outcome, bad_request, from_io};
use crate::frame::Connection;

/// What stopped a transfer.
enum Stopped {
    /// The file could not be read.
    File(io::Error),
    /// The peer left.
    Peer,
}

/// Serve a read session.
pub fn read(connection: &Connection, request: &ReadFile) {
    let opened = checked_path(&request.path).and_then(|path| open(&path).map(|file| (path, file)));
    let (path, file) = match opened {
        Ok(opened) => opened,
        Err(failure) => return connection.refuse(failure),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return connection.refuse(from_io(path.display(), &error)),
    };
    let end = match request.length {
        Some(length) => request.offset.checked_add(length),
        None => Some(u64::MAX),
    };
    let Some(end) = end.filter(|_| i64::try_from(request.offset).is_ok()) else {
        return connection.refuse(bad_request("offset and length are beyond any file"));
    };
    if connection.send(&Reply::Stat(describe(&path, &metadata))).is_err() {
        return;
    }
    match send_range(connection, &file, metadata.size(), request.offset, end) {
        // A peer that left does not want it.
        Ok(()) => drop(connection.send(&Reply::Done {})),
        Err(Stopped::File(error)) => connection.refuse(from_io(path.display(), &error)),
        Err(Stopped::Peer) => {}
    }
}

fn open(path: &Path) -> Outcome<File> {
    let failed = |error: io::Error| from_io(path.display(), &error);
    // Looked at before it is opened: opening a device can have effects, a fifo would wait.
    refuse_special(path, &std::fs::metadata(path).map_err(failed)?)?;
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    refuse_special(path, &file.metadata().map_err(failed)?)?;
    Ok(file)
}

fn send_range(
    connection: &Connection,
    file: &File,
    size: u64,
    mut at: u64,
    end: u64,
) -> Result<(), Stopped> {
    let mut buffer = vec![0; FRAME_MAX];
    while at < end {
        let (data, hole) = next_data(file, size, at);
        let data = data.min(end);
        if data > at {
            let length = data - at;
            connection.send(&Reply::Hole { length }).map_err(|_| Stopped::Peer)?;
            at = data;
            continue;
        }
        let sent = send_data(connection, file, &mut buffer, at, hole.min(end))?;
        if sent == 0 {
            break;
        }
        at += sent;
    }
    Ok(())
}

/// Where data begins at or after `at`, and where it ends. A file that knows no holes is all data;
/// what is past the last data is a hole up to the size.
fn next_data(file: &File, size: u64, at: u64) -> (u64, u64) {
    let everything = (at, u64::MAX);
    let (Ok(offset), true) = (i64::try_from(at), at < size) else {
        return everything;
    };
    let data = match lseek(file, offset, Whence::SeekData) {
        Ok(data) => data,
        Err(nix::errno::Errno::ENXIO) => return (size, u64::MAX),
        Err(_) => return everything,
    };
    let hole = lseek(file, data, Whence::SeekHole).unwrap_or(i64::MAX);
    (data.unsigned_abs(), hole.unsigned_abs())
}

/// Send from `at` to `end` or to the file's end. How much was sent.
fn send_data(
    connection: &Connection,
    file: &File,
    buffer: &mut [u8],
    at: u64,
    end: u64,
) -> Result<u64, Stopped> {
    let mut sent = 0;
    while at + sent < end {
        let wanted = usize::try_from(end - at - sent).unwrap_or(FRAME_MAX).min(FRAME_MAX);
        match file.read_at(&mut buffer[..wanted], at + sent) {
            Ok(0) => break,
            Ok(count) => {
                let bytes = &buffer[..count];
                connection.send_bytes(Channel::Stdout, bytes).map_err(|_| Stopped::Peer)?;
                sent += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Stopped::File(error)),
        }
    }
    Ok(sent)
}
