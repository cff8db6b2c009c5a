//! Linux by its PVH entry: the kernel, its command line, an initramfs, ACPI, and 32-bit protected mode.

use kvm_bindings::{Msrs, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::{BootError, acpi, open};
use crate::memory::{Guest, PAGE, Ram};

const START_INFO: u64 = 0x6000;
const MODULES: u64 = 0x6800;
const MEMORY_MAP: u64 = 0x7000;
const CMDLINE: u64 = 0x20000;
const CMDLINE_MAX: usize = 2048;
/// End of conventional memory.
const LOW_END: u64 = 0x9fc00;
const HIGH: u64 = 0x0010_0000;
const E820_RAM: u32 = 1;
const MAGIC: u32 = 0x336e_c578;

/// Always on the command line.
const CMDLINE_BASE: &str = "console=ttyS0 quiet panic=-1 reboot=a tsc=reliable no_timer_check \
    random.trust_cpu=on cryptomgr.notests i8042.noaux i8042.nokbd 8250.nr_uarts=1 \
    initcall_blacklist=init_kprobe_trace";

/// Puts everything into memory. The address to start at.
pub fn load(
    ram: &Ram,
    vcpus: u8,
    virtio_count: usize,
    kernel: &str,
    initramfs: Option<&str>,
    cmdline: &str,
) -> Result<u64, BootError> {
    let (entry, kernel_end) = load_kernel(ram, kernel)?;
    let cmdline = format!("{CMDLINE_BASE} {cmdline}\0");
    if cmdline.len() > CMDLINE_MAX {
        return Err(BootError::Not {
            path: "the command line".into(),
            what: "command line",
            reason: format!("it is longer than {CMDLINE_MAX} bytes"),
        });
    }
    let modules = match initramfs {
        Some(path) => vec![load_initramfs(ram, path, kernel_end)?],
        None => Vec::new(),
    };
    let memory = ram.guest();
    let too_small = |_| too_large(ram, "the boot information");
    memory.write_slice(cmdline.as_bytes(), GuestAddress(CMDLINE)).map_err(too_small)?;
    let rsdp = acpi::write(memory, vcpus, virtio_count).map_err(too_small)?;
    write_start_info(memory, rsdp, &modules).map_err(|_| too_large(ram, "the memory map"))?;
    Ok(entry)
}

fn load_kernel(ram: &Ram, path: &str) -> Result<(u64, u64), BootError> {
    let mut file = open(path)?;
    let not = |reason: String| BootError::Not {
        path: path.to_owned(),
        what: "uncompressed x86-64 Linux kernel (vmlinux)",
        reason,
    };
    let high = Some(GuestAddress(HIGH));
    let loaded = Elf::load(ram.guest(), None, &mut file, high).map_err(|error| match error {
        linux_loader::loader::Error::Elf(linux_loader::loader::elf::Error::ReadKernelImage) => {
            too_large(ram, "the kernel")
        }
        error => not(error.to_string()),
    })?;
    match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) => Ok((entry.0, loaded.kernel_end)),
        other => Err(not(other.to_string())),
    }
}

/// Puts the initramfs at the end of the low memory.
fn load_initramfs(ram: &Ram, path: &str, kernel_end: u64) -> Result<hvm_modlist_entry, BootError> {
    let mut file = open(path)?;
    let read = |source| BootError::Read { path: path.to_owned(), source };
    let size = file.metadata().map_err(read)?.len();
    let end = ram.guest().iter().next().map_or(0, |low| low.len());
    let at = end.checked_sub(size).map(|at| at / PAGE as u64 * PAGE as u64);
    let Some(at) = at.filter(|at| *at >= kernel_end) else {
        return Err(too_large(ram, "the initramfs"));
    };
    let length = usize::try_from(size).map_err(|_| too_large(ram, "the initramfs"))?;
    ram.guest()
        .read_exact_volatile_from(GuestAddress(at), &mut file, length)
        .map_err(|error| read(std::io::Error::other(error)))?;
    Ok(hvm_modlist_entry { paddr: at, size, ..Default::default() })
}

fn write_start_info(
    memory: &Guest,
    rsdp: u64,
    modules: &[hvm_modlist_entry],
) -> Result<(), linux_loader::configurator::Error> {
    let mut map = vec![ram_range(0, LOW_END)];
    for region in memory.iter() {
        let start = region.start_addr().0.max(HIGH);
        map.push(ram_range(start, region.start_addr().0 + region.len() - start));
    }
    let start_info = hvm_start_info {
        magic: MAGIC,
        version: 1,
        nr_modules: u32::try_from(modules.len()).unwrap_or(0),
        modlist_paddr: if modules.is_empty() { 0 } else { MODULES },
        cmdline_paddr: CMDLINE,
        rsdp_paddr: rsdp,
        memmap_paddr: MEMORY_MAP,
        memmap_entries: u32::try_from(map.len()).unwrap_or(0),
        ..Default::default()
    };
    let mut params = BootParams::new(&start_info, GuestAddress(START_INFO));
    params.set_sections(&map, GuestAddress(MEMORY_MAP));
    params.set_modules(modules, GuestAddress(MODULES));
    PvhBootConfigurator::write_bootparams(&params, memory)
}

fn ram_range(addr: u64, size: u64) -> hvm_memmap_table_entry {
    hvm_memmap_table_entry { addr, size, type_: E820_RAM, reserved: 0 }
}

fn too_large(ram: &Ram, what: &str) -> BootError {
    BootError::TooLarge { what: what.to_owned(), memory_mib: ram.size() >> 20 }
}

/// Registers of the first vCPU; the others wait to be woken by it.
pub fn set_registers(vcpu: &VcpuFd, entry: u64) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let data = segment(0x18, 3);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.cs = segment(0x10, 11);
    sregs.tr = kvm_segment { limit: 0x67, g: 0, s: 0, db: 0, ..segment(0x20, 11) };
    (sregs.cr0, sregs.cr4, sregs.efer) = (1, 0, 0);
    vcpu.set_sregs(&sregs)?;
    let regs = kvm_regs { rip: entry, rbx: START_INFO, rflags: 2, ..Default::default() };
    vcpu.set_regs(&regs)?;
    set_memory_type(vcpu)
}

/// All memory is cacheable unless the page tables say otherwise.
pub fn set_memory_type(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let write_back = kvm_msr_entry { index: 0x2ff, data: 1 << 11 | 6, ..Default::default() };
    let msrs =
        Msrs::from_entries(&[write_back]).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
    vcpu.set_msrs(&msrs).map(|_| ())
}

/// A flat 4 GiB segment.
fn segment(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: 1,
        s: 1,
        l: 0,
        g: 1,
        ..Default::default()
    }
}
