//! The directory of artefacts, with its manifest.
//!
//! Invariants: the manifest names an artefact only when the file of that name is whole and was made
//! from the recorded inputs; files and manifest change by rename only, so an interrupted run leaves
//! the previous state; the directory is locked as long as a [`Store`] lives.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ramet_engine::host::disk::{self, Extent};
use serde::{Deserialize, Serialize};

use crate::progress::{self, Outcome, Status, step};

/// What an artefact was made of, by name: versions and the like.
pub type Versions = BTreeMap<String, String>;

/// Digest of everything an artefact depends on.
pub struct Inputs(blake3::Hasher);

impl Inputs {
    /// Start with the text that says how the artefact is made: a change of it is a new artefact.
    pub fn new(how: &str) -> Self {
        Self(blake3::Hasher::new()).with(how.as_bytes())
    }

    /// Add an input. Each is kept apart from the next.
    pub fn with(mut self, input: &[u8]) -> Self {
        self.0.update(&(input.len() as u64).to_le_bytes()).update(input);
        self
    }

    fn digest(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    artefacts: BTreeMap<String, Artefact>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Artefact {
    size: u64,
    blake3: String,
    versions: Versions,
    /// Digest of what it was made from; see [`Inputs`].
    inputs: String,
}

/// The directory, locked.
pub struct Store {
    dir: PathBuf,
    manifest: Manifest,
    /// Keep nothing.
    force: bool,
    /// Held for its lock.
    _lock: File,
}

impl Store {
    /// Lock and read the directory, and remove what an interrupted run left.
    pub fn open(dir: &Path, force: bool) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let lock = lock(&dir.join(".lock"))?;
        // A damaged manifest only means that everything is made anew.
        let manifest = fs::read(dir.join("manifest.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let store = Self { dir: dir.to_path_buf(), manifest, force, _lock: lock };
        store.clear_temporary()?;
        Ok(store)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a step keeps things between runs that are no artefacts.
    pub fn kept(&self, name: &str) -> PathBuf {
        self.dir.join(".kept").join(name)
    }

    /// Where a step works; empty at the start of a run.
    pub fn temporary(&self) -> PathBuf {
        self.dir.join(".temporary")
    }

    /// Make an artefact, as a step of its own, unless it is there and made from these inputs. The
    /// maker writes the given path, which becomes the artefact if it succeeds.
    pub fn make(
        &mut self,
        name: &str,
        inputs: &Inputs,
        maker: impl FnOnce(&Status, &Path) -> Result<Versions>,
    ) -> Result<()> {
        step(name, |status| self.make_now(status, name, inputs, maker))
            .with_context(|| format!("cannot make {name}"))
    }

    fn make_now(
        &mut self,
        status: &Status,
        name: &str,
        inputs: &Inputs,
        maker: impl FnOnce(&Status, &Path) -> Result<Versions>,
    ) -> Result<Outcome> {
        let path = self.dir.join(name);
        if let Some(artefact) = self.current(name, inputs) {
            return Ok(Outcome::Kept(describe(artefact.size, &artefact.versions)));
        }
        let unfinished = self.temporary().join(name);
        let versions = maker(status, &unfinished)?;
        status.detail("digest");
        let (size, blake3) = digest(&unfinished)?;
        let described = describe(size, &versions);
        let artefact = Artefact { size, blake3, versions, inputs: inputs.digest() };
        // Between the two renames the manifest must not vouch for the new file.
        if self.manifest.artefacts.remove(name).is_some() {
            self.save()?;
        }
        fs::rename(&unfinished, &path)
            .with_context(|| format!("cannot place {}", path.display()))?;
        self.manifest.artefacts.insert(name.to_owned(), artefact);
        self.save()?;
        Ok(Outcome::Made(described))
    }

    fn current(&self, name: &str, inputs: &Inputs) -> Option<&Artefact> {
        let artefact = self.manifest.artefacts.get(name)?;
        let size = fs::metadata(self.dir.join(name)).ok()?.len();
        let same = artefact.inputs == inputs.digest() && artefact.size == size;
        (same && !self.force).then_some(artefact)
    }

    fn save(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.manifest)?;
        let unfinished = self.temporary().join("manifest.json");
        fs::write(&unfinished, text).context("cannot write the manifest")?;
        fs::rename(&unfinished, self.dir.join("manifest.json")).context("cannot place the manifest")
    }

    fn clear_temporary(&self) -> Result<()> {
        let dir = self.temporary();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = format!("{}/", fs::canonicalize(&self.dir)?.join(".temporary").display());
        if mounts
            .lines()
            .any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&below)))
        {
            bail!("something is still mounted below {below}; unmount it and try again");
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("waiting for another run in {}", path.display());
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock"),
    }
    Ok(file)
}

/// Size and digest of a file. Holes are not read, which takes long in a sparse disk.
fn digest(path: &Path) -> Result<(u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let file =
        File::open(path).with_context(|| format!("nothing was made at {}", path.display()))?;
    let size = file.metadata()?.len();
    let zeros = vec![0; 1 << 20];
    for extent in disk::extents(&file, size) {
        match extent? {
            Extent::Data { offset, length } => {
                for piece in disk::pieces(&file, offset, length) {
                    hasher.update(&piece?);
                }
            }
            Extent::Hole { length, .. } => {
                let whole = length / zeros.len() as u64;
                for _ in 0..whole {
                    hasher.update(&zeros);
                }
                hasher.update(&zeros[..usize::try_from(length % zeros.len() as u64)?]);
            }
        }
    }
    Ok((size, hasher.finalize().to_hex().to_string()))
}

fn describe(size: u64, versions: &Versions) -> String {
    let mut text = progress::size(size);
    for (name, version) in versions.iter().take(2) {
        text.push_str(&format!(", {name} {version}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn make(store: &mut Store, inputs: &str, made: &Cell<u32>) -> Result<()> {
        store.make("thing", &Inputs::new("test").with(inputs.as_bytes()), |_, path| {
            made.set(made.get() + 1);
            fs::write(path, inputs)?;
            Ok(Versions::new())
        })
    }

    #[test]
    fn an_artefact_is_made_once_per_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let made = Cell::new(0);
        for inputs in ["a", "a", "b", "b"] {
            let mut store = Store::open(dir.path(), false).unwrap();
            make(&mut store, inputs, &made).unwrap();
            assert_eq!(fs::read_to_string(dir.path().join("thing")).unwrap(), inputs);
        }
        assert_eq!(made.get(), 2);
    }

    #[test]
    fn force_and_a_missing_or_cut_file_make_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let made = Cell::new(0);
        make(&mut Store::open(dir.path(), false).unwrap(), "abc", &made).unwrap();
        make(&mut Store::open(dir.path(), true).unwrap(), "abc", &made).unwrap();
        assert_eq!(made.get(), 2);
        fs::write(dir.path().join("thing"), "a").unwrap();
        make(&mut Store::open(dir.path(), false).unwrap(), "abc", &made).unwrap();
        fs::remove_file(dir.path().join("thing")).unwrap();
        make(&mut Store::open(dir.path(), false).unwrap(), "abc", &made).unwrap();
        assert_eq!(made.get(), 4);
    }

    #[test]
    fn a_failed_maker_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let made = Cell::new(0);
        let mut store = Store::open(dir.path(), false).unwrap();
        make(&mut store, "good", &made).unwrap();
        let result = store.make("thing", &Inputs::new("other"), |_, path| {
            fs::write(path, "half")?;
            bail!("no space")
        });
        assert!(format!("{:#}", result.unwrap_err()).contains("thing: no space"));
        assert_eq!(fs::read_to_string(dir.path().join("thing")).unwrap(), "good");
        drop(store);
        make(&mut Store::open(dir.path(), false).unwrap(), "good", &made).unwrap();
        assert_eq!(made.get(), 1);
    }

    #[test]
    fn a_damaged_manifest_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("manifest.json"), "{ half").unwrap();
        let made = Cell::new(0);
        make(&mut Store::open(dir.path(), false).unwrap(), "a", &made).unwrap();
        assert_eq!(made.get(), 1);
    }

    #[test]
    fn a_second_store_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), false).unwrap();
        let file = File::open(dir.path().join(".lock")).unwrap();
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        drop(store);
        file.try_lock().unwrap();
    }

    #[test]
    fn the_digest_is_that_of_the_bytes_holes_included() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = File::create(&path).unwrap();
        file.set_len((3 << 20) + 77).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[5; 9000], 1 << 20).unwrap();
        let expected = blake3::hash(&fs::read(&path).unwrap()).to_hex().to_string();
        assert_eq!(digest(&path).unwrap(), ((3 << 20) + 77, expected));
    }

    #[test]
    fn inputs_are_kept_apart() {
        let one = Inputs::new("x").with(b"ab").with(b"c").digest();
        let two = Inputs::new("x").with(b"a").with(b"bc").digest();
        assert_ne!(one, two);
    }
}
