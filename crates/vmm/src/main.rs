//! `ramet-vmm`: one process, one microVM, that forks itself.
//!
//! It listens on a control socket ([`ramet_proto::control`]) and does what it is asked. `ramet-vmm probe` says what
//! KVM can do here.

mod birth;
mod boot;
mod control;
mod devices;
mod disk;
mod driver;
mod fork;
mod hex;
mod kvm;
mod machine;
mod memory;
mod pager;
mod poller;
mod probe;
mod restore;
mod save;
mod saved;
mod stats;
mod sys;
mod uffd;
mod vcpu;
mod volume;

use std::os::unix::net::UnixListener;
use std::process::ExitCode;

const HELP: &str = "\
ramet-vmm: one process, one microVM, that forks itself

usage:
  ramet-vmm --socket PATH   listen for requests on a Unix socket, which must not exist
  ramet-vmm probe           say what KVM can do on this machine, as JSON
  ramet-vmm needs           say what machines that boot here need to go on elsewhere, as JSON
  ramet-vmm fold DIRECTORY  write the layers of a volume into its base, unless somebody reads it
  ramet-vmm --version
  ramet-vmm --help

exit codes: 0 done, 1 failed, 2 wrong usage
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--socket", path] => listen(path),
        ["probe"] => probe::print(),
        ["needs"] => probe::print_needs(),
        ["fold", directory] => fold(directory),
        ["--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["--version"] => {
            println!("ramet-vmm {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn fold(directory: &str) -> ExitCode {
    match volume::fold(std::path::Path::new(directory)) {
        Ok(folded) => {
            println!("{}", if folded { "folded" } else { "in use" });
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ramet-vmm: {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn listen(path: &str) -> ExitCode {
    let served = sys::prepare_process()
        .and_then(|()| UnixListener::bind(path))
        .and_then(driver::Driver::new)
        .and_then(|mut driver| driver.run());
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ramet-vmm: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}
