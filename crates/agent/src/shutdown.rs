//! The end of the guest.
//!
//! Only the first process of a machine does this; an agent that merely serves refuses, because it
//! would take its host down. Processes get SIGTERM, then SIGKILL; file systems are synced and made
//! read-only as far as possible; then the machine powers off or reboots.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use ramet_proto::agent::Reply;

use crate::failure::bad_request;
use crate::frame::Connection;
use crate::procfs;
use crate::sys::kernel;

/// What the first process knows of the machine.
pub struct Machine {
    /// The mounted disk, below the overlay.
    pub data: Option<OwnedFd>,
}

static MACHINE: OnceLock<Machine> = OnceLock::new();
static BEGUN: AtomicBool = AtomicBool::new(false);

/// This process is the machine's first one.
pub fn allow(machine: Machine) {
    // Boot calls it once.
    let _ = MACHINE.set(machine);
}

/// The machine is going down.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire)
}

/// Serve a shutdown session: answer, then end the machine.
pub fn shutdown(connection: &Connection, again: bool, grace_ms: u64) {
    let Some(machine) = MACHINE.get() else {
        let text = "this agent is not the first process of a machine";
        return connection.refuse(bad_request(text));
    };
    // The machine goes down whether or not the peer hears it.
    let _ = connection.send(&Reply::Done {});
    connection.shut_write();
    if !BEGUN.swap(true, Ordering::AcqRel) {
        end(machine, again, Duration::from_millis(grace_ms));
    }
}

fn end(machine: &Machine, again: bool, grace: Duration) -> ! {
    // -1 is everyone but this process; it fails when there is no one.
    let _ = kernel::kill(-1, libc::SIGTERM);
    let _ = kernel::kill(-1, libc::SIGCONT);
    let begun = Instant::now();
    while begun.elapsed() < grace && !is_alone() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = kernel::kill(-1, libc::SIGKILL);
    nix::unistd::sync();
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    // Best effort: what is synced survives a mount that cannot be changed.
    let _ = mount(None::<&str>, "/", None::<&str>, read_only, None::<&str>);
    if let Some(data) = &machine.data {
        let path = format!("/proc/self/fd/{}", data.as_raw_fd());
        let _ = mount(None::<&str>, path.as_str(), None::<&str>, read_only, None::<&str>);
    }
    nix::unistd::sync();
    halt(again)
}

/// No process is left but this one, the seizer and the kernel's own.
fn is_alone() -> bool {
    !procfs::pids().into_iter().any(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid != 1 && !command.is_empty() && !command.ends_with(b"\0seize\0")
    })
}

/// Power off, or start again. If the kernel cannot, try the other way, then wait.
pub fn halt(again: bool) -> ! {
    let (first, second) = match again {
        true => (RebootMode::RB_AUTOBOOT, RebootMode::RB_POWER_OFF),
        false => (RebootMode::RB_POWER_OFF, RebootMode::RB_HALT_SYSTEM),
    };
    // They return only if they are refused.
    let _ = reboot(first);
    let _ = reboot(second);
    loop {
        std::thread::park();
    }
}
