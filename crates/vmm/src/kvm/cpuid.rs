//! What the guest's processor says about itself, and whether a saved guest fits this host.
//!
//! Masked is what a guest must not use here (nested virtualization), what KVM cannot carry over a
//! fork in the state that is saved (AMX, CET), and what asks the host for work behind the guest's back
//! (asynchronous page faults, the PMU).

use kvm_bindings::{CpuId, kvm_cpuid_entry2};
use ramet_proto::needs::{Incompatible, Processor};

const KVM_FEATURES: u32 = 0x4000_0001;
const ASYNC_PF: u32 = 1 << 4 | 1 << 10 | 1 << 14;
const STEAL_TIME: u32 = 1 << 5;

/// The processor of vCPU `index` out of `count`.
pub fn for_vcpu(supported: &CpuId, index: u8, count: u8) -> CpuId {
    let mut cpuid = supported.clone();
    for entry in cpuid.as_mut_slice() {
        mask(entry);
        place(entry, u32::from(index), u32::from(count));
    }
    cpuid
}

fn mask(entry: &mut kvm_cpuid_entry2) {
    match (entry.function, entry.index) {
        (0x1, _) => {
            entry.ecx &= !(1 << 5 | 1 << 2 | 1 << 15); // VMX, DTES64, PDCM
            entry.ecx |= 1 << 31 | 1 << 24; // hypervisor, TSC deadline
        }
        (0x7, 0) => {
            entry.ecx &= !(1 << 7); // CET shadow stacks
            entry.edx &= !(1 << 20 | 1 << 22 | 1 << 24 | 1 << 25); // CET IBT, AMX
        }
        (0x7, 1) => entry.eax &= !(1 << 21), // AMX-FP16
        (0xa, _) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0), // PMU
        (0xd, 0) => entry.eax &= !(1 << 17 | 1 << 18), // AMX state
        (0xd, 1) => entry.ecx &= !(1 << 11 | 1 << 12), // CET state
        (0x1d | 0x1e, _) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0), // AMX
        (KVM_FEATURES, _) => entry.eax &= !(ASYNC_PF | STEAL_TIME),
        // SVM, topology extensions (their leaves would have to be rewritten), perf counters.
        (0x8000_0001, _) => entry.ecx &= !(1 << 2 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 28),
        (0x8000_000a | 0x8000_001e | 0x8000_0022 | 0x8000_0026, _) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        _ => {}
    }
}

/// Number and topology: every vCPU is a core of one package.
fn place(entry: &mut kvm_cpuid_entry2, apic_id: u32, count: u32) {
    let bits = count.next_power_of_two().trailing_zeros();
    match (entry.function, entry.index) {
        (0x1, _) => {
            entry.ebx = (entry.ebx & 0xffff) | count << 16 | apic_id << 24;
            entry.edx = if count > 1 { entry.edx | 1 << 28 } else { entry.edx & !(1 << 28) };
        }
        (0x4, _) => entry.eax = (entry.eax & 0x3ff) | (count - 1) << 26,
        (0xb | 0x1f, 0) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 1, 1 << 8, apic_id);
        }
        (0xb | 0x1f, 1) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (bits, count, 2 << 8 | 1, apic_id);
        }
        (0xb | 0x1f, index) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, index, apic_id);
        }
        (0x8000_0008, _) => entry.ecx = (entry.ecx & !0xf0ff) | bits << 12 | (count - 1),
        _ => {}
    }
}

/// What a guest with these entries knows of its processor and may rely on.
pub fn processor(entries: &[kvm_cpuid_entry2]) -> Processor {
    let leaf = |function| entries.iter().find(|e| e.function == function);
    let vendor: Vec<u8> = leaf(0)
        .map(|e| [e.ebx, e.edx, e.ecx].into_iter().flat_map(u32::to_le_bytes).collect())
        .unwrap_or_default();
    let vendor = String::from_utf8_lossy(&vendor).into_owned();
    let signature = leaf(1).map_or(0, |e| e.eax);
    Processor { vendor, signature, features: entries.iter().flat_map(features).collect() }
}

/// Bits of features by register, without those that the guest itself switches and those of its place.
fn features(entry: &kvm_cpuid_entry2) -> Vec<(String, u32)> {
    let kvm_cpuid_entry2 { function, index, eax, ebx, ecx, edx, .. } = *entry;
    let registers: &[(&str, u32)] = match (function, index) {
        (0x1, _) => &[("ecx", ecx & !(1 << 27)), ("edx", edx & !(1 << 28))],
        (0x7, 0) => &[("ebx", ebx), ("ecx", ecx & !(1 << 4)), ("edx", edx)],
        (0x7, 1) | (0xd, 0 | 1) | (KVM_FEATURES, _) => &[("eax", eax)],
        (0x8000_0001, _) => &[("ecx", ecx), ("edx", edx)],
        _ => &[],
    };
    let named =
        |(register, bits): &(&str, u32)| (format!("{function:#x}.{index}.{register}"), *bits);
    registers.iter().map(named).collect()
}

/// Whether a guest with the processor `saved` can run where KVM supports `here`.
pub fn check(saved: &[kvm_cpuid_entry2], here: &CpuId) -> Result<(), Incompatible> {
    processor(saved).check(&processor(for_vcpu(here, 0, 1).as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported() -> CpuId {
        let entry = |function, index, eax, ebx, ecx, edx| kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ecx,
            edx,
            ..Default::default()
        };
        CpuId::from_entries(&[
            entry(0, 0, 0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
            entry(1, 0, 0x00a2_0f12, 0, 1 << 5 | 1 << 28, 1 << 25),
            entry(7, 0, 1, 1 << 5, 1 << 7, 1 << 24),
            entry(0x8000_0001, 0, 0, 0, 1 << 2, 1 << 29),
        ])
        .unwrap()
    }

    #[test]
    fn nested_virtualization_and_amx_are_hidden() {
        let cpuid = for_vcpu(&supported(), 1, 2);
        let leaf = |f| *cpuid.as_slice().iter().find(|e| e.function == f).unwrap();
        assert_eq!(leaf(1).ecx & (1 << 5), 0);
        assert_eq!(leaf(0x8000_0001).ecx & (1 << 2), 0);
        assert_eq!(leaf(7).edx & (1 << 24), 0);
        assert_eq!(leaf(1).ebx >> 24, 1, "APIC id");
        assert_ne!(leaf(1).ecx & (1 << 31), 0, "hypervisor bit");
    }

    #[test]
    fn a_guest_fits_the_host_it_came_from() {
        let saved = for_vcpu(&supported(), 0, 4);
        assert_eq!(check(saved.as_slice(), &supported()), Ok(()));
    }

    #[test]
    fn another_model_and_missing_features_are_refused() {
        let saved = for_vcpu(&supported(), 0, 1);
        let mut other = supported();
        other.as_mut_slice()[1].eax = 0x0080_0f82;
        assert!(matches!(check(saved.as_slice(), &other), Err(Incompatible::Model { .. })));
        let mut poorer = supported();
        poorer.as_mut_slice()[2].ebx = 0;
        assert_eq!(
            check(saved.as_slice(), &poorer),
            Err(Incompatible::Features { register: "0x7.0.ebx".into(), missing: 1 << 5 })
        );
    }
}
