//! How many descriptors the agent may have, and how many its programs get.
//!
//! The agent takes as many as the kernel gives, because each session and each process needs some.
//! Programs get the limits that the agent was started with; as PID 1, where those are the kernel's
//! meagre ones, the usual soft limit and a high hard one.

use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As much as the kernel's default `fs.nr_open` admits.
const MOST: u64 = 1 << 20;
/// What programs are used to; those that need more ask for it.
const USUAL: u64 = 1024;

static PROGRAMS: OnceLock<(u64, u64)> = OnceLock::new();

/// Take what there is. As PID 1 the hard limit is raised first.
pub fn raise() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let (programs, most) = match std::process::id() {
        1 => ((USUAL, MOST), MOST),
        _ => ((soft, hard), hard),
    };
    // It is called once; a second call would say the same.
    let _ = PROGRAMS.set(programs);
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Soft and hard limit of a program.
pub fn for_programs() -> (u64, u64) {
    *PROGRAMS.get().unwrap_or(&(USUAL, MOST))
}
