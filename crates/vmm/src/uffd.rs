//! Faults of this process that are answered by one of its own threads: userfaultfd(2).
//!
//! Only what the pager needs: register a range, hear of faults, put pages there. (The crate of that name builds
//! its bindings with a C compiler and libclang, for four ioctls.)
#![expect(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const API: u64 = 0xaa;
const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOCTL_WAKE: libc::c_ulong = 0x8010_aa02;
const IOCTL_COPY: libc::c_ulong = 0xc028_aa03;
const MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
/// Faults that are read at once.
const MESSAGES: usize = 32;

#[repr(C)]
#[derive(Default)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// Hears of faults. When it is dropped, pages that nobody brought read as zero: that must not happen before
/// all are there.
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Hears of the first touch of each page of a range of anonymous memory.
    pub fn register(base: usize, length: usize) -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the descriptor is new and ours.
        let uffd = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        uffd.ioctl(IOCTL_API, &mut UffdApi { api: API, ..UffdApi::default() })?;
        let range = Range { start: base as u64, len: length as u64 };
        let mut register = Register { range, mode: MODE_MISSING, ioctls: 0 };
        uffd.ioctl(IOCTL_REGISTER, &mut register)?;
        Ok(uffd)
    }

    /// Addresses that were touched; none if nobody waits.
    pub fn faults(&self) -> io::Result<Vec<usize>> {
        let mut messages = [Message::default(); MESSAGES];
        // SAFETY: the buffer is ours and as long as said.
        let got = unsafe {
            libc::read(self.0.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages))
        };
        match usize::try_from(got) {
            Ok(got) => Ok(messages[..got / size_of::<Message>()]
                .iter()
                .filter(|message| message.event == EVENT_PAGEFAULT)
                .filter_map(|message| usize::try_from(message.address).ok())
                .collect()),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
                error => Err(error),
            },
        }
    }

    /// Puts pages in their place and wakes who waits for them. `to` is a registered address, and none of the
    /// pages is there yet.
    pub fn put(&self, to: usize, pages: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < pages.len() {
            let mut copy = Copy {
                dst: (to + done) as u64,
                src: pages[done..].as_ptr() as u64,
                len: (pages.len() - done) as u64,
                ..Copy::default()
            };
            let result = self.ioctl(IOCTL_COPY, &mut copy);
            match (usize::try_from(copy.copied), result) {
                (Ok(copied), _) if copied > 0 => done += copied,
                // The address space was changed meanwhile.
                (_, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (_, Err(error)) => return Err(error),
                (_, Ok(())) => return Err(io::ErrorKind::WriteZero.into()),
            }
        }
        Ok(())
    }

    /// Has who waits in a range look again.
    pub fn wake(&self, base: usize, length: usize) -> io::Result<()> {
        self.ioctl(IOCTL_WAKE, &mut Range { start: base as u64, len: length as u64 })
    }

    fn ioctl<T>(&self, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: each request goes with the structure of its own layout, which is ours.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
