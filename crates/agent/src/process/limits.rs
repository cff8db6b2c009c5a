//! How many descriptors the agent may have, how many its programs get, and how many processes those may be.
//!
//! The number of processes is that of a control group which is made at boot; making it later would wait for all
//! vCPUs, and an identity is applied while they are held. Programs join it only if it has a limit, because joining
//! takes milliseconds. The agent itself stays outside, so that it can always help.
//!
//! The agent takes as many as the kernel gives, because each session and each process needs some.
//! Programs get the limits that the agent was started with; as PID 1, where those are the kernel's
//! meagre ones, the usual soft limit and a high hard one.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As much as the kernel's default `fs.nr_open` admits.
const MOST: u64 = 1 << 20;
/// What programs are used to; those that need more ask for it.
const USUAL: u64 = 1024;

/// Root of all groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// The group of programs.
const GROUP: &str = "ramet";

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

/// Makes the group of programs below the root of all groups.
pub fn make_group(groups: &Path) -> io::Result<()> {
    fs::write(groups.join("cgroup.subtree_control"), "+pids")?;
    match fs::create_dir(groups.join(GROUP)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Where the limit of processes is written.
pub fn pids_max() -> io::Result<File> {
    File::options().write(true).open(Path::new(GROUPS).join(GROUP).join("pids.max"))
}

/// Where a program joins the group, if it has a limit.
pub fn group() -> io::Result<Option<File>> {
    let group = Path::new(GROUPS).join(GROUP);
    match fs::read_to_string(group.join("pids.max")) {
        Ok(most) if most.trim() != "max" => {
            File::options().write(true).open(group.join("cgroup.procs")).map(Some)
        }
        Ok(_) => Ok(None),
        // Outside of a guest, or in one whose kernel has no such groups, there can be no limit.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Soft and hard limit of a program.
pub fn for_programs() -> (u64, u64) {
    *PROGRAMS.get().unwrap_or(&(USUAL, MOST))
}
