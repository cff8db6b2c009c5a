//! Checkpoints, and the two operations that give a sandbox another machine: rewind and promote.
//!
//! Both fork a machine (the checkpoint's, the winner's) with the identity of the sandbox that goes on, so that
//! its guest has that host name, machine-id, environment and secrets; then one transaction
//! swaps machines, and what is no longer needed is ended.

use std::time::Instant;

use ramet_proto::api::{self, EventKind, PromoteRequest, Swapped};

use super::error::Error;
use super::life::refuse_secrets;
use super::line::Line;
use super::network::Net;
use super::record::{Checkpoint, Phase, Record};
use super::{Service, check, volumes};
use crate::auth::Principal;
use crate::clock::{now_ms, since_us};
use crate::host::{Born, MachineId};
use crate::random;
use crate::store::Change;

impl Service {
    /// Freezes a moment of a sandbox, which goes on.
    pub async fn checkpoint(
        &self,
        who: &Principal,
        key: &str,
        name: Option<String>,
    ) -> Result<api::Checkpoint, Error> {
        name.as_deref().map_or(Ok(()), check::name)?;
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "checkpoint", &target, async move {
            let made = service.checkpoint_one(&principal, &id, name, None).await?;
            Ok(made.shown())
        })
        .await
    }

    /// Makes a checkpoint; one that is made before a command is automatic.
    pub(super) async fn checkpoint_one(
        &self,
        who: &Principal,
        id: &str,
        name: Option<String>,
        command: Option<String>,
    ) -> Result<Checkpoint, Error> {
        let began = Instant::now();
        let _share = self.share(id).await?;
        let record = self.find(who, id)?;
        let source = self.present(&record, "be checkpointed").await?;
        let automatic = command.is_some();
        self.check_checkpoint(id, name.as_deref(), automatic)?;
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        let line = record.line.branch(now_ms())?;
        let machine = self.host.call(move |engine| engine.checkpoint(&source)).await?;
        let cid = format!("cp-{}", random::hex(8)?);
        let checkpoint = Checkpoint {
            name: name.unwrap_or_else(|| cid.clone()),
            id: cid,
            sandbox: id.to_owned(),
            created_at_ms: now_ms(),
            total_us: since_us(began),
            machine: Some(machine.clone()),
            stored: None,
            line,
            command,
            volumes: record.volumes.clone(),
        };
        let checkpoints = vec![checkpoint.clone()];
        // Looked at again: another one may have taken the name meanwhile.
        let written = self
            .check_checkpoint(id, Some(&checkpoint.name), automatic)
            .and_then(|()| self.commit(|_| Ok(Change { checkpoints, ..Change::default() })));
        if let Err(error) = written {
            self.kill(machine).await;
            return Err(error);
        }
        self.watch(&machine).await;
        self.registry().touch(id);
        let other = Some(checkpoint.id.as_str());
        let command = checkpoint.command.as_deref();
        self.events.tell(&record.owner, EventKind::Checkpointed, id, other, command);
        Ok(checkpoint)
    }

    fn check_checkpoint(&self, id: &str, name: Option<&str>, automatic: bool) -> Result<(), Error> {
        let registry = self.registry();
        let all = registry.checkpoints_of(id);
        // Automatic ones have a bound of their own.
        let count = all.iter().filter(|checkpoint| !checkpoint.is_automatic()).count();
        if !automatic && count >= self.settings.checkpoints_max {
            let most = self.settings.checkpoints_max;
            return Err(Error::TooMany(format!(
                "{id} has {most} checkpoints, the most; delete some"
            )));
        }
        match name.filter(|name| all.iter().any(|checkpoint| checkpoint.name == *name)) {
            Some(name) => Err(Error::NameTaken(name.to_owned())),
            None => Ok(()),
        }
    }

    /// A sandbox's checkpoints.
    pub fn checkpoints(&self, who: &Principal, key: &str) -> Result<api::CheckpointList, Error> {
        let registry = self.registry();
        let id = &registry.find(who, key)?.id;
        let checkpoints = registry.checkpoints_of(id).into_iter().map(Checkpoint::shown).collect();
        Ok(api::CheckpointList { checkpoints })
    }

    /// Ends a checkpoint.
    pub async fn delete_checkpoint(
        &self,
        who: &Principal,
        key: &str,
        checkpoint: &str,
    ) -> Result<(), Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, key) = (self.clone(), who.clone(), checkpoint.to_owned());
        let target = format!("{id} {checkpoint}");
        self.operate(who, "checkpoint_delete", &target, async move {
            // A rewind may be forking it.
            let _own = service.own(&id).await?;
            service.find(&principal, &id)?;
            let checkpoint = service.registry().checkpoint(&id, &key)?.clone();
            let forget_checkpoints = vec![checkpoint.id.clone()];
            service.commit(|_| Ok(Change { forget_checkpoints, ..Change::default() }))?;
            let (owner, other) = (principal.name(), Some(checkpoint.id.as_str()));
            service.events.tell(owner, EventKind::CheckpointDeleted, &id, other, None);
            service.end_checkpoint(principal.name(), checkpoint).await;
            Ok(())
        })
        .await
    }

    /// A sandbox goes back to one of its checkpoints.
    pub async fn rewind(
        &self,
        who: &Principal,
        key: &str,
        checkpoint: String,
    ) -> Result<Swapped, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal) = (self.clone(), who.clone());
        let target = format!("{id} {checkpoint}");
        self.operate(who, "rewind", &target, async move {
            service.rewind_one(&principal, &id, &checkpoint).await
        })
        .await
    }

    async fn rewind_one(&self, who: &Principal, id: &str, key: &str) -> Result<Swapped, Error> {
        let began = Instant::now();
        let _own = self.own(id).await?;
        let mut record = self.find(who, id)?;
        let checkpoint = self.registry().checkpoint(id, key)?.clone();
        volumes::refuse_writer(&record, "go back")?;
        record.volumes = volumes::rewound(&record.volumes, &checkpoint.volumes);
        let source = self.checkpoint_machine(&checkpoint).await?;
        let (record, old, born) = self.reborn(record, source, &checkpoint.line).await?;
        let sandboxes = vec![record.clone()];
        let mut undone = Vec::new();
        self.swap(&record, |registry| {
            undone = super::undo::undone(&registry.checkpoints_of(id), &checkpoint);
            let forget_checkpoints = undone.iter().map(|one| one.id.clone()).collect();
            Change { sandboxes, forget_checkpoints, ..Change::default() }
        })
        .await?;
        // The moment may be of before it trusted anything.
        self.settle_trust(&record, &Net::default()).await;
        let other = Some(checkpoint.id.as_str());
        self.events.tell(&record.owner, EventKind::Rewound, id, other, None);
        if let Some(machine) = old {
            self.kill(machine).await;
        }
        for checkpoint in undone {
            self.end_checkpoint(&record.owner, checkpoint).await;
        }
        Ok(swapped(&record, &born, began))
    }

    /// A sandbox goes on as one of its descendants did.
    pub async fn promote(
        &self,
        who: &Principal,
        key: &str,
        request: &PromoteRequest,
    ) -> Result<Swapped, Error> {
        let (id, winner) = (self.find(who, key)?.id, self.find(who, &request.winner)?.id);
        let inherit = request.inherit_secrets;
        let (service, principal) = (self.clone(), who.clone());
        let target = format!("{id} {winner}");
        self.operate(who, "promote", &target, async move {
            service.promote_one(&principal, &id, &winner, inherit).await
        })
        .await
    }

    async fn promote_one(
        &self,
        who: &Principal,
        id: &str,
        winner: &str,
        inherit: Option<bool>,
    ) -> Result<Swapped, Error> {
        let began = Instant::now();
        if !self.registry().descends(winner, id) {
            let (sandbox, winner) = (id.to_owned(), winner.to_owned());
            return Err(Error::NotADescendant { sandbox, winner });
        }
        // In the order of their ids, so that two promotes never wait for each other.
        let (first, second) = if id < winner { (id, winner) } else { (winner, id) };
        let _own = (self.own(first).await?, self.own(second).await?);
        let (mut record, winning) = (self.find(who, id)?, self.find(who, winner)?);
        volumes::refuse_writer(&record, "change")?;
        volumes::refuse_writer(&winning, "change")?;
        match inherit {
            Some(true) => record.secrets.extend(winning.secrets.clone()),
            Some(false) => {}
            // What both know is passed on to nobody.
            None if winning
                .secrets
                .iter()
                .all(|(name, value)| record.secrets.get(name) == Some(value)) => {}
            None => refuse_secrets(&winning, "promoted")?,
        }
        let stored = winning.is_stored();
        let source = self.present(&winning, "be promoted").await?;
        let winning = self.find(who, winner)?;
        record.volumes = match stored {
            true => volumes::snapshots(&winning.volumes),
            false => volumes::shared(&winning.volumes),
        };
        let (record, old, born) = self.reborn(record, source, &winning.line).await?;
        let mut machines: Vec<MachineId> = old.into_iter().collect();
        let (promoted, mut ended) = (record.clone(), Vec::new());
        self.swap(&record, |registry| {
            let mut winning = winning.clone();
            machines.extend(winning.machine.take());
            winning.end();
            winning.promoted_to = Some(id.to_owned());
            let checkpoints = registry.checkpoints_of(winner);
            let forget_checkpoints = checkpoints.iter().map(|one| one.id.clone()).collect();
            let forget_links = registry.links_of(winner).iter().map(|one| one.id.clone()).collect();
            ended = checkpoints.into_iter().cloned().collect();
            let children = registry.children(winner).into_iter().cloned();
            let children = children.map(|child| Record { parent: Some(id.to_owned()), ..child });
            let sandboxes = [promoted, winning].into_iter().chain(children).collect();
            Change { sandboxes, forget_checkpoints, forget_links, ..Change::default() }
        })
        .await?;
        self.disconnect(winner).await;
        self.settle_trust(&record, &winning.network).await;
        self.events.tell(&record.owner, EventKind::Promoted, id, Some(winner), None);
        for machine in machines {
            self.kill(machine).await;
        }
        for checkpoint in ended {
            self.end_checkpoint(&record.owner, checkpoint).await;
        }
        self.forget_stored(&winning).await;
        Ok(swapped(&record, &born, began))
    }

    /// A new machine for a sandbox, its record with that machine, and the old machine.
    async fn reborn(
        &self,
        mut record: Record,
        source: MachineId,
        line: &Line,
    ) -> Result<(Record, Option<MachineId>, Born), Error> {
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        let identity = record.identity(false)?;
        record.line = line.branch(now_ms())?;
        let born = self.fork_machine(source, vec![identity]).await?.only()?;
        self.limit(&born.machine, record.cpu).await?;
        let old = record.machine.replace(born.machine.clone());
        record.phase = Phase::Running;
        record.stand_in = false;
        record.failure = None;
        record.touch();
        Ok((record, old, born))
    }

    /// Writes a swap; if that fails, the new machine goes. Connections of the old one to the outside are reset.
    async fn swap(
        &self,
        record: &Record,
        change: impl FnOnce(&super::registry::Registry) -> Change,
    ) -> Result<(), Error> {
        let Some(machine) = &record.machine else { return Ok(()) };
        if let Err(error) = self.commit(|registry| Ok(change(registry))) {
            self.kill(machine.clone()).await;
            return Err(error);
        }
        self.watch(machine).await;
        self.connect(&[record]).await;
        Ok(())
    }
}

fn swapped(record: &Record, born: &Born, began: Instant) -> Swapped {
    Swapped { sandbox: record.shown(), ready_us: born.ready_us, total_us: since_us(began) }
}
