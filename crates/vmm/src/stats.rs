//! Figures of this process and its machine, from `/proc/self`.

use std::fs;
use std::io;

use ramet_proto::control::Stats;

use crate::machine::Machine;

/// Sums over mappings, in KiB.
#[derive(Default)]
struct Sums {
    rss: u64,
    pss: u64,
    private: u64,
}

/// Collects them. Walks the process's page tables, so it takes some time.
pub fn collect(machine: &Machine) -> io::Result<Stats> {
    let (mut ram, mut rest) = (Sums::default(), Sums::default());
    let range = machine.ram.base()..machine.ram.base() + machine.ram.size();
    let mut in_ram = false;
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = usize::from_str_radix(start, 16)
        {
            in_ram = range.contains(&start);
            continue;
        }
        let sums = if in_ram { &mut ram } else { &mut rest };
        match line.split_once(':') {
            Some(("Rss", value)) => sums.rss += kib(value),
            Some(("Pss", value)) => sums.pss += kib(value),
            Some(("Private_Clean" | "Private_Dirty", value)) => sums.private += kib(value),
            _ => {}
        }
    }
    Ok(Stats {
        pss_kib: ram.pss + rest.pss,
        private_kib: ram.private + rest.private,
        monitor_private_kib: rest.private,
        page_tables_kib: page_tables()?,
        ram_private_kib: ram.private,
        ram_present_kib: ram.rss,
        disks: machine.disks.iter().map(crate::disk::Disk::figures).collect(),
        ..Stats::default()
    })
}

fn page_tables() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    Ok(line.map_or(0, kib))
}

fn kib(value: &str) -> u64 {
    value.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0)
}
