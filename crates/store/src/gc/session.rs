//! A writer's view of what is condemned, from before its first reuse of an object until its root is there.

use std::collections::HashSet;

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::error::Result;
use crate::id::Tenant;
use crate::names;
use crate::roots::unsealed;

/// Bytes of a list, at most.
pub(crate) const LIST_MAX: usize = 64 << 20;

/// A list of objects that will be deleted. Empty when it is done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Condemned {
    /// Their paths.
    pub objects: Vec<String>,
}

/// What a writer knows of the lists.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Number of the newest list.
    pub epoch: u64,
    condemned: HashSet<String>,
}

impl Session {
    pub fn is_condemned(&self, path: &Path) -> bool {
        self.condemned.contains(path.as_ref())
    }
}

/// What happened between two looks at the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// No list was made.
    Same,
    /// Lists were made, and all of them are known now.
    Seen,
    /// A list came and went unseen. What the writer counted on may be gone.
    Missed,
}

/// Where a tenant's lists are.
pub(crate) fn lists(tenant: &Tenant) -> Path {
    names::below(&["gc", tenant.as_str(), "condemned"])
}

/// A list.
pub(crate) fn list(tenant: &Tenant, number: u64) -> Path {
    names::below(&["gc", tenant.as_str(), "condemned", &format!("{number:020}")])
}

impl Store {
    /// Looks at all lists.
    pub(crate) async fn session(&self, tenant: &Tenant) -> Result<Session> {
        let mut session = Session { epoch: 0, condemned: HashSet::new() };
        self.renew(tenant, &mut session).await?;
        Ok(session)
    }

    /// Looks at lists that were made since. Whatever comes out, the session knows all open lists now.
    pub(crate) async fn renew(&self, tenant: &Tenant, session: &mut Session) -> Result<Renewal> {
        let listed = self.backend.list(&lists(tenant)).await?;
        let numbers = listed.iter().filter_map(|meta| names::parse_sequence(&meta.location));
        let newer: Vec<u64> = numbers.filter(|number| *number > session.epoch).collect();
        let Some(newest) = newer.iter().copied().max() else { return Ok(Renewal::Same) };
        let mut seen = 0;
        for number in newer {
            if let Some(condemned) = self.read_list(tenant, number).await? {
                session.condemned.extend(condemned.objects);
                seen += 1;
            }
        }
        let all = newest - session.epoch == seen;
        session.epoch = newest;
        Ok(if all { Renewal::Seen } else { Renewal::Missed })
    }

    /// A list; none if it is done.
    pub(crate) async fn read_list(
        &self,
        tenant: &Tenant,
        number: u64,
    ) -> Result<Option<Condemned>> {
        let path = list(tenant, number);
        let bytes = match self.backend.get(&path, LIST_MAX).await {
            Err(crate::Error::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let read: Option<Condemned> = unsealed(&path, &bytes);
        let read = read.ok_or_else(|| self.damaged(tenant, &path, None, "is no list"))?;
        Ok(Some(read).filter(|list| !list.objects.is_empty()))
    }
}
