//! What is taken out of one vCPU is found again in another.

use kvm_bindings::{KVM_MP_STATE_UNINITIALIZED, kvm_xcrs};
use kvm_ioctls::VmFd;
use serde_json::Value;

use super::*;
use crate::kvm::{Host, cpuid_for_vcpu, enable_xstate};
use crate::memory::Ram;

const SYSENTER_EIP: u32 = 0x176;

/// The second vCPU of a VM of its own. The first one starts at power on, the second waits to be woken.
struct Second {
    _vm: VmFd,
    _first: VcpuFd,
    vcpu: VcpuFd,
    plan: Plan,
}

impl Second {
    fn new(host: &Host) -> Self {
        let ram = Ram::anonymous(2 << 20, false).unwrap();
        let vm = host.build_vm(&ram).unwrap();
        let vcpus = [0, 1].map(|index| {
            let vcpu = vm.create_vcpu(index.into()).unwrap();
            let cpuid = cpuid_for_vcpu(host.supported_cpuid(), index, 2);
            vcpu.set_cpuid2(&cpuid).unwrap();
            enable_xstate(&vcpu, &cpuid).unwrap();
            vcpu
        });
        let [first, vcpu] = vcpus;
        // The registers that come with KVM_RUN are only there after one.
        let plan = Plan { synced: false, ..host.plan(&vcpu).unwrap() };
        Self { _vm: vm, _first: first, vcpu, plan }
    }

    fn capture(&mut self) -> VcpuState {
        self.plan.capture(&mut self.vcpu).unwrap()
    }

    fn load(&mut self, state: &VcpuState) {
        load_vcpu(&self.vcpu, state, Tsc::Continue, host_tsc()).unwrap();
    }
}

fn host() -> Option<Host> {
    let host = Host::open().ok();
    if host.is_none() {
        eprintln!("SKIPPED: there is no /dev/kvm to test with");
    }
    host
}

/// Everything but the time, which went on.
fn timeless(state: &VcpuState) -> Value {
    let mut value = serde_json::to_value(state).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.remove("tsc").unwrap();
    fields.remove("tsc_deadline").unwrap();
    value
}

/// Gives every part of the state a value that no fresh vCPU has.
fn mark(second: &Second) {
    let vcpu = &second.vcpu;
    let mut regs = vcpu.get_regs().unwrap();
    (regs.rbx, regs.rip, regs.rflags) = (0x1234_5678, 0x7000, 0x202);
    vcpu.set_regs(&regs).unwrap();
    let mut sregs = vcpu.get_sregs().unwrap();
    (sregs.cr2, sregs.idt.base) = (0xdead_b000, 0x6000);
    vcpu.set_sregs(&sregs).unwrap();
    let mut debug = vcpu.get_debug_regs().unwrap();
    debug.db[0] = 0x4040;
    vcpu.set_debug_regs(&debug).unwrap();
    let mut xcrs: kvm_xcrs = vcpu.get_xcrs().unwrap();
    xcrs.xcrs[0].value = 1;
    vcpu.set_xcrs(&xcrs).unwrap();
    let mut xsave = vcpu.get_xsave().unwrap().region;
    xsave[0] = 0x0000_027f; // another control word of the x87 unit, which is thereby in use
    xsave[128] |= 1;
    set_xsave(vcpu, &xsave).unwrap();
    let mut lapic = vcpu.get_lapic().unwrap();
    (lapic.regs[0x360], lapic.regs[0x361]) = (0x77, 0); // the vector of a pin, which sregs do not have
    vcpu.set_lapic(&lapic).unwrap();
    set_msrs(vcpu, &[msr(SYSENTER_EIP, 0x5151)]).unwrap();
    let mut events = vcpu.get_vcpu_events().unwrap();
    events.nmi.masked = 1;
    vcpu.set_vcpu_events(&events).unwrap();
}

#[test]
fn nothing_is_lost_on_the_way() {
    let Some(host) = host() else { return };
    let (mut from, mut to) = (Second::new(&host), Second::new(&host));
    mark(&from);
    from.vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE }).unwrap();
    let (state, fresh) = (from.capture(), timeless(&to.capture()));
    let whole = timeless(&state);
    // The mark has reached every part, so a part that is not carried over would show.
    for (name, value) in whole.as_object().unwrap() {
        let of_the_host = ["tsc_khz", "tsc_offset"].contains(&name.as_str());
        assert!(of_the_host || *value != fresh[name], "{name} is that of a fresh vCPU: {value}");
    }
    to.load(&state);
    let arrived = timeless(&to.capture());
    for (name, value) in whole.as_object().unwrap() {
        assert_eq!(*value, arrived[name], "{name}");
    }
}

/// One that was halted, or never woken, must not wake because its machine was forked.
#[test]
fn who_sleeps_goes_on_sleeping() {
    let Some(host) = host() else { return };
    for asleep in [KVM_MP_STATE_HALTED, KVM_MP_STATE_UNINITIALIZED] {
        let (mut from, mut to) = (Second::new(&host), Second::new(&host));
        let awake = if asleep == KVM_MP_STATE_HALTED { KVM_MP_STATE_UNINITIALIZED } else { 0 };
        to.vcpu.set_mp_state(kvm_mp_state { mp_state: awake }).unwrap();
        from.vcpu.set_mp_state(kvm_mp_state { mp_state: asleep }).unwrap();
        to.load(&from.capture());
        assert_eq!(to.vcpu.get_mp_state().unwrap().mp_state, asleep);
    }
}
