//! From the first instruction of PID 1 to a guest that takes sessions.
//!
//! ```text
//!  initramfs: /dev /proc /sys ─ modules ─ disks ─ overlay ─ new root ─ its mounts ─ identity's
//!  files ─ network ─ reaper ─ role: guest (vsock, link, seizer) or host (TCP)
//! ```
//!
//! The kernel's command line says what to be: `ramet.role=guest|host`, `ramet.root=DEVICE` (read-only
//! base), `ramet.data=DEVICE` (writable ext4), `ramet.kit=DEVICE` (read-only at /kit),
//! `ramet.net=ADDRESS/PREFIX,GATEWAY` for eth0. Without a root the guest stays in its initramfs. Other
//! `ramet.` keys are refused. A step that fails is named on the console and the machine powers off.

pub mod mounts;
pub mod network;
pub mod ready;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::calls::{self, Calls};
use crate::link::{self, Seizer};
use crate::session::Sessions;
use crate::shutdown::{self, Machine};
use crate::sys::kernel;
use crate::{listen, log, process};

/// Modules to load, one path per line, in order.
const MODULES: &str = "/lib/modules/load";

/// A step of the boot that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct BootError {
    /// What was tried, and with what.
    what: String,
    #[source]
    cause: io::Error,
}

impl BootError {
    /// `what` failed because of `cause`.
    pub fn new(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self { what: what.into(), cause: cause.into() }
    }
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    host: bool,
    root: Option<String>,
    data: Option<String>,
    kit: Option<String>,
    net: Option<String>,
}

/// Be PID 1.
pub fn run() -> ! {
    let error = match boot() {
        Ok(never) => match never {},
        Err(error) => error,
    };
    log::alarm(format_args!("boot failed: {error}: {}", error.cause));
    shutdown::halt(false)
}

fn boot() -> Result<std::convert::Infallible, BootError> {
    mounts::kernel_filesystems("")?;
    log::to_kernel();
    let line = fs::read_to_string("/proc/cmdline")
        .map_err(|error| BootError::new("/proc/cmdline", error))?;
    let options = parse(&line)?;
    load_modules();
    let data = mounts::enter_root(options.root.as_deref(), options.data.as_deref())?;
    if let Some(kit) = &options.kit {
        mounts::read_only(kit, "/kit")?;
    }
    ready::tune();
    ready::files()?;
    network::loopback()?;
    if let Some(net) = options.net.as_deref().or(options.host.then_some(network::SOFTWARE_HOST)) {
        network::ethernet(net)?;
    } else {
        network::guest()?;
    }
    shutdown::allow(Machine { data });
    if let Err(error) = process::limits::raise() {
        log::line(format_args!("limit of descriptors: {error}"));
    }
    process::block_child_signals().map_err(|error| BootError::new("signals", error))?;
    thread("reaper", process::reap_forever)?;
    let sessions = Sessions::default();
    if options.host {
        listen::tcp(&sessions).map_err(|error| BootError::new("listening on TCP", error))?;
    } else {
        be_guest(&sessions)?;
    }
    Err(BootError::new("listening", io::Error::other("the listener ended")))
}

fn be_guest(sessions: &Sessions) -> Result<(), BootError> {
    // They live as long as the machine.
    let calls: &'static Calls = Box::leak(Box::default());
    let seizer: &'static Seizer = Box::leak(Box::default());
    thread("seizer", move || seizer.keep(calls))?;
    thread("link", move || link::keep(seizer, calls))?;
    thread("calls", move || {
        if let Err(error) = calls::listen(calls) {
            log::line(format_args!("{}: {error}", crate::identity::SOCKET));
        }
    })?;
    listen::vsock(sessions).map_err(|error| BootError::new("listening on vsock", error))
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), BootError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024);
    thread.spawn(body).map(drop).map_err(|error| BootError::new(format!("thread {name}"), error))
}

fn parse(line: &str) -> Result<Options, BootError> {
    let mut options = Options::default();
    let refused = |word: &str| {
        let text = "known are ramet.role=guest|host, ramet.root, ramet.data, ramet.kit, ramet.net";
        BootError::new(format!("command line: {word}"), io::Error::other(text))
    };
    for word in line.split_whitespace().filter(|word| word.starts_with("ramet.")) {
        let (key, value) = word.split_once('=').ok_or_else(|| refused(word))?;
        match (key, value) {
            ("ramet.role", "guest") => options.host = false,
            ("ramet.role", "host") => options.host = true,
            ("ramet.root", device) => options.root = Some(device.to_owned()),
            ("ramet.data", device) => options.data = Some(device.to_owned()),
            ("ramet.kit", device) => options.kit = Some(device.to_owned()),
            ("ramet.net", net) => options.net = Some(net.to_owned()),
            _ => return Err(refused(word)),
        }
    }
    Ok(options)
}

/// A module that is missing, or there already, may still mean a machine that works.
fn load_modules() {
    let Ok(list) = fs::read_to_string(MODULES) else {
        return;
    };
    for path in list.lines().map(str::trim).filter(|path| !path.is_empty()) {
        let loaded = File::open(path).and_then(|file| kernel::load_module(file.as_fd()));
        match loaded {
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {}
            Err(error) => log::line(format_args!("module {path}: {error}")),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_command_line() {
        let options = parse("quiet ramet.role=host ramet.root=/dev/vda console=ttyS0\n");
        let expected = Options { host: true, root: Some("/dev/vda".into()), ..Options::default() };
        assert_eq!(options.expect("known keys"), expected);
        assert!(parse("ramet.role=king").is_err());
        assert!(parse("ramet.rooot=/dev/vda").is_err());
        assert!(parse("ramet.root").is_err());
    }
}
