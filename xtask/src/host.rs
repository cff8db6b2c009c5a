//! `cargo xtask host run -- COMMAND…`: run a command in the software host.
//!
//! The command finds the artefacts of `cargo xtask guest` in `/kit/guest` and the programs named by
//! `--bin` in `/kit/bin`, which is also first in its PATH. Its output and exit code are this
//! command's own. The data disk is new each time unless `--data` names one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ramet_engine::host::kit::{self, Item};
use ramet_engine::host::{EMULATOR_MIN, Options, SoftwareHost};
use ramet_engine::session::Output;
use ramet_proto::agent::{Exec, Exited};

use crate::progress::{self, Outcome, step};
use crate::{build, guest, packages, workspace};

/// Artefacts that are put into the kit; the others are what the software host itself starts from.
const ARTEFACTS: [&str; 5] =
    ["vmlinux", "initramfs.cpio", "base.erofs", "data.ext4", "manifest.json"];
const PATH: &str = "/kit/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a clean shutdown may take.
const STOP_TIME: Duration = Duration::from_secs(30);

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Start the software host, run a command in it, and stop it
    Run(Run),
}

/// A command, and the host to run it in.
#[derive(clap::Args)]
pub struct Run {
    /// A program for /kit/bin: a package of the workspace, or a path (with a slash)
    #[arg(long = "bin", value_name = "PROGRAM")]
    pub programs: Vec<String>,
    /// A further file for the kit, as PATH-IN-KIT=FILE
    #[arg(long = "file", value_name = "PATH=FILE")]
    pub files: Vec<String>,
    /// Data disk to use and keep; made if it is not there
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Memory in MiB
    #[arg(long, default_value_t = 4096)]
    pub memory: u32,
    /// CPUs
    #[arg(long, default_value_t = 1)]
    pub cpus: u32,
    /// A TCP port inside that becomes reachable on this machine
    #[arg(long = "forward", value_name = "PORT")]
    pub forward: Vec<u16>,
    /// A file to bring back when the command has ended, as PATH-INSIDE=FILE
    #[arg(long = "fetch", value_name = "PATH=FILE")]
    pub fetch: Vec<String>,
    /// Use the artefacts that are there, without bringing them up to date
    #[arg(long)]
    pub as_is: bool,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Run the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.action {
        Action::Run(run) => run.run(),
    }
}

/// Install what the software host runs on.
pub fn install_tools() -> Result<()> {
    step("tools", |status| {
        packages::install_missing(status, &[("setpriv", "util-linux")])?;
        if emulator()?.is_some_and(|major| major >= EMULATOR_MIN) {
            return Ok(Outcome::Kept("qemu-system-x86".to_owned()));
        }
        packages::install_newer(status, "qemu-system-x86", EMULATOR_MIN)?;
        match emulator()? {
            Some(major) if major >= EMULATOR_MIN => {
                Ok(Outcome::Made(format!("qemu-system-x86, version {major}")))
            }
            found => bail!("QEMU {EMULATOR_MIN} or later is needed, and apt gave {found:?}"),
        }
    })
}

/// Major version of the installed emulator.
fn emulator() -> Result<Option<u32>> {
    match ramet_engine::host::emulator_installed() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => found.context("cannot ask QEMU for its version"),
    }
}

impl Run {
    /// From an empty host to the command's exit code.
    pub fn run(&self) -> Result<ExitCode> {
        if !self.as_is {
            guest::make(false)?;
        }
        let scratch = tempfile::tempdir_in(scratch_dir()?)?;
        let options = self.prepare(scratch.path())?;
        let mut host = None;
        step("software host", |status| {
            status.detail("waiting for its agent");
            let started = SoftwareHost::start(&options)?;
            let up = Outcome::Made(format!("up after {}", progress::seconds(started.boot_time())));
            host = Some(started);
            Ok(up)
        })?;
        let host = host.context("the step gives a host")?;
        for port in &self.forward {
            if let Some(address) = host.forwarded(*port) {
                eprintln!("port {port} is at {address}");
            }
        }
        let result = self.execute(&host).and_then(|exited| {
            self.bring_back(&host)?;
            Ok(exited)
        });
        if !host.stop(STOP_TIME) {
            eprintln!("the software host did not shut down in time and was killed");
        }
        result.map(|exited| ExitCode::from(exit_code(&exited)))
    }

    fn bring_back(&self, host: &SoftwareHost) -> Result<()> {
        for file in &self.fetch {
            let Some((inside, outside)) = file.split_once('=') else {
                bail!("--fetch {file}: expected PATH-INSIDE=FILE");
            };
            let bytes = host.agent().read_file(inside);
            let bytes = bytes.with_context(|| format!("cannot bring back {inside}"))?;
            std::fs::write(outside, bytes).with_context(|| format!("cannot write {outside}"))?;
        }
        Ok(())
    }

    /// Build programs and kit.
    fn prepare(&self, scratch: &Path) -> Result<Options> {
        let guest_dir = workspace::guest_dir();
        let mut items = self.items(&guest_dir)?;
        install_tools()?;
        for program in &self.programs {
            items.push(self.program(program)?);
        }
        let kit = scratch.join("kit.ext4");
        step("kit", |_| {
            kit::build(&items, &kit)?;
            let size = progress::size(kit.metadata()?.len());
            Ok(Outcome::Made(format!("{size}, {} files", items.len())))
        })?;
        let data = self.data.clone().unwrap_or_else(|| scratch.join("data.ext4"));
        let mut options = Options::of_guest_dir(&guest_dir, data, scratch.join("console.log"));
        options.kit = Some(kit);
        options.memory_mib = self.memory;
        options.cpus = self.cpus;
        options.forward = self.forward.clone();
        Ok(options)
    }

    fn items(&self, guest_dir: &Path) -> Result<Vec<Item>> {
        let mut items: Vec<Item> = ARTEFACTS
            .iter()
            .map(|name| Item { path: Path::new("guest").join(name), source: guest_dir.join(name) })
            .collect();
        for file in &self.files {
            let Some((path, source)) = file.split_once('=') else {
                bail!("--file {file}: expected PATH-IN-KIT=FILE");
            };
            items.push(Item { path: path.into(), source: source.into() });
        }
        Ok(items)
    }

    fn program(&self, program: &str) -> Result<Item> {
        if program.contains('/') {
            let source = PathBuf::from(program);
            let name = source.file_name().with_context(|| format!("--bin {program} is no file"))?;
            return Ok(Item { path: Path::new("bin").join(name), source });
        }
        let mut built = PathBuf::new();
        step(program, |status| {
            built = build::static_program(status, &workspace::root(), program)?;
            Ok(Outcome::Made(progress::size(built.metadata()?.len())))
        })?;
        Ok(Item { path: Path::new("bin").join(program), source: built })
    }

    fn execute(&self, host: &SoftwareHost) -> Result<Exited> {
        let mut exec = Exec { argv: self.command.clone(), ..Exec::default() };
        exec.env.insert("PATH".to_owned(), PATH.to_owned());
        let process = host.agent().exec(&exec).context("cannot run the command")?;
        let exited = process.stream(|output| {
            // Whoever closed our output does not want it; the command goes on.
            let _ = match output {
                Output::Stdout(bytes) => std::io::stdout().write_all(bytes),
                Output::Stderr(bytes) => std::io::stderr().write_all(bytes),
                Output::Exited(_) => std::io::stdout().flush(),
            };
        });
        exited.with_context(|| {
            format!("lost the command; the console says:\n{}", host.console_tail())
        })
    }
}

/// On the same filesystem as the artefacts, so that the kit can link to them.
fn scratch_dir() -> Result<PathBuf> {
    let dir = workspace::guest_dir().join(".host");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// As a shell would give it.
fn exit_code(exited: &Exited) -> u8 {
    match (exited.code, exited.signal) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (None, None) => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let exited = |code, signal| Exited { code, signal, timed_out: false, dropped_bytes: 0 };
        assert_eq!(exit_code(&exited(Some(0), None)), 0);
        assert_eq!(exit_code(&exited(Some(7), None)), 7);
        assert_eq!(exit_code(&exited(None, Some(9))), 137);
    }
}
