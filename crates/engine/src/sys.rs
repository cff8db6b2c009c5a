//! Processes by descriptor.
//!
//! A monitor that was born by a fork is no child of ours, so it can neither be waited for nor be
//! signalled by its number without the risk of meeting another process. A pidfd does both safely.
//!
//! Unsafe code is here because neither std nor nix offers the two system calls.
#![expect(unsafe_code, reason = "pidfd_open and pidfd_send_signal have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A process that is held fast: its number is not reused while this exists.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Takes hold of the process with this number.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends SIGKILL. A process that is already gone is no error.
    pub fn kill(&self) -> io::Result<()> {
        let info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for as long as `self` is; a null siginfo is allowed.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, info, 0)
        };
        match io::Error::last_os_error() {
            _ if result == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        }
    }

    /// Waits until the process has ended; false if it has not within this time.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left.min(Duration::from_secs(60)))
                .map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if Instant::now() >= end => return Ok(false),
                Ok(0) | Err(nix::Error::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_and_waits() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        assert!(!process.wait(Duration::from_millis(1)).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        process.kill().unwrap();
        assert!(process.wait(Duration::ZERO).unwrap());
        assert!(PidFd::open(u32::MAX).is_err());
    }
}
