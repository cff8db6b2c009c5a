//! What the store's tests share: directories with known content, stores in temporary places.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ramet_store::{Config, NewRoot, Store, Tenant};
use serde_json::json;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A temporary place with a store in it.
pub struct Place {
    pub directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn store_path(&self) -> PathBuf {
        self.path("store")
    }

    pub async fn store(&self) -> Store {
        self.store_with_scratch("scratch").await
    }

    pub async fn store_with_scratch(&self, scratch: &str) -> Store {
        Store::open(Config::local(self.store_path(), self.path(scratch))).await.unwrap()
    }

    /// A new directory with these files.
    pub fn state(&self, name: &str, files: &Files) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        write(&path, files);
        path
    }

    pub fn fresh(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }
}

/// Files by name: length, and pages that are not holes.
pub type Files = BTreeMap<String, (u64, BTreeMap<u64, Vec<u8>>)>;

/// Writes files, sparse.
pub fn write(directory: &Path, files: &Files) {
    for (name, (length, pages)) in files {
        let file = File::create(directory.join(name)).unwrap();
        file.set_len(*length).unwrap();
        for (page, content) in pages {
            let start = page * PAGE as u64;
            let end = (start + PAGE as u64).min(*length);
            file.write_all_at(&content[..usize::try_from(end - start).unwrap()], start).unwrap();
        }
    }
}

/// Content of all files.
pub fn read(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let content = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    entries.map(content).collect()
}

/// A page that is equal for equal seeds only, and hard to compress.
pub fn noise(seed: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut page);
    page
}

/// Files with one blob of these pages.
pub fn one(name: &str, pages: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Files {
    let pages: BTreeMap<_, _> = pages.into_iter().collect();
    let length = pages.keys().next_back().map_or(0, |last| (last + 1) * PAGE as u64);
    Files::from([(name.to_owned(), (length, pages))])
}

pub fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

pub fn root(name: &str) -> NewRoot {
    NewRoot::new("commit", name, json!({ "message": name }))
}
