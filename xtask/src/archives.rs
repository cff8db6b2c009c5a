//! Programs of Debian as archives, for stories whose guests have no way to packages.
//!
//! Packages are unpacked below `target/`, once; nothing is installed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::progress::{Outcome, Status, step};
use crate::{command, packages, workspace};

/// A program, and what it needs beyond the base image.
struct Archive {
    name: &'static str,
    /// Names another one.
    variable: &'static str,
    packages: &'static [&'static str],
}

const ALL: [Archive; 2] = [
    Archive {
        name: "postgres",
        variable: "RAMET_POSTGRES",
        packages: &[
            "postgresql-15",
            "postgresql-client-15",
            "libpq5",
            "libicu72",
            "libstdc++6",
            "libxml2",
            "libxslt1.1",
            "tzdata",
        ],
    },
    Archive {
        name: "netprograms",
        variable: "RAMET_NETPROGRAMS",
        packages: &[
            "iperf3",
            "libiperf0",
            "libsctp1",
            "bind9-dnsutils",
            "bind9-libs",
            "libbsd0",
            "libedit2",
            "libfstrm0",
            "libicu72",
            "libjemalloc2",
            "libjson-c5",
            "liblmdb0",
            "libmaxminddb0",
            "libprotobuf-c1",
            "libstdc++6",
            "libuv1",
            "libxml2",
        ],
    },
];

/// All archives, by the variables that stories find them in.
pub fn all() -> Result<Vec<(&'static str, PathBuf)>> {
    ALL.iter().map(|archive| Ok((archive.variable, archive.get()?))).collect()
}

impl Archive {
    fn get(&self) -> Result<PathBuf> {
        if let Some(archive) = std::env::var_os(self.variable) {
            return Ok(archive.into());
        }
        let directory = workspace::root().join("target").join(self.name);
        let archive = directory.join(format!("{}.tar", self.name));
        step(self.name, |status| self.make(status, &directory, &archive))?;
        Ok(archive)
    }

    fn make(&self, status: &Status, directory: &Path, archive: &Path) -> Result<Outcome> {
        let what = self.packages[0].to_owned();
        if archive.exists() {
            return Ok(Outcome::Kept(what));
        }
        fs::create_dir_all(directory)?;
        let unfinished = directory.join("unfinished.tar");
        let mut tar = Command::new("tar");
        tar.args([
            "--owner=0",
            "--group=0",
            "--exclude=*/bitcode/*",
            "--exclude=*llvmjit*",
            "--exclude=./usr/share/doc/*",
        ]);
        tar.arg("-cf").arg(&unfinished);
        for package in self.packages {
            let place = directory.join(package);
            packages::unpack(status, package, &place)?;
            tar.arg("-C").arg(place).arg("./usr");
        }
        command::run(status, &mut tar, "tar must be able to write below target")?;
        fs::rename(unfinished, archive)?;
        Ok(Outcome::Made(what))
    }
}
