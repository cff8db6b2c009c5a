//! Manifests: what a state consists of, flat, in one object.
//!
//! ```text
//! "RMTM"  version 1  │ length of the record u64 │ zstd of the record (postcard)
//! ```
//!
//! A state's id is the BLAKE3 hash of the whole object, so it is verified before anything is unpacked. A
//! manifest names every chunk its state needs and needs no other manifest. What it says is data of
//! somebody else: [`Manifest::decode`] gives out only records whose every number is in bounds.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::chunk::{CHUNK_PAGES, ChunkEntry, PAGE};
use crate::id::{Hash, StateId, check_name};

const MAGIC: &[u8; 5] = b"RMTM\x01";
const HEADER: usize = 13;
/// Bytes of a manifest's object, at most.
pub const OBJECT_MAX: usize = 128 << 20;
/// Bytes of a record, at most. About 400 GiB of content fit.
const RECORD_MAX: u64 = 512 << 20;
/// Blobs of a state, at most.
pub const BLOBS_MAX: usize = 1024;
/// Pages of a blob, at most: 1 PiB.
const PAGES_MAX: u64 = 1 << 38;

/// What a state consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Tells two objects of equal content apart: see [`crate::gc`].
    pub salt: u32,
    /// The state it was made from, which may be gone. Only told, never followed.
    pub parent: Option<StateId>,
    /// The files, by name.
    pub blobs: Vec<Blob>,
    /// The chunks that extents point into.
    pub chunks: Vec<ChunkEntry>,
}

/// A file of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
    /// Where its pages are, by page; pages in no extent are zero.
    pub extents: Vec<Extent>,
    /// Pages that were used in the last run, by page: to be read first.
    pub hot: Vec<Run>,
}

/// A run of pages of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub count: u64,
}

/// A run of pages of a blob that lie in one chunk, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First page of the blob.
    pub first: u64,
    /// Number of pages.
    pub count: u16,
    /// Number of the chunk in [`Manifest::chunks`].
    pub chunk: u32,
    /// First page in the chunk.
    pub page: u16,
}

/// Sizes of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Bytes of the files, holes included.
    pub logical_bytes: u64,
    /// Bytes of pages that are not zero.
    pub content_bytes: u64,
    /// Bytes of the chunks' objects it refers to.
    pub stored_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl Blob {
    /// Number of pages, the last one perhaps not full.
    pub fn pages(&self) -> u64 {
        self.length.div_ceil(PAGE as u64)
    }

    /// The extent that holds a page; none for a page of zeros.
    pub fn extent_of(&self, page: u64) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.first <= page);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        (page < extent.first + u64::from(extent.count)).then_some(extent)
    }
}

impl Manifest {
    /// The blob of this name.
    pub fn blob(&self, name: &str) -> Option<&Blob> {
        self.blobs.iter().find(|blob| blob.name == name)
    }

    /// Its sizes.
    pub fn totals(&self) -> Totals {
        let pages: u64 = self
            .blobs
            .iter()
            .flat_map(|blob| &blob.extents)
            .map(|extent| u64::from(extent.count))
            .sum();
        Totals {
            logical_bytes: self.blobs.iter().map(|blob| blob.length).sum(),
            content_bytes: pages * PAGE as u64,
            stored_bytes: self.chunks.iter().map(ChunkEntry::object_bytes).sum(),
            chunks: self.chunks.len() as u64,
        }
    }

    /// Hash of what the state holds. It stays the same wherever the state is stored, and in whatever way.
    pub fn content_hash(&self) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key("ramet store 2026 content v1");
        let number = |hasher: &mut blake3::Hasher, number: u64| {
            hasher.update(&number.to_le_bytes());
        };
        number(&mut hasher, self.chunks.len() as u64);
        for chunk in &self.chunks {
            hasher.update(&chunk.id.0);
        }
        number(&mut hasher, self.blobs.len() as u64);
        for blob in &self.blobs {
            number(&mut hasher, blob.name.len() as u64);
            hasher.update(blob.name.as_bytes());
            number(&mut hasher, blob.length);
            number(&mut hasher, blob.extents.len() as u64);
            for extent in &blob.extents {
                let Extent { first, count, chunk, page } = *extent;
                number(&mut hasher, first);
                number(&mut hasher, u64::from(chunk));
                number(&mut hasher, u64::from(count) << 32 | u64::from(page));
            }
            number(&mut hasher, blob.hot.len() as u64);
            for run in &blob.hot {
                number(&mut hasher, run.first);
                number(&mut hasher, run.count);
            }
        }
        hasher.update(self.parent.as_ref().map_or(&[][..], |parent| &parent.0));
        *hasher.finalize().as_bytes()
    }

    /// The object and its id.
    pub(crate) fn encode(&self) -> Result<(StateId, Vec<u8>), String> {
        let record = postcard::to_stdvec(self).map_err(|error| error.to_string())?;
        if record.len() as u64 > RECORD_MAX {
            return Err(format!("a manifest of {} bytes is too large", record.len()));
        }
        let mut object = Vec::with_capacity(HEADER + record.len());
        object.extend_from_slice(MAGIC);
        object.extend_from_slice(&(record.len() as u64).to_le_bytes());
        let packed = zstd::bulk::compress(&record, 1).map_err(|error| error.to_string())?;
        object.extend_from_slice(&packed);
        if object.len() > OBJECT_MAX {
            return Err(format!("a manifest of {} bytes is too large", object.len()));
        }
        Ok((Self::id_of(&object), object))
    }

    pub(crate) fn id_of(object: &[u8]) -> StateId {
        StateId(*blake3::hash(object).as_bytes())
    }

    /// Reads an object of this id, and checks all of it.
    pub(crate) fn decode(id: StateId, object: &[u8]) -> Result<Self, String> {
        if Self::id_of(object) != id {
            return Err("has another hash".into());
        }
        Self::decode_unnamed(object)
    }

    fn decode_unnamed(object: &[u8]) -> Result<Self, String> {
        let header: &[u8; HEADER] = object.first_chunk().ok_or("is too short")?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let length = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if !header.starts_with(MAGIC) {
            return Err("is no manifest of a known version".into());
        }
        if length > RECORD_MAX {
            return Err(format!("says {length} bytes"));
        }
        // The buffer grows with what is really there, not with what the header says.
        let mut record = Vec::new();
        let unpacked = zstd::Decoder::new(&object[HEADER..])
            .and_then(|decoder| decoder.take(length + 1).read_to_end(&mut record));
        if !unpacked.is_ok_and(|bytes| bytes as u64 == length) {
            return Err("does not unpack".into());
        }
        let (manifest, rest): (Self, _) =
            postcard::take_from_bytes(&record).map_err(|_| "is no record".to_owned())?;
        if !rest.is_empty() {
            return Err("goes on after its end".into());
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Whether all numbers are in bounds, and lists in order.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.blobs.len() > BLOBS_MAX {
            return Err(format!("has {} blobs; {BLOBS_MAX} are allowed", self.blobs.len()));
        }
        for (number, chunk) in self.chunks.iter().enumerate() {
            chunk.check().map_err(|reason| format!("chunk {number}: {reason}"))?;
        }
        if !self.blobs.is_sorted_by(|a, b| a.name < b.name) {
            return Err("blobs are not in order".into());
        }
        for blob in &self.blobs {
            self.check_blob(blob).map_err(|reason| format!("blob {:?}: {reason}", blob.name))?;
        }
        Ok(())
    }

    fn check_blob(&self, blob: &Blob) -> Result<(), String> {
        check_name("blob", &blob.name).map_err(|error| error.to_string())?;
        let pages = blob.pages();
        if pages > PAGES_MAX {
            return Err(format!("has {} bytes", blob.length));
        }
        let mut next = 0;
        for extent in &blob.extents {
            let chunk = self.chunks.get(extent.chunk as usize).ok_or("an extent has no chunk")?;
            let end_in_chunk = u32::from(extent.page) + u32::from(extent.count);
            let end = extent.first.checked_add(u64::from(extent.count)).ok_or("an overflow")?;
            if extent.count == 0
                || end_in_chunk > u32::from(chunk.pages)
                || usize::from(extent.count) > CHUNK_PAGES
            {
                return Err("an extent leaves its chunk".into());
            }
            if extent.first < next || end > pages {
                return Err("an extent is out of place".into());
            }
            next = end;
        }
        check_runs(&blob.hot, pages)
    }
}

/// Whether runs are in order, do not overlap and end in time.
pub(crate) fn check_runs(runs: &[Run], pages: u64) -> Result<(), String> {
    let mut next = 0;
    for run in runs {
        let end = run.first.checked_add(run.count).ok_or("a run overflows")?;
        if run.count == 0 || run.first < next || end > pages {
            return Err(format!("a run of hot pages at {} is out of place", run.first));
        }
        next = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Encoder, page_hash};
    use proptest::prelude::*;

    fn sample() -> Manifest {
        let chunk = |pages: usize, seed: u8| {
            let content: Vec<u8> =
                (0..=u8::MAX).take(pages).flat_map(|page| [seed ^ page; PAGE]).collect();
            let hashes: Vec<_> = content.chunks(PAGE).map(page_hash).collect();
            Encoder::new().unwrap().encode(&content, &hashes).entry
        };
        let blob = |name: &str, length, extents| Blob {
            name: name.into(),
            length,
            extents,
            hot: vec![Run { first: 0, count: 1 }],
        };
        let extents = vec![
            Extent { first: 0, count: 20, chunk: 0, page: 3 },
            Extent { first: 25, count: 1, chunk: 1, page: 0 },
        ];
        let other = vec![Extent { first: 0, count: 2, chunk: 1, page: 1 }];
        Manifest {
            salt: 0,
            parent: Some(StateId([7; 32])),
            blobs: vec![blob("disk-0", 26 * 4096 - 9, extents), blob("state", 5000, other)],
            chunks: vec![chunk(40, 1), chunk(5, 9)],
        }
    }

    #[test]
    fn a_manifest_comes_back() {
        let manifest = sample();
        let (id, object) = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(id, &object).unwrap(), manifest);
        assert!(Manifest::decode(StateId([0; 32]), &object).is_err());
        let blob = &manifest.blobs[0];
        assert_eq!(blob.extent_of(19).unwrap().page, 3);
        assert!(blob.extent_of(20).is_none() && blob.extent_of(26).is_none());
        assert_eq!(manifest.totals().content_bytes, 23 * 4096);
    }

    #[test]
    fn what_leads_out_of_bounds_is_refused() {
        let wrong: [fn(&mut Manifest); 15] = [
            |m| m.blobs[0].extents[0].chunk = 2,
            |m| m.blobs[0].extents[0].page = 21,
            |m| m.blobs[0].extents[0].count = 0,
            |m| m.blobs[0].extents[0].count = u16::MAX,
            |m| m.blobs[0].extents[1].first = 19,
            |m| m.blobs[0].extents[1].first = 26,
            |m| m.blobs[0].extents[1].first = u64::MAX,
            |m| m.blobs[0].length = u64::MAX,
            |m| m.blobs[0].name = "../x".into(),
            |m| m.blobs[0].name = "zzz".into(),
            |m| m.blobs[0].name = "state".into(),
            |m| m.blobs[0].hot[0].count = 27,
            |m| m.chunks[0].pages = 41,
            |m| m.chunks[0].frames[0].stored = 70_000,
            |m| m.chunks[1].frames[0].hash[0] ^= 1,
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut manifest = sample();
            change(&mut manifest);
            let (id, object) = manifest.encode().unwrap();
            assert!(Manifest::decode(id, &object).is_err(), "number {number}");
        }
    }

    #[test]
    fn truncations_and_bombs_are_refused() {
        let (_, object) = sample().encode().unwrap();
        for length in 0..object.len() {
            assert!(Manifest::decode_unnamed(&object[..length]).is_err());
        }
        // More than the header says, and a header that says too much.
        let zeros = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        for length in [100, RECORD_MAX, RECORD_MAX + 1, u64::MAX] {
            let bomb = [&MAGIC[..], &length.to_le_bytes(), &zeros].concat();
            assert!(Manifest::decode_unnamed(&bomb).is_err());
        }
    }

    proptest! {
        #[test]
        fn changed_records_never_lead_out_of_bounds(at in any::<usize>(), byte in any::<u8>()) {
            let mut record = postcard::to_stdvec(&sample()).unwrap();
            let at = at % record.len();
            record[at] = byte;
            let packed = zstd::bulk::compress(&record, 1).unwrap();
            let length = (record.len() as u64).to_le_bytes();
            let object = [&MAGIC[..], &length, &packed].concat();
            if let Ok(manifest) = Manifest::decode_unnamed(&object) {
                prop_assert!(manifest.check().is_ok());
                for blob in &manifest.blobs {
                    for extent in &blob.extents {
                        let chunk = &manifest.chunks[extent.chunk as usize];
                        prop_assert!(extent.page + extent.count <= chunk.pages);
                    }
                }
            }
        }

        #[test]
        fn nonsense_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Manifest::decode_unnamed(&bytes).is_err());
            let packed = zstd::bulk::compress(&bytes, 1).unwrap();
            let object = [&MAGIC[..], &(bytes.len() as u64).to_le_bytes(), &packed].concat();
            if let Ok(manifest) = Manifest::decode_unnamed(&object) {
                prop_assert!(manifest.chunks.is_empty(), "no chunk has a right hash by chance");
            }
        }
    }
}
