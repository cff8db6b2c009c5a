//! A machine's share of the processors: control groups (v2) where there are any, priorities otherwise.
//!
//! Only machines with a limit have a group, named after the machine, in a directory that belongs to this run
//! directory alone. Moving a process into a group takes the kernel milliseconds, so a machine without a limit
//! is not moved at all. A child is born in the group of its source and leaves it at once, but the kernel's own thread
//! for its VM stays where it was made: the group of a machine that has ended goes with the last of its children.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Cpu, Error, MachineId};

/// Group for those that have left the group of a limited source.
const FREE: &str = "free";
/// Period of the quota, in microseconds; the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// How often a group that is not empty yet is looked at again: the kernel takes processes apart after their end.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Groups of the machines of one run directory.
pub struct Groups {
    name: String,
    /// Where groups are made, or why none can be. Found out when the first is needed.
    base: OnceLock<Result<PathBuf, String>>,
    /// Groups of machines that have ended before their children.
    left: Mutex<BTreeSet<PathBuf>>,
}

impl Groups {
    /// For machines whose sockets are below this directory.
    pub fn new(run: &Path) -> Self {
        let digest = blake3::hash(run.as_os_str().as_encoded_bytes()).to_hex();
        Self {
            name: format!("ramet-{}", &digest[..12]),
            base: OnceLock::new(),
            left: Mutex::default(),
        }
    }

    fn base(&self) -> Result<&Path, &str> {
        let base = self.base.get_or_init(|| {
            let own = own_group()?;
            let base = own.join(&self.name);
            prepare(&own, &base).map_err(|error| {
                format!("{} cannot have groups for machines: {error}", own.display())
            })?;
            Ok(base)
        });
        base.as_deref().map_err(String::as_str)
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Groups of an earlier start are there although none has been asked for in this one.
    fn there(&self) -> Option<PathBuf> {
        let base = own_group().ok()?.join(&self.name);
        base.is_dir().then_some(base)
    }

    /// Gives a machine its share.
    pub fn limit(&self, machine: &MachineId, pid: u32, cpu: Cpu) -> Result<(), Error> {
        let base = match self.base() {
            Ok(base) => base,
            Err(reason) if cpu.quota_percent > 0 => {
                let text = format!("a quota of processor time needs control groups: {reason}");
                return Err(Error::Unsupported(text));
            }
            Err(_) => return Ok(set_priority(pid, priority(cpu.weight))?),
        };
        let group = base.join(file_name(machine));
        make(&group)?;
        fs::write(group.join("cpu.weight"), cpu.weight.to_string())?;
        fs::write(group.join("cpu.max"), quota(cpu.quota_percent))?;
        fs::write(group.join("cgroup.procs"), pid.to_string())?;
        Ok(())
    }

    /// Lets a child out of its source's group, if that has one.
    pub fn release(&self, source: &MachineId, pid: u32) -> Result<(), Error> {
        let Some(Ok(base)) = self.base.get() else { return Ok(()) };
        if !base.join(file_name(source)).is_dir() {
            return Ok(());
        }
        let free = base.join(FREE);
        make(&free)?;
        Ok(fs::write(free.join("cgroup.procs"), pid.to_string())?)
    }

    /// Lifts the quota of a machine that is to end: taking it apart would count as well.
    pub fn lift(&self, machine: &MachineId) {
        if let Some(Ok(base)) = self.base.get() {
            // Without a group there is no quota.
            let _none = fs::write(base.join(file_name(machine)).join("cpu.max"), quota(0));
        }
    }

    /// Removes the group of a machine that has ended, or leaves it until its children have, too.
    pub fn remove(&self, machine: &MachineId) -> Result<(), Error> {
        let Some(Ok(base)) = self.base.get() else { return Ok(()) };
        let group = base.join(file_name(machine));
        let gone = remove(&group, TRIES)?;
        if !gone {
            self.left().insert(group);
            return Ok(());
        }
        // This one may have been the last child of another. What cannot be removed now is tried again.
        self.left().retain(|group| !remove(group, 1).unwrap_or(false));
        Ok(())
    }

    /// At start: takes up what an earlier start has left, and removes the groups of others than these machines.
    pub fn sweep(&self, keep: &BTreeSet<MachineId>) -> Result<(), Error> {
        if self.there().is_none() {
            return Ok(());
        }
        let Ok(base) = self.base() else { return Ok(()) };
        let keep: BTreeSet<String> = keep.iter().map(file_name).collect();
        for entry in fs::read_dir(base)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let nobodys = entry.file_type()?.is_dir() && name != FREE && !keep.contains(&name);
            if nobodys && !remove(&entry.path(), TRIES)? {
                self.left().insert(entry.path());
            }
        }
        Ok(())
    }
}

fn file_name(machine: &MachineId) -> String {
    machine.0.trim_end_matches(".sock").replace('/', "-")
}

/// The group that this process is in.
fn own_group() -> Result<PathBuf, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let (mounts, groups) = (read("/proc/self/mounts")?, read("/proc/self/cgroup")?);
    let own = find(&mounts, &groups).ok_or("this host has no control groups of version 2")?;
    let controllers = fs::read_to_string(own.join("cgroup.controllers"));
    let controllers = controllers.map_err(|error| format!("{}: {error}", own.display()))?;
    if controllers.split_whitespace().any(|name| name == "cpu") {
        return Ok(own);
    }
    Err(format!("{} does not have the cpu controller", own.display()))
}

fn find(mounts: &str, groups: &str) -> Option<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.into_iter().find(|fields| fields.get(2) == Some(&"cgroup2"))?[1];
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(own))
}

/// Makes `base`, in which groups have processor time of their own. Any group but the root has either processes
/// or such groups, so the node moves into one beside it.
fn prepare(own: &Path, base: &Path) -> io::Result<()> {
    if own.join("cgroup.type").exists() {
        let node = own.join("node");
        make(&node)?;
        fs::write(node.join("cgroup.procs"), std::process::id().to_string())?;
    }
    fs::write(own.join("cgroup.subtree_control"), "+cpu")?;
    make(base)?;
    fs::write(base.join("cgroup.subtree_control"), "+cpu")
}

/// Makes a group that may be there already.
fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// False if something is still in it after so many tries.
fn remove(group: &Path, tries: u32) -> io::Result<bool> {
    for again in (0..tries).rev() {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) if error.kind() != ErrorKind::ResourceBusy => return Err(error),
            Err(_) if again > 0 => thread::sleep(PAUSE),
            Err(_) => {}
        }
    }
    Ok(false)
}

fn quota(percent: u32) -> String {
    match percent {
        0 => "max".to_owned(),
        percent => format!("{} {PERIOD_US}", u64::from(percent) * PERIOD_US / 100),
    }
}

/// The priority whose share is nearest to a weight: each step is a quarter more or less.
fn priority(weight: u32) -> i32 {
    let steps = (f64::from(weight) / 100.0).ln() / 1.25_f64.ln();
    #[expect(clippy::cast_possible_truncation, reason = "between -21 and 21, and clamped")]
    let steps = steps.round() as i32;
    (-steps).clamp(-20, 19)
}

fn set_priority(pid: u32, priority: i32) -> io::Result<()> {
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = entry?.file_name().to_string_lossy().parse().ok();
        let Some(thread) = thread.and_then(rustix::process::Pid::from_raw) else { continue };
        rustix::process::setpriority_process(Some(thread), priority)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found() {
        let mounts =
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let groups = "4:cpu:/a\n0::/system.slice/ramet.service\n";
        let own = "/sys/fs/cgroup/unified/system.slice/ramet.service";
        assert_eq!(find(mounts, groups).unwrap(), Path::new(own));
        assert_eq!(find("cgroup2 /c cgroup2 rw 0 0", "0::/\n").unwrap(), Path::new("/c"));
        assert_eq!(find("proc /proc proc rw 0 0", groups), None);
        assert_eq!(find(mounts, "4:cpu:/a\n"), None);
    }

    #[test]
    fn quotas_and_priorities() {
        assert_eq!(quota(0), "max");
        assert_eq!(quota(150), "150000 100000");
        let weights = [1, 50, 80, 100, 125, 10_000];
        assert_eq!(weights.map(priority), [19, 3, 1, 0, -1, -20]);
    }

    #[test]
    fn without_groups_a_weight_is_a_priority() {
        let groups = Groups { name: "x".to_owned(), base: OnceLock::new(), left: Mutex::default() };
        groups.base.set(Err("none here".to_owned())).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let machine = MachineId("1/2.sock".to_owned());
        let limited = groups.limit(&machine, child.id(), Cpu { weight: 50, quota_percent: 0 });
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let refused = groups.limit(&machine, child.id(), Cpu { weight: 100, quota_percent: 50 });
        child.kill().unwrap();
        child.wait().unwrap();
        limited.unwrap();
        assert_eq!(stat.split(' ').nth(18), Some("3"), "{stat}");
        assert!(matches!(refused, Err(Error::Unsupported(text)) if text.contains("none here")));
    }
}
