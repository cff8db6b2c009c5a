//! KVM: a VM around memory that already exists, and what the processor must look like.
//!
//! A KVM VM belongs to the address space that created it, so every process, forked children included,
//! builds its own with [`Host::build_vm`]. The order there is the fast one: memory slots before the
//! interrupt controller, which is split (IOAPIC in [`crate::devices::ioapic`], no PIC, no PIT), and no
//! ioeventfds or irqfds, whose registration costs a grace period each.
#![expect(unsafe_code, reason = "memory slots, and ioctls that kvm-ioctls does not have")]

mod cpuid;
mod state;

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_MAX_CPUID_ENTRIES, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};

use crate::memory::Ram;

pub use cpuid::{check as check_cpuid, for_vcpu as cpuid_for_vcpu, processor};
pub use state::{Plan, Tsc, VcpuState, enable_xstate, load_vcpu};

/// Guest address of the three pages that VT-x needs for real mode.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// Pins of the IOAPIC.
pub const IOAPIC_PINS: usize = 24;

/// `/dev/kvm`, opened once and inherited by children.
pub struct Host {
    kvm: Kvm,
    /// What the guest's processor may have.
    supported: CpuId,
}

impl Host {
    /// Opens `/dev/kvm`.
    pub fn open() -> Result<Self, kvm_ioctls::Error> {
        let kvm = Kvm::new()?;
        let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
        Ok(Self { kvm, supported })
    }

    /// What KVM can give to a guest.
    pub fn supported_cpuid(&self) -> &CpuId {
        &self.supported
    }

    /// Finds out what makes up the state of a vCPU.
    pub fn plan(&self, vcpu: &VcpuFd) -> Result<Plan, kvm_ioctls::Error> {
        let indices = self.kvm.get_msr_index_list()?;
        let synced = self.kvm.check_extension_int(Cap::SyncRegs) & 7 == 7;
        Ok(Plan::probe(vcpu, indices.as_slice(), synced))
    }

    /// A VM with this memory and a local APIC for each vCPU to come.
    pub fn build_vm(&self, ram: &Ram) -> Result<VmFd, kvm_ioctls::Error> {
        let vm = self.kvm.create_vm()?;
        vm.set_tss_address(TSS_ADDRESS)?;
        for (slot, part) in (0..).zip(ram.parts()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: part.gpa,
                memory_size: part.size as u64,
                userspace_addr: part.hva as u64,
            };
            // SAFETY: the part is mapped for as long as the process lives, and no two overlap.
            unsafe { vm.set_user_memory_region(region)? };
        }
        let mut split = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, ..Default::default() };
        split.args[0] = IOAPIC_PINS as u64;
        vm.enable_cap(&split)?;
        Ok(vm)
    }
}

impl AsRawFd for Host {
    fn as_raw_fd(&self) -> RawFd {
        self.kvm.as_raw_fd()
    }
}

/// The switch that makes KVM_RUN return at once, shared by the vCPU's thread and who stops it.
#[derive(Clone, Copy)]
pub struct ImmediateExit(*mut u8);

// SAFETY: the byte is only accessed atomically, and lives until the process ends or the vCPU's
// thread has been joined, which `crate::vcpu` does before it lets go of either.
unsafe impl Send for ImmediateExit {}
// SAFETY: as above.
unsafe impl Sync for ImmediateExit {}

impl ImmediateExit {
    /// Of this vCPU. Also keeps the vCPU's shared page out of forked children.
    pub fn of(vcpu: &mut VcpuFd, page_size: usize) -> io::Result<Self> {
        let run = vcpu.get_kvm_run();
        let start = std::ptr::from_mut(run);
        // SAFETY: the range is the vCPU's own shared mapping; the advice only affects fork(2).
        let advised = unsafe { libc::madvise(start.cast(), page_size, libc::MADV_DONTFORK) };
        if advised != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(&raw mut run.immediate_exit))
    }

    /// Turns it on or off.
    pub fn set(self, on: bool) {
        // SAFETY: the pointer is valid (see above) and u8 needs no alignment.
        let byte = unsafe { std::sync::atomic::AtomicU8::from_ptr(self.0) };
        byte.store(u8::from(on), std::sync::atomic::Ordering::Release);
    }
}

/// The attribute of a vCPU that holds its TSC offset.
const TSC_OFFSET: kvm_bindings::kvm_device_attr =
    kvm_bindings::kvm_device_attr { flags: 0, group: 0, attr: 0, addr: 0 };

/// Reads the offset of the guest's TSC to the host's, where the kernel tells it.
pub fn tsc_offset(vcpu: &VcpuFd) -> Option<u64> {
    let mut value = 0u64;
    let mut attr = TSC_OFFSET;
    attr.addr = &raw mut value as u64;
    // SAFETY: KVM_GET_DEVICE_ATTR with this attribute writes eight bytes to `addr`.
    let result = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_DEVICE_ATTR, &attr) };
    (result == 0).then_some(value)
}

/// Sets the offset of the guest's TSC to the host's.
pub fn set_tsc_offset(vcpu: &VcpuFd, value: u64) -> io::Result<()> {
    let mut attr = TSC_OFFSET;
    attr.addr = &raw const value as u64;
    // SAFETY: KVM_SET_DEVICE_ATTR with this attribute reads eight bytes from `addr`.
    let result = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR, &attr) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const KVM_SET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee1;
const KVM_GET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee2;

/// The host's time stamp counter.
pub fn host_tsc() -> u64 {
    // SAFETY: RDTSC is available on every x86-64 processor and only reads.
    unsafe { core::arch::x86_64::_rdtsc() }
}
