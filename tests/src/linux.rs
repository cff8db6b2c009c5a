//! Linux guests for tests and benchmarks: where their parts are, how to boot one, who it is, and a
//! Python session inside it.
//!
//! The parts are what `cargo xtask guest` makes, found by `RAMET_GUEST_DIR`. The session
//! (`guests/session.py`) is an interpreter that keeps its variables between calls; started in a
//! machine that is then forked, it is the running process that children inherit.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ramet_engine::monitor::Machine;
use ramet_engine::session::{Agent, Output};
use ramet_engine::{control, session};
use ramet_proto::agent::{Dial, Exec, Identity};
use ramet_proto::control::{Boot, Disk, Payload, State};

use crate::patience::stretched;

/// Where the session's program is put, and where it listens.
const PROGRAM: &str = "/run/session.py";
const SOCKET: &str = "/run/session.sock";
/// Time for the session to import what it needs, in an emulated host.
const SESSION_START: Duration = Duration::from_secs(120);
/// Time for code that is given to the session.
const SESSION_CALL: Duration = Duration::from_secs(90);

/// Why a guest is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of the guest is not there.
    #[error("{} is missing; `cargo xtask guest` makes it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It did not get ready.
    #[error("the guest is {state:?} and not ready after {} s; its console:\n{console}", time.as_secs())]
    NotReady {
        /// The time it was given.
        time: Duration,
        /// What it is instead.
        state: State,
        /// The last of its console.
        console: String,
    },
    /// The monitor failed.
    #[error("the monitor failed")]
    Monitor(#[from] control::Error),
    /// The agent failed.
    #[error("the agent failed")]
    Agent(#[from] session::Error),
    /// The session was cut.
    #[error("the session failed")]
    Io(#[from] io::Error),
    /// The code in the session failed.
    #[error("the session says: {0}")]
    Code(String),
}

/// Where `cargo xtask guest` has put its artefacts.
pub fn guest_dir() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest");
    env::var_os("RAMET_GUEST_DIR").map_or_else(usual, PathBuf::from)
}

/// Whether the processor runs guest kernels here, as the monitor itself has found out.
pub fn runs_kernels(monitor: &Path) -> io::Result<bool> {
    let output = Command::new(monitor).arg("probe").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.contains("\"mode\": \"hardware\""))
}

/// A machine with the base image and an empty data disk.
pub fn boot(vcpus: u8, memory_mib: u32, layers: &Path, identity: Identity) -> Result<Boot, Error> {
    let part = |name: &str| {
        let path = guest_dir().join(name);
        match path.is_file() {
            true => Ok(path.to_string_lossy().into_owned()),
            false => Err(Error::Missing { path }),
        }
    };
    let payload = Payload::Linux {
        kernel: part("vmlinux")?,
        initramfs: Some(part("initramfs.cpio")?),
        cmdline: "ramet.root=/dev/vda ramet.data=/dev/vdb".to_owned(),
    };
    let disk = |name: &str, read_only| Ok::<_, Error>(Disk { base: part(name)?, read_only });
    Ok(Boot {
        vcpus,
        memory_mib,
        huge_pages: true,
        payload,
        disks: vec![disk("base.erofs", true)?, disk("data.ext4", false)?],
        slots: 2,
        network: true,
        layers: Some(layers.to_string_lossy().into_owned()),
        saved: None,
        identity: Some(identity),
    })
}

/// An identity that no other machine has.
pub fn identity(hostname: &str) -> Identity {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Identity {
        hostname: hostname.to_owned(),
        instance: format!("{hostname}-{number}"),
        token: Some(format!("token-{number}")),
        ..Identity::default()
    }
}

/// Waits until the agent has its identity.
pub fn await_ready(machine: &Machine, time: Duration) -> Result<(), Error> {
    let end = Instant::now() + time;
    loop {
        let status = machine.status()?;
        if status.ready {
            return Ok(());
        }
        if status.state != State::Running || Instant::now() > end {
            let (_, console) = machine.console()?;
            return Err(Error::NotReady { time, state: status.state, console });
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts the session.
pub fn start_session(agent: &Agent) -> Result<(), Error> {
    agent.write_file(PROGRAM, include_bytes!("../guests/session.py"))?;
    let argv = ["python3", "-u", PROGRAM].map(str::to_owned).to_vec();
    let mut process = agent.exec(&Exec { argv, ..Exec::default() })?;
    process.set_timeout(Some(stretched(SESSION_START)))?;
    match process.next()? {
        Output::Stdout(bytes) if bytes == b"listening\n" => Ok(()),
        other => Err(Error::Code(format!("{other:?}"))),
    }
}

/// Has the session run some code. What it printed, without the last newline.
pub fn python(agent: &Agent, code: &str) -> Result<String, Error> {
    let path = SOCKET.to_owned();
    let mut stream = agent.dial(Dial::Unix { path })?;
    stream.set_timeout(Some(stretched(SESSION_CALL)))?;
    stream.write_all(code.as_bytes())?;
    stream.end()?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.split_at_checked(1) {
        Some(("+", output)) => Ok(output.trim_end_matches('\n').to_owned()),
        Some(("!", failure)) => Err(Error::Code(failure.to_owned())),
        _ => Err(Error::Code(format!("{text:?}"))),
    }
}

/// Every monitor that was started in this run directory, or forked from one that was: they keep
/// the command line of the first.
pub fn processes_of(run: &Path) -> io::Result<BTreeSet<u32>> {
    let run = format!("{}/", run.display());
    let pids = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids
        .filter(|pid: &u32| {
            // Who has ended meanwhile has no command line.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("ramet-vmm") && line.contains(&run)
        })
        .collect())
}
