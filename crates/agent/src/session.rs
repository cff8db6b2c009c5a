//! One connection, one operation.
//!
//! Reads the first frame of a connection and hands it to the module that serves it. Refuses
//! whatever is not exactly one [`Request`], with `bad_request` and what was wrong, and closes.
//!
//! Invariant: nothing that a peer sends makes a thread panic, and each connection costs one thread
//! and at most a few frames of memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ramet_proto::agent::{Channel, Reply, Request, Signal};

use crate::failure::{Outcome, bad_request, failure, from_io};
use crate::frame::{Connection, Decoder, Permit, Received};
use crate::process::Entrance;
use crate::{
    compare, dial, files, listeners, log, network, process, procfs, shutdown, users, volumes,
};

/// Connections at once.
pub const SESSIONS_MAX: usize = 1024;
/// Buffers are on the heap; the deepest recursion is serde's, which is bounded.
const STACK_BYTES: usize = 128 * 1024;

/// Starts sessions, up to [`SESSIONS_MAX`] at once.
#[derive(Clone, Default)]
pub struct Sessions {
    taken: Arc<AtomicUsize>,
}

impl Sessions {
    /// Serve this connection on a thread of its own, or refuse it.
    pub fn start(&self, socket: OwnedFd) {
        let Some(permit) = Permit::take(&self.taken, SESSIONS_MAX) else {
            let text = format!("{SESSIONS_MAX} sessions are open already");
            return refuse_at_once(&Connection::new(socket, None), &text);
        };
        let thread = std::thread::Builder::new().name("session".into()).stack_size(STACK_BYTES);
        let connection = Connection::new(socket, Some(permit));
        if let Err(error) = thread.spawn(move || serve(connection)) {
            // The connection went with the thread that could not be: the peer sees it close.
            log::line(format_args!("no thread for a session: {error}"));
        }
    }
}

/// Without waiting for the peer: the caller accepts connections.
fn refuse_at_once(connection: &Connection, text: &str) {
    if process::set_blocking(connection, false).is_ok() {
        // A peer that cannot take even this frame learns it from the close.
        let _ = connection.send(&Reply::Error(failure("too_many", text)));
    }
}

fn serve(connection: Connection) {
    match read_request(&connection) {
        Ok(Some(request)) => dispatch(connection, request),
        Ok(None) => {}
        Err(failure) => connection.refuse(failure),
    }
}

fn read_request(connection: &Connection) -> Outcome<Option<Request>> {
    match Decoder::default().receive(connection) {
        Ok(Received::Frame(Channel::Message, bytes)) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| bad_request(format!("not a request: {error}"))),
        Ok(Received::Frame(..)) => Err(bad_request("the first frame is not a message")),
        Ok(Received::Nothing | Received::End) => Ok(None),
        Err(crate::frame::FrameError::Io(_)) => Ok(None),
        Err(error) => Err(bad_request(error.to_string())),
    }
}

fn dispatch(connection: Connection, request: Request) {
    match request {
        Request::Exec(exec) => process::start::exec(connection, &exec),
        Request::Attach(attach) => process::attach(connection, &attach, Entrance::Attach),
        Request::Join(attach) => process::attach(connection, &attach, Entrance::Join),
        Request::Feed(attach) => process::attach(connection, &attach, Entrance::Feed),
        Request::Commands {} => process::commands(&connection),
        Request::Dial(dial) => dial::dial(&connection, &dial),
        Request::ReadFile(read) => files::read::read(&connection, &read),
        Request::WriteFile(write) => files::write::write(&connection, &write),
        Request::ReadArchive(read) => files::archive::read(&connection, &read),
        Request::WriteArchive(write) => files::archive::write(&connection, &write),
        Request::List(list) => files::list::list(&connection, &list),
        Request::Watch { path, recursive } => files::watch::watch(&connection, &path, recursive),
        Request::Layer { paths } => compare::layer::layer(&connection, &paths),
        Request::Look { places } => compare::look::look(&connection, &places),
        Request::Digest { paths, time_ms } => {
            compare::digest::digest(&connection, &paths, time_ms);
        }
        Request::Shutdown { reboot, grace_ms } => {
            shutdown::shutdown(&connection, reboot, grace_ms);
        }
        simple => answer(&connection, simple_reply(simple)),
    }
}

/// Send what came out, as the only frame.
pub fn answer(connection: &Connection, outcome: Outcome<Reply>) {
    match outcome {
        // A peer that left does not want it.
        Ok(reply) => drop(connection.send(&reply)),
        Err(failure) => connection.refuse(failure),
    }
}

/// Requests that are answered by one frame.
fn simple_reply(request: Request) -> Outcome<Reply> {
    match request {
        Request::Processes {} => Ok(Reply::Processes { processes: procfs::processes() }),
        Request::Accounts {} => Ok(Reply::Accounts(users::accounts())),
        Request::Listeners {} => Ok(Reply::Listeners { listeners: listeners::all() }),
        Request::Usage {} => Ok(Reply::Usage(procfs::usage())),
        Request::Sync {} => {
            nix::unistd::sync();
            Ok(Reply::Done {})
        }
        Request::Signal(signal) => send_signal(&signal),
        Request::Mount(mount) => volumes::mount(&mount).map(|()| Reply::Done {}),
        Request::Network(wanted) => network::set(&wanted).map(|()| Reply::Done {}),
        Request::Unmount { device } => volumes::unmount(&device).map(|()| Reply::Done {}),
        Request::Stat { path } => files::stat(&path).map(Reply::Stat),
        Request::Mkdir(mkdir) => files::mkdir(&mkdir).map(Reply::Stat),
        Request::Move { from, to } => files::rename(&from, &to).map(|()| Reply::Done {}),
        Request::Remove { path, recursive } => {
            files::remove(&path, recursive).map(|()| Reply::Done {})
        }
        other => Err(failure("io", format!("no handler for {other:?}"))),
    }
}

fn send_signal(signal: &Signal) -> Outcome<Reply> {
    if signal.pid < 1 {
        return Err(bad_request(format!("pid {} is not a process", signal.pid)));
    }
    let target = if signal.group { -signal.pid } else { signal.pid };
    if target == -1 {
        return Err(bad_request("group 1 would be every process"));
    }
    crate::sys::kernel::kill(target, signal.signal)
        .map(|()| Reply::Done {})
        .map_err(|error| from_io(format_args!("signal {} to {target}", signal.signal), &error))
}
