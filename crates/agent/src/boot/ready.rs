//! What a guest needs before its first process: the identity's files and a few settings.
//!
//! The identity's files are on a tmpfs, so that a child can write them without waiting for a disk. Two
//! of them are mounted over files in `/etc`, which image and disk never see change.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::unistd::sethostname;

use super::BootError;
use crate::identity::RUN;
use crate::log;

const HOSTNAME: &str = "ramet";

/// Kernel settings. One that is refused is logged; the guest works without.
pub fn tune() {
    let settings = [
        // A machine that is woken after hours finds its seizer "running" for hours: it must not be
        // throttled for that, or processes would run before the identity is applied.
        ("/proc/sys/kernel/sched_rt_runtime_us", "-1"),
        // ... nor reported as a lockup.
        ("/proc/sys/kernel/soft_watchdog", "0"),
        // A guest that does nothing should wake its processor for nothing: by default these two look for work twice
        // and once in a second, in each of hundreds of idle sandboxes.
        ("/proc/sys/vm/compaction_proactiveness", "0"),
        ("/proc/sys/vm/stat_interval", "120"),
        // The agent is the last one to give up.
        ("/proc/self/oom_score_adj", "-1000"),
    ];
    for (path, value) in settings {
        if let Err(error) = fs::write(path, value)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::line(format_args!("{path}: {error}"));
        }
    }
    if let Err(errno) = sethostname(HOSTNAME) {
        log::line(format_args!("host name: {errno}"));
    }
}

/// Make the identity's files, and what `/etc` must have.
pub fn files() -> Result<(), BootError> {
    directory(&format!("{RUN}/secrets"), 0o700)?;
    directory(&format!("{RUN}/reseed"), 0o1777)?;
    directory("/tmp", 0o1777)?;
    directory("/root", 0o700)?;
    directory("/etc", 0o755)?;
    write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n", 0o644)?;
    let machine_id = random_id().map_err(|error| BootError::new("/dev/urandom", error))?;
    over(&format!("{RUN}/machine-id"), "/etc/machine-id", &format!("{machine_id}\n"))?;
    over(&format!("{RUN}/hostname"), "/etc/hostname", &format!("{HOSTNAME}\n"))
}

/// Make it with this mode if it is missing.
fn directory(path: &str, mode: u32) -> Result<(), BootError> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|error| BootError::new(path, error))
}

/// Write it if it is missing.
fn write(path: &str, content: &str, mode: u32) -> Result<(), BootError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    match opened.and_then(|mut file| file.write_all(content.as_bytes())) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(BootError::new(path, error))
        }
        _ => Ok(()),
    }
}

/// Write `file` and mount it over `place`.
pub fn over(file: &str, place: &str, content: &str) -> Result<(), BootError> {
    write(file, content, 0o644)?;
    if fs::symlink_metadata(place).is_ok_and(|metadata| metadata.is_symlink()) {
        // A link would be followed to wherever it points.
        fs::remove_file(place).map_err(|error| BootError::new(place, error))?;
    }
    if !Path::new(place).exists() {
        write(place, "", 0o644)?;
    }
    mount(Some(file), place, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| BootError::new(format!("mount {file} over {place}"), errno))
}

fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
