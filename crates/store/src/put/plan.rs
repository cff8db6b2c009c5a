//! Which pages of a state are new, and which chunk each goes to.
//!
//! Regions come in order, so that the same files always become the same chunks. A region of which at least half
//! is new becomes a chunk of its own: 2 MiB runs stay together, and unrelated states that hold the same region
//! share it. New pages of other regions are gathered, in order, into chunks of up to 2 MiB.

use std::collections::HashMap;

use super::table::{Place, Table, key};
use crate::chunk::{CHUNK_PAGES, PAGE};
use crate::id::Hash;
use crate::manifest::Extent;

/// A page of a region that is not zero.
pub(crate) struct Page {
    /// Its number in the region.
    pub number: u16,
    pub hash: Hash,
}

/// Pages that become a chunk.
pub(crate) struct Job {
    /// The chunk's number in the manifest.
    pub chunk: u32,
    pub hashes: Vec<Hash>,
    pub content: Content,
}

/// Where a job's pages are.
pub(crate) enum Content {
    /// These pages of the region at hand.
    Region(Vec<u16>),
    /// Copied together.
    Gathered(Vec<u8>),
}

/// What a chunk of the new state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This chunk of the parent.
    Parent(u32),
    /// A new one.
    New,
}

/// What the parent offers.
pub(crate) struct Parent {
    pub table: Table,
    /// Chunks that may be referred to.
    pub usable: Vec<bool>,
}

/// The state as far as it is known.
pub(crate) struct Plan {
    parent: Option<Parent>,
    /// Chunks of the parent that are in use: number there, number here.
    taken: HashMap<u32, u32>,
    gathered: Gathered,
    /// All pages of the new state.
    pub table: Table,
    /// Its chunks.
    pub origins: Vec<Origin>,
    /// Extents of each blob.
    pub extents: Vec<Vec<Extent>>,
    /// Pages that had to be stored.
    pub new_pages: u64,
    /// Pages that were there.
    pub known_pages: u64,
}

#[derive(Default)]
struct Gathered {
    chunk: Option<u32>,
    hashes: Vec<Hash>,
    content: Vec<u8>,
}

impl Plan {
    pub fn new(parent: Option<Parent>, blobs: usize) -> Self {
        let mut table = Table::default();
        table.reserve(parent.as_ref().map_or(0, |parent| parent.table.len()));
        Self {
            parent,
            taken: HashMap::new(),
            gathered: Gathered::default(),
            table,
            origins: Vec::new(),
            extents: vec![Vec::new(); blobs],
            new_pages: 0,
            known_pages: 0,
        }
    }

    /// Decides about a region; `first` is the number of its first page in the blob.
    pub fn region(&mut self, blob: usize, first: u64, buffer: &[u8], pages: &[Page]) -> Vec<Job> {
        let fresh: Vec<usize> =
            (0..pages.len()).filter(|at| !self.known(&pages[*at].hash)).collect();
        let mut jobs = Vec::new();
        if fresh.len() * 2 >= CHUNK_PAGES {
            jobs.extend(self.own_chunk(pages, &fresh));
        } else {
            for at in fresh {
                jobs.extend(self.gather(&pages[at], buffer));
            }
        }
        for page in pages {
            if let Some(place) = self.table.get(&key(&page.hash)) {
                self.extend(blob, first + u64::from(page.number), place);
            }
        }
        jobs
    }

    /// Whether the page needs no storing. One that only the parent has becomes one of this state.
    fn known(&mut self, hash: &Hash) -> bool {
        let key = key(hash);
        let found = self.table.get(&key).is_some() || self.adopt(key).is_some();
        self.known_pages += u64::from(found);
        found
    }

    fn adopt(&mut self, key: [u8; 16]) -> Option<()> {
        let parent = self.parent.as_ref()?;
        let place = parent.table.get(&key)?;
        if !*parent.usable.get(place.chunk as usize)? {
            return None;
        }
        let next = u32::try_from(self.origins.len()).ok()?;
        let chunk = *self.taken.entry(place.chunk).or_insert(next);
        if chunk == next {
            self.origins.push(Origin::Parent(place.chunk));
        }
        self.table.insert(key, Place { chunk, page: place.page });
        Some(())
    }

    fn new_chunk(&mut self) -> u32 {
        self.origins.push(Origin::New);
        u32::try_from(self.origins.len() - 1).unwrap_or(u32::MAX)
    }

    fn own_chunk(&mut self, pages: &[Page], fresh: &[usize]) -> Option<Job> {
        let chunk = self.new_chunk();
        let (mut hashes, mut numbers) = (Vec::new(), Vec::new());
        for at in fresh {
            let page = &pages[*at];
            if self.place_new(chunk, hashes.len(), &page.hash) {
                hashes.push(page.hash);
                numbers.push(page.number);
            }
        }
        Some(Job { chunk, hashes, content: Content::Region(numbers) })
    }

    /// Gives a new page its place. False if the region brought the same page just before.
    fn place_new(&mut self, chunk: u32, page: usize, hash: &Hash) -> bool {
        let key = key(hash);
        if self.table.get(&key).is_some() {
            self.known_pages += 1;
            return false;
        }
        self.new_pages += 1;
        self.table.insert(key, Place { chunk, page: u16::try_from(page).unwrap_or(u16::MAX) });
        true
    }

    fn gather(&mut self, page: &Page, buffer: &[u8]) -> Option<Job> {
        if self.table.get(&key(&page.hash)).is_some() {
            self.known_pages += 1;
            return None;
        }
        let chunk = match self.gathered.chunk {
            Some(chunk) => chunk,
            None => self.new_chunk(),
        };
        self.gathered.chunk = Some(chunk);
        if self.place_new(chunk, self.gathered.hashes.len(), &page.hash) {
            let start = usize::from(page.number) * PAGE;
            self.gathered.hashes.push(page.hash);
            self.gathered.content.extend_from_slice(&buffer[start..start + PAGE]);
        }
        (self.gathered.hashes.len() == CHUNK_PAGES).then(|| self.rest()).flatten()
    }

    /// What was gathered and is not yet a chunk.
    pub fn rest(&mut self) -> Option<Job> {
        let Gathered { chunk, hashes, content } = std::mem::take(&mut self.gathered);
        Some(Job { chunk: chunk?, hashes, content: Content::Gathered(content) })
    }

    fn extend(&mut self, blob: usize, page: u64, place: Place) {
        let extents = &mut self.extents[blob];
        if let Some(last) = extents.last_mut() {
            let follows = last.first + u64::from(last.count) == page
                && last.chunk == place.chunk
                && last.page + last.count == place.page;
            if follows {
                last.count += 1;
                return;
            }
        }
        extents.push(Extent { first: page, count: 1, chunk: place.chunk, page: place.page });
    }
}
