//! What the node says about itself.

use ramet_proto::api;
use ramet_proto::control::FORK_MAX;

use super::record::Phase;
use super::{Error, Service, check};
use crate::auth::Principal;

impl Service {
    /// Version, limits, memory, templates.
    pub async fn node(&self, who: &Principal) -> Result<api::Node, Error> {
        let memory = self.host.call(|engine| engine.memory()).await?;
        let settings = &self.settings;
        let (running, paused) = {
            let registry = self.registry();
            (registry.count(Phase::Running), registry.count(Phase::Paused))
        };
        Ok(api::Node {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host_mode: settings.host_mode,
            started_at_ms: self.started_at_ms,
            principal: who.name().to_owned(),
            limits: api::Limits {
                vcpus_max: check::VCPUS_MAX,
                memory_mib_min: check::MEMORY_MIB_MIN,
                memory_mib_max: check::MEMORY_MIB_MAX,
                disk_mib_min: check::DISK_MIB_MIN,
                disk_mib_max: check::DISK_MIB_MAX,
                sandboxes_max: settings.sandboxes_max,
                fork_max: u32::try_from(FORK_MAX).unwrap_or(u32::MAX),
                checkpoints_max: u32::try_from(settings.checkpoints_max).unwrap_or(u32::MAX),
                memory_reserve_mib: settings.reserve_mib,
            },
            memory_total_mib: memory.total_mib,
            memory_available_mib: memory.available_mib,
            running,
            paused,
            templates: self.boots.shown(self.library.base()),
            network: self.node_network(),
        })
    }

    /// Figures as text.
    pub async fn figures(&self) -> Result<String, Error> {
        {
            let registry = self.registry();
            self.metrics.sandboxes("running", registry.count(Phase::Running));
            self.metrics.sandboxes("paused", registry.count(Phase::Paused));
            self.metrics.sandboxes("failed", registry.count(Phase::Failed));
        }
        if let Some(vault) = self.vault.get() {
            self.metrics.traffic(vault.store().traffic());
        }
        self.metrics.network(self.node_network().up, self.network_figures().await);
        self.metrics.text().map_err(|error| Error::Internal(error.to_string()))
    }

    /// The id of a sandbox that is meant.
    pub fn id_of(&self, who: &Principal, key: &str) -> Result<String, Error> {
        Ok(self.find(who, key)?.id)
    }
}
