//! Page tables: where each page of a state lies, by hash.
//!
//! A table is only ever local, beside the cache; it is rebuilt from the chunks if it is lost. It says where a
//! page is in its state's chunks; whether those are still there is the manifest's matter.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use object_store::path::Path;

use crate::chunk::CHUNK_PAGES;
use crate::id::{Hash, StateId, Tenant};
use crate::names;

const MAGIC: &[u8; 8] = b"RMTPAGE1";
const ENTRY: usize = 22;

/// The first half of a page's hash. Enough to tell the pages of one tenant apart.
pub(crate) type Key = [u8; 16];

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub chunk: u32,
    pub page: u16,
}

/// Places of pages by key.
#[derive(Debug, Default, Clone)]
pub(crate) struct Table {
    places: HashMap<Key, Place, BuildHasherDefault<KeyHasher>>,
}

/// Keys are parts of hashes already.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// Where a state's table is in the cache.
pub(crate) fn path(tenant: &Tenant, state: StateId) -> Path {
    names::below(&["tables", tenant.as_str(), &state.to_string()])
}

/// The key of a page's hash.
pub(crate) fn key(hash: &Hash) -> Key {
    let [first, ..] = hash.as_chunks::<16>().0 else { return [0; 16] };
    *first
}

impl Table {
    pub fn get(&self, key: &Key) -> Option<Place> {
        self.places.get(key).copied()
    }

    pub fn insert(&mut self, key: Key, place: Place) {
        self.places.insert(key, place);
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn reserve(&mut self, pages: usize) {
        self.places.reserve(pages);
    }

    /// As a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + self.places.len() * ENTRY + 32);
        bytes.extend_from_slice(MAGIC);
        for (key, place) in &self.places {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&place.chunk.to_le_bytes());
            bytes.extend_from_slice(&place.page.to_le_bytes());
        }
        let seal = *blake3::hash(&bytes).as_bytes();
        bytes.extend_from_slice(&seal);
        bytes
    }

    /// From a file; none if it is not a whole one.
    pub fn decode(bytes: &[u8], chunks: usize) -> Option<Self> {
        let (body, seal) = bytes.split_last_chunk::<32>()?;
        let entries = body.strip_prefix(MAGIC)?;
        if blake3::hash(body) != *seal || entries.len() % ENTRY != 0 {
            return None;
        }
        let mut table = Self::default();
        table.reserve(entries.len() / ENTRY);
        for entry in entries.chunks_exact(ENTRY) {
            let (key, rest) = entry.split_first_chunk::<16>()?;
            let (chunk, page) = rest.split_first_chunk::<4>()?;
            let chunk = u32::from_le_bytes(*chunk);
            let page = u16::from_le_bytes(*page.first_chunk()?);
            if chunk as usize >= chunks || usize::from(page) >= CHUNK_PAGES {
                return None;
            }
            table.insert(*key, Place { chunk, page });
        }
        Some(table)
    }
}
