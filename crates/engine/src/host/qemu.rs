//! The emulator: its command line, its process, its end.
//!
//! The thread that starts the process also reads its console until it ends. That is no detail: the
//! kernel kills the process when the *thread* that started it ends, so it must be one that lives as
//! long as the machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::console::{self, Log, Tail};
use super::{Error, Options};
use crate::sys::PidFd;

const PROGRAM: &str = "qemu-system-x86_64";
/// Emulators before this one forget the interrupt shadow when they enter a nested guest, and guests
/// hang now and then (docs/decisions/0005).
pub const MAJOR_MIN: u32 = 10;
/// What the emulator says when a port was taken since it was chosen.
pub const PORT_TAKEN: &str = "Could not set up host forwarding rule";

/// How long after SIGKILL a process may still be there.
const KILL_TIME: Duration = Duration::from_secs(10);

/// A machine to start.
pub struct Machine<'a> {
    pub options: &'a Options,
    /// Port inside → address on this machine.
    pub forwarded: &'a BTreeMap<u16, SocketAddr>,
}

impl Machine<'_> {
    /// All arguments of the emulator.
    pub fn arguments(&self) -> Vec<OsString> {
        let options = self.options;
        let mut line = Line::default();
        line.words("-no-user-config -nodefaults -no-reboot -display none -serial stdio");
        // Without la57: with five levels of page tables here and four in a guest, the emulator mixes
        // up the two now and then, and the kernel here finds itself with a guest's registers. Without
        // erms, fsrm and avx2: who finds them chooses them, kernels first of all, and emulated they are slower
        // than what there is else. String instructions are carried out byte by byte.
        line.words("-M q35 -accel tcg,thread=multi -cpu max,+svm,+npt,-la57,-erms,-fsrm,-avx2");
        line.words(&format!("-smp {} -m {}", options.cpus, options.memory_mib));
        line.words("-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny");
        line.pair("-kernel", options.kernel.as_os_str());
        line.pair("-initrd", options.initramfs.as_os_str());
        line.pair("-append", self.kernel_line());
        line.disk("base", &options.base, ",readonly=on");
        line.disk("data", &options.data, ",discard=unmap");
        if let Some(kit) = &options.kit {
            line.disk("kit", kit, ",readonly=on");
        }
        line.pair("-netdev", self.network());
        line.words("-device virtio-net-pci,netdev=net,romfile= -device virtio-rng-pci");
        line.0
    }

    fn kernel_line(&self) -> String {
        // Disks get their names in the order of the command line. The agent logs warnings, which
        // `quiet` would hide. An emulated processor does not speculate.
        let kit = if self.options.kit.is_some() { " ramet.kit=/dev/vdc" } else { "" };
        format!(
            "console=ttyS0 loglevel=5 net.ifnames=0 reboot=t panic=-1 tsc=reliable random.trust_cpu=on cryptomgr.notests mitigations=off \
             i8042.noaux i8042.nokbd ramet.role=host ramet.root=/dev/vda ramet.data=/dev/vdb{kit}"
        )
    }

    fn network(&self) -> String {
        let restrict = if self.options.outward { "off" } else { "on" };
        let mut network = format!("user,id=net,restrict={restrict}");
        for (inside, outside) in self.forwarded {
            network.push_str(&format!(
                ",hostfwd=tcp:{}:{}-:{inside}",
                outside.ip(),
                outside.port()
            ));
        }
        network
    }
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn words(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn pair(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }

    fn disk(&mut self, id: &str, path: &Path, more: &str) {
        let mut drive = OsString::from(format!("if=none,id={id},format=raw{more},file="));
        drive.push(escape(path));
        self.pair("-drive", drive);
        self.pair("-device", format!("virtio-blk-pci,drive={id},serial={id}"));
    }
}

/// In the emulator's option lists a comma is written twice.
fn escape(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        escaped.push(*byte);
        if *byte == b',' {
            escaped.push(b',');
        }
    }
    OsString::from_vec(escaped)
}

/// The installed emulator's major version.
pub fn installed_major() -> std::io::Result<Option<u32>> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output()?;
    Ok(major_of(&String::from_utf8_lossy(&output.stdout)))
}

fn major_of(text: &str) -> Option<u32> {
    let version = text.split_once("version ")?.1;
    version.split('.').next()?.parse().ok()
}

/// A running emulator. Dropping it kills it.
pub struct Emulator {
    process: PidFd,
    tail: Tail,
    /// Ends with the process.
    keeper: Option<thread::JoinHandle<()>>,
}

impl Emulator {
    /// Start it.
    pub fn spawn(machine: &Machine<'_>) -> Result<Self, Error> {
        let found = installed_major().map_err(Error::Spawn)?.unwrap_or(0);
        if found < MAJOR_MIN {
            return Err(Error::OldEmulator { found, wanted: MAJOR_MIN });
        }
        let console = &machine.options.console;
        let log =
            Log::create(console).map_err(|source| Error::File { path: console.clone(), source })?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", PROGRAM]).args(machine.arguments());
        let tail = Tail::default();
        let (started, result) = mpsc::channel();
        let keeper_tail = tail.clone();
        let keeper = thread::Builder::new().name("software-host".to_owned());
        let keeper = keeper
            .spawn(move || keep(command, &started, &keeper_tail, log))
            .map_err(Error::Spawn)?;
        let process = result.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        Ok(Self { process: process.map_err(Error::Spawn)?, tail, keeper: Some(keeper) })
    }

    /// It has ended.
    pub fn ended(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Wait for its end; false if it did not come in this time.
    pub fn wait(&self, time: Duration) -> bool {
        self.process.wait(time).unwrap_or(false)
    }

    /// The last lines of its console, and of its own errors.
    pub fn console_tail(&self) -> String {
        self.tail.lines()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It is our own child and held fast, so the only failure is that it is gone already.
        let _ = self.process.kill();
        if self.wait(KILL_TIME)
            && let Some(keeper) = self.keeper.take()
        {
            // Nothing is left to do if it panicked.
            let _ = keeper.join();
        }
    }
}

/// Body of the thread that belongs to the process.
fn keep(command: Command, started: &mpsc::Sender<std::io::Result<PidFd>>, tail: &Tail, log: Log) {
    match spawn(command) {
        Ok((mut child, process, reader)) => {
            // Nobody listens only if the caller is gone; then the process dies with this thread.
            if started.send(Ok(process)).is_err() {
                return;
            }
            console::follow(reader, tail, log);
            // The status says nothing that the console does not.
            let _ = child.wait();
        }
        Err(error) => drop(started.send(Err(error))),
    }
}

fn spawn(mut command: Command) -> std::io::Result<(Child, PidFd, std::io::PipeReader)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    let process = PidFd::open(child.id())?;
    Ok((child, process, reader))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn arguments(change: impl FnOnce(&mut Options)) -> Vec<String> {
        let mut options = Options::of_guest_dir(
            Path::new("/guest"),
            PathBuf::from("/data"),
            PathBuf::from("/log"),
        );
        change(&mut options);
        let forwarded = BTreeMap::from([
            (80, "127.0.0.1:4000".parse().unwrap()),
            (1024, "127.0.0.1:4001".parse().unwrap()),
        ]);
        let machine = Machine { options: &options, forwarded: &forwarded };
        machine.arguments().into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn after<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
        let pairs = arguments.windows(2).filter(|pair| pair[0] == name);
        pairs.map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn disks_come_in_the_order_the_kernel_line_names_them() {
        let arguments = arguments(|options| options.kit = Some(PathBuf::from("/kit")));
        let drives = after(&arguments, "-drive");
        assert_eq!(drives.len(), 3);
        assert!(drives[0].contains("readonly=on,file=/guest/base.erofs"));
        assert!(drives[1].ends_with("file=/data") && !drives[1].contains("readonly"));
        assert!(drives[2].contains("readonly=on,file=/kit"));
        let line = after(&arguments, "-append")[0];
        for word in ["ramet.root=/dev/vda", "ramet.data=/dev/vdb", "ramet.kit=/dev/vdc"] {
            assert!(line.split(' ').any(|found| found == word), "{line}");
        }
    }

    #[test]
    fn without_a_kit_there_is_no_third_disk() {
        let arguments = arguments(|_| {});
        assert_eq!(after(&arguments, "-drive").len(), 2);
        assert!(!after(&arguments, "-append")[0].contains("kit"));
    }

    #[test]
    fn the_network_leads_in_and_not_out() {
        let arguments = arguments(|_| {});
        assert_eq!(
            after(&arguments, "-netdev"),
            [
                "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:4000-:80,hostfwd=tcp:127.0.0.1:4001-:1024"
            ]
        );
    }

    #[test]
    fn it_leads_out_if_that_is_wanted() {
        let arguments = arguments(|options| options.outward = true);
        assert!(after(&arguments, "-netdev")[0].starts_with("user,id=net,restrict=off"));
    }

    #[test]
    fn a_comma_in_a_path_starts_no_option() {
        let arguments = arguments(|options| options.data = PathBuf::from("/a,readonly=on"));
        assert!(after(&arguments, "-drive")[1].ends_with("file=/a,,readonly=on"));
    }

    #[test]
    fn the_version_is_read() {
        let text = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright";
        assert_eq!(major_of(text), Some(10));
        assert_eq!(major_of("version"), None);
        assert_eq!(major_of("emulator version x.y"), None);
    }

    #[test]
    fn size_is_passed_on() {
        let arguments = arguments(|options| (options.cpus, options.memory_mib) = (3, 777));
        assert_eq!((after(&arguments, "-smp")[0], after(&arguments, "-m")[0]), ("3", "777"));
    }
}
