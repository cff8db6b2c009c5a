//! KVM and fork(2) by hand: the least that any monitor has to do.
//!
//! [`first_exit`] makes a virtual machine and runs it to its first exit. It answers whether `/dev/kvm`
//! works here, and with a clock around it, it is the floor that a child's start is measured against;
//! [`fork`] is the floor of a pause. Nothing is checked beyond what is needed to trust the figures.
//!
//! Unsafe code is here because guest memory is mapped and handed to KVM by address, and because
//! fork(2) is the thing to be measured.
#![expect(unsafe_code, reason = "mmap, fork(2) and KVM memory slots work on bare addresses")]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_MAX_CPUID_ENTRIES, kvm_enable_cap, kvm_regs, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use nix::libc::c_void;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::wait::waitpid;
use nix::unistd::ForkResult;

/// Huge pages are this large, and memory is aligned to it.
const HUGE: usize = 2 << 20;
/// Where the guest's code is.
const CODE: u64 = 0x8000;
/// The port that the code writes to.
const PORT: u16 = 0x10;

/// Why the machine did not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// KVM refused a step.
    #[error("KVM refused to {step}")]
    Kvm {
        /// Which.
        step: &'static str,
        /// How.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// The guest did something else than its one instruction.
    #[error("the guest left with {0} instead of its port write")]
    Exit(String),
    /// The host refused.
    #[error("the host refused memory or a process")]
    Host(#[from] io::Error),
}

fn step(step: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Error {
    move |source| Error::Kvm { step, source }
}

/// Anonymous private memory, as guests get it.
#[derive(Debug)]
pub struct Ram {
    mapping: NonNull<c_void>,
    mapped: NonZeroUsize,
    start: NonNull<u8>,
    length: usize,
}

impl Ram {
    /// Maps so many bytes, a multiple of 4 KiB, with huge pages or certainly without.
    pub fn new(length: usize, huge_pages: bool) -> io::Result<Self> {
        let mapped = NonZeroUsize::new(length + HUGE).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let mapping = unsafe { mmap_anonymous(None, mapped, protection, flags) }?;
        let offset = mapping.cast::<u8>().align_offset(HUGE);
        // SAFETY: the mapping is HUGE larger than asked for, so the aligned start lies in it.
        let start = unsafe { mapping.cast::<u8>().add(offset) };
        let advice =
            if huge_pages { MmapAdvise::MADV_HUGEPAGE } else { MmapAdvise::MADV_NOHUGEPAGE };
        // SAFETY: the range is ours alone, and this advice does not change what it holds.
        unsafe { madvise(start.cast(), length, advice) }?;
        Ok(Self { mapping, mapped, start, length })
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Writes a word to every page.
    pub fn touch(&self) {
        self.touch_part(self.length);
    }

    /// Writes a word to every page of the last so many bytes.
    pub fn touch_part(&self, bytes: usize) {
        for offset in (self.length - bytes.min(self.length)..self.length).step_by(4096) {
            self.store(offset + 4088, &offset.to_le_bytes());
        }
    }

    /// All of it, as a file wants it. Nobody may write to it meanwhile.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and readable; whoever writes to it has `&self`, too, but
        // neither `store` nor a guest of this module runs while the borrow is in use.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: the range lies inside the mapping, as was just checked; the two do not overlap.
        unsafe {
            let target = self.start.as_ptr().add(offset);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        if let Err(error) = unsafe { munmap(self.mapping, self.mapped.get()) } {
            eprintln!("munmap: {error}");
        }
    }
}

/// A machine that has run to its first exit. Dropping it is slow, so the caller chooses when.
#[derive(Debug)]
pub struct Bare {
    _vcpu: VcpuFd,
    _vm: VmFd,
    _kvm: Kvm,
}

/// Makes a machine with a split irqchip and one memory slot, and runs it to its first exit. Answers
/// the time from the opening of `/dev/kvm` to that exit.
pub fn first_exit(ram: &Ram) -> Result<(Bare, Duration), Error> {
    write_guest(ram);
    let cpuid = processor()?;
    let begin = Instant::now();
    let kvm = Kvm::new().map_err(step("open /dev/kvm"))?;
    let vm = kvm.create_vm().map_err(step("create a machine"))?;
    let slot = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: ram.length as u64,
        userspace_addr: ram.start.as_ptr().addr() as u64,
    };
    // SAFETY: the range is mapped for as long as `ram` lives, and the caller keeps it longer than
    // the machine runs: it has stopped for good when this function returns.
    unsafe { vm.set_user_memory_region(slot) }.map_err(step("set memory"))?;
    let mut split = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, ..kvm_enable_cap::default() };
    split.args[0] = 24;
    vm.enable_cap(&split).map_err(step("split the irqchip"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(step("create a vCPU"))?;
    vcpu.set_cpuid2(cpuid).map_err(step("set the processor"))?;
    set_registers(&vcpu).map_err(step("set registers"))?;
    let exit = vcpu.run().map_err(step("run"))?;
    let time = begin.elapsed();
    match exit {
        VcpuExit::IoOut(PORT, _) => {}
        other => return Err(Error::Exit(format!("{other:?}"))),
    }
    Ok((Bare { _vcpu: vcpu, _vm: vm, _kvm: kvm }, time))
}

/// What the guest's processor can do. Asked once: a monitor need not ask again for each child.
fn processor() -> Result<&'static CpuId, Error> {
    static KNOWN: OnceLock<CpuId> = OnceLock::new();
    if let Some(cpuid) = KNOWN.get() {
        return Ok(cpuid);
    }
    let kvm = Kvm::new().map_err(step("open /dev/kvm"))?;
    let cpuid =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(step("tell its processor"))?;
    Ok(KNOWN.get_or_init(|| cpuid))
}

/// Page tables that map 1 GiB one to one, and the code: `inc qword [0x100000]; out PORT, al`.
fn write_guest(ram: &Ram) {
    ram.store(0x1000, &0x2007_u64.to_le_bytes());
    ram.store(0x2000, &0x3007_u64.to_le_bytes());
    let pages = (ram.length / HUGE).min(512);
    for page in 0..pages {
        let entry = (page * HUGE) as u64 | 0x87;
        ram.store(0x3000 + page * 8, &entry.to_le_bytes());
    }
    ram.store(0x8000, &[0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x10, 0x00, 0xe6, 0x10]);
}

/// Long mode, privilege level 3, all ports open.
fn set_registers(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut system = vcpu.get_sregs()?;
    (system.cr0, system.cr3, system.cr4, system.efer) = (0x8005_0033, 0x1000, 0x20, 0x500);
    let data = kvm_segment {
        limit: u32::MAX,
        selector: 0x2b,
        type_: 3,
        present: 1,
        dpl: 3,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    };
    system.cs = kvm_segment { selector: 0x33, type_: 11, db: 0, l: 1, ..data };
    (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
    vcpu.set_sregs(&system)?;
    vcpu.set_regs(&kvm_regs { rip: CODE, rsp: 0x7000, rflags: 0x3002, ..kvm_regs::default() })
}

/// Whether guest code runs here; if not, why.
pub fn probe() -> Result<(), Error> {
    let ram = Ram::new(HUGE, false)?;
    first_exit(&ram).map(drop)
}

/// Forks this process; the child ends at once. Answers the time until fork(2) has returned here.
/// The process must have no other threads.
pub fn fork() -> io::Result<Duration> {
    let begin = Instant::now();
    // SAFETY: the child calls nothing but _exit, which is safe whatever other threads held.
    match unsafe { nix::unistd::fork() }? {
        // SAFETY: _exit runs no handler and does not return.
        ForkResult::Child => unsafe { nix::libc::_exit(0) },
        ForkResult::Parent { child } => {
            let time = begin.elapsed();
            waitpid(child, None)?;
            Ok(time)
        }
    }
}

/// Forks a child that rewrites so many bytes of what it inherited and then forks itself, which is
/// what is timed: a fork of the second generation.
pub fn fork_rewritten(ram: &Ram, bytes: usize) -> io::Result<Duration> {
    let (read, write) = nix::unistd::pipe()?;
    // SAFETY: this process has no other threads, so the child may go on as if nothing was.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => {
            ram.touch_part(bytes);
            // A fork of a second or more is reported as a failure, not as a wrong figure.
            let time = fork().ok().filter(|time| time.as_secs() == 0);
            let nanoseconds: u64 = time.map_or(0, |time| time.subsec_nanos().into());
            let told = nix::unistd::write(&write, &nanoseconds.to_le_bytes()).is_ok();
            // SAFETY: _exit runs no handler and does not return.
            unsafe { nix::libc::_exit(i32::from(!told)) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut told = [0; 8];
            let count = nix::unistd::read(&read, &mut told)?;
            waitpid(child, None)?;
            match u64::from_le_bytes(told) {
                nanoseconds if count == 8 && nanoseconds > 0 => {
                    Ok(Duration::from_nanos(nanoseconds))
                }
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

/// Writes the memory to a new file and maps that privately, as a monitor does that snapshots to a
/// file system. Answers the time of both together.
pub fn write_and_map(ram: &Ram, path: &Path) -> io::Result<Duration> {
    let begin = Instant::now();
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(path)?;
    file.write_all(ram.bytes())?;
    let length = NonZeroUsize::new(ram.length).ok_or(io::ErrorKind::InvalidInput)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice; nobody truncates the file.
    let mapping = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0) }?;
    let time = begin.elapsed();
    // SAFETY: the mapping was made above and is used by nobody.
    unsafe { munmap(mapping, length.get()) }?;
    fs::remove_file(path)?;
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_machine_runs_or_says_why_not() {
        match probe() {
            Ok(()) => {}
            Err(error) => eprintln!("SKIPPED: KVM does not run guests here: {error:?}"),
        }
    }
}
