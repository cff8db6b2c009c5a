//! The files of images and templates, below the node's data directory.
//!
//! | path | content |
//! |---|---|
//! | `images/DIGEST.erofs` | an image, named by the BLAKE3 of its bytes; never written again |
//! | `images/DIGEST.ext4` | an empty disk of another host, named by [`disk_digest`]; never written again |
//! | `templates/ID/` | a machine in files |
//!
//! Everything appears by rename, and has another name (with a dot before it) until it is whole. The
//! database says what belongs here; what it does not name is removed at the start. All calls block.
//!
//! The base image is one of the guest's files and may be replaced there. A template that is built on it
//! must outlive that, so the image is then kept here as well: as another link, or as a copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::statvfs::statvfs;

use super::error::Error;
use crate::random;

/// Largest image.
pub const IMAGE_MAX: u64 = 64 << 30;
/// Space that is left on the disk.
const RESERVE: u64 = 256 << 20;
/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// Where erofs has its superblock, and what that begins with.
const SUPERBLOCK: (u64, u32) = (1024, 0xe0f5_e1e2);

/// The files.
#[derive(Debug, Default)]
pub struct Library {
    data: PathBuf,
    guest: PathBuf,
    /// Digest of the base image; empty if there is none.
    base: OnceLock<String>,
    /// Digests of empty disks of this host.
    disks: Mutex<BTreeMap<PathBuf, String>>,
}

impl Library {
    /// In this data directory, with the guest's files in another.
    pub fn new(data: PathBuf, guest: PathBuf) -> Self {
        Self { data, guest, ..Self::default() }
    }

    fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    fn templates(&self) -> PathBuf {
        self.data.join("templates")
    }

    /// Where a template is.
    pub fn template(&self, id: &str) -> PathBuf {
        self.templates().join(id)
    }

    fn image(&self, digest: &str) -> PathBuf {
        self.images().join(format!("{digest}.erofs"))
    }

    /// The base image among the guest's files.
    pub fn base_file(&self) -> PathBuf {
        self.guest.join("base.erofs")
    }

    /// Removes what is not named: leftovers of what broke off.
    pub fn tidy(&self, templates: &BTreeSet<String>, images: &BTreeSet<String>) -> io::Result<()> {
        for (name, path) in entries(&self.templates())? {
            if !templates.contains(&name) {
                fs::remove_dir_all(path)?;
            }
        }
        for (name, path) in entries(&self.images())? {
            let digest = name.strip_suffix(".erofs").or_else(|| name.strip_suffix(".ext4"));
            if !digest.is_some_and(|digest| images.contains(digest)) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Digest of the base image: as the manifest beside it says, or else read.
    pub fn base(&self) -> &str {
        self.base.get_or_init(|| match self.manifest_digest() {
            Some(digest) => digest,
            None => digest_of(&self.base_file()).unwrap_or_default(),
        })
    }

    fn manifest_digest(&self) -> Option<String> {
        let manifest = fs::read(self.guest.join("manifest.json")).ok()?;
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
        let base = &manifest["artefacts"]["base.erofs"];
        let size = fs::metadata(self.base_file()).ok()?.len();
        let digest = base["blake3"].as_str().filter(|digest| is_digest(digest))?;
        (base["size"].as_u64() == Some(size)).then(|| digest.to_owned())
    }

    /// Length of the base image, and when it was made.
    pub fn base_stat(&self) -> Option<(u64, u64)> {
        let file = fs::metadata(self.base_file()).ok()?;
        let seconds = u64::try_from(file.mtime()).unwrap_or(0);
        Some((file.len(), seconds * 1000))
    }

    /// The file of an image; nothing if it is the base image among the guest's files.
    pub fn root(&self, digest: &str) -> Result<Option<PathBuf>, Error> {
        let kept = self.image(digest);
        match kept.is_file() {
            true => Ok(Some(kept)),
            false if digest == self.base() => Ok(None),
            false => Err(Error::WrongState(format!(
                "the image {} is no longer there",
                digest.get(..12).unwrap_or(digest)
            ))),
        }
    }

    fn disk_file(&self, digest: &str) -> PathBuf {
        self.images().join(format!("{digest}.ext4"))
    }

    /// The file of an empty disk of another host, if it is here.
    pub fn disk(&self, digest: &str) -> Option<PathBuf> {
        Some(self.disk_file(digest)).filter(|path| path.is_file())
    }

    /// Digest of an empty disk of this host, whose files never change.
    pub fn digest_of_disk(&self, path: &Path) -> io::Result<String> {
        let known = || self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(digest) = known().get(path) {
            return Ok(digest.clone());
        }
        let digest = disk_digest(&File::open(path)?)?;
        known().insert(path.to_owned(), digest.clone());
        Ok(digest)
    }

    /// Takes over a file that came from elsewhere, if it is the image of this digest.
    pub fn adopt_image(&self, path: &Path, digest: &str) -> Result<(), Error> {
        if digest_of(path)? != digest {
            return Err(not_the_one("image", digest));
        }
        check_erofs(path)?;
        self.adopt(path, &self.image(digest))
    }

    /// Takes over a file that came from elsewhere, if it is the empty disk of this digest.
    pub fn adopt_disk(&self, path: &Path, digest: &str) -> Result<(), Error> {
        if disk_digest(&File::open(path)?)? != digest {
            return Err(not_the_one("disk", digest));
        }
        self.adopt(path, &self.disk_file(digest))
    }

    fn adopt(&self, path: &Path, target: &Path) -> Result<(), Error> {
        fs::create_dir_all(self.images())?;
        File::open(path)?.sync_all()?;
        fs::rename(path, target)?;
        Ok(File::open(self.images())?.sync_all()?)
    }

    /// Whether an image is here, not counting the guest's files.
    pub fn has(&self, digest: &str) -> bool {
        self.image(digest).is_file()
    }

    /// Sees to it that an image stays, whatever becomes of the guest's files.
    pub fn keep(&self, digest: &str) -> Result<(), Error> {
        if self.root(digest)?.is_some() {
            return Ok(());
        }
        // A symlink would be linked itself, and not the file that it leads to.
        let (source, unfinished) = (self.base_file().canonicalize()?, self.unfinished()?);
        let kept = match fs::hard_link(&source, &unfinished) {
            Ok(()) => Ok(()),
            Err(_) => self.copy(&source, &unfinished, digest),
        };
        let kept = kept.and_then(|()| Ok(fs::rename(&unfinished, self.image(digest))?));
        if kept.is_err() {
            // Why it failed matters more; the next start removes it.
            let _ = fs::remove_file(&unfinished);
        }
        kept
    }

    fn copy(&self, source: &Path, target: &Path, digest: &str) -> Result<(), Error> {
        let mut upload = Upload::at(target.to_owned())?;
        let mut source = File::open(source)?;
        self.room(source.metadata()?.len())?;
        let mut buffer = vec![0; PIECE];
        loop {
            match source.read(&mut buffer)? {
                0 => break,
                count => upload.write(&buffer[..count])?,
            }
        }
        match upload.finish()? == digest {
            true => Ok(()),
            false => Err(Error::WrongState("the base image is not the one it was".to_owned())),
        }
    }

    fn unfinished(&self) -> Result<PathBuf, Error> {
        fs::create_dir_all(self.images())?;
        Ok(self.images().join(format!(".{}", random::hex(8)?)))
    }

    /// Whether this many bytes can be written.
    pub fn room(&self, bytes: u64) -> Result<(), Error> {
        let disk = statvfs(&self.data).map_err(io::Error::from)?;
        let free = disk.blocks_available().saturating_mul(disk.fragment_size());
        if free < bytes.saturating_add(RESERVE) {
            return Err(Error::NoSpace(format!(
                "the node's disk has {} MiB free and this takes {} MiB, with {} MiB in reserve; remove templates or images",
                free >> 20,
                bytes.div_ceil(1 << 20),
                RESERVE >> 20
            )));
        }
        Ok(())
    }

    /// Begins to write an image.
    pub fn upload(&self) -> Result<Upload, Error> {
        Upload::at(self.unfinished()?)
    }

    /// The image is whole: it gets its name.
    pub fn publish(&self, upload: Upload, digest: &str) -> Result<u64, Error> {
        let (path, length) = (upload.path.clone(), upload.length);
        let found = upload.finish();
        let placed = found.and_then(|found| {
            if found != digest {
                return Err(Error::Bad(format!("digest: the bytes have {found}, not {digest}")));
            }
            check_erofs(&path)?;
            fs::rename(&path, self.image(digest))?;
            Ok(File::open(self.images())?.sync_all()?)
        });
        if placed.is_err() {
            // Why it failed matters more; the next start removes it.
            let _ = fs::remove_file(&path);
        }
        placed.map(|()| length)
    }

    /// Removes an image or a disk. One that is gone is no error.
    pub fn remove_image(&self, digest: &str) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.image(digest)))?;
        absent_is_fine(fs::remove_file(self.disk_file(digest)))
    }

    /// Removes a template. One that is gone is no error.
    pub fn remove_template(&self, id: &str) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(self.template(id)))
    }

    /// Makes the place for a template, and says where.
    pub fn place_template(&self, id: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(self.templates())?;
        Ok(self.template(id))
    }

    /// Bytes that a template takes.
    pub fn template_size(&self, id: &str) -> u64 {
        let files = fs::read_dir(self.template(id)).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512)).sum()
    }
}

/// Names and paths in a directory; none if it is not there.
fn entries(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let read = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let named = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    };
    read.map(named).collect()
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// An image on its way here. Dropped before its end, it leaves nothing behind.
#[derive(Debug)]
pub struct Upload {
    path: PathBuf,
    file: Option<File>,
    hasher: blake3::Hasher,
    /// Bytes so far.
    pub length: u64,
}

impl Upload {
    fn at(path: PathBuf) -> Result<Self, Error> {
        let file = Some(File::create_new(&path)?);
        Ok(Self { path, file, hasher: blake3::Hasher::new(), length: 0 })
    }

    /// The next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.length += bytes.len() as u64;
        if self.length > IMAGE_MAX {
            return Err(Error::TooLarge(format!("an image has at most {IMAGE_MAX} bytes")));
        }
        self.hasher.update(bytes);
        match &mut self.file {
            Some(file) => Ok(file.write_all(bytes)?),
            None => Err(Error::Internal("an upload that is over".to_owned())),
        }
    }

    /// All is there, and on the disk. Its digest.
    fn finish(mut self) -> Result<String, Error> {
        if let Some(file) = &self.file {
            file.sync_all()?;
        }
        // From here on the file belongs to whoever called.
        self.file = None;
        Ok(self.hasher.finalize().to_hex().to_string())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The next start removes it otherwise.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a text is a digest in hex.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => drop(hasher.update(&buffer[..count])),
        }
    }
}

/// Digest of a disk that is mostly holes: BLAKE3 of its length, and of place and bytes of each 4096 that are not all zero.
/// It does not depend on where the file has holes.
pub fn disk_digest(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new_derive_key("ramet 2026 empty disk v1");
    hasher.update(&length.to_le_bytes());
    let (mut at, mut page) = (0, vec![0; 4096]);
    while at < length {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start / 4096 * 4096,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start.max(at)))?;
        at = start;
        while at < end.min(length) {
            page.fill(0);
            let wanted = usize::try_from((length - at).min(4096)).unwrap_or(4096);
            file.read_exact_at(&mut page[..wanted], at)?;
            if page.iter().any(|byte| *byte != 0) {
                hasher.update(&at.to_le_bytes()).update(&page);
            }
            at += 4096;
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn not_the_one(what: &str, digest: &str) -> Error {
    Error::Bad(format!("what came as the {what} {digest} is something else"))
}

/// Whether a file is an erofs, and all of it.
fn check_erofs(path: &Path) -> Result<(), Error> {
    let refuse = |what: &str| {
        Err(Error::Bad(format!("these bytes are no image: {what}; `mkfs.erofs` makes one")))
    };
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut superblock = [0; 40];
    let (offset, magic) = SUPERBLOCK;
    if length < 4096 || length % 4096 != 0 {
        return refuse("their number is no multiple of 4096");
    }
    file.read_exact_at(&mut superblock, offset)?;
    let word = |at: usize| {
        let bytes = superblock.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    };
    if word(0) != magic {
        return refuse("they hold no erofs file system");
    }
    let block = 1_u64.checked_shl(superblock[12].into()).unwrap_or(u64::MAX);
    if block > 4096 || u64::from(word(36)).saturating_mul(block) > length {
        return refuse(
            "the file system in them is cut short, or has blocks of more than 4096 bytes",
        );
    }
    Ok(())
}

/// The least bytes that pass for an image.
#[cfg(test)]
pub fn tiny_image(mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; 8192];
    bytes[1024..1028].copy_from_slice(&SUPERBLOCK.1.to_le_bytes());
    bytes[1036] = 12;
    bytes[1060..1064].copy_from_slice(&2_u32.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> (tempfile::TempDir, Library) {
        let root = tempfile::tempdir().unwrap();
        let (data, guest) = (root.path().join("data"), root.path().join("guest"));
        fs::create_dir(&guest).unwrap();
        fs::create_dir(&data).unwrap();
        (root, Library::new(data, guest))
    }

    fn put(library: &Library, bytes: &[u8], digest: &str) -> Result<u64, Error> {
        let mut upload = library.upload()?;
        upload.write(bytes)?;
        library.publish(upload, digest)
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_written() {
        let (_root, library) = library();
        assert!(library.room(0).is_ok());
        assert!(matches!(library.room(u64::MAX), Err(Error::NoSpace(_))));
    }

    #[test]
    fn an_image_appears_whole_or_not_at_all() {
        let (_root, library) = library();
        let image = tiny_image(1);
        let digest = blake3::hash(&image).to_hex().to_string();
        assert!(put(&library, &image[..4096], &digest).is_err());
        assert!(put(&library, &vec![0; 8192], &blake3::hash(&[0; 8192]).to_hex()).is_err());
        let cut = &image[..4096];
        assert!(put(&library, cut, &blake3::hash(cut).to_hex()).is_err());
        assert!(put(&library, b"x", &blake3::hash(b"x").to_hex()).is_err());
        drop(library.upload().unwrap());
        assert_eq!(fs::read_dir(library.images()).unwrap().count(), 0);
        assert_eq!(put(&library, &image, &digest).unwrap(), 8192);
        assert!(library.has(&digest) && library.root(&digest).unwrap().is_some());
        library.remove_image(&digest).unwrap();
        library.remove_image(&digest).unwrap();
        assert!(library.root(&digest).is_err());
    }

    #[test]
    fn the_base_image_is_kept_whatever_becomes_of_the_file() {
        let (_root, library) = library();
        let image = tiny_image(2);
        fs::write(library.base_file(), &image).unwrap();
        let digest = blake3::hash(&image).to_hex().to_string();
        assert_eq!(library.base(), digest);
        assert_eq!(library.root(&digest).unwrap(), None);
        library.keep(&digest).unwrap();
        fs::remove_file(library.base_file()).unwrap();
        let kept = library.root(&digest).unwrap().unwrap();
        assert_eq!(fs::read(kept).unwrap(), image);
    }

    #[test]
    fn a_copy_of_another_base_image_is_refused() {
        let (root, library) = library();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        fs::write(&from, tiny_image(3)).unwrap();
        assert!(library.copy(&from, &to, &"0".repeat(64)).is_err());
    }

    #[test]
    fn the_manifest_is_believed_if_the_size_fits() {
        let (_root, library) = library();
        fs::write(library.base_file(), tiny_image(1)).unwrap();
        let digest = "a".repeat(64);
        let manifest = |size: u64| {
            let text = serde_json::json!({ "artefacts": { "base.erofs": { "size": size, "blake3": digest } } });
            fs::write(library.guest.join("manifest.json"), text.to_string()).unwrap();
            library.manifest_digest()
        };
        assert_eq!(manifest(8192), Some(digest.clone()));
        assert_eq!(manifest(8193), None);
    }

    #[test]
    fn what_nobody_names_is_removed() {
        let (_root, library) = library();
        library.tidy(&BTreeSet::new(), &BTreeSet::new()).unwrap();
        fs::create_dir(library.templates()).unwrap();
        fs::create_dir(library.images()).unwrap();
        for name in ["tmpl-1", "tmpl-2", ".tmpl-3.77"] {
            fs::create_dir(library.template(name)).unwrap();
        }
        for name in ["one.erofs", "two.erofs", ".half"] {
            fs::write(library.images().join(name), "").unwrap();
        }
        let keep = |name: &str| BTreeSet::from([name.to_owned()]);
        library.tidy(&keep("tmpl-1"), &keep("one")).unwrap();
        assert_eq!(fs::read_dir(library.templates()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(library.images()).unwrap().count(), 1);
        assert!(library.has("one") && library.template("tmpl-1").is_dir());
    }

    #[test]
    fn a_disk_that_is_too_small_is_told() {
        let (_root, library) = library();
        library.room(1).unwrap();
        assert!(matches!(library.room(u64::MAX / 2), Err(Error::NoSpace(_))));
    }
}
