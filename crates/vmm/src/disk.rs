//! A disk: a read-only base image, frozen layers, and one layer of its own for what it writes.
//!
//! One index says for each block of 4 KiB where its newest content lies, so a read costs the same after
//! one fork or after fifty. A layer is a file without a name in the machine's layers directory, made when the
//! first block is written: it vanishes with the last process that uses it, and a child that writes nothing
//! has none. [`Disk::freeze`], called before fork(2), ends the current layer; from then on source and children
//! read it and nobody writes it, so no branch ever sees another's writes.
//!
//! A *slot* is a disk whose medium comes and goes: empty, or a volume ([`crate::volume`]). What a machine writes to a
//! volume that it has alone goes into the volume's own files, and FLUSH reaches the host's disk. A forked child
//! that inherits such a disk [disowns](Disk::disown) it: it goes on with layers of its own, as on any disk. A slot is saved
//! whole, so that its copy needs no volume.
//!
//! Content is written before the index points to it: a write that fails, because the host's disk is full,
//! leaves what was there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ramet_proto::control::DiskStats;
use serde::{Deserialize, Serialize};

use crate::pager::Arrivals;
use crate::sys;
use crate::volume::Writer;

mod slot;
#[cfg(test)]
pub use slot::forked;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const LEAF: usize = 512;

/// Where a block's content lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Base,
    Zero,
    Layer { layer: u16, slot: u32 },
}

impl Place {
    fn pack(self) -> u64 {
        match self {
            Self::Base => 0,
            Self::Zero => 1,
            Self::Layer { layer, slot } => 2 | u64::from(layer) << 16 | u64::from(slot) << 32,
        }
    }

    fn unpack(packed: u64) -> Self {
        match packed & 3 {
            0 => Self::Base,
            1 => Self::Zero,
            _ => Self::Layer {
                layer: u16::try_from(packed >> 16 & 0xffff).unwrap_or(0),
                slot: u32::try_from(packed >> 32).unwrap_or(0),
            },
        }
    }

    /// Whether `next` continues this place `distance` blocks later.
    fn continued_by(self, next: Self, distance: u32) -> bool {
        match (self, next) {
            (Self::Layer { layer, slot }, Self::Layer { layer: other, slot: later }) => {
                layer == other && slot.checked_add(distance) == Some(later)
            }
            _ => self == next,
        }
    }
}

/// Block → place. Leaves are made when something in them changes.
struct Index {
    leaves: Vec<Option<Box<[u64; LEAF]>>>,
}

impl Index {
    fn new(blocks: u64) -> Self {
        let leaves = usize::try_from(blocks.div_ceil(LEAF as u64)).expect("64-bit");
        Self { leaves: (0..leaves).map(|_| None).collect() }
    }

    fn get(&self, block: u64) -> Place {
        let (leaf, at) = Self::split(block);
        self.leaves[leaf].as_ref().map_or(Place::Base, |leaf| Place::unpack(leaf[at]))
    }

    /// Stores a place and gives the one before.
    fn set(&mut self, block: u64, place: Place) -> Place {
        let (leaf, at) = Self::split(block);
        let leaf = self.leaves[leaf].get_or_insert_with(|| Box::new([0; LEAF]));
        Place::unpack(std::mem::replace(&mut leaf[at], place.pack()))
    }

    fn split(block: u64) -> (usize, usize) {
        let block = usize::try_from(block).expect("64-bit");
        (block / LEAF, block % LEAF)
    }

    /// All blocks that are not the base's.
    fn changed(&self) -> impl Iterator<Item = (u64, Place)> {
        self.leaves
            .iter()
            .enumerate()
            .flat_map(|(number, leaf)| {
                leaf.iter().flat_map(move |leaf| {
                    let numbered = leaf.iter().enumerate();
                    numbered.map(move |(at, packed)| {
                        ((number * LEAF + at) as u64, Place::unpack(*packed))
                    })
                })
            })
            .filter(|(_, place)| *place != Place::Base)
    }
}

struct Layer {
    file: Arc<File>,
    /// Its content is still on its way.
    arrivals: Option<Arrivals>,
    /// Blocks whose newest content is here.
    live: u32,
}

/// The layer that this machine writes.
struct Own {
    layer: u16,
    next: u32,
    free: Vec<u32>,
}

/// The volume that a disk writes.
struct Volume {
    writer: Writer,
    /// The layer that is written, and its number.
    own: Option<u16>,
    /// Numbers of its layers that may go when nothing points to them.
    numbers: BTreeMap<u16, u64>,
}

/// A disk.
pub struct Disk {
    /// Without one, everything is zero that no layer has.
    base: Option<File>,
    blocks: u64,
    /// Its medium comes and goes.
    slot: bool,
    /// It writes a volume.
    volume: Option<Volume>,
    read_only: bool,
    index: Index,
    /// `None` where a layer had nothing left that anyone could read.
    layers: Vec<Option<Layer>>,
    own: Option<Own>,
    directory: Option<Arc<File>>,
    /// Figures; `layers` and `changed_blocks` are counted when asked.
    pub stats: DiskStats,
}

/// What of a disk goes into the state file; the content goes into a file of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Path of the base image; none for a slot.
    pub base: Option<String>,
    /// Blocks.
    pub blocks: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Changed blocks, as runs of first block and number of blocks, in the order of the content.
    runs: Vec<(u64, u32)>,
    /// Likewise, for blocks that are zero and have no content.
    zero: Vec<(u64, u32)>,
    /// The turn of the volume that it wrote ([`Writer::turn`]).
    pub turn: Option<u64>,
}

impl DiskRecord {
    /// Length of the content file.
    pub fn content_blocks(&self) -> u64 {
        self.runs.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

impl Disk {
    /// A disk that shows `base`. Layers are made in `directory`.
    pub fn new(base: File, read_only: bool, directory: Option<Arc<File>>) -> io::Result<Self> {
        let blocks = blocks_of(&base)?;
        Ok(Self { read_only, ..Self::of(Some(base), blocks, directory) })
    }

    fn of(base: Option<File>, blocks: u64, directory: Option<Arc<File>>) -> Self {
        Self {
            base,
            blocks,
            slot: false,
            volume: None,
            read_only: false,
            index: Index::new(blocks),
            layers: Vec::new(),
            own: None,
            directory,
            stats: DiskStats { blocks, ..DiskStats::default() },
        }
    }

    /// The disk of this record, over `base`, with its content in `content`, or on its way there. A slot has
    /// no base.
    pub fn restored(
        record: &DiskRecord,
        base: Option<File>,
        content: Option<File>,
        arrivals: Option<Arrivals>,
        directory: Option<Arc<File>>,
    ) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut disk = match base {
            Some(base) => Self::new(base, record.read_only, directory)?,
            None if u32::try_from(record.blocks).is_err() => return Err(invalid("too large")),
            None => Self { slot: true, ..Self::of(None, record.blocks, directory) },
        };
        if disk.blocks != record.blocks {
            return Err(invalid("the base image has another size"));
        }
        let mut slot = 0;
        for (from, count) in record.runs.iter().chain(&record.zero) {
            if from.checked_add(u64::from(*count)).is_none_or(|end| end > record.blocks) {
                return Err(invalid("a block past the end"));
            }
        }
        for (from, count) in &record.runs {
            for block in *from..*from + u64::from(*count) {
                disk.index.set(block, Place::Layer { layer: 0, slot });
                slot += 1;
            }
        }
        for (from, count) in &record.zero {
            for block in *from..*from + u64::from(*count) {
                disk.index.set(block, Place::Zero);
            }
        }
        if slot > 0 {
            let file = content.ok_or_else(|| invalid("the content is missing"))?;
            disk.layers.push(Some(Layer { file: Arc::new(file), arrivals, live: slot }));
        }
        Ok(disk)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Descriptors that a child must keep.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let layers = self.layers.iter().flatten().map(|layer| layer.file.as_raw_fd());
        let directory = self.directory.iter().map(|directory| directory.as_raw_fd());
        layers.chain(directory).chain(self.base.iter().map(AsRawFd::as_raw_fd))
    }

    /// Ends the current layer. Nobody writes it any more.
    pub fn freeze(&mut self) {
        self.own = None;
        if let (Some(volume), Some(base)) = (&mut self.volume, &self.base) {
            volume.own = None;
            volume.writer.freeze(base);
        }
    }

    /// Figures.
    pub fn figures(&self) -> DiskStats {
        DiskStats {
            changed_blocks: self.index.changed().count() as u64,
            own_blocks: self
                .own_number()
                .and_then(|own| self.layers[usize::from(own)].as_ref())
                .map_or(0, |layer| layer.live.into()),
            layers: u32::try_from(self.layers.iter().flatten().count()).unwrap_or(u32::MAX),
            ..self.stats.clone()
        }
    }

    /// Reads blocks from `first` on.
    pub fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(first, buffer.len())?;
        let mut block = first;
        let mut rest = buffer;
        while !rest.is_empty() {
            let (place, count) = self.run(block, rest.len() / BLOCK);
            let (now, later) = rest.split_at_mut(count * BLOCK);
            match place {
                Place::Zero => now.fill(0),
                Place::Base => match &self.base {
                    Some(base) => base.read_exact_at(now, block * BLOCK as u64)?,
                    None => now.fill(0),
                },
                Place::Layer { layer, slot } => {
                    let layer = self.layer(layer)?;
                    if let Some(arrivals) = &layer.arrivals {
                        arrivals.wait(slot.into(), count as u64);
                    }
                    layer.file.read_exact_at(now, u64::from(slot) * BLOCK as u64)?;
                }
            }
            block += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// The place of `block`, and how many of the next `most` blocks continue it.
    fn run(&self, block: u64, most: usize) -> (Place, usize) {
        let place = self.index.get(block);
        let count = (1u32..)
            .take(most - 1)
            .take_while(|n| place.continued_by(self.index.get(block + u64::from(*n)), *n))
            .count();
        (place, count + 1)
    }

    /// Writes blocks from `first` on.
    pub fn write(&mut self, first: u64, data: &[u8]) -> io::Result<()> {
        self.check_writable(first, data.len())?;
        if self.volume.is_some() {
            return self.write_volume(first, data);
        }
        let own = self.own_layer()?;
        let file = Arc::clone(&self.layer(own)?.file);
        let mut block = first;
        let mut rest = data;
        while !rest.is_empty() {
            let (slot, count) = self.slots(block, rest.len() / BLOCK)?;
            let (now, later) = rest.split_at(count * BLOCK);
            if let Err(error) = file.write_all_at(now, u64::from(slot) * BLOCK as u64) {
                self.give_back(block, slot, count);
                return Err(error);
            }
            for (n, block) in (0u32..).zip(block..block + count as u64) {
                self.point(block, Place::Layer { layer: own, slot: slot + n });
            }
            block += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// Makes blocks read as zero, and frees what they took in this machine's own layer.
    pub fn discard(&mut self, first: u64, count: u64) -> io::Result<()> {
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(BLOCK));
        self.check_writable(first, bytes.ok_or(io::ErrorKind::InvalidInput)?)?;
        if self.volume.is_some() {
            return self.discard_volume(first, count);
        }
        for block in first..first + count {
            let before = self.index.get(block);
            self.point(block, Place::Zero);
            if let (Place::Layer { layer, slot }, Some(own)) = (before, &mut self.own)
                && own.layer == layer
            {
                own.free.push(slot);
                let file = Arc::clone(&self.layer(layer)?.file);
                // Where holes are not supported the space is used again by the next write.
                let _unsupported =
                    sys::punch_hole(&file, u64::from(slot) * BLOCK as u64, BLOCK as u64);
            }
        }
        Ok(())
    }

    fn check(&self, first: u64, bytes: usize) -> io::Result<()> {
        let count = (bytes / BLOCK) as u64;
        let inside = first.checked_add(count).is_some_and(|end| end <= self.blocks);
        if !bytes.is_multiple_of(BLOCK) || !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    fn check_writable(&self, first: u64, bytes: usize) -> io::Result<()> {
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.check(first, bytes)
    }

    fn layer(&self, number: u16) -> io::Result<&Layer> {
        let layer = self.layers.get(usize::from(number)).and_then(Option::as_ref);
        layer.ok_or_else(|| io::Error::other("a layer is missing"))
    }

    /// The layer to write to, made if there is none yet.
    fn own_layer(&mut self) -> io::Result<u16> {
        if let Some(own) = &self.own {
            return Ok(own.layer);
        }
        let directory = self
            .directory
            .as_ref()
            .ok_or_else(|| io::Error::other("there is no directory for layers"))?;
        let layer = self.add_layer(Arc::new(sys::nameless_file(directory)?))?;
        self.own = Some(Own { layer, next: 0, free: Vec::new() });
        Ok(layer)
    }

    fn add_layer(&mut self, file: Arc<File>) -> io::Result<u16> {
        let place = self.layers.iter().position(Option::is_none).unwrap_or(self.layers.len());
        let layer = u16::try_from(place).map_err(|_| io::Error::other("too many layers"))?;
        let fresh = Some(Layer { file, arrivals: None, live: 0 });
        match self.layers.get_mut(place) {
            Some(gap) => *gap = fresh,
            None => self.layers.push(fresh),
        }
        Ok(layer)
    }

    /// The layer that is written.
    fn own_number(&self) -> Option<u16> {
        let own = self.own.as_ref().map(|own| own.layer);
        own.or_else(|| self.volume.as_ref().and_then(|volume| volume.own))
    }

    /// Slots for up to `most` blocks from `block` on: those they have, or new ones.
    fn slots(&mut self, block: u64, most: usize) -> io::Result<(u32, usize)> {
        let (place, count) = self.run(block, most);
        let own = self.own.as_mut().expect("made by own_layer");
        if let Place::Layer { layer, slot } = place
            && layer == own.layer
        {
            return Ok((slot, count));
        }
        if let Some(slot) = own.free.pop() {
            return Ok((slot, 1));
        }
        let slot = own.next;
        let count32 = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        own.next = slot.checked_add(count32).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok((slot, count))
    }

    /// The write to these slots failed; those that were new are free again.
    fn give_back(&mut self, block: u64, slot: u32, count: usize) {
        let own = self.own.as_mut().expect("made by own_layer");
        let mine = Place::Layer { layer: own.layer, slot };
        if self.index.get(block) != mine {
            own.free.extend((slot..).take(count));
        }
    }

    /// Points a block to a place, and drops a frozen layer that nobody points to any more.
    fn point(&mut self, block: u64, place: Place) {
        let before = self.index.set(block, place);
        if let Place::Layer { layer, .. } = place
            && let Some(layer) = &mut self.layers[usize::from(layer)]
        {
            layer.live += 1;
        }
        let Place::Layer { layer: number, .. } = before else { return };
        let is_own = self.own_number() == Some(number);
        let slot = &mut self.layers[usize::from(number)];
        if let Some(layer) = slot {
            layer.live -= 1;
            if layer.live == 0 && !is_own {
                *slot = None;
                self.bury(number);
            }
        }
    }

    /// Writes every changed block to `content`, in order, and says what they are; of a slot, every block.
    pub fn save(&self, base: Option<&str>, content: &File) -> io::Result<DiskRecord> {
        let mut record = DiskRecord {
            base: base.map(str::to_owned),
            blocks: self.blocks,
            read_only: self.read_only,
            runs: Vec::new(),
            zero: Vec::new(),
            turn: self.volume.as_ref().map(|volume| volume.writer.turn()),
        };
        if self.slot {
            record.runs = self.save_whole(content)?;
            return Ok(record);
        }
        let mut buffer = vec![0; RUN_MAX * BLOCK];
        let mut written = 0;
        let mut changed = self.index.changed().peekable();
        while let Some((first, place)) = changed.next() {
            let zero = place == Place::Zero;
            let mut count = 1;
            while count < RUN_MAX
                && changed
                    .next_if(|(block, place)| {
                        *block == first + count as u64 && (*place == Place::Zero) == zero
                    })
                    .is_some()
            {
                count += 1;
            }
            let run = (first, u32::try_from(count).map_err(io::Error::other)?);
            if zero {
                record.zero.push(run);
                continue;
            }
            let buffer = &mut buffer[..count * BLOCK];
            self.read(first, buffer)?;
            content.write_all_at(buffer, written)?;
            written += buffer.len() as u64;
            record.runs.push(run);
        }
        Ok(record)
    }
}

/// Number of blocks of a file that can be a disk.
pub fn blocks_of(base: &File) -> io::Result<u64> {
    let metadata = base.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let length = metadata.len();
    if length == 0 || length % BLOCK as u64 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{length} bytes are no disk: it must be a multiple of {BLOCK}, and not 0"),
        ));
    }
    let blocks = length / BLOCK as u64;
    if u32::try_from(blocks).is_err() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "larger than 16 TiB"));
    }
    Ok(blocks)
}

/// Blocks read and written at once when saving.
const RUN_MAX: usize = 256;

#[cfg(test)]
mod tests;
