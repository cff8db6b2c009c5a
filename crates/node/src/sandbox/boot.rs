//! Warm machines that were booted from an image and nothing else, one for each image and shape that was
//! asked for.
//!
//! Such a machine is a checkpoint of one that was booted and became ready: it never runs, and a create is
//! a fork of it. The first request boots it, and everybody who wants the same waits for
//! the same boot. Those of the base image are the template `base`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramet_proto::agent::{Exec, Identity, Reply, Request};
use ramet_proto::api::{self, BASE_TEMPLATE, TemplateState, TreeKind, TreeNode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Service;
use super::error::Error;
use super::line::Line;
use crate::clock::now_ms;
use crate::host::agent::Frame;
use crate::host::{self, MachineId, Origin, Shape};

/// Most machines of this kind.
const BOOTS_MAX: usize = 16;
/// How long a create waits for a machine to get warm.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a machine may practise.
const PRACTICE: Duration = Duration::from_secs(30);
/// Memory that a boot takes, unless the machine is smaller.
const BOOT_MIB: u64 = 256;

/// What is booted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Booted {
    /// Digest of the image.
    pub image: String,
    /// How large the machine is.
    pub shape: Shape,
}

impl Booted {
    /// Id of its machine in the tree, in a node whose base image has this digest.
    pub fn id(&self, base: &str) -> String {
        let image = match self.image == base {
            true => BASE_TEMPLATE,
            false => self.image.get(..12).unwrap_or(&self.image),
        };
        format!("tmpl-{image}-{}", self.shape)
    }
}

#[derive(Debug, Clone)]
enum Slot {
    Warming,
    Warm { machine: MachineId, made_at_ms: u64 },
    Failed(String),
}

/// All of them.
#[derive(Debug, Default)]
pub struct Boots {
    slots: Mutex<BTreeMap<Booted, watch::Receiver<Slot>>>,
}

impl Boots {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<Booted, watch::Receiver<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of an earlier run of the node.
    pub fn put(&self, booted: Booted, machine: MachineId, made_at_ms: u64) {
        let (_, slot) = watch::channel(Slot::Warm { machine, made_at_ms });
        self.slots().insert(booted, slot);
    }

    /// Forgets what had this machine.
    pub fn remove(&self, machine: &MachineId) -> Option<Booted> {
        let mut slots = self.slots();
        let has = |slot: &watch::Receiver<Slot>| matches!(&*slot.borrow(), Slot::Warm { machine: its, .. } if its == machine);
        let booted = slots.iter().find(|(_, slot)| has(slot)).map(|(booted, _)| booted.clone())?;
        slots.remove(&booted);
        Some(booted)
    }

    /// Forgets those of an image, and gives their machines.
    pub fn remove_image(&self, digest: &str) -> Vec<(Booted, MachineId)> {
        let mut gone = Vec::new();
        self.slots().retain(|booted, slot| match &*slot.borrow() {
            Slot::Warm { machine, .. } if booted.image == digest => {
                gone.push((booted.clone(), machine.clone()));
                false
            }
            Slot::Failed(_) if booted.image == digest => false,
            _ => true,
        });
        gone
    }

    /// The machine and the line of the one with this id, if it is warm.
    pub fn found(&self, key: &str, base: &str) -> Option<(MachineId, Line)> {
        let slots = self.slots();
        let (_, slot) = slots.iter().find(|(booted, _)| booted.id(base) == key)?;
        match &*slot.borrow() {
            Slot::Warm { machine, made_at_ms } => {
                let line = Line::root(format!("{key}-{made_at_ms}"), *made_at_ms);
                Some((machine.clone(), line))
            }
            _ => None,
        }
    }

    /// All that are warm.
    fn warm(&self) -> Vec<(Booted, MachineId)> {
        let slots = self.slots();
        let warm = slots.iter().filter_map(|(booted, slot)| match &*slot.borrow() {
            Slot::Warm { machine, .. } => Some((booted.clone(), machine.clone())),
            _ => None,
        });
        warm.collect()
    }

    /// Whether this one is warm.
    pub fn is_warm(&self, booted: &Booted) -> bool {
        self.slots().get(booted).is_some_and(|slot| matches!(*slot.borrow(), Slot::Warm { .. }))
    }

    /// Those of the base image, as clients see them.
    pub fn shown(&self, base: &str) -> Vec<api::Template> {
        let slots = self.slots();
        let own = slots.iter().filter(|(booted, _)| booted.image == base);
        own.map(|(booted, slot)| shown(booted, &slot.borrow(), base)).collect()
    }

    /// Those that are warm, as nodes of the tree.
    pub fn nodes(&self, base: &str) -> Vec<TreeNode> {
        let slots = self.slots();
        let nodes = slots.iter().filter_map(|(booted, slot)| match &*slot.borrow() {
            Slot::Warm { made_at_ms, .. } => {
                let id = booted.id(base);
                Some(TreeNode {
                    name: id.trim_start_matches("tmpl-").replacen('-', " ", 1),
                    id,
                    kind: TreeKind::Template,
                    parent: None,
                    state: None,
                    created_at_ms: *made_at_ms,
                    labels: BTreeMap::new(),
                })
            }
            _ => None,
        });
        nodes.collect()
    }
}

fn shown(booted: &Booted, slot: &Slot, base: &str) -> api::Template {
    let (state, reason, created_at_ms) = match slot {
        Slot::Warming => (TemplateState::Building, None, 0),
        Slot::Warm { made_at_ms, .. } => (TemplateState::Ready, None, *made_at_ms),
        Slot::Failed(reason) => (TemplateState::Failed, Some(reason.clone()), 0),
    };
    api::Template {
        id: booted.id(base),
        name: BASE_TEMPLATE.to_owned(),
        built_in: true,
        state,
        reason,
        warm: state == TemplateState::Ready,
        vcpus: booted.shape.vcpus,
        memory_mib: booted.shape.memory_mib,
        disk_mib: booted.shape.disk_mib,
        image_digest: Some(booted.image.clone()),
        recipe: None,
        env: BTreeMap::new(),
        sandboxes: 0,
        size_bytes: 0,
        created_at_ms,
        build_ms: 0,
        log: String::new(),
    }
}

impl Service {
    /// What the base image is booted to.
    pub(super) fn base_boot(&self, shape: Shape) -> Booted {
        Booted { image: self.library.base().to_owned(), shape }
    }

    /// The machine that was booted from an image; boots it if need be.
    pub(super) async fn booted(&self, booted: &Booted) -> Result<MachineId, Error> {
        let id = booted.id(self.library.base());
        let mut slot = self.warming(booted)?;
        let settled = slot.wait_for(|slot| !matches!(slot, Slot::Warming));
        let settled = tokio::select! {
            settled = timeout(PATIENCE, settled) => settled,
            () = self.stop.cancelled() => return Err(host::Error::Stopping.into()),
        };
        let settled = match settled {
            Ok(Ok(settled)) => settled.clone(),
            Ok(Err(_)) => return Err(Error::NotReady("the template's boot broke off".to_owned())),
            Err(_) => return Err(Error::NotReady(format!("the template {id} is not warm yet"))),
        };
        match settled {
            Slot::Warm { machine, .. } => Ok(machine),
            Slot::Failed(reason) => {
                Err(Error::NotReady(format!("the template {id} did not boot: {reason}")))
            }
            Slot::Warming => Err(Error::Internal("a template that is settled and not".to_owned())),
        }
    }

    /// Begins to make a machine warm, unless somebody has.
    fn warming(&self, booted: &Booted) -> Result<watch::Receiver<Slot>, Error> {
        let mut slots = self.boots.slots();
        let known = slots.get(booted).filter(|slot| !matches!(*slot.borrow(), Slot::Failed(_)));
        if let Some(slot) = known {
            return Ok(slot.clone());
        }
        if slots.len() >= BOOTS_MAX && !slots.contains_key(booted) {
            let base = self.library.base();
            let ids: Vec<String> = slots.keys().map(|booted| booted.id(base)).collect();
            return Err(Error::TooMany(format!(
                "this node has {BOOTS_MAX} images and shapes booted already ({}); use one of them, or build a template",
                ids.join(", ")
            )));
        }
        let (told, slot) = watch::channel(Slot::Warming);
        slots.insert(booted.clone(), slot.clone());
        let (service, booted) = (self.clone(), booted.clone());
        self.tasks.spawn(async move {
            let began = std::time::Instant::now();
            let settled = match service.warm(&booted).await {
                Ok(machine) => Slot::Warm { machine, made_at_ms: now_ms() },
                Err(error) => Slot::Failed(error.to_string()),
            };
            tracing::info!(?booted, took = ?began.elapsed(), ?settled, "template");
            drop(told.send(settled));
        });
        Ok(slot)
    }

    /// Ends all machines of templates: nobody needs them any more. What is in files stays there.
    pub(super) async fn end_templates(&self) {
        for (booted, machine) in self.boots.warm() {
            match self.store.remove_boot(&booted) {
                Ok(()) => self.kill(machine).await,
                Err(error) => tracing::error!(?error, "a template could not be forgotten"),
            }
        }
        self.cool_templates().await;
    }

    async fn warm(&self, booted: &Booted) -> Result<MachineId, Error> {
        let shape = booted.shape;
        let _admitted = self.admit(u64::from(shape.memory_mib).min(BOOT_MIB)).await?;
        let origin = Origin { shape, root: self.library.root(&booted.image)?, data: None };
        let identity = Identity {
            hostname: "template".to_owned(),
            instance: booted.id(self.library.base()),
            ..Identity::default()
        };
        let stop = self.stop.clone();
        let source =
            self.host.call(move |engine| engine.boot(&origin, None, identity, &stop)).await?;
        self.practise(&source).await;
        let running = source.clone();
        let frozen = self.host.call(move |engine| engine.checkpoint(&running)).await;
        self.kill(source).await;
        let frozen = frozen?;
        self.store.add_boot(booted, &frozen, now_ms())?;
        self.watch(&frozen).await;
        Ok(frozen)
    }

    /// Runs the least of commands, so that what every command needs is in memory when a sandbox runs its first.
    async fn practise(&self, machine: &MachineId) {
        let argv = ["/bin/sh", "-c", "true"].map(str::to_owned).to_vec();
        let practised = async {
            let mut session = self.host.agent(machine).await?;
            session.ask(&Request::Exec(Exec { argv, ..Exec::default() })).await?;
            while !matches!(session.listener.next().await?, Frame::Reply(Reply::Exited(_))) {}
            Ok::<_, Error>(())
        };
        // An image need not have a shell.
        if let Ok(Err(error)) = timeout(PRACTICE, practised).await {
            tracing::info!(?error, "the template does without practice");
        }
    }
}
