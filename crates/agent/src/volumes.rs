//! Disks that come while the guest runs: volumes of the host, in slots of the machine.
//!
//! The host says which device and where. A disk is mounted only where nothing is mounted yet and no symlink leads
//! elsewhere, and never below the kernel's own directories. It is let go of only when no mount of it is left, in
//! whatever namespace: the host takes the medium away then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags};
use ramet_proto::agent::Mount;

use crate::compare::mounts::unescape;
use crate::failure::{Outcome, bad_request, failure, from_errno, from_io};
use crate::files;
use crate::sys::kernel;

/// The kernel hears of a new medium within this time.
const MEDIUM_TIMEOUT: Duration = Duration::from_secs(15);
/// Places that are not for volumes.
const RESERVED: &[&str] = &["/dev", "/proc", "/run", "/sys"];

/// A mount of a disk.
struct Mounted {
    device: String,
    point: Vec<u8>,
}

/// Mount a disk.
pub fn mount(request: &Mount) -> Outcome<()> {
    let path = checked_point(&request.path)?;
    let device = open_device(&request.device)?;
    let failed = |error: io::Error| from_io(&request.device, &error);
    await_medium(&device).map_err(failed)?;
    // Somebody may have looked at another medium in this slot.
    kernel::drop_cache(device.as_fd()).map_err(failed)?;
    kernel::set_read_only(device.as_fd(), false).map_err(failed)?;
    files::make_directories(&path, 0o755, None)?;
    let real = fs::canonicalize(&path).map_err(|error| from_io(path.display(), &error))?;
    if real != path {
        let text = format!("{} goes through a symlink; it is {}", path.display(), real.display());
        return Err(bad_request(text));
    }
    let mounts = mounts().map_err(|error| from_io("/proc/self/mountinfo", &error))?;
    if mounts.iter().any(|mounted| mounted.point == path.as_os_str().as_bytes()) {
        let text = format!("{}: something is mounted there already", path.display());
        return Err(failure("already_exists", text));
    }
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    flags.set(MsFlags::MS_RDONLY, request.read_only);
    nix::mount::mount(Some(request.device.as_str()), &path, Some("ext4"), flags, None::<&str>)
        .map_err(|errno| {
            from_errno(format_args!("{} at {}", request.device, path.display()), errno)
        })?;
    if request.read_only {
        // Only now: what its last writer left in the journal was to be written first.
        kernel::set_read_only(device.as_fd(), true).map_err(failed)?;
    }
    Ok(())
}

/// Unmount a disk from everywhere.
pub fn unmount(device: &str) -> Outcome<()> {
    let file = open_device(device)?;
    let failed = |error: io::Error| from_io(device, &error);
    let number = file.metadata().map_err(failed)?.rdev();
    let number = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let mounts = mounts().map_err(|error| from_io("/proc/self/mountinfo", &error))?;
    // The latest first: one may lie below another.
    for mounted in mounts.iter().rev().filter(|mounted| mounted.device == number) {
        let point = Path::new(std::ffi::OsStr::from_bytes(&mounted.point));
        if let Err(errno) = nix::mount::umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            // Who cannot let go has at least written everything.
            nix::unistd::sync();
            return Err(from_errno(point.display(), errno));
        }
    }
    drop(file);
    // As long as the filesystem is mounted elsewhere, nobody gets the device alone.
    let alone =
        OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(device);
    alone.map(drop).map_err(failed)
}

fn checked_point(path: &str) -> Outcome<PathBuf> {
    let path = files::checked_path(path)?;
    let shown = path.display();
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    // Components leave out what does not matter, such as a slash at the end.
    let clean: PathBuf = path.components().collect();
    if !path.components().all(plain) || clean.parent().is_none() {
        return Err(bad_request(format!("{shown} is no place for a volume")));
    }
    if let Some(reserved) = RESERVED.iter().find(|reserved| clean.starts_with(reserved)) {
        return Err(bad_request(format!(
            "{shown} is no place for a volume: {reserved} is the system's"
        )));
    }
    Ok(clean)
}

fn open_device(device: &str) -> Outcome<File> {
    let name = device.strip_prefix("/dev/vd").unwrap_or_default();
    if name.len() != 1 || !name.bytes().all(|letter| letter.is_ascii_lowercase()) {
        return Err(bad_request(format!("{device:?} is no disk of a slot")));
    }
    let file = File::open(device).map_err(|error| from_io(device, &error))?;
    match file.metadata() {
        Ok(found) if found.file_type().is_block_device() => Ok(file),
        Ok(_) => Err(bad_request(format!("{device} is no block device"))),
        Err(error) => Err(from_io(device, &error)),
    }
}

/// The machine tells the kernel, which looks when it has time.
fn await_medium(mut device: &File) -> io::Result<()> {
    let end = Instant::now() + MEDIUM_TIMEOUT;
    while device.seek(SeekFrom::End(0))? == 0 {
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What is mounted here, in order.
fn mounts() -> io::Result<Vec<Mounted>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    Some(Mounted { device, point: unescape(fields.nth(1)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked() {
        let place = |path: &str| checked_point(path).ok();
        assert_eq!(place("/mnt/data/"), Some("/mnt/data".into()));
        for bad in ["data", "/", "/mnt/../etc", "/proc/x", "/dev", "/run/x", "/sys/fs", "/a\0b"] {
            assert_eq!(place(bad), None, "{bad:?}");
        }
        assert_eq!(place("/devices"), Some("/devices".into()));
    }

    #[test]
    fn only_disks_are_mounted() {
        for bad in ["/dev/vd", "/dev/vda1", "/dev/sda", "/dev/vdA", "/dev/../etc/passwd", ""] {
            let refused = unmount(bad).unwrap_err();
            assert_eq!(refused.code, "bad_request", "{bad:?}");
        }
    }

    #[test]
    fn a_line_of_the_table() {
        let line = b"28 21 254:32 / /mnt/my\\040disk rw - ext4 /dev/vdc rw";
        let mounted = parse(line).expect("a mount");
        assert_eq!((mounted.device.as_str(), &mounted.point[..]), ("254:32", &b"/mnt/my disk"[..]));
        assert!(parse(b"").is_none());
    }
}
