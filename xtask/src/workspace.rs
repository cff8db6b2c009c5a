//! Where things are in the workspace.

use std::env;
use std::path::{Path, PathBuf};

/// Root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_path_buf()
}

/// Where `cargo xtask guest` puts what it makes: `$RAMET_GUEST_DIR`, or target/guest.
pub fn guest_dir() -> PathBuf {
    env::var_os("RAMET_GUEST_DIR").map_or_else(|| root().join("target/guest"), PathBuf::from)
}
