//! Making a state a root. Here a writer meets the collector: [`crate::gc`] has the proof.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use crate::Store;
use crate::chunk::{ChunkEntry, Encoded};
use crate::error::{Error, Result};
use crate::gc::session::{Renewal, Session};
use crate::id::{ChunkId, StateId, Tenant};
use crate::manifest::Manifest;
use crate::names;
use crate::put::{Draft, table};
use crate::roots::{NewRoot, Root, RootMode};

/// Rounds after which a writer gives up: so many lists were made while it tried.
const ROUNDS: usize = 16;

/// What is on its way to a root.
struct Publishing<'a> {
    tenant: &'a Tenant,
    manifest: Manifest,
    session: Session,
    /// Another state whose chunks are there while its manifest is.
    base: Option<StateId>,
    /// Whether chunks may be gone.
    doubt: bool,
}

impl Store {
    /// Makes a draft a root. When this returns, the state is durable and stays while the root is there.
    pub async fn publish(&self, draft: Draft, new: NewRoot) -> Result<Root> {
        let Draft { tenant, manifest, session, base, table, .. } = draft;
        let publishing = Publishing { tenant: &tenant, manifest, session, base, doubt: false };
        let root = self.publish_manifest(publishing, &new).await?;
        if let Some(table) = table {
            self.cache.put(&table::path(&tenant, root.state), table.encode().into()).await;
        }
        Ok(root)
    }

    /// Makes another root for a state that is in the store. The root's state may be another id for the same
    /// content, if the collector was about to delete the old one.
    pub async fn put_root(&self, tenant: &Tenant, state: StateId, new: NewRoot) -> Result<Root> {
        let session = self.session(tenant).await?;
        if self.backend.head(&names::manifest(tenant, state)).await?.is_none() {
            return Err(Error::NotFound { what: format!("state {state}") });
        }
        let manifest = (*self.manifest(tenant, state).await?).clone();
        // Chunks of a state that is condemned may be gone already.
        let doubt = session.is_condemned(&names::manifest(tenant, state));
        let publishing = Publishing { tenant, manifest, session, base: None, doubt };
        self.publish_manifest(publishing, &new).await
    }

    async fn publish_manifest(&self, publishing: Publishing<'_>, new: &NewRoot) -> Result<Root> {
        new.check()?;
        let tenant = publishing.tenant;
        let mut written = false;
        let published = self.publish_rounds(publishing, new, &mut written).await;
        if let (Err(Error::Expired(_)), true, RootMode::Create) = (&published, written, new.mode) {
            // It was ours alone, and what it names is not all there.
            self.backend.delete(&names::root(tenant, &new.kind, &new.name)).await?;
        }
        published
    }

    async fn publish_rounds(
        &self,
        publishing: Publishing<'_>,
        new: &NewRoot,
        written: &mut bool,
    ) -> Result<Root> {
        let Publishing { tenant, mut manifest, mut session, base, mut doubt } = publishing;
        let session = &mut session;
        for _ in 0..ROUNDS {
            if std::mem::take(&mut doubt) {
                self.verify_chunks(tenant, session, &manifest, base).await?;
            }
            self.move_condemned(tenant, session, &mut manifest).await?;
            // From here to the root there is nothing but two requests.
            let mut renewal = self.renew(tenant, session).await?;
            if renewal == Renewal::Same {
                let state = self.write_manifest(tenant, session, &mut manifest).await?;
                let root = Root::of(new, state);
                // Once the root is ours it is replaced.
                let mode = if *written { RootMode::Replace } else { new.mode };
                self.write_root(tenant, &root, mode).await?;
                *written = true;
                renewal = self.renew(tenant, session).await?;
                if renewal == Renewal::Same {
                    return Ok(root);
                }
            }
            doubt = renewal == Renewal::Missed;
        }
        Err(Error::Unavailable {
            doing: format!("writing {} {}", new.kind, new.name),
            reason: "the collector made lists all the time".into(),
        })
    }

    /// Looks whether all chunks are there that are not those of a base that is there and not condemned.
    async fn verify_chunks(
        &self,
        tenant: &Tenant,
        session: &Session,
        manifest: &Manifest,
        base: Option<StateId>,
    ) -> Result<()> {
        let known = self.chunks_of(tenant, session, base).await?;
        let unknown: Vec<ChunkEntry> =
            manifest.chunks.iter().filter(|chunk| !known.contains(&key(chunk))).cloned().collect();
        let mut looks = futures_util::stream::iter(unknown)
            .map(|chunk| async move {
                let path = names::chunk(tenant, chunk.id, chunk.generation);
                Ok::<_, Error>((self.is_stored(&path, &chunk).await?, path))
            })
            .buffer_unordered(self.backend.limits.parallel);
        while let Some((there, path)) = looks.try_next().await? {
            if !there {
                return Err(Error::Expired(format!("{path} is gone")));
            }
        }
        Ok(())
    }

    async fn chunks_of(
        &self,
        tenant: &Tenant,
        session: &Session,
        state: Option<StateId>,
    ) -> Result<HashSet<(ChunkId, u32)>> {
        let Some(state) = state else { return Ok(HashSet::new()) };
        let path = names::manifest(tenant, state);
        if session.is_condemned(&path) || self.backend.head(&path).await?.is_none() {
            return Ok(HashSet::new());
        }
        Ok(self.manifest(tenant, state).await?.chunks.iter().map(key).collect())
    }

    /// Writes chunks that are condemned again, under another generation.
    async fn move_condemned(
        &self,
        tenant: &Tenant,
        session: &Session,
        manifest: &mut Manifest,
    ) -> Result<()> {
        let condemned = |chunk: &ChunkEntry| {
            session.is_condemned(&names::chunk(tenant, chunk.id, chunk.generation))
        };
        let numbers: Vec<usize> =
            (0..manifest.chunks.len()).filter(|at| condemned(&manifest.chunks[*at])).collect();
        let entries: Vec<_> = numbers.iter().map(|at| manifest.chunks[*at].clone()).collect();
        let moves = futures_util::stream::iter(entries)
            .map(|entry| async move {
                let object =
                    self.chunk_object(tenant, &entry).await.map_err(|error| match error {
                        lost if lost.is_loss() => Error::Expired(lost.to_string()),
                        other => other,
                    })?;
                let placed = self.place_chunk(tenant, session, Encoded { entry, object }).await?;
                Ok::<_, Error>(placed.entry)
            })
            .buffered(self.backend.limits.parallel);
        let moved: Vec<_> = moves.try_collect().await?;
        for (at, entry) in numbers.into_iter().zip(moved) {
            manifest.chunks[at] = entry;
        }
        Ok(())
    }

    /// Writes the manifest, salted so that its name is not condemned.
    async fn write_manifest(
        &self,
        tenant: &Tenant,
        session: &Session,
        manifest: &mut Manifest,
    ) -> Result<StateId> {
        loop {
            let (state, object) = manifest.encode().map_err(Error::Bad)?;
            let path = names::manifest(tenant, state);
            if session.is_condemned(&path) {
                manifest.salt = manifest.salt.wrapping_add(1);
                continue;
            }
            let object = Bytes::from(object);
            match self.backend.put_new(&path, object.clone()).await {
                Ok(()) => {}
                Err(Error::Exists { .. }) => {
                    // The same, or what is left of it.
                    let there = self.backend.head(&path).await?;
                    if there.is_none_or(|meta| meta.size != object.len() as u64) {
                        self.backend.put(&path, object.clone()).await?;
                    }
                }
                Err(error) => return Err(error),
            }
            if self.backend.is_remote() {
                self.cache.put(&path, object).await;
            }
            return Ok(state);
        }
    }
}

fn key(chunk: &ChunkEntry) -> (ChunkId, u32) {
    (chunk.id, chunk.generation)
}
