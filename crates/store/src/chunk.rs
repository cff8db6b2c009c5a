//! Chunks: up to 2 MiB of pages as one immutable object.
//!
//! ```text
//! "RMTC"  version 1  frames u8  pages u16  │ stored length of each frame u32 │ frame │ frame │ …
//! ```
//!
//! A *frame* is 16 pages (the last one may be shorter), compressed on its own, or raw where that is not
//! larger: stored length and raw length are equal then. So one frame can be read with a range request.
//!
//! Hashes form a tree: a frame's hash is over the hashes of its pages, a chunk's id over its frames' hashes.
//! Every byte is hashed once when a state is put (pages are looked up by their hash anyway), and a
//! frame can be verified without the others. The id covers the content, not how it is compressed.

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{ChunkId, Hash};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of a frame.
pub const FRAME_PAGES: usize = 16;
/// Pages of a chunk, at most.
pub const CHUNK_PAGES: usize = 512;
/// Bytes of a frame, at most.
pub const FRAME: usize = FRAME_PAGES * PAGE;
/// Frames of a chunk, at most.
pub const CHUNK_FRAMES: usize = CHUNK_PAGES / FRAME_PAGES;
/// Bytes of a chunk's object, at most.
pub const OBJECT_MAX: usize = HEADER + 4 * CHUNK_FRAMES + CHUNK_PAGES * PAGE;

const MAGIC: &[u8; 4] = b"RMTC";
const VERSION: u8 = 1;
const HEADER: usize = 8;
const LEVEL: i32 = 1;
/// Buffers in a pool, at most: 32 MiB.
const POOLED: usize = 16;

/// What is known of a chunk without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    /// Its content.
    pub id: ChunkId,
    /// Which of the objects with this content: see [`crate::gc`].
    pub generation: u32,
    /// Number of pages.
    pub pages: u16,
    /// Its frames, in order.
    pub frames: Vec<FrameEntry>,
}

/// What is known of a frame without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameEntry {
    /// Bytes in the object.
    pub stored: u32,
    /// Hash of its pages' hashes.
    pub hash: Hash,
}

impl ChunkEntry {
    /// Bytes of its object.
    pub fn object_bytes(&self) -> u64 {
        let frames: u64 = self.frames.iter().map(|frame| u64::from(frame.stored)).sum();
        self.header_bytes() + frames
    }

    pub(crate) fn header_bytes(&self) -> u64 {
        (HEADER + 4 * self.frames.len()) as u64
    }

    /// Where a frame lies in the object.
    pub fn frame_range(&self, frame: usize) -> std::ops::Range<u64> {
        let before: u64 = self.frames.iter().take(frame).map(|f| u64::from(f.stored)).sum();
        let start = self.header_bytes() + before;
        start..start + self.frames.get(frame).map_or(0, |f| u64::from(f.stored))
    }

    /// Pages of a frame.
    pub fn frame_pages(&self, frame: usize) -> usize {
        usize::from(self.pages).saturating_sub(frame * FRAME_PAGES).min(FRAME_PAGES)
    }

    /// The object's first bytes.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER + 4 * self.frames.len());
        header.extend_from_slice(MAGIC);
        header.push(VERSION);
        header.push(u8::try_from(self.frames.len()).unwrap_or(u8::MAX));
        header.extend_from_slice(&self.pages.to_le_bytes());
        for frame in &self.frames {
            header.extend_from_slice(&frame.stored.to_le_bytes());
        }
        header
    }

    /// Whether the parts fit each other. An entry that passes never leads out of bounds.
    pub(crate) fn check(&self) -> Result<(), String> {
        let pages = usize::from(self.pages);
        if !(1..=CHUNK_PAGES).contains(&pages) || self.frames.len() != pages.div_ceil(FRAME_PAGES) {
            return Err(format!("{} frames for {pages} pages", self.frames.len()));
        }
        for (number, frame) in self.frames.iter().enumerate() {
            let raw = self.frame_pages(number) * PAGE;
            if !(1..=raw).contains(&(frame.stored as usize)) {
                return Err(format!("frame {number} of {} bytes", frame.stored));
            }
        }
        match chunk_id(self.pages, self.frames.iter().map(|frame| &frame.hash)) == self.id {
            true => Ok(()),
            false => Err("its id is not the hash of its frames".into()),
        }
    }
}

/// Hash of a page.
pub fn page_hash(page: &[u8]) -> Hash {
    *blake3::hash(page).as_bytes()
}

/// Whether all is zero.
pub(crate) fn is_zero(page: &[u8]) -> bool {
    // Pages are compared in wide steps; the first difference ends it.
    static ZEROS: [u8; PAGE] = [0; PAGE];
    page == &ZEROS[..page.len()]
}

fn frame_hash<'a>(pages: impl Iterator<Item = &'a Hash>) -> Hash {
    let mut hasher = blake3::Hasher::new_derive_key("ramet store 2026 frame v1");
    for page in pages {
        hasher.update(page);
    }
    *hasher.finalize().as_bytes()
}

fn chunk_id<'a>(pages: u16, frames: impl Iterator<Item = &'a Hash>) -> ChunkId {
    let mut hasher = blake3::Hasher::new_derive_key("ramet store 2026 chunk v1");
    hasher.update(&pages.to_le_bytes());
    for frame in frames {
        hasher.update(frame);
    }
    ChunkId(*hasher.finalize().as_bytes())
}

/// A chunk ready to be stored.
pub(crate) struct Encoded {
    /// Generation 0 until the writer chooses one.
    pub entry: ChunkEntry,
    pub object: Bytes,
}

/// Makes chunks. Keeps the compressor, which is costly to make.
pub(crate) struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
}

impl Encoder {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { compressor: zstd::bulk::Compressor::new(LEVEL)? })
    }

    /// A chunk of these pages, which lie one after the other in `content`; `hashes` are the pages'.
    pub fn encode(&mut self, content: &[u8], hashes: &[Hash]) -> Encoded {
        self.encode_into(content, hashes, Vec::new())
    }

    /// The same in memory that was used before: to touch new memory costs more than to copy.
    pub fn encode_into(&mut self, content: &[u8], hashes: &[Hash], mut object: Vec<u8>) -> Encoded {
        debug_assert!(content.len() == hashes.len() * PAGE && hashes.len() <= CHUNK_PAGES);
        let count = hashes.len().div_ceil(FRAME_PAGES);
        object.clear();
        object.reserve_exact(HEADER + 4 * count + content.len());
        object.resize(HEADER + 4 * count, 0);
        let mut frames = Vec::with_capacity(count);
        let mut vain = 0;
        for (raw, hashes) in content.chunks(FRAME).zip(hashes.chunks(FRAME_PAGES)) {
            // After two frames in a row that did not become smaller, only every fourth is tried.
            let tried = vain < 2 || vain % 4 == 0;
            let stored = match tried {
                true => self.append(&mut object, raw),
                false => append_raw(&mut object, raw),
            };
            vain = if stored as usize == raw.len() { vain + 1 } else { 0 };
            frames.push(FrameEntry { stored, hash: frame_hash(hashes.iter()) });
        }
        let pages = u16::try_from(hashes.len()).unwrap_or(u16::MAX);
        let id = chunk_id(pages, frames.iter().map(|frame| &frame.hash));
        let entry = ChunkEntry { id, generation: 0, pages, frames };
        let header = entry.header();
        object[..header.len()].copy_from_slice(&header);
        Encoded { entry, object: object.into() }
    }

    /// Appends a frame, compressed if that is smaller, and says its stored length.
    fn append(&mut self, object: &mut Vec<u8>, raw: &[u8]) -> u32 {
        let start = object.len();
        let mut end = Cursor::new(&mut *object);
        end.set_position(start as u64);
        match self.compressor.compress_to_buffer(raw, &mut end) {
            Ok(length) if length < raw.len() => u32::try_from(length).unwrap_or(u32::MAX),
            // Not smaller, or more than there is room for.
            _ => {
                object.truncate(start);
                append_raw(object, raw)
            }
        }
    }
}

fn append_raw(object: &mut Vec<u8>, raw: &[u8]) -> u32 {
    object.extend_from_slice(raw);
    u32::try_from(raw.len()).unwrap_or(u32::MAX)
}

/// Memory of objects that were stored, for the next ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool {
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Pool {
    /// Memory that was used before, if there is any.
    pub fn take(&self) -> Vec<u8> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps the memory, if nobody else holds it.
    pub fn give(&self, object: Bytes) {
        if let Ok(buffer) = object.try_into_mut() {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            if buffers.len() < POOLED {
                buffers.push(buffer.into());
            }
        }
    }
}

/// A frame's pages, verified.
pub(crate) struct Frame {
    pub content: Vec<u8>,
    pub hashes: Vec<Hash>,
}

/// Unpacks and verifies a frame from its stored bytes.
pub(crate) fn decode_frame(
    entry: &ChunkEntry,
    frame: usize,
    stored: &[u8],
) -> Result<Frame, String> {
    let Some(known) = entry.frames.get(frame) else { return Err(format!("has no frame {frame}")) };
    let raw = entry.frame_pages(frame) * PAGE;
    if stored.len() != known.stored as usize {
        return Err(format!("frame {frame} has {} bytes of {}", stored.len(), known.stored));
    }
    let content = match stored.len() == raw {
        true => stored.to_vec(),
        false => decompress(stored, raw).ok_or_else(|| format!("frame {frame} does not unpack"))?,
    };
    let hashes: Vec<Hash> = content.chunks(PAGE).map(page_hash).collect();
    match frame_hash(hashes.iter()) == known.hash {
        true => Ok(Frame { content, hashes }),
        false => Err(format!("frame {frame} has another hash")),
    }
}

fn decompress(stored: &[u8], raw: usize) -> Option<Vec<u8>> {
    let mut content = vec![0; raw];
    let length = zstd::bulk::decompress_to_buffer(stored, content.as_mut_slice()).ok()?;
    (length == raw).then_some(content)
}

/// Verifies a whole object against what is known of it. Gives the frames one after the other.
pub(crate) fn decode_object(
    entry: &ChunkEntry,
    object: &[u8],
    mut each: impl FnMut(usize, Frame),
) -> Result<(), String> {
    if object.len() as u64 != entry.object_bytes() {
        return Err(format!("has {} bytes of {}", object.len(), entry.object_bytes()));
    }
    if !object.starts_with(&entry.header()) {
        return Err("has another header".into());
    }
    for number in 0..entry.frames.len() {
        let range = entry.frame_range(number);
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end))
        else {
            return Err("is too large".into());
        };
        let stored = object.get(start..end).ok_or("is too short")?;
        each(number, decode_frame(entry, number, stored)?);
    }
    Ok(())
}

/// Reads an object of which only the id is known: what its entry must be, verified.
pub(crate) fn parse_object(id: ChunkId, object: &[u8]) -> Result<ChunkEntry, String> {
    let header: &[u8; HEADER] = object.first_chunk().ok_or("is too short")?;
    if !header.starts_with(MAGIC) || header[4] != VERSION {
        return Err("is no chunk of a known version".into());
    }
    let pages = u16::from_le_bytes([header[6], header[7]]);
    let count = usize::from(header[5]);
    if count != usize::from(pages).div_ceil(FRAME_PAGES) || count > CHUNK_FRAMES {
        return Err(format!("says {count} frames for {pages} pages"));
    }
    let lengths = object.get(HEADER..HEADER + 4 * count).ok_or("is too short")?;
    let frames = lengths.chunks_exact(4).map(|length| {
        let stored = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        FrameEntry { stored, hash: [0; 32] }
    });
    let mut entry = ChunkEntry { id, generation: 0, pages, frames: frames.collect() };
    for number in 0..count {
        let raw = entry.frame_pages(number) * PAGE;
        let range = entry.frame_range(number);
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end))
        else {
            return Err("is too large".into());
        };
        let stored = object.get(start..end).ok_or("is too short")?;
        let content = match stored.len() == raw {
            true => stored.to_vec(),
            false if stored.len() < raw => {
                decompress(stored, raw).ok_or_else(|| format!("frame {number} does not unpack"))?
            }
            false => return Err(format!("frame {number} is too long")),
        };
        let hashes: Vec<Hash> = content.chunks(PAGE).map(page_hash).collect();
        entry.frames[number].hash = frame_hash(hashes.iter());
    }
    if object.len() as u64 != entry.object_bytes() {
        return Err("is longer than its frames".into());
    }
    entry.check()?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(pages: usize, seed: u8) -> (Vec<u8>, Vec<Hash>) {
        let content: Vec<u8> = (0..pages * PAGE)
            .map(|at| match at / PAGE % 3 {
                0 => seed,
                1 => u8::try_from(at % 7).unwrap_or(0),
                _ => blake3::hash(&(at / 32).to_le_bytes()).as_bytes()[at % 32],
            })
            .collect();
        let hashes = content.chunks(PAGE).map(page_hash).collect();
        (content, hashes)
    }

    #[test]
    fn chunks_come_back_and_know_themselves() {
        for pages in [1, 15, 16, 17, 100, 512] {
            let (content, hashes) = sample(pages, 7);
            let encoded = Encoder::new().unwrap().encode(&content, &hashes);
            encoded.entry.check().unwrap();
            assert_eq!(encoded.entry.object_bytes(), encoded.object.len() as u64);
            let mut back = Vec::new();
            decode_object(&encoded.entry, &encoded.object, |_, frame| back.extend(frame.content))
                .unwrap();
            assert!(back == content);
            let parsed = parse_object(encoded.entry.id, &encoded.object).unwrap();
            assert_eq!(parsed, encoded.entry);
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let (content, hashes) = sample(20, 3);
        let Encoded { entry, object } = Encoder::new().unwrap().encode(&content, &hashes);
        for length in 0..object.len() {
            assert!(decode_object(&entry, &object[..length], |_, _| ()).is_err());
            if length % 97 == 0 || length < 64 {
                assert!(parse_object(entry.id, &object[..length]).is_err());
            }
        }
        let longer = [&object[..], &[0]].concat();
        assert!(parse_object(entry.id, &longer).is_err());
    }

    proptest! {
        #[test]
        fn nonsense_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse_object(ChunkId([0; 32]), &bytes).is_err());
            let headed = [b"RMTC\x01", &bytes[..]].concat();
            prop_assert!(parse_object(ChunkId([0; 32]), &headed).is_err());
        }

        #[test]
        fn a_flipped_bit_never_gives_other_bytes(at in 0usize..1 << 20, bit in 0u8..8) {
            let (content, hashes) = sample(33, 5);
            let Encoded { entry, object } = Encoder::new().unwrap().encode(&content, &hashes);
            let mut object = object.to_vec();
            let at = at % object.len();
            object[at] ^= 1 << bit;
            let mut back = Vec::new();
            let read = decode_object(&entry, &object, |_, frame| back.extend(frame.content));
            prop_assert!(read.is_err() || back == content);
        }
    }
}
