//! Images: root filesystems of guests, made of registry packages by the host.
//!
//! A guest has no network, so what it needs is in its image. [`recipe`] is what a user writes; [`rootfs`]
//! unpacks Debian's packages, lets pip and npm add theirs, and packs the tree as erofs; [`cache`]
//! keeps what was made, by content. [`base`] is what every image has: the recipe of the base image.
//! [`data`] makes the empty disk that a guest writes to.
//!
//! Where packages come from is the machine's own business: its apt sources, its pip and npm
//! configuration, its certificates are used, and nothing here names a place. Everything needs root,
//! because files of an image have owners.

pub mod apt;
pub mod base;
pub mod cache;
pub mod command;
pub mod data;
pub mod recipe;
pub mod rootfs;

use std::io;

pub use recipe::Recipe;

/// Told what is going on right now, line by line.
pub type Progress<'a> = &'a dyn Fn(&str);

/// Why something was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recipe is wrong, or this machine cannot carry it out; the text says what to do.
    #[error("{0}")]
    Bad(String),
    /// A file or directory failed.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// A program is not there.
    #[error("cannot start `{command}`; {advice}")]
    Start {
        /// The command line.
        command: String,
        /// What to do.
        advice: String,
        /// Why.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed ({exit}); it said:\n{tail}\n  {advice}")]
    Program {
        /// The command line.
        command: String,
        /// How it ended.
        exit: String,
        /// Its last words.
        tail: String,
        /// What to do.
        advice: String,
    },
}

/// What was tried, for an error of the file system.
pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    |source| Error::Io { what, source }
}

/// Programs that making an image takes, and Debian's packages that have them.
pub const PROGRAMS: [(&str, &str); 2] =
    [("mmdebstrap", "mmdebstrap"), ("mkfs.erofs", "erofs-utils")];

/// Packages of this machine that are missing for making an image.
pub fn missing() -> Vec<&'static str> {
    PROGRAMS
        .iter()
        .filter(|(program, _)| !command::in_path(program))
        .map(|(_, package)| *package)
        .collect()
}

/// Whether images can be made here; an error says what to do.
pub fn check_host() -> Result<(), Error> {
    let missing = missing();
    if !missing.is_empty() {
        let text = format!(
            "making an image takes {}; install them: apt-get install {}",
            missing.join(" and "),
            missing.join(" ")
        );
        return Err(Error::Bad(text));
    }
    if !nix::unistd::Uid::effective().is_root() {
        let text =
            "making an image with its owners takes root; run this with sudo, or in a container";
        return Err(Error::Bad(text.to_owned()));
    }
    Ok(())
}
