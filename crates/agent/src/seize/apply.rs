//! Make a machine the one that its identity says, before any process runs in it.
//!
//! Runs on the ringing thread between the bell and the acknowledgement; see [`super`] for what may
//! be done there. What would leave the machine a twin (random state, secrets, environment, token)
//! is an error; what is an inconvenience (host name, clock, an interpreter that is gone) is a note.
//!
//! Invariant: everything is reached by descriptors that were opened before, so no name is looked up on
//! a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::time::{ClockId, clock_settime};
use nix::unistd::{UnlinkatFlags, ftruncate, sethostname, unlinkat};
use ramet_proto::agent::Identity;
use ramet_proto::doorbell::PAYLOAD_MAX;

use crate::identity::{ENVIRONMENT, machine_id};
use crate::process::limits;
use crate::sys::kernel;
use crate::sys::ports::Bell;

/// Sent to interpreters that have asked for it. A fixed number, `SIGRTMIN + 14` of glibc, because
/// libraries disagree about SIGRTMIN.
pub const RESEED_SIGNAL: i32 = 48;
/// A clock that is off by less is left alone.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(10);
/// A payload that cannot be read is read again this often.
const ATTEMPTS: usize = 3;

/// Why a machine is not what its identity says.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The monitor announced more than it may.
    #[error("identity of {0} bytes is longer than {PAYLOAD_MAX}")]
    TooLong(u32),
    /// The identity is not what the protocol says.
    #[error("identity cannot be read")]
    Unreadable(#[source] serde_json::Error),
    /// Without a seed the machine would draw its source's random numbers.
    #[error("identity has no seed of 64 bytes in hex")]
    NoSeed,
    /// The kernel refused a part that cannot be left out.
    #[error("{0} of the identity cannot be applied")]
    Kernel(&'static str, #[source] io::Error),
}

/// Everything that applying needs, opened beforehand.
pub struct Applier {
    run: OwnedFd,
    secrets: OwnedFd,
    reseed: OwnedFd,
    proc: OwnedFd,
    urandom: File,
    /// Absent where processes cannot be limited.
    pids_max: Option<File>,
    payload: Vec<u8>,
}

impl Applier {
    /// Open what is needed below `run`, which boot has made.
    pub fn open(run: &Path) -> io::Result<Self> {
        let directory = |path: &Path| -> io::Result<OwnedFd> {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            Ok(nix::fcntl::open(path, flags, Mode::empty())?)
        };
        Ok(Self {
            run: directory(run)?,
            secrets: directory(&run.join("secrets"))?,
            reseed: directory(&run.join("reseed"))?,
            proc: directory(Path::new("/proc"))?,
            urandom: File::options().read(true).write(true).open("/dev/urandom")?,
            pids_max: limits::pids_max().ok(),
            payload: vec![0; PAYLOAD_MAX],
        })
    }

    /// Read the identity from the doorbell and apply it. Gives what is worth logging.
    pub fn apply(&mut self, bell: &Bell) -> Result<Vec<String>, ApplyError> {
        let mut read = self.read(bell);
        for _ in 1..ATTEMPTS {
            if read.is_ok() {
                break;
            }
            bell.rewind();
            read = self.read(bell);
        }
        self.become_it(&read?)
    }

    fn read(&mut self, bell: &Bell) -> Result<Identity, ApplyError> {
        let mut length = [0; 4];
        bell.read(&mut length);
        let length = u32::from_le_bytes(length);
        let body = usize::try_from(length).ok().and_then(|length| self.payload.get_mut(..length));
        let body = body.ok_or(ApplyError::TooLong(length))?;
        bell.read(body);
        serde_json::from_slice(body).map_err(ApplyError::Unreadable)
    }

    fn become_it(&self, identity: &Identity) -> Result<Vec<String>, ApplyError> {
        let mut notes = Vec::new();
        if identity.still {
            stop_everyone().map_err(|error| ApplyError::Kernel("stillness", error))?;
        }
        let seed = seed(&identity.seed).ok_or(ApplyError::NoSeed)?;
        kernel::add_entropy(self.urandom.as_fd(), &seed)
            .map_err(|error| ApplyError::Kernel("random seed", error))?;
        self.set_clock(identity.realtime_ns, &mut notes);
        self.write_secrets(identity, &mut notes)
            .map_err(|error| ApplyError::Kernel("secrets", error))?;
        self.write_files(identity).map_err(|error| ApplyError::Kernel("files", error))?;
        self.limit_processes(identity.pids_max)
            .map_err(|error| ApplyError::Kernel("limit of processes", error))?;
        if let Err(errno) = sethostname(&identity.hostname) {
            notes.push(format!("host name: {errno}"));
        }
        if !identity.deterministic && !identity.still {
            self.signal_interpreters(&mut notes);
        }
        Ok(notes)
    }

    fn limit_processes(&self, most: Option<u32>) -> io::Result<()> {
        match (most, &self.pids_max) {
            (None, _) => Ok(()),
            (Some(most), Some(file)) => (&*file).write_all(most.to_string().as_bytes()),
            (Some(_), None) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn set_clock(&self, realtime_ns: u64, notes: &mut Vec<String>) {
        let wanted = Duration::from_nanos(realtime_ns);
        let set = kernel::wall_clock().and_then(|now| {
            if realtime_ns == 0 || now.abs_diff(wanted) <= CLOCK_TOLERANCE {
                return Ok(());
            }
            Ok(clock_settime(ClockId::CLOCK_REALTIME, wanted.into())?)
        });
        if let Err(error) = set {
            notes.push(format!("wall clock: {error}"));
        }
    }

    fn write_secrets(&self, identity: &Identity, notes: &mut Vec<String>) -> io::Result<()> {
        for name in names(&self.secrets)? {
            unlinkat(&self.secrets, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        for (name, value) in &identity.secrets {
            if !is_file_name(name) {
                notes.push(format!("secret {name:?} has no name for a file"));
                continue;
            }
            write_new(&self.secrets, name, value.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    fn write_files(&self, identity: &Identity) -> io::Result<()> {
        let mut environment: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, value) in identity.env.iter().chain(&identity.secrets) {
            if is_variable(key, value) {
                environment.insert(key, value);
            }
        }
        write_new(&self.run, ENVIRONMENT, &serde_json::to_vec(&environment)?, 0o600)?;
        match &identity.token {
            Some(token) => write_new(&self.run, "token", token.as_bytes(), 0o600)?,
            None => remove_if_there(&self.run, "token")?,
        }
        write_new(&self.run, "instance", line(&identity.instance).as_bytes(), 0o644)?;
        // These are mounted over files in /etc, so they stay the same files.
        overwrite(&self.run, "machine-id", &line(&machine_id(&identity.instance)))?;
        overwrite(&self.run, "hostname", &line(&identity.hostname))
    }

    /// Only to processes that catch the signal, and only on behalf of their owner or root: for
    /// others it would be deadly.
    fn signal_interpreters(&self, notes: &mut Vec<String>) {
        let names = match names(&self.reseed) {
            Ok(names) => names,
            Err(error) => return notes.push(format!("interpreters: {error}")),
        };
        for name in names {
            let Some(pid) = name.parse::<i32>().ok().filter(|pid| *pid > 1) else {
                continue;
            };
            let owner = fstatat(&self.reseed, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let owner = owner.map(|stat| stat.st_uid);
            match self.catcher(pid) {
                Some(uid) if owner == Ok(0) || owner == Ok(uid) => {
                    if let Err(error) = kernel::kill(pid, RESEED_SIGNAL) {
                        notes.push(format!("interpreter {pid}: {error}"));
                    }
                }
                Some(_) => {}
                // It ended without taking its name off, and the number may be another's now.
                None => drop(unlinkat(&self.reseed, name.as_str(), UnlinkatFlags::NoRemoveDir)),
            }
        }
    }

    /// The owner of a process that catches the signal.
    fn catcher(&self, pid: i32) -> Option<u32> {
        let path = format!("{pid}/status");
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.proc, path.as_str(), flags, Mode::empty()).ok()?;
        let mut status = Vec::new();
        File::from(file).read_to_end(&mut status).ok()?;
        catcher_in(&String::from_utf8_lossy(&status))
    }
}

/// Stops every process but the agent and this one, for good. None runs now, and each takes the signal
/// before its next instruction.
fn stop_everyone() -> io::Result<()> {
    match kernel::kill(-1, libc::SIGSTOP) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        done => done,
    }
}

fn catcher_in(status: &str) -> Option<u32> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next())
    };
    let caught = u64::from_str_radix(field("SigCgt:")?, 16).ok()?;
    let uid = field("Uid:")?.parse().ok()?;
    kernel::mask_has(caught, RESEED_SIGNAL).then_some(uid)
}

fn seed(hex: &str) -> Option<[u8; 64]> {
    let mut bytes = [0; 64];
    let digits: Vec<u8> = hex
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()?;
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(bytes)
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

fn is_variable(key: &str, value: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0')
}

/// Names in a directory, without the two dots.
fn names(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut directory = Dir::openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in directory.iter() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// The whole content under its name, replacing what was there.
fn write_new(directory: &OwnedFd, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = ".new";
    remove_if_there(directory, temporary)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let file = openat(directory, temporary, flags, Mode::from_bits_truncate(mode))?;
    File::from(file).write_all(content)?;
    Ok(renameat(directory, Path::new(temporary), directory, Path::new(name))?)
}

/// New content in the same file.
fn overwrite(directory: &OwnedFd, name: &str, content: &str) -> io::Result<()> {
    let file = openat(directory, name, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut file = File::from(file);
    file.write_all(content.as_bytes())?;
    let length = libc::off_t::try_from(content.len()).map_err(io::Error::other)?;
    Ok(ftruncate(&file, length)?)
}

fn remove_if_there(directory: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_catchers_are_signalled() {
        let status = |mask: &str| format!("Name:\tpython3\nUid:\t1000\t1000\nSigCgt:\t{mask}\n");
        // Signal 48 is bit 47.
        assert_eq!(catcher_in(&status("0000800000000000")), Some(1000));
        assert_eq!(catcher_in(&status("0000400000000000")), None);
        assert_eq!(catcher_in("Name:\tgone\n"), None);
    }

    #[test]
    fn seeds_are_whole_or_refused() {
        assert_eq!(seed(&"0f".repeat(64)), Some([15; 64]));
        assert_eq!(seed(&"0f".repeat(63)), None);
        assert_eq!(seed(&"zz".repeat(64)), None);
        assert_eq!(seed(""), None);
    }

    #[test]
    fn names_that_would_escape_are_refused() {
        assert!(["", ".", "..", "a/b", "a\0"].iter().all(|name| !is_file_name(name)));
        assert!(is_file_name("API_KEY"));
        assert!(!is_variable("A=B", "c") && !is_variable("A", "\0") && is_variable("A", "="));
    }

    fn read(directory: &tempfile::TempDir, name: &str) -> String {
        std::fs::read_to_string(directory.path().join(name)).expect(name)
    }

    fn guest() -> (tempfile::TempDir, Applier) {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("secrets")).expect("made");
        std::fs::create_dir(directory.path().join("reseed")).expect("made");
        for name in ["machine-id", "hostname"] {
            let long = "what was there before, and longer than what comes";
            std::fs::write(directory.path().join(name), long).expect("made");
        }
        let applier = Applier::open(directory.path()).expect("all is there");
        (directory, applier)
    }

    fn identity(name: &str) -> Identity {
        Identity {
            hostname: name.to_owned(),
            instance: name.to_owned(),
            token: Some(format!("token of {name}")),
            env: BTreeMap::from([("WHO".to_owned(), name.to_owned())]),
            secrets: BTreeMap::from([(format!("KEY_{name}"), "s3cret".to_owned())]),
            ..Identity::default()
        }
    }

    fn take(applier: &Applier, identity: &Identity) -> Vec<String> {
        let mut notes = Vec::new();
        applier.write_secrets(identity, &mut notes).expect("secrets");
        applier.write_files(identity).expect("files");
        notes
    }

    #[test]
    fn nothing_of_the_source_remains() {
        let (directory, applier) = guest();
        assert_eq!(take(&applier, &identity("one")), [""; 0]);
        let inode = |name: &str| {
            let metadata = std::fs::metadata(directory.path().join(name)).expect(name);
            std::os::unix::fs::MetadataExt::ino(&metadata)
        };
        let mounted = inode("machine-id");
        let first = read(&directory, "machine-id");
        assert_eq!(read(&directory, "secrets/KEY_one"), "s3cret");

        take(&applier, &Identity { token: None, ..identity("two") });
        assert_eq!(names(&applier.secrets).expect("listed"), ["KEY_two"]);
        assert!(!directory.path().join("token").exists());
        assert_eq!(read(&directory, "hostname"), "two\n");
        assert_eq!(read(&directory, "instance"), "two\n");
        assert_ne!(read(&directory, "machine-id"), first);
        assert_eq!((read(&directory, "machine-id").len(), inode("machine-id")), (33, mounted));
        let environment = read(&directory, ENVIRONMENT);
        assert_eq!(environment, r#"{"KEY_two":"s3cret","WHO":"two"}"#);
    }

    #[test]
    fn a_secret_that_is_no_file_name_is_noted_and_still_in_the_environment() {
        let (directory, applier) = guest();
        let secrets = BTreeMap::from([("../token".to_owned(), "x".to_owned())]);
        let notes = take(&applier, &Identity { secrets, token: None, ..identity("one") });
        assert!(notes.len() == 1 && notes[0].contains("../token"), "{notes:?}");
        assert!(!directory.path().join("token").exists());
        assert!(read(&directory, ENVIRONMENT).contains("../token"));
    }

    #[test]
    fn a_process_that_does_not_catch_the_signal_survives_and_is_struck_off() {
        let (directory, applier) = guest();
        let mut sleeper =
            std::process::Command::new("sleep").arg("100").spawn().expect("it starts");
        let name = directory.path().join("reseed").join(sleeper.id().to_string());
        std::fs::write(&name, "").expect("registered");
        let mut notes = Vec::new();
        applier.signal_interpreters(&mut notes);
        let ended = sleeper.try_wait().expect("ours");
        sleeper.kill().expect("ours");
        sleeper.wait().expect("ours");
        assert!(ended.is_none() && notes.is_empty() && !name.exists(), "{ended:?} {notes:?}");
    }
}
