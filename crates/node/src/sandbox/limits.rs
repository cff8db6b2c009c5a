//! The clock of the node: one task that ends or pauses what has lived or idled long enough, and
//! forgets what is old. Lives are counted by the time since the host's boot, so that nobody ends because the wall
//! clock was set.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ramet_proto::api::{OnTimeout, PauseRequest};

use super::Service;
use super::record::{Phase, Record};
use crate::auth::Principal;
use crate::clock::{now_ms, uptime_ms};
use crate::store::Change;

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);
/// Looks between two clean-ups.
const CLEAN_EVERY: u32 = 300;
/// Looks between two ends of stand-ins, and how long one stays that nobody needs.
const STAND_EVERY: u32 = 10;
const STAND_MS: u64 = 60 * 1000;
/// Looks between two collections of the store.
const COLLECT_EVERY: u32 = 3600;
/// How long gone sandboxes and idempotency keys are remembered.
const REMEMBER_MS: u64 = 24 * 3600 * 1000;
/// Most gone sandboxes that are remembered.
const GONE_MAX: usize = 10_000;

impl Service {
    /// Starts the clock. It ends with the node.
    pub fn start_clock(&self) {
        let service = self.clone();
        self.tasks.spawn(async move {
            let mut looks = 0u32;
            loop {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    () = service.stop.cancelled() => return,
                }
                service.enforce(uptime_ms()).await;
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(STAND_EVERY) {
                    service.end_stand_ins(uptime_ms().saturating_sub(STAND_MS)).await;
                    let relief = service.clone();
                    service.keep(async move { relief.relieve().await });
                }
                if looks.is_multiple_of(CLEAN_EVERY) {
                    service.clean(now_ms());
                }
                if looks.is_multiple_of(COLLECT_EVERY) {
                    let collector = service.clone();
                    service.keep(async move { collector.collect_all().await });
                }
            }
        });
    }

    /// Ends or pauses what is over at this time since the host's boot.
    pub(super) async fn enforce(&self, now: u64) {
        let over = |record: &&Record| is_over(record, now);
        let over: Vec<String> =
            self.registry().all().filter(over).map(|record| record.id.clone()).collect();
        for id in over {
            // Ending those before it took its time, in which somebody may have come.
            let Some(record) = self.due(&id, now) else { continue };
            match record.on_timeout {
                OnTimeout::Kill => self.leave(&record).await,
                // It takes its time, in which others' time goes on.
                OnTimeout::Pause => {
                    let life = self.registry().life(&id);
                    if life.leaving.swap(true, Ordering::Relaxed) {
                        continue;
                    }
                    let service = self.clone();
                    self.keep(async move {
                        service.leave(&record).await;
                        life.leaving.store(false, Ordering::Relaxed);
                    });
                }
            }
        }
    }

    /// Ends or pauses a sandbox whose time is over.
    async fn leave(&self, record: &Record) {
        let owner = Principal::new(&record.owner);
        let done = match record.on_timeout {
            OnTimeout::Kill => self.delete(&owner, &record.id).await,
            OnTimeout::Pause => {
                self.pause(&owner, &record.id, PauseRequest::default()).await.map(drop)
            }
        };
        match done {
            Ok(()) => tracing::info!(id = record.id, action = ?record.on_timeout, "time is over"),
            Err(error) => tracing::warn!(id = record.id, ?error, "time is over, but"),
        }
    }

    /// A sandbox whose time is over, if it still is.
    fn due(&self, id: &str, now: u64) -> Option<Record> {
        let mut registry = self.registry();
        let record = registry.get(id).filter(|record| is_over(record, now))?.clone();
        let busy = registry.life(id).busy.load(Ordering::Relaxed) > 0;
        (is_past_life(&record, now) || !busy).then_some(record)
    }

    /// Forgets what nobody needs.
    pub(super) fn clean(&self, now: u64) {
        self.store.take_reserve();
        let before = now.saturating_sub(REMEMBER_MS);
        let cleaned = self
            .commit(|registry| {
                let forget = registry.forgettable(before, GONE_MAX);
                let forget_links = registry.stale_links();
                Ok(Change { forget, forget_links, ..Change::default() })
            })
            .and_then(|()| Ok(self.store.prune(before)?));
        if let Err(error) = cleaned {
            tracing::error!(?error, "old rows could not be forgotten");
        }
    }
}

fn is_past_life(record: &Record, now: u64) -> bool {
    record.timeout_s > 0 && now.saturating_sub(record.limit_from_ms) >= record.timeout_s * 1000
}

fn is_over(record: &Record, now: u64) -> bool {
    let alive = match record.on_timeout {
        OnTimeout::Kill => matches!(record.phase, Phase::Running | Phase::Paused | Phase::Failed),
        OnTimeout::Pause => record.phase == Phase::Running,
    };
    let idle = record.phase == Phase::Running
        && record.idle_timeout_s > 0
        && now.saturating_sub(record.idle_from_ms) >= record.idle_timeout_s * 1000;
    alive && (is_past_life(record, now) || idle)
}
