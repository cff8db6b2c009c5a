//! Kernel modules: which files are needed for a list of names, in the order of loading.
//!
//! Dependencies are read from the modules themselves (`depends=` in their information), so neither
//! depmod nor modprobe is needed. Modules that are built into the kernel are left out; a name that
//! is neither is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// All modules of a kernel.
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Look at a directory such as `/lib/modules/VERSION`.
    pub fn of(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), &mut files)
            .with_context(|| format!("cannot read the modules in {}", dir.display()))?;
        let builtin = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
        let builtin = builtin.lines().map(|line| name_of(Path::new(line))).collect();
        Ok(Self { files, builtin })
    }

    /// The files needed for these modules, every one after what it depends on.
    pub fn in_order(&self, names: &[String]) -> Result<Vec<PathBuf>> {
        let mut order = Vec::new();
        for name in names {
            self.add(&normal(name), &mut order)?;
        }
        Ok(order)
    }

    fn add(&self, name: &str, order: &mut Vec<PathBuf>) -> Result<()> {
        let Some(path) = self.files.get(name) else {
            if self.builtin.contains(name) {
                return Ok(());
            }
            bail!("the kernel has no module {name}; check guest/recipe.toml");
        };
        if order.contains(path) {
            return Ok(());
        }
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        for dependency in dependencies(&content) {
            self.add(&dependency, order)?;
        }
        order.push(path.clone());
        Ok(())
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            files.insert(name_of(&path), path);
        }
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    normal(&path.file_stem().unwrap_or_default().to_string_lossy())
}

/// Dashes and underscores are the same in the names of modules.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn dependencies(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(FIELD.len()).position(|window| window == FIELD) else {
        return Vec::new();
    };
    let value = module[at + FIELD.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(normal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(modules: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel/some")).unwrap();
        for (name, depends) in modules {
            let content = format!("\x7fELF\0license=GPL\0depends={depends}\0retpoline=Y\0");
            fs::write(dir.path().join(format!("kernel/some/{name}.ko")), content).unwrap();
        }
        fs::write(dir.path().join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        dir
    }

    fn order(dir: &Path, names: &[&str]) -> Result<Vec<String>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let order = Modules::of(dir)?.in_order(&names)?;
        Ok(order.iter().map(|path| name_of(path)).collect())
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let dir = tree(&[
            ("ring", "core"),
            ("core", ""),
            ("virtio-blk", "core,ring"),
            ("net", "ring,core"),
        ]);
        let found = order(dir.path(), &["virtio_blk", "net", "ring"]).unwrap();
        assert_eq!(found, ["core", "ring", "virtio_blk", "net"]);
    }

    #[test]
    fn built_in_is_left_out_and_unknown_refused() {
        let dir = tree(&[("core", "")]);
        assert_eq!(order(dir.path(), &["ext4", "core"]).unwrap(), ["core"]);
        let error = order(dir.path(), &["nosuch"]).unwrap_err().to_string();
        assert!(error.contains("no module nosuch"), "{error}");
    }
}
