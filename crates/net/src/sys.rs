//! The two things that need `unsafe`: the allocator's settings, and the runtime's promise that a descriptor stays what it is.
#![expect(unsafe_code, reason = "mallopt(3) and AsyncFd::register_with_interest have no safe form")]

use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets the runtime wait for a descriptor. Inside the runtime.
///
/// # Errors
/// If it is one that cannot be waited for.
pub fn watch(fd: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is always the same open descriptor, and is closed only when it is dropped, which `AsyncFd` does after it
    // has deregistered it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}

/// Large buffers come from the kernel, zeroed and page by page, and go back to it: a connection that is not used costs next to nothing. Without
/// this the allocator begins to keep them as soon as the first was freed.
pub fn large_buffers_from_the_kernel() {
    // SAFETY: mallopt may be called at any time, with any values; it changes only the allocator's own settings.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
