//! Automatic checkpoints: before each exec, so that the last commands can be undone.
//!
//! They are bounded by number and by the memory that they hold. What is too much goes in the background after
//! the exec has begun, the oldest first; checkpoints that somebody asked for are never touched. An exec whose
//! checkpoint cannot be made is refused: it could not be undone.

use ramet_proto::api::{AutoCheckpoints, EventKind};

use super::Service;
use super::error::Error;
use super::record::{Checkpoint, Phase, Record};
use crate::auth::Principal;
use crate::store::Change;

/// What is kept of a command.
const COMMAND_MAX: usize = 200;

impl Service {
    /// What may be asked for; 0 is none.
    pub(super) fn checked_auto(
        &self,
        wish: Option<AutoCheckpoints>,
    ) -> Result<Option<AutoCheckpoints>, Error> {
        let Some(wish) = wish else { return Ok(None) };
        let most = u32::try_from(self.settings.checkpoints_max).unwrap_or(u32::MAX);
        if wish.keep > most {
            let text = format!("auto_checkpoints.keep: 0 to {most}, not {}", wish.keep);
            return Err(Error::Bad(text));
        }
        if wish.memory_mib == 0 {
            let text = "auto_checkpoints.memory_mib: at least 1; keep: 0 switches them off";
            return Err(Error::Bad(text.to_owned()));
        }
        Ok(Some(wish).filter(|wish| wish.keep > 0))
    }

    /// Checkpoints a sandbox before a command, if that is asked for.
    pub(super) async fn before_exec(
        &self,
        who: &Principal,
        key: &str,
        argv: &[String],
    ) -> Result<(), Error> {
        let record = self.find(who, key)?;
        if record.auto_checkpoints.is_none() || record.phase != Phase::Running {
            return Ok(());
        }
        let command = Some(shortened(argv));
        let mut made = self.checkpoint_one(who, &record.id, None, command.clone()).await;
        if let Err(Error::NoCapacity(_)) = made {
            // Older moments are given up for this one.
            self.drop_automatic(&record.id, |automatic| automatic.len()).await?;
            made = self.checkpoint_one(who, &record.id, None, command).await;
        }
        made.map_err(|error| match error {
            Error::NoCapacity(text) => Error::NoCapacity(format!(
                "the checkpoint before this command: {text}, or switch auto_checkpoints off"
            )),
            other => other,
        })?;
        self.trim_soon(&record.id);
        Ok(())
    }

    /// Drops what is too much, in the background.
    pub(super) fn trim_soon(&self, id: &str) {
        let (service, id) = (self.clone(), id.to_owned());
        self.tasks.spawn(async move {
            if let Err(error) = service.trim(&id).await {
                tracing::warn!(id, ?error, "automatic checkpoints could not be dropped");
            }
        });
    }

    /// Drops the oldest automatic checkpoints of a sandbox, as far as they are too many or too large.
    pub(super) async fn trim(&self, id: &str) -> Result<(), Error> {
        let Some(record) = self.registry().get(id).cloned() else { return Ok(()) };
        let bound = record.auto_checkpoints.unwrap_or(AutoCheckpoints { keep: 0, memory_mib: 0 });
        self.drop_automatic(id, |automatic| surplus(automatic, bound.keep)).await?;
        let mut sizes = Vec::new();
        for checkpoint in self.automatic(id) {
            let Some(machine) = checkpoint.machine else { continue };
            // One that has gone meanwhile holds nothing.
            let stats = self.host.call(move |engine| engine.stats(&machine)).await;
            sizes.push((checkpoint.id, stats.map_or(0, |stats| stats.pss_kib)));
        }
        let heavy = too_heavy(&sizes, bound.memory_mib.saturating_mul(1024));
        let last = heavy.checked_sub(1).and_then(|last| sizes.get(last)).map(|(id, _)| id.clone());
        let Some(last) = last else { return Ok(()) };
        let upto = |automatic: &[Checkpoint]| {
            automatic.iter().position(|one| one.id == last).map_or(0, |place| place + 1)
        };
        self.drop_automatic(id, upto).await
    }

    fn automatic(&self, id: &str) -> Vec<Checkpoint> {
        let registry = self.registry();
        let all = registry.checkpoints_of(id).into_iter();
        all.filter(|one| one.is_automatic()).cloned().collect()
    }

    /// Drops as many of the oldest automatic checkpoints as the closure says.
    async fn drop_automatic(
        &self,
        id: &str,
        count: impl Fn(&[Checkpoint]) -> usize,
    ) -> Result<(), Error> {
        // A rewind may be forking one.
        let _own = self.own(id).await?;
        let mut dropped = self.automatic(id);
        dropped.truncate(count(&dropped));
        let Some(record) = self.registry().get(id).cloned() else { return Ok(()) };
        let forget_checkpoints = dropped.iter().map(|one| one.id.clone()).collect();
        self.commit(|_| Ok(Change { forget_checkpoints, ..Change::default() }))?;
        self.ended_automatic(&record, dropped).await;
        Ok(())
    }

    async fn ended_automatic(&self, record: &Record, dropped: Vec<Checkpoint>) {
        for checkpoint in dropped {
            let other = Some(checkpoint.id.as_str());
            let kind = EventKind::CheckpointDeleted;
            self.events.tell(&record.owner, kind, &record.id, other, None);
            self.end_checkpoint(&record.owner, checkpoint).await;
        }
    }
}

/// How many of the oldest are more than these.
fn surplus(automatic: &[Checkpoint], keep: u32) -> usize {
    automatic.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX))
}

/// How many of the oldest must go so that the rest holds at most this much.
fn too_heavy(sizes: &[(String, u64)], most_kib: u64) -> usize {
    let mut left = 0u64;
    let fits = |(_, size): &&(String, u64)| {
        left = left.saturating_add(*size);
        left <= most_kib
    };
    sizes.len() - sizes.iter().rev().take_while(fits).count()
}

/// Automatic checkpoints of commands that a rewind undoes: all that are not older than where it goes. Where it
/// goes is the state of the sandbox afterwards, so an automatic one is not needed any more.
pub fn undone(all: &[&Checkpoint], to: &Checkpoint) -> Vec<Checkpoint> {
    let later = |one: &&&Checkpoint| one.id == to.id || one.created_at_ms >= to.created_at_ms;
    let automatic = all.iter().filter(|one| one.is_automatic());
    automatic.filter(later).map(|one| (*one).clone()).collect()
}

/// A command as people read it.
fn shortened(argv: &[String]) -> String {
    let words = match argv {
        [shell, flag, line] if shell == "/bin/sh" && flag == "-c" => line.clone(),
        words => words.join(" "),
    };
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = words.chars().map(clean).take(COMMAND_MAX).collect();
    if words.chars().count() > COMMAND_MAX { format!("{text}…") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_no_more_than_needed() {
        let sizes = |kib: &[u64]| kib.iter().map(|size| (String::new(), *size)).collect::<Vec<_>>();
        assert_eq!(too_heavy(&sizes(&[5, 5, 5]), 15), 0);
        assert_eq!(too_heavy(&sizes(&[5, 5, 5]), 14), 1);
        assert_eq!(too_heavy(&sizes(&[1, 50, 5]), 14), 2);
        assert_eq!(too_heavy(&sizes(&[5, 5, 50]), 14), 3);
        assert_eq!(too_heavy(&[], 0), 0);
    }

    #[test]
    fn commands_are_read_by_people() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(shortened(&words(&["/bin/sh", "-c", "ls\n-l"])), "ls -l");
        assert_eq!(shortened(&words(&["python3", "x.py"])), "python3 x.py");
        assert_eq!(shortened(&words(&["ä".repeat(300).as_str()])).chars().count(), 201);
    }
}
