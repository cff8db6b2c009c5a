//! Files as processes see them.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use ramet_proto::agent::{Name, Place, Reply, Seen, SeenKind};

use super::mounts::{Holder, Mounts};
use super::{Level, Parts, Stopped, as_path, finish, if_there, names, nanoseconds, next};
use crate::failure::{bad_request, from_io};
use crate::frame::Connection;

/// Serve a look session.
pub fn look(connection: &Connection, places: &[Place]) {
    finish(connection, serve(connection, places));
}

fn serve(connection: &Connection, places: &[Place]) -> Result<(), Stopped> {
    let mounts = Mounts::read().map_err(|error| from_io("/proc/self/mountinfo", &error))?;
    let mut parts = Parts::new(connection, |entries| Reply::Seen { entries });
    for place in places {
        let path = place.path.bytes();
        if !path.starts_with(b"/") || path.contains(&0) {
            return Err(bad_request(format!("{}: is no path", place.path.shown())).into());
        }
        if mounts.holder(path) != Holder::Nobody {
            walk(&mut parts, &mounts, path, place.deep)?;
        }
    }
    parts.flush()
}

fn walk(
    parts: &mut Parts<'_, Seen>,
    mounts: &Mounts,
    path: &[u8],
    deep: bool,
) -> Result<(), Stopped> {
    let mut levels = Vec::new();
    let mut at = Some(path.to_vec());
    while let Some(path) = at {
        if mounts.is_skipped(&path) {
            for point in mounts.below(&path) {
                walk(parts, mounts, &point, deep)?;
            }
        } else if let Some(found) = if_there(&path, fs::symlink_metadata(as_path(&path)))? {
            let entry = describe(&path, &found)?;
            let bytes = path.len() + entry.target.as_ref().map_or(0, |target| target.bytes().len());
            parts.push(entry, bytes)?;
            if deep && found.is_dir() {
                let names = if_there(&path, names(as_path(&path)))?.unwrap_or_default();
                levels.push(Level { path, names });
            }
        }
        at = next(&mut levels);
    }
    Ok(())
}

fn describe(path: &[u8], found: &Metadata) -> Result<Seen, Stopped> {
    let kind = found.file_type();
    let target = match kind.is_symlink() {
        true => if_there(path, fs::read_link(as_path(path)))?,
        false => None,
    };
    Ok(Seen {
        path: Name::new(path),
        kind: match () {
            () if kind.is_dir() => SeenKind::Directory,
            () if kind.is_symlink() => SeenKind::Symlink,
            () if kind.is_fifo() => SeenKind::Fifo,
            () if kind.is_socket() => SeenKind::Socket,
            () if kind.is_char_device() => SeenKind::CharacterDevice,
            () if kind.is_block_device() => SeenKind::BlockDevice,
            () => SeenKind::File,
        },
        size: if found.is_dir() { 0 } else { found.size() },
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        modified_ns: nanoseconds(found.mtime(), found.mtime_nsec()),
        target: target.map(|target| Name::new(target.as_os_str().as_encoded_bytes())),
    })
}
