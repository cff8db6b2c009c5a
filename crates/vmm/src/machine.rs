//! The machine: memory, devices and, while it is stopped, the state of its vCPUs.
//!
//! All of it is plain memory and descriptors of files that nobody writes, so a forked child owns a complete
//! copy. What belongs to one process only, the KVM VM and its threads, is [`Running`] and is built anew from
//! the machine in each.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kvm_bindings::{CpuId, kvm_clock_data};
use kvm_ioctls::{VcpuFd, VmFd};
use ramet_proto::agent::Identity;
use ramet_proto::control::{Boot, Code, Failure, Payload, SLOTS_MAX};

use crate::boot::{self, BootError};
use crate::devices::virtio::{block, net, rng, vsock};
use crate::devices::{Bus, lock};
use crate::disk::Disk;
use crate::kvm::{self, Host, Plan, Tsc, VcpuState};
use crate::memory::{HUGE_PAGE, Ram};
use crate::pager::Pager;
use crate::vcpu::{Captured, Notices, Surroundings, Vcpus};

/// Least and most memory.
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 64..=16384;
const VCPUS: std::ops::RangeInclusive<u8> = 1..=8;
/// Most disks.
pub const DISKS_MAX: usize = 4;

/// A machine.
pub struct Machine {
    /// `/dev/kvm`.
    pub kvm: Host,
    /// vCPUs.
    pub vcpu_count: u8,
    /// The guest has an agent.
    pub agent: bool,
    /// Memory.
    pub ram: Ram,
    /// Devices, as the vCPUs see them.
    pub bus: Arc<Bus>,
    /// What vCPU threads tell the main thread.
    pub notices: Arc<Notices>,
    /// Disks, in the order of their devices; slots are the last of them.
    pub disks: Vec<Disk>,
    /// Paths of their base images, without slots.
    pub bases: Vec<String>,
    /// What is missing of memory and disks is on its way.
    pub pager: Option<Pager>,
    /// Streams; the device after the disks. The one after it is the random numbers'.
    pub vsock: vsock::Vsock,
    /// Frames; the last device, where there is one.
    pub net: Option<net::Net>,
    /// What each vCPU says about itself.
    pub cpuid: Vec<CpuId>,
    /// What makes up a vCPU's state.
    pub plan: Arc<Plan>,
    /// Forks between the machine that was booted and this one.
    pub generation: u32,
    /// vCPUs and clock, while stopped.
    pub stopped: Option<Stopped>,
}

/// What a stopped machine's processors looked like.
#[derive(Clone)]
pub struct Stopped {
    /// In order.
    pub vcpus: Vec<VcpuState>,
    /// KVM's clock, in ns.
    pub clock_ns: u64,
    /// When it showed that; absent if that was on another boot of the host.
    pub taken: Option<Instant>,
    /// The vCPU that is at the doorbell.
    pub bell: Option<u8>,
}

/// What runs a machine in this process.
pub struct Running {
    /// The threads.
    pub vcpus: Vcpus,
}

impl Machine {
    /// A new machine, ready to be started.
    pub fn boot(boot: &Boot) -> Result<(Self, Running), Failure> {
        check(boot)?;
        let kvm = Host::open().map_err(|error| no_kvm(&error))?;
        let size = usize::try_from(boot.memory_mib).unwrap_or(0) << 20;
        let ram = Ram::anonymous(size, boot.huge_pages).map_err(|e| host("memory", &e))?;
        let (disks, bases) = open_disks(boot)?;
        let notices = Arc::new(Notices::new().map_err(|e| host("an event", &e))?);
        let virtio = transports(&disks, boot.network);
        let bus = Arc::new(Bus::new(virtio, Arc::clone(&notices)));
        let cpuid = (0..boot.vcpus)
            .map(|index| kvm::cpuid_for_vcpu(kvm.supported_cpuid(), index, boot.vcpus))
            .collect();
        let mut machine = Self {
            kvm,
            vcpu_count: boot.vcpus,
            agent: matches!(boot.payload, Payload::Linux { .. }),
            ram,
            bus,
            notices,
            disks,
            bases,
            pager: None,
            vsock: vsock::Vsock::default(),
            net: boot.network.then(net::Net::default),
            cpuid,
            plan: Arc::default(),
            generation: 0,
            stopped: None,
        };
        let entry = machine.load_payload(&boot.payload).map_err(|error| bad_payload(&error))?;
        let running = machine.start_fresh(&boot.payload, entry).map_err(|e| kvm_failed(&e))?;
        Ok((machine, running))
    }

    fn load_payload(&self, payload: &Payload) -> Result<u64, BootError> {
        match payload {
            Payload::Flat { image } => boot::flat::load(&self.ram, image).map(|()| 0),
            Payload::Linux { kernel, initramfs, cmdline } => boot::linux::load(
                &self.ram,
                self.vcpu_count,
                self.bus.virtio_count(),
                kernel,
                initramfs.as_deref(),
                cmdline,
            ),
        }
    }

    fn start_fresh(&mut self, payload: &Payload, entry: u64) -> Result<Running, StartError> {
        let (vm, vcpus) = self.build()?;
        self.plan = Arc::new(self.kvm.plan(&vcpus[0])?);
        for (index, vcpu) in (0..).zip(&vcpus) {
            kvm::enable_xstate(vcpu, &self.cpuid[usize::from(index)])?;
            match payload {
                Payload::Flat { .. } => boot::flat::set_registers(vcpu, &self.ram, index)?,
                Payload::Linux { .. } if index == 0 => boot::linux::set_registers(vcpu, entry)?,
                Payload::Linux { .. } => boot::linux::set_memory_type(vcpu)?,
            }
        }
        self.run(vm, vcpus, Instant::now())
    }

    /// Starts the stopped machine in this process. Times are counted from `epoch`.
    pub fn start_stopped(&mut self, epoch: Instant) -> Result<Running, StartError> {
        let stopped = self.stopped.as_ref().expect("only called when stopped");
        let (vm, vcpus) = self.build()?;
        let elapsed = stopped.taken.map_or(0, |taken| taken.elapsed().as_nanos());
        let clock = stopped.clock_ns.saturating_add(u64::try_from(elapsed).unwrap_or(0));
        if clock != 0 {
            vm.set_clock(&kvm_clock_data { clock, ..Default::default() })?;
        }
        let tsc = if stopped.taken.is_some() { Tsc::Continue } else { Tsc::Resume };
        let now = kvm::host_tsc();
        for (vcpu, state) in vcpus.iter().zip(&stopped.vcpus) {
            kvm::load_vcpu(vcpu, state, tsc, now)?;
        }
        self.stopped = None;
        self.run(vm, vcpus, epoch)
    }

    fn build(&self) -> Result<(VmFd, Vec<VcpuFd>), StartError> {
        let vm = self.kvm.build_vm(&self.ram)?;
        let vcpus = (0..self.vcpu_count)
            .map(|index| {
                let vcpu = vm.create_vcpu(index.into())?;
                vcpu.set_cpuid2(&self.cpuid[usize::from(index)])?;
                Ok(vcpu)
            })
            .collect::<Result<_, kvm_ioctls::Error>>()?;
        Ok((vm, vcpus))
    }

    fn run(&self, vm: VmFd, vcpus: Vec<VcpuFd>, epoch: Instant) -> Result<Running, StartError> {
        let run_size = vm.run_size();
        let before = self.bus.interrupts.connect(Some(vm));
        assert!(before.is_none(), "a machine has one VM at a time");
        let around = Surroundings {
            bus: Arc::clone(&self.bus),
            notices: Arc::clone(&self.notices),
            plan: Arc::clone(&self.plan),
            epoch,
        };
        self.notices.entered_ns.store(0, Ordering::Release);
        let vcpus = Vcpus::start(vcpus, run_size, &around)?;
        // Whatever the guest kicked before is looked at again.
        for device in 0..self.bus.virtio_count() {
            self.notices.kick(device, 0);
        }
        Ok(Running { vcpus })
    }

    /// Captures the processors of a machine whose vCPUs run in this process.
    pub fn stop(&mut self, running: &Running, bell: Option<u8>) -> Result<(), String> {
        let vcpus = running.vcpus.stop()?;
        self.stopped = Some(Stopped {
            vcpus,
            clock_ns: self.bus.interrupts.clock_ns(),
            taken: Some(Instant::now()),
            bell,
        });
        Ok(())
    }

    /// Lets the vCPUs of this process go on. Drop what it returns when there is time.
    #[must_use]
    pub fn resume(&mut self, running: &Running) -> (Captured, Option<Stopped>) {
        (running.vcpus.go(), self.stopped.take())
    }

    /// In a stopped machine: what the agent will find at the doorbell when it goes on.
    pub fn set_answer(&mut self, value: u32, identity: Option<Identity>) -> Result<(), Failure> {
        let Some(stopped) = &mut self.stopped else { return Ok(()) };
        let Some(bell) = stopped.bell else { return Ok(()) };
        stopped.vcpus[usize::from(bell)].regs.rax = value.into();
        match identity {
            Some(identity) => self.load_identity(identity),
            None => Ok(()),
        }
    }

    /// Puts an identity, completed with fresh random bytes and the time, where the agent will read it.
    pub fn load_identity(&self, mut identity: Identity) -> Result<(), Failure> {
        let mut seed = [0; 64];
        crate::sys::fill_random(&mut seed).map_err(|e| host("random numbers", &e))?;
        identity.seed = crate::hex::encode(&seed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        identity.realtime_ns = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0));
        if lock(&self.bus.doorbell).load(&identity) {
            return Ok(());
        }
        Err(Failure { code: Code::BadValue, message: "the identity is longer than 64 KiB".into() })
    }

    /// Whether all of it is there, so that it can be forked.
    pub fn is_whole(&mut self) -> bool {
        if self.pager.as_mut().is_some_and(|pager| !pager.finished()) {
            return false;
        }
        self.pager = None;
        true
    }

    /// Descriptors that a child must keep.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let disks = self.disks.iter().flat_map(Disk::descriptors);
        let memory = self.ram.file().map(AsRawFd::as_raw_fd);
        disks.chain(memory).chain([self.kvm.as_raw_fd()]).collect()
    }

    /// Number of the device of a slot.
    pub fn slot_index(&self, slot: u8) -> Result<usize, Failure> {
        let index = self.bases.len() + usize::from(slot);
        if index < self.disks.len() {
            return Ok(index);
        }
        let slots = self.disks.len() - self.bases.len();
        let message = format!("there is no slot {slot}: this machine has {slots}");
        Err(Failure { code: Code::BadValue, message })
    }

    /// Gives a slot another medium, or none, and tells the guest.
    pub fn change_medium(&mut self, index: usize, disk: Disk) {
        let config = block::config(&disk);
        self.disks[index] = disk;
        self.bus.configure(index, config);
    }

    /// What was written to volumes is on the host's disk when this returns.
    pub fn flush(&mut self) -> Result<(), Failure> {
        for disk in &mut self.disks {
            disk.flush().map_err(|error| Failure {
                message: format!("a volume could not be written to the disk: {error}"),
                ..host("", &error)
            })?;
        }
        Ok(())
    }

    /// Number of the stream device.
    pub fn vsock_index(&self) -> usize {
        self.disks.len()
    }

    /// Number of the random numbers' device.
    pub fn rng_index(&self) -> usize {
        self.disks.len() + 1
    }

    /// Number of the network device, if there is one.
    pub fn net_index(&self) -> usize {
        self.disks.len() + 2
    }

    /// In a child: connections are the source's.
    pub fn disown_connections(&mut self) {
        self.vsock.disown_streams();
        if let Some(net) = &mut self.net {
            net.disown();
        }
    }
}

/// Registers of all virtio devices: disks, streams, random numbers, frames.
pub fn transports(disks: &[Disk], network: bool) -> Vec<crate::devices::virtio::Transport> {
    let disks = disks.iter().map(block::transport);
    let others = [vsock::transport(), rng::transport()];
    disks.chain(others).chain(network.then(net::transport)).collect()
}

/// Why a VM could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// KVM said no.
    #[error("KVM: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// The host said no.
    #[error("host: {0}")]
    Io(#[from] io::Error),
}

/// As an answer.
pub fn kvm_failed(error: &StartError) -> Failure {
    Failure { code: Code::Kvm, message: format!("cannot make the VM: {error}") }
}

/// As an answer.
pub fn no_kvm(error: &kvm_ioctls::Error) -> Failure {
    let message =
        format!("cannot use /dev/kvm: {error}; `ramet-vmm probe` tells what this machine can do");
    Failure { code: Code::Kvm, message }
}

/// As an answer.
pub fn host(what: &str, error: &io::Error) -> Failure {
    let code = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Code::NoSpace,
        _ => Code::Host,
    };
    Failure { code, message: format!("cannot get {what}: {error}") }
}

fn bad_payload(error: &BootError) -> Failure {
    let code = match error {
        BootError::TooLarge { .. } => Code::BadValue,
        BootError::Registers(_) => Code::Kvm,
        BootError::Read { .. } | BootError::Not { .. } => Code::BadFile,
    };
    Failure { code, message: error.to_string() }
}

fn check(boot: &Boot) -> Result<(), Failure> {
    let bad = |message: String| Err(Failure { code: Code::BadValue, message });
    if !VCPUS.contains(&boot.vcpus) {
        return bad(format!("vcpus is {} and must be 1 to 8", boot.vcpus));
    }
    let memory = boot.memory_mib;
    if !MEMORY_MIB.contains(&memory) || !(memory as usize).is_multiple_of(HUGE_PAGE >> 20) {
        return bad(format!("memory_mib is {memory} and must be even, 64 to 16384"));
    }
    if boot.disks.len() > DISKS_MAX {
        return bad(format!("{} disks are too many; at most {DISKS_MAX}", boot.disks.len()));
    }
    let linux = matches!(boot.payload, Payload::Linux { .. });
    if linux && boot.identity.is_none() {
        return bad("a Linux payload needs an identity".into());
    }
    if boot.slots > SLOTS_MAX {
        return bad(format!("{} slots are too many; at most {SLOTS_MAX}", boot.slots));
    }
    if boot.layers.is_none() && boot.slots > 0 {
        return bad("slots need a directory for layers".into());
    }
    if boot.layers.is_none() && boot.disks.iter().any(|disk| !disk.read_only) {
        return bad("a writable disk needs a directory for its layers".into());
    }
    Ok(())
}

fn open_disks(boot: &Boot) -> Result<(Vec<Disk>, Vec<String>), Failure> {
    let bases = boot.disks.iter().map(|disk| disk.base.clone()).collect();
    if let Some(saved) = &boot.saved {
        return Ok((crate::restore::boot_disks(boot, saved)?, bases));
    }
    let directory = open_layers(boot.layers.as_deref())?;
    let mut disks = Vec::new();
    for disk in &boot.disks {
        let file = File::open(&disk.base).map_err(|error| bad_file(&disk.base, &error))?;
        let disk = Disk::new(file, disk.read_only, directory.clone())
            .map_err(|error| bad_file(&disk.base, &error))?;
        disks.push(disk);
    }
    disks.extend((0..boot.slots).map(|_| Disk::slot(directory.clone())));
    Ok((disks, bases))
}

/// Opens the directory for layers, and sees that files can be made there.
pub fn open_layers(path: Option<&str>) -> Result<Option<Arc<File>>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let directory = File::open(path).map_err(|error| bad_file(path, &error))?;
    crate::sys::nameless_file(&directory).map_err(|error| bad_file(path, &error))?;
    Ok(Some(Arc::new(directory)))
}

/// A volume, opened.
pub fn open_volume(
    path: &str,
    read_only: bool,
    layers: Option<Arc<File>>,
) -> Result<Disk, Failure> {
    Disk::with_volume(std::path::Path::new(path), read_only, layers).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::WouldBlock => Code::Busy,
            io::ErrorKind::StorageFull => Code::NoSpace,
            _ => Code::BadFile,
        };
        let message = match code {
            Code::Busy => format!("the volume {path} is written by another machine"),
            _ => format!("cannot use the volume {path}: {error}"),
        };
        Failure { code, message }
    })
}

/// As an answer.
pub fn bad_file(path: &str, error: &io::Error) -> Failure {
    Failure { code: Code::BadFile, message: format!("cannot use {path}: {error}") }
}
