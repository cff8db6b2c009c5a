//! Sparse files: walk their data and holes, and copy them without filling the holes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Whence, lseek};

/// Bytes that are read at once.
const PIECE: u64 = 128 << 10;

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Bytes that were written.
    Data {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// Bytes that never were.
    Hole {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
}

/// The extents of a file of this length, in order and without gaps.
pub fn extents(file: &File, length: u64) -> impl Iterator<Item = io::Result<Extent>> + '_ {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset >= length {
            return None;
        }
        let extent = extent_at(file, offset, length);
        offset = match &extent {
            Ok(Extent::Data { offset, length } | Extent::Hole { offset, length }) => {
                offset + length
            }
            Err(_) => length,
        };
        Some(extent)
    })
}

fn extent_at(file: &File, offset: u64, end: u64) -> io::Result<Extent> {
    let data = seek(file, offset, Whence::SeekData, end)?;
    if data > offset {
        return Ok(Extent::Hole { offset, length: data - offset });
    }
    let hole = seek(file, offset, Whence::SeekHole, end)?;
    Ok(Extent::Data { offset, length: hole - offset })
}

fn seek(file: &File, offset: u64, whence: Whence, end: u64) -> io::Result<u64> {
    let from = i64::try_from(offset).map_err(io::Error::other)?;
    match lseek(file, from, whence) {
        Ok(found) => Ok(u64::try_from(found).map_err(io::Error::other)?.min(end)),
        // Nothing but hole until the end.
        Err(nix::Error::ENXIO) => Ok(end),
        Err(error) => Err(error.into()),
    }
}

/// The bytes of a range, in pieces.
pub fn pieces(
    file: &File,
    offset: u64,
    length: u64,
) -> impl Iterator<Item = io::Result<Vec<u8>>> + '_ {
    let end = offset + length;
    (offset..end).step_by(usize::try_from(PIECE).unwrap_or(usize::MAX)).map(move |at| {
        let count = usize::try_from(PIECE.min(end - at)).map_err(io::Error::other)?;
        let mut piece = vec![0; count];
        file.read_exact_at(&mut piece, at)?;
        Ok(piece)
    })
}

/// Copy a file with its holes. The copy appears when it is whole.
pub fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    copy(from, to, |_| Ok(()))
}

/// Copies an ext4 to a file of this length, and lets it fill the file. What is not written takes no space.
pub fn copy_larger(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    copy(from, to, |unfinished| {
        File::options().write(true).open(unfinished)?.set_len(bytes)?;
        // It is as it was made, so nothing needs to be checked first (`-f`).
        let output = Command::new("/sbin/resize2fs").arg("-f").arg(unfinished).output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("resize2fs: {}", text.trim())))
    })
}

fn copy(from: &Path, to: &Path, finish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut unfinished = name.to_os_string();
    unfinished.push(format!(".{}.unfinished", std::process::id()));
    let unfinished = to.with_file_name(unfinished);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let result = fill(from, &unfinished)
        .and_then(|()| finish(&unfinished))
        .and_then(|()| fs::rename(&unfinished, to));
    if result.is_err() {
        // What matters is why the copy failed.
        let _ = fs::remove_file(&unfinished);
    }
    result
}

fn fill(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let length = source.metadata()?.len();
    let target = File::create(to)?;
    target.set_len(length)?;
    for extent in extents(&source, length) {
        if let Extent::Data { offset, length } = extent? {
            let mut at = offset;
            for piece in pieces(&source, offset, length) {
                let piece = piece?;
                target.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("sub/to"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[7; 5000], 8 << 20).unwrap();
        file.write_all_at(&[9; 300_000], 40 << 20).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 4 << 20);
        assert_eq!(fs::read_dir(dir.path().join("sub")).unwrap().count(), 1);
    }

    #[test]
    fn a_larger_copy_is_filled_and_takes_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        File::create(&from).unwrap().set_len(64 << 20).unwrap();
        let made = Command::new("/sbin/mkfs.ext4").arg("-q").arg(&from).status().unwrap();
        assert!(made.success());
        copy_larger(&from, &to, 1 << 30).unwrap();
        let told = Command::new("/sbin/dumpe2fs").arg("-h").arg(&to).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let field = |name: &str| -> u64 {
            let line = told.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse().unwrap()
        };
        assert_eq!(field("Block count:") * field("Block size:"), 1 << 30);
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 64 << 20);
        assert!(copy_larger(Path::new("/dev/null"), &dir.path().join("none"), 1 << 20).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn extents_cover_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len((16 << 20) + 10).unwrap();
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        let mut next = 0;
        let file = File::open(&path).unwrap();
        for extent in extents(&file, (16 << 20) + 10) {
            let (Extent::Data { offset, length } | Extent::Hole { offset, length }) =
                extent.unwrap();
            assert_eq!(offset, next);
            assert!(length > 0);
            next = offset + length;
        }
        assert_eq!(next, (16 << 20) + 10);
        assert_eq!(extents(&file, 0).count(), 0);
    }

    #[test]
    fn a_failed_copy_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(copy_sparse(&dir.path().join("nothing"), &dir.path().join("to")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
