//! Read a tar stream into a directory.
//!
//! Files and symlinks replace what has their name, unless that is a directory; directories join those
//! that are there. The target itself is made if it is missing, and otherwise keeps its mode and owner.
//! What was unpacked before a refusal stays; a file that broke off does not.
//!
//! Invariant: everything is made relative to a descriptor of its directory, and that descriptor comes from
//! [`Target::open`], which only opens what lies beneath the target.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, mkfifoat, symlinkat, unlinkat};
use tar::{Archive, Entry, EntryType};

use crate::{Counts, Error, PIECE};

/// Most bytes that describe one entry: names, attributes, the map of a sparse file.
const DESCRIPTION_MAX: u64 = 1 << 20;
/// Longest sparse file: its holes are walked through.
const SPARSE_MAX: u64 = 1 << 40;
/// Longest path; the kernel takes no longer ones.
const PATH_MAX: usize = 4095;

/// Whose the unpacked files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// As the archive says.
    Archive,
    /// Everything is this user's and group's.
    Fixed(u32, u32),
    /// The user's who unpacks.
    Own,
}

/// What becomes of fifos. Devices are always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They are made.
    Make,
    /// They are refused.
    Refuse,
}

/// How an archive is unpacked.
#[derive(Debug, Clone, Copy)]
pub struct Unpack {
    /// Whose the files are.
    pub owner: Owner,
    /// Permission bits that are kept.
    pub mode_mask: u32,
    /// What becomes of fifos.
    pub specials: Specials,
}

/// Unpacks all of `from` below the directory `root`.
pub fn unpack(from: impl Read, root: &Path, options: Unpack) -> Result<Counts, Error> {
    let mut target = Target::new(root, options)?;
    let allowance = Rc::new(Cell::new(0));
    let bounded = Bounded { from, allowance: allowance.clone(), failure: Rc::default() };
    let failure = bounded.failure.clone();
    let told = |error: io::Error| match failure.take() {
        Some(error) => Error::Stream(error),
        None => Error::Malformed(error.to_string()),
    };
    let mut archive = Archive::new(bounded);
    let mut entries = archive.entries().map_err(told)?;
    loop {
        allowance.set(DESCRIPTION_MAX);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(told)?;
        allowance.set(u64::MAX);
        match target.one(&mut entry) {
            Err(Error::Stream(error)) => return Err(told(error)),
            other => other?,
        }
    }
    // Writers fill up the last record; whoever sends wants it to be taken.
    allowance.set(u64::MAX);
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(told)?;
    Ok(target.counts)
}

/// The stream, with a bound on what may be read before the next entry begins.
struct Bounded<R> {
    from: R,
    allowance: Rc<Cell<u64>>,
    /// What the stream itself said: errors of the archive look alike.
    failure: Rc<Cell<Option<io::Error>>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = match self.from.read(into) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let kind = error.kind();
                self.failure.set(Some(error));
                return Err(kind.into());
            }
        };
        let left = self.allowance.get().checked_sub(count as u64);
        let left = left.ok_or_else(|| io::Error::other("an entry's description is too long"))?;
        self.allowance.set(left);
        Ok(count)
    }
}

struct Target {
    root: OwnedFd,
    /// For messages.
    path: PathBuf,
    /// The target was there before.
    found: bool,
    options: Unpack,
    /// The directory that was used last: neighbours come together.
    last: Option<(PathBuf, OwnedFd)>,
    counts: Counts,
}

impl Target {
    fn new(path: &Path, options: Unpack) -> Result<Self, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let found = path.is_dir();
        fs::create_dir_all(path).map_err(failed)?;
        let root = OwnedFd::from(File::open(path).map_err(failed)?);
        let path = path.to_owned();
        Ok(Self { root, path, found, options, last: None, counts: Counts::default() })
    }

    /// Takes one entry.
    fn one(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            // Comments of whoever made the archive.
            return io::copy(entry, &mut io::sink()).map(drop).map_err(Error::Stream);
        }
        refuse_unknown_sparse(entry)?;
        let name = checked(&entry.path_bytes())?;
        match kind {
            EntryType::Directory => self.directory(entry, &name)?,
            _ if name.as_os_str().is_empty() => return Err(refused(&name, "names no file")),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(entry, &name)?;
            }
            EntryType::Symlink => self.symlink(entry, &name)?,
            EntryType::Link => self.link(entry, &name)?,
            EntryType::Fifo if self.options.specials == Specials::Make => {
                self.fifo(entry, &name)?;
            }
            EntryType::Fifo | EntryType::Char | EntryType::Block => {
                return Err(refused(&name, "devices and fifos are not taken"));
            }
            other => {
                let reason = format!("entries of type {:?} are not known", other.as_byte() as char);
                return Err(refused(&name, reason));
            }
        }
        self.counts.entries += 1;
        Ok(())
    }

    /// Opens a directory beneath the target.
    fn open(&self, name: &Path) -> Result<OwnedFd, Errno> {
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        openat2(&self.root, name, OpenHow::new().flags(flags).resolve(beneath))
    }

    /// Opens a directory beneath the target, and makes what is missing on the way.
    fn make(&self, name: &Path) -> Result<OwnedFd, Error> {
        let mut missing: Vec<&OsStr> = Vec::new();
        let mut at = name;
        let mut directory = loop {
            match self.open(at) {
                Ok(directory) => break directory,
                Err(Errno::ENOENT) => match (at.parent(), at.file_name()) {
                    (Some(parent), Some(last)) => {
                        missing.push(last);
                        at = parent;
                    }
                    _ => return Err(self.failed(name, Errno::ENOENT)),
                },
                Err(errno) => return Err(self.failed(at, errno)),
            }
        };
        for part in missing.into_iter().rev() {
            match mkdirat(&directory, part, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(self.failed(name, errno)),
            }
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let opened = openat(&directory, part, flags, Mode::empty());
            directory = opened.map_err(|errno| self.failed(name, errno))?;
        }
        Ok(directory)
    }

    /// The directory that a file goes into, and its name there.
    fn parent<'n>(&mut self, name: &'n Path) -> Result<(&OwnedFd, &'n OsStr), Error> {
        let (Some(parent), Some(last)) = (name.parent(), name.file_name()) else {
            return Err(refused(name, "names no file"));
        };
        if self.last.as_ref().is_none_or(|(known, _)| known != parent) {
            self.last = Some((parent.to_owned(), self.make(parent)?));
        }
        match &self.last {
            Some((_, directory)) => Ok((directory, last)),
            None => Err(refused(name, "names no file")),
        }
    }

    /// As [`Self::parent`], with nothing of that name in the way.
    fn place<'n>(&mut self, name: &'n Path) -> Result<(&OwnedFd, &'n OsStr), Error> {
        let (directory, last) = self.parent(name)?;
        let cleared = match fstatat(directory, last, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) if is_directory(stat.st_mode) => Err(Errno::EISDIR),
            Ok(_) => unlinkat(directory, last, UnlinkatFlags::NoRemoveDir),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        };
        cleared.map_err(|errno| self.failed(name, errno))?;
        self.parent(name)
    }

    fn directory(&mut self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<(), Error> {
        let directory = File::from(self.make(name)?);
        if name.as_os_str().is_empty() && self.found {
            return Ok(());
        }
        let (owner, mut mode) = (self.owner(entry, name)?, self.mode(entry, name)?);
        if self.options.owner == Owner::Own {
            // What may not be written cannot be filled, unless by root.
            mode |= 0o700;
        }
        let settled = settle(&directory, owner, mode);
        settled.map_err(|source| self.cannot(name, source))
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path) -> Result<(), Error> {
        let size = entry.size();
        if entry.header().entry_type() == EntryType::GNUSparse && size > SPARSE_MAX {
            return Err(refused(name, format!("is sparse and longer than {SPARSE_MAX} bytes")));
        }
        let (owner, mode) = (self.owner(entry, name)?, self.mode(entry, name)?);
        let modified = entry.header().mtime().map_err(|error| refused(name, error.to_string()))?;
        let (directory, last) = self.place(name)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(directory, last, flags, Mode::from_bits_truncate(0o600));
        let mut file = match made {
            Ok(file) => File::from(file),
            Err(errno) => return Err(self.failed(name, errno)),
        };
        let written = copy(entry, &mut file, size).and_then(|()| {
            settle(&file, owner, mode).map_err(Stopped::File)?;
            // Beyond what the filesystem can say it stays as it is.
            let time = UNIX_EPOCH.checked_add(Duration::from_secs(modified));
            time.map_or(Ok(()), |time| file.set_modified(time)).map_err(Stopped::File)
        });
        if let Err(stopped) = written {
            let (directory, last) = self.parent(name)?;
            // What is left of it would pass for whole; if it is gone already, all the better.
            let _ = unlinkat(directory, last, UnlinkatFlags::NoRemoveDir);
            return Err(match stopped {
                Stopped::File(source) => self.cannot(name, source),
                Stopped::Stream(error) => Error::Stream(error),
                Stopped::Short => refused(name, "the archive ends in the middle of it"),
            });
        }
        self.counts.files += 1;
        self.counts.bytes += size;
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<(), Error> {
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        if target.is_empty() || target.contains(&0) || target.len() > PATH_MAX {
            return Err(refused(name, "its target is empty, too long, or has NUL in it"));
        }
        let owner = self.owner(entry, name)?;
        let (directory, last) = self.place(name)?;
        let made = symlinkat(OsStr::from_bytes(&target), directory, last).and_then(|()| {
            let Some((uid, gid)) = owner else { return Ok(()) };
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            fchownat(directory, last, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
        });
        made.map_err(|errno| self.failed(name, errno))
    }

    fn link(&mut self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<(), Error> {
        let first = checked(&entry.link_name_bytes().unwrap_or_default())?;
        let (Some(parent), Some(first_last)) = (first.parent(), first.file_name()) else {
            return Err(refused(name, "is a link to nothing"));
        };
        if first == *name {
            return Err(refused(name, "is a link to itself"));
        }
        let from = self.open(parent).map_err(|errno| self.failed(&first, errno))?;
        let (directory, last) = self.place(name)?;
        let linked = linkat(&from, first_last, directory, last, AtFlags::empty());
        linked.map_err(|errno| self.failed(name, errno))
    }

    fn fifo(&mut self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<(), Error> {
        let (owner, mode) = (self.owner(entry, name)?, self.mode(entry, name)?);
        let (directory, last) = self.place(name)?;
        // Nobody can have put something else there that matters: it is made or it fails.
        let made = mkfifoat(directory, last, Mode::from_bits_truncate(mode)).and_then(|()| {
            let Some((uid, gid)) = owner else { return Ok(()) };
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            fchownat(directory, last, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
        });
        made.map_err(|errno| self.failed(name, errno))
    }

    fn owner(
        &self,
        entry: &Entry<'_, impl Read>,
        name: &Path,
    ) -> Result<Option<(u32, u32)>, Error> {
        let number = |number: io::Result<u64>| {
            let number = number.map_err(|error| refused(name, error.to_string()))?;
            u32::try_from(number).map_err(|_| refused(name, format!("there is no user {number}")))
        };
        match self.options.owner {
            Owner::Own => Ok(None),
            Owner::Fixed(uid, gid) => Ok(Some((uid, gid))),
            Owner::Archive => {
                Ok(Some((number(entry.header().uid())?, number(entry.header().gid())?)))
            }
        }
    }

    fn mode(&self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<u32, Error> {
        let mode = entry.header().mode().map_err(|error| refused(name, error.to_string()))?;
        Ok(mode & 0o7777 & self.options.mode_mask)
    }

    fn cannot(&self, name: &Path, source: io::Error) -> Error {
        Error::File { path: self.path.join(name), source }
    }

    fn failed(&self, name: &Path, errno: Errno) -> Error {
        match errno {
            Errno::EXDEV | Errno::ELOOP => {
                let target = self.path.display();
                refused(name, format!("a symlink on its way leads out of {target}, or nowhere"))
            }
            errno => self.cannot(name, errno.into()),
        }
    }
}

fn is_directory(mode: u32) -> bool {
    mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits()
}

fn refused(name: &Path, reason: impl Into<String>) -> Error {
    Error::Refused { name: name.to_string_lossy().into_owned(), reason: reason.into() }
}

/// The name as a path beneath the target; empty for the target itself.
fn checked(name: &[u8]) -> Result<PathBuf, Error> {
    let path = Path::new(OsStr::from_bytes(name));
    if name.contains(&0) || name.len() > PATH_MAX {
        return Err(refused(path, "is too long, or has NUL in it"));
    }
    let mut checked = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => checked.push(part),
            Component::RootDir | Component::Prefix(_) => {
                return Err(refused(path, "is absolute; names count from the target"));
            }
            Component::ParentDir => return Err(refused(path, "leads out with `..`")),
        }
    }
    Ok(checked)
}

/// Sparse files in PAX's way would come out as something else.
fn refuse_unknown_sparse(entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
    let name = entry.path_bytes().into_owned();
    let attributes = entry.pax_extensions().map_err(Error::Stream)?;
    let sparse = attributes.into_iter().flatten().any(|attribute| {
        attribute.is_ok_and(|attribute| attribute.key_bytes().starts_with(b"GNU.sparse."))
    });
    if sparse {
        let name = Path::new(OsStr::from_bytes(&name));
        let reason = "is sparse in PAX format, which is not taken; write it with --format=gnu";
        return Err(refused(name, reason));
    }
    Ok(())
}

/// Owner, then mode: changing the owner clears bits.
fn settle(file: &File, owner: Option<(u32, u32)>, mode: u32) -> io::Result<()> {
    if let Some((uid, gid)) = owner {
        fchown(file, Some(uid), Some(gid))?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// What stopped a copy.
enum Stopped {
    File(io::Error),
    Stream(io::Error),
    Short,
}

/// Copies exactly `size` bytes; long runs of zeros become holes.
fn copy(from: &mut impl Read, to: &mut File, size: u64) -> Result<(), Stopped> {
    let mut piece = vec![0; PIECE];
    let mut left = size;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let count = fill(from, &mut piece[..wanted]).map_err(Stopped::Stream)?;
        if count < wanted {
            return Err(Stopped::Short);
        }
        let written = if count == PIECE && piece.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(PIECE as i64)).map(drop)
        } else {
            to.write_all(&piece[..count])
        };
        written.map_err(Stopped::File)?;
        left -= count as u64;
    }
    to.set_len(size).map_err(Stopped::File)
}

/// Reads until it is full or at an end.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
