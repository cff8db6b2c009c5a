//! What a machine finds in its memory and registers when it starts.

pub mod acpi;
pub mod flat;
pub mod linux;

use std::fs::File;
use std::io;

/// Why a payload cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it must be.
    #[error("{path} is no {what}: {reason}")]
    Not {
        /// The file.
        path: String,
        /// What it must be.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The payload does not fit into the machine.
    #[error("{what} does not fit into {memory_mib} MiB of memory; give the machine more")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Size of the machine.
        memory_mib: usize,
    },
    /// KVM does not take the registers.
    #[error("cannot set the vCPU's registers: {0}")]
    Registers(#[from] kvm_ioctls::Error),
}

fn open(path: &str) -> Result<File, BootError> {
    let read = |source| BootError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    if !file.metadata().map_err(read)?.is_file() {
        return Err(read(io::Error::other("it is no regular file")));
    }
    Ok(file)
}
