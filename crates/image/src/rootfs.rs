//! A root filesystem: Debian's packages, trimmed, what pip and npm add, users and a few files, as erofs.
//!
//! Modification times of packaged files are kept, because compiled Python modules are valid only
//! together with them; everything the build itself made gets one fixed time, and what pip installs is
//! compiled so that times do not matter. The image holds the machine's apt sources, and none of its
//! proxies, certificates or configuration of pip and npm: those are lent to the build and removed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::base::{self, Base};
use crate::{Error, Progress, apt, command, io};

/// Changed whenever this file makes something else of the same recipe.
pub const REVISION: &str = "minbase, lz4hc, revision 1";
/// Any constant will do; the image is identified by its digest.
const UUID: &str = "72616d65-7400-4000-8000-000000000001";
/// Where the build lends things to pip and npm, in the root filesystem.
const LENT: &str = "/.ramet-build";
/// Where machines have the certificates that they trust.
const CERTIFICATES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// What an image was made of, by name.
pub type Versions = BTreeMap<String, String>;

/// A root filesystem to be made.
pub struct Build<'a> {
    /// What every image has.
    pub base: &'a Base,
    /// All of Debian's packages, those of the base included.
    pub packages: &'a [String],
    /// Python packages.
    pub pip: &'a [String],
    /// Node packages.
    pub npm: &'a [String],
    /// An empty directory to work in.
    pub temporary: &'a Path,
    /// Told what is going on.
    pub progress: Progress<'a>,
}

impl Build<'_> {
    /// Makes the image at this path, and says of what.
    pub fn make(&self, path: &Path) -> Result<Versions, Error> {
        self.install()?;
        self.furnish()?;
        let versions = self.versions()?;
        (self.progress)("packing");
        self.pack(path)?;
        let rootfs = self.rootfs();
        fs::remove_dir_all(&rootfs).map_err(io(format!("remove {}", rootfs.display())))?;
        Ok(versions)
    }

    fn rootfs(&self) -> PathBuf {
        self.temporary.join("rootfs")
    }

    /// Unpack and configure the packages.
    fn install(&self) -> Result<(), Error> {
        let sources = self.note("sources.list", &apt::sources(&self.base.suite)?)?;
        let options = self.note("apt.conf", &apt::transport_options()?)?;
        // Whatever is newer than this was made by the build.
        self.note("started", "")?;
        let mut build = Command::new("mmdebstrap");
        build.args(["--variant=minbase", "--mode=root", "--format=directory"]);
        build.arg(format!("--include={}", self.packages.join(",")));
        build.arg(format!("--aptopt={}", options.display()));
        build.args([
            "--aptopt=Acquire::Languages \"none\"",
            "--aptopt=Apt::Install-Recommends \"false\"",
        ]);
        for pattern in &self.base.exclude {
            build.arg(format!("--dpkgopt=path-exclude={pattern}"));
        }
        if let Some(script) = self.additions() {
            let script = self.note("additions.sh", &script)?;
            let runnable = fs::set_permissions(&script, fs::Permissions::from_mode(0o755));
            runnable.map_err(io("make a script runnable"))?;
            build.arg(format!("--customize-hook={}", script.display()));
        }
        build.arg(&self.base.suite).arg(self.rootfs()).arg(&sources);
        build.env("SOURCE_DATE_EPOCH", self.base.epoch.to_string());
        let advice = "check the names of the packages and the network, and run apt-get update";
        command::run(self.progress, &mut build, advice)
    }

    fn note(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.temporary.join(name);
        fs::write(&path, text).map_err(io(format!("write {}", path.display())))?;
        Ok(path)
    }

    /// A script that lets pip and npm work inside, while mmdebstrap has everything mounted there.
    /// Package names have no character that means something to a shell, but for those in quotes.
    fn additions(&self) -> Option<String> {
        if self.pip.is_empty() && self.npm.is_empty() {
            return None;
        }
        let quoted =
            |names: &[String]| names.iter().map(|name| format!(" '{name}'")).collect::<String>();
        let mut script = format!("#!/bin/sh\nset -eu\nlent=\"$1{LENT}\"\nmkdir \"$lent\"\n");
        let unused = |name: &str| match name {
            "pip.conf" => self.pip.is_empty(),
            "npmrc" => self.npm.is_empty(),
            _ => false,
        };
        for (name, path) in lent().into_iter().filter(|(name, _)| !unused(name)) {
            script.push_str(&format!("cp -L '{}' \"$lent/{name}\"\n", path.display()));
        }
        // Variables of the machine would lead to its own files, which are not inside.
        script.push_str("export HOME=/root\nunset SSL_CERT_DIR PIP_FIND_LINKS\n");
        for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"] {
            script.push_str(&format!("export {name}={LENT}/ca.pem\n"));
        }
        if !self.pip.is_empty() {
            script.push_str(&format!(
                "export PIP_CERT={LENT}/ca.pem PIP_CONFIG_FILE={LENT}/pip.conf PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0\n\
                 chroot \"$1\" python3 -m pip install --no-compile --no-cache-dir --progress-bar off \
                 --disable-pip-version-check --root-user-action=ignore --break-system-packages --{}\n\
                 # Some packages hold files that are no Python of this version; they are left as they are.\n\
                 chroot \"$1\" sh -c 'python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash \
                 /usr/local/lib/python3*/dist-packages' >/dev/null || true\n",
                quoted(self.pip)
            ));
        }
        if !self.npm.is_empty() {
            script.push_str(&format!(
                "export NODE_EXTRA_CA_CERTS={LENT}/ca.pem NPM_CONFIG_CAFILE={LENT}/ca.pem\n\
                 export NPM_CONFIG_USERCONFIG={LENT}/npmrc\n\
                 chroot \"$1\" npm install --global --no-fund --no-audit --no-update-notifier --{}\n\
                 rm -rf \"$1/root/.npm\"\n",
                quoted(self.npm)
            ));
        }
        script.push_str("rm -rf \"$lent\"\n");
        Some(script)
    }

    /// Users, directories and files, and what is not wanted.
    fn furnish(&self) -> Result<(), Error> {
        (self.progress)("users and files");
        for user in &self.base.users {
            let mut add = Command::new("chroot");
            add.arg(self.rootfs()).args(["useradd", "--create-home", "--user-group"]);
            add.args(["--uid", &user.uid.to_string(), "--home-dir", &user.home]);
            add.args(["--shell", &user.shell, &user.name]);
            command::run(self.progress, &mut add, "check the users in guest/recipe.toml")?;
        }
        for directory in &self.base.directories {
            let path = self.inside(&directory.path)?;
            let made = fs::create_dir_all(&path)
                .and_then(|()| chown(&path, Some(directory.owner), Some(directory.owner)));
            made.map_err(io(format!("make {}", path.display())))?;
        }
        for file in &self.base.files {
            self.place(&file.to, base::file(&file.from)?)?;
        }
        self.remove()?;
        for file in &self.base.empty_files {
            self.place(file, b"")?;
        }
        self.settle_times()
    }

    fn place(&self, to: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.inside(to)?;
        let placed = clear(&path)
            .and_then(|()| fs::write(&path, content))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)));
        placed.map_err(io(format!("write {}", path.display())))
    }

    fn remove(&self) -> Result<(), Error> {
        let own = self.inside("/etc/apt/apt.conf.d/99mmdebstrap")?;
        fs::remove_file(&own).map_err(io(format!("remove {}", own.display())))?;
        for pattern in &self.base.remove {
            // The shell expands the pattern, which comes from the repository's own recipe.
            let script = format!("rm -rf -- .{pattern}");
            self.shell(&script, "check `remove` in guest/recipe.toml")?;
        }
        Ok(())
    }

    fn settle_times(&self) -> Result<(), Error> {
        let epoch = self.base.epoch;
        let script = format!("find . -newer ../started -exec touch -hcd @{epoch} {{}} +");
        self.shell(&script, "is there space left?")
    }

    fn shell(&self, script: &str, advice: &str) -> Result<(), Error> {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).current_dir(self.rootfs());
        command::run(self.progress, &mut shell, advice)
    }

    fn inside(&self, path: &str) -> Result<PathBuf, Error> {
        let relative = path.strip_prefix('/').filter(|path| !path.split('/').any(|p| p == ".."));
        match relative {
            Some(relative) => Ok(self.rootfs().join(relative)),
            None => Err(Error::Bad(format!("{path} is no absolute path inside the image"))),
        }
    }

    /// Versions of the packages that the recipe names.
    fn versions(&self) -> Result<Versions, Error> {
        let mut query = Command::new("dpkg-query");
        query.arg(format!("--admindir={}", self.inside("/var/lib/dpkg")?.display()));
        query.args(["--show", "--showformat=${Package} ${Version}\\n"]).args(self.packages);
        let text = command::output(&mut query)?;
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(name, version)| (name.to_owned(), version.to_owned())).collect())
    }

    fn pack(&self, path: &Path) -> Result<(), Error> {
        let mut pack = Command::new("mkfs.erofs");
        pack.args(["-zlz4hc", "-U", UUID, "--quiet"]);
        pack.arg(format!("-T{}", self.base.epoch)).arg("--preserve-mtime");
        pack.arg(path).arg(self.rootfs());
        command::run(self.progress, &mut pack, "is there space left?")
    }
}

/// What this machine lends to pip and npm: certificates and configuration, if it has any.
fn lent() -> Vec<(&'static str, PathBuf)> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let home = |path: &str| variable("HOME").map(|home| home.join(path));
    let certificates = [variable("SSL_CERT_FILE"), variable("PIP_CERT")]
        .into_iter()
        .flatten()
        .chain(CERTIFICATES.map(PathBuf::from));
    let pip = [
        variable("PIP_CONFIG_FILE"),
        home(".config/pip/pip.conf"),
        home(".pip/pip.conf"),
        Some("/etc/pip.conf".into()),
    ];
    let npm = [variable("NPM_CONFIG_USERCONFIG"), home(".npmrc")];
    let first = |mut places: Vec<PathBuf>| {
        places.retain(|place| place.is_file());
        places.into_iter().next().unwrap_or_else(|| "/dev/null".into())
    };
    vec![
        ("ca.pem", first(certificates.collect())),
        ("pip.conf", first(pip.into_iter().flatten().collect())),
        ("npmrc", first(npm.into_iter().flatten().collect())),
    ]
}

/// Make place for a file. What is there may be an absolute link, which would lead out of the image.
fn clear(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path)?;
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

    #[test]
    fn pip_and_npm_get_the_machines_ways_and_leave_nothing() {
        let base = Base::shipped().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (none, pip) = (Vec::new(), vec!["pandas>=2".to_owned()]);
        let mut build = Build {
            base: &base,
            packages: &base.packages,
            pip: &none,
            npm: &none,
            temporary: dir.path(),
            progress: &|_| {},
        };
        assert_eq!(build.additions(), None);
        build.pip = &pip;
        let script = build.additions().unwrap();
        assert!(script.contains("'pandas>=2'") && !script.contains("npm"), "{script}");
        assert!(script.trim_end().ends_with("rm -rf \"$lent\""), "{script}");
        let checked = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
        assert!(checked.success());
        assert!(build.inside("/../etc").is_err() && build.inside("etc").is_err());
    }
}
