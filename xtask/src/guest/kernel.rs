//! The kernel: Debian's package, unpacked and kept, and the two forms of the kernel in it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use ramet_image::apt::Known;

use super::bzimage;
use super::store::{Inputs, Store, Versions};
use crate::command;
use crate::packages;
use crate::progress::{Outcome, Status, step};

/// An unpacked kernel package.
pub struct Kernel {
    /// Name and version, which stand for all of its contents.
    pub package: Package,
    /// Where it is unpacked.
    tree: PathBuf,
}

/// A package in one version.
#[derive(Clone)]
pub struct Package {
    name: String,
    version: String,
}

impl Package {
    /// The kernel that the meta package depends on.
    fn of(meta: &str, known: &Known) -> Result<Self> {
        parse_dependency(&known.depends).with_context(|| {
            format!("{meta} depends on no kernel of one version: {}", known.depends)
        })
    }

    /// Stands for the content as an input.
    pub fn id(&self) -> String {
        format!("{}={}", self.name, self.version)
    }

    /// For the manifest.
    pub fn versions(&self) -> Versions {
        Versions::from([(self.name.clone(), self.version.clone())])
    }
}

impl Kernel {
    /// Directory of the modules.
    pub fn modules(&self) -> Result<PathBuf> {
        only_entry(&self.tree.join("lib/modules"), "")
    }
}

/// Get the package and make `vmlinuz` and `vmlinux`.
pub fn make(store: &mut Store, meta: &str, known: &Known) -> Result<Kernel> {
    let mut kernel = None;
    step("kernel package", |status| {
        let (found, outcome) = unpacked(status, store, meta, known)?;
        kernel = Some(found);
        Ok(outcome)
    })?;
    let kernel = kernel.context("the step gives a kernel")?;
    let id = kernel.package.id();
    let image = only_entry(&kernel.tree.join("boot"), "vmlinuz-")?;
    store.make("vmlinuz", &Inputs::new("copy").with(id.as_bytes()), |_, path| {
        fs::copy(&image, path)?;
        Ok(kernel.package.versions())
    })?;
    store.make("vmlinux", &Inputs::new("unpack").with(id.as_bytes()), |_, path| {
        let elf = bzimage::vmlinux(&fs::read(&image)?)
            .with_context(|| format!("cannot take the kernel out of {}", image.display()))?;
        fs::write(path, elf)?;
        Ok(kernel.package.versions())
    })?;
    Ok(kernel)
}

fn unpacked(
    status: &Status,
    store: &Store,
    meta: &str,
    known: &Known,
) -> Result<(Kernel, Outcome)> {
    let mut package = Package::of(meta, known)?;
    let place = |package: &Package| store.kept(&package.id().replace(['/', ':'], "_"));
    if place(&package).is_dir() {
        let tree = place(&package);
        let outcome = Outcome::Kept(package.id());
        return Ok((Kernel { package, tree }, outcome));
    }
    let mut tree = download(status, store, &package);
    if tree.is_err() {
        // The lists may be older than the archive, which drops what is superseded.
        packages::update(status)?;
        package = Package::of(meta, &packages::ask(status, &[meta])?[meta])?;
        tree = download(status, store, &package);
    }
    let kept = place(&package);
    let parent = kept.parent().context("kept things have a directory")?;
    if parent.exists() {
        fs::remove_dir_all(parent)?;
    }
    fs::create_dir_all(parent)?;
    fs::rename(tree?, &kept).with_context(|| format!("cannot place {}", kept.display()))?;
    let outcome = Outcome::Made(package.id());
    Ok((Kernel { package, tree: kept }, outcome))
}

fn download(status: &Status, store: &Store, package: &Package) -> Result<PathBuf> {
    let dir = store.temporary().join("kernel");
    let tree = dir.join("tree");
    fs::create_dir_all(&tree)?;
    let mut get = Command::new("apt-get");
    get.args(["download", "-o", "APT::Sandbox::User=root", &package.id()]).current_dir(&dir);
    command::run(status, &mut get, "check the network and run apt-get update")?;
    let archive = only_entry(&dir, "linux-image-")?;
    let mut unpack = Command::new("dpkg");
    unpack.arg("-x").arg(&archive).arg(&tree);
    command::run(status, &mut unpack, "is there space left?")?;
    fs::remove_file(archive)?;
    Ok(tree)
}

/// Finds `linux-image-… (= version)` in a list of dependencies.
fn parse_dependency(depends: &str) -> Option<Package> {
    depends.split(',').find_map(|dependency| {
        let (name, version) = dependency.trim().split_once(" (= ")?;
        let version = version.strip_suffix(')')?;
        let (name, version) = (name.to_owned(), version.to_owned());
        name.starts_with("linux-image-").then_some(Package { name, version })
    })
}

/// The one entry of a directory whose name begins so.
fn only_entry(dir: &std::path::Path, prefix: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        count => bail!("{count} entries {prefix}* in {}, expected one", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_package_leads_to_the_kernel() {
        let found = parse_dependency("kmod, linux-image-6.1.0-1-cloud-amd64 (= 6.1.5-1)").unwrap();
        assert_eq!(found.id(), "linux-image-6.1.0-1-cloud-amd64=6.1.5-1");
        assert!(parse_dependency("libc6 (= 2.36)").is_none());
        assert!(parse_dependency("linux-image-6.1.0-1").is_none());
    }
}
