//! What every image has: the `[base]` part of `guest/recipe.toml`, which is built in.
//!
//! A word that is not known is refused.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The recipe of this repository.
const RECIPE: &str = include_str!("../../../guest/recipe.toml");

/// A file of the repository with its path there.
macro_rules! repository_file {
    ($path:literal) => {
        ($path, include_bytes!(concat!("../../../", $path)) as &[u8])
    };
}

/// Files of the repository that images get, by their path there.
const FILES: [(&str, &[u8]); 13] = [
    repository_file!("crates/agent/python/sitecustomize.py"),
    repository_file!("guest/interpreter/bash_context.sh"),
    repository_file!("guest/interpreter/contexts.py"),
    repository_file!("guest/interpreter/languages.py"),
    repository_file!("guest/interpreter/node_context.js"),
    repository_file!("guest/interpreter/process.py"),
    repository_file!("guest/interpreter/python_charts.py"),
    repository_file!("guest/interpreter/python_context.py"),
    repository_file!("guest/interpreter/python_display.py"),
    repository_file!("guest/interpreter/python_output.py"),
    repository_file!("guest/interpreter/python_variables.py"),
    repository_file!("guest/interpreter/server.py"),
    repository_file!("guest/interpreter/wire.py"),
];

/// Root filesystem. It serializes so that it can be hashed as an input.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Release of Debian.
    pub suite: String,
    /// Packages.
    pub packages: Vec<String>,
    /// Never unpacked: patterns of dpkg's path-exclude.
    pub exclude: Vec<String>,
    /// Removed at the end: shell patterns.
    pub remove: Vec<String>,
    /// Files that are there and empty.
    pub empty_files: Vec<String>,
    /// Modification time of what the build makes.
    pub epoch: u64,
    /// Directories that are there.
    pub directories: Vec<Directory>,
    /// Users.
    pub users: Vec<User>,
    /// Files of the repository.
    pub files: Vec<CopiedFile>,
}

/// A directory.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Where.
    pub path: String,
    /// Its uid and gid.
    pub owner: u32,
}

/// A user.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: u32,
    /// Home directory.
    pub home: String,
    /// Shell.
    pub shell: String,
}

/// A file of the repository that is copied in.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CopiedFile {
    /// Path in the repository.
    pub from: String,
    /// Path in the image.
    pub to: String,
}

impl Base {
    /// The one of this repository.
    pub fn shipped() -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Recipe {
            base: Base,
        }
        let recipe: Recipe = toml::from_str(RECIPE)
            .map_err(|error| Error::Bad(format!("the base recipe is broken: {error}")))?;
        Ok(recipe.base)
    }
}

/// Content of a file of the repository.
pub fn file(from: &str) -> Result<&'static [u8], Error> {
    let found = FILES.iter().find(|(path, _)| *path == from).map(|(_, content)| *content);
    found.ok_or_else(|| Error::Bad(format!("{from} is no file that images get")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_base_is_whole() {
        let base = Base::shipped().unwrap();
        assert!(base.packages.iter().any(|package| package == "python3"));
        for copied in &base.files {
            assert!(!file(&copied.from).unwrap().is_empty());
        }
        assert!(file("Cargo.toml").is_err());
    }
}
