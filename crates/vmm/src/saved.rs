//! The files of a saved machine: their names, their form, and how to tell that they are intact.
//!
//! The state file is `RAMETVM\0`, a `u32` version, a `u64` length, a BLAKE3 hash of the body, and the body in
//! postcard; the file that describes the disks likewise, with `RAMETDK\0` and a version of its own, so that disks outlive
//! changes of the machine. Both are small and always checked whole. The other files are large and not read: checksums are
//! recorded, for every 2 MiB of memory, and a [`Stamp`] of each file as the writer left it. A file whose
//! stamp is the same was not written since, and so is one that has the stamp in the file [`STAMPS`], where
//! somebody who brought and checked the files has noted it; any other is read and compared before it is used. Change a
//! structure in here, and [`VERSION`] goes up.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;

use kvm_bindings::kvm_cpuid_entry2;
use ramet_proto::needs::Needs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::devices::BusState;
use crate::devices::virtio::vsock::VsockState;
use crate::disk::DiskRecord;
use crate::kvm::{self, Plan, VcpuState};
use crate::machine::Machine;

/// Of the form of the machine's files.
pub const VERSION: u32 = 5;
/// Of the form of the disks' files.
pub const DISKS_VERSION: u32 = 2;
/// Name of the file with the stamps of files that were brought and checked by somebody else: JSON, by name, `size`,
/// `inode`, `changed` (seconds and nanoseconds).
pub const STAMPS: &str = "stamps";
/// Name of the file with the pages of memory that were touched since the machine was restored: JSON, runs of
/// first page and number of pages. Absent for a machine that was booted.
pub const HOT: &str = "hot";
/// Name of the state file.
pub const STATE: &str = "state";
/// Name of the file that describes the disks.
pub const DISKS: &str = "disks";
/// Name of the memory file.
pub const MEMORY: &str = "memory";
/// Bytes of memory with one checksum.
pub const CHUNK: usize = 2 << 20;
/// What a file that is checked whole begins with.
struct Kind {
    magic: [u8; 8],
    version: u32,
}

const STATE_KIND: Kind = Kind { magic: *b"RAMETVM\0", version: VERSION };
const DISKS_KIND: Kind = Kind { magic: *b"RAMETDK\0", version: DISKS_VERSION };
/// Largest state that is read.
const STATE_MAX: u64 = 256 << 20;

/// BLAKE3.
pub type Checksum = [u8; 32];

/// Name of a disk's file.
pub fn disk_name(number: usize) -> String {
    format!("disk-{number}")
}

/// What tells whether a file was touched: the kernel changes `changed` with every write, and nobody can
/// set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    size: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// Of a file.
    pub fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { size: meta.len(), inode: meta.ino(), changed: (meta.ctime(), meta.ctime_nsec()) })
    }

    /// Length of the file.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// The memory file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemoryRecord {
    /// For each chunk; nothing for one that is all zero.
    pub chunks: Vec<Option<Checksum>>,
    /// Bytes that are not holes.
    pub bytes: u64,
    /// As the writer left it.
    pub stamp: Option<Stamp>,
}

/// A disk's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskFile {
    /// The base image, when the machine was saved; none for a slot.
    pub base: Option<Stamp>,
    /// Of the content.
    pub content: Checksum,
    /// As the writer left it.
    pub stamp: Stamp,
    /// Which blocks it holds.
    pub record: DiskRecord,
}

/// The state file's body.
#[derive(Serialize, Deserialize)]
pub struct State {
    /// Bytes of RAM.
    pub ram_size: u64,
    /// The guest has an agent.
    pub agent: bool,
    /// Forks since boot.
    pub generation: u32,
    /// What each vCPU says about itself.
    pub cpuid: Vec<Vec<kvm_cpuid_entry2>>,
    /// Their state.
    pub vcpus: Vec<VcpuState>,
    /// What it is made of.
    pub plan: Plan,
    /// The vCPU at the doorbell.
    pub bell: Option<u8>,
    /// KVM's clock.
    pub clock_ns: u64,
    /// Devices.
    pub bus: BusState,
    /// Streams.
    pub vsock: VsockState,
    /// It has a network device.
    pub network: bool,
    /// Memory.
    pub memory: MemoryRecord,
}

impl State {
    /// Of a stopped machine.
    pub fn of(machine: &Machine, memory: MemoryRecord) -> Result<Self, &'static str> {
        let stopped = machine.stopped.as_ref().ok_or("the machine is not stopped")?;
        Ok(Self {
            ram_size: machine.ram.size() as u64,
            agent: machine.agent,
            generation: machine.generation,
            cpuid: machine.cpuid.iter().map(|cpuid| cpuid.as_slice().to_vec()).collect(),
            vcpus: stopped.vcpus.clone(),
            plan: Plan::clone(&machine.plan),
            bell: stopped.bell,
            clock_ns: stopped.clock_ns,
            bus: machine.bus.state(),
            vsock: machine.vsock.state(),
            network: machine.net.is_some(),
            memory,
        })
    }
}

/// What a machine with such a processor needs to go on from files.
pub fn needs(cpuid: &[kvm_cpuid_entry2]) -> Needs {
    Needs { format: VERSION, agent: ramet_proto::VERSION, processor: kvm::processor(cpuid) }
}

/// Why a state file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Bad {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is something else.
    #[error("it is nothing that a monitor has saved")]
    NoState,
    /// Written by another version.
    #[error("it has version {0} and this monitor reads version {1}")]
    Version(u32, u32),
    /// Truncated or altered.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Writes the state file.
pub fn write_state(file: &File, state: &State) -> io::Result<()> {
    write(file, &STATE_KIND, state)
}

/// Reads and checks the state file.
pub fn read_state(file: &File) -> Result<State, Bad> {
    read(file, &STATE_KIND)
}

/// Writes the file that describes the disks.
pub fn write_disks(file: &File, disks: &[DiskFile]) -> io::Result<()> {
    write(file, &DISKS_KIND, disks)
}

/// Reads and checks the file that describes the disks.
pub fn read_disks(file: &File) -> Result<Vec<DiskFile>, Bad> {
    read(file, &DISKS_KIND)
}

fn write<T: Serialize + ?Sized>(mut file: &File, kind: &Kind, content: &T) -> io::Result<()> {
    let body = postcard::to_stdvec(content).map_err(io::Error::other)?;
    let mut header = kind.magic.to_vec();
    header.extend(kind.version.to_le_bytes());
    header.extend((body.len() as u64).to_le_bytes());
    header.extend(blake3::hash(&body).as_bytes());
    file.write_all(&header)?;
    file.write_all(&body)
}

fn read<T: DeserializeOwned>(mut file: &File, kind: &Kind) -> Result<T, Bad> {
    let mut header = [0; 52];
    file.read_exact(&mut header).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Bad::Damaged("it is cut short"),
        _ => Bad::Read(error),
    })?;
    let (magic, rest) = header.split_at(8);
    let (version, rest) = rest.split_at(4);
    let (length, hash) = rest.split_at(8);
    if magic != kind.magic {
        return Err(Bad::NoState);
    }
    let version = u32::from_le_bytes(version.try_into().unwrap_or_default());
    if version != kind.version {
        return Err(Bad::Version(version, kind.version));
    }
    let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
    if length > STATE_MAX {
        return Err(Bad::Damaged("its length is impossible"));
    }
    let mut body = Vec::new();
    file.take(length + 1).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(Bad::Damaged("its length is wrong"));
    }
    if blake3::hash(&body).as_bytes() != hash {
        return Err(Bad::Damaged("its checksum is wrong"));
    }
    postcard::from_bytes(&body).map_err(|_| Bad::Damaged("its content makes no sense"))
}

/// Of a chunk of memory.
pub fn chunk_checksum(bytes: &[u8]) -> Checksum {
    *blake3::hash(bytes).as_bytes()
}

/// Of a whole file.
pub fn checksum(file: &File) -> io::Result<Checksum> {
    use std::os::unix::fs::FileExt;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            count => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
        }
    }
}

#[cfg(test)]
pub mod tests;
