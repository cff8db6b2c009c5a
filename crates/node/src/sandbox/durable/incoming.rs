//! What comes from elsewhere: commits and templates as others describe them.
//!
//! A description is somebody else's word, even if it is signed. It is read here and nowhere else; what is out of bounds
//! is refused before anything is moved, and what is only true where it comes from (owner, machine, files) is forgotten.

use ramet_proto::api::{TemplateState, VolumeMode};
use ramet_proto::needs::Needs;
use ramet_store::PackedRoot;
use serde_json::Value;

use super::bases::Base;
use super::commits::{ANCESTORS_MAX, AUTHOR_MAX, COMMIT_ROOT, Commit, MESSAGE_MAX};
use super::moves::TEMPLATE_ROOT;
use crate::auth::Principal;
use crate::host::SLOTS;
use crate::sandbox::check;
use crate::sandbox::error::Error;
use crate::sandbox::library::is_digest;
use crate::sandbox::network::check_foreign;
use crate::sandbox::record::Root;
use crate::sandbox::template::Template;
use crate::sandbox::volumes::{self, Attachment};

/// Digits of an id.
const ID_DIGITS: usize = 16;
/// Longest other text.
const TEXT_MAX: usize = 256;

/// Something that moves, with a description of its own.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    /// A commit.
    Commit(Box<Commit>),
    /// A template.
    Template(Box<Template>),
}

impl Subject {
    /// Kind and name of its root.
    pub fn root_name(&self) -> (&'static str, &str) {
        match self {
            Self::Commit(commit) => (COMMIT_ROOT, &commit.id),
            Self::Template(template) => (TEMPLATE_ROOT, &template.id),
        }
    }

    /// What it is, in words.
    pub fn named(&self) -> String {
        match self {
            Self::Commit(commit) => format!("the commit {}", commit.id),
            Self::Template(template) => format!("the template {}", template.name),
        }
    }

    /// What its line begins with.
    pub fn root(&self) -> Root {
        match self {
            Self::Commit(commit) => commit.root.clone(),
            Self::Template(template) => template.root(),
        }
    }

    /// What its machine needs.
    pub fn needs(&self) -> Option<&Needs> {
        match self {
            Self::Commit(commit) => commit.needs.as_ref(),
            Self::Template(template) => template.needs.as_ref(),
        }
    }

    /// Reads what a root says, for somebody who becomes its owner.
    pub fn read(kind: &str, name: &str, value: &Value, who: &Principal) -> Result<Self, Error> {
        match kind {
            COMMIT_ROOT => Ok(Self::Commit(Box::new(commit(name, value, who)?))),
            TEMPLATE_ROOT => Ok(Self::Template(Box::new(template(name, value, who)?))),
            other => Err(Error::Bad(format!("{other:?} is nothing that moves"))),
        }
    }

    /// The one subject among roots that come together; the others must be what it is over.
    pub fn among(roots: &[PackedRoot], who: &Principal) -> Result<Self, Error> {
        let is_base = |root: &&PackedRoot| {
            [Base::Image, Base::Disk].iter().any(|base| base.kind() == root.kind)
        };
        let mut subjects = roots.iter().filter(|root| !is_base(root));
        let (Some(root), None) = (subjects.next(), subjects.next()) else {
            let text = "it must hold one commit or one template, and what that is over";
            return Err(Error::Bad(text.to_owned()));
        };
        let subject = Self::read(&root.kind, &root.name, &root.value, who)?;
        let line = subject.root();
        let named = |root: &PackedRoot| {
            Base::of(&line)
                .iter()
                .any(|(base, digest)| base.kind() == root.kind && *digest == root.name)
        };
        match roots.iter().filter(is_base).all(named) {
            true => Ok(subject),
            false => Err(Error::Bad("it holds images that it does not need".to_owned())),
        }
    }
}

fn commit(name: &str, value: &Value, who: &Principal) -> Result<Commit, Error> {
    let commit: Commit = described("commit", value)?;
    check_id("commit", "cm-", &commit.id, name)?;
    check_root(&commit.root)?;
    check::labels(&commit.labels)?;
    check::env(&commit.env)?;
    check_text("message", commit.message.as_deref().unwrap_or(""), MESSAGE_MAX)?;
    check_text("author", &commit.author, AUTHOR_MAX)?;
    check_text("sandbox", &commit.sandbox, TEXT_MAX)?;
    check_text("sandbox_name", &commit.sandbox_name, TEXT_MAX)?;
    let odd = |id: &String| !is_id("cm-", id);
    if commit.ancestors.len() > ANCESTORS_MAX || commit.ancestors.iter().any(odd) {
        return Err(wrong("commit", "its ancestors are no commits, or too many"));
    }
    check_volumes(&commit.volumes)?;
    Ok(Commit {
        owner: who.name().to_owned(),
        // Their content came along. None of them is a volume of this node, whatever its id.
        volumes: volumes::snapshots(&commit.volumes),
        stored: None,
        machine: None,
        ancestor: None,
        branch: None,
        failure: None,
        ..commit
    })
}

fn template(name: &str, value: &Value, who: &Principal) -> Result<Template, Error> {
    let template: Template = described("template", value)?;
    check_id("template", "tmpl-", &template.id, name)?;
    check_root(&template.root())?;
    check::name(&template.name)?;
    check::env(&template.env)?;
    Ok(Template {
        owner: who.name().to_owned(),
        state: TemplateState::Building,
        reason: None,
        size_bytes: 0,
        log: String::new(),
        machine: None,
        ..template
    })
}

fn described<T: serde::de::DeserializeOwned>(what: &str, value: &Value) -> Result<T, Error> {
    serde_json::from_value(value.clone())
        .map_err(|error| wrong(what, &format!("its description makes no sense: {error}")))
}

fn wrong(what: &str, why: &str) -> Error {
    Error::Bad(format!("this {what} is not taken: {why}"))
}

fn is_id(prefix: &str, id: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.strip_prefix(prefix).is_some_and(|rest| rest.len() == ID_DIGITS && rest.bytes().all(hex))
}

fn check_id(what: &str, prefix: &str, id: &str, name: &str) -> Result<(), Error> {
    match id == name && is_id(prefix, id) {
        true => Ok(()),
        false => Err(wrong(what, "its id is none, or not its name")),
    }
}

fn check_root(root: &Root) -> Result<(), Error> {
    let shape = root.shape;
    check::shape(Some(shape.vcpus), Some(shape.memory_mib), Some(shape.disk_mib))?;
    if !is_digest(&root.image) || !is_digest(&root.data) {
        let why =
            "it does not say which image and disk it is over; make it again with this version";
        return Err(wrong("state", why));
    }
    check_text("template", &root.template, TEXT_MAX)?;
    check_text("template_id", &root.template_id, TEXT_MAX)?;
    check_text("user", root.user.as_deref().unwrap_or(""), TEXT_MAX)?;
    check_foreign(&root.layers)?;
    root.workdir.as_deref().map_or(Ok(()), |path| check::path("workdir", path))
}

/// Volumes are copies in the state itself; what else they are called must be harmless.
fn check_volumes(volumes: &[Attachment]) -> Result<(), Error> {
    if volumes.len() > usize::from(SLOTS) {
        return Err(wrong("commit", "it has too many volumes"));
    }
    for volume in volumes {
        check_text("volume", &volume.volume, TEXT_MAX)?;
        check_text("volume", &volume.name, TEXT_MAX)?;
        check::path("volume", &volume.path)?;
        if volume.mode != VolumeMode::Snapshot || volume.changing || volume.slot >= SLOTS {
            return Err(wrong("commit", "a volume of it is no copy"));
        }
    }
    Ok(())
}

fn check_text(what: &str, text: &str, most: usize) -> Result<(), Error> {
    match text.len() <= most && !text.contains('\0') {
        true => Ok(()),
        false => Err(Error::Bad(format!("{what}: at most {most} bytes, without NUL"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value() -> Value {
        json!({
            "id": "cm-0123456789abcdef", "owner": "somebody", "message": "m", "author": "a", "labels": {},
            "ancestors": ["cm-00000000000000ff"], "sandbox": "sbx-1", "sandbox_name": "box",
            "root": {
                "template": "base", "template_id": "base", "image": "a".repeat(64), "data": "b".repeat(64),
                "shape": { "vcpus": 1, "memory_mib": 512, "disk_mib": 4096 }, "user": null, "workdir": null, "layers": [],
            },
            "env": { "A": "b" }, "line": { "began_at_ms": 0, "past": [], "here": "x" }, "created_at_ms": 7,
            "kept_us": 8, "stored": null, "machine": "1/2.sock", "ancestor": "ff", "branch": "main", "volumes": [],
        })
    }

    fn read(value: &Value) -> Result<Subject, Error> {
        let name = value["id"].as_str().unwrap_or("");
        Subject::read("commit", name, value, &Principal::new("me"))
    }

    #[test]
    fn what_is_only_true_elsewhere_is_forgotten() {
        let Subject::Commit(commit) = read(&value()).unwrap() else { panic!("no commit") };
        assert_eq!((commit.owner.as_str(), commit.branch, commit.machine), ("me", None, None));
        assert_eq!((commit.ancestor, commit.created_at_ms), (None, 7));
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let volume = |mode: &str, path: &str| json!([{ "volume": "vol-1", "name": "v", "path": path, "slot": 0, "mode": mode, "attached_at_ms": 1 }]);
        let layer = json!([{ "from": "template", "allow": [{ "to": "a b" }] }]);
        let wrong: [(&str, Value); 18] = [
            ("/root/layers", layer),
            ("/volumes", volume("read_write", "/v")),
            ("/volumes", volume("read_only", "/v")),
            ("/volumes", volume("snapshot", "v")),
            ("/id", json!("cm-../../x")),
            ("/id", json!("sbx-123456789abcdef")),
            ("/ancestors", json!(["x"])),
            ("/ancestors", json!(vec!["cm-00000000000000ff"; 1001])),
            ("/root/image", json!("")),
            ("/root/image", json!("../../etc/passwd")),
            ("/root/data", json!("B".repeat(64))),
            ("/root/shape/vcpus", json!(99)),
            ("/root/shape/memory_mib", json!(1 << 30)),
            ("/root/workdir", json!("relative")),
            ("/env", json!({ "A=": "x" })),
            ("/labels", json!({ "a b": "x" })),
            ("/message", json!("x".repeat(5000))),
            ("/author", json!(7)),
        ];
        for (place, bad) in wrong {
            let mut value = value();
            *value.pointer_mut(place).unwrap() = bad.clone();
            assert!(matches!(read(&value), Err(Error::Bad(_))), "{place} {bad}");
        }
        let me = Principal::new("me");
        assert!(Subject::read("sandbox", "sbx-1", &json!({}), &me).is_err());
        assert!(Subject::read("commit", "cm-ffffffffffffffff", &value(), &me).is_err());
    }
}
