//! What a template's name in a request means.

use std::fmt;

use axum::http::StatusCode;
use ramet_proto::api::{BASE_TEMPLATE, Template, TemplateState};

use super::super::{Control, snapshots};
use super::known::{self, INTERNAL};
use crate::auth::Principal;
use crate::dialects::e2b::{Fault, labels};

/// The tag of a name without one.
pub const USUAL: &str = "default";
/// The code interpreter's template, and what stands for it on a node that has not built it.
const INTERPRETER: &str = "code-interpreter-v1";
const STAND_INS: [&str; 2] = ["python", BASE_TEMPLATE];
/// Images of E2B that the node has in its own form.
const BASE_IMAGE: &str = "e2bdev/base";
const INTERPRETER_IMAGE: &str = "e2bdev/code-interpreter";
/// Longest name, and longest tag.
const NAME_MAX: usize = 128;

/// A name with its tag: `NAME`, `NAME:TAG`, or either behind `NAMESPACE/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Name, or an id.
    pub name: String,
    /// Tag.
    pub tag: String,
}

impl Name {
    /// Reads it. The only namespace is the caller's own.
    pub fn parse(who: &Principal, text: &str) -> Result<Self, Fault> {
        let rest = match text.split_once('/') {
            Some((space, rest)) if space.eq_ignore_ascii_case(who.name()) => rest,
            Some(_) => {
                let text = format!("{text:?} is in a namespace that is not yours");
                return Err(Fault::new(StatusCode::NOT_FOUND, text));
            }
            None => text,
        };
        let (name, tag) = rest.split_once(':').unwrap_or((rest, USUAL));
        let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = |part: &str| (1..=NAME_MAX).contains(&part.len()) && part.chars().all(letter);
        if !fits(name) || !fits(tag) {
            let text = format!(
                "{text:?} is no name: letters, digits and any of ._-, then perhaps : and a tag"
            );
            return Err(Fault::bad(text));
        }
        Ok(Self { name: name.to_ascii_lowercase(), tag: tag.to_owned() })
    }

    /// Its tag is the one of a name without one.
    pub fn is_usual(&self) -> bool {
        self.tag == USUAL
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seed {
    /// A template of the node.
    Template(String),
    /// An image of the node.
    Image(String),
    /// A commit.
    Commit(String),
}

/// What a reference means.
#[derive(Debug)]
pub struct Found {
    /// What it is.
    pub seed: Seed,
    /// Its id, as SDKs know it.
    pub id: String,
    /// Its name.
    pub alias: String,
}

/// What a reference in a request means: a template that an SDK built, a snapshot, or a template of the node.
pub async fn resolve(control: &Control, who: &Principal, text: &str) -> Result<Found, Fault> {
    let name = Name::parse(who, text)?;
    if let Some(known) = known::all(control, who)?.into_iter().find(|one| one.is(&name.name)) {
        let build = known.tagged(&name.tag).and_then(|build| build.template.clone());
        let Some(template) = build else {
            let text = format!("the template {:?} has no build {:?}", known.name, name.tag);
            return Err(Fault::new(StatusCode::NOT_FOUND, text));
        };
        return Ok(Found { seed: Seed::Template(template), id: known.id, alias: known.name });
    }
    if name.is_usual()
        && let Some(found) = native(control, who, &name.name)
    {
        return Ok(found);
    }
    if let Some(commit) = snapshots::meant(control, who, &name).await?.into_iter().next() {
        let id = match commit.labels.get(labels::SNAPSHOT).map(String::as_str) {
            Some("") | None => snapshots::digits(&commit).to_owned(),
            Some(full) => full.to_owned(),
        };
        return Ok(Found { seed: Seed::Commit(commit.id), id, alias: name.name });
    }
    Err(Fault::new(StatusCode::NOT_FOUND, format!("the template {text:?} was not found")))
}

/// A template of the node.
fn native(control: &Control, who: &Principal, name: &str) -> Option<Found> {
    let list = control.service().list_templates(who).templates;
    let usable = |one: &&Template| one.state == TemplateState::Ready;
    let find = |name: &str| list.iter().filter(usable).find(|one| is(one, name));
    let found = |template: &str| Found {
        seed: Seed::Template(template.to_owned()),
        id: name.to_owned(),
        alias: name.to_owned(),
    };
    // The one that every node has need not have been made yet.
    if name == BASE_TEMPLATE {
        return Some(found(BASE_TEMPLATE));
    }
    if let Some(template) = find(name) {
        return Some(found(&template.name));
    }
    if name != INTERPRETER {
        return None;
    }
    let stand_in = STAND_INS.iter().find(|name| **name == BASE_TEMPLATE || find(name).is_some());
    stand_in.map(|name| found(name))
}

/// Whether a template of the node has this name or id, and is not one of a build.
pub fn is(template: &Template, name: &str) -> bool {
    !template.built_in
        && !template.name.starts_with(INTERNAL)
        && (template.name == name || template.id == name)
}

/// What an image in a build means. Others than the node's cannot be had.
pub async fn image(control: &Control, who: &Principal, image: &str) -> Result<Found, String> {
    let name = image.split_once(':').map_or(image, |(name, _)| name);
    let stands_for = match name {
        BASE_IMAGE => Some(BASE_TEMPLATE),
        INTERPRETER_IMAGE => Some(INTERPRETER),
        _ => None,
    };
    if let Some(template) = stands_for {
        return resolve(control, who, template).await.map_err(|fault| fault.message);
    }
    if control.service().get_image(who, image).is_ok() {
        let id = image.to_owned();
        return Ok(Found { seed: Seed::Image(id.clone()), id: id.clone(), alias: id });
    }
    Err(format!(
        "fromImage {image:?}: images of registries cannot be fetched here; use fromTemplate, or make an image of this name with \
         `ramet image build`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let me = Principal::new("me");
        let of = |text: &str| Name::parse(&me, text).map(|name| name.to_string()).ok();
        assert_eq!(of("a").as_deref(), Some("a:default"));
        assert_eq!(of("A-b:v1.2").as_deref(), Some("a-b:v1.2"));
        assert_eq!(of("me/a:x").as_deref(), Some("a:x"));
        for bad in ["", ":x", "a:", "you/a", "a b", "a:b:c", "me/", "../x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
