//! Files of this machine that save requests: chunks and manifests of a remote store, and page tables.
//!
//! Nothing here is trusted: who reads verifies, and removes what is wrong. Nothing here is needed: files may
//! vanish at any moment, and one that cannot be written is not. The sum of sizes has a bound; what was used
//! least recently goes first. Times of last use survive a restart as the files' modification times.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::path::Path;

use crate::error::{Error, Result};

/// Uses closer together than this are not written to the disk.
const TOUCH: Duration = Duration::from_secs(60);

/// The cache. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    most: u64,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    files: HashMap<String, Entry>,
    /// Names by use.
    order: BTreeMap<u64, String>,
    next: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    used: u64,
    touched: SystemTime,
}

impl Cache {
    /// Looks at what is there. `most` bounds the sum of sizes; 0 keeps nothing.
    pub fn open(directory: PathBuf, most: u64) -> Result<Self> {
        fs::create_dir_all(&directory)
            .map_err(|error| Error::file("make directory", &directory, error))?;
        let mut found = Vec::new();
        walk(&directory, &mut String::new(), &mut found)
            .map_err(|error| Error::file("read directory", &directory, error))?;
        found.sort_by_key(|(_, _, used)| *used);
        let mut index = Index::default();
        for (name, bytes, touched) in found {
            index.add(name, bytes, touched);
        }
        let shared = Arc::new(Shared { directory, most, index: Mutex::new(index) });
        shared.evict(most);
        Ok(Self { shared })
    }

    /// A part of a file, or less if it is shorter; none if it is not here.
    pub async fn get(&self, path: &Path, range: Range<u64>) -> Option<Bytes> {
        let name = path.to_string();
        let shared = Arc::clone(&self.shared);
        if !shared.lock().files.contains_key(&name) {
            return None;
        }
        tokio::task::spawn_blocking(move || shared.read(&name, range)).await.ok().flatten()
    }

    /// Keeps a file, if that works.
    pub async fn put(&self, path: &Path, bytes: Bytes) {
        let name = path.to_string();
        let shared = Arc::clone(&self.shared);
        if bytes.len() as u64 > shared.most {
            return;
        }
        let write = move || {
            if let Err(error) = shared.write(&name, &bytes) {
                tracing::debug!(%error, name, "not kept in the cache");
            }
        };
        // A panic or the runtime's end there costs only the copy.
        let _done = tokio::task::spawn_blocking(write).await;
    }

    /// Forgets everything, and says how many bytes it was.
    pub async fn clear(&self) -> u64 {
        let shared = Arc::clone(&self.shared);
        let clear = move || {
            let before = shared.lock().bytes;
            shared.evict(0);
            before
        };
        tokio::task::spawn_blocking(clear).await.unwrap_or(0)
    }

    /// Forgets a file.
    pub async fn remove(&self, path: &Path) {
        let name = path.to_string();
        let shared = Arc::clone(&self.shared);
        let _done = tokio::task::spawn_blocking(move || shared.remove(&name)).await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, name: &str, range: Range<u64>) -> Option<Bytes> {
        let read = || {
            let file = File::open(self.directory.join(name))?;
            let end = range.end.min(file.metadata()?.len());
            let length =
                usize::try_from(end.saturating_sub(range.start)).map_err(io::Error::other)?;
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, range.start)?;
            Ok::<_, io::Error>((bytes, file))
        };
        let Ok((bytes, file)) = read() else {
            self.remove(name);
            return None;
        };
        if self.lock().touch(name) {
            // Only the order after a restart depends on it.
            let _kept = file.set_modified(SystemTime::now());
        }
        Some(bytes.into())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.directory.join(name);
        let temporary = self.directory.join(format!("new-{}", crate::roots::unique()));
        fs::create_dir_all(path.parent().unwrap_or(&self.directory))?;
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            // It may not even exist.
            let _gone = fs::remove_file(&temporary);
            return written;
        }
        self.lock().add(name.to_owned(), bytes.len() as u64, SystemTime::now());
        self.evict(self.most);
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.lock().forget(name);
        // It may be gone already.
        let _gone = fs::remove_file(self.directory.join(name));
    }

    /// Removes what was used least lately, until the rest is no more than `most`.
    fn evict(&self, most: u64) {
        loop {
            let oldest = {
                let index = self.lock();
                if index.bytes <= most {
                    return;
                }
                index.order.values().next().cloned()
            };
            match oldest {
                Some(name) => self.remove(&name),
                None => return,
            }
        }
    }
}

impl Index {
    fn add(&mut self, name: String, bytes: u64, touched: SystemTime) {
        self.forget(&name);
        self.bytes += bytes;
        self.order.insert(self.next, name.clone());
        self.files.insert(name, Entry { bytes, used: self.next, touched });
        self.next += 1;
    }

    fn forget(&mut self, name: &str) {
        if let Some(entry) = self.files.remove(name) {
            self.bytes -= entry.bytes;
            self.order.remove(&entry.used);
        }
    }

    /// Notes a use. True if the disk should know of it.
    fn touch(&mut self, name: &str) -> bool {
        let Some(entry) = self.files.get_mut(name) else { return false };
        if let Some(name) = self.order.remove(&entry.used) {
            self.order.insert(self.next, name);
        }
        entry.used = self.next;
        self.next += 1;
        let stale = entry.touched.elapsed().is_ok_and(|age| age > TOUCH);
        if stale {
            entry.touched = SystemTime::now();
        }
        stale
    }
}

/// All files below a directory, with size and time. What a killed writer left is removed.
fn walk(
    directory: &std::path::Path,
    prefix: &mut String,
    found: &mut Vec<(String, u64, SystemTime)>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, metadata) = (entry.file_name(), entry.metadata()?);
        let Some(name) = name.to_str() else { continue };
        if metadata.is_dir() {
            let length = prefix.len();
            prefix.push_str(name);
            prefix.push('/');
            walk(&entry.path(), prefix, found)?;
            prefix.truncate(length);
        } else if prefix.is_empty() && name.starts_with("new-") {
            fs::remove_file(entry.path())?;
        } else {
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((format!("{prefix}{name}"), metadata.len(), used));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keeps_what_was_used_last_within_its_bound() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::open(place.path().into(), 300).unwrap();
        let path = |number: u32| Path::from(format!("chunks/a/{number}"));
        for number in 0..3 {
            cache.put(&path(number), vec![7; 100].into()).await;
        }
        assert!(cache.get(&path(0), 0..4).await.is_some());
        cache.put(&path(3), vec![8; 100].into()).await;
        assert!(cache.get(&path(1), 0..4).await.is_none(), "the oldest went");
        assert_eq!(cache.get(&path(0), 98..200).await.unwrap(), [7, 7].as_slice());

        fs::write(place.path().join("new-left-over"), "x").unwrap();
        let again = Cache::open(place.path().into(), 200).unwrap();
        assert!(again.get(&path(3), 0..1).await.is_some());
        assert!(!place.path().join("new-left-over").exists());
        fs::remove_dir_all(place.path()).unwrap();
        assert!(again.get(&path(3), 0..1).await.is_none());
        again.put(&path(9), vec![1].into()).await;
        assert!(again.get(&path(9), 0..1).await.is_some());
        assert!(again.clear().await > 0);
        assert_eq!(again.clear().await, 0);
        assert!(again.get(&path(9), 0..1).await.is_none());
    }
}
