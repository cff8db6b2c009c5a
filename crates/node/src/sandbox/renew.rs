//! Time limits that begin to count anew.

use ramet_proto::api::{self, EventKind};

use super::error::Error;
use super::{Service, check};
use crate::auth::Principal;
use crate::store::Change;

/// How long a sandbox has from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// So many seconds; 0 is for ever.
    Set(u64),
    /// At least so many; one that has more keeps it.
    AtLeast(u64),
}

impl Service {
    /// Lets the time limit of a sandbox count from now.
    pub async fn renew(
        &self,
        who: &Principal,
        key: &str,
        renewal: Renewal,
    ) -> Result<api::Sandbox, Error> {
        let (Renewal::Set(seconds) | Renewal::AtLeast(seconds)) = renewal;
        check::seconds("timeout", seconds)?;
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "renew", &target, async move {
            let _own = service.own(&id).await?;
            let mut record = service.find(&principal, &id)?;
            let has = match record.timeout_s {
                0 => u64::MAX,
                _ => record.left_ms().unwrap_or(0),
            };
            let enough = seconds > 0 && has >= seconds.saturating_mul(1000);
            if matches!(renewal, Renewal::AtLeast(_)) && enough {
                return Ok(record.shown());
            }
            record.timeout_s = seconds;
            record.begin_time();
            record.touch();
            let sandboxes = vec![record.clone()];
            service.commit(|_| Ok(Change { sandboxes, ..Change::default() }))?;
            service.events.tell(&record.owner, EventKind::Updated, &id, None, None);
            Ok(record.shown())
        })
        .await
    }
}
