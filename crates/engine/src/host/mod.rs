//! The software host: an emulated machine with `/dev/kvm` of its own, for machines whose own KVM is
//! missing or too slow to run a kernel.
//!
//! It is a Linux machine like any other: the base image as read-only root with a data disk over it,
//! an optional kit (a read-only image of programs and files, mounted at `/kit`), the agent as init.
//! [`SoftwareHost`] starts it, waits until its agent answers, and stops it; everything else goes
//! through its [`Agent`]. The data disk outlives a stop, and only one host can have it at a time.
//!
//! What it refuses: traffic from inside to anywhere outside. Only the forwarded ports lead in, and
//! they listen on the loopback interface.
//!
//! Invariant: the emulator never outlives the handle. Dropping it kills, and so does the kernel if
//! this process dies first.

mod console;
pub mod disk;
pub mod kit;
#[cfg(test)]
mod live_tests;
mod qemu;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ramet_proto::agent::{PORT, ReadFile, WriteFile};

use crate::session::{self, Agent, Content};
use qemu::{Emulator, Machine};

/// How long one question to the agent may take while the machine is coming up.
const PROBE_TIME: Duration = Duration::from_secs(2);
/// Pause between questions.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// How often another set of free ports is tried when somebody else was faster.
const PORT_ATTEMPTS: u32 = 3;
/// Time between SIGTERM and SIGKILL for processes inside when stopping.
const GRACE: Duration = Duration::from_millis(500);

/// What to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Boot image of the kernel (`vmlinuz`).
    pub kernel: PathBuf,
    /// The host's initramfs.
    pub initramfs: PathBuf,
    /// Root filesystem, never written.
    pub base: PathBuf,
    /// Data disk. Copied from `data_template` if it is not there.
    pub data: PathBuf,
    /// An empty data disk.
    pub data_template: PathBuf,
    /// Image made by [`kit::build`].
    pub kit: Option<PathBuf>,
    /// Memory of the machine.
    pub memory_mib: u32,
    /// Its CPUs. Only with one are nested guests sound; see docs/decisions/0005.
    pub cpus: u32,
    /// TCP ports inside that are reachable from this machine; see [`SoftwareHost::forwarded`].
    pub forward: Vec<u16>,
    /// Its network leads out as well, as this machine's own does.
    pub outward: bool,
    /// Where the console is logged. The file stays below [`CONSOLE_MAX`].
    pub console: PathBuf,
    /// How long it may take until the agent answers.
    pub start_time: Duration,
}

pub use console::FILE_MAX as CONSOLE_MAX;
pub use qemu::{MAJOR_MIN as EMULATOR_MIN, installed_major as emulator_installed};

impl Options {
    /// The usual machine, made of what `cargo xtask guest` put into a directory, with its data disk
    /// and console log at the given places.
    pub fn of_guest_dir(guest: &Path, data: PathBuf, console: PathBuf) -> Self {
        Self {
            kernel: guest.join("vmlinuz"),
            initramfs: guest.join("host-initramfs.cpio"),
            base: guest.join("base.erofs"),
            data,
            data_template: guest.join("data.ext4"),
            kit: None,
            memory_mib: 4096,
            cpus: 1,
            forward: Vec::new(),
            outward: false,
            console,
            start_time: Duration::from_secs(180),
        }
    }
}

/// Size of a data disk. It takes what is written to it.
const DATA_BYTES: u64 = 32 << 30;

/// Why the software host did not start, answer or stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file it is made of is not there.
    #[error("{} is missing; `cargo xtask guest` makes it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The data disk cannot be made.
    #[error("cannot make the data disk {}", path.display())]
    Data {
        /// The disk.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The emulator cannot be started.
    #[error("cannot start the emulator; is qemu-system-x86 installed?")]
    Spawn(#[source] io::Error),
    /// The emulator is too old to run nested guests well.
    #[error(
        "the emulator is QEMU {found}, in which guests hang now and then; install QEMU {wanted} or later \
         (on Debian 12: apt-get install -t bookworm-backports qemu-system-x86)"
    )]
    OldEmulator {
        /// Major version that is installed.
        found: u32,
        /// Lowest that will do.
        wanted: u32,
    },
    /// The emulator ended before the machine was up.
    #[error("the software host ended while it was starting; its console:\n{console}")]
    Ended {
        /// The last lines.
        console: String,
    },
    /// The agent did not answer.
    #[error("the software host did not come up within {} s; its console:\n{console}", time.as_secs())]
    Timeout {
        /// The time it was given.
        time: Duration,
        /// The last lines.
        console: String,
    },
    /// A conversation with the agent failed.
    #[error("the software host's agent failed; its console:\n{console}")]
    Agent {
        /// The last lines.
        console: String,
        /// Why.
        source: session::Error,
    },
    /// A file on this side failed.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A software host that runs.
pub struct SoftwareHost {
    emulator: Emulator,
    agent: Agent,
    /// Port inside → address on this machine.
    forwarded: BTreeMap<u16, SocketAddr>,
    boot_time: Duration,
}

impl SoftwareHost {
    /// Starts the machine and waits until its agent answers.
    pub fn start(options: &Options) -> Result<Self, Error> {
        check_files(options)?;
        if !options.data.exists() {
            disk::copy_larger(&options.data_template, &options.data, DATA_BYTES)
                .map_err(|source| Error::Data { path: options.data.clone(), source })?;
        }
        let mut attempt = 1;
        loop {
            match Self::start_once(options) {
                Err(Error::Ended { console })
                    if attempt < PORT_ATTEMPTS && console.contains(qemu::PORT_TAKEN) =>
                {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn start_once(options: &Options) -> Result<Self, Error> {
        let started = Instant::now();
        let forwarded = choose_ports(&options.forward).map_err(Error::Spawn)?;
        let emulator = Emulator::spawn(&Machine { options, forwarded: &forwarded })?;
        let address = forwarded[&agent_port()];
        let mut host =
            Self { emulator, agent: agent_at(address), forwarded, boot_time: Duration::ZERO };
        host.wait_until_up(started + options.start_time, options.start_time)?;
        host.boot_time = started.elapsed();
        Ok(host)
    }

    fn wait_until_up(&self, deadline: Instant, time: Duration) -> Result<(), Error> {
        let probe = agent_at(self.forwarded[&agent_port()]).with_timeout(PROBE_TIME);
        loop {
            if probe.usage().is_ok() {
                return Ok(());
            }
            if self.emulator.ended() {
                return Err(Error::Ended { console: self.emulator.console_tail() });
            }
            if Instant::now() >= deadline {
                return Err(Error::Timeout { time, console: self.emulator.console_tail() });
            }
            thread::sleep(PROBE_PAUSE);
        }
    }

    /// The agent inside: processes, files, usage.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Time from the call of [`Self::start`] until the agent answered.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Where a port inside is reachable on this machine, if it was asked for.
    pub fn forwarded(&self, port: u16) -> Option<SocketAddr> {
        self.forwarded.get(&port).copied()
    }

    /// The last lines of the console.
    pub fn console_tail(&self) -> String {
        self.emulator.console_tail()
    }

    /// The emulator has ended, whatever the reason.
    pub fn ended(&self) -> bool {
        self.emulator.ended()
    }

    /// Copies a file in, with its permissions and holes.
    pub fn put_file(&self, from: &Path, to: &str) -> Result<(), Error> {
        let local = |source| Error::File { path: from.to_path_buf(), source };
        let file = File::open(from).map_err(local)?;
        let metadata = file.metadata().map_err(local)?;
        let mode = Some(metadata.permissions().mode() & 0o7777);
        let request = WriteFile { path: to.to_owned(), mode, ..WriteFile::default() };
        let mut writer = self.agent.create_file(request).map_err(|error| self.failed(error))?;
        for extent in disk::extents(&file, metadata.len()) {
            match extent.map_err(local)? {
                disk::Extent::Hole { length, .. } => {
                    writer.hole(length).map_err(|error| self.failed(error))?;
                }
                disk::Extent::Data { offset, length } => {
                    for piece in disk::pieces(&file, offset, length) {
                        let piece = piece.map_err(local)?;
                        writer.data(&piece).map_err(|error| self.failed(error))?;
                    }
                }
            }
        }
        writer.finish().map(|_| ()).map_err(|error| self.failed(error))
    }

    /// Copies a file out, with its permissions and holes.
    pub fn get_file(&self, from: &str, to: &Path) -> Result<(), Error> {
        let local = |source| Error::File { path: to.to_path_buf(), source };
        let request = ReadFile { path: from.to_owned(), offset: 0, length: None };
        let mut reader = self.agent.open_file(request).map_err(|error| self.failed(error))?;
        let mode = reader.entry().mode & 0o777;
        let file = File::create(to).map_err(local)?;
        let mut offset = 0;
        while let Some(content) = reader.next().map_err(|error| self.failed(error))? {
            match content {
                Content::Hole(length) => offset += length,
                Content::Data(bytes) => {
                    file.write_all_at(&bytes, offset).map_err(local)?;
                    offset += bytes.len() as u64;
                }
            }
        }
        file.set_len(offset).map_err(local)?;
        fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(local)
    }

    /// Shuts the machine down so that its data disk is whole; kills it when the time is over. Says
    /// whether it went down by itself.
    pub fn stop(self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let asked =
            agent_at(self.forwarded[&agent_port()]).with_timeout(time).shutdown(false, GRACE);
        let left = deadline.saturating_duration_since(Instant::now());
        asked.is_ok() && self.emulator.wait(left)
    }

    fn failed(&self, source: session::Error) -> Error {
        Error::Agent { console: self.emulator.console_tail(), source }
    }
}

fn agent_port() -> u16 {
    u16::try_from(PORT).expect("the agent's port is a TCP port as well")
}

fn agent_at(address: SocketAddr) -> Agent {
    Agent::new(move || {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
}

fn check_files(options: &Options) -> Result<(), Error> {
    let always = [&options.kernel, &options.initramfs, &options.base, &options.data_template];
    match always.into_iter().chain(&options.kit).find(|path| !path.is_file()) {
        Some(path) => Err(Error::Missing { path: path.clone() }),
        None => Ok(()),
    }
}

/// A free port of this machine for each port inside, and for the agent.
fn choose_ports(inside: &[u16]) -> io::Result<BTreeMap<u16, SocketAddr>> {
    // All are held until all are chosen, so that no port comes twice.
    let mut held = Vec::new();
    let mut chosen = BTreeMap::new();
    for port in inside.iter().copied().chain([agent_port()]) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        chosen.insert(port, listener.local_addr()?);
        held.push(listener);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_gets_its_own_address_on_the_loopback() {
        let chosen = choose_ports(&[80, 8080, 80]).unwrap();
        assert_eq!(chosen.keys().copied().collect::<Vec<_>>(), [80, 1024, 8080]);
        assert_ne!(chosen[&80], chosen[&8080]);
        assert!(chosen.values().all(|address| address.ip().is_loopback() && address.port() != 0));
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let options = Options::of_guest_dir(dir.path(), data.clone(), dir.path().join("log"));
        let error = SoftwareHost::start(&options).err().unwrap();
        assert!(error.to_string().contains("vmlinuz is missing"), "{error}");
        assert!(!data.exists());
    }
}
