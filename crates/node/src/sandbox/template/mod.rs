//! Templates that were built: machines in files, kept warm from their first use on.
//!
//! ```text
//!   (nothing) ──▶ Building ──▶ Ready ──▶ (deleted, or replaced by a new one of its name)
//!                     │          │
//!                     └──▶ Failed ◀┘  its files are damaged, or of another processor
//! ```
//!
//! A template that is ready has a directory of its own and, once it was used, a machine that never runs;
//! a create is a fork of that machine. The directory is written before the row says `Ready` and removed
//! after the row is gone, so a crash leaves only what the next start removes. Sandboxes need neither
//! the row nor the directory nor the machine of their template: they go on when it is deleted.

mod build;
pub(super) use build::TEMPLATES_MAX;
mod log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramet_proto::api::network::Layer;
use ramet_proto::api::{self, TemplateState, TreeKind, TreeNode};
use ramet_proto::control::Code;
use ramet_proto::needs::Needs;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use log::Log;

use super::Service;
use super::durable::vault::tenant;
use super::error::Error;
use super::images::blocking;
use super::line::Line;
use super::record::{Phase, Root};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::host::{self, MachineId, Saved, Shape};

/// How long a create waits until somebody else has made the template warm.
const WARM_TIME: Duration = Duration::from_secs(300);
/// Longest wait for a build in one request.
const WAIT_MAX_S: u64 = 600;

/// What is kept of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Principal.
    pub owner: String,
    /// Whether it can be used.
    pub state: TemplateState,
    /// Why it cannot.
    pub reason: Option<String>,
    /// How large its machine is.
    pub shape: Shape,
    /// Digest of the image below it.
    pub image: String,
    /// Digest of its empty disk, if that is not this node's own.
    #[serde(default)]
    pub data: String,
    /// What its machine needs of a host.
    #[serde(default)]
    pub needs: Option<Needs>,
    /// What it was built from, without the content of files.
    pub recipe: api::BuildTemplate,
    /// Stands for all that it was built from; empty if it came from a sandbox.
    pub digest: String,
    /// Environment of its sandboxes.
    pub env: BTreeMap<String, String>,
    /// Bytes on the disk.
    pub size_bytes: u64,
    /// When its making began.
    pub created_at_ms: u64,
    /// How long that took.
    pub build_ms: u64,
    /// The end of its log.
    pub log: String,
    /// The machine that never runs, once it is warm.
    pub machine: Option<MachineId>,
    /// Where its state comes from.
    #[serde(default)]
    pub line: Line,
    /// What its sandboxes reach at most.
    #[serde(default)]
    pub layers: Vec<Layer>,
}

impl Template {
    /// What the lines of its sandboxes begin with.
    pub fn root(&self) -> Root {
        Root {
            template: self.name.clone(),
            template_id: self.id.clone(),
            image: self.image.clone(),
            data: self.data.clone(),
            shape: self.shape,
            user: self.recipe.user.clone(),
            workdir: self.recipe.workdir.clone(),
            layers: self.layers.clone(),
        }
    }

    /// Whether an image must stay for it.
    pub fn needs(&self, digest: &str) -> bool {
        (self.image == digest || self.data == digest) && self.state != TemplateState::Failed
    }
}

/// What belongs to a template and is not written down.
#[derive(Debug, Default)]
pub struct Work {
    /// Held while its machine is made.
    warming: tokio::sync::Mutex<()>,
    /// What its commands have written.
    pub log: Log,
    /// Ends its build.
    cancel: CancellationToken,
    /// True when it is no longer being built.
    settled: watch::Sender<bool>,
}

/// All templates.
#[derive(Debug, Default)]
pub struct Shelf {
    entries: Mutex<BTreeMap<String, (Template, Arc<Work>)>>,
    /// Held while a build begins, so that no two begin for one name.
    beginning: Mutex<()>,
}

impl Shelf {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, (Template, Arc<Work>)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every template, oldest first.
    pub fn all(&self) -> Vec<Template> {
        let mut all: Vec<_> =
            self.entries().values().map(|(template, _)| template.clone()).collect();
        all.sort_by_key(|template| template.created_at_ms);
        all
    }

    /// Takes one in, or changes it.
    pub fn put(&self, template: Template) -> Arc<Work> {
        let mut entries = self.entries();
        let work = entries.get(&template.id).map(|(_, work)| work.clone()).unwrap_or_default();
        work.settled.send_replace(template.state != TemplateState::Building);
        entries.insert(template.id.clone(), (template, work.clone()));
        work
    }

    fn get(&self, id: &str) -> Option<(Template, Arc<Work>)> {
        self.entries().get(id).cloned()
    }

    fn remove(&self, id: &str) -> Option<(Template, Arc<Work>)> {
        self.entries().remove(id)
    }

    /// Those of an owner with this name or id, oldest first.
    fn named(&self, who: &Principal, key: &str) -> Vec<Template> {
        let mut all = self.all();
        all.retain(|one| one.owner == who.name() && (one.name == key || one.id == key));
        all
    }

    /// The latest one that is meant.
    fn find(&self, who: &Principal, key: &str) -> Result<Template, Error> {
        self.named(who, key).pop().ok_or_else(|| not_found(key))
    }

    /// The one to create sandboxes from.
    fn usable(&self, who: &Principal, key: &str) -> Result<Template, Error> {
        let mut named = self.named(who, key);
        if let Some(at) = named.iter().rposition(|one| one.state == TemplateState::Ready) {
            return Ok(named.swap_remove(at));
        }
        let latest = named.pop().ok_or_else(|| not_found(key))?;
        match latest.state {
            TemplateState::Building => {
                Err(Error::NotReady(format!("the template {} is being built", latest.name)))
            }
            _ => Err(Error::WrongState(format!(
                "the template {} has failed: {}; build it again",
                latest.name,
                latest.reason.unwrap_or_default()
            ))),
        }
    }

    /// Names of a principal's templates on an image.
    pub fn names_on(&self, who: &Principal, digest: &str) -> Vec<String> {
        let on = |one: &Template| one.owner == who.name() && one.image == digest;
        let mut names: Vec<_> =
            self.all().into_iter().filter(on).map(|template| template.name).collect();
        names.dedup();
        names
    }

    /// The template that has this machine.
    pub fn holder(&self, machine: &MachineId) -> Option<Template> {
        self.all().into_iter().find(|template| template.machine.as_ref() == Some(machine))
    }
}

fn not_found(key: &str) -> Error {
    Error::NotFound { what: "template", key: key.to_owned() }
}

impl Service {
    /// Writes a template down, and then changes it.
    pub(super) fn put_template(&self, template: Template) -> Result<Arc<Work>, Error> {
        self.store.put_template(&template, &[])?;
        Ok(self.shelf.put(template))
    }

    /// The template that a sandbox is to be created from.
    pub(super) fn usable_template(&self, who: &Principal, key: &str) -> Result<Template, Error> {
        self.shelf.usable(who, key)
    }

    /// The machine and the line of the template with this id, if it is warm.
    pub(super) fn template_found(&self, who: &Principal, id: &str) -> Option<(MachineId, Line)> {
        let own = |(template, _): &(Template, Arc<Work>)| template.owner == who.name();
        match self.shelf.get(id).filter(own) {
            Some((template, _)) => Some((template.machine?, template.line)),
            None => self.boots.found(id, self.library.base()),
        }
    }

    /// The machine of a template; makes it of the template's files if need be.
    pub(super) async fn template_machine(&self, id: &str) -> Result<MachineId, Error> {
        let (_, work) = self.shelf.get(id).ok_or_else(|| not_found(id))?;
        let warming = timeout(WARM_TIME, work.warming.lock()).await;
        let _warming =
            warming.map_err(|_| Error::NotReady(format!("the template {id} is not warm yet")))?;
        // Looked at again: somebody else may have made it, or deleted the template.
        let (template, _) = self.shelf.get(id).ok_or_else(|| not_found(id))?;
        if let Some(machine) = template.machine {
            return Ok(machine);
        }
        let machine = match self.restore_template(&template).await {
            Ok(machine) => machine,
            Err(error) => return Err(self.unusable(template, error)),
        };
        let warm = Template { machine: Some(machine.clone()), ..template };
        if let Err(error) = self.put_template(warm) {
            self.kill(machine).await;
            return Err(error);
        }
        self.watch(&machine).await;
        Ok(machine)
    }

    async fn restore_template(&self, template: &Template) -> Result<MachineId, Error> {
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        let directory = self.library.template(&template.id);
        let origin = self.origin_over(&tenant(&template.owner)?, &template.root()).await?;
        let saved = Saved { directory, origin, volumes: Vec::new(), pager: None };
        let stop = self.stop.clone();
        Ok(self.host.call(move |engine| engine.restore(&saved, None, &stop)).await?)
    }

    /// A template whose files are no good has failed for good; whatever else happens may pass.
    fn unusable(&self, template: Template, error: Error) -> Error {
        let message = match error {
            Error::Incompatible(message) => message,
            Error::Host(host::Error::Refused { code: Code::Damaged | Code::BadFile, message }) => {
                message
            }
            passing => return passing,
        };
        let text =
            format!("the template {} cannot be used: {message}; build it again", template.name);
        let failed = Template { state: TemplateState::Failed, reason: Some(message), ..template };
        match self.put_template(failed) {
            Ok(_) => Error::WrongState(text),
            Err(error) => error,
        }
    }

    /// A template's machine has ended by itself; its files are still there.
    pub(super) fn template_cooled(&self, machine: &MachineId) {
        let Some(template) = self.shelf.holder(machine) else { return };
        tracing::error!(id = template.id, "a template's machine ended");
        if let Err(error) = self.put_template(Template { machine: None, ..template }) {
            tracing::error!(?error, "a template's state could not be written down");
        }
    }

    /// Ends the machines of all templates; they are made again when they are needed.
    pub(super) async fn cool_templates(&self) {
        for template in self.shelf.all() {
            let Some(machine) = template.machine.clone() else { continue };
            match self.put_template(Template { machine: None, ..template }) {
                Ok(_) => self.kill(machine).await,
                Err(error) => {
                    tracing::error!(?error, "a template's state could not be written down")
                }
            }
        }
    }

    /// All that the caller can use, and the builds under way.
    pub fn list_templates(&self, who: &Principal) -> api::TemplateList {
        let counts = self.sandboxes_by_template();
        let mut templates = self.boots.shown(self.library.base());
        for template in &mut templates {
            template.sandboxes = counts.get(&template.id).copied().unwrap_or(0);
        }
        let mut own = self.shelf.all();
        own.retain(|template| template.owner == who.name());
        let own = own
            .iter()
            .map(|one| api::Template { log: String::new(), ..self.shown_template(one, &counts) });
        templates.extend(own);
        api::TemplateList { templates }
    }

    /// One of them. Waits until its build is over, at most for a time.
    pub async fn get_template(
        &self,
        who: &Principal,
        key: &str,
        query: &api::TemplateQuery,
    ) -> Result<api::Template, Error> {
        let wait_s = query.wait_s.unwrap_or(0);
        if wait_s > WAIT_MAX_S {
            return Err(Error::Bad(format!("wait_s: at most {WAIT_MAX_S}, not {wait_s}")));
        }
        let template = match self.shelf.find(who, key) {
            Ok(template) => template,
            Err(error) => {
                let built_in = self.list_templates(who).templates.into_iter();
                let mut built_in = built_in.filter(|one| one.built_in);
                return built_in.find(|one| one.name == key || one.id == key).ok_or(error);
            }
        };
        if wait_s > 0 && template.state == TemplateState::Building {
            self.await_build(&template.id, Duration::from_secs(wait_s)).await;
        }
        let (template, _) = self.shelf.get(&template.id).ok_or_else(|| not_found(key))?;
        Ok(self.shown_template(&template, &self.sandboxes_by_template()))
    }

    async fn await_build(&self, id: &str, time: Duration) {
        let Some((_, work)) = self.shelf.get(id) else { return };
        let mut settled = work.settled.subscribe();
        tokio::select! {
            // Whether the time was over shows in the state.
            _over = timeout(time, settled.wait_for(|settled| *settled)) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// The log of a template, and how to learn that no more comes.
    pub fn template_log(&self, who: &Principal, key: &str) -> Result<(String, Arc<Work>), Error> {
        let template = self.shelf.find(who, key)?;
        let (template, work) = self.shelf.get(&template.id).ok_or_else(|| not_found(key))?;
        // The log of an earlier run of the node is in the row.
        if work.log.tail().is_empty() && !template.log.is_empty() {
            work.log.write(template.log.as_bytes());
        }
        Ok((template.id, work))
    }

    /// Deletes a template: all of a name, or the one with an id. A build under way ends.
    pub async fn delete_template(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let named = self.shelf.named(who, key);
        if named.is_empty() {
            return match self.get_template(who, key, &api::TemplateQuery::default()).await {
                Ok(_) => Err(Error::Bad(format!("the template {key} is the node's own"))),
                Err(error) => Err(error),
            };
        }
        let service = self.clone();
        self.operate(who, "template_delete", key, async move {
            for template in named {
                service.drop_template(&template.id).await?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets a template and removes what it has.
    pub(super) async fn drop_template(&self, id: &str) -> Result<(), Error> {
        let Some((_, work)) = self.shelf.get(id) else { return Ok(()) };
        work.cancel.cancel();
        // Nobody makes its machine from now on.
        let warming = timeout(WARM_TIME, work.warming.lock()).await;
        let _warming = warming.map_err(|_| super::busy(id))?;
        self.store.forget_template(id)?;
        let Some((template, work)) = self.shelf.remove(id) else { return Ok(()) };
        work.settled.send_replace(true);
        self.clear_template(template).await;
        Ok(())
    }

    /// Removes what a template that is forgotten had. A build under way removes its own.
    async fn clear_template(&self, template: Template) {
        if let Some(machine) = template.machine.clone() {
            self.kill(machine).await;
        }
        if template.state != TemplateState::Building {
            self.remove_template_files(&template.id).await;
        }
        self.forget_template_state(&template).await;
        self.drop_image_if_unused(&template.image).await;
    }

    async fn remove_template_files(&self, id: &str) {
        let (library, name) = (self.library.clone(), id.to_owned());
        if let Err(error) = blocking(move || Ok(library.remove_template(&name)?)).await {
            tracing::error!(?error, id, "a template's files could not be removed");
        }
    }

    /// Live sandboxes of each template.
    fn sandboxes_by_template(&self) -> BTreeMap<String, u32> {
        let registry = self.registry();
        let mut counts = BTreeMap::new();
        for record in registry.all().filter(|record| record.phase != Phase::Gone) {
            *counts.entry(record.template_id.clone()).or_insert(0) += 1;
        }
        counts
    }

    /// What a client sees.
    fn shown_template(&self, template: &Template, counts: &BTreeMap<String, u32>) -> api::Template {
        let building = template.state == TemplateState::Building;
        let log = match self.shelf.get(&template.id).filter(|_| building) {
            Some((_, work)) => work.log.tail(),
            None => template.log.clone(),
        };
        api::Template {
            id: template.id.clone(),
            name: template.name.clone(),
            built_in: false,
            state: template.state,
            reason: template.reason.clone(),
            warm: template.machine.is_some(),
            vcpus: template.shape.vcpus,
            memory_mib: template.shape.memory_mib,
            disk_mib: template.shape.disk_mib,
            image_digest: Some(template.image.clone()),
            recipe: Some(template.recipe.clone()),
            env: template.env.clone(),
            sandboxes: counts.get(&template.id).copied().unwrap_or(0),
            size_bytes: template.size_bytes,
            created_at_ms: template.created_at_ms,
            build_ms: match building {
                true => now_ms().saturating_sub(template.created_at_ms),
                false => template.build_ms,
            },
            log,
        }
    }

    /// A principal's templates that are ready, as nodes of the tree.
    pub(super) fn template_nodes(&self, who: &Principal) -> Vec<TreeNode> {
        let mut all = self.shelf.all();
        all.retain(|one| one.owner == who.name() && one.state == TemplateState::Ready);
        let node = |template: Template| TreeNode {
            id: template.id,
            kind: TreeKind::Template,
            name: template.name,
            parent: None,
            state: None,
            created_at_ms: template.created_at_ms,
            labels: BTreeMap::new(),
        };
        all.into_iter().map(node).collect()
    }
}
