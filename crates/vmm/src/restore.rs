//! Making a machine from a directory that [`crate::save`] wrote.
//!
//! Everything is checked before anything is made: version, processor, checksums, base images. The memory file
//! is mapped privately and its pages are read when the guest touches them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use kvm_bindings::CpuId;
use ramet_proto::control::{Code, Failure, Restore};

use crate::devices::Bus;
use crate::devices::virtio::vsock::Vsock;
use crate::disk::Disk;
use crate::kvm::{Host, check_cpuid};
use crate::machine::{Machine, Stopped, bad_file, host, no_kvm, open_layers, transports};
use crate::memory::Ram;
use crate::saved::{self, Bad, CHUNK, MemoryRecord, Stamp, State};
use crate::vcpu::Notices;

/// The machine, frozen.
pub fn restore(request: &Restore) -> Result<Machine, Failure> {
    let directory = Path::new(&request.directory);
    let state = read_state(directory)?;
    let kvm = Host::open().map_err(|error| no_kvm(&error))?;
    for cpuid in &state.cpuid {
        check_cpuid(cpuid, kvm.supported_cpuid()).map_err(|error| Failure {
            code: Code::OtherCpu,
            message: format!("{} cannot run here: {error}", request.directory),
        })?;
    }
    let ram = map_memory(directory, &state, request.verify)?;
    let (disks, bases) = open_disks(directory, &state, request)?;
    let notices = Arc::new(Notices::new().map_err(|error| host("an event", &error))?);
    let bus = Bus::restored(state.bus, transports(&disks), Arc::clone(&notices));
    let bus = bus.map_err(|what| damaged(directory, saved::STATE, what))?;
    let cpuid = state.cpuid.iter().map(|entries| CpuId::from_entries(entries));
    let cpuid: Vec<_> = cpuid
        .collect::<Result<_, _>>()
        .map_err(|_| damaged(directory, saved::STATE, "too many CPUID entries"))?;
    Ok(Machine {
        kvm,
        vcpu_count: u8::try_from(state.vcpus.len()).unwrap_or(u8::MAX),
        agent: state.agent,
        ram,
        bus: Arc::new(bus),
        notices,
        disks,
        bases,
        vsock: Vsock::restored(state.vsock),
        cpuid,
        plan: Arc::new(state.plan),
        generation: state.generation,
        stopped: Some(Stopped {
            vcpus: state.vcpus,
            clock_ns: state.clock_ns,
            taken: None,
            bell: state.bell,
        }),
    })
}

fn read_state(directory: &Path) -> Result<State, Failure> {
    let file = open(directory, saved::STATE)?;
    let state = saved::read_state(&file).map_err(|bad| {
        let code = match bad {
            Bad::Version(_) => Code::OtherVersion,
            Bad::Damaged(_) => Code::Damaged,
            Bad::NoState | Bad::Read(_) => Code::BadFile,
        };
        let message = format!("{}: {bad}", directory.join(saved::STATE).display());
        Failure { code, message }
    })?;
    let vcpus = state.vcpus.len();
    let sound = (1..=8).contains(&vcpus)
        && state.cpuid.len() == vcpus
        && state.bell.is_none_or(|bell| usize::from(bell) < vcpus)
        && state.memory.chunks.len() as u64 == state.ram_size.div_ceil(CHUNK as u64);
    if sound { Ok(state) } else { Err(damaged(directory, saved::STATE, "its parts disagree")) }
}

fn map_memory(directory: &Path, state: &State, verify: bool) -> Result<Ram, Failure> {
    let file = open(directory, saved::MEMORY)?;
    let fail = |error| bad_file(&directory.join(saved::MEMORY).to_string_lossy(), &error);
    let stamp = Stamp::of(&file).map_err(fail)?;
    if stamp.size() != state.ram_size {
        let what = format!("it has {} bytes and must have {}", stamp.size(), state.ram_size);
        return Err(damaged(directory, saved::MEMORY, &what));
    }
    if verify || state.memory.stamp.as_ref() != Some(&stamp) {
        verify_memory(directory, &file, &state.memory)?;
    }
    let size = usize::try_from(state.ram_size).unwrap_or(usize::MAX);
    Ram::private_of(file, size).map_err(|error| host("memory", &error))
}

/// Reads all of it and compares.
fn verify_memory(directory: &Path, file: &File, record: &MemoryRecord) -> Result<(), Failure> {
    let fail = |error| bad_file(&directory.join(saved::MEMORY).to_string_lossy(), &error);
    let mut buffer = vec![0; CHUNK];
    for (number, expected) in record.chunks.iter().enumerate() {
        let offset = (number * CHUNK) as u64;
        file.read_exact_at(&mut buffer, offset).map_err(fail)?;
        let intact = match expected {
            Some(checksum) => saved::chunk_checksum(&buffer) == *checksum,
            None => buffer.iter().all(|byte| *byte == 0),
        };
        if !intact {
            let what = format!("the 2 MiB at {offset:#x} were altered");
            return Err(damaged(directory, saved::MEMORY, &what));
        }
    }
    Ok(())
}

fn open_disks(
    directory: &Path,
    state: &State,
    request: &Restore,
) -> Result<(Vec<Disk>, Vec<String>), Failure> {
    let layers = open_layers(request.layers.as_deref())?;
    let bases = bases(state, request)?;
    let mut disks = Vec::new();
    for (number, (saved, base_path)) in state.disks.iter().zip(&bases).enumerate() {
        let name = saved::disk_name(number);
        let base = File::open(base_path).map_err(|error| bad_file(base_path, &error))?;
        let stamp = Stamp::of(&base).map_err(|error| bad_file(base_path, &error))?;
        if stamp.size() != saved.base.size() {
            let message = format!("{base_path} is not the base image that it was");
            return Err(Failure { code: Code::Damaged, message });
        }
        if layers.is_none() && !saved.record.read_only {
            let message = "a writable disk needs a directory for its layers".into();
            return Err(Failure { code: Code::BadValue, message });
        }
        let content = open(directory, &name)?;
        let checksum = saved::checksum(&content)
            .map_err(|error| bad_file(&directory.join(&name).to_string_lossy(), &error))?;
        if checksum != saved.content {
            return Err(damaged(directory, &name, "its checksum is wrong"));
        }
        let disk = Disk::restored(&saved.record, base, Some(content), layers.clone());
        disks.push(disk.map_err(|error| damaged(directory, &name, &error.to_string()))?);
    }
    Ok((disks, bases))
}

/// Where the base images are: as the request says, or where they were.
fn bases(state: &State, request: &Restore) -> Result<Vec<String>, Failure> {
    if request.bases.is_empty() {
        return Ok(state.disks.iter().map(|disk| disk.record.base.clone()).collect());
    }
    if request.bases.len() != state.disks.len() {
        let (given, disks) = (request.bases.len(), state.disks.len());
        let message = format!("{given} base images for {disks} disks");
        return Err(Failure { code: Code::BadValue, message });
    }
    Ok(request.bases.clone())
}

fn open(directory: &Path, name: &str) -> Result<File, Failure> {
    let path = directory.join(name);
    File::open(&path).map_err(|error| bad_file(&path.to_string_lossy(), &error))
}

fn damaged(directory: &Path, name: &str, what: &str) -> Failure {
    let path = directory.join(name);
    let message = format!("{} is damaged: {what}; restore it from a copy", path.display());
    Failure { code: Code::Damaged, message }
}

#[cfg(test)]
mod tests;
