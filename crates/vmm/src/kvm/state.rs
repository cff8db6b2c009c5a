//! A vCPU's state in plain memory: out of KVM at a stop, into another VM's vCPU afterwards.
//!
//! Each call costs the pause some microseconds, so there are few. Both orders matter. Out: the MP state makes KVM
//! process pending INITs, so what was read before it is read again if there was one. In:
//! LAPIC after SREGS (which hold its base) and before MSRs, the TSC deadline in a call of its own after
//! the other MSRs, and a deadline that had already fired is armed again so that no tick is lost.

use kvm_bindings::{
    CpuId, KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE, Msrs, kvm_debugregs, kvm_lapic_state,
    kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_sync_regs, kvm_vcpu_events, kvm_xcrs,
    kvm_xsave,
};
use kvm_ioctls::{SyncReg, VcpuFd};
use serde::{Deserialize, Serialize};

use super::{host_tsc, set_tsc_offset, tsc_offset};

const MSR_TSC: u32 = 0x10;
const MSR_TSC_DEADLINE: u32 = 0x6e0;

/// State of a vCPU.
#[derive(Clone, Serialize, Deserialize)]
pub struct VcpuState {
    mp_state: kvm_mp_state,
    /// General registers; a child's answer at the doorbell is put into RAX.
    pub regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: Vec<u32>,
    xcrs: kvm_xcrs,
    debugregs: kvm_debugregs,
    lapic: Vec<u8>,
    msrs: Vec<kvm_msr_entry>,
    tsc_deadline: Option<u64>,
    events: kvm_vcpu_events,
    /// Offset to the host's TSC, good as long as the host is not rebooted.
    tsc_offset: Option<u64>,
    /// What the guest's TSC showed.
    tsc: u64,
    tsc_khz: u32,
}

/// How the guest's TSC goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tsc {
    /// As if nothing had happened: the same host, the same boot.
    Continue,
    /// From where it stood.
    Resume,
}

/// Enables every state component that the processor has, as firmware would.
///
/// Linux enables the same ones. On a host that does not tell KVM when a guest does so (QEMU's emulated SVM
/// does not), KVM would otherwise keep switching the guest back to x87 only and lose its SSE registers.
pub fn enable_xstate(vcpu: &VcpuFd, cpuid: &CpuId) -> Result<(), kvm_ioctls::Error> {
    let supported = cpuid.as_slice().iter().find(|e| (e.function, e.index) == (0xd, 0));
    let Some(supported) = supported.filter(|entry| entry.eax != 0) else { return Ok(()) };
    let value = u64::from(supported.eax) | u64::from(supported.edx) << 32;
    let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    xcrs.xcrs[0].value = value;
    vcpu.set_xcrs(&xcrs)
}

/// What makes up a vCPU's state here, found out once and the same for all vCPUs of a tree of machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// MSRs that KVM lets us both read and write.
    msrs: Vec<u32>,
    /// Registers and events come with the last KVM_RUN, which saves three calls of the pause.
    synced: bool,
    tsc_khz: u32,
}

/// MSRs that KVM does not list although they are part of the state.
fn memory_types() -> impl Iterator<Item = u32> {
    let fixed = [0x250, 0x258, 0x259, 0x2ff];
    (0x200..=0x20f).chain(0x268..=0x26f).chain(fixed)
}

/// MSRs of what the guest's CPUID does not have: Hyper-V's interface and performance counters; and the old
/// numbers of the KVM clock's, which alias the new ones.
fn is_absent(index: u32) -> bool {
    matches!(index,
        0x11 | 0x12
        | 0x4000_0000..=0x4000_01ff
        | 0x186..=0x18d | 0x309..=0x30b | 0x345 | 0x38d..=0x390 | 0x3f1 | 0x3f2 | 0x600
        | 0xc1..=0xc8 | 0x4c1..=0x4c8
        | 0xc000_0300..=0xc000_0303
        | 0xc001_0000..=0xc001_0007
        | 0xc001_0200..=0xc001_020b)
}

impl Plan {
    /// Tries out what this vCPU has. `indices` are the MSRs that KVM names.
    pub fn probe(vcpu: &VcpuFd, indices: &[u32], synced: bool) -> Self {
        let candidates = indices.iter().copied().filter(|index| !is_absent(*index));
        let works = |index: &u32| {
            let Ok(mut one) = Msrs::from_entries(&[msr(*index, 0)]) else { return false };
            vcpu.get_msrs(&mut one) == Ok(1) && vcpu.set_msrs(&one) == Ok(1)
        };
        let msrs = candidates.chain(memory_types()).filter(works).collect();
        Self { msrs, synced, tsc_khz: vcpu.get_tsc_khz().unwrap_or(0) }
    }

    /// To be called before the KVM_RUN that completes the last exit.
    pub fn prepare(&self, vcpu: &mut VcpuFd) {
        if self.synced {
            SYNCED.into_iter().for_each(|registers| vcpu.set_sync_valid_reg(registers));
        }
    }

    /// Reads the state. The vCPU must not be running and must have completed its last exit.
    pub fn capture(&self, vcpu: &mut VcpuFd) -> Result<VcpuState, kvm_ioctls::Error> {
        let mp_state = vcpu.get_mp_state()?;
        // Asking for the MP state may carry out an INIT; then the registers are others than before.
        let settled = [KVM_MP_STATE_RUNNABLE, KVM_MP_STATE_HALTED].contains(&mp_state.mp_state);
        let kvm_sync_regs { regs, sregs, events } = if self.synced && settled {
            vcpu.sync_regs()
        } else {
            kvm_sync_regs {
                regs: vcpu.get_regs()?,
                sregs: vcpu.get_sregs()?,
                events: vcpu.get_vcpu_events()?,
            }
        };
        SYNCED.into_iter().for_each(|registers| vcpu.clear_sync_valid_reg(registers));
        let tsc_offset = tsc_offset(vcpu);
        let mut msrs = get_msrs(vcpu, &self.msrs)?;
        let tsc = take(&mut msrs, MSR_TSC);
        let tsc = tsc.unwrap_or_else(|| host_tsc().wrapping_add(tsc_offset.unwrap_or(0)));
        // An expired deadline reads 0 although its interrupt may not have been delivered.
        let deadline = take(&mut msrs, MSR_TSC_DEADLINE);
        let tsc_deadline = deadline.map(|deadline| if deadline == 0 { tsc } else { deadline });
        let lapic = vcpu.get_lapic()?.regs.iter().map(|byte| byte.cast_unsigned()).collect();
        Ok(VcpuState {
            mp_state,
            regs,
            sregs,
            events,
            xsave: vcpu.get_xsave()?.region.to_vec(),
            xcrs: vcpu.get_xcrs()?,
            debugregs: vcpu.get_debug_regs()?,
            lapic,
            msrs,
            tsc_deadline,
            tsc_offset,
            tsc,
            tsc_khz: self.tsc_khz,
        })
    }
}

const SYNCED: [SyncReg; 3] = [SyncReg::Register, SyncReg::SystemRegister, SyncReg::VcpuEvents];

/// Takes an MSR out of the list.
fn take(msrs: &mut Vec<kvm_msr_entry>, index: u32) -> Option<u64> {
    let at = msrs.iter().position(|entry| entry.index == index)?;
    Some(msrs.swap_remove(at).data)
}

/// Loads the state into a fresh vCPU whose CPUID is set. `tsc_now` is the host's TSC, read once for
/// all vCPUs of a machine so that they stay in step.
pub fn load_vcpu(
    vcpu: &VcpuFd,
    state: &VcpuState,
    tsc: Tsc,
    tsc_now: u64,
) -> Result<(), kvm_ioctls::Error> {
    // On the same host a new vCPU has the frequency already.
    if tsc == Tsc::Resume && state.tsc_khz != 0 && vcpu.get_tsc_khz() != Ok(state.tsc_khz) {
        vcpu.set_tsc_khz(state.tsc_khz)?;
    }
    vcpu.set_mp_state(state.mp_state)?;
    vcpu.set_regs(&state.regs)?;
    vcpu.set_sregs(&sregs(state))?;
    set_xsave(vcpu, &state.xsave)?;
    vcpu.set_xcrs(&state.xcrs)?;
    vcpu.set_debug_regs(&state.debugregs)?;
    vcpu.set_lapic(&lapic(&state.lapic))?;
    load_tsc(vcpu, state, tsc, tsc_now)?;
    set_msrs(vcpu, &state.msrs)?;
    if let Some(deadline) = state.tsc_deadline {
        set_msrs(vcpu, &[msr(MSR_TSC_DEADLINE, deadline)])?;
    }
    vcpu.set_vcpu_events(&state.events)?;
    // Only tells the guest not to mistake the gap for a lock-up; fails if it has no KVM clock.
    let _no_clock = vcpu.kvmclock_ctrl();
    Ok(())
}

/// QEMU's emulated processor allows ports to user code only if the task register's type says "available", as it
/// does after the guest loaded it; KVM reports "busy". A real processor does not look at it here.
fn sregs(state: &VcpuState) -> kvm_sregs {
    const BUSY: u8 = 2;
    let mut sregs = state.sregs;
    if emulated() {
        sregs.tr.type_ &= !BUSY;
    }
    sregs
}

/// Whether the processor that KVM uses is itself emulated by QEMU.
fn emulated() -> bool {
    let leaf = core::arch::x86_64::__cpuid(0x4000_0000);
    [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == b"TCGTCGTCGTCG"
}

fn load_tsc(
    vcpu: &VcpuFd,
    state: &VcpuState,
    tsc: Tsc,
    tsc_now: u64,
) -> Result<(), kvm_ioctls::Error> {
    let offset = match (tsc, state.tsc_offset) {
        (Tsc::Continue, offset) => offset,
        (Tsc::Resume, _) => Some(state.tsc.wrapping_sub(tsc_now)),
    };
    let offset_taken = offset.is_some_and(|offset| set_tsc_offset(vcpu, offset).is_ok());
    if offset_taken {
        return Ok(());
    }
    set_msrs(vcpu, &[msr(MSR_TSC, state.tsc)])
}

fn get_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, kvm_ioctls::Error> {
    let wanted: Vec<_> = indices.iter().map(|index| msr(*index, 0)).collect();
    let mut msrs = Msrs::from_entries(&wanted).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))?;
    let got = vcpu.get_msrs(&mut msrs)?;
    if got != indices.len() {
        return Err(kvm_ioctls::Error::new(libc::EINVAL));
    }
    Ok(msrs.as_slice().to_vec())
}

fn set_msrs(vcpu: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<(), kvm_ioctls::Error> {
    let msrs = Msrs::from_entries(entries).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))?;
    if vcpu.set_msrs(&msrs)? != entries.len() {
        return Err(kvm_ioctls::Error::new(libc::EINVAL));
    }
    Ok(())
}

fn msr(index: u32, data: u64) -> kvm_msr_entry {
    kvm_msr_entry { index, data, ..Default::default() }
}

fn lapic(bytes: &[u8]) -> kvm_lapic_state {
    let mut state = kvm_lapic_state::default();
    for (register, byte) in state.regs.iter_mut().zip(bytes) {
        *register = byte.cast_signed();
    }
    state
}

#[expect(unsafe_code, reason = "kvm-ioctls leaves the size of the state to the caller")]
fn set_xsave(vcpu: &VcpuFd, words: &[u32]) -> Result<(), kvm_ioctls::Error> {
    let mut xsave = kvm_xsave::default();
    xsave.region.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
    // SAFETY: the structure is as large as KVM_GET_XSAVE's, and the guest has no larger state: AMX
    // is masked in its CPUID and never permitted for this process.
    unsafe { vcpu.set_xsave(&xsave) }
}

#[cfg(test)]
mod tests;
