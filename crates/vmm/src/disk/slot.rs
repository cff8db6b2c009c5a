//! A disk whose medium comes and goes: what a slot can do that other disks cannot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{BLOCK, Disk, Layer, Place, RUN_MAX, Volume};
use crate::sys;
use crate::volume::{self, Content, HERE, Writer, ZERO};

impl Disk {
    /// A slot without medium. What its machine writes to a volume that is not its own lies in `directory`.
    pub fn slot(directory: Option<Arc<File>>) -> Self {
        Self { slot: true, ..Self::of(None, 0, directory) }
    }

    /// A slot with a volume. With `read_only` the volume is not written: what the guest writes all the same, such as the
    /// rest of a journal, lies in a layer of its own. Fails with `WouldBlock` while somebody has the volume who must
    /// have it alone.
    pub fn with_volume(
        directory: &Path,
        read_only: bool,
        layers: Option<Arc<File>>,
    ) -> io::Result<Self> {
        if read_only {
            return Self::showing(Content::open(directory)?, layers).map(|(disk, _)| disk);
        }
        let (writer, content) = Writer::open(directory)?;
        let (mut disk, numbers) = Self::showing(content, layers)?;
        disk.volume = Some(Volume { writer, own: None, numbers: numbers.into_iter().collect() });
        Ok(disk)
    }

    fn showing(
        content: Content,
        directory: Option<Arc<File>>,
    ) -> io::Result<(Self, Vec<(u16, u64)>)> {
        let blocks = content.blocks;
        let mut disk = Self { slot: true, ..Self::of(Some(content.base), blocks, directory) };
        let mut numbers = Vec::new();
        for layer in content.layers {
            let states = layer.states(blocks)?;
            let number = u16::try_from(disk.layers.len()).map_err(io::Error::other)?;
            disk.layers.push(Some(Layer { file: Arc::new(layer.file), arrivals: None, live: 0 }));
            if !states.contains(&ZERO) {
                numbers.push((number, layer.number));
            }
            for (block, state) in (0..).zip(states) {
                match state {
                    HERE => disk.point(block, layer_place(number, block)),
                    ZERO => disk.point(block, Place::Zero),
                    _ => {}
                }
            }
        }
        numbers.retain(|(layer, _)| disk.layers[usize::from(*layer)].is_some());
        Ok((disk, numbers))
    }

    /// Whether it has no medium.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The turn of the volume that it writes.
    pub fn turn(&self) -> Option<u64> {
        self.volume.as_ref().map(|volume| volume.writer.turn())
    }

    /// The directory for layers.
    pub fn directory(&self) -> Option<Arc<File>> {
        self.directory.clone()
    }

    /// What was written to a volume is on the host's disk when this returns. Other disks have no names: what of them must
    /// outlive the processes is saved, and synced then.
    pub fn flush(&mut self) -> io::Result<()> {
        match (&mut self.volume, &self.base) {
            (Some(volume), Some(base)) => volume.writer.flush(base),
            _ => Ok(()),
        }
    }

    /// In a forked child: the volume is the source's. What it was at the fork stays, as a disk like others.
    pub fn disown(&mut self) {
        // Its descriptors are closed with everything else that is the source's.
        std::mem::forget(self.volume.take());
    }

    pub(super) fn write_volume(&mut self, first: u64, data: &[u8]) -> io::Result<()> {
        let count = (data.len() / BLOCK) as u64;
        if let (Some(volume), Some(base)) = (&mut self.volume, &self.base)
            && volume.writer.begin()?
        {
            return base.write_all_at(data, first * BLOCK as u64);
        }
        let (own, file) = self.volume_layer()?;
        file.write_all_at(data, first * BLOCK as u64)?;
        for block in first..first + count {
            self.tell(block, layer_place(own, block), HERE);
        }
        Ok(())
    }

    pub(super) fn discard_volume(&mut self, first: u64, count: u64) -> io::Result<()> {
        if let (Some(volume), Some(base)) = (&mut self.volume, &self.base)
            && volume.writer.begin()?
        {
            return volume::clear(base, first, count);
        }
        let (own, _) = self.volume_layer()?;
        if let Some(volume) = &mut self.volume {
            // Its zeros hide what is below, and nobody counts them: it stays.
            volume.numbers.remove(&own);
        }
        for block in first..first + count {
            self.tell(block, Place::Zero, ZERO);
        }
        Ok(())
    }

    /// Points a block to its new place, and has the volume note it.
    fn tell(&mut self, block: u64, place: Place, state: u8) {
        // What is told already need not be told again.
        if self.index.get(block) == place && state == HERE {
            return;
        }
        self.point(block, place);
        if let Some(volume) = &mut self.volume {
            volume.writer.note(block, state);
        }
    }

    fn volume_layer(&mut self) -> io::Result<(u16, Arc<File>)> {
        let blocks = self.blocks;
        let missing = || io::Error::other("no volume");
        let volume = self.volume.as_mut().ok_or_else(missing)?;
        let (file, number, fresh) = volume.writer.layer(blocks)?;
        if let (Some(own), false) = (volume.own, fresh) {
            return Ok((own, file));
        }
        let own = self.add_layer(Arc::clone(&file))?;
        let volume = self.volume.as_mut().ok_or_else(missing)?;
        volume.own = Some(own);
        volume.numbers.insert(own, number);
        Ok((own, file))
    }

    /// Nothing of a layer counts any more.
    pub(super) fn bury(&mut self, layer: u16) {
        if let Some(volume) = &mut self.volume
            && let Some(number) = volume.numbers.remove(&layer)
        {
            volume.writer.bury(number);
        }
    }

    /// Writes every block that may be other than zero to `content`, in order, and says which they are.
    pub(super) fn save_whole(&self, content: &File) -> io::Result<Vec<(u64, u32)>> {
        let mut runs: Vec<(u64, u32)> = Vec::new();
        let mut buffer = vec![0; RUN_MAX * BLOCK];
        let mut written = 0;
        let mut first = 0;
        while first < self.blocks {
            let most = usize::try_from(self.blocks - first).unwrap_or(RUN_MAX).min(RUN_MAX);
            let (place, count) = self.run(first, most);
            let count = match (place, &self.base) {
                (Place::Zero, _) | (Place::Base, None) => {
                    first += count as u64;
                    continue;
                }
                (Place::Layer { .. }, _) => count,
                (Place::Base, Some(base)) => match data_of(base, first, count)? {
                    (0, hole) => {
                        first += hole;
                        continue;
                    }
                    (data, _) => usize::try_from(data).unwrap_or(count),
                },
            };
            let buffer = &mut buffer[..count * BLOCK];
            self.read(first, buffer)?;
            content.write_all_at(buffer, written)?;
            written += buffer.len() as u64;
            let count = u32::try_from(count).map_err(io::Error::other)?;
            match runs.last_mut() {
                Some((start, length))
                    if *start + u64::from(*length) == first
                        && length.checked_add(count).is_some() =>
                {
                    *length += count;
                }
                _ => runs.push((first, count)),
            }
            first += u64::from(count);
        }
        Ok(runs)
    }
}

fn layer_place(layer: u16, block: u64) -> Place {
    // A disk has no more blocks than that.
    Place::Layer { layer, slot: u32::try_from(block).unwrap_or(u32::MAX) }
}

/// How many of these blocks of a file hold data, or else how many are a hole.
fn data_of(file: &File, first: u64, count: usize) -> io::Result<(u64, u64)> {
    let (size, count) = (BLOCK as u64, count as u64);
    match sys::next_data(file, first * size)? {
        Some((start, end)) if start / size <= first => {
            Ok(((end.div_ceil(size) - first).clamp(1, count), 0))
        }
        Some((start, _)) => Ok((0, (start / size - first).min(count))),
        None => Ok((0, count)),
    }
}

/// What fork(2) makes of a disk: a child's, with the same open files.
#[cfg(test)]
pub fn forked(disk: &mut Disk) -> Disk {
    disk.freeze();
    let base = disk.base.as_ref().map(|base| base.try_clone().unwrap());
    let mut child = Disk { slot: true, ..Disk::of(base, disk.blocks, disk.directory.clone()) };
    for (block, place) in disk.index.changed() {
        child.index.set(block, place);
    }
    let same =
        |layer: &Layer| Layer { file: Arc::clone(&layer.file), arrivals: None, live: layer.live };
    child.layers = disk.layers.iter().map(|layer| layer.as_ref().map(same)).collect();
    child
}
