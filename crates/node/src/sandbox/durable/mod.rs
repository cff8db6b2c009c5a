//! What outlives machines: sandboxes paused in the store, and commits.
//!
//! [`vault`] keeps states, [`feed`] brings them back; [`pause`], [`commits`] and [`spill`] say what they mean to sandboxes. The order of every
//! change is that of the service: a state is in the store before the database says so, and a machine ends only after
//! that. What is in the store and nobody names any more is collected there.

mod bases;
pub mod commits;
mod feed;
mod incoming;
pub mod moves;
mod pause;
mod spill;
mod upkeep;
pub mod vault;

use std::sync::Arc;

use ramet_store::Location;

use super::error::Error;
use super::{Service, Settings};
use vault::{Place, Vault};

impl From<ramet_store::Error> for Error {
    fn from(error: ramet_store::Error) -> Self {
        use ramet_store::Error as Stored;
        let text = error.to_string();
        match error {
            Stored::Damaged(_) => Self::Damaged(text),
            Stored::NotFound { .. } => Self::Damaged(format!("{text}; it is lost")),
            Stored::Unavailable { .. } | Stored::Denied { .. } => Self::StoreUnavailable(text),
            Stored::Full { .. } => Self::NoSpace(text),
            Stored::File { source, .. } => source.into(),
            Stored::Bad(_) => Self::Bad(text),
            Stored::Untrusted(_) => Self::Untrusted(text),
            Stored::Exists { .. } | Stored::Expired(_) => {
                Self::TooMany(format!("{text}; try again"))
            }
        }
    }
}

impl Settings {
    /// Where states are kept.
    fn place(&self) -> Place {
        let local = || Location::Local(self.data_dir.join("store"));
        Place {
            location: self.store.clone().unwrap_or_else(local),
            data: self.data_dir.clone(),
            copies_max: self.copies_max,
            limits: self.store_limits,
            patience: self.store_patience,
        }
    }
}

impl Service {
    /// The states, opened when first needed. A store that could not be opened is tried again.
    pub(super) async fn vault(&self) -> Result<&Arc<Vault>, Error> {
        let open = || async { Vault::open(self.settings.place()).await.map(Arc::new) };
        self.vault.get_or_try_init(open).await
    }

    /// After a start: what was on its way for machines that are gone is removed.
    pub(super) async fn sweep_states(&self) {
        let Some(vault) = self.vault.get() else { return };
        if let Err(error) = vault.sweep().await {
            tracing::warn!(?error, "files of states that nobody needs stay");
        }
    }
}
