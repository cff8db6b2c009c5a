//! Monitor ↔ whoever brings the files of a machine that runs before all of them are there.
//!
//! The monitor connects to the Unix socket that [`crate::control::Restore::pager`] names and says
//! [`Ask::Hello`]; both sides send JSON lines. Files are those of the directory, by name, in pages of [`PAGE`] bytes. What
//! has arrived stays as it is: the other side writes a page before it tells of it, and never changes
//! it again. A connection that breaks is made anew, and what was asked for is asked again.

use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Pages that are asked for together: an aligned group of them.
pub const GROUP: u64 = 16;
/// Largest line, newline included.
pub const LINE_MAX: usize = 1024 * 1024;

/// From the monitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Which machine this is, by the directory that it is restored from.
    Hello {
        /// As in [`crate::control::Restore`].
        directory: String,
    },
    /// The guest waits for these pages.
    Want {
        /// Name of the file.
        file: String,
        /// First page.
        first: u64,
        /// Number of pages.
        count: u64,
    },
}

/// To the monitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tell {
    /// These pages are in the file now.
    Arrived {
        /// Name of the file.
        file: String,
        /// Runs of first page and number of pages.
        runs: Vec<(u64, u64)>,
    },
    /// Every page of every file is there.
    Complete {},
}
