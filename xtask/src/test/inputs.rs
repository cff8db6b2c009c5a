//! What a job is built from, as one hash: its program, the programs that it starts, and the files that it reads.
//!
//! A change that reaches none of them needs no new run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

/// What a job has beside its own program.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// Files, and directories with all that is in them.
    pub paths: Vec<PathBuf>,
    /// The guest's kernel, initramfs and disks.
    pub guest: bool,
}

impl Inputs {
    /// Paths below the root of the workspace.
    pub fn of(paths: &[&str], guest: bool) -> Self {
        let root = workspace::root();
        Self { paths: paths.iter().map(|path| root.join(path)).collect(), guest }
    }

    /// Their hash, with the command's own words and variables.
    pub fn hash(&self, command: &Command) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        add(format!("{:?}", command.get_args().collect::<Vec<_>>()).as_bytes());
        let variables: BTreeMap<_, _> = command.get_envs().collect();
        add(format!("{variables:?}").as_bytes());
        let mut paths = self.paths.clone();
        if self.guest {
            paths.push(workspace::guest_dir().join("manifest.json"));
        }
        for path in &paths {
            for file in files(path)? {
                add(file.to_string_lossy().as_bytes());
                add(&fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
            }
        }
        Ok(hasher.finalize().to_hex()[..32].to_owned())
    }
}

/// All files at or below a path, in the same order each time.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut below = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    below.sort();
    let mut all = Vec::new();
    for path in below {
        all.extend(files(&path)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_it_is_built_from_matters() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("deep/file");
        fs::create_dir(directory.path().join("deep")).expect("a directory");
        fs::write(&file, "one").expect("a file");
        let inputs = Inputs { paths: vec![directory.path().to_owned()], guest: false };
        let hash = |argument: &str| inputs.hash(Command::new("x").arg(argument)).expect("a hash");
        let first = hash("a");
        assert_eq!(first, hash("a"));
        assert_ne!(first, hash("b"));
        fs::write(&file, "two").expect("a file");
        assert_ne!(first, hash("a"));
        fs::write(&file, "one").expect("a file");
        assert_eq!(first, hash("a"));
    }
}
