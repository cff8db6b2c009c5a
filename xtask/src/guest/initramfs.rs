//! The initramfs: the agent as `/init`, and modules.
//!
//! `/lib/modules/load` lists the modules in the order of loading, one absolute path per line. The
//! archive is not compressed: under emulation unpacking costs more than reading.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::modules::Modules;
use super::store::{Inputs, Store};
use crate::build;
use crate::progress::{self, Outcome, step};

const DIRECTORIES: [&str; 8] = ["dev", "proc", "sys", "run", "tmp", "root", "lib", "lib/modules"];

/// Build the agent and give its content.
pub fn build_agent(root: &Path) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    step("ramet-agent", |status| {
        let program = build::static_program(status, root, "ramet-agent")?;
        content =
            fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        Ok(Outcome::Made(progress::size(content.len() as u64)))
    })?;
    Ok(content)
}

/// Make an initramfs with these modules.
pub fn make(
    store: &mut Store,
    name: &str,
    kernel: &Kernel,
    modules: &[String],
    agent: &[u8],
) -> Result<()> {
    let files = Modules::of(&kernel.modules()?)?.in_order(modules)?;
    let names: Vec<_> = files.iter().map(|file| file.file_name()).collect();
    let inputs = Inputs::new("cpio newc, devices console and kmsg")
        .with(kernel.package.id().as_bytes())
        .with(format!("{names:?} {DIRECTORIES:?}").as_bytes())
        .with(agent);
    store.make(name, &inputs, |_, path| {
        fs::write(path, pack(&files, agent)?)?;
        Ok(kernel.package.versions())
    })
}

fn pack(modules: &[PathBuf], agent: &[u8]) -> Result<Vec<u8>> {
    let mut archive = Archive::new(Vec::new());
    for path in DIRECTORIES {
        archive.directory(path, if path == "tmp" { 0o1777 } else { 0o755 })?;
    }
    archive.device("dev/console", 0o600, 5, 1)?;
    archive.device("dev/kmsg", 0o600, 1, 11)?;
    archive.file("init", 0o755, agent)?;
    let mut load = String::new();
    for module in modules {
        let file = module.file_name().context("a module has a name")?.to_string_lossy();
        let place = format!("lib/modules/{file}");
        let content =
            fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
        archive.file(&place, 0o644, &content)?;
        load.push_str(&format!("/{place}\n"));
    }
    archive.file("lib/modules/load", 0o644, load.as_bytes())?;
    Ok(archive.finish()?)
}
