//! Making a machine from a directory that [`crate::save`] wrote.
//!
//! Everything is checked before anything is made: version, processor, checksums, base images. The memory file
//! is mapped privately and its pages are read when the guest touches them. Files that are not there yet are brought
//! by a [`Pager`] while the machine runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use kvm_bindings::CpuId;
use ramet_proto::control::{Attach, Boot, Code, Failure, Restore, SLOTS_MAX, Start};

use crate::devices::Bus;
use crate::devices::virtio::net::Net;
use crate::devices::virtio::vsock::Vsock;
use crate::disk::Disk;
use crate::kvm::{Host, check_cpuid};
use crate::machine::{
    DISKS_MAX, Machine, Stopped, bad_file, host, no_kvm, open_layers, open_volume, transports,
};
use crate::memory::{PAGE, Ram};
use crate::pager::{Pager, Plan};
use crate::saved::{self, Bad, CHUNK, DiskFile, MemoryRecord, Stamp, State};
use crate::vcpu::Notices;

/// Most disks and slots.
const DEVICES_MAX: usize = DISKS_MAX + SLOTS_MAX as usize;

/// The machine, frozen.
pub fn restore(request: &Restore) -> Result<Machine, Failure> {
    let directory = Path::new(&request.directory);
    let (state, saved_disks) = (read_state(directory)?, read_disks(directory)?);
    let kvm = Host::open().map_err(|error| no_kvm(&error))?;
    for cpuid in &state.cpuid {
        check_cpuid(cpuid, kvm.supported_cpuid()).map_err(|error| Failure {
            code: Code::OtherCpu,
            message: format!("{} cannot run here: {error}", request.directory),
        })?;
    }
    let notices = Arc::new(Notices::new().map_err(|error| host("an event", &error))?);
    let stamps = Stamps::read(directory);
    let ram = map_memory(directory, &state, request, &stamps)?;
    let pager = match &request.pager {
        Some(socket) => {
            let plan = plan(socket, request, &state, &saved_disks)?;
            Some(start_pager(plan, &ram, &notices)?)
        }
        None => None,
    };
    let files = Files {
        directory,
        verify: request.verify,
        pager: pager.as_ref(),
        stamps: &stamps,
        volumes: &request.volumes,
    };
    let bases = bases(&saved_disks, &request.bases)?;
    check_slots(&saved_disks, &request.volumes)?;
    let disks = files.open_disks(&saved_disks, &bases, request.layers.as_deref())?;
    let bus = Bus::restored(state.bus, transports(&disks, state.network), Arc::clone(&notices));
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
        pager,
        vsock: Vsock::restored(state.vsock),
        net: state.network.then(Net::default),
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

/// The disks of a machine that boots with what was saved of another's.
pub fn boot_disks(boot: &Boot, directory: &str) -> Result<Vec<Disk>, Failure> {
    let directory = Path::new(directory);
    let mut saved = read_disks(directory)?;
    // What was in its slots is mounted by nobody.
    saved.retain(|disk| disk.base.is_some());
    let bases: Vec<String> = boot.disks.iter().map(|disk| disk.base.clone()).collect();
    let bases = bases_for(&saved, &bases)?;
    let same =
        saved.iter().zip(&boot.disks).all(|(old, new)| old.record.read_only == new.read_only);
    if !same {
        let message = "which disks are writable differs from what was saved".into();
        return Err(Failure { code: Code::BadValue, message });
    }
    let stamps = Stamps::read(directory);
    let files = Files { directory, verify: false, pager: None, stamps: &stamps, volumes: &[] };
    let mut disks = files.open_disks(&saved, &bases, boot.layers.as_deref())?;
    let layers = open_layers(boot.layers.as_deref())?;
    disks.extend((0..boot.slots).map(|_| Disk::slot(layers.clone())));
    Ok(disks)
}

fn refusal(directory: &Path, name: &str, bad: &Bad) -> Failure {
    let code = match bad {
        Bad::Version(..) => Code::OtherVersion,
        Bad::Damaged(_) => Code::Damaged,
        Bad::NoState | Bad::Read(_) => Code::BadFile,
    };
    Failure { code, message: format!("{}: {bad}", directory.join(name).display()) }
}

fn read_disks(directory: &Path) -> Result<Vec<DiskFile>, Failure> {
    let file = open(directory, saved::DISKS)?;
    let disks = saved::read_disks(&file).map_err(|bad| refusal(directory, saved::DISKS, &bad))?;
    match disks.len() {
        0..=DEVICES_MAX => Ok(disks),
        _ => Err(damaged(directory, saved::DISKS, "it has too many disks")),
    }
}

fn read_state(directory: &Path) -> Result<State, Failure> {
    let file = open(directory, saved::STATE)?;
    let state = saved::read_state(&file).map_err(|bad| refusal(directory, saved::STATE, &bad))?;
    let vcpus = state.vcpus.len();
    let sound = (1..=8).contains(&vcpus)
        && state.cpuid.len() == vcpus
        && state.bell.is_none_or(|bell| usize::from(bell) < vcpus)
        && state.memory.chunks.len() as u64 == state.ram_size.div_ceil(CHUNK as u64);
    if sound { Ok(state) } else { Err(damaged(directory, saved::STATE, "its parts disagree")) }
}

/// Stamps of files that somebody else has brought and checked.
struct Stamps(BTreeMap<String, Stamp>);

impl Stamps {
    fn read(directory: &Path) -> Self {
        // Without them files are checked.
        let text = std::fs::read(directory.join(saved::STAMPS)).unwrap_or_default();
        Self(serde_json::from_slice(&text).unwrap_or_default())
    }

    fn vouch(&self, name: &str, stamp: &Stamp) -> bool {
        self.0.get(name) == Some(stamp)
    }
}

/// What a pager has to bring.
fn plan(
    socket: &str,
    request: &Restore,
    state: &State,
    disks: &[DiskFile],
) -> Result<Plan, Failure> {
    if request.start != Start::Run {
        let message = "only a machine that runs can wait for its files".into();
        return Err(Failure { code: Code::BadValue, message });
    }
    let disks = disks.iter().enumerate();
    let disks =
        disks.map(|(number, disk)| (saved::disk_name(number), disk.record.content_blocks()));
    Ok(Plan {
        socket: socket.to_owned(),
        directory: request.directory.clone(),
        files: disks.chain([(saved::MEMORY.to_owned(), state.ram_size / PAGE as u64)]).collect(),
        memory: saved::MEMORY.to_owned(),
    })
}

fn start_pager(plan: Plan, ram: &Ram, notices: &Arc<Notices>) -> Result<Pager, Failure> {
    Pager::start(plan, ram.clone(), Arc::clone(notices)).map_err(|error| host("a pager", &error))
}

fn map_memory(
    directory: &Path,
    state: &State,
    request: &Restore,
    stamps: &Stamps,
) -> Result<Ram, Failure> {
    let file = open(directory, saved::MEMORY)?;
    let fail = |error| bad_file(&directory.join(saved::MEMORY).to_string_lossy(), &error);
    let stamp = Stamp::of(&file).map_err(fail)?;
    if stamp.size() != state.ram_size {
        let what = format!("it has {} bytes and must have {}", stamp.size(), state.ram_size);
        return Err(damaged(directory, saved::MEMORY, &what));
    }
    let size = usize::try_from(state.ram_size).unwrap_or(usize::MAX);
    if request.pager.is_some() {
        return Ram::awaited(file, size).map_err(|error| host("memory", &error));
    }
    let untouched =
        state.memory.stamp.as_ref() == Some(&stamp) || stamps.vouch(saved::MEMORY, &stamp);
    if request.verify || !untouched {
        verify_memory(directory, &file, &state.memory)?;
    }
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

/// Files of a saved machine, and why they may be trusted.
struct Files<'a> {
    directory: &'a Path,
    verify: bool,
    pager: Option<&'a Pager>,
    stamps: &'a Stamps,
    /// Volumes that it goes on to write.
    volumes: &'a [Attach],
}

impl Files<'_> {
    /// Disks without a base are slots.
    fn open_disks(
        &self,
        disks: &[DiskFile],
        bases: &[String],
        layers: Option<&str>,
    ) -> Result<Vec<Disk>, Failure> {
        let layers = open_layers(layers)?;
        let numbered = disks.iter().enumerate();
        let opened = numbered.map(|(number, saved)| {
            let slot = number.checked_sub(bases.len());
            let is_its = |attach: &&Attach| Some(usize::from(attach.slot)) == slot;
            match self.volumes.iter().find(is_its) {
                Some(attach) => same_volume(attach, saved, layers.clone()),
                None => self.disk(number, saved, bases.get(number), &layers),
            }
        });
        opened.collect()
    }

    fn disk(
        &self,
        number: usize,
        saved: &DiskFile,
        base: Option<&String>,
        layers: &Option<Arc<File>>,
    ) -> Result<Disk, Failure> {
        let name = saved::disk_name(number);
        let base = match (base, &saved.base) {
            (Some(path), Some(stamp)) => Some(open_base(path, stamp)?),
            (None, None) => None,
            _ => return Err(damaged(self.directory, saved::DISKS, "a slot before a disk")),
        };
        if layers.is_none() && !saved.record.read_only {
            let message = "a writable disk needs a directory for its layers".into();
            return Err(Failure { code: Code::BadValue, message });
        }
        let content = open(self.directory, &name)?;
        if self.pager.is_none() {
            self.check_content(&name, &content, saved)?;
        }
        let arrivals = self.pager.map(|pager| pager.arrivals(&name));
        let disk = Disk::restored(&saved.record, base, Some(content), arrivals, layers.clone());
        disk.map_err(|error| damaged(self.directory, &name, &error.to_string()))
    }

    fn check_content(&self, name: &str, content: &File, saved: &DiskFile) -> Result<(), Failure> {
        let fail = |error| bad_file(&self.directory.join(name).to_string_lossy(), &error);
        let stamp = Stamp::of(content).map_err(fail)?;
        if !self.verify && (stamp == saved.stamp || self.stamps.vouch(name, &stamp)) {
            return Ok(());
        }
        if saved::checksum(content).map_err(fail)? != saved.content {
            return Err(damaged(self.directory, name, "its checksum is wrong"));
        }
        Ok(())
    }
}

fn open_base(path: &str, saved: &Stamp) -> Result<File, Failure> {
    let base = File::open(path).map_err(|error| bad_file(path, &error))?;
    let stamp = Stamp::of(&base).map_err(|error| bad_file(path, &error))?;
    if stamp.size() != saved.size() {
        let message = format!("{path} is not the base image that it was");
        return Err(Failure { code: Code::Damaged, message });
    }
    Ok(base)
}

/// The volume that was in a slot, if it is still what it was.
fn same_volume(
    attach: &Attach,
    saved: &DiskFile,
    layers: Option<Arc<File>>,
) -> Result<Disk, Failure> {
    let disk = open_volume(&attach.volume, attach.read_only, layers)?;
    let turn = saved.record.turn;
    if turn.is_none() || disk.turn() != turn || disk.blocks() != saved.record.blocks {
        let message = format!("the volume {} was written since", attach.volume);
        return Err(Failure { code: Code::VolumeChanged, message });
    }
    Ok(disk)
}

/// Refuses volumes for slots that are not there.
fn check_slots(disks: &[DiskFile], volumes: &[Attach]) -> Result<(), Failure> {
    let slots = disks.iter().filter(|disk| disk.base.is_none()).count();
    let outside = |attach: &&Attach| usize::from(attach.slot) >= slots;
    let Some(attach) = volumes.iter().find(outside) else { return Ok(()) };
    let message = format!("there is no slot {}: this machine has {slots}", attach.slot);
    Err(Failure { code: Code::BadValue, message })
}

/// Where the base images are: as the request says, or where they were.
fn bases(disks: &[DiskFile], given: &[String]) -> Result<Vec<String>, Failure> {
    if given.is_empty() {
        return Ok(disks.iter().filter_map(|disk| disk.record.base.clone()).collect());
    }
    bases_for(disks, given)
}

fn bases_for(disks: &[DiskFile], given: &[String]) -> Result<Vec<String>, Failure> {
    let disks = disks.iter().filter(|disk| disk.base.is_some()).count();
    if given.len() != disks {
        let given = given.len();
        let message = format!("{given} base images for {disks} disks");
        return Err(Failure { code: Code::BadValue, message });
    }
    Ok(given.to_vec())
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
