//! The doorbell's I/O ports.
//!
//! Refuses nothing: a process without [`allow`] gets SIGSEGV from the instructions, so the caller
//! holds a [`Bell`], which only [`allow`] makes. The permission belongs to the calling thread;
//! therefore [`Bell`] cannot leave it.

use std::arch::asm;
use std::io;
use std::marker::PhantomData;

use ramet_proto::doorbell::{ACK_PORT, BELL_PORT, PAYLOAD_PORT};

/// Proof that this thread may use the ports.
pub struct Bell {
    /// Not `Send`: the permission is the thread's.
    _thread: PhantomData<*const ()>,
}

/// Ask the kernel for the doorbell's ports, for this thread.
pub fn allow() -> io::Result<Bell> {
    let first = libc::c_ulong::from(BELL_PORT);
    let count = libc::c_ulong::from(ACK_PORT + 4 - BELL_PORT);
    // SAFETY: ioperm takes numbers only and changes the calling thread's permissions.
    if unsafe { libc::ioperm(first, count, 1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Bell { _thread: PhantomData })
}

impl Bell {
    /// Meet the monitor. Returns once per machine that goes on from here.
    pub fn ring(&self) -> u32 {
        let answer: u32;
        // SAFETY: `in` changes eax only; this thread has the permission (`self`). It is not `nomem`
        // so that all writes of this thread are in memory before the machine is cut here.
        unsafe {
            asm!("in eax, dx", out("eax") answer, in("dx") BELL_PORT, options(nostack, preserves_flags));
        }
        answer
    }

    /// Begin reading the payload from its start.
    pub fn rewind(&self) {
        // SAFETY: `out` has no effect on memory; this thread has the permission (`self`).
        unsafe {
            asm!("out dx, eax", in("dx") BELL_PORT, in("eax") 0_u32, options(nostack, preserves_flags));
        }
    }

    /// Read the next bytes of the payload.
    pub fn read(&self, into: &mut [u8]) {
        // SAFETY: `rep insb` writes rcx bytes from rdi on, which is exactly `into`; the direction
        // flag is clear by the ABI; this thread has the permission (`self`).
        unsafe {
            asm!(
                "rep insb",
                in("dx") PAYLOAD_PORT,
                inout("rdi") into.as_mut_ptr() => _,
                inout("rcx") into.len() => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Tell the monitor that the identity was applied.
    pub fn acknowledge(&self, index: u32) {
        // SAFETY: `out` has no effect on memory; this thread has the permission (`self`).
        unsafe {
            asm!("out dx, eax", in("dx") ACK_PORT, in("eax") index, options(nostack, preserves_flags));
        }
    }
}
