//! The writable layer of the root: an entry for everything that was ever changed since the image.
//!
//! The root is an overlay without redirects and without metadata-only copies (see `boot::mounts`), so a
//! file is either whole in the layer or not in it at all, and at the same path. A character device 0:0
//! stands for a removed file; a directory with the `opaque` attribute hides what the image has
//! there. Where another filesystem is mounted the layer says nothing, and the entry says so.

use std::collections::VecDeque;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use ramet_proto::agent::{Layered, LayeredKind, Name, Reply, path_order};

use super::mounts::{Holder, Mounts};
use super::{LAYERS, Layers, Level, Parts, Stopped, as_path, finish, if_there, join, names, next};
use super::{is_absent, nanoseconds};
use crate::failure::{Outcome, bad_request, from_io};
use crate::files::checked_path;
use crate::frame::Connection;
use crate::sys::kernel;

/// Bytes of the image that stand for it, with its length.
const BASE_BYTES: u64 = 128 << 10;

/// Serve a layer session.
pub fn layer(connection: &Connection, paths: &[String]) {
    finish(connection, serve(connection, paths, LAYERS.get()));
}

fn serve(
    connection: &Connection,
    paths: &[String],
    layers: Option<&Layers>,
) -> Result<(), Stopped> {
    let mounts = Mounts::read().map_err(|error| from_io("/proc/self/mountinfo", &error))?;
    for path in paths {
        check(path)?;
        if mounts.holder(path.as_bytes()) == Holder::Nobody {
            return Err(bad_request(format!("{path}: holds no files to compare")).into());
        }
    }
    let base = layers.map_or(Ok(String::new()), base)?;
    connection.send(&Reply::Layer { base }).map_err(|_| Stopped::Peer)?;
    let parts = Parts::new(connection, |entries| Reply::Layered { entries });
    let mut walk = Walk { layers, mounts, elsewhere: VecDeque::new(), parts };
    for path in paths {
        walk.path(path.as_bytes())?;
    }
    walk.parts.flush()
}

/// Only paths that mean what they say.
fn check(path: &str) -> Outcome<()> {
    let plain = checked_path(path)?;
    let shortest: PathBuf = plain.components().collect();
    if shortest.as_os_str() != path || path.split('/').any(|part| part == ".." || part == ".") {
        return Err(bad_request(format!("{path}: is not in its shortest form")));
    }
    for above in plain.ancestors().skip(1) {
        if fs::symlink_metadata(above).is_ok_and(|found| found.is_symlink()) {
            let text = format!("{path}: {} is a symlink; name the place itself", above.display());
            return Err(bad_request(text));
        }
    }
    Ok(())
}

/// A name for the image, the same for the same image.
fn base(layers: &Layers) -> Outcome<String> {
    let failed = |error: std::io::Error| from_io(layers.base.display(), &error);
    let device = File::open(&layers.base).map_err(failed)?;
    let length = std::io::Seek::seek(&mut &device, std::io::SeekFrom::End(0)).map_err(failed)?;
    std::io::Seek::rewind(&mut &device).map_err(failed)?;
    let mut start = Vec::new();
    device.take(BASE_BYTES).read_to_end(&mut start).map_err(failed)?;
    Ok(format!("{length}-{}", blake3::hash(&start).to_hex()))
}

struct Walk<'a> {
    layers: Option<&'a Layers>,
    mounts: Mounts,
    /// Mount points still to be told of, in order.
    elsewhere: VecDeque<Vec<u8>>,
    parts: Parts<'a, Layered>,
}

impl Walk<'_> {
    /// One of the paths that were asked for.
    fn path(&mut self, path: &[u8]) -> Result<(), Stopped> {
        let layers = match (self.layers, self.mounts.holder(path)) {
            (Some(layers), Holder::Root) => layers,
            _ => return self.tell(path, LayeredKind::Elsewhere, None),
        };
        self.elsewhere = self.mounts.below(path).into();
        let hidden = hidden_above(layers, path)?;
        match if_there(path, fs::symlink_metadata(place(layers, path)))? {
            Some(found) => self.below(layers, path, &found, hidden)?,
            None if hidden => self.tell(path, LayeredKind::Removed, None)?,
            None => {}
        }
        while let Some(point) = self.elsewhere.pop_front() {
            self.tell(&point, LayeredKind::Elsewhere, None)?;
        }
        Ok(())
    }

    /// An entry of the layer and everything below it.
    fn below(
        &mut self,
        layers: &Layers,
        path: &[u8],
        found: &Metadata,
        hidden: bool,
    ) -> Result<(), Stopped> {
        let mut levels = Vec::new();
        levels.extend(self.visit(layers, path, found, hidden)?);
        while let Some(path) = next(&mut levels) {
            // The guest may run on, so it may be gone by now.
            if let Some(found) = if_there(&path, fs::symlink_metadata(place(layers, &path)))? {
                levels.extend(self.visit(layers, &path, &found, false)?);
            }
        }
        Ok(())
    }

    /// Tells of an entry; a directory is to be visited next.
    fn visit(
        &mut self,
        layers: &Layers,
        path: &[u8],
        found: &Metadata,
        hidden: bool,
    ) -> Result<Option<Level>, Stopped> {
        while let Some(point) = self.elsewhere.pop_front_if(|point| path_order(point, path).is_le())
        {
            self.tell(&point, LayeredKind::Elsewhere, None)?;
            if point == path {
                return Ok(None);
            }
        }
        if self.mounts.is_skipped(path) {
            return Ok(None);
        }
        let at = place(layers, path);
        let kind = match kind(found) {
            LayeredKind::Directory if hidden || kernel::is_opaque(&at) => LayeredKind::Opaque,
            kind => kind,
        };
        self.tell(path, kind, Some(found))?;
        if !found.is_dir() {
            return Ok(None);
        }
        let names = if_there(path, names(&at))?.unwrap_or_default();
        Ok(Some(Level { path: path.to_vec(), names }))
    }

    fn tell(
        &mut self,
        path: &[u8],
        kind: LayeredKind,
        found: Option<&Metadata>,
    ) -> Result<(), Stopped> {
        let found = found.filter(|_| kind != LayeredKind::Removed);
        let entry = Layered {
            path: Name::new(path),
            kind,
            inode: found.map_or(0, MetadataExt::ino),
            size: found.map_or(0, MetadataExt::size),
            mode: found.map_or(0, |found| found.mode() & 0o7777),
            uid: found.map_or(0, MetadataExt::uid),
            gid: found.map_or(0, MetadataExt::gid),
            modified_ns: found.map_or(0, |found| nanoseconds(found.mtime(), found.mtime_nsec())),
            changed_ns: found.map_or(0, |found| nanoseconds(found.ctime(), found.ctime_nsec())),
        };
        self.parts.push(entry, path.len())
    }
}

fn kind(found: &Metadata) -> LayeredKind {
    let kind = found.file_type();
    match () {
        () if kind.is_file() => LayeredKind::File,
        () if kind.is_dir() => LayeredKind::Directory,
        () if kind.is_symlink() => LayeredKind::Symlink,
        () if kind.is_char_device() && found.rdev() == 0 => LayeredKind::Removed,
        () => LayeredKind::Other,
    }
}

/// Where the layer has a path.
fn place(layers: &Layers, path: &[u8]) -> PathBuf {
    layers.upper.join(as_path(path.strip_prefix(b"/").unwrap_or(path)))
}

/// Whether a directory above hides what the image has at this path.
fn hidden_above(layers: &Layers, path: &[u8]) -> Result<bool, Stopped> {
    let mut above = b"/".to_vec();
    let mut hidden = false;
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|p| !p.is_empty()).collect();
    for part in parts.iter().take(parts.len().saturating_sub(1)) {
        above = join(&above, part);
        let at = place(layers, &above);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() => hidden |= kernel::is_opaque(&at),
            Ok(_) => return Ok(true),
            Err(error) if is_absent(&error) => return Ok(hidden),
            Err(error) => return Err(from_io(as_path(&above).display(), &error).into()),
        }
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use nix::sys::stat::{Mode, SFlag, mknod};
    use ramet_proto::agent::Channel;

    use super::*;
    use crate::frame::{Decoder, Received};

    /// A layer in a directory of this machine, listed as a session lists it.
    fn list(layers: &Layers, paths: &[&str]) -> Vec<(String, LayeredKind)> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let ours = Connection::new(ours.into(), None);
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        finish(&ours, serve(&ours, &paths, Some(layers)));
        drop(ours);
        let theirs = Connection::new(theirs.into(), None);
        let mut decoder = Decoder::default();
        let mut told = Vec::new();
        while let Ok(Received::Frame(Channel::Message, bytes)) = decoder.receive(&theirs) {
            match serde_json::from_slice(&bytes).expect("a reply") {
                Reply::Layered { entries } => {
                    told.extend(entries.into_iter().map(|one| (one.path.shown(), one.kind)));
                }
                Reply::Layer { .. } | Reply::Done {} => {}
                other => panic!("{other:?}"),
            }
        }
        told
    }

    fn layers(root: &tempfile::TempDir) -> Layers {
        let base = root.path().join("base");
        fs::write(&base, "image").expect("written");
        Layers { upper: root.path().join("upper"), base }
    }

    #[test]
    fn everything_in_the_layer_is_told_in_order() {
        let root = tempfile::tempdir().expect("a directory");
        let layers = layers(&root);
        let srv = layers.upper.join("srv");
        fs::create_dir_all(srv.join("a/deep")).expect("made");
        fs::write(srv.join("a/deep/file"), "x").expect("written");
        fs::write(srv.join("a-b"), "x").expect("written");
        symlink("nowhere", srv.join("link")).expect("made");
        mknod(&srv.join("gone"), SFlag::S_IFCHR, Mode::empty(), 0).expect("whiteouts need no root");
        let told = list(&layers, &["/srv"]);
        let expected = [
            ("/srv", LayeredKind::Directory),
            ("/srv/a", LayeredKind::Directory),
            ("/srv/a/deep", LayeredKind::Directory),
            ("/srv/a/deep/file", LayeredKind::File),
            ("/srv/a-b", LayeredKind::File),
            ("/srv/gone", LayeredKind::Removed),
            ("/srv/link", LayeredKind::Symlink),
        ];
        assert_eq!(told, expected.map(|(path, kind)| (path.to_owned(), kind)));
        assert_eq!(list(&layers, &["/srv/a-b"]), [("/srv/a-b".to_owned(), LayeredKind::File)]);
        assert_eq!(list(&layers, &["/opt/untouched"]), []);
    }

    #[test]
    fn what_a_directory_above_hides_is_told() {
        let root = tempfile::tempdir().expect("a directory");
        let layers = layers(&root);
        fs::create_dir_all(&layers.upper).expect("made");
        let gone = layers.upper.join("srv");
        mknod(&gone, SFlag::S_IFCHR, Mode::empty(), 0).expect("whiteouts need no root");
        assert_eq!(list(&layers, &["/srv/x/y"]), [("/srv/x/y".to_owned(), LayeredKind::Removed)]);
        fs::remove_file(&gone).expect("ours");
        fs::write(&gone, "now a file").expect("written");
        assert_eq!(list(&layers, &["/srv/x/y"]), [("/srv/x/y".to_owned(), LayeredKind::Removed)]);
    }

    #[test]
    fn paths_that_mean_another_place_are_refused() {
        for bad in ["srv", "/srv/", "/a/../b", "/a//b", "/a/./b", "/a\0"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        let root = tempfile::tempdir().expect("a directory");
        symlink("/tmp", root.path().join("link")).expect("made");
        let through = format!("{}/link/x", root.path().display());
        assert!(check(&through).expect_err("refused").message.contains("symlink"));
        check("/").expect("the root");
        check("/home").expect("a plain path");
    }
}
