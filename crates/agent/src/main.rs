//! `ramet-agent`: the first process of every guest, and its hands.
//!
//! As PID 1 it boots the guest ([`boot`]), takes sessions from the host ([`session`]: processes,
//! files, ports, what [`compare`] needs) and meets the monitor when the machine is cut ([`link`], [`seize`]). The same binary
//! serves sessions on a Unix socket, and asks for a fork from inside the guest ([`calls`]).
//!
//! There is no async runtime: a thread per session, blocking I/O, bounded buffers. `unsafe` is in
//! [`sys`] only.

mod boot;
mod calls;
mod compare;
mod dial;
mod failure;
mod files;
mod frame;
mod identity;
mod link;
mod listen;
mod listeners;
mod log;
mod network;
mod process;
mod procfs;
mod seize;
mod session;
mod shutdown;
mod sys;
mod users;
mod volumes;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
ramet-agent: the agent inside a ramet sandbox

Usage:
  ramet-agent fork [N]            Fork this machine into N children (default 1) and
                                  wait. Prints 0 in the source and i in child i.
  ramet-agent serve --unix PATH   Serve sessions on a Unix socket, on any Linux.
  ramet-agent --help              Print this.
  ramet-agent --version           Print the version.

As PID 1 (/init) it boots a guest; its options are on the kernel's command line:
  ramet.role=guest|host           guest: sessions on vsock port 1024 (default);
                                  host: the software host, sessions on TCP port 1024
  ramet.root=DEVICE               read-only base of the root (erofs or ext4)
  ramet.data=DEVICE               writable disk of the root (ext4)
  ramet.kit=DEVICE                mounted read-only at /kit (erofs or ext4)
  ramet.net=ADDRESS/PREFIX,GATEWAY  static address of eth0

`ramet-agent seize` is internal: the agent starts it to meet the monitor.

Exit status: 0 done, 1 failed or refused, 2 wrong usage.
";

fn main() -> ExitCode {
    sys::kernel::thrifty_heap();
    if std::process::id() == 1 {
        boot::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["--help" | "-h" | "help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["--version" | "-V"] => {
            println!("ramet-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        ["serve", "--unix", path] => finish(serve(Path::new(path)).map_err(|e| e.to_string())),
        ["fork"] => fork("1"),
        ["fork", count] => fork(count),
        ["seize"] => finish(seize::run().map_err(|error| format!("seize: {error}"))),
        [] => wrong("what to do is missing"),
        other => wrong(&format!("not understood: {}", other.join(" "))),
    }
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("ramet-agent: {message}\nTry: ramet-agent --help");
    ExitCode::from(2)
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ramet-agent: {message}");
            ExitCode::FAILURE
        }
    }
}

fn fork(count: &str) -> ExitCode {
    let Some(count) = count.parse().ok().filter(|count| *count > 0) else {
        return wrong(&format!("{count} is not a number of children"));
    };
    finish(calls::call(count).map(|index| println!("{index}")))
}

fn serve(path: &Path) -> std::io::Result<()> {
    process::limits::raise()?;
    process::block_child_signals()?;
    // Orphans of our processes come to us, as to PID 1.
    nix::sys::prctl::set_child_subreaper(true)?;
    let reaper = std::thread::Builder::new().name("reaper".into()).stack_size(128 * 1024);
    reaper.spawn(process::reap_forever)?;
    listen::unix(path, &session::Sessions::default())
}
