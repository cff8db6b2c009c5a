//! Checkpoints in the store: they go there when the host's memory is needed, and come back when somebody needs them.
//!
//! ```text
//!  in memory ──▶ in memory and in the store ──▶ in the store
//!                        ▲                            │ fork, rewind, diff
//!                        └────────────────────────────┘ a stand-in
//! ```
//!
//! A checkpoint never changes, so it is written at most once. Its machine ends only while nobody uses its sandbox.

use ramet_store::{NewRoot, RootMode};

use super::vault::{state_id, tenant};
use crate::host::MachineId;
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::record::{Checkpoint, Record};
use crate::store::Change;

/// What keeps the state of a checkpoint.
pub const CHECKPOINT_ROOT: &str = "checkpoint";

impl Service {
    /// Puts checkpoints into the store, oldest first, until the host has so much memory available or none is left that could go.
    pub(in crate::sandbox) async fn make_room(&self, needed_mib: u64) -> Result<(), Error> {
        let _alone = self.spilling.lock().await;
        self.spill_until(needed_mib).await
    }

    async fn spill_until(&self, needed_mib: u64) -> Result<(), Error> {
        for id in self.checkpoints_in_memory() {
            if self.host.call(|engine| engine.memory()).await?.available_mib >= needed_mib {
                return Ok(());
            }
            if let Err(error) = self.spill(&id).await {
                tracing::warn!(id, ?error, "a checkpoint stays in memory");
            }
        }
        Ok(())
    }

    /// Makes room before somebody has to wait for it.
    pub(in crate::sandbox) async fn relieve(&self) {
        // Somebody is at it already.
        let Ok(_alone) = self.spilling.try_lock() else { return };
        let wanted = self.settings.reserve_mib.saturating_add(self.settings.relief_mib);
        if let Err(error) = self.spill_until(wanted).await {
            tracing::warn!(?error, "no room could be made");
        }
    }

    fn checkpoints_in_memory(&self) -> Vec<String> {
        let registry = self.registry();
        let mut held: Vec<&Checkpoint> =
            registry.checkpoints().filter(|one| one.machine.is_some()).collect();
        held.sort_by_key(|checkpoint| checkpoint.created_at_ms);
        held.into_iter().map(|checkpoint| checkpoint.id.clone()).collect()
    }

    fn with_sandbox(&self, id: &str) -> Option<(Checkpoint, Record)> {
        let registry = self.registry();
        let checkpoint = registry.checkpoints().find(|one| one.id == id)?.clone();
        let record = registry.get(&checkpoint.sandbox)?.clone();
        Some((checkpoint, record))
    }

    /// Puts a checkpoint into the store, and ends its machine unless its sandbox is in use.
    async fn spill(&self, id: &str) -> Result<(), Error> {
        let Some((checkpoint, record)) = self.with_sandbox(id) else { return Ok(()) };
        let Some(machine) = checkpoint.machine.clone() else { return Ok(()) };
        if checkpoint.stored.is_none() {
            self.store_checkpoint(&checkpoint, &record, machine.clone()).await?;
        }
        let lock = self.registry().life(&record.id).lock.clone();
        let Ok(_own) = lock.try_write_owned() else { return Ok(()) };
        let mut ended = None;
        self.commit(|registry| {
            let now = registry.checkpoints().find(|one| one.id == id && one.stored.is_some());
            ended = now.and_then(|checkpoint| checkpoint.machine.clone());
            let cold = |one: &Checkpoint| Checkpoint { machine: None, ..one.clone() };
            Ok(Change { checkpoints: now.map(cold).into_iter().collect(), ..Change::default() })
        })?;
        if let Some(machine) = ended {
            self.kill(machine).await;
            tracing::info!(id, "a checkpoint is in the store now");
        }
        Ok(())
    }

    async fn store_checkpoint(
        &self,
        checkpoint: &Checkpoint,
        record: &Record,
        machine: MachineId,
    ) -> Result<(), Error> {
        let value = self.root_value(record).await?;
        let root = NewRoot {
            mode: RootMode::Replace,
            ..NewRoot::new(CHECKPOINT_ROOT, &checkpoint.id, value)
        };
        let (owner, ancestor) = (tenant(&record.owner)?, record.ancestor.as_deref());
        let stored = self.store_machine(&owner, machine, ancestor, root, false).await?;
        let mut noted = false;
        let written = self.commit(|registry| {
            let now = registry.checkpoints().find(|one| one.id == checkpoint.id);
            noted = now.is_some();
            let with =
                |one: &Checkpoint| Checkpoint { stored: Some(stored.clone()), ..one.clone() };
            Ok(Change { checkpoints: now.map(with).into_iter().collect(), ..Change::default() })
        });
        if !noted || written.is_err() {
            self.forget_root(&record.owner, CHECKPOINT_ROOT, &checkpoint.id, &stored).await;
        }
        written
    }

    /// The machine of a checkpoint, for forks of it; made again if it is in the store. The caller shares or owns the
    /// sandbox.
    pub(in crate::sandbox) async fn checkpoint_machine(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<MachineId, Error> {
        let making = self.registry().life(&checkpoint.sandbox).making.clone();
        let _making = making.lock().await;
        let lost = || Error::NotFound { what: "checkpoint", key: checkpoint.id.clone() };
        let (mut checkpoint, record) = self.with_sandbox(&checkpoint.id).ok_or_else(lost)?;
        if let Some(machine) = checkpoint.machine {
            return Ok(machine);
        }
        let stored = checkpoint.stored.as_ref().ok_or_else(lost)?;
        let (owner, state) = (tenant(&record.owner)?, state_id(&stored.state)?);
        let origin = self.origin_over(&owner, &record.root()).await?;
        let machine = self.stand_in(&owner, state, origin, false).await?;
        checkpoint.machine = Some(machine.clone());
        let checkpoints = vec![checkpoint];
        if let Err(error) = self.commit(|_| Ok(Change { checkpoints, ..Change::default() })) {
            self.kill(machine).await;
            return Err(error);
        }
        self.watch(&machine).await;
        Ok(machine)
    }

    /// A checkpoint that is forgotten needs neither its machine nor its state.
    pub(in crate::sandbox) async fn end_checkpoint(&self, owner: &str, checkpoint: Checkpoint) {
        if let Some(machine) = checkpoint.machine {
            self.kill(machine).await;
        }
        if let Some(stored) = &checkpoint.stored {
            self.forget_root(owner, CHECKPOINT_ROOT, &checkpoint.id, stored).await;
        }
    }
}
