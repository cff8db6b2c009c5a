//! Connect a session to a listener in the guest.
//!
//! After `Done` the connection is the dialled stream: bytes go both ways, and an end on one side
//! becomes an end on the other (half-close), until both have ended or one has failed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use ramet_proto::agent::{Dial, Reply};

use crate::failure::{Outcome, bad_request, from_io};
use crate::files::checked_path;
use crate::frame::Connection;

const BUFFER_BYTES: usize = 64 * 1024;
/// A listener that accepts nobody lets a connection wait for minutes.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Serve a dial session.
pub fn dial(connection: &Connection, dial: &Dial) {
    let dialled = match connect(dial) {
        Ok(dialled) => dialled,
        Err(failure) => return connection.refuse(failure),
    };
    if connection.send(&Reply::Done {}).is_err() {
        return;
    }
    let (Ok(from_host), Ok(to_listener)) = (connection.duplicate(), dialled.try_clone()) else {
        return;
    };
    let thread = std::thread::Builder::new().name("dial".into()).stack_size(128 * 1024);
    let Ok(upward) = thread.spawn(move || copy(&from_host, &to_listener)) else {
        return;
    };
    copy(&dialled, connection.raw());
    // It has nothing to give back; a panic would have ended the agent.
    let _ = upward.join();
}

fn connect(dial: &Dial) -> Outcome<File> {
    match dial {
        Dial::Tcp { port: 0 } => Err(bad_request("TCP port 0 is no port")),
        Dial::Tcp { port } => {
            let first = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            let second = SocketAddr::from((Ipv6Addr::LOCALHOST, *port));
            let stream = match TcpStream::connect_timeout(&first, CONNECT_TIME) {
                Ok(stream) => Ok(stream),
                // What IPv4 said is what counts: IPv6 may not exist at all.
                Err(error) => TcpStream::connect_timeout(&second, CONNECT_TIME).map_err(|_| error),
            };
            let stream =
                stream.map_err(|error| from_io(format_args!("TCP port {port}"), &error))?;
            // Only a matter of latency.
            let _ = stream.set_nodelay(true);
            Ok(File::from(OwnedFd::from(stream)))
        }
        Dial::Unix { path } => {
            let path = checked_path(path)?;
            let stream =
                UnixStream::connect(&path).map_err(|error| from_io(path.display(), &error))?;
            Ok(File::from(OwnedFd::from(stream)))
        }
    }
}

/// Until `from` ends, then end `to`; if either fails, end both for good.
fn copy(mut from: &File, mut to: &File) {
    let ended = (|| -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => to.write_all(&buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    })();
    // These fail only on sockets that are gone already.
    if ended.is_ok() {
        let _ = shutdown(to.as_raw_fd(), Shutdown::Write);
    } else {
        let _ = shutdown(to.as_raw_fd(), Shutdown::Both);
        let _ = shutdown(from.as_raw_fd(), Shutdown::Both);
    }
}
