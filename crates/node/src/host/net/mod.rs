//! The network of machines, behind one narrow interface.
//!
//! [`Network`] is all that the sandbox logic knows of it: ports of machines, made and changed by name. [`service`] implements it
//! with `ramet-net`, a process of its own that outlives the node; tests have their own. A node whose network does not run does
//! everything else: machines that are connected to nothing wait with their frames.

#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod service;

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use ramet_proto::api::network::{LogEntry, NetStats};
use ramet_proto::net::{Code, Listed, Port};
use tokio::sync::watch;

/// Room for frames on their way, each way; the host may give less.
const ROOM: usize = 1 << 20;

/// Whether there is a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is.
    Up,
    /// There is not, and why.
    Down(String),
}

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service refused, and says why.
    #[error("{message}")]
    Refused {
        /// For programs.
        code: Code,
        /// For people.
        message: String,
    },
    /// There is no service.
    #[error("the network service does not run: {0}")]
    Down(String),
    /// No answer in time.
    #[error("the network service did not answer in time")]
    Timeout,
    /// The host failed.
    #[error("the connection to the network service failed")]
    Io(#[from] io::Error),
    /// It broke the protocol.
    #[error("the network service broke the protocol: {0}")]
    Protocol(String),
}

/// Ports of machines. Calls block, each with a deadline of its own.
///
/// Dropping it leaves the ports alive; [`Network::start`] takes hold of them again.
pub trait Network: Send + Sync + 'static {
    /// Takes hold of the service that runs, or starts one. Does nothing if that was done.
    fn start(&self) -> Result<(), Error>;
    /// Ends it, and with it all ports.
    fn stop(&self);
    /// Whether it runs, from now on. Told when it ends by itself.
    fn state(&self) -> watch::Receiver<State>;
    /// Makes a port, or gives one a new link and resets its connections. The end of the link that the machine gets.
    fn attach(&self, port: &Port) -> Result<OwnedFd, Error>;
    /// Changes a port; connections that are still allowed stay.
    fn configure(&self, port: &Port) -> Result<(), Error>;
    /// Removes a port. One that is not there is no error.
    fn detach(&self, port: &str) -> Result<(), Error>;
    /// All ports.
    fn list(&self) -> Result<Vec<Listed>, Error>;
    /// Figures of a port.
    fn stats(&self, port: &str) -> Result<NetStats, Error>;
    /// What happened at a port.
    fn log(&self, port: &str, after: u64, limit: u32) -> Result<Vec<LogEntry>, Error>;
}

/// Both ends of a link.
fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let ends = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC);
    let (one, other) = ends.map_err(io::Error::from)?;
    for end in [&one, &other] {
        setsockopt(end, sockopt::SndBuf, &ROOM).map_err(io::Error::from)?;
    }
    Ok((one, other))
}
