//! The recipe, `guest/recipe.toml`, as types. A word that is not known is refused.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ramet_image::base::Base;
use serde::{Deserialize, Serialize};

/// The whole recipe. Its parts serialize so that they can be hashed as inputs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub kernel: Kernel,
    pub base: Base,
    pub data: Data,
}

/// Kernel and modules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    pub package: String,
    pub guest_modules: Vec<String>,
    pub host_modules: Vec<String>,
}

/// The empty disk.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub free_mib: u64,
}

impl Recipe {
    /// Read and check the recipe.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a recipe", path.display()))
    }

    /// Every package it names.
    pub fn packages(&self) -> Vec<&str> {
        let base = self.base.packages.iter();
        base.chain([&self.kernel.package]).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_recipe_reads() {
        let recipe = Recipe::read(&crate::workspace::root().join("guest/recipe.toml")).unwrap();
        assert!(recipe.base.packages.iter().any(|package| package == "python3"));
    }

    #[test]
    fn an_unknown_word_is_refused() {
        let error = toml::from_str::<Data>("free_mib = 1\nfree_gib = 2").unwrap_err();
        assert!(error.to_string().contains("free_gib"));
    }
}
