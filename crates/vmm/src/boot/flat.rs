//! A flat payload: machine code in long mode at privilege level 3, on every vCPU, with nothing around it.
//!
//! Code at level 3 runs at full speed even where KVM interprets kernel code, so the whole fork path can be
//! tested and measured there.

use std::io::Read;

use kvm_bindings::{KVM_MP_STATE_RUNNABLE, kvm_mp_state, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::{BootError, linux, open};
use crate::memory::Ram;

/// Where the code lies.
const CODE: u64 = 0x0010_0000;
/// Largest code.
const CODE_MAX: usize = 1 << 20;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORIES: u64 = 0x3000;
/// Top of the first vCPU's stack; the others' are one page apart.
const STACK: u64 = 0x41000;
/// Present, writable, user.
const ACCESS: u64 = 7;
const LARGE: u64 = 1 << 7;
const GIB: u64 = 1 << 30;

/// Puts the code and page tables into memory.
pub fn load(ram: &Ram, image: &str) -> Result<(), BootError> {
    let mut code = Vec::new();
    let read = |source| BootError::Read { path: image.to_owned(), source };
    open(image)?.take(CODE_MAX as u64 + 1).read_to_end(&mut code).map_err(read)?;
    if code.is_empty() || code.len() > CODE_MAX {
        return Err(BootError::Not {
            path: image.to_owned(),
            what: "flat payload",
            reason: format!("it must have 1 to {CODE_MAX} bytes"),
        });
    }
    write_all(ram, &code).map_err(|_| BootError::TooLarge {
        what: "the payload".into(),
        memory_mib: ram.size() >> 20,
    })
}

/// Writes code and page tables.
pub fn write_all(ram: &Ram, code: &[u8]) -> Result<(), vm_memory::GuestMemoryError> {
    let memory = ram.guest();
    memory.write_slice(code, GuestAddress(CODE))?;
    memory.write_obj(PDPT | ACCESS, GuestAddress(PML4))?;
    for part in ram.parts() {
        let end = part.gpa + part.size as u64;
        for start in (part.gpa..end).step_by(2 << 20) {
            let gib = start / GIB;
            let directory = DIRECTORIES + gib * 0x1000;
            memory.write_obj(directory | ACCESS, GuestAddress(PDPT + gib * 8))?;
            let entry = start % GIB / (2 << 20);
            memory.write_obj(start | ACCESS | LARGE, GuestAddress(directory + entry * 8))?;
        }
    }
    Ok(())
}

/// Registers of vCPU `index`.
pub fn set_registers(vcpu: &VcpuFd, ram: &Ram, index: u8) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let data = segment(0x2b, 3, 0);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.cs = segment(0x33, 11, 1);
    sregs.cr3 = PML4;
    sregs.cr4 = 1 << 5 | 1 << 9 | 1 << 10; // PAE, SSE
    sregs.cr0 = 0x8005_0033;
    sregs.efer = 1 << 8 | 1 << 10;
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs {
        rip: CODE,
        rsp: STACK + u64::from(index) * 0x1000,
        rdi: ram.size() as u64,
        rsi: index.into(),
        rflags: 2 | 3 << 12, // all ports
        ..Default::default()
    })?;
    linux::set_memory_type(vcpu)?;
    vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })
}

fn segment(selector: u16, type_: u8, long: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db: 1 - long,
        s: 1,
        l: long,
        g: 1,
        ..Default::default()
    }
}
