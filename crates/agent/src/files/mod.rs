//! Files of the guest.
//!
//! Paths are absolute and without NUL; everything else is refused before the file system is
//! touched. Every failure names its path. [`read`] and [`write`] keep holes, [`archive`] moves whole
//! directories, [`list`] and [`watch`] report names; here is what is done by one system call or a few.

pub mod archive;
pub mod list;
pub mod read;
pub mod watch;
pub mod write;

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use ramet_proto::agent::{End, Entry, FileKind, Mkdir};

use crate::failure::{Outcome, bad_request, failure, from_io};
use crate::sys::kernel;
use crate::users;

/// The path, if it is one that a session may name.
pub fn checked_path(path: &str) -> Outcome<PathBuf> {
    if !path.starts_with('/') {
        return Err(bad_request(format!("path {path:?} is not absolute")));
    }
    if path.contains('\0') {
        return Err(bad_request(format!("path {path:?} contains NUL")));
    }
    Ok(PathBuf::from(path))
}

/// The permission bits, if they are nothing else.
fn checked_mode(mode: u32) -> Outcome<u32> {
    match mode & !0o7777 {
        0 => Ok(mode),
        _ => Err(bad_request(format!("mode {mode:o} has more than permission bits"))),
    }
}

/// What is there. A symlink is not followed.
pub fn stat(path: &str) -> Outcome<Entry> {
    entry(&checked_path(path)?)
}

fn entry(path: &Path) -> Outcome<Entry> {
    let metadata = fs::symlink_metadata(path).map_err(|error| from_io(path.display(), &error))?;
    Ok(describe(path, &metadata))
}

/// A file as a session is told of it.
pub fn describe(path: &Path, metadata: &Metadata) -> Entry {
    let is_symlink = metadata.file_type().is_symlink();
    let target = is_symlink.then(|| fs::read_link(path).ok()).flatten();
    Entry {
        path: path.to_string_lossy().into_owned(),
        kind: kind_of(metadata),
        size: metadata.size(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        modified_ns: metadata
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec()),
        target: target.map(|target| target.to_string_lossy().into_owned()),
        end: is_symlink.then(|| end_of(path)).flatten(),
        attributes: kernel::attributes(path),
    }
}

fn kind_of(metadata: &Metadata) -> FileKind {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => FileKind::File,
        () if kind.is_dir() => FileKind::Directory,
        () if kind.is_symlink() => FileKind::Symlink,
        () => FileKind::Other,
    }
}

fn end_of(link: &Path) -> Option<End> {
    let path = fs::canonicalize(link).ok()?;
    let kind = kind_of(&fs::symlink_metadata(&path).ok()?);
    Some(End { path: path.to_string_lossy().into_owned(), kind })
}

/// Make a directory and its missing parents.
pub fn mkdir(request: &Mkdir) -> Outcome<Entry> {
    let path = checked_path(&request.path)?;
    let mode = checked_mode(request.mode.unwrap_or(0o755))?;
    let owner = owner(request.owner.as_deref())?;
    make_directories(&path, mode, owner)?;
    entry(&path)
}

/// User and group that `owner` means.
fn owner(owner: Option<&str>) -> Outcome<Option<(u32, u32)>> {
    let Some(owner) = owner else { return Ok(None) };
    let user = users::find(Some(owner))?;
    Ok(Some((user.ids.uid, user.ids.gid)))
}

/// Every directory that is missing on the way gets the mode and the owner; others stay as they are.
pub fn make_directories(path: &Path, mode: u32, owner: Option<(u32, u32)>) -> Outcome<()> {
    let failed = |at: &Path, error: &io::Error| from_io(at.display(), error);
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match fs::metadata(at) {
            Ok(metadata) if metadata.is_dir() => break,
            Ok(_) => {
                let text = format!("{}: is there and is not a directory", at.display());
                return Err(failure("not_a_directory", text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(at),
            Err(error) => return Err(failed(at, &error)),
        }
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(directory) {
            Ok(()) => {}
            // Someone else made it at the same time; it is theirs.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed(directory, &error)),
        }
        if let Some((uid, gid)) = owner {
            lchown(directory, Some(uid), Some(gid)).map_err(|error| failed(directory, &error))?;
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(mode))
            .map_err(|error| failed(directory, &error))?;
    }
    Ok(())
}

/// Rename, replacing a file.
pub fn rename(from: &str, to: &str) -> Outcome<()> {
    let (from, to) = (checked_path(from)?, checked_path(to)?);
    let names = format!("{} to {}", from.display(), to.display());
    fs::rename(&from, &to).map_err(|error| from_io(names, &error))
}

/// Remove a file, an empty directory, or with `recursive` a whole tree.
pub fn remove(path: &str, recursive: bool) -> Outcome<()> {
    let path = checked_path(path)?;
    if path.parent().is_none() {
        return Err(bad_request("the root directory cannot be removed"));
    }
    let failed = |error: io::Error| from_io(path.display(), &error);
    let metadata = fs::symlink_metadata(&path).map_err(failed)?;
    match (metadata.is_dir(), recursive) {
        (false, _) => fs::remove_file(&path).map_err(failed),
        (true, false) => fs::remove_dir(&path).map_err(failed),
        (true, true) => fs::remove_dir_all(&path).map_err(failed),
    }
}

/// Something that is neither file nor directory cannot be read to an end.
fn refuse_special(path: &Path, metadata: &Metadata) -> Outcome<()> {
    let kind = metadata.file_type();
    if metadata.is_dir() {
        return Err(failure("is_a_directory", format!("{}: is a directory", path.display())));
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        let text = format!("{}: is not a regular file", path.display());
        return Err(bad_request(text));
    }
    Ok(())
}
