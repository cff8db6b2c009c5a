//! Small system calls that std does not have.
#![expect(unsafe_code, reason = "system calls without a safe wrapper in std")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Fills `bytes` from the kernel's generator.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &mut bytes[at..];
        // SAFETY: the pointer and length are those of a slice that we own.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => at += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// A file in `directory` that has no name and vanishes with its last descriptor.
pub fn nameless_file(directory: &File) -> io::Result<File> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    match open_in(directory, c".", flags | libc::O_TMPFILE) {
        // Some filesystems cannot make such a file; one that loses its name at once will do.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let mut random = [0; 16];
            fill_random(&mut random)?;
            let name = CString::new(format!(".layer-{}", crate::hex::encode(&random)))?;
            let file = open_in(directory, &name, flags | libc::O_CREAT | libc::O_EXCL)?;
            // SAFETY: the name is a C string, the descriptor is open.
            check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) })?;
            Ok(file)
        }
        result => result,
    }
}

fn open_in(directory: &File, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    // SAFETY: the name is a C string, the descriptor is open.
    let fd = check(unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, 0o600) })?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives back the space of a range of a file; it reads as zero afterwards.
pub fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let length = libc::off_t::try_from(length).map_err(io::Error::other)?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) }).map(|_| ())
}

/// Takes a lock of an open file, shared or alone, if nobody has one that excludes it. It is held as long as a
/// process has the open file, a forked one included.
pub fn lock(file: &File, alone: bool) -> io::Result<()> {
    let kind = if alone { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: no memory is involved.
    check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }).map(|_| ())
}

/// The next range at or after `from` that holds data, if any.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, whence| {
        let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
        // SAFETY: no memory is involved.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until one of the descriptors can be read, and says which; those below 0 never can.
pub fn poll_read<const N: usize>(
    fds: [RawFd; N],
    time: std::time::Duration,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the array is ours and as long as said.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, time) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(polled.map(|polled| polled.revents != 0)),
    }
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check(RawFd::try_from(fd).map_err(io::Error::other)?)?;
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Kills the process behind a pidfd.
pub fn kill(pidfd: &OwnedFd) {
    // SAFETY: no memory is involved. A process that is gone already needs no killing.
    let _gone = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, 0, 0)
    };
}

/// Children are reaped by the kernel; a file that may not grow is an error, not the end; as many files as
/// allowed may be open.
pub fn prepare_process() -> io::Result<()> {
    for signal in [libc::SIGCHLD, libc::SIGXFSZ] {
        // SAFETY: SIG_IGN installs no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours, for both calls.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(|_| ())
}

/// Whether the descriptor is a socket that accepts connections.
pub fn is_listener(fd: &OwnedFd) -> bool {
    socket_option(fd, libc::SO_ACCEPTCONN) == Some(1)
}

/// Whether the descriptor is a socket of this kind.
pub fn is_seqpacket(fd: &OwnedFd) -> bool {
    socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
}

fn socket_option(fd: &OwnedFd, option: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: the value is ours and as long as said.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(value)
}
