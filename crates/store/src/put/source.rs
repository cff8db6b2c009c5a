//! Files to be stored: which there are, and where they have data.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, seek};

use crate::chunk::{CHUNK_PAGES, PAGE};
use crate::error::{Error, Result};
use crate::id::check_name;
use crate::manifest::BLOBS_MAX;

/// Bytes of a region: the aligned part of a blob that is looked at together.
pub(crate) const REGION: usize = CHUNK_PAGES * PAGE;

/// A file to be stored.
pub(crate) struct BlobFile {
    pub name: String,
    pub length: u64,
    file: File,
    /// Where data is, by byte; the rest are holes.
    data: Vec<(u64, u64)>,
}

/// The files of a directory, by name. Anything that is not a regular file is refused.
pub(crate) fn scan(directory: &Path) -> Result<Vec<BlobFile>> {
    let failed = |error| Error::file("read directory", directory, error);
    let mut blobs = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let path = directory.join(&name);
        let name =
            name.to_str().ok_or_else(|| Error::bad(format!("{path:?} has no proper name")))?;
        check_name("blob", name)?;
        blobs.push(open(name, &path)?);
        if blobs.len() > BLOBS_MAX {
            return Err(Error::bad(format!("{directory:?} has more than {BLOBS_MAX} files")));
        }
    }
    blobs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(blobs)
}

fn open(name: &str, path: &Path) -> Result<BlobFile> {
    let failed = |error| Error::file("read", path, error);
    // A name that leads elsewhere, or a pipe that would be waited for, is not opened.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let refused = || Error::bad(format!("{path:?} is not a regular file"));
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => refused(),
        _ => failed(error),
    })?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refused());
    }
    let length = metadata.len();
    let data = data_ranges(&file, length).map_err(failed)?;
    Ok(BlobFile { name: name.to_owned(), length, file, data })
}

fn data_ranges(file: &File, length: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(length);
        if start >= end {
            break;
        }
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

impl BlobFile {
    /// Numbers of the regions that have data.
    pub fn regions(&self) -> Vec<u64> {
        let region = REGION as u64;
        let mut found = Vec::new();
        for (start, end) in &self.data {
            let first = (start / region).max(found.last().map_or(0, |last| last + 1));
            found.extend(first..end.div_ceil(region));
        }
        found
    }

    /// Reads a region's data to its place in `buffer`, which holds a region, and gives the numbers of its
    /// pages that may be other than zero.
    pub fn read(&self, region: u64, buffer: &mut [u8]) -> io::Result<Vec<u16>> {
        let page = PAGE as u64;
        let (begin, end) = (region * REGION as u64, (region + 1) * REGION as u64);
        let mut pages: Vec<u16> = Vec::new();
        let first = self.data.partition_point(|(_, data_end)| *data_end <= begin);
        for (start, data_end) in &self.data[first..] {
            if *start >= end {
                break;
            }
            // Whole pages, so that what was left in the buffer does not show.
            let from = (start.max(&begin) / page * page).max(begin);
            let to = data_end.min(&end).next_multiple_of(page);
            let place = local(from - begin)..local(to - begin);
            let readable = local(to.min(self.length) - begin);
            buffer[readable.min(place.end)..place.end].fill(0);
            self.file.read_exact_at(&mut buffer[place.start..readable.min(place.end)], from)?;
            let already = pages.last().map_or(0, |last| last + 1);
            let (low, high) = (local((from - begin) / page), local((to - begin) / page));
            let fresh = (low..high).filter_map(|page| u16::try_from(page).ok());
            pages.extend(fresh.filter(|page| *page >= already));
        }
        Ok(pages)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "offsets inside a region are below 2 MiB")]
fn local(offset: u64) -> usize {
    offset as usize
}
