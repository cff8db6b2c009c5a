//! The files of a volume: content that outlives machines, written by one, and cut by forks.
//!
//! | file | content |
//! |---|---|
//! | `base` | all blocks, in order; sparse |
//! | `N.layer` | blocks that were changed later, each at its place; sparse |
//! | `N.map` | a byte for each block: [`ABSENT`], [`HERE`] or [`ZERO`] in that layer; later layers win |
//! | `writer` | held by the one who writes; how often the content began to change ([`Writer::turn`]) |
//!
//! Whoever alone has the base writes it in place. A fork freezes it, as everything that was written before: its
//! children read those files, and the next write begins a layer. Everybody who reads holds a shared lock of the base
//! ([`sys::lock`]), which forked children inherit and which ends with the last of them, however it ends. Whoever gets
//! the base alone knows thereby that nobody reads it, and may [`fold`] the layers into it.
//!
//! What was flushed survives the death of every process: content is on the disk before the map tells of it, and a layer
//! counts from the moment its map is there. A fold that is interrupted is begun anew: it writes what is in the layers
//! into the base, syncs it, and only then removes them, oldest first.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::BLOCK;
use crate::sys;

/// A block that this layer does not have.
pub const ABSENT: u8 = 0;
/// A block that it has.
pub const HERE: u8 = 1;
/// A block that is zero.
pub const ZERO: u8 = 2;
/// Most layers of a volume.
const LAYERS_MAX: usize = 60_000;
/// Blocks copied at once.
const COPY: usize = 256;

/// A frozen layer.
pub struct Layer {
    /// Its number.
    pub number: u64,
    /// Content.
    pub file: File,
    map: PathBuf,
}

impl Layer {
    /// What of it counts, by block; blocks past its end are absent.
    pub fn states(&self, blocks: u64) -> io::Result<Vec<u8>> {
        let states = fs::read(&self.map)?;
        if states.len() as u64 > blocks || states.iter().any(|state| *state > ZERO) {
            let what = format!("{} is damaged", self.map.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(states)
    }
}

/// A volume's content at one moment.
pub struct Content {
    /// The base, locked.
    pub base: File,
    /// Number of blocks.
    pub blocks: u64,
    /// Oldest first.
    pub layers: Vec<Layer>,
}

impl Content {
    /// Opens a volume to read it. Fails with `WouldBlock` while somebody writes the base.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let base = File::open(directory.join("base"))?;
        sys::lock(&base, false)?;
        Self::of(base, directory)
    }

    fn of(base: File, directory: &Path) -> io::Result<Self> {
        let blocks = crate::disk::blocks_of(&base)?;
        Ok(Self { base, blocks, layers: layers(directory, blocks)? })
    }
}

/// A layer that has something to be told in its map.
struct Log {
    number: u64,
    file: Arc<File>,
    map: File,
    /// Its name is on the disk.
    named: bool,
    pending: BTreeMap<u64, u8>,
}

/// The one who writes a volume.
pub struct Writer {
    directory: PathBuf,
    /// Nobody else has its lock.
    lock: File,
    turn: u64,
    /// The turn was noted since the last freeze.
    begun: bool,
    /// The base is this writer's alone.
    in_place: bool,
    /// Something of the base is not on the disk.
    unsynced: bool,
    next: u64,
    /// Layers with something to tell; the last one is written, if `writing`.
    logs: Vec<Log>,
    writing: bool,
    /// Layers of which nothing counts any more; they go with the next flush.
    dead: Vec<u64>,
}

impl Writer {
    /// Opens a volume to write it. Fails with `WouldBlock` if somebody else does.
    pub fn open(directory: &Path) -> io::Result<(Self, Content)> {
        let lock = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join("writer"))?;
        sys::lock(&lock, true)?;
        let base = OpenOptions::new().read(true).write(true).open(directory.join("base"))?;
        let alone = sys::lock(&base, true).is_ok();
        if !alone {
            sys::lock(&base, false)?;
        }
        let content = Content::of(base, directory)?;
        let in_place = alone && content.layers.is_empty();
        if !in_place {
            sys::lock(&content.base, false)?;
        }
        let writer = Self {
            directory: directory.to_owned(),
            turn: read_turn(&lock)?,
            lock,
            begun: false,
            in_place,
            unsynced: false,
            next: content.layers.last().map_or(1, |layer| layer.number + 1),
            logs: Vec::new(),
            writing: false,
            dead: Vec::new(),
        };
        Ok((writer, content))
    }

    /// Goes up before something is written for the first time since the volume was opened or frozen. A saved machine
    /// whose volume still has the turn of that moment finds it as it was.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes that the content changes from now on. True if it is the base that is written.
    pub fn begin(&mut self) -> io::Result<bool> {
        if !self.begun {
            self.lock.write_all_at(&(self.turn + 1).to_le_bytes(), 0)?;
            self.lock.sync_data()?;
            self.turn += 1;
            self.begun = true;
        }
        self.unsynced |= self.in_place;
        Ok(self.in_place)
    }

    /// The layer that is written; `true` and a new one if there was none.
    pub fn layer(&mut self, blocks: u64) -> io::Result<(Arc<File>, u64, bool)> {
        if let Some(log) = self.logs.last().filter(|_| self.writing) {
            return Ok((Arc::clone(&log.file), log.number, false));
        }
        let number = self.next;
        let create = |name: PathBuf| {
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(name)
        };
        let file = create(layer_path(&self.directory, number))?;
        file.set_len(blocks * BLOCK as u64)?;
        let map = create(map_path(&self.directory, number))?;
        self.next += 1;
        self.writing = true;
        let file = Arc::new(file);
        let log =
            Log { number, file: Arc::clone(&file), map, named: false, pending: BTreeMap::new() };
        self.logs.push(log);
        Ok((file, number, true))
    }

    /// A block of the layer that is written is what `state` says.
    pub fn note(&mut self, block: u64, state: u8) {
        if let Some(log) = self.logs.last_mut() {
            log.pending.insert(block, state);
        }
    }

    /// Nothing of a layer counts any more.
    pub fn bury(&mut self, number: u64) {
        self.dead.push(number);
    }

    /// Nobody writes any more what was written so far.
    pub fn freeze(&mut self, base: &File) {
        if std::mem::take(&mut self.in_place) {
            // Nobody else has a lock, so there is nothing that could refuse.
            let _shared = sys::lock(base, false);
        }
        (self.begun, self.writing) = (false, false);
    }

    /// Everything that was written is on the disk when this returns.
    pub fn flush(&mut self, base: &File) -> io::Result<()> {
        if self.unsynced {
            base.sync_data()?;
            self.unsynced = false;
        }
        let dead = &self.dead;
        self.logs.retain(|log| !dead.contains(&log.number));
        for log in self.logs.iter_mut().filter(|log| !log.pending.is_empty()) {
            log.sync(&self.directory)?;
        }
        let keep = usize::from(self.writing);
        self.logs.drain(..self.logs.len().saturating_sub(keep));
        for number in std::mem::take(&mut self.dead) {
            // What stays costs room until the layers are folded.
            let _left = remove_layer(&self.directory, number);
        }
        Ok(())
    }
}

impl Log {
    fn sync(&mut self, directory: &Path) -> io::Result<()> {
        self.file.sync_data()?;
        for (first, states) in runs(&self.pending) {
            self.map.write_all_at(&states, first)?;
        }
        self.map.sync_data()?;
        if !self.named {
            File::open(directory)?.sync_all()?;
            self.named = true;
        }
        for (first, states) in runs(&self.pending) {
            for (block, _) in (first..).zip(&states).filter(|(_, state)| **state == ZERO) {
                // Where holes are not supported the space stays taken.
                let _unsupported = sys::punch_hole(&self.file, block * BLOCK as u64, BLOCK as u64);
            }
        }
        self.pending.clear();
        Ok(())
    }
}

/// Neighbours together.
fn runs(pending: &BTreeMap<u64, u8>) -> Vec<(u64, Vec<u8>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (block, state) in pending {
        match runs.last_mut() {
            Some((first, states)) if *first + states.len() as u64 == *block => states.push(*state),
            _ => runs.push((*block, vec![*state])),
        }
    }
    runs
}

/// Makes blocks of a file zero.
pub fn clear(file: &File, first: u64, count: u64) -> io::Result<()> {
    let (offset, length) = (first * BLOCK as u64, count * BLOCK as u64);
    if sys::punch_hole(file, offset, length).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; COPY * BLOCK];
    for block in (0..count).step_by(COPY) {
        let now = usize::try_from((count - block).min(COPY as u64)).unwrap_or(COPY);
        file.write_all_at(&zeros[..now * BLOCK], offset + block * BLOCK as u64)?;
    }
    Ok(())
}

/// Writes the layers of a volume into its base and removes them. False if somebody reads the volume: then it stays
/// as it is.
pub fn fold(directory: &Path) -> io::Result<bool> {
    let base = OpenOptions::new().read(true).write(true).open(directory.join("base"))?;
    match sys::lock(&base, true) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        locked => locked?,
    }
    let content = Content::of(base, directory)?;
    for layer in &content.layers {
        fold_layer(&content.base, layer, &layer.states(content.blocks)?)?;
    }
    content.base.sync_data()?;
    for layer in &content.layers {
        remove_layer(directory, layer.number)?;
    }
    remove_strays(directory)?;
    Ok(true)
}

fn fold_layer(base: &File, layer: &Layer, states: &[u8]) -> io::Result<()> {
    let mut buffer = vec![0; COPY * BLOCK];
    let mut block = 0;
    while block < states.len() {
        let state = states[block];
        let same = states[block..].iter().take_while(|other| **other == state);
        let count = same.take(COPY).count();
        let offset = (block * BLOCK) as u64;
        match state {
            HERE => {
                let buffer = &mut buffer[..count * BLOCK];
                layer.file.read_exact_at(buffer, offset)?;
                base.write_all_at(buffer, offset)?;
            }
            ZERO => clear(base, block as u64, count as u64)?,
            ABSENT.. => {}
        }
        block += count;
    }
    Ok(())
}

/// The layers that count, oldest first.
fn layers(directory: &Path, blocks: u64) -> io::Result<Vec<Layer>> {
    let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let numbers = numbers(directory, "map")?;
    if numbers.len() > LAYERS_MAX {
        return Err(damaged(format!("{} layers are too many", numbers.len())));
    }
    let mut layers = Vec::new();
    for number in numbers {
        let map = map_path(directory, number);
        let path = layer_path(directory, number);
        let file = File::open(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        if file.metadata()?.len() != blocks * BLOCK as u64 {
            return Err(damaged(format!("{} has another length", path.display())));
        }
        layers.push(Layer { number, file, map });
    }
    Ok(layers)
}

/// Numbers of the files with this ending, in order.
fn numbers(directory: &Path, ending: &str) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(number), true) = (number, path.extension().is_some_and(|it| it == ending)) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn layer_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.layer"))
}

fn map_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.map"))
}

/// Without its map a layer does not count; that is on the disk before the next one goes.
fn remove_layer(directory: &Path, number: u64) -> io::Result<()> {
    fs::remove_file(map_path(directory, number))?;
    File::open(directory)?.sync_all()?;
    fs::remove_file(layer_path(directory, number))
}

/// Content that was never told of.
fn remove_strays(directory: &Path) -> io::Result<()> {
    let known = numbers(directory, "map")?;
    for number in numbers(directory, "layer")? {
        if !known.contains(&number) {
            fs::remove_file(layer_path(directory, number))?;
        }
    }
    Ok(())
}

fn read_turn(lock: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let length = lock.read_at(&mut bytes, 0)?;
    Ok(if length == bytes.len() { u64::from_le_bytes(bytes) } else { 0 })
}

#[cfg(test)]
mod tests;
