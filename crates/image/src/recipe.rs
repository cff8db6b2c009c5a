//! What a user writes to get an image and a template: about ten lines of TOML.
//!
//! ```toml
//! name = "python"
//! packages = ["python3-venv"]              # of Debian, beside those of the base image
//! pip = ["pandas"]
//! npm = []
//! files = { "/root/tool.py" = "tool.py" }  # path in the guest = file beside the recipe
//! run = ["python3 -c 'import pandas'"]     # in the guest, one after the other, each must succeed
//! start = ["python3 -m http.server 8000"]  # in the guest, left running
//! ready = "python3 -c 'import pandas'"     # tried until it succeeds
//! memory = "1G"
//! allow = ["example.org:443/tcp"]          # what run and start reach, and sandboxes at most; also: egress
//! ```
//!
//! `packages`, `pip` and `npm` make the image, on the host, where there is a network; the rest happens in a
//! guest that boots from it, and what that guest then is becomes the template. A word that is not
//! known is refused by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// Recipes that come with ramet, by name.
pub const SHIPPED: [(&str, &str); 4] = [
    ("base", include_str!("../../../recipes/base.toml")),
    ("python", include_str!("../../../recipes/python.toml")),
    ("devbox", include_str!("../../../recipes/devbox.toml")),
    ("code-interpreter-v1", include_str!("../../../recipes/code-interpreter-v1.toml")),
];
/// Most packages of a recipe.
const PACKAGES_MAX: usize = 1000;

/// An image and a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Of the image and of the template.
    pub name: String,
    /// An image that the node has, instead of one made of packages.
    #[serde(default)]
    pub image: Option<String>,
    /// Debian's packages.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Python packages.
    #[serde(default)]
    pub pip: Vec<String>,
    /// Node packages, installed globally.
    #[serde(default)]
    pub npm: Vec<String>,
    /// Path in the guest = file beside the recipe.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Lines for the shell that must succeed.
    #[serde(default)]
    pub run: Vec<String>,
    /// Lines for the shell that are left running.
    #[serde(default)]
    pub start: Vec<String>,
    /// A line that succeeds when the guest is ready.
    #[serde(default)]
    pub ready: Option<String>,
    /// How long that may take.
    #[serde(default)]
    pub ready_timeout_s: Option<u64>,
    /// How long all may take.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Environment of processes in the sandboxes.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// User of processes in the sandboxes.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory of processes in the sandboxes.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Preset of what the guest reaches while the template is made, and its sandboxes at most.
    #[serde(default)]
    pub egress: Option<String>,
    /// Rules of the same, like `example.org:443/tcp`.
    #[serde(default)]
    pub allow: Vec<String>,
    /// vCPUs.
    #[serde(default)]
    pub vcpus: Option<u8>,
    /// Memory in MiB; written as 512, "512M" or "2G".
    #[serde(default, deserialize_with = "size")]
    pub memory: Option<u32>,
    /// Disk in MiB, likewise.
    #[serde(default, deserialize_with = "size")]
    pub disk: Option<u32>,
}

impl Recipe {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let recipe: Self = toml::from_str(text).map_err(|error| {
            Error::Bad(format!("this is no recipe: {}", error.to_string().trim()))
        })?;
        recipe.check()?;
        Ok(recipe)
    }

    /// One that comes with ramet.
    pub fn shipped(name: &str) -> Option<&'static str> {
        SHIPPED.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
    }

    /// Whether an image has to be made.
    pub fn makes_image(&self) -> bool {
        !(self.packages.is_empty() && self.pip.is_empty() && self.npm.is_empty())
    }

    fn check(&self) -> Result<(), Error> {
        if self.image.is_some() && self.makes_image() {
            let text = "image: the recipe names an image and packages; leave one of them out";
            return Err(Error::Bad(text.to_owned()));
        }
        for (what, packages) in
            [("packages", &self.packages), ("pip", &self.pip), ("npm", &self.npm)]
        {
            if packages.len() > PACKAGES_MAX {
                return Err(Error::Bad(format!("{what}: at most {PACKAGES_MAX}")));
            }
            packages.iter().try_for_each(|package| check_package(what, package))?;
        }
        Ok(())
    }
}

/// A package is named, perhaps with its version; where it comes from is the machine's business.
fn check_package(what: &str, package: &str) -> Result<(), Error> {
    let marks = match what {
        "packages" => "+-.:",
        "pip" => "+-._[],=<>!~*",
        _ => "@/+-._^~",
    };
    let known = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
    let fine = (1..=200).contains(&package.len())
        && package.chars().all(known)
        && package.starts_with(|c: char| c.is_ascii_alphanumeric() || (what == "npm" && c == '@'))
        && !package.contains("//");
    match fine {
        true => Ok(()),
        false => Err(Error::Bad(format!(
            "{what}: {package:?} is no package; give its name, and no address, path or option"
        ))),
    }
}

/// MiB: `512`, `512M`, `2G`.
pub fn mib(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is no size; write it like 512, 512M or 2G");
    let text = text.trim_end_matches("iB").trim_end_matches('B');
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" | "M" | "m" => 1,
        "G" | "g" => 1024,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u32),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(number) => Ok(Some(number)),
        Written::Text(text) => mib(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_recipes_read_and_have_their_names() {
        for (name, text) in SHIPPED {
            let recipe = Recipe::parse(text).unwrap();
            assert_eq!(recipe.name, name);
            assert!(text.lines().filter(|line| line.contains('=')).count() <= 12, "{name}");
        }
        assert!(Recipe::shipped("python").is_some() && Recipe::shipped("perl").is_none());
    }

    #[test]
    fn sizes_are_written_in_three_ways() {
        let recipe = Recipe::parse("name = 'a'\nmemory = '2G'\ndisk = 512").unwrap();
        assert_eq!((recipe.memory, recipe.disk), (Some(2048), Some(512)));
        assert_eq!(mib("512MiB"), Ok(512));
        for wrong in ["", "G", "1T", "5000000G"] {
            assert!(mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unknown_word_is_refused_by_name() {
        let error = Recipe::parse("name = 'a'\npackges = ['x']").unwrap_err().to_string();
        assert!(error.contains("packges"), "{error}");
        let error = Recipe::parse("name = 'a'\nmemory = 'much'").unwrap_err().to_string();
        assert!(error.contains("much"), "{error}");
    }

    #[test]
    fn packages_are_names_and_nothing_else() {
        for good in [
            "packages = ['libstdc++6', 'python3-numpy', 'libc6:amd64']",
            "pip = ['pandas==2.2.*', 'uvicorn[standard]>=0.2,<1']",
            "npm = ['@types/node@20.1.0', 'typescript']",
        ] {
            Recipe::parse(&format!("name = 'a'\n{good}")).unwrap();
        }
        for bad in [
            "packages = ['-o', 'x']",
            "packages = ['a b']",
            "packages = ['a;b']",
            "packages = ['']",
            "pip = ['--index-url=x']",
            "pip = ['a @ https://x']",
            "npm = ['https://x/y.tgz']",
            "npm = ['$(x)']",
            "pip = ['../x']",
            "image = 'b'\npip = ['x']",
        ] {
            assert!(Recipe::parse(&format!("name = 'a'\n{bad}")).is_err(), "{bad}");
        }
    }
}
