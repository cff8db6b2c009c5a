//! Whether KVM works here, found out by running something.
//!
//! Two tiny guests are timed: a loop at privilege level 3 and the same loop at level 0. Where the processor runs
//! both, a Linux guest will run at full speed ("hardware"). Where level 0 is far slower, KVM interprets kernel code
//! and a Linux guest would crawl or die: such a machine needs the software host, as does one without KVM.

use std::process::ExitCode;

pub fn print() -> ExitCode {
    ExitCode::SUCCESS
}
