//! The seed machines that every test forks, and a guest as tests see it.
//!
//! A seed is booted once, gets a running Python session, and is left alone from then on: a test
//! takes a fork of it. [`Guest::sh`] and [`Guest::py`] panic with the whole story when something is
//! not as expected, so that a test reads as what should happen.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use ramet_engine::control::Error;
use ramet_engine::monitor::{Machine, Monitor};
use ramet_engine::session::{Agent, Completed, Output};
use ramet_proto::agent::{Exec, Identity};
use ramet_proto::control::{Child, Request, Restore, Start};
use ramet_tests::linux;
use ramet_tests::patience::stretched;
use tempfile::TempDir;

/// Memory of every guest.
const MEMORY_MIB: u32 = 256;
/// Characters of a console in a report.
const CONSOLE_SHOWN: usize = 4000;
/// Time for a machine to boot, in an emulated host with other tests running.
const BOOT: Duration = Duration::from_secs(120);
/// Time for anything else that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for anything that a test waits for, on this machine.
pub fn patience() -> Duration {
    stretched(PATIENCE)
}

/// What all tests share.
pub struct Bed {
    /// Everything below is removed at the end.
    pub directory: TempDir,
    /// Starts machines.
    pub monitor: Monitor,
    single: OnceLock<Guest>,
    pair: OnceLock<Guest>,
    saved: OnceLock<PathBuf>,
}

static BED: OnceLock<Bed> = OnceLock::new();

/// What all tests share.
pub fn bed() -> &'static Bed {
    BED.get_or_init(|| {
        let directory = TempDir::with_prefix("linux").expect("a directory");
        fs::create_dir(directory.path().join("run")).expect("a run directory");
        fs::create_dir(directory.path().join("layers")).expect("a directory for layers");
        let monitor = Monitor::find(&directory.path().join("run"))
            .expect("ramet-vmm; `cargo xtask linux-tests` builds it");
        Bed {
            directory,
            monitor,
            single: OnceLock::new(),
            pair: OnceLock::new(),
            saved: OnceLock::new(),
        }
    })
}

impl Bed {
    /// Where writable disks are.
    pub fn layers(&self) -> PathBuf {
        self.directory.path().join("layers")
    }

    /// A process whose machine is empty.
    pub fn start(&self) -> Machine {
        self.monitor.start().expect("a monitor")
    }

    /// The seed with one vCPU.
    pub fn seed(&self) -> &Guest {
        self.single.get_or_init(|| self.boot("seed", 1))
    }

    /// The seed with two vCPUs.
    pub fn pair_seed(&self) -> &Guest {
        self.pair.get_or_init(|| self.boot("pair", 2))
    }

    /// The seed, saved to a directory.
    pub fn saved_seed(&self) -> &Path {
        self.saved.get_or_init(|| {
            let directory = self.directory.path().join("seed.saved");
            self.seed().save(&directory, true).expect("saved");
            directory
        })
    }

    fn boot(&self, hostname: &str, vcpus: u8) -> Guest {
        let machine = self.start();
        let identity = linux::identity(hostname);
        let boot = linux::boot(vcpus, MEMORY_MIB, &self.layers(), identity).expect("its parts");
        machine.boot(boot).expect("booted");
        linux::await_ready(&machine, stretched(BOOT))
            .unwrap_or_else(|error| panic!("{hostname}: {error}"));
        let guest = Guest(machine);
        linux::start_session(&guest.agent()).unwrap_or_else(|error| panic!("{hostname}: {error}"));
        guest
    }

    /// A machine from a directory, running.
    pub fn restore(&self, directory: &Path, hostname: &str) -> Guest {
        let machine = self.start();
        let restore = restore(directory, Start::Run, Some(linux::identity(hostname)));
        machine.restore(restore).expect("restored");
        linux::await_ready(&machine, stretched(BOOT))
            .unwrap_or_else(|error| panic!("{hostname}: {error}"));
        Guest(machine)
    }

    /// Ends the seeds and says which processes are left nevertheless.
    pub fn end(&self) -> Vec<u32> {
        for guest in [&self.single, &self.pair].into_iter().filter_map(OnceLock::get) {
            // It may be gone; whether it is, is looked at below.
            drop(guest.call(Request::Kill {}));
        }
        let end = Instant::now() + patience();
        loop {
            let left = linux::processes_of(self.directory.path()).expect("/proc");
            if left.is_empty() || Instant::now() > end {
                return left.into_iter().collect();
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A request to restore with the usual layers.
pub fn restore(directory: &Path, start: Start, identity: Option<Identity>) -> Restore {
    Restore {
        directory: directory.to_string_lossy().into_owned(),
        start,
        identity,
        layers: Some(bed().layers().to_string_lossy().into_owned()),
        bases: Vec::new(),
        volumes: Vec::new(),
        verify: false,
        pager: None,
    }
}

/// A machine with Linux in it.
pub struct Guest(pub Machine);

impl Deref for Guest {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

/// A fork of the seed with this host name.
pub fn guest(hostname: &str) -> Guest {
    bed().seed().fork_as(hostname)
}

impl Guest {
    /// The agent, which answers within the test's patience.
    pub fn agent(&self) -> Agent {
        self.0.agent().with_timeout(patience())
    }

    /// One child with this host name.
    pub fn fork_as(&self, hostname: &str) -> Guest {
        self.fork_all(&[hostname]).pop().expect("one child")
    }

    /// A child for each of the host names, all there.
    pub fn fork_all(&self, hostnames: &[&str]) -> Vec<Guest> {
        fork_with(self, hostnames.iter().map(|name| linux::identity(name)).collect())
    }

    /// A process's whole life, within the test's patience.
    pub fn run(&self, exec: &Exec) -> Completed {
        let mut process = self.agent().exec(exec).expect("started");
        process.set_timeout(Some(patience())).expect("a timeout");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match process.next().expect("output or an end") {
                Output::Stdout(bytes) => stdout.extend(bytes),
                Output::Stderr(bytes) => stderr.extend(bytes),
                Output::Exited(exited) => {
                    return Completed { stdout, stderr, exited };
                }
            }
        }
    }

    /// What a shell command prints; it must succeed. In an emulated host a new program takes half a
    /// second, so [`Self::py`] is preferred where the session can do it.
    pub fn sh(&self, line: &str) -> String {
        let completed = self.run(&shell(line));
        let stderr = String::from_utf8_lossy(&completed.stderr);
        assert!(completed.ok(), "{line}: {:?} {stderr}", completed.exited);
        completed.text().trim_end().to_owned()
    }

    /// What code prints in the session that runs in the guest; it must succeed.
    pub fn py(&self, code: &str) -> String {
        linux::python(&self.agent(), code)
            .unwrap_or_else(|error| panic!("{code}\n{error:?}\n{}", condition(self)))
    }

    /// Waits until an expression is true in the session.
    pub fn py_until(&self, expression: &str) {
        self.py(&format!("until(lambda: {expression})"));
    }

    /// Its host name.
    pub fn name(&self) -> String {
        self.py("print(name())")
    }

    /// Writes a file, and has it reach the disk.
    pub fn put(&self, path: &str, text: &str) {
        self.py(&format!("put({path:?}, {text:?})"));
    }

    /// What the disk holds of a file, whatever is cached.
    pub fn get(&self, path: &str) -> String {
        self.py(&format!("print(get({path:?}).decode())"))
    }
}

/// A child for each identity, all there.
pub fn fork_with(machine: &Machine, identities: Vec<Identity>) -> Vec<Guest> {
    let count = identities.len();
    let guests = try_fork(machine, identities);
    let guests = guests.unwrap_or_else(|error| panic!("{error:?}\n{}", condition(machine)));
    assert_eq!(guests.len(), count);
    guests
}

/// What a machine says of itself, for the report of a test that failed.
pub fn condition(machine: &Machine) -> String {
    let console = machine.console().map(|(_, text)| text).unwrap_or_default();
    let end = console.char_indices().rev().nth(CONSOLE_SHOWN).map_or(0, |(at, _)| at);
    format!("{:?}; its console ends:\n{}", machine.status(), &console[end..])
}

/// Children, or why not.
pub fn try_fork(machine: &Machine, identities: Vec<Identity>) -> Result<Vec<Guest>, Error> {
    let children = identities.into_iter().map(|identity| Child { identity: Some(identity) });
    let machines = machine.fork(children.collect())?.all()?;
    Ok(machines.into_iter().map(Guest).collect())
}

/// A shell command as root.
pub fn shell(line: &str) -> Exec {
    command(&["/bin/sh", "-c", line])
}

/// A program and its arguments, as root.
pub fn command(argv: &[&str]) -> Exec {
    Exec { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..Exec::default() }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + patience();
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {:?}", patience());
        thread::sleep(Duration::from_millis(20));
    }
}
