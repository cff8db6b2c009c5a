//! vCPUs of a real machine, one of which is held up outside of the guest.

use std::fs;

use ramet_proto::control::{Boot, Payload};
use ramet_proto::doorbell::BELL_PORT;

use super::*;
use crate::machine::Machine;

/// A machine with two vCPUs: the first spins, the second writes to the doorbell's port without end.
fn boot() -> Option<(Machine, crate::machine::Running)> {
    if crate::kvm::Host::open().is_err() {
        eprintln!("SKIPPED: there is no /dev/kvm to test with");
        return None;
    }
    let [low, high] = BELL_PORT.to_le_bytes();
    let code = [
        0x48, 0x85, 0xf6, // test rsi, rsi
        0x74, 0x07, // jz spin
        0x66, 0xba, low, high, // mov dx, BELL_PORT
        0xee, // ring: out dx, al
        0xeb, 0xfd, // jmp ring
        0xeb, 0xfe, // spin: jmp spin
    ];
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("code.bin");
    fs::write(&image, code).unwrap();
    let payload = Payload::Flat { image: image.to_str().unwrap().to_owned() };
    let (disks, layers, identity) = (Vec::new(), None, None);
    let (vcpus, memory_mib, huge_pages) = (2, 64, false);
    let (saved, slots, network) = (None, 0, false);
    let boot = Boot {
        vcpus,
        memory_mib,
        huge_pages,
        payload,
        disks,
        slots,
        network,
        layers,
        saved,
        identity,
    };
    Some(Machine::boot(&boot).unwrap())
}

/// One that still runs may send an interrupt to one that was captured, and then it is lost in the child.
#[test]
fn no_vcpu_is_captured_before_all_have_left() {
    let Some((machine, running)) = boot() else { return };
    let vcpus = &running.vcpus;
    let held = lock(&machine.bus.doorbell);
    // The second is behind that lock after a few instructions.
    std::thread::sleep(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| vcpus.stop());
        // Long enough for the first to be captured, if it does not wait.
        std::thread::sleep(Duration::from_millis(300));
        let captured = lock(&vcpus.threads[0].gate.inside).parked.is_some();
        drop(held);
        let states = stopping.join().unwrap().unwrap();
        assert_eq!((captured, states.len()), (false, 2));
    });
    vcpus.assert_parked();
    running.vcpus.quit();
}
