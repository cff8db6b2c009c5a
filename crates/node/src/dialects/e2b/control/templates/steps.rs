//! What a build is asked to do, and the checks before it begins.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::dialects::e2b::Fault;

/// Most steps.
const STEPS_MAX: usize = 512;

/// Body of `POST /v2/templates/{id}/builds/{build}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Image to begin with.
    #[serde(rename = "fromImage")]
    pub image: Option<String>,
    /// Template to begin with.
    #[serde(rename = "fromTemplate")]
    pub template: Option<String>,
    #[serde(rename = "fromImageRegistry")]
    registry: Option<Value>,
    /// Nothing is reused of other builds, so every build is forced.
    #[serde(rename = "force")]
    _force: Option<bool>,
    /// What is done, in order.
    #[serde(default)]
    pub steps: Vec<Given>,
    /// Started at the end, and left running.
    #[serde(rename = "startCmd")]
    pub start: Option<String>,
    /// Tried until it succeeds.
    #[serde(rename = "readyCmd")]
    pub ready: Option<String>,
}

/// A step, as it is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(rename = "filesHash")]
    hash: Option<String>,
    #[serde(rename = "force")]
    _force: Option<bool>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Variables, from here on and in sandboxes.
    Env(BTreeMap<String, String>),
    /// The directory of what follows.
    Workdir(String),
    /// The user of what follows.
    User(String),
    /// A line for the shell, perhaps as another user.
    Run(String, Option<String>),
    /// Files.
    Copy(Copy),
}

/// Files that are copied into the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Path or pattern in the archive.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Whose they are; the user's of this step when absent.
    pub owner: Option<String>,
    /// Permission bits in octal.
    pub mode: Option<String>,
    /// Names the archive.
    pub hash: String,
}

impl Recipe {
    /// Whether it can be carried out.
    pub fn check(&self) -> Result<(), Fault> {
        if self.registry.as_ref().is_some_and(|registry| !registry.is_null()) {
            return Err(Fault::unsupported("fromImageRegistry (images of registries)"));
        }
        if self.image.is_some() && self.template.is_some() {
            return Err(Fault::bad("fromImage or fromTemplate, not both"));
        }
        if self.steps.len() > STEPS_MAX {
            let text = format!("steps: {}, at most {STEPS_MAX}", self.steps.len());
            return Err(Fault::bad(text));
        }
        self.steps.iter().try_for_each(|step| step.read().map(drop))
    }
}

impl Given {
    /// The step that it is.
    pub fn read(&self) -> Result<Step, Fault> {
        let kind = self.kind.to_ascii_uppercase();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let given = |text: &&str| Some((*text).to_owned()).filter(|text| !text.is_empty());
        let step = match (kind.as_str(), &args[..]) {
            ("ENV", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                let pair =
                    |pair: &[&str]| Some((pair.first()?.to_string(), pair.get(1)?.to_string()));
                Step::Env(pairs.chunks(2).filter_map(pair).collect())
            }
            ("WORKDIR", [path]) => Step::Workdir((*path).to_owned()),
            ("USER", [user]) => Step::User((*user).to_owned()),
            ("RUN", [line]) => Step::Run((*line).to_owned(), None),
            ("RUN", [line, user]) => Step::Run((*line).to_owned(), given(user)),
            ("COPY", [from, to, rest @ ..]) if rest.len() <= 2 => {
                let hash = self.hash.clone();
                let hash = hash.ok_or_else(|| Fault::bad("COPY: filesHash is missing"))?;
                let owner = rest.first().and_then(given);
                let mode = rest.get(1).and_then(given);
                let digit = |byte: u8| (b'0'..=b'7').contains(&byte);
                if mode.as_ref().is_some_and(|mode| mode.len() > 5 || !mode.bytes().all(digit)) {
                    return Err(Fault::bad("COPY: the mode is permission bits in octal"));
                }
                if from.starts_with('/') || from.split('/').any(|part| part == "..") {
                    return Err(Fault::bad(format!("COPY: {from:?} is not in the context")));
                }
                let (from, to) = ((*from).to_owned(), (*to).to_owned());
                Step::Copy(Copy { from, to, owner, mode, hash })
            }
            ("ENV" | "WORKDIR" | "USER" | "RUN" | "COPY", args) => {
                return Err(Fault::bad(format!("{kind}: {} arguments do not fit", args.len())));
            }
            _ => return Err(Fault::unsupported(&format!("the step {:?}", self.kind))),
        };
        Ok(step)
    }
}

impl Step {
    /// In words, for the log.
    pub fn shown(&self) -> String {
        match self {
            Self::Env(pairs) => {
                // Their values may be nobody's business.
                format!("ENV {}", pairs.keys().map(String::as_str).collect::<Vec<_>>().join(" "))
            }
            Self::Workdir(path) => format!("WORKDIR {path}"),
            Self::User(user) => format!("USER {user}"),
            Self::Run(line, None) => format!("RUN {line}"),
            Self::Run(line, Some(user)) => format!("RUN as {user}: {line}"),
            Self::Copy(copy) => format!("COPY {} {}", copy.from, copy.to),
        }
    }
}

/// A path, below a directory if it is relative.
pub fn below(directory: &str, path: &str) -> String {
    let joined = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{}/{path}", directory.trim_end_matches('/')),
    };
    let end = if joined.len() > 1 && joined.ends_with('/') { "/" } else { "" };
    let parts: Vec<&str> =
        joined.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    match parts.is_empty() {
        true => "/".to_owned(),
        false => format!("/{}{end}", parts.join("/")),
    }
}

/// A word for the shell, whatever is in it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(kind: &str, args: &[&str], hash: Option<&str>) -> Given {
        Given {
            kind: kind.to_owned(),
            args: args.iter().map(|&text| text.to_owned()).collect(),
            hash: hash.map(str::to_owned),
            _force: None,
        }
    }

    #[test]
    fn steps_are_read() {
        let env = given("ENV", &["A", "1", "B", "2"], None).read().unwrap();
        assert_eq!(env.shown(), "ENV A B");
        let run = given("RUN", &["make", ""], None).read().unwrap();
        assert_eq!(run, Step::Run("make".to_owned(), None));
        let copy = given("COPY", &["a", "/b", "", "0755"], Some("h")).read().unwrap();
        assert!(matches!(copy, Step::Copy(Copy { owner: None, mode: Some(_), .. })));
        for (kind, args, hash) in [
            ("ENV", &["A"][..], None),
            ("COPY", &["a", "/b"][..], None),
            ("COPY", &["../a", "/b"][..], Some("h")),
            ("COPY", &["a", "/b", "", "rwx"][..], Some("h")),
            ("EXPOSE", &["80"][..], None),
        ] {
            assert!(given(kind, args, hash).read().is_err(), "{kind} {args:?}");
        }
    }

    #[test]
    fn paths_and_words() {
        assert_eq!(below("/a", "b/./c/"), "/a/b/c/");
        assert_eq!(below("/a/", "."), "/a");
        assert_eq!(below("/a", "/"), "/");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
