//! Warm machines to create sandboxes from, one for each shape that was asked for.
//!
//! A template is a checkpoint of a machine that was booted and became ready: it never runs, and a create is
//! a fork of it. The first request for a shape boots it, and everybody who wants that shape waits for
//! the same boot.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramet_proto::agent::Identity;
use ramet_proto::api::{self, BASE_TEMPLATE, TemplateState, TreeKind, TreeNode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Service;
use super::error::Error;
use super::line::Line;
use crate::clock::now_ms;
use crate::host::{MachineId, Shape};

/// Most shapes.
const SHAPES_MAX: usize = 16;
/// How long a create waits for a template to get warm.
const PATIENCE: Duration = Duration::from_secs(300);
/// Memory that a boot takes, unless the machine is smaller.
const BOOT_MIB: u64 = 256;

/// Id of the template of a shape.
pub fn id(shape: Shape) -> String {
    format!("tmpl-{BASE_TEMPLATE}-{shape}")
}

/// The line of the template of a shape that was made then.
fn line(shape: Shape, made_at_ms: u64) -> Line {
    Line::root(format!("{}-{made_at_ms}", id(shape)), made_at_ms)
}

#[derive(Debug, Clone)]
enum Slot {
    Warming,
    Warm { machine: MachineId, made_at_ms: u64 },
    Failed(String),
}

/// All templates.
#[derive(Debug, Default)]
pub struct Templates {
    slots: Mutex<BTreeMap<Shape, watch::Receiver<Slot>>>,
}

impl Templates {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<Shape, watch::Receiver<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of an earlier run of the node.
    pub fn put(&self, shape: Shape, machine: MachineId, made_at_ms: u64) {
        let (_, slot) = watch::channel(Slot::Warm { machine, made_at_ms });
        self.slots().insert(shape, slot);
    }

    /// Forgets the template that had this machine.
    pub fn remove(&self, machine: &MachineId) -> Option<Shape> {
        let mut slots = self.slots();
        let has = |slot: &watch::Receiver<Slot>| matches!(&*slot.borrow(), Slot::Warm { machine: its, .. } if its == machine);
        let shape = slots.iter().find(|(_, slot)| has(slot)).map(|(shape, _)| *shape)?;
        slots.remove(&shape);
        Some(shape)
    }

    /// All that are warm.
    fn warm(&self) -> Vec<(Shape, MachineId)> {
        let slots = self.slots();
        let warm = slots.iter().filter_map(|(shape, slot)| match &*slot.borrow() {
            Slot::Warm { machine, .. } => Some((*shape, machine.clone())),
            _ => None,
        });
        warm.collect()
    }

    /// Whether this shape is warm.
    pub fn is_warm(&self, shape: Shape) -> bool {
        self.slots().get(&shape).is_some_and(|slot| matches!(*slot.borrow(), Slot::Warm { .. }))
    }

    /// The machine and the line of the template with this id, if it is warm.
    pub fn found(&self, key: &str) -> Option<(MachineId, Line)> {
        let slots = self.slots();
        let (shape, slot) = slots.iter().find(|(shape, _)| id(**shape) == key)?;
        match &*slot.borrow() {
            Slot::Warm { machine, made_at_ms } => {
                Some((machine.clone(), line(*shape, *made_at_ms)))
            }
            _ => None,
        }
    }

    /// What clients see.
    pub fn shown(&self) -> Vec<api::Template> {
        let slots = self.slots();
        let shown = slots.iter().map(|(shape, slot)| {
            let (state, reason) = match &*slot.borrow() {
                Slot::Warming => (TemplateState::Warming, None),
                Slot::Warm { .. } => (TemplateState::Warm, None),
                Slot::Failed(reason) => (TemplateState::Failed, Some(reason.clone())),
            };
            api::Template {
                id: id(*shape),
                name: BASE_TEMPLATE.to_owned(),
                vcpus: shape.vcpus,
                memory_mib: shape.memory_mib,
                state,
                reason,
            }
        });
        shown.collect()
    }

    /// Those that are warm, as nodes of the tree.
    pub fn nodes(&self) -> Vec<TreeNode> {
        let slots = self.slots();
        let nodes = slots.iter().filter_map(|(shape, slot)| match &*slot.borrow() {
            Slot::Warm { made_at_ms, .. } => Some(TreeNode {
                id: id(*shape),
                kind: TreeKind::Template,
                name: format!("{BASE_TEMPLATE} {shape}"),
                parent: None,
                state: None,
                created_at_ms: *made_at_ms,
                labels: BTreeMap::new(),
            }),
            _ => None,
        });
        nodes.collect()
    }
}

impl Service {
    /// The machine of the template of this shape; boots it if need be.
    pub(super) async fn template(&self, shape: Shape) -> Result<MachineId, Error> {
        let mut slot = self.warming(shape)?;
        let settled = slot.wait_for(|slot| !matches!(slot, Slot::Warming));
        let settled = match timeout(PATIENCE, settled).await {
            Ok(Ok(settled)) => settled.clone(),
            Ok(Err(_)) => return Err(Error::NotReady("the template's boot broke off".to_owned())),
            Err(_) => {
                return Err(Error::NotReady(format!("the template {} is not warm yet", id(shape))));
            }
        };
        match settled {
            Slot::Warm { machine, .. } => Ok(machine),
            Slot::Failed(reason) => {
                Err(Error::NotReady(format!("the template {} did not boot: {reason}", id(shape))))
            }
            Slot::Warming => Err(Error::Internal("a template that is settled and not".to_owned())),
        }
    }

    /// Begins to make a template warm, unless somebody has.
    fn warming(&self, shape: Shape) -> Result<watch::Receiver<Slot>, Error> {
        let mut slots = self.templates.slots();
        let known = slots.get(&shape).filter(|slot| !matches!(*slot.borrow(), Slot::Failed(_)));
        if let Some(slot) = known {
            return Ok(slot.clone());
        }
        if slots.len() >= SHAPES_MAX && !slots.contains_key(&shape) {
            let shapes: Vec<String> = slots.keys().map(Shape::to_string).collect();
            return Err(Error::TooMany(format!(
                "this node has {SHAPES_MAX} shapes already; use one of {}",
                shapes.join(", ")
            )));
        }
        let (told, slot) = watch::channel(Slot::Warming);
        slots.insert(shape, slot.clone());
        let service = self.clone();
        self.tasks.spawn(async move {
            let began = std::time::Instant::now();
            let settled = match service.warm(shape).await {
                Ok(machine) => Slot::Warm { machine, made_at_ms: now_ms() },
                Err(error) => Slot::Failed(error.to_string()),
            };
            tracing::info!(%shape, took = ?began.elapsed(), ?settled, "template");
            drop(told.send(settled));
        });
        Ok(slot)
    }

    /// Ends all templates: nobody needs them any more.
    pub(super) async fn end_templates(&self) {
        for (shape, machine) in self.templates.warm() {
            match self.store.remove_template(shape) {
                Ok(()) => self.kill(machine).await,
                Err(error) => tracing::error!(?error, "a template could not be forgotten"),
            }
        }
    }

    async fn warm(&self, shape: Shape) -> Result<MachineId, Error> {
        let _admitted = self.admit(u64::from(shape.memory_mib).min(BOOT_MIB)).await?;
        let name = id(shape);
        let identity =
            Identity { hostname: "template".to_owned(), instance: name, ..Identity::default() };
        let booted = self.host.call(move |engine| engine.boot(shape, identity)).await?;
        let source = booted.clone();
        let frozen = self.host.call(move |engine| engine.checkpoint(&source)).await;
        self.kill(booted).await;
        let frozen = frozen?;
        self.store.add_template(shape, &frozen, now_ms())?;
        self.watch(&frozen).await;
        Ok(frozen)
    }
}
