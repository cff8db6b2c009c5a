//! fork(2) of the monitor, and what a child must do before anything else.
//!
//! Safe because of what holds when [`fork`] is called: every thread but the caller's is a vCPU's and sleeps at
//! its gate ([`crate::vcpu::Vcpus::assert_parked`]), so no lock of ours or of the allocator is held by a
//! thread that will not exist in the child. The C library's `fork` brings its own state in order.
//!
//! A child shares with its parent only what is meant to be shared: memory copy-on-write, and the descriptors
//! of files that nobody writes. [`keep_only`] closes all others.
#![expect(unsafe_code, reason = "fork(2) and close_range(2)")]

use std::io;
use std::os::fd::RawFd;

/// Which of the two processes this is.
#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was there before.
    Parent {
        /// The new one.
        child: u32,
    },
    /// The new one.
    Child,
}

/// Becomes two processes. See the module's conditions.
pub fn fork() -> io::Result<Side> {
    // SAFETY: no other thread holds a lock (see above), so the child may go on with all of Rust's
    // and C's library.
    let pid = unsafe { libc::fork() };
    match u32::try_from(pid) {
        Ok(0) => Ok(Side::Child),
        Ok(child) => Ok(Side::Parent { child }),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor but these and the three standard ones.
///
/// Objects that own a closed descriptor must have been forgotten before.
pub fn keep_only(keep: impl Iterator<Item = RawFd>) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.filter_map(|fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = from.max(fd + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller has forgotten the owners of these descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends this process at once: no destructor touches what is shared, no thread is waited for.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) has no conditions.
    unsafe { libc::_exit(code) }
}
