//! Write a tree as a tar stream (GNU format).
//!
//! Depth first, by name. Symlinks are kept, not followed, but for the one that names the tree. A file with
//! several names is written once; later names refer to the first. The tree may change meanwhile: what disappears
//! is left out, a file that shrinks is filled up with zeros, one that grows is cut, so the archive
//! is whole in any case. Sockets are left out, as nothing can be made of them elsewhere.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use nix::unistd::{Whence, lseek};
use tar::{EntryType, GnuExtSparseHeader, Header};

use crate::{BLOCK, Counts, Error, PIECE};

/// Longest name that a header holds; longer ones have an entry of their own.
const NAME_MAX: usize = 100;
/// Files with several names that are remembered; further ones are written once for each name.
const LINKS_MAX: usize = 1 << 20;
/// Pieces of data between holes; a file with more is written with its holes as zeros.
const PIECES_MAX: usize = 10_000;

/// How a tree is packed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pack {
    /// Directories of other filesystems stay empty.
    pub one_filesystem: bool,
    /// Owner of everything; that of each file when absent.
    pub owner: Option<(u32, u32)>,
}

/// Writes the tree at `root` to `to`, with the end of the archive.
pub fn pack(root: &Path, to: impl Write, options: Pack) -> Result<Counts, Error> {
    let metadata = fs::metadata(root).map_err(|source| failed(root, source))?;
    if !metadata.is_dir() {
        return Err(failed(root, io::ErrorKind::NotADirectory.into()));
    }
    let first = Level::read(root, PathBuf::new()).map_err(|source| failed(root, source))?;
    let device = metadata.dev();
    let (links, counts) = (HashMap::new(), Counts::default());
    let mut packer = Packer { to, root, device, options, links, counts };
    packer.entry(EntryType::Directory, &metadata, b"./", None)?;
    packer.walk(first)?;
    packer.write(&[0; 2 * BLOCK])?;
    packer.to.flush().map_err(Error::Stream)?;
    Ok(packer.counts)
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), source }
}

/// A directory on the way down: its name in the archive, and the names still to come, last first.
struct Level {
    name: PathBuf,
    below: Vec<OsString>,
}

impl Level {
    fn read(path: &Path, name: PathBuf) -> io::Result<Self> {
        let mut below = Vec::new();
        for entry in fs::read_dir(path)? {
            below.push(entry?.file_name());
        }
        below.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { name, below })
    }
}

struct Packer<'a, W> {
    to: W,
    root: &'a Path,
    device: u64,
    options: Pack,
    /// First name of each file that has several.
    links: HashMap<(u64, u64), PathBuf>,
    counts: Counts,
}

impl<W: Write> Packer<'_, W> {
    fn walk(&mut self, first: Level) -> Result<(), Error> {
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            let Some(below) = level.below.pop() else {
                levels.pop();
                continue;
            };
            let name = level.name.join(below);
            let path = self.root.join(&name);
            match self.one(&path, &name) {
                Ok(Some(level)) => levels.push(level),
                Ok(None) => {}
                // It is gone meanwhile.
                Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes one entry; if it is a directory, what is below it comes next.
    fn one(&mut self, path: &Path, name: &Path) -> Result<Option<Level>, Error> {
        let failed = |source| failed(path, source);
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        let (kind, bytes) = (metadata.file_type(), name.as_os_str().as_bytes());
        if kind.is_dir() {
            // Read first: one that cannot be read is no part of a whole archive.
            let elsewhere = self.options.one_filesystem && metadata.dev() != self.device;
            let level = if elsewhere {
                None
            } else {
                Some(Level::read(path, name.to_owned()).map_err(failed)?)
            };
            self.entry(EntryType::Directory, &metadata, &[bytes, b"/"].concat(), None)?;
            return Ok(level);
        }
        let several = (metadata.nlink() > 1).then_some((metadata.dev(), metadata.ino()));
        if let Some(target) = several.and_then(|file| self.links.get(&file).cloned()) {
            self.entry(EntryType::Link, &metadata, bytes, Some(target.as_os_str().as_bytes()))?;
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            self.entry(EntryType::Symlink, &metadata, bytes, Some(target.as_os_str().as_bytes()))?;
        } else if kind.is_file() {
            self.file(path, name)?;
        } else if !kind.is_socket() {
            self.special(&metadata, bytes)?;
        } else {
            return Ok(None);
        }
        if let Some(file) = several.filter(|_| self.links.len() < LINKS_MAX) {
            self.links.entry(file).or_insert_with(|| name.to_owned());
        }
        Ok(None)
    }

    fn special(&mut self, metadata: &Metadata, name: &[u8]) -> Result<(), Error> {
        let kind = metadata.file_type();
        let of = match () {
            () if kind.is_fifo() => EntryType::Fifo,
            () if kind.is_char_device() => EntryType::Char,
            () => EntryType::Block,
        };
        let mut header = self.header(of, metadata);
        if let Some(gnu) = header.as_gnu_mut() {
            gnu.set_device_major(u32::try_from(major(metadata.rdev())).unwrap_or(u32::MAX));
            gnu.set_device_minor(u32::try_from(minor(metadata.rdev())).unwrap_or(u32::MAX));
        }
        self.begin(header, name, None)
    }

    fn file(&mut self, path: &Path, name: &Path) -> Result<(), Error> {
        let failed = |source| failed(path, source);
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let size = metadata.size();
        let pieces = pieces(&file, &metadata);
        let mut header = self.header(EntryType::Regular, &metadata);
        let mut more = Vec::new();
        header.set_size(pieces.iter().map(|piece| piece.length).sum());
        if pieces.len() != 1 || pieces[0].length != size {
            header.set_entry_type(EntryType::GNUSparse);
            more = describe_pieces(&mut header, &pieces, size);
        }
        self.begin(header, name.as_os_str().as_bytes(), None)?;
        more.iter().try_for_each(|header| self.write(header.as_bytes()))?;
        for piece in &pieces {
            self.data(&file, path, piece)?;
        }
        let written: u64 = pieces.iter().map(|piece| piece.length).sum();
        self.pad(written)?;
        self.counts.files += 1;
        self.counts.bytes += size;
        Ok(())
    }

    /// Exactly the bytes that were announced, whatever the file has become.
    fn data(&mut self, file: &File, path: &Path, piece: &Piece) -> Result<(), Error> {
        let mut buffer = vec![0; PIECE];
        let mut done = 0;
        while done < piece.length {
            let wanted = usize::try_from(piece.length - done).unwrap_or(PIECE).min(PIECE);
            let count = match file.read_at(&mut buffer[..wanted], piece.offset + done) {
                Ok(0) => {
                    buffer[..wanted].fill(0);
                    wanted
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(path, error)),
            };
            self.write(&buffer[..count])?;
            done += count as u64;
        }
        Ok(())
    }

    fn header(&self, kind: EntryType, metadata: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        let (uid, gid) = self.options.owner.unwrap_or((metadata.uid(), metadata.gid()));
        header.set_entry_type(kind);
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        header
    }

    fn entry(
        &mut self,
        kind: EntryType,
        metadata: &Metadata,
        name: &[u8],
        target: Option<&[u8]>,
    ) -> Result<(), Error> {
        let header = self.header(kind, metadata);
        self.begin(header, name, target)
    }

    /// Writes a header, after entries for a name and a target that do not fit in.
    fn begin(
        &mut self,
        mut header: Header,
        name: &[u8],
        target: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.long(EntryType::GNULongName, name)?;
        fill(&mut header.as_old_mut().name, name);
        if let Some(target) = target {
            self.long(EntryType::GNULongLink, target)?;
            fill(&mut header.as_old_mut().linkname, target);
        }
        header.set_cksum();
        self.counts.entries += 1;
        self.write(header.as_bytes())
    }

    fn long(&mut self, kind: EntryType, name: &[u8]) -> Result<(), Error> {
        if name.len() <= NAME_MAX {
            return Ok(());
        }
        let mut header = Header::new_gnu();
        fill(&mut header.as_old_mut().name, b"././@LongLink");
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(name.len() as u64 + 1);
        header.set_cksum();
        self.write(header.as_bytes())?;
        self.write(name)?;
        self.write(&[0])?;
        self.pad(name.len() as u64 + 1)
    }

    fn pad(&mut self, length: u64) -> Result<(), Error> {
        let over = usize::try_from(length % BLOCK as u64).unwrap_or(0);
        if over > 0 { self.write(&[0; BLOCK][over..]) } else { Ok(()) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.to.write_all(bytes).map_err(Error::Stream)
    }
}

fn fill(field: &mut [u8], bytes: &[u8]) {
    let length = bytes.len().min(field.len());
    field[..length].copy_from_slice(&bytes[..length]);
}

/// Data between holes. All but the last are a multiple of a block, which tar wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    offset: u64,
    length: u64,
}

/// The data of a file; one piece if it has no holes.
fn pieces(file: &File, metadata: &Metadata) -> Vec<Piece> {
    let size = metadata.size();
    let whole = vec![Piece { offset: 0, length: size }];
    if metadata.blocks().saturating_mul(512) >= size {
        return whole;
    }
    found_pieces(file, size).unwrap_or(whole)
}

/// None: the filesystem does not tell, or there are too many.
fn found_pieces(file: &File, size: u64) -> Option<Vec<Piece>> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match lseek(file, i64::try_from(at).ok()?, Whence::SeekData) {
            Ok(data) => data.unsigned_abs(),
            Err(nix::errno::Errno::ENXIO) => break,
            Err(_) => return None,
        };
        let hole = lseek(file, i64::try_from(data).ok()?, Whence::SeekHole).ok()?.unsigned_abs();
        let block = BLOCK as u64;
        let (from, to) = (data.min(size) / block * block, hole.next_multiple_of(block).min(size));
        match pieces.last_mut() {
            Some(last) if last.offset + last.length >= from => last.length = to - last.offset,
            _ => pieces.push(Piece { offset: from, length: to.checked_sub(from)? }),
        }
        if pieces.len() > PIECES_MAX || to <= at {
            return None;
        }
        at = to;
    }
    Some(pieces)
}

/// Notes in the header where the data belongs, and in further ones what does not fit in.
fn describe_pieces(header: &mut Header, pieces: &[Piece], size: u64) -> Vec<GnuExtSparseHeader> {
    // An empty piece at the end says how long the file is.
    let end = Piece { offset: size, length: 0 };
    let all: Vec<&Piece> = pieces.iter().chain([&end]).collect();
    let Some(gnu) = header.as_gnu_mut() else { return Vec::new() };
    let (first, rest) = all.split_at(all.len().min(gnu.sparse.len()));
    for (slot, piece) in gnu.sparse.iter_mut().zip(first) {
        slot.set_offset(piece.offset);
        slot.set_length(piece.length);
    }
    gnu.set_is_extended(!rest.is_empty());
    gnu.set_real_size(size);
    let slots = GnuExtSparseHeader::new().sparse.len();
    let count = rest.len().div_ceil(slots);
    let describe = |(index, part): (usize, &[&Piece])| {
        let mut header = GnuExtSparseHeader::new();
        for (slot, piece) in header.sparse.iter_mut().zip(part) {
            slot.set_offset(piece.offset);
            slot.set_length(piece.length);
        }
        header.set_is_extended(index + 1 < count);
        header
    };
    rest.chunks(slots).enumerate().map(describe).collect()
}
