//! What `/proc` says about processes and about the whole guest.
//!
//! A process that ends while it is looked at is left out. Nothing here fails: what cannot be read
//! is zero or absent, because a number for people is not worth an error.

use std::fs;
use std::os::unix::fs::MetadataExt;

use ramet_proto::agent::{Process, Usage};

use crate::process::is_started_here;

/// All command lines together are cut to this many bytes, each to its equal share: with the rest of
/// [`PROCESSES_MAX`] processes they fit into a frame, escaped as JSON.
const COMMANDS_BYTES: usize = 40 * 1024;
/// Processes beyond this many are left out, the kernel's own first.
const PROCESSES_MAX: usize = 1000;

fn ticks_per_second() -> u64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    ticks.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0).unwrap_or(100)
}

fn page_bytes() -> u64 {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
}

/// Pids of all processes, in order.
pub fn pids() -> Vec<i32> {
    let Ok(directory) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<i32> =
        directory.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Every process, in order of pid.
pub fn processes() -> Vec<Process> {
    let pids = pids();
    let share = (COMMANDS_BYTES / pids.len().max(1)).max(COMMANDS_BYTES / PROCESSES_MAX);
    let (mut kernel, mut listed): (Vec<Process>, Vec<Process>) =
        pids.into_iter().filter_map(|pid| process(pid, share)).partition(is_kernel_thread);
    listed.truncate(PROCESSES_MAX);
    kernel.truncate(PROCESSES_MAX - listed.len());
    listed.append(&mut kernel);
    listed.sort_unstable_by_key(|process| process.pid);
    listed
}

fn is_kernel_thread(process: &Process) -> bool {
    process.pid == 2 || process.parent == 2
}

fn process(pid: i32, command_bytes: usize) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is in parentheses and may itself contain some.
    let (name, rest) = (stat.find('(')? + 1, stat.rfind(')')?);
    let fields: Vec<&str> = stat.get(rest + 2..)?.split(' ').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<i64>().ok());
    let positive = |index| number(index).and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
    let narrow = |index| number(index).and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
    Some(Process {
        pid,
        parent: narrow(1),
        group: narrow(2),
        uid: fs::metadata(format!("/proc/{pid}")).ok()?.uid(),
        state: fields.first()?.to_string(),
        command: command(pid, stat.get(name..rest)?, command_bytes),
        cpu_ms: (positive(11) + positive(12)) * 1000 / ticks_per_second(),
        rss_bytes: positive(21) * page_bytes(),
        started_here: is_started_here(pid),
    })
}

fn command(pid: i32, name: &str, most_bytes: usize) -> Vec<String> {
    let mut bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return vec![format!("[{name}]")];
    }
    bytes.truncate(most_bytes);
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// What the guest uses.
pub fn usage() -> Usage {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let disk = nix::sys::statvfs::statvfs("/").ok();
    let disk_bytes = |blocks: fn(&nix::sys::statvfs::Statvfs) -> u64| {
        disk.as_ref().map_or(0, |disk| blocks(disk) * disk.fragment_size())
    };
    Usage {
        cpus: cpus(&stat),
        cpu_busy_ms: busy_ticks(&stat) * 1000 / ticks_per_second(),
        uptime_ms: seconds_to_ms(uptime.split(' ').next().unwrap_or("")),
        memory_total_bytes: memory_field(&memory, "MemTotal:"),
        memory_available_bytes: memory_field(&memory, "MemAvailable:"),
        memory_cached_bytes: memory_field(&memory, "Cached:"),
        disk_total_bytes: disk_bytes(|disk| disk.blocks()),
        disk_free_bytes: disk_bytes(|disk| disk.blocks_available()),
        processes: u32::try_from(pids().len()).unwrap_or(u32::MAX),
    }
}

fn cpus(stat: &str) -> u32 {
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    u32::try_from(stat.lines().filter(is_cpu).count()).unwrap_or(u32::MAX)
}

/// User, nice, system, irq, softirq and steal; not idle, not waiting for I/O.
fn busy_ticks(stat: &str) -> u64 {
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    [0, 1, 2, 5, 6, 7].iter().filter_map(|index| fields.get(*index)).sum()
}

fn seconds_to_ms(text: &str) -> u64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let hundredths: u64 = part.parse().unwrap_or(0);
    whole.parse::<u64>().unwrap_or(0) * 1000 + hundredths * 10
}

fn memory_field(memory: &str, name: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_numbers_of_the_kernel() {
        let stat = "cpu  1 2 3 100 50 6 7 8 9\ncpu0 1\ncpu1 2\nintr 5\n";
        assert_eq!((cpus(stat), busy_ticks(stat)), (2, 1 + 2 + 3 + 6 + 7 + 8));
        assert_eq!(seconds_to_ms("12.34"), 12_340);
        assert_eq!(memory_field("MemTotal:  10 kB\nMemAvailable: 7 kB\n", "MemAvailable:"), 7168);
    }

    #[test]
    fn finds_this_process() {
        let mine = i32::try_from(std::process::id()).expect("a pid");
        let found = processes().into_iter().find(|process| process.pid == mine);
        assert!(found.expect("listed").rss_bytes > 0);
    }
}
