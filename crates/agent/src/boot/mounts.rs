//! Mounts: the kernel's own file systems, the disks, and the way into the new root.
//!
//! The root is an overlay of a read-only base and a writable disk. Both stay mounted in the initramfs,
//! which is hidden below the new root and emptied, but for this binary.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, chroot};

use super::BootError;
use crate::compare::{self, Layers};
use crate::identity::{BINARY, RUN};
use crate::process::limits;

/// A disk appears within this time, or it is not there.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
const BASE: &str = "/.base";
const DATA: &str = "/.data";
const ROOT: &str = "/.root";
/// Where the kernel found this binary.
const INIT: &str = "/init";

fn mounted(
    source: &str,
    target: &str,
    kind: &str,
    flags: MsFlags,
    data: &str,
) -> Result<(), BootError> {
    let failed =
        |cause: io::Error| BootError::new(format!("mount {kind} {source} at {target}"), cause);
    fs::create_dir_all(target).map_err(failed)?;
    mount(Some(source), target, Some(kind), flags, Some(data)).map_err(|errno| failed(errno.into()))
}

/// `/proc`, `/sys` and `/dev` below `root`.
pub fn kernel_filesystems(root: &str) -> Result<(), BootError> {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mounted("proc", &format!("{root}/proc"), "proc", safe, "")?;
    mounted("sysfs", &format!("{root}/sys"), "sysfs", safe, "")?;
    mounted("devtmpfs", &format!("{root}/dev"), "devtmpfs", MsFlags::MS_NOSUID, "mode=0755")
}

/// What else a running system has below `root`.
fn other_filesystems(root: &str) -> Result<(), BootError> {
    let open = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let pts = "gid=5,mode=0620,ptmxmode=0666";
    mounted("devpts", &format!("{root}/dev/pts"), "devpts", MsFlags::MS_NOSUID, pts)?;
    mounted("tmpfs", &format!("{root}/dev/shm"), "tmpfs", open, "mode=1777")?;
    mounted("tmpfs", &format!("{root}/run"), "tmpfs", open, "mode=0755")?;
    control_groups(&format!("{root}/sys/fs/cgroup"));
    device_links(root);
    Ok(())
}

/// A kernel without them makes a machine that cannot limit the number of its processes, and says so when asked to.
fn control_groups(path: &str) {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let made = mounted("cgroup2", path, "cgroup2", safe, "nsdelegate").and_then(|()| {
        limits::make_group(Path::new(path)).map_err(|error| BootError::new(path, error))
    });
    if let Err(error) = made {
        crate::log::line(format_args!("{error}: {}", error.cause));
    }
}

/// Names in `/dev` that programs expect and devtmpfs does not make.
fn device_links(root: &str) {
    let links = [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ];
    for (target, name) in links {
        // One that is there already is right.
        let _ = symlink(target, format!("{root}/dev/{name}"));
    }
}

/// Assemble the root and go there; without one, stay. Gives a handle of the writable disk.
pub fn enter_root(root: Option<&str>, data: Option<&str>) -> Result<Option<OwnedFd>, BootError> {
    let Some(root) = root else {
        if let Some(data) = data {
            mount_disk(data, DATA)?;
        }
        other_filesystems("")?;
        keep_binary("")?;
        return data.map(|_| handle(DATA)).transpose();
    };
    read_only(root, BASE)?;
    match data {
        Some(data) => mount_disk(data, DATA)?,
        None => mounted("tmpfs", DATA, "tmpfs", MsFlags::empty(), "mode=0755")?,
    }
    let disk = handle(DATA)?;
    overlay()?;
    // The disk has no name in the new root.
    let upper = format!("/proc/self/fd/{}/upper", disk.as_raw_fd()).into();
    compare::remember(Layers { upper, base: root.into() });
    kernel_filesystems(ROOT)?;
    other_filesystems(ROOT)?;
    keep_binary(ROOT)?;
    switch_root().map_err(|error| BootError::new("switching to the new root", error))?;
    Ok(Some(disk))
}

fn overlay() -> Result<(), BootError> {
    for directory in [format!("{DATA}/upper"), format!("{DATA}/work")] {
        fs::create_dir_all(&directory).map_err(|error| BootError::new(directory, error))?;
    }
    // What compares guests relies on it that the layer has files whole and where they are seen.
    let options = format!(
        "lowerdir={BASE},upperdir={DATA}/upper,workdir={DATA}/work,redirect_dir=off,metacopy=off,index=off"
    );
    mounted("overlay", ROOT, "overlay", MsFlags::empty(), &options)?;
    // The root of an overlay has the mode and the owner of its upper directory.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(ROOT, mode).map_err(|error| BootError::new(ROOT, error))
}

fn handle(path: &str) -> Result<OwnedFd, BootError> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(path, flags, Mode::empty()).map_err(|errno| BootError::new(path, errno))
}

fn mount_disk(device: &str, target: &str) -> Result<(), BootError> {
    wait_for(device)?;
    mounted(device, target, "ext4", MsFlags::MS_NOATIME, "")
}

/// Mount a device read-only, whichever of the two kinds it is.
pub fn read_only(device: &str, target: &str) -> Result<(), BootError> {
    wait_for(device)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOATIME;
    mounted(device, target, "erofs", flags, "").or_else(|first| {
        mounted(device, target, "ext4", flags, "").map_err(|second| {
            let both = io::Error::other(format!("{}; {second}: {}", first.cause, second.cause));
            BootError::new(first.to_string(), both)
        })
    })
}

fn wait_for(device: &str) -> Result<(), BootError> {
    let deadline = Instant::now() + DEVICE_TIMEOUT;
    while let Err(error) = fs::metadata(device) {
        if Instant::now() > deadline {
            let what = format!("waiting {DEVICE_TIMEOUT:?} for {device}");
            return Err(BootError::new(what, error));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// This binary, under a name for the users of the guest. No copy: the initramfs keeps it.
fn keep_binary(root: &str) -> Result<(), BootError> {
    let (directory, binary) = (format!("{root}{RUN}"), format!("{root}{BINARY}"));
    let failed = |cause: io::Error| BootError::new(binary.clone(), cause);
    fs::create_dir_all(&directory).map_err(failed)?;
    fs::File::create(&binary).map_err(failed)?;
    mount(Some(INIT), binary.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| failed(errno.into()))?;
    let link = format!("{root}/usr/local/bin/ramet-agent");
    if fs::symlink_metadata(&link).is_err() {
        // An image whose /usr cannot be written does without.
        let _ = fs::create_dir_all(format!("{root}/usr/local/bin"));
        let _ = symlink(BINARY, &link);
    }
    Ok(())
}

fn switch_root() -> io::Result<()> {
    chdir(ROOT)?;
    empty_initramfs();
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    chroot(".")?;
    Ok(chdir("/")?)
}

/// Free the memory of what the initramfs brought, but not this binary, nor what is mounted.
fn empty_initramfs() {
    let Ok(device) = fs::metadata("/").map(|root| root.dev()) else {
        return;
    };
    let Ok(entries) = fs::read_dir("/") else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path != Path::new(INIT) {
            remove_below(&path, device);
        }
    }
}

fn remove_below(path: &Path, device: u64) {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return;
    };
    if metadata.dev() != device {
        return;
    }
    // What cannot be removed costs a little memory.
    if metadata.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.filter_map(Result::ok).for_each(|entry| remove_below(&entry.path(), device));
        let _ = fs::remove_dir(path);
    } else {
        let _ = fs::remove_file(path);
    }
}
