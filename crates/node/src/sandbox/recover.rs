//! After a start, and when machines end by themselves.
//!
//! The database says which machines there should be. Those that live are taken hold of again, sandboxes whose machine
//! is gone have failed, and machines that the database does not name are ended: they belong to operations
//! that broke off, which are thereby undone. So are sandboxes of a request with a key that was not answered:
//! whoever sent it sends it again, and must not get them twice.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ramet_proto::api::{EventKind, SandboxFailure, TemplateState};

use super::Service;
use super::durable::commits::Commit;
use super::error::Error;
use super::images::blocking;
use super::record::{Checkpoint, Phase, Record};
use super::template::Template;
use super::volumes;
use crate::clock::{self, now_ms};
use crate::host::{self, Condition, End, MachineId, Shape, Watched};
use crate::store::Change;

impl Service {
    /// Takes hold of what an earlier run of the node has left. Once, before anything else.
    pub async fn recover(&self) -> Result<(), Error> {
        let pending = self.store.pending_keys()?;
        let library = self.library.clone();
        // Read once, now: it may take a moment, and everything that is booted needs it.
        blocking(move || Ok(library.base().len())).await?;
        let (records, checkpoints) = self.store.load()?;
        let mut change = Change::default();
        let mut kept = BTreeSet::new();
        for record in records {
            if record
                .made_by
                .as_ref()
                .is_some_and(|key| pending.contains(&(record.owner.clone(), key.clone())))
            {
                change.forget.push(record.id);
                continue;
            }
            self.recover_sandbox(record, &mut change, &mut kept).await;
        }
        change.volumes = self.store.volumes()?;
        change.links = self.store.links()?;
        change.networks = self.store.networks()?;
        let commits = self.recover_commits(&mut change, &mut kept).await?;
        for checkpoint in checkpoints {
            if change.forget.contains(&checkpoint.sandbox) {
                change.forget_checkpoints.push(checkpoint.id);
                continue;
            }
            self.recover_checkpoint(checkpoint, &mut change, &mut kept).await;
        }
        let boots = self.recover_boots(&mut kept).await?;
        let templates = self.recover_templates(&mut kept).await?;
        self.commit(|_| Ok(change))?;
        let feeding: Vec<Record> = self.registry().all().cloned().collect();
        let interrupted = self.store.settle(now_ms())?;
        let keep = kept.clone();
        let swept = self.host.call(move |engine| engine.sweep(&keep)).await?;
        // Only now does nobody write there any more.
        self.tidy_library().await?;
        self.settle_volumes().await?;
        tracing::info!(adopted = kept.len(), swept, interrupted, boots, templates, "recovered");
        for machine in &kept {
            self.watch(machine).await;
        }
        commits.into_iter().for_each(|commit| self.write_commit(commit));
        for record in feeding {
            if let Err(error) = self.go_on_feeding(&record).await {
                tracing::error!(?error, id = record.id, "its memory cannot be brought");
            }
        }
        self.sweep_states().await;
        self.recovered.store(true, Ordering::Release);
        Ok(())
    }

    async fn recover_sandbox(
        &self,
        mut record: Record,
        change: &mut Change,
        kept: &mut BTreeSet<MachineId>,
    ) {
        let machine = match (record.phase, record.machine.clone()) {
            (Phase::Making, _) => return change.forget.push(record.id),
            (Phase::Running | Phase::Paused, Some(machine)) => machine,
            _ => return change.sandboxes.push(record),
        };
        if record.limit_boot != clock::boot() {
            record.begin_time();
        }
        match self.adopt(&machine).await {
            Ok(condition @ (Condition::Running | Condition::Paused)) => {
                let paused = condition == Condition::Paused;
                record.phase = if paused { Phase::Paused } else { Phase::Running };
                kept.insert(machine);
            }
            Ok(Condition::Frozen) if record.stand_in => {
                kept.insert(machine);
            }
            other if record.stand_in => {
                // It is in the store; the next who needs it makes another.
                tracing::info!(id = record.id, ?other, "a stand-in is gone");
                (record.machine, record.stand_in) = (None, false);
                self.kill(machine).await;
            }
            Ok(Condition::Frozen) => {
                fail(&mut record, "its machine never ran", String::new());
                self.kill(machine).await;
            }
            Ok(Condition::Ended(end)) => {
                fail(&mut record, &end.reason, end.console);
                self.kill(machine).await;
            }
            Err(error) => {
                let reason = format!("its machine was not there when the node started: {error}");
                fail(&mut record, &reason, String::new());
            }
        }
        change.sandboxes.push(record);
    }

    /// Commits whose moment is still there are written now; others are lost.
    async fn recover_commits(
        &self,
        change: &mut Change,
        kept: &mut BTreeSet<MachineId>,
    ) -> Result<Vec<Commit>, Error> {
        let mut waiting = Vec::new();
        for mut commit in self.store.commits()? {
            if let Some(machine) = commit.machine.clone() {
                match self.adopt(&machine).await {
                    Ok(Condition::Frozen) => {
                        kept.insert(machine);
                        waiting.push(commit.clone());
                    }
                    other => {
                        tracing::warn!(id = commit.id, ?other, "a commit is lost");
                        commit.machine = None;
                        let text = "its moment was gone before it was written";
                        commit.failure = Some(text.to_owned());
                        self.kill(machine).await;
                    }
                }
            }
            change.commits.push(commit);
        }
        Ok(waiting)
    }

    async fn recover_checkpoint(
        &self,
        checkpoint: Checkpoint,
        change: &mut Change,
        kept: &mut BTreeSet<MachineId>,
    ) {
        let Some(machine) = checkpoint.machine.clone() else {
            return change.checkpoints.push(checkpoint);
        };
        match self.adopt(&machine).await {
            Ok(Condition::Frozen) => {
                kept.insert(machine);
                return change.checkpoints.push(checkpoint);
            }
            _ if checkpoint.stored.is_some() => {
                change.checkpoints.push(Checkpoint { machine: None, ..checkpoint });
            }
            other => {
                tracing::warn!(id = checkpoint.id, ?other, "a checkpoint is lost");
                change.forget_checkpoints.push(checkpoint.id);
            }
        }
        self.kill(machine).await;
    }

    async fn recover_boots(&self, kept: &mut BTreeSet<MachineId>) -> Result<usize, Error> {
        let mut count = 0;
        for (booted, machine, made_at_ms) in self.store.boots()? {
            // One of a base image that was replaced is of no use.
            let current = booted.image == self.library.base() || self.library.has(&booted.image);
            let adopted = self.adopt(&machine).await;
            if current && matches!(adopted, Ok(Condition::Frozen)) {
                kept.insert(machine.clone());
                self.boots.put(booted, machine, made_at_ms);
                count += 1;
            } else {
                self.store.remove_boot(&booted)?;
                self.kill(machine).await;
            }
        }
        Ok(count)
    }

    /// Takes hold of images and templates.
    async fn recover_templates(&self, kept: &mut BTreeSet<MachineId>) -> Result<usize, Error> {
        for image in self.store.images()? {
            self.images.put(image);
        }
        let mut count = 0;
        for mut template in self.store.templates()? {
            if template.state == TemplateState::Building {
                template.state = TemplateState::Failed;
                template.reason = Some("the node ended while it was built".to_owned());
            }
            if let Some(machine) = template.machine.take() {
                match self.adopt(&machine).await {
                    Ok(Condition::Frozen) => {
                        kept.insert(machine.clone());
                        template.machine = Some(machine);
                    }
                    _ => self.kill(machine).await,
                }
            }
            count += usize::from(template.state == TemplateState::Ready);
            self.put_template(template)?;
        }
        Ok(count)
    }

    /// Removes files of images and templates that broke off.
    async fn tidy_library(&self) -> Result<(), Error> {
        let images = self.images_needed();
        let ready = |template: &Template| template.state == TemplateState::Ready;
        let templates = self.shelf.all().into_iter().filter(ready).map(|one| one.id).collect();
        let library = self.library.clone();
        blocking(move || Ok(library.tidy(&templates, &images)?)).await
    }

    async fn adopt(&self, machine: &MachineId) -> Result<Condition, host::Error> {
        let machine = machine.clone();
        self.host.call(move |engine| engine.adopt(&machine)).await
    }

    /// Whether sandboxes can be created: all is recovered, and the usual template is warm.
    pub fn is_ready(&self, shape: Shape) -> bool {
        self.recovered.load(Ordering::Acquire) && self.boots.is_warm(&self.base_boot(shape))
    }

    /// Warms the template of the usual shape, in the background.
    pub fn warm_up(&self, shape: Shape) {
        let service = self.clone();
        self.tasks.spawn(async move {
            match service.booted(&service.base_boot(shape)).await {
                Ok(_) => {}
                Err(Error::Host(host::Error::Stopping)) => {}
                Err(error) => {
                    tracing::error!(?error, "the first template is not warm; a create tries again");
                }
            }
        });
    }

    /// Hears of the end of a machine that nobody asked to end.
    pub(super) async fn watch(&self, machine: &MachineId) {
        let watched = machine.clone();
        let watched = self.host.call(move |engine| engine.watch(&watched)).await;
        let (service, machine) = (self.clone(), machine.clone());
        self.tasks.spawn(async move {
            let Watched { end, mut calls } = match watched {
                Ok(watched) => watched,
                Err(error @ (host::Error::Gone(_) | host::Error::Io(_))) => {
                    let end = End { reason: error.to_string(), console: String::new() };
                    return service.ended(&machine, &end).await;
                }
                Err(error) => return tracing::error!(%machine, ?error, "it is not watched"),
            };
            let answer = async {
                while let Some(call) = calls.recv().await {
                    service.answer_call(&machine, call).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = service.stop.cancelled() => {}
                end = end => match end {
                    Ok(end) => service.ended(&machine, &end).await,
                    Err(_) => tracing::error!(%machine, "it is no longer watched"),
                },
                () = answer => {}
            }
        });
    }

    /// A machine has ended. If nobody has it any more, that was meant.
    async fn ended(&self, machine: &MachineId, end: &End) {
        if let Some(booted) = self.boots.remove(machine) {
            tracing::error!(?booted, reason = end.reason, "a template's machine ended");
            if let Err(error) = self.store.remove_boot(&booted) {
                tracing::error!(?error, "a template could not be forgotten");
            }
        }
        self.template_cooled(machine);
        let mut failed = None;
        let written = self.commit(|registry| {
            let mut change = Change::default();
            if let Some(record) = registry.holder(machine) {
                let mut record = record.clone();
                if record.stand_in {
                    (record.machine, record.stand_in) = (None, false);
                } else {
                    fail(&mut record, &end.reason, end.console.clone());
                    failed = Some(record.clone());
                }
                change.sandboxes.push(record);
            }
            let of = |one: &&Checkpoint| one.machine.as_ref() == Some(machine);
            for checkpoint in registry.checkpoints().filter(of).cloned() {
                match checkpoint.stored.is_some() {
                    true => change.checkpoints.push(Checkpoint { machine: None, ..checkpoint }),
                    false => change.forget_checkpoints.push(checkpoint.id),
                }
            }
            Ok(change)
        });
        if let Err(error) = written {
            tracing::error!(%machine, ?error, "the end of a machine could not be written down");
        }
        if let Some(record) = failed {
            tracing::warn!(id = record.id, reason = end.reason, "a sandbox failed");
            self.disconnect(&record.id).await;
            let detail = Some(end.reason.as_str());
            self.events.tell(&record.owner, EventKind::Failed, &record.id, None, detail);
        }
        self.kill(machine.clone()).await;
    }
}

fn fail(record: &mut Record, reason: &str, console: String) {
    record.phase = Phase::Failed;
    record.machine = None;
    // Whoever else wants its volumes can have them.
    record.volumes = volumes::snapshots(&record.volumes);
    record.failure = Some(SandboxFailure { reason: reason.to_owned(), console });
}
