//! Write a file whole or not at all.
//!
//! The content goes to a temporary file beside the target and is renamed over it when the peer says
//! that all was sent. A failure or a hang-up before that removes the temporary file and leaves the
//! target as it was. Refuses to replace a directory, and input that is not content.
//!
//! Not promised: that the content survives a power failure. A sandbox's disk is made durable as a
//! whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ramet_proto::agent::{Channel, Input, Reply, WriteFile};

use super::{checked_mode, checked_path, entry, make_directories, owner};
use crate::failure::{Outcome, bad_request, failure, from_io};
use crate::frame::{Connection, Decoder, FrameError, Received};
use crate::sys::kernel;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A name beside the target that is removed unless it becomes the target.
struct Temporary {
    path: PathBuf,
    kept: bool,
}

impl Temporary {
    fn beside(target: &Path) -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".ramet-{}-{number}.tmp", std::process::id());
        Self { path: target.with_file_name(name), kept: false }
    }

    fn become_target(mut self, target: &Path) -> Outcome<()> {
        fs::rename(&self.path, target).map_err(|error| from_io(target.display(), &error))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            // It may never have been made.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What was asked for, checked.
struct Target {
    path: PathBuf,
    mode: u32,
    owner: Option<(u32, u32)>,
}

/// Serve a write session.
pub fn write(connection: &Connection, request: &WriteFile) {
    match receive(connection, request) {
        Ok(true) => {}
        // The peer left before the end.
        Ok(false) => return,
        Err(failure) => return connection.refuse(failure),
    }
    crate::session::answer(connection, entry(Path::new(&request.path)).map(Reply::Stat));
}

/// False: the peer hung up, and nothing was changed.
fn receive(connection: &Connection, request: &WriteFile) -> Outcome<bool> {
    let target = prepare(request)?;
    let temporary = Temporary::beside(&target.path);
    match &request.symlink {
        Some(to) => {
            if !request.attributes.is_empty() {
                return Err(bad_request("attributes: a symlink has none"));
            }
            if to.is_empty() || to.contains('\0') {
                return Err(bad_request("symlink: its target is empty or contains NUL"));
            }
            symlink(to, &temporary.path).map_err(|error| from_io(target.path.display(), &error))?;
            if !receive_content(connection, &target.path, None)? {
                return Ok(false);
            }
            if let Some((uid, gid)) = target.owner {
                lchown(&temporary.path, Some(uid), Some(gid))
                    .map_err(|error| from_io(target.path.display(), &error))?;
            }
        }
        None => {
            let mut file =
                create(&temporary.path).map_err(|error| from_io(target.path.display(), &error))?;
            if !receive_content(connection, &target.path, Some(&mut file))? {
                return Ok(false);
            }
            settle(&file, &target).map_err(|error| from_io(target.path.display(), &error))?;
            kernel::set_attributes(file.as_fd(), &request.attributes).map_err(|error| {
                from_io(format_args!("attributes of {}", target.path.display()), &error)
            })?;
        }
    }
    temporary.become_target(&target.path)?;
    Ok(true)
}

fn prepare(request: &WriteFile) -> Outcome<Target> {
    let path = checked_path(&request.path)?;
    let (Some(parent), Some(_)) = (path.parent(), path.file_name()) else {
        return Err(bad_request(format!("path {:?} names no file", request.path)));
    };
    let asked = owner(request.owner.as_deref())?;
    let asked_mode = request.mode.map(checked_mode).transpose()?;
    make_directories(parent, 0o755, asked)?;
    let existing = match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(failure("is_a_directory", format!("{}: is a directory", path.display())));
        }
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(from_io(path.display(), &error)),
    };
    let file = existing.as_ref().filter(|metadata| metadata.is_file());
    let mode = asked_mode.or(file.map(|file| file.mode() & 0o7777)).unwrap_or(0o644);
    let owner = asked.or(existing.map(|existing| (existing.uid(), existing.gid())));
    Ok(Target { path, mode, owner })
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Length (a hole at the end has none otherwise), owner, then mode: changing the owner clears bits.
fn settle(file: &File, target: &Target) -> io::Result<()> {
    let mut file = file;
    let length = file.stream_position()?;
    file.set_len(length)?;
    if let Some((uid, gid)) = target.owner {
        fchown(file, Some(uid), Some(gid))?;
    }
    file.set_permissions(fs::Permissions::from_mode(target.mode))
}

/// Take content until `End`. False: the peer hung up.
fn receive_content(
    connection: &Connection,
    path: &Path,
    mut file: Option<&mut File>,
) -> Outcome<bool> {
    let mut decoder = Decoder::default();
    loop {
        let (channel, bytes) = match decoder.receive(connection) {
            Ok(Received::Frame(channel, bytes)) => (channel, bytes),
            Ok(Received::End | Received::Nothing) | Err(FrameError::Io(_)) => return Ok(false),
            Err(error) => return Err(bad_request(error.to_string())),
        };
        let part = match channel {
            Channel::Stdin => Part::Bytes(bytes),
            Channel::Message => part_of(&bytes)?,
            Channel::Stdout | Channel::Stderr => {
                return Err(bad_request("content comes on the channel of stdin"));
            }
        };
        let written = match (part, &mut file) {
            (Part::End, _) => return Ok(true),
            (_, None) => return Err(bad_request("a symlink has no content")),
            (Part::Bytes(bytes), Some(file)) => {
                let written = file.write_all(&bytes);
                decoder.reuse(bytes);
                written
            }
            (Part::Hole(length), Some(file)) => skip(file, length),
        };
        written.map_err(|error| from_io(path.display(), &error))?;
    }
}

enum Part {
    Bytes(Vec<u8>),
    Hole(u64),
    End,
}

fn part_of(message: &[u8]) -> Outcome<Part> {
    match serde_json::from_slice(message) {
        Ok(Input::End {}) => Ok(Part::End),
        Ok(Input::Hole { length }) => Ok(Part::Hole(length)),
        Ok(Input::Resize(_) | Input::Signal { .. }) => {
            Err(bad_request("a file takes content, holes and an end"))
        }
        Err(error) => Err(bad_request(format!("not an input: {error}"))),
    }
}

fn skip(file: &mut File, length: u64) -> io::Result<()> {
    let length = i64::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    file.seek(SeekFrom::Current(length)).map(drop)
}
