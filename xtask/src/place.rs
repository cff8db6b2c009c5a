//! Where guest kernels run: on this machine if its KVM does it, else in the software host.
//!
//! A program that needs Linux guests is given to [`Place::run`] and finds the same surroundings in both
//! places: the monitor in `RAMET_VMM`, the guest's files in `RAMET_GUEST_DIR`, further programs in variables of
//! their own, and an exit code that counts. In the software host, which is its alone, it also finds
//! `RAMET_SOFTWARE_HOST`. Variables that begin with `RAMET_TEST_` are passed on.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::progress::{Outcome, step};
use crate::{command, host, workspace};

/// Enough for a few machines and their children.
const HOST_MEMORY_MIB: u32 = 6144;

/// Where a program in the software host leaves its JSON.
const JSON_INSIDE: &str = "/tmp/figures.json";

/// What to run.
pub struct Job<'a> {
    /// The program.
    pub program: &'a Path,
    /// The monitor.
    pub monitor: &'a Path,
    /// Programs that it finds in these variables.
    pub tools: &'a [(&'a str, PathBuf)],
    /// Its arguments.
    pub arguments: &'a [String],
    /// With a path, it is told by `--json` where to leave a file that will be found there.
    pub json: Option<&'a Path>,
}

/// Where guest kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Hardware,
    /// In the software host.
    Software,
}

impl Place {
    /// As the monitor itself has found out.
    pub fn find(monitor: &Path) -> Result<Self> {
        let runs = ramet_tests::linux::runs_kernels(monitor).context("cannot probe KVM")?;
        Ok(if runs { Self::Hardware } else { Self::Software })
    }

    /// As it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
        }
    }

    /// Runs a program there. Its output and exit code are passed on.
    pub fn run(self, job: &Job<'_>) -> Result<ExitCode> {
        match self {
            Self::Hardware => run_here(job),
            Self::Software => run_in_host(job),
        }
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).context("a path is no UTF-8")
}

fn run_here(job: &Job<'_>) -> Result<ExitCode> {
    let mut command = Command::new(job.program);
    if let Some(json) = job.json {
        command.arg("--json").arg(json);
    }
    command.args(job.arguments).env("RAMET_VMM", job.monitor);
    command.envs(job.tools.iter().map(|(name, path)| (name, path)));
    command.env("RAMET_GUEST_DIR", workspace::guest_dir());
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {}", job.program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(u8::MAX)))
}

fn run_in_host(job: &Job<'_>) -> Result<ExitCode> {
    let mut line: Vec<String> = [
        "env",
        "RAMET_VMM=/kit/bin/ramet-vmm",
        "RAMET_GUEST_DIR=/kit/guest",
        "RAMET_LINUX_TESTS=1",
        "RAMET_SOFTWARE_HOST=1",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut files = vec![
        format!("bin/ramet-vmm={}", text(job.monitor)?),
        format!("program={}", text(job.program)?),
    ];
    for (variable, path) in job.tools {
        let name = path.file_name().context("a tool is a file")?.to_string_lossy();
        line.push(format!("{variable}=/kit/bin/{name}"));
        files.push(format!("bin/{name}={}", text(path)?));
    }
    let wishes = std::env::vars().filter(|(name, _)| name.starts_with("RAMET_TEST_"));
    line.extend(wishes.map(|(name, value)| format!("{name}={value}")));
    line.push("/kit/program".to_owned());
    line.extend_from_slice(job.arguments);
    let mut fetch = Vec::new();
    if let Some(json) = job.json {
        line.extend(["--json".to_owned(), JSON_INSIDE.to_owned()]);
        fetch.push(format!("{JSON_INSIDE}={}", text(json)?));
    }
    host::Run {
        programs: Vec::new(),
        files,
        data: None,
        memory: HOST_MEMORY_MIB,
        cpus: 1,
        forward: Vec::new(),
        fetch,
        as_is: true,
        command: line,
    }
    .run()
}

/// What programs are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// As they are shipped.
    Users,
    /// For a first look: soon there, and fast where it matters.
    FirstLook,
    /// Together with the tests, in one go: what they depend on is built once, and overflows and debug assertions are checked.
    Tests,
}

impl For {
    /// What cargo is told.
    fn arguments(self) -> &'static str {
        match self {
            Self::Users => {
                "build --release --bin ramet --bin rametd --bin ramet-vmm --bin ramet-net"
            }
            Self::FirstLook => {
                "build --profile quick --bin ramet --bin rametd --bin ramet-vmm --bin ramet-net"
            }
            Self::Tests => "build --workspace --bins --tests --example weed",
        }
    }

    /// The directory of the programs.
    fn directory(self) -> PathBuf {
        workspace::root().join("target").join(match self {
            Self::Users => "release",
            Self::FirstLook => "quick",
            Self::Tests => "debug",
        })
    }
}

/// The monitor, unless `RAMET_VMM` names another.
pub fn build_monitor(whom: For) -> Result<PathBuf> {
    match (std::env::var_os("RAMET_VMM"), whom) {
        (Some(path), _) => Ok(PathBuf::from(path)),
        (None, For::Users) => build("monitor", &["build", "--release", "--bin", "ramet-vmm"]),
        (None, _) => Ok(build_programs(whom)?.join("ramet-vmm")),
    }
}

/// All programs of the product. The directory that they are in.
pub fn build_programs(whom: For) -> Result<PathBuf> {
    build("programs", &whom.arguments().split(' ').collect::<Vec<_>>())?;
    Ok(whom.directory())
}

/// A test program, built as `cargo test --workspace` has it: with fewer packages chosen, cargo would build what they
/// depend on once more.
pub fn build_tests(name: &str) -> Result<PathBuf> {
    build(name, &["test", "--no-run", "--workspace", "--test", name])
}

/// Has cargo build a program, and gives its path.
pub fn build(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let mut built = None;
    step(name, |_| {
        let mut cargo = command::cargo();
        cargo.args(arguments).arg("--message-format=json-render-diagnostics");
        cargo.current_dir(workspace::root());
        built = executable(&command::output(&mut cargo)?);
        Ok(Outcome::Made(format!("cargo {}", arguments.join(" "))))
    })?;
    match built {
        Some(path) => Ok(path),
        None => bail!("cargo {} made no program", arguments.join(" ")),
    }
}

/// The last program that cargo says it has made.
fn executable(messages: &str) -> Option<PathBuf> {
    let lines = messages.lines().rev();
    let mut values = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    values.find_map(|value| Some(PathBuf::from(value.get("executable")?.as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/t/linux-1\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(executable(messages), Some(PathBuf::from("/t/linux-1")));
        assert_eq!(executable("no json"), None);
    }
}
