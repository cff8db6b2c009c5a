//! Processes that sessions have started.
//!
//! ```text
//!  exec session ── start ──▶ Entry in the Table ◀── reaper: status
//!       │                        ▲
//!       └─ becomes its Pump ─────┘ ◀── attach session hands its connection over
//! ```
//!
//! [`start`] prepares and starts a program, [`pump`] moves its bytes, [`client`] is one end of them, [`ring`] keeps what nobody
//! reads, [`drain`] empties pipes that outlive their process,
//! [`limits`] are those of descriptors. Here are the table and the reaper.
//!
//! Invariants: one thread, the reaper, waits for children, so no status is lost or taken by the
//! wrong party. A pid is signalled under the table's lock and reaped under it, so a signal never hits
//! a stranger that got the number. At most [`RUNNING_MAX`] run and [`ENDED_MAX`] ended ones are known.

pub mod client;
pub mod drain;
pub mod limits;
pub mod pump;
pub mod ring;
pub mod start;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use ramet_proto::agent::{Attach, Command, Exited, Reply};

use crate::failure::{Outcome, failure, from_io};
use crate::frame::Connection;
use crate::log;
use crate::sys::kernel;
use client::Manner;
use ring::Ring;

/// Processes that can be running at once.
pub const RUNNING_MAX: usize = 4096;
/// Ended processes whose status and output are still known.
pub const ENDED_MAX: usize = 64;

/// Clients of one process at once.
const CLIENTS_MAX: usize = 32;
/// Bytes of commands in one frame, beyond the last of them.
const PART_BYTES: usize = 64 * 1024;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A process that a session started.
pub struct Entry {
    /// Its pid and group.
    pub pid: i32,
    /// As it was asked for.
    command: Command,
    /// Set by the reaper, once.
    pub status: OnceLock<Status>,
    /// Wakes the pump: a status, or someone at the door.
    pub wake: EventFd,
    /// Who is there; attach sessions write it, the pump reads it.
    pub door: Mutex<Door>,
}

/// Who is with a process.
#[derive(Default)]
pub struct Door {
    /// Clients that hear, visitors included.
    hearing: usize,
    /// Clients that only speak, visitors included.
    speaking: usize,
    /// Connections that the pump has not yet taken over.
    pub visitors: Vec<Visitor>,
    /// The pump is done; this is what it left.
    pub ended: Option<Ended>,
}

/// A connection at the door.
pub struct Visitor {
    /// The connection.
    pub connection: Connection,
    /// What it wants.
    pub manner: Manner,
}

impl Door {
    /// One is not there any more.
    pub fn left(&mut self, manner: Manner) {
        let count = self.count(manner);
        *count = count.saturating_sub(1);
    }

    fn count(&mut self, manner: Manner) -> &mut usize {
        match manner {
            Manner::Hear => &mut self.hearing,
            Manner::Speak => &mut self.speaking,
        }
    }
}

/// What remains of a process.
#[derive(Clone)]
pub struct Ended {
    /// How it ended.
    pub exited: Exited,
    /// Output that was not delivered.
    pub output: Ring,
}

#[derive(Default)]
struct Table {
    entries: HashMap<i32, Arc<Entry>>,
    /// Ended entries, oldest first.
    ended: VecDeque<Arc<Entry>>,
    /// Starts under way: their pids are not in `entries` yet.
    starting: usize,
    /// Statuses of pids that may belong to a start under way.
    unclaimed: HashMap<i32, Status>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// The lock, whatever happened to a thread that held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Start a process by `spawn` and enter it into the table.
pub fn enter<E>(
    spawn: impl FnOnce() -> Result<i32, E>,
    wake: EventFd,
    command: Command,
) -> Result<Outcome<Arc<Entry>>, E> {
    {
        let mut table = lock(&TABLE);
        if table.entries.len() - table.ended.len() + table.starting >= RUNNING_MAX {
            let text = format!("{RUNNING_MAX} processes run already");
            return Ok(Err(failure("too_many", text)));
        }
        table.starting += 1;
    }
    let spawned = spawn();
    let mut table = lock(&TABLE);
    table.starting -= 1;
    let entered = spawned.map(|pid| {
        let door = Mutex::new(Door { hearing: 1, ..Door::default() });
        let command = Command { pid, ..command };
        let entry = Arc::new(Entry { pid, command, status: OnceLock::new(), wake, door });
        if let Some(status) = table.unclaimed.remove(&pid) {
            entry.ended_by(status);
        }
        if let Some(old) = table.entries.insert(pid, Arc::clone(&entry)) {
            table.ended.retain(|ended| !Arc::ptr_eq(ended, &old));
        }
        entry
    });
    if table.starting == 0 {
        table.unclaimed.clear();
    }
    entered.map(Ok)
}

impl Entry {
    fn ended_by(&self, status: Status) {
        // A pid is reaped once, so the first status is the only one.
        let _ = self.status.set(status);
        self.nudge();
    }

    /// Make the pump look around.
    pub fn nudge(&self) {
        // It fails only when the counter is full, and then the pump is woken already.
        let _ = self.wake.write(1);
    }

    /// Send a signal to the whole group, if the leader has not been reaped yet.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        let _table = lock(&TABLE);
        if self.status.get().is_some() {
            return Ok(());
        }
        kernel::kill(-self.pid, signal)
    }

    /// The pump is done: keep what it left, forget the oldest. Gives back the ended state if a
    /// visitor came in meanwhile, who must be served first.
    pub fn retire(self: &Arc<Self>, ended: Ended) -> Option<Ended> {
        let mut table = lock(&TABLE);
        let mut door = lock(&self.door);
        if !door.visitors.is_empty() {
            return Some(ended);
        }
        door.ended = Some(ended);
        drop(door);
        table.ended.push_back(Arc::clone(self));
        if table.ended.len() > ENDED_MAX
            && let Some(oldest) = table.ended.pop_front()
        {
            table.entries.remove(&oldest.pid);
        }
        None
    }
}

/// Is this the pid of a process that a session started and that still runs?
pub fn is_started_here(pid: i32) -> bool {
    lock(&TABLE).entries.get(&pid).is_some_and(|entry| entry.status.get().is_none())
}

/// How a session comes to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// To hear it alone.
    Attach,
    /// To hear it beside others.
    Join,
    /// To speak to it only.
    Feed,
}

/// Serve a session with a process that runs or has ended: hand the connection to the pump, or tell how it ended.
pub fn attach(connection: Connection, attach: &Attach, entrance: Entrance) {
    let Some(entry) = lock(&TABLE).entries.get(&attach.pid).map(Arc::clone) else {
        let text = format!("pid {}: not started by this agent, or long ended", attach.pid);
        return connection.refuse(failure("no_such_process", text));
    };
    let mut door = lock(&entry.door);
    if let Some(ended) = door.ended.clone() {
        drop(door);
        if entrance == Entrance::Feed {
            let text = format!("pid {}: has ended", attach.pid);
            return connection.refuse(failure("no_such_process", text));
        }
        // A client that left before the end has no use for an error.
        let _ = tell_ended(&connection, entry.pid, ended);
    } else if let Some((code, reason)) = keeps_out(&door, entrance) {
        drop(door);
        connection.refuse(failure(code, format!("pid {}: {reason}", attach.pid)));
    } else {
        let manner = if entrance == Entrance::Feed { Manner::Speak } else { Manner::Hear };
        *door.count(manner) += 1;
        door.visitors.push(Visitor { connection, manner });
        drop(door);
        entry.nudge();
    }
}

fn keeps_out(door: &Door, entrance: Entrance) -> Option<(&'static str, &'static str)> {
    if entrance == Entrance::Attach && door.hearing > 0 {
        return Some(("busy", "another client is attached"));
    }
    (door.hearing + door.speaking >= CLIENTS_MAX).then_some(("too_many", "it has too many clients"))
}

/// Serve a session that asks for all that were started here.
pub fn commands(connection: &Connection) {
    let mut known: Vec<Arc<Entry>> = lock(&TABLE).entries.values().map(Arc::clone).collect();
    known.sort_unstable_by_key(|entry| entry.pid);
    // A peer that left does not want the rest.
    let _ = tell_commands(connection, &known);
}

fn tell_commands(connection: &Connection, known: &[Arc<Entry>]) -> io::Result<()> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for entry in known {
        let ended = lock(&entry.door).ended.is_some();
        let command = Command { ended, ..entry.command.clone() };
        bytes += serde_json::to_vec(&command)?.len();
        part.push(command);
        if bytes > PART_BYTES {
            connection.send(&Reply::Commands { commands: std::mem::take(&mut part) })?;
            bytes = 0;
        }
    }
    if !part.is_empty() {
        connection.send(&Reply::Commands { commands: part })?;
    }
    connection.send(&Reply::Done {})
}

fn tell_ended(connection: &Connection, pid: i32, mut ended: Ended) -> io::Result<()> {
    connection.send(&Reply::Started { pid })?;
    while let Some((channel, bytes)) = ended.output.pop() {
        connection.send_bytes(channel, &bytes)?;
    }
    connection.send(&Reply::Exited(ended.exited))
}

/// Hold SIGCHLD back in this thread and all it will start: the reaper waits for it.
pub fn block_child_signals() -> io::Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    Ok(set.thread_block()?)
}

/// Reap children, ours and orphans, for ever.
pub fn reap_forever() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    loop {
        while reap_one() {}
        if let Err(errno) = set.wait() {
            log::line(format_args!("waiting for children: {errno}"));
        }
    }
}

/// Reap one child that has ended, if there is one.
fn reap_one() -> bool {
    let Some(pid) = kernel::peek_ended() else {
        return false;
    };
    let mut table = lock(&TABLE);
    let Some(status) = kernel::reap(pid) else {
        return false;
    };
    let status = match libc::WIFSIGNALED(status) {
        true => Status::Signal(libc::WTERMSIG(status)),
        false => Status::Code(libc::WEXITSTATUS(status)),
    };
    match table.entries.get(&pid) {
        Some(entry) if entry.status.get().is_none() => entry.ended_by(status),
        _ if table.starting > 0 => {
            table.unclaimed.insert(pid, status);
        }
        _ => {}
    }
    true
}

/// A counter that wakes a poll.
pub fn wake_event() -> Outcome<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| from_io("event counter", &io::Error::from(errno)))
}

/// A descriptor that does not make its reader or writer wait.
pub fn set_blocking(file: impl AsFd, blocking: bool) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    let mut wanted = flags;
    wanted.set(OFlag::O_NONBLOCK, !blocking);
    if wanted != flags {
        fcntl(file.as_fd(), FcntlArg::F_SETFL(wanted))?;
    }
    Ok(())
}

/// It may go better next time.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
