//! Templates that SDKs build: what is kept of them, as notes of the service.
//!
//! A template of E2B has a name, tags, and builds; a tag points to a build, and a build that succeeded is a template of the node with a
//! name of its own. A build without tags, after another took them over, is removed with its template.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{Control, ENVD_VERSION, time};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::dialects::e2b::Fault;
use crate::random;

/// Kind of the notes.
const KIND: &str = "e2b.template";
/// What the names of the node's templates that builds are begin with.
pub const INTERNAL: &str = "e2b-";
/// Most builds that are remembered of a template.
const BUILDS_MAX: usize = 100;

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It was announced.
    Waiting,
    /// It is under way.
    Building,
    /// It can be used.
    Ready,
    /// It failed.
    Error,
}

/// A build.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Build {
    /// A UUID.
    pub id: String,
    /// How far it is.
    pub status: Status,
    /// Why it failed, and at which step.
    pub reason: Option<(String, Option<String>)>,
    /// Tags that it gets when it is ready.
    pub tags: Vec<String>,
    /// What was asked for.
    pub vcpus: Option<u8>,
    /// Likewise.
    pub memory_mib: Option<u32>,
    /// Likewise.
    pub disk_mib: Option<u32>,
    /// The node's template that it is.
    pub template: Option<String>,
    /// When it was announced.
    pub created_at_ms: u64,
    /// When it was over.
    pub finished_at_ms: Option<u64>,
}

/// A tag.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tag {
    /// The build that it points to.
    pub build: String,
    /// Since when.
    pub at_ms: u64,
}

/// A template.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Known {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// When it was first announced.
    pub created_at_ms: u64,
    /// When a build was last over.
    pub updated_at_ms: u64,
    /// Oldest first.
    pub builds: Vec<Build>,
    /// By name.
    pub tags: BTreeMap<String, Tag>,
}

impl Known {
    /// Whether this name or id is its own.
    pub fn is(&self, name: &str) -> bool {
        self.id == name || self.name == name
    }

    /// The build with this id.
    pub fn build(&self, id: &str) -> Option<&Build> {
        self.builds.iter().find(|build| build.id == id)
    }

    /// The build that a tag points to.
    pub fn tagged(&self, tag: &str) -> Option<&Build> {
        self.build(&self.tags.get(tag)?.build)
    }

    /// The build that speaks for it: the latest that succeeded, or the latest.
    fn latest(&self) -> Option<&Build> {
        let mut newest = self.builds.iter().rev();
        newest.find(|build| build.status == Status::Ready).or(self.builds.last())
    }

    /// Lets tags point to a build.
    pub fn point(&mut self, tags: &[String], build: &str) {
        for tag in tags {
            let target = Tag { build: build.to_owned(), at_ms: now_ms() };
            self.tags.insert(tag.clone(), target);
        }
    }

    /// Forgets builds that no tag points to any more; the node's templates that they were.
    pub fn prune(&mut self) -> Vec<String> {
        let tagged = |build: &Build| self.tags.values().any(|tag| tag.build == build.id);
        let (keep, drop): (Vec<Build>, Vec<Build>) = std::mem::take(&mut self.builds)
            .into_iter()
            .partition(|build| build.status != Status::Ready || tagged(build));
        let excess = keep.len().saturating_sub(BUILDS_MAX);
        self.builds = keep.into_iter().skip(excess).collect();
        drop.into_iter().filter_map(|build| build.template).collect()
    }

    /// `Template`.
    pub fn shown(&self) -> Value {
        let build = self.latest();
        let number = |number: Option<u32>| number.unwrap_or(0);
        json!({
            "templateID": self.id,
            "buildID": build.map_or("", |build| &build.id),
            "cpuCount": build.and_then(|build| build.vcpus).unwrap_or(1),
            "memoryMB": number(build.and_then(|build| build.memory_mib)),
            "diskSizeMB": number(build.and_then(|build| build.disk_mib)),
            "public": false,
            "aliases": [self.name],
            "names": [self.name],
            "createdAt": time::of_ms(self.created_at_ms),
            "updatedAt": time::of_ms(self.updated_at_ms),
            "createdBy": null,
            "lastSpawnedAt": null,
            "spawnCount": 0,
            "buildCount": self.builds.len(),
            "envdVersion": ENVD_VERSION,
            "buildStatus": build.map_or(Status::Waiting, |build| build.status),
            "builds": self.builds.iter().rev().map(shown_build).collect::<Vec<_>>(),
        })
    }
}

fn shown_build(build: &Build) -> Value {
    let updated = build.finished_at_ms.unwrap_or(build.created_at_ms);
    let mut shown = json!({
        "buildID": build.id,
        "status": build.status,
        "createdAt": time::of_ms(build.created_at_ms),
        "updatedAt": time::of_ms(updated),
        "cpuCount": build.vcpus.unwrap_or(1),
        "memoryMB": build.memory_mib.unwrap_or(0),
        "diskSizeMB": build.disk_mib.unwrap_or(0),
        "envdVersion": ENVD_VERSION,
    });
    if let Some(finished) = build.finished_at_ms {
        shown["finishedAt"] = json!(time::of_ms(finished));
    }
    shown
}

fn failed(error: &dyn std::error::Error) -> Fault {
    tracing::error!(?error, "what is known of a template cannot be used");
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "the node failed; its log says more")
}

/// The caller's templates.
pub fn all(control: &Control, who: &Principal) -> Result<Vec<Known>, Fault> {
    let notes = control.service().notes(who, KIND)?;
    notes.iter().map(|(_, text)| serde_json::from_str(text).map_err(|e| failed(&e))).collect()
}

/// The caller's template with this name or id.
pub fn find(control: &Control, who: &Principal, name: &str) -> Result<Known, Fault> {
    let found = all(control, who)?.into_iter().find(|one| one.is(name));
    found.ok_or_else(|| {
        Fault::new(StatusCode::NOT_FOUND, format!("the template {name:?} was not found"))
    })
}

/// Changes what is kept, or makes it; nothing else changes it meanwhile.
pub fn change<T>(
    control: &Control,
    who: &Principal,
    name: &str,
    make: bool,
    change: impl FnOnce(&mut Known) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let _changing = control.builds.changing.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = match find(control, who, name) {
        Err(fault) if fault.status == StatusCode::NOT_FOUND && make => fresh(name)?,
        found => found?,
    };
    let done = change(&mut known)?;
    let text = serde_json::to_string(&known).map_err(|error| failed(&error))?;
    control.service().put_note(who, KIND, &known.id, &text)?;
    Ok(done)
}

fn fresh(name: &str) -> Result<Known, Fault> {
    let now = now_ms();
    Ok(Known {
        id: random::hex(10).map_err(|error| failed(&error))?,
        name: name.to_owned(),
        created_at_ms: now,
        updated_at_ms: now,
        builds: Vec::new(),
        tags: BTreeMap::new(),
    })
}

/// Forgets one.
pub fn forget(control: &Control, who: &Principal, id: &str) -> Result<(), Fault> {
    let _changing = control.builds.changing.lock().unwrap_or_else(PoisonError::into_inner);
    control.service().forget_note(who, KIND, id)?;
    Ok(())
}

/// A random UUID.
pub fn uuid() -> Result<String, Fault> {
    let digits = random::hex(16).map_err(|error| failed(&error))?;
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    Ok(format!(
        "{}-{}-4{}-a{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    ))
}
