//! Writing a stopped machine to a directory.
//!
//! | file | content |
//! |---|---|
//! | `state` | header, then everything but memory and disks (see [`crate::saved`]) |
//! | `disks` | header, then what each disk is made of |
//! | `memory` | guest RAM in order; pages that were never touched are holes |
//! | `disk-N` | changed blocks of disk N; of a slot, all blocks |
//! | `hot` | pages of memory that were touched since the machine was restored, if it was |
//!
//! Of a machine whose disks alone are wanted, only `disks` and `disk-N` are written.
//!
//! The directory is written under a temporary name, synced, and renamed at the end: it is there whole or
//! not at all. The writer is a forked copy of the machine, so the source runs on meanwhile.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ramet_proto::control::{Code, Failure, Saved};

use crate::machine::{Machine, host};
use crate::memory::PAGE;
use crate::saved::{self, MemoryRecord, State};
use crate::sys;

/// Pages looked at together; runs of zeros of this size become holes.
const CHUNK_PAGES: usize = 512;

/// The directory being written.
pub struct Directory {
    handle: File,
    sync: bool,
    only_disks: bool,
    temporary: PathBuf,
    target: PathBuf,
}

impl Directory {
    /// Makes it, under its temporary name. With `sync`, what is written is on the disk at the end.
    pub fn make(path: &str, sync: bool, only_disks: bool) -> Result<Self, Failure> {
        let target = PathBuf::from(path);
        let bad = |message: String| Failure { code: Code::BadFile, message };
        if !target.is_absolute() {
            return Err(bad(format!("{path} is not an absolute path")));
        }
        if target.exists() {
            return Err(bad(format!("{path} exists already; choose another directory")));
        }
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(bad(format!("{path} is no directory to write to")));
        };
        let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let temporary = parent.join(name);
        let made = fs::create_dir(&temporary).and_then(|()| File::open(&temporary));
        let handle = made.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => host(path, &error),
            _ => bad(format!("cannot make {path}: {error}")),
        })?;
        Ok(Self { handle, sync, only_disks, temporary, target })
    }

    /// Removes what was written.
    pub fn remove(&self) {
        // What cannot be removed has a temporary name and is nobody's state.
        let _left = fs::remove_dir_all(&self.temporary);
    }

    fn create(&self, name: &str) -> io::Result<File> {
        File::create_new(self.temporary.join(name))
    }

    fn close(&self, file: &File) -> io::Result<()> {
        if self.sync { file.sync_all() } else { Ok(()) }
    }

    fn publish(&self) -> io::Result<()> {
        self.close(&self.handle)?;
        fs::rename(&self.temporary, &self.target)?;
        if !self.sync {
            return Ok(());
        }
        File::open(self.target.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

impl AsRawFd for Directory {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}

/// Writes the machine, which is stopped and whose streams are disowned.
pub fn write(machine: &Machine, directory: &Directory) -> Result<Saved, Failure> {
    write_files(machine, directory).map_err(|error| {
        let place = directory.target.display();
        let mut failure = host("space", &error);
        failure.message = format!("cannot write {place}: {error}");
        failure
    })
}

fn write_files(machine: &Machine, directory: &Directory) -> io::Result<Saved> {
    let began = Instant::now();
    let memory_bytes = if directory.only_disks { 0 } else { write_machine(machine, directory)? };
    let disk_bytes = write_disks(machine, directory)?;
    directory.publish()?;
    let write_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let needs = saved::needs(machine.cpuid.first().map_or(&[], |cpuid| cpuid.as_slice()));
    Ok(Saved { pause_us: 0, write_us, memory_bytes, disk_bytes, needs })
}

/// Writes everything but the disks. Bytes of memory.
fn write_machine(machine: &Machine, directory: &Directory) -> io::Result<u64> {
    // Before memory is read, which touches all of it.
    let hot = machine.ram.file().map(|_| touched_runs(machine)).transpose()?;
    let memory_file = directory.create(saved::MEMORY)?;
    let memory = write_memory(machine, directory, &memory_file)?;
    let memory_bytes = memory.bytes;
    let state = State::of(machine, memory).map_err(io::Error::other)?;
    let state_file = directory.create(saved::STATE)?;
    saved::write_state(&state_file, &state)?;
    directory.close(&state_file)?;
    if let Some(hot) = hot {
        let file = directory.create(saved::HOT)?;
        serde_json::to_writer(&file, &hot)?;
        directory.close(&file)?;
    }
    Ok(memory_bytes)
}

/// Writes the disks. Bytes of their content.
fn write_disks(machine: &Machine, directory: &Directory) -> io::Result<u64> {
    let mut disks = Vec::new();
    let mut disk_bytes = 0;
    // Without the machine nobody has mounted what is in its slots.
    let count = if directory.only_disks { machine.bases.len() } else { machine.disks.len() };
    for (number, disk) in machine.disks.iter().take(count).enumerate() {
        // Slots have none.
        let base = machine.bases.get(number).map(String::as_str);
        let file = directory.create(&saved::disk_name(number))?;
        let record = disk.save(base, &file)?;
        directory.close(&file)?;
        disk_bytes += record.content_blocks() * crate::disk::BLOCK as u64;
        disks.push(saved::DiskFile {
            base: base.map(|base| saved::Stamp::of(&File::open(base)?)).transpose()?,
            content: saved::checksum(&file)?,
            stamp: saved::Stamp::of(&file)?,
            record,
        });
    }
    let file = directory.create(saved::DISKS)?;
    saved::write_disks(&file, &disks)?;
    directory.close(&file)?;
    Ok(disk_bytes)
}

/// Writes RAM, with holes where nothing was ever written or all is zero, and its checksums.
fn write_memory(machine: &Machine, directory: &Directory, file: &File) -> io::Result<MemoryRecord> {
    let ram = &machine.ram;
    file.set_len(ram.size() as u64)?;
    let mut record = MemoryRecord { chunks: Vec::new(), bytes: 0, stamp: None };
    let mut buffer = vec![0; CHUNK_PAGES * PAGE];
    for offset in (0..ram.size()).step_by(CHUNK_PAGES * PAGE) {
        if !touched(machine, offset)? {
            record.chunks.push(None);
            continue;
        }
        ram.copy_out(offset, &mut buffer);
        let mut written = false;
        for (number, page) in buffer.chunks(PAGE).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                written = true;
                record.bytes += PAGE as u64;
                ram.write_range(file, offset + number * PAGE, PAGE)?;
            }
        }
        record.chunks.push(written.then(|| saved::chunk_checksum(&buffer)));
    }
    directory.close(file)?;
    record.stamp = Some(saved::Stamp::of(file)?);
    Ok(record)
}

/// Whether a chunk may hold anything but zeros.
fn touched(machine: &Machine, offset: usize) -> io::Result<bool> {
    let ram = &machine.ram;
    if ram.present(offset, CHUNK_PAGES)?.contains(&true) {
        return Ok(true);
    }
    let Some(file) = ram.file() else { return Ok(false) };
    let end = (offset + CHUNK_PAGES * PAGE) as u64;
    Ok(sys::next_data(file, offset as u64)?.is_some_and(|(start, _)| start < end))
}

/// Runs of pages that this machine, or one that it was forked from, has touched since it was restored: others were
/// never looked at in the memory file.
fn touched_runs(machine: &Machine) -> io::Result<Vec<(u64, u64)>> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for offset in (0..machine.ram.size()).step_by(CHUNK_PAGES * PAGE) {
        let present = machine.ram.present(offset, CHUNK_PAGES)?;
        let first = (offset / PAGE) as u64;
        for page in (first..).zip(present).filter_map(|(page, here)| here.then_some(page)) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => runs.push((page, 1)),
            }
        }
    }
    Ok(runs)
}
