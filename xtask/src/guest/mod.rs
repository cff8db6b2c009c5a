//! `cargo xtask guest`: the kernel, initramfs and disks that guests and the software host start
//! from, made of Debian's packages by the recipe in `guest/recipe.toml`.
//!
//! Every artefact is kept as long as its inputs (package versions, its part of the recipe, the
//! agent) are the same. An artefact appears under its name only when it is whole; one run at a time
//! works in a directory, the next waits.
//!
//! | artefact | what it is |
//! |---|---|
//! | `vmlinuz`, `vmlinux` | the kernel, as a boot image and as ELF |
//! | `initramfs.cpio` | the agent as init, and modules, for guests |
//! | `host-initramfs.cpio` | the same for the software host |
//! | `base.erofs` | root filesystem, read-only |
//! | `data.ext4` | empty disk for what a guest writes, sparse |
//! | `manifest.json` | sizes, digests and versions of all these |

mod base;
mod bzimage;
mod cpio;
mod data;
mod initramfs;
mod kernel;
mod modules;
mod recipe;
mod store;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::progress::{self, Outcome, step};
use crate::{packages, workspace};
use recipe::Recipe;
use store::Store;

/// Options of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Make everything anew, even what is up to date
    #[arg(long)]
    force: bool,
}

/// Programs this command runs, and Debian's packages that have them.
const PROGRAMS: [(&str, &str); 3] =
    [("mmdebstrap", "mmdebstrap"), ("mkfs.erofs", "erofs-utils"), ("mkfs.ext4", "e2fsprogs")];

/// Run the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !Uid::effective().is_root() {
        bail!(
            "making a root filesystem with its owners needs root; run this with sudo, or in a container"
        );
    }
    make(arguments.force)?;
    Ok(ExitCode::SUCCESS)
}

/// Bring all artefacts up to date.
pub fn make(force: bool) -> Result<()> {
    let started = Instant::now();
    let root = workspace::root();
    let recipe = Recipe::read(&root.join("guest/recipe.toml"))?;
    let mut store = Store::open(&workspace::guest_dir(), force)?;

    let mut known = BTreeMap::new();
    step("tools and packages", |status| {
        packages::install_missing(status, &PROGRAMS)?;
        known = packages::ask(status, &recipe.packages())?;
        Ok(Outcome::Kept(format!("{} packages known to apt", known.len())))
    })?;
    let meta = &recipe.kernel.package;
    let kernel = kernel::make(&mut store, meta, &known[meta])?;
    let agent = initramfs::build_agent(&root)?;
    initramfs::make(&mut store, "initramfs.cpio", &kernel, &recipe.kernel.guest_modules, &agent)?;
    initramfs::make(
        &mut store,
        "host-initramfs.cpio",
        &kernel,
        &recipe.kernel.host_modules,
        &agent,
    )?;
    base::make(&mut store, &recipe.base, &known)?;
    data::make(&mut store, &recipe.data)?;

    let total = progress::seconds(started.elapsed());
    eprintln!("all of {} is up to date after {total}", store.dir().display());
    Ok(())
}
