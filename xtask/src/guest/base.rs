//! The root filesystem: Debian's packages, trimmed, with users and a few files, as erofs.
//!
//! Modification times of packaged files are kept, because compiled Python modules are valid only
//! together with them; everything the build itself made gets one fixed time. The image holds the
//! machine's apt sources, and none of its proxies.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::recipe::Base;
use super::store::{Inputs, Store, Versions};
use crate::command;
use crate::packages::{self, Known};
use crate::progress::Status;

/// Changed whenever this file makes something else of the same recipe.
const REVISION: &str = "minbase, lz4hc, revision 1";
/// Any constant will do; the image is identified by its digest.
const UUID: &str = "72616d65-7400-4000-8000-000000000001";

/// Make `base.erofs`.
pub fn make(
    store: &mut Store,
    base: &Base,
    known: &BTreeMap<String, Known>,
    root: &Path,
) -> Result<()> {
    let mut inputs = Inputs::new(REVISION).with(&serde_json::to_vec(base)?);
    for package in &base.packages {
        inputs = inputs.with(known[package].version.as_bytes());
    }
    for file in &base.files {
        inputs = inputs.with(&fs::read(root.join(&file.from)).unwrap_or_default());
    }
    let temporary = store.temporary();
    store.make("base.erofs", &inputs, |status, path| {
        let build = Build { status, base, root, rootfs: temporary.join("rootfs"), temporary };
        build.install()?;
        build.furnish()?;
        let versions = build.versions()?;
        build.pack(path)?;
        fs::remove_dir_all(&build.rootfs)?;
        Ok(versions)
    })
}

struct Build<'a> {
    status: &'a Status,
    base: &'a Base,
    /// Of the workspace.
    root: &'a Path,
    temporary: PathBuf,
    rootfs: PathBuf,
}

impl Build<'_> {
    /// Unpack and configure the packages.
    fn install(&self) -> Result<()> {
        let sources = self.temporary.join("sources.list");
        fs::write(&sources, packages::sources(&self.base.suite)?)?;
        let options = self.temporary.join("apt.conf");
        fs::write(&options, packages::transport_options()?)?;
        // Whatever is newer than this was made by the build.
        fs::write(self.temporary.join("started"), "")?;
        let mut build = Command::new("mmdebstrap");
        build.args(["--variant=minbase", "--mode=root", "--format=directory"]);
        build.arg(format!("--include={}", self.base.packages.join(",")));
        build.arg(format!("--aptopt={}", options.display()));
        build.args([
            "--aptopt=Acquire::Languages \"none\"",
            "--aptopt=Apt::Install-Recommends \"false\"",
        ]);
        for pattern in &self.base.exclude {
            build.arg(format!("--dpkgopt=path-exclude={pattern}"));
        }
        build.arg(&self.base.suite).arg(&self.rootfs).arg(&sources);
        build.env("SOURCE_DATE_EPOCH", self.base.epoch.to_string());
        command::run(self.status, &mut build, "check the network and run apt-get update")
    }

    /// Users, directories and files, and what is not wanted.
    fn furnish(&self) -> Result<()> {
        self.status.detail("users and files");
        for user in &self.base.users {
            let mut add = Command::new("chroot");
            add.arg(&self.rootfs).args(["useradd", "--create-home", "--user-group"]);
            add.args(["--uid", &user.uid.to_string(), "--home-dir", &user.home]);
            add.args(["--shell", &user.shell, &user.name]);
            command::run(self.status, &mut add, "check the users in guest/recipe.toml")?;
        }
        for directory in &self.base.directories {
            let path = self.inside(&directory.path)?;
            fs::create_dir_all(&path)?;
            chown(&path, Some(directory.owner), Some(directory.owner))?;
        }
        for file in &self.base.files {
            self.copy(&self.root.join(&file.from), &self.inside(&file.to)?)?;
        }
        self.remove()?;
        for file in &self.base.empty_files {
            let path = self.inside(file)?;
            clear(&path)?;
            fs::write(path, "")?;
        }
        self.settle_times()
    }

    /// Copy a file of the repository, if it is there.
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        if !from.is_file() {
            return Ok(());
        }
        clear(to)?;
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(fs::set_permissions(to, fs::Permissions::from_mode(0o644))?)
    }

    fn remove(&self) -> Result<()> {
        fs::remove_file(self.inside("/etc/apt/apt.conf.d/99mmdebstrap")?)?;
        for pattern in &self.base.remove {
            // The shell expands the pattern, which comes from the repository's own recipe.
            let script = format!("rm -rf -- .{pattern}");
            self.shell(&script, "check `remove` in guest/recipe.toml")?;
        }
        Ok(())
    }

    fn settle_times(&self) -> Result<()> {
        let epoch = self.base.epoch;
        let script = format!("find . -newer ../started -exec touch -hcd @{epoch} {{}} +");
        self.shell(&script, "is there space left?")
    }

    fn shell(&self, script: &str, advice: &str) -> Result<()> {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).current_dir(&self.rootfs);
        command::run(self.status, &mut shell, advice)
    }

    fn inside(&self, path: &str) -> Result<PathBuf> {
        let relative = path.strip_prefix('/').with_context(|| format!("{path} is not absolute"))?;
        ensure!(!relative.split('/').any(|part| part == ".."), "{path} leaves the image");
        Ok(self.rootfs.join(relative))
    }

    /// Versions of the packages that the recipe names.
    fn versions(&self) -> Result<Versions> {
        let mut query = Command::new("dpkg-query");
        query.arg(format!("--admindir={}", self.inside("/var/lib/dpkg")?.display()));
        query.args(["--show", "--showformat=${Package} ${Version}\\n"]).args(&self.base.packages);
        let text = command::output(&mut query)?;
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(name, version)| (name.to_owned(), version.to_owned())).collect())
    }

    fn pack(&self, path: &Path) -> Result<()> {
        let mut pack = Command::new("mkfs.erofs");
        pack.args(["-zlz4hc", "-U", UUID, "--quiet"]);
        pack.arg(format!("-T{}", self.base.epoch)).arg("--preserve-mtime");
        pack.arg(path).arg(&self.rootfs);
        command::run(self.status, &mut pack, "is there space left?")
    }
}

/// Make place for a file. What is there may be an absolute link, which would lead out of the image.
fn clear(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_out_of_the_image_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, link) = (dir.path().join("outside"), dir.path().join("link"));
        fs::write(&outside, "mine").unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        clear(&link).unwrap();
        fs::write(&link, "").unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        clear(&dir.path().join("nothing")).unwrap();
    }
}
