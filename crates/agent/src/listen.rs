//! Where sessions come from: vsock in a guest, TCP in the software host, a Unix socket elsewhere.
//!
//! One accepting thread per listener, which never waits for a session.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, VsockAddr};
use nix::sys::socket::{bind, listen, socket};
use ramet_proto::agent::PORT;

use crate::log;
use crate::session::Sessions;
use crate::sys::kernel;

/// Connections that wait to be accepted; hundreds may be made at once.
const BACKLOG: i32 = 1024;

/// Accept sessions on the guest's vsock, for ever.
pub fn vsock(sessions: &Sessions) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    bind(listener.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, PORT))?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    accept_forever(&listener, sessions)
}

/// Accept sessions on TCP, for ever. Only for the software host, whose network is its user's loopback.
pub fn tcp(sessions: &Sessions) -> io::Result<()> {
    let port = u16::try_from(PORT).map_err(io::Error::other)?;
    let listener = OwnedFd::from(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?);
    listen(&listener, Backlog::new(BACKLOG)?)?;
    accept_forever(&listener, sessions)
}

/// Accept sessions on a Unix socket, for ever.
pub fn unix(path: &Path, sessions: &Sessions) -> io::Result<()> {
    let listener = OwnedFd::from(UnixListener::bind(path)?);
    listen(&listener, Backlog::new(BACKLOG)?)?;
    accept_forever(&listener, sessions)
}

fn accept_forever(listener: &OwnedFd, sessions: &Sessions) -> io::Result<()> {
    loop {
        match kernel::accept(listener.as_fd()) {
            Ok(socket) => sessions.start(socket),
            Err(Errno::EINTR | Errno::ECONNABORTED | Errno::ECONNRESET) => {}
            Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)) => {
                log::line(format_args!("no session could be accepted: {errno}"));
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}
