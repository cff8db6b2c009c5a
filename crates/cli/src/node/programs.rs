//! Where the programs and the files of the guest are.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::node::home::Home;

/// Files that the guest is made of; the last two only matter in software mode.
pub const GUEST_FILES: [&str; 6] =
    ["vmlinux", "initramfs.cpio", "base.erofs", "data.ext4", "vmlinuz", "host-initramfs.cpio"];

/// The monitor.
pub fn vmm() -> Result<PathBuf, Failure> {
    find("ramet-vmm", "RAMET_VMM")
}

/// The node.
pub fn rametd() -> Result<PathBuf, Failure> {
    find("rametd", "RAMETD")
}

/// The network service. A node does without it, and says so.
pub fn net() -> Result<PathBuf, Failure> {
    find("ramet-net", "RAMET_NET")
}

/// The program that the variable names, or that is beside this one, or in PATH.
fn find(name: &str, variable: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return absolute(&path);
        }
        return Err(Failure::new(format!("{variable} names {}, which is no file", path.display())));
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = beside.into_iter().chain(std::env::split_paths(&path));
    places.find_map(|place| Some(place.join(name)).filter(|path| path.is_file())).map_or_else(
        || {
            Err(Failure::new(format!("the program {name} is not here")).next(format!(
                "put it beside ramet or into PATH, or set {variable}; in a checkout: cargo build \
                 --release -p ramet-node -p ramet-vmm -p ramet-net -p ramet-cli"
            )))
        },
        |path| absolute(&path),
    )
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let cannot = format!("cannot use {}", path.display());
    path.canonicalize().map_err(|error| Failure::because(cannot, &error))
}

/// The directory with the files of the guest.
pub fn guest_dir(home: &Home) -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("RAMET_GUEST_DIR").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(path);
        return match missing(&path) {
            None => absolute(&path),
            Some(name) => Err(Failure::new(format!(
                "RAMET_GUEST_DIR is {}, and there is no {name}",
                path.display()
            ))),
        };
    }
    let mut places = vec![home.guest_dir()];
    for start in [std::env::current_exe().ok(), std::env::current_dir().ok()].into_iter().flatten()
    {
        places.extend(start.ancestors().map(|place| place.join("target/guest")));
    }
    match places.iter().find(|place| missing(place).is_none()) {
        Some(place) => absolute(place),
        None => Err(Failure::new("the guest's files are not here").next(format!(
            "in a checkout `cargo xtask guest` makes them; elsewhere copy its target/guest to {} \
             or set RAMET_GUEST_DIR",
            home.guest_dir().display()
        ))),
    }
}

/// The first file that is not there.
fn missing(guest: &Path) -> Option<&'static str> {
    GUEST_FILES.into_iter().find(|name| !guest.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_guest_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in GUEST_FILES {
            assert_eq!(missing(dir.path()), Some(name));
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(missing(dir.path()), None);
    }

    #[test]
    fn a_missing_program_is_named_with_the_variable() {
        let failure = find("ramet-no-such-program", "RAMET_NO_SUCH").unwrap_err();
        assert!(failure.to_string().contains("ramet-no-such-program"));
    }
}
