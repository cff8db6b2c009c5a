//! List a directory, to a depth.
//!
//! Depth first, by name, symlinks not followed. Memory is bounded by the names of the directories on
//! the way down, not by the tree: entries are sent in parts. What disappears meanwhile is left out;
//! a directory below the first that cannot be read is listed without its content.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ramet_proto::agent::{Entry, List, Reply};

use super::{checked_path, describe};
use crate::failure::{Outcome, bad_request, from_io};
use crate::frame::Connection;

/// Entries in one frame; with the longest paths they still fit.
const PART: usize = 256;
/// Bytes of paths in one frame.
const PART_BYTES: usize = 64 * 1024;
/// No path of the kernel has more components.
const DEPTH_MAX: u32 = 2048;

/// A directory on the way down: where, and the names still to be visited, last first.
struct Level {
    path: PathBuf,
    names: Vec<OsString>,
}

/// Serve a list session.
pub fn list(connection: &Connection, request: &List) {
    let first = match checked(request) {
        Ok(first) => first,
        Err(failure) => return connection.refuse(failure),
    };
    // A peer that left does not want the rest.
    let _ = walk(connection, first, request.depth.min(DEPTH_MAX));
}

fn checked(request: &List) -> Outcome<Level> {
    let path = checked_path(&request.path)?;
    if request.depth == 0 {
        return Err(bad_request("depth 0 lists nothing"));
    }
    level(&path).map_err(|error| from_io(path.display(), &error))
}

fn level(path: &Path) -> io::Result<Level> {
    let mut names: Vec<OsString> =
        fs::read_dir(path)?.filter_map(|entry| entry.ok().map(|entry| entry.file_name())).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(Level { path: path.to_owned(), names })
}

fn walk(connection: &Connection, first: Level, depth: u32) -> io::Result<()> {
    let mut levels = vec![first];
    let mut part: Vec<Entry> = Vec::new();
    let mut bytes = 0;
    while let Some(level_now) = levels.last_mut() {
        let Some(name) = level_now.names.pop() else {
            levels.pop();
            continue;
        };
        let path = level_now.path.join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let entry = describe(&path, &metadata);
        bytes += entry.path.len() + entry.target.as_ref().map_or(0, String::len);
        bytes += entry.end.as_ref().map_or(0, |end| end.path.len());
        // As JSON, a byte can be six.
        let attributes = entry.attributes.iter().map(|(name, value)| name.len() + value.len());
        bytes += 6 * attributes.sum::<usize>();
        part.push(entry);
        if part.len() == PART || bytes > PART_BYTES {
            connection.send(&Reply::Entries { entries: std::mem::take(&mut part) })?;
            bytes = 0;
        }
        let below = usize::try_from(depth).unwrap_or(usize::MAX);
        if metadata.is_dir()
            && levels.len() < below
            && let Ok(next) = level(&path)
        {
            levels.push(next);
        }
    }
    if !part.is_empty() {
        connection.send(&Reply::Entries { entries: part })?;
    }
    connection.send(&Reply::Done {})
}
