//! What the store holds, what of it nobody needs, and whether it is intact.

use std::time::Duration;

use ramet_proto::api::{CheckReport, CheckRequest, GcReport, GcRequest, StoreUsage};
use ramet_store::gc::{Collect, Collected};
use ramet_store::{Damage, Depth, Root};

use super::pause::{NODE, SANDBOX_ROOT};
use super::spill::CHECKPOINT_ROOT;
use super::vault::tenant;
use crate::auth::Principal;
use crate::sandbox::Service;
use crate::sandbox::error::Error;

/// Most damages that are told.
const DAMAGE_MAX: usize = 1000;
/// A collector that is silent for so long is dead.
const TAKEOVER: Duration = Duration::from_secs(3600);

impl Service {
    /// What a principal keeps, and what it takes.
    pub async fn store_usage(&self, who: &Principal) -> Result<StoreUsage, Error> {
        let vault = self.vault().await?;
        let usage = vault.store().usage(&tenant(who.name())?).await?;
        let (commits, paused) = {
            let registry = self.registry();
            let commits = registry.commits_of(who).filter(|commit| commit.stored.is_some()).count();
            let mine = registry.all().filter(|record| record.owner == who.name());
            (commits, mine.filter(|record| record.is_stored()).count())
        };
        Ok(StoreUsage {
            location: vault.location(),
            commits: commits as u64,
            paused: paused as u64,
            logical_bytes: usage.content_bytes,
            stored_bytes: usage.stored_bytes,
            cache_bytes: vault.copies_bytes().await?,
        })
    }

    /// Removes what no state of the caller needs.
    pub async fn store_gc(&self, who: &Principal, request: GcRequest) -> Result<GcReport, Error> {
        let (service, owner) = (self.clone(), tenant(who.name())?);
        self.operate(who, "gc", owner.clone().as_str(), async move {
            let how = Collect {
                grace: service.settings.grace,
                takeover: TAKEOVER,
                dry_run: request.dry_run,
            };
            let vault = service.vault().await?;
            if request.copies && !request.dry_run {
                vault.chill_all(&owner).await?;
            }
            if !request.dry_run {
                service.forget_bases(&owner).await?;
            }
            let done = vault.store().collect(Some(&owner), &how).await?;
            Ok(report(&done))
        })
        .await
    }

    /// Collects for everybody, now and then.
    pub(in crate::sandbox) async fn collect_all(&self) {
        // A store that nobody has needed yet holds nothing new.
        let Some(vault) = self.vault.get() else { return };
        if let Err(error) = self.forget_strays().await {
            tracing::warn!(?error, "roots that nobody needs stay in the store");
        }
        let needed = self.registry().states();
        if let Err(error) = vault.forget_copies(needed, self.settings.grace).await {
            tracing::warn!(?error, "copies of states that nobody needs stay");
        }
        let how = Collect { grace: self.settings.grace, takeover: TAKEOVER, dry_run: false };
        for owner in vault.store().tenants().await.unwrap_or_default() {
            if let Err(error) = self.forget_bases(&owner).await {
                tracing::warn!(?error, %owner, "images that nobody needs stay in the store");
            }
        }
        match vault.store().collect(None, &how).await {
            Ok(done) if done.deleted_objects > 0 => {
                tracing::info!(
                    objects = done.deleted_objects,
                    bytes = done.deleted_bytes,
                    "collected"
                )
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(?error, "the store could not be collected"),
        }
    }

    /// Removes roots of this node whose sandbox or checkpoint is gone: a delete may not have reached the store.
    pub(in crate::sandbox) async fn forget_strays(&self) -> Result<usize, Error> {
        let vault = self.vault().await?;
        let mut count = 0;
        for owner in vault.store().tenants().await? {
            for kind in [SANDBOX_ROOT, CHECKPOINT_ROOT] {
                let own = |root: &&Root| root.value.get(NODE) == Some(&vault.node.clone().into());
                for root in vault.roots(&owner, kind).await?.iter().filter(own) {
                    // One that is being made is written down before its root is.
                    if !self.registry().keeps(&root.name) {
                        vault.store().delete_root(&owner, kind, &root.name).await?;
                        count += 1;
                    }
                }
            }
        }
        Ok(count)
    }

    /// Looks whether what the caller keeps is intact, and repairs what can be.
    pub async fn store_check(
        &self,
        who: &Principal,
        request: CheckRequest,
    ) -> Result<CheckReport, Error> {
        let (service, owner) = (self.clone(), tenant(who.name())?);
        self.operate(who, "store_check", owner.clone().as_str(), async move {
            let store = service.vault().await?.store();
            let depth = if request.deep { Depth::Content } else { Depth::Presence };
            let found = store.check(Some(&owner), depth, |_| ()).await?;
            let checked = found.roots + found.states + found.chunks;
            let mut report = CheckReport { checked, damage: told(&found.damages), repaired: 0 };
            if request.repair && found.damaged > 0 {
                let done = store.repair(Some(&owner), None).await?;
                report.repaired = done.repaired.len() as u64;
            }
            Ok(report)
        })
        .await
    }
}

fn report(done: &Collected) -> GcReport {
    GcReport {
        kept: done.kept_objects,
        condemned: done.condemned_objects + done.waiting_objects,
        removed: done.deleted_objects,
        removed_bytes: done.deleted_bytes,
    }
}

fn told(damages: &[Damage]) -> Vec<String> {
    damages.iter().take(DAMAGE_MAX).map(Damage::to_string).collect()
}
