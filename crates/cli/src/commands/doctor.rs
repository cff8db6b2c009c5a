//! `ramet doctor`: what this machine has, point by point, with the fix beside each finding.

use std::fs::{self, OpenOptions};
use std::path::Path;

use ramet_client::api::HostMode;
use ramet_engine::host::{EMULATOR_MIN, emulator_installed};
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::node::home::Home;
use crate::node::{probe, programs};
use crate::output::{self, Paint};

const HELP: &str = "\
Exit code 1 if a point fails; warnings do not count.

Examples:
  ramet doctor
  ramet doctor --json";
/// Free memory below which few sandboxes fit.
const MEMORY_MIN_MIB: u64 = 2048;
/// Free disk below which a node may stop working.
const DISK_MIN: u64 = 5 << 30;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
    fix: Option<String>,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { what, verdict, detail: detail.into(), fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Does it.
pub async fn run(_: &Args, context: &Context) -> Result<u8, Failure> {
    let home = Home::find()?;
    let (mode, probed) = probe_mode().await;
    let software = mode == Some(HostMode::Software);
    let findings = vec![
        programs_here(),
        kvm(software),
        probed,
        emulator(software),
        huge_pages(),
        memory(),
        disk(&home),
        guest_files(&home),
        image_tools(),
        cgroups(),
        network(software),
        node(context).await,
        node_network(context).await,
    ];
    context.show(&findings, |findings| draw(findings, context.paint));
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(u8::from(failed))
}

fn draw(findings: &[Finding], paint: Paint) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => paint.green("ok  "),
            Verdict::Warn => paint.yellow("warn"),
            Verdict::Fail => paint.red("FAIL"),
        };
        text.push_str(&format!("{mark}  {:<12} {}\n", finding.what, finding.detail));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("{:18} {} {fix}\n", "", paint.dim("fix:")));
        }
    }
    text
}

fn programs_here() -> Finding {
    let found = [programs::rametd(), programs::vmm()];
    match found.iter().find_map(|program| program.as_ref().err()) {
        None => Finding::new("programs", Verdict::Ok, "rametd and ramet-vmm are here"),
        Some(failure) => Finding::new("programs", Verdict::Fail, failure.to_string())
            .fix("put rametd and ramet-vmm beside ramet or into PATH, or set RAMETD and RAMET_VMM"),
    }
}

fn kvm(software: bool) -> Finding {
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Finding::new("/dev/kvm", Verdict::Ok, "there, and may be opened"),
        Err(error) => {
            let verdict = if software { Verdict::Warn } else { Verdict::Fail };
            let fix = if error.kind() == std::io::ErrorKind::PermissionDenied {
                "add the user to the group kvm, and log in again"
            } else {
                "enable virtualization in the firmware, or nested virtualization in the cloud"
            };
            Finding::new("/dev/kvm", verdict, error.to_string()).fix(fix)
        }
    }
}

async fn probe_mode() -> (Option<HostMode>, Finding) {
    let asked = match programs::vmm() {
        Ok(vmm) => probe::ask(&vmm).await,
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(findings) => {
            let (name, verdict) = match findings.mode {
                HostMode::Hardware => ("hardware", Verdict::Ok),
                HostMode::Software => ("software", Verdict::Warn),
            };
            let detail = format!("{name}: {}", findings.reason);
            let finding =
                Finding { fix: findings.advice, ..Finding::new("host mode", verdict, detail) };
            (Some(findings.mode), finding)
        }
        Err(failure) => (None, Finding::new("host mode", Verdict::Fail, failure.to_string())),
    }
}

/// It only matters where guests are emulated.
fn emulator(software: bool) -> Finding {
    let verdict = if software { Verdict::Fail } else { Verdict::Ok };
    let fix = format!(
        "install QEMU {EMULATOR_MIN} or later (Debian 12: apt-get install -t bookworm-backports \
         qemu-system-x86)"
    );
    let finding = match emulator_installed() {
        Ok(Some(major)) if major >= EMULATOR_MIN => {
            return Finding::new("QEMU", Verdict::Ok, format!("version {major}"));
        }
        Ok(Some(major)) => Finding::new("QEMU", verdict, format!("version {major} is too old")),
        Ok(None) => Finding::new("QEMU", verdict, "its version is not known"),
        Err(_) => Finding::new("QEMU", verdict, "qemu-system-x86_64 is not here"),
    };
    if software {
        return finding.fix(fix);
    }
    Finding { detail: format!("{}; not needed on hardware", finding.detail), ..finding }
}

fn huge_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    match chosen {
        Some("always") => {
            Finding::new("huge pages", Verdict::Warn, "always: a write after a fork copies 2 MiB")
                .fix(format!("echo madvise > {path}"))
        }
        Some(other) => Finding::new("huge pages", Verdict::Ok, other),
        None => Finding::new("huge pages", Verdict::Ok, "the kernel has none"),
    }
}

fn memory() -> Finding {
    let (Some(total), Some(available)) = (memory_mib("MemTotal"), memory_mib("MemAvailable"))
    else {
        return Finding::new("memory", Verdict::Warn, "/proc/meminfo cannot be read");
    };
    let detail = format!("{available} of {total} MiB can be had");
    if available >= MEMORY_MIN_MIB {
        return Finding::new("memory", Verdict::Ok, detail);
    }
    Finding::new("memory", Verdict::Warn, detail)
        .fix(format!("free some: {MEMORY_MIN_MIB} MiB are a good start"))
}

/// A line of `/proc/meminfo`.
pub fn memory_mib(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

fn disk(home: &Home) -> Finding {
    let place = home.root().ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(place) {
        Ok(stat) => {
            let free = stat.f_bavail * stat.f_frsize;
            let detail = format!("{} free for {}", output::bytes(free), home.root().display());
            if free >= DISK_MIN {
                return Finding::new("disk", Verdict::Ok, detail);
            }
            let fix =
                format!("free some, or set RAMET_HOME; {} are needed", output::bytes(DISK_MIN));
            Finding::new("disk", Verdict::Warn, detail).fix(fix)
        }
        Err(error) => Finding::new("disk", Verdict::Warn, error.to_string()),
    }
}

fn guest_files(home: &Home) -> Finding {
    match programs::guest_dir(home) {
        Ok(path) => Finding::new("guest files", Verdict::Ok, path.display().to_string()),
        Err(failure) => {
            Finding::new("guest files", Verdict::Fail, failure.to_string()).fix(format!(
                "`cargo xtask guest` in a checkout; or copy its target/guest to {}",
                home.guest_dir().display()
            ))
        }
    }
}

/// They only matter for `ramet image build`.
fn image_tools() -> Finding {
    let missing = ramet_image::missing();
    if !missing.is_empty() {
        let detail = format!("images cannot be made here: {} missing", missing.join(" and "));
        return Finding::new("image tools", Verdict::Warn, detail)
            .fix(format!("apt-get install {}", missing.join(" ")));
    }
    match ramet_image::check_host() {
        Ok(()) => Finding::new("image tools", Verdict::Ok, "images can be made here"),
        Err(error) => Finding::new("image tools", Verdict::Warn, error.to_string()),
    }
}

fn cgroups() -> Finding {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::new("cgroup v2", Verdict::Ok, "mounted");
    }
    Finding::new("cgroup v2", Verdict::Warn, "not mounted: limits of CPU and memory are coarser")
        .fix("boot with systemd.unified_cgroup_hierarchy=1")
}

/// Without the service sandboxes reach nothing, and everything else works.
fn network(software: bool) -> Finding {
    let program = match programs::net() {
        Ok(program) => program,
        Err(failure) => {
            return Finding::new("network", Verdict::Warn, failure.to_string())
                .fix("put ramet-net beside ramet or into PATH, or set RAMET_NET");
        }
    };
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text.lines().filter(|line| line.trim_start().starts_with("nameserver")).count();
    if servers == 0 && !software {
        return Finding::new("network", Verdict::Warn, "/etc/resolv.conf names no server")
            .fix("`ramet up --dns ADDRESS` says whom sandboxes' names are asked of");
    }
    Finding::new("network", Verdict::Ok, program.display().to_string())
}

/// What the node says of its network.
async fn node_network(context: &Context) -> Finding {
    let none = || Finding::new("node network", Verdict::Warn, "the node does not run");
    let Ok(Some(client)) = context.running() else { return none() };
    match client.node().await {
        Ok(node) if node.network.up => {
            let presets = node.network.presets.join(", ");
            Finding::new("node network", Verdict::Ok, format!("up; presets: {presets}"))
        }
        Ok(node) => {
            let reason = node.network.reason.unwrap_or_default();
            Finding::new(
                "node network",
                Verdict::Warn,
                format!("sandboxes reach nothing: {reason}"),
            )
            .fix("network.log in the node's run directory says more")
        }
        Err(_) => none(),
    }
}

async fn node(context: &Context) -> Finding {
    let client = match context.running() {
        Ok(Some(client)) => client,
        Ok(None) => {
            return Finding::new("node", Verdict::Warn, "not running").fix("ramet up");
        }
        Err(failure) => return Finding::new("node", Verdict::Fail, failure.to_string()),
    };
    match client.node().await {
        Ok(node) => {
            let detail = format!(
                "{} at {}: {} running, {} paused",
                node.version,
                client.url(),
                node.running,
                node.paused
            );
            Finding::new("node", Verdict::Ok, detail)
        }
        Err(error) => Finding::new("node", Verdict::Fail, Failure::from(error).to_string())
            .fix("`ramet down` and `ramet up`; node.log in the state directory says more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_stands_under_the_finding() {
        let findings =
            [Finding::new("a", Verdict::Ok, "x"), Finding::new("b", Verdict::Fail, "y").fix("z")];
        let expected = "ok    a            x\nFAIL  b            y\n                   fix: z\n";
        assert_eq!(draw(&findings, Paint::plain()), expected);
    }

    #[test]
    fn memory_is_read() {
        assert!(memory_mib("MemTotal").unwrap() > 0);
        assert_eq!(memory_mib("Mem"), None);
    }
}
