//! What the service gives up at its start: it needs to connect sockets, and to read a few files.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What may still be read: the host's resolver configuration and its authorities.
const READ: [&str; 4] = [
    "/etc",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/run/systemd/resolve",
];

/// Why it could not.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// Capabilities or flags.
    #[error("cannot drop privileges")]
    Privileges(#[from] rustix::io::Errno),
    /// Files.
    #[error("cannot give up files")]
    Files(#[from] landlock::RulesetError),
}

/// Drops what is not needed, for good. To be called before there is another thread: capabilities are a thread's own.
///
/// # Errors
/// If the kernel does not allow it. A kernel without Landlock is no error: files are then as open as before.
pub fn harden() -> Result<(), HardenError> {
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Not all kernels have it; the sets below are what counts.
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    give_up_files()
}

fn give_up_files() -> Result<(), HardenError> {
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V5))?.create()?;
    for path in readable() {
        let Ok(fd) = PathFd::new(path) else { continue };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, AccessFs::from_read(ABI::V5)))?;
    }
    if ruleset.restrict_self()?.ruleset == RulesetStatus::NotEnforced {
        tracing::warn!("this kernel has no Landlock: files are not given up");
    }
    Ok(())
}

fn readable() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = READ.iter().map(PathBuf::from).collect();
    // It is often a link to somewhere else.
    if let Ok(real) = std::fs::canonicalize("/etc/resolv.conf") {
        paths.extend(real.parent().map(Path::to_owned).filter(|parent| parent != Path::new("/")));
    }
    paths
}

/// As many descriptors as the host allows: every connection is one.
pub fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "cannot raise the limit of descriptors");
    }
}
