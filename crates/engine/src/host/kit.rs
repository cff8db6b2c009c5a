//! The kit: an image of programs and files that the software host finds at `/kit`, read-only.
//!
//! An ext4 without journal, made by `mkfs.ext4 -d` from a directory of hard links: that keeps the
//! holes of disk images and copies nothing twice. The image is only ever read, so it has no room to
//! spare.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::disk;

/// Room for the filesystem's own structures, beside one sixteenth of the content.
const OVERHEAD: u64 = 8 << 20;

/// Why a kit was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that is not below the kit.
    #[error("{} is not a relative path inside the kit", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A file cannot be taken.
    #[error("cannot put {} into the kit", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The image cannot be written.
    #[error("cannot make the kit {}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program that makes it failed.
    #[error("mkfs.ext4 cannot make the kit: {output}")]
    Format {
        /// What it said.
        output: String,
    },
}

/// A file of the kit.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its path below `/kit`.
    pub path: PathBuf,
    /// The file it is.
    pub source: PathBuf,
}

/// Make an image of these files. It appears when it is whole.
pub fn build(items: &[Item], out: &Path) -> Result<(), Error> {
    let image = |source| Error::Image { path: out.to_path_buf(), source };
    let stage = out.with_extension(format!("{}.stage", std::process::id()));
    let unfinished = out.with_extension(format!("{}.unfinished", std::process::id()));
    fs::create_dir_all(&stage).map_err(image)?;
    let result = fill(items, &stage)
        .and_then(|content| format(&stage, content, &unfinished))
        .and_then(|()| fs::rename(&unfinished, out).map_err(image));
    // What is left over is in nobody's way, and the result matters more.
    let _ = fs::remove_dir_all(&stage);
    let _ = fs::remove_file(&unfinished);
    result
}

/// Put the files into a directory and give the bytes that they occupy.
fn fill(items: &[Item], stage: &Path) -> Result<u64, Error> {
    let mut content = 0;
    for item in items {
        if !item.path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::Path { path: item.path.clone() });
        }
        content += place(&item.source, &stage.join(&item.path))
            .map_err(|source| Error::File { path: item.source.clone(), source })?;
    }
    Ok(content)
}

fn place(source: &Path, target: &Path) -> io::Result<u64> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    let source = fs::canonicalize(source)?;
    let metadata = fs::metadata(&source)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if fs::hard_link(&source, target).is_err() {
        disk::copy_sparse(&source, target)?;
        fs::set_permissions(target, metadata.permissions())?;
    }
    // A filesystem may hold a file in fewer blocks than it will take here.
    Ok((metadata.blocks() * 512).max(metadata.len().min(1 << 20)).next_multiple_of(4096))
}

fn format(stage: &Path, content: u64, image: &Path) -> Result<(), Error> {
    let failed = |source| Error::Image { path: image.to_path_buf(), source };
    let size = (content + content / 16 + OVERHEAD).next_multiple_of(1 << 20);
    fs::File::create(image).and_then(|file| file.set_len(size)).map_err(failed)?;
    let mut command = Command::new("/sbin/mkfs.ext4");
    command.args(["-q", "-F", "-b", "4096", "-m", "0", "-L", "ramet-kit", "-O"]);
    command.args(["^has_journal,^resize_inode", "-i", "65536"]);
    command.args([
        "-E",
        "lazy_itable_init=1,assume_storage_prezeroed=1,nodiscard,root_owner=0:0",
        "-d",
    ]);
    let output = command.arg(stage).arg(image).output().map_err(failed)?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Format { output });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &str, source: &Path) -> Item {
        Item { path: PathBuf::from(path), source: source.to_path_buf() }
    }

    #[test]
    fn an_image_has_the_files_and_keeps_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (program, sparse, out) =
            (dir.path().join("p"), dir.path().join("s"), dir.path().join("kit.img"));
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::File::create(&sparse).unwrap().set_len(4 << 30).unwrap();
        build(&[item("bin/program", &program), item("disks/data", &sparse)], &out).unwrap();
        assert!(fs::metadata(&out).unwrap().len() < 64 << 20);
        let check = Command::new("/sbin/e2fsck").arg("-fn").arg(&out).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        let list =
            Command::new("/sbin/debugfs").args(["-R", "ls -l /disks"]).arg(&out).output().unwrap();
        assert!(String::from_utf8_lossy(&list.stdout).contains("4294967296"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_cannot_be_in_a_kit_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("kit.img");
        let error = build(&[item("../x", dir.path())], &out).unwrap_err();
        assert!(matches!(error, Error::Path { .. }));
        let error = build(&[item("x", &dir.path().join("nothing"))], &out).unwrap_err();
        assert!(error.to_string().contains("nothing"));
        let error = build(&[item("x", dir.path())], &out).unwrap_err();
        assert!(matches!(error, Error::File { .. }));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
