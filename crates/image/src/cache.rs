//! Images that were made on this machine, by what they were made of.
//!
//! An image is `KEY.erofs` with `KEY.json` beside it, where the key is a digest of all that the recipe
//! says about the image. Both appear by rename, the note last, so an image with a note is whole. One
//! build works in the directory at a time; the next waits. A new image of a name replaces the old.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::rootfs::{Build, REVISION, Versions};
use crate::{Error, Progress, Recipe, check_host, io};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// An image that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The file.
    pub path: PathBuf,
    /// What is known of it.
    pub note: Note,
    /// It was there before.
    pub kept: bool,
}

/// What is noted of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Name of the recipe.
    pub name: String,
    /// Length of the file.
    pub size: u64,
    /// BLAKE3 of it, in hex.
    pub digest: String,
    /// Versions of the packages.
    pub versions: Versions,
}

/// The image of a recipe: made in this directory, unless it is there.
pub fn image(
    recipe: &Recipe,
    directory: &Path,
    rebuild: bool,
    progress: Progress<'_>,
) -> Result<Made, Error> {
    fs::create_dir_all(directory).map_err(io(format!("make {}", directory.display())))?;
    let base = Base::shipped()?;
    let key = key(recipe, &base)?;
    let path = directory.join(format!("{key}.erofs"));
    if let Some(note) = note_of(directory, &key).filter(|_| !rebuild) {
        return Ok(Made { path, note, kept: true });
    }
    check_host()?;
    let lock = lock(directory, progress)?;
    // Whoever was waited for may have made it.
    if let Some(note) = note_of(directory, &key).filter(|_| !rebuild) {
        return Ok(Made { path, note, kept: true });
    }
    let temporary = directory.join(".temporary");
    clear(&temporary)?;
    let unfinished = temporary.join("image.erofs");
    let packages = packages(recipe, &base);
    let versions = Build {
        base: &base,
        packages: &packages,
        pip: &recipe.pip,
        npm: &recipe.npm,
        temporary: &temporary,
        progress,
    }
    .make(&unfinished)?;
    progress("digest");
    let (size, digest) = digest(&unfinished)?;
    let note = Note { name: recipe.name.clone(), size, digest, versions };
    publish(directory, &key, &unfinished, &note)?;
    forget_others(directory, &key, &recipe.name);
    clear(&temporary)?;
    drop(lock);
    Ok(Made { path, note, kept: false })
}

/// All packages: those of the base, those of the recipe, and npm if it is needed.
fn packages(recipe: &Recipe, base: &Base) -> Vec<String> {
    let npm = (!recipe.npm.is_empty()).then(|| "npm".to_owned());
    let mut all: Vec<String> =
        base.packages.iter().cloned().chain(recipe.packages.iter().cloned()).chain(npm).collect();
    all.sort();
    all.dedup();
    all
}

/// What stands for everything that an image depends on.
fn key(recipe: &Recipe, base: &Base) -> Result<String, Error> {
    let broken = |error: serde_json::Error| Error::Bad(error.to_string());
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    };
    add(REVISION.as_bytes());
    add(&serde_json::to_vec(base).map_err(broken)?);
    for file in &base.files {
        add(crate::base::file(&file.from)?);
    }
    add(&serde_json::to_vec(&(&recipe.packages, &recipe.pip, &recipe.npm)).map_err(broken)?);
    Ok(hasher.finalize().to_hex().as_str()[..32].to_owned())
}

fn note_of(directory: &Path, key: &str) -> Option<Note> {
    let text = fs::read(directory.join(format!("{key}.json"))).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let size = fs::metadata(directory.join(format!("{key}.erofs"))).ok()?.len();
    (size == note.size).then_some(note)
}

fn publish(directory: &Path, key: &str, unfinished: &Path, note: &Note) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(note).map_err(|error| Error::Bad(error.to_string()))?;
    let (image, json) =
        (directory.join(format!("{key}.erofs")), directory.join(format!("{key}.json")));
    let new = unfinished.with_extension("json");
    // Between the renames no note may vouch for the new file.
    let _ = fs::remove_file(&json);
    let placed = fs::write(&new, text)
        .and_then(|()| fs::rename(unfinished, &image))
        .and_then(|()| fs::rename(&new, &json));
    placed.map_err(io(format!("place {}", image.display())))
}

/// Removes earlier images of the same name. What cannot be removed only takes space.
fn forget_others(directory: &Path, key: &str, name: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let other = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let is_note = path.extension().is_some_and(|extension| extension == "json");
        if is_note && other != key && note_of(directory, &other).is_some_and(|n| n.name == name) {
            let _ = fs::remove_file(path.with_extension("erofs"));
            let _ = fs::remove_file(path);
        }
    }
}

fn lock(directory: &Path, progress: Progress<'_>) -> Result<File, Error> {
    let path = directory.join(".lock");
    let file = File::create(&path).map_err(io(format!("open {}", path.display())))?;
    if file.try_lock().is_err() {
        progress("waiting for another build");
        file.lock().map_err(io(format!("lock {}", path.display())))?;
    }
    Ok(file)
}

/// Empties the directory to work in. A build that was killed may have left mounts there.
fn clear(temporary: &Path) -> Result<(), Error> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = format!("{}/", temporary.display());
    if mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&below))) {
        let text = format!("something is still mounted below {below}; unmount it and try again");
        return Err(Error::Bad(text));
    }
    let cannot = || io(format!("empty {}", temporary.display()));
    if temporary.exists() {
        fs::remove_dir_all(temporary).map_err(cannot())?;
    }
    fs::create_dir_all(temporary).map_err(cannot())
}

/// Size and BLAKE3 of a file.
pub fn digest(path: &Path) -> Result<(u64, String), Error> {
    let cannot = || io(format!("read {}", path.display()));
    let mut file = File::open(path).map_err(cannot())?;
    let (mut hasher, mut buffer, mut size) = (blake3::Hasher::new(), vec![0; PIECE], 0);
    loop {
        match file.read(&mut buffer).map_err(cannot())? {
            0 => return Ok((size, hasher.finalize().to_hex().to_string())),
            count => {
                hasher.update(&buffer[..count]);
                size += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(text: &str) -> Recipe {
        Recipe::parse(&format!("name = 'a'\n{text}")).unwrap()
    }

    #[test]
    fn only_what_is_in_the_image_makes_it_another() {
        let base = Base::shipped().unwrap();
        let of = |text: &str| key(&recipe(text), &base).unwrap();
        assert_eq!(of("pip = ['x']"), of("pip = ['x']\nrun = ['true']\nmemory = 1024"));
        assert_ne!(of("pip = ['x']"), of("packages = ['x']"));
        assert_ne!(of("pip = ['x']"), of("pip = ['y']"));
        let all = packages(&recipe("packages = ['bash', 'zsh']\nnpm = ['x']"), &base);
        assert!(all.contains(&"zsh".to_owned()) && all.contains(&"npm".to_owned()));
        assert_eq!(all.iter().filter(|package| *package == "bash").count(), 1);
    }

    #[test]
    fn what_was_made_is_kept_and_the_old_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let note = |digest: &str| Note {
            name: "a".to_owned(),
            size: 4,
            digest: digest.to_owned(),
            versions: Versions::new(),
        };
        for key in ["one", "two"] {
            let unfinished = dir.path().join("image.tmp");
            fs::write(&unfinished, "1234").unwrap();
            publish(dir.path(), key, &unfinished, &note(key)).unwrap();
        }
        assert_eq!(note_of(dir.path(), "one"), Some(note("one")));
        forget_others(dir.path(), "two", "a");
        assert_eq!(note_of(dir.path(), "one"), None);
        assert_eq!(note_of(dir.path(), "two"), Some(note("two")));
        fs::write(dir.path().join("two.erofs"), "cut").unwrap();
        assert_eq!(note_of(dir.path(), "two"), None);
        let (size, digest) = digest(&dir.path().join("two.erofs")).unwrap();
        assert_eq!((size, digest), (3, blake3::hash(b"cut").to_hex().to_string()));
    }

    #[test]
    fn a_recipe_that_was_made_takes_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = recipe("pip = ['x']");
        let key = key(&recipe, &Base::shipped().unwrap()).unwrap();
        let unfinished = dir.path().join("image.tmp");
        fs::write(&unfinished, "1234").unwrap();
        let note = Note {
            name: "a".to_owned(),
            size: 4,
            digest: "d".to_owned(),
            versions: Versions::new(),
        };
        publish(dir.path(), &key, &unfinished, &note).unwrap();
        let made = image(&recipe, dir.path(), false, &|_| {}).unwrap();
        assert!(made.kept && made.note == note);
    }
}
