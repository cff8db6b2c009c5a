//! What the disks of a state are changes of: the image below its root, and its disk when it was empty.
//!
//! Both are named by digests of their content, never by where they are: a machine is restored over a file only if the file
//! is known to have the digest that the state's record says. An image's file in the library has its digest as its name
//! and is never written again. The empty disk is this host's own of that size if that has the digest, and otherwise
//! one that came along and is in the library as well. What is in neither place is fetched from the store, where it is a
//! state with one file, kept by a root of its own, and verified before it gets its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ramet_proto::needs::Needs;
use ramet_store::{Hot, NewRoot, Tenant};

use super::commits::COMMIT_ROOT;
use super::moves::{MOVES_MAX, TEMPLATE_ROOT};
use crate::host::Origin;
use crate::sandbox::Service;
use crate::sandbox::error::{Error, FILES_ONLY};
use crate::sandbox::images::blocking;
use crate::sandbox::library::IMAGE_MAX;
use crate::sandbox::record::Root;

/// Name of the only file of such a state.
const FILE: &str = "base";

/// What is below a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// A root filesystem.
    Image,
    /// An empty disk.
    Disk,
}

impl Base {
    /// What keeps it in the store.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Disk => "disk",
        }
    }

    /// Those of a line, with their digests.
    pub fn of(root: &Root) -> [(Self, &str); 2] {
        [(Self::Image, &root.image), (Self::Disk, &root.data)]
    }
}

impl Service {
    /// An error if a machine with these needs cannot go on here. One of which they are not known may be tried.
    pub(in crate::sandbox) async fn check_needs(
        &self,
        needs: Option<&Needs>,
        what: &str,
    ) -> Result<(), Error> {
        let Some(needs) = needs else { return Ok(()) };
        let here = self.host.call(|engine| engine.needs()).await?;
        needs.check(&here).map_err(|why| {
            Error::Incompatible(format!("{what} cannot go on on this host: {why}; {FILES_ONLY}"))
        })
    }

    /// What a state is restored over.
    pub(in crate::sandbox) async fn origin_over(
        &self,
        owner: &Tenant,
        root: &Root,
    ) -> Result<Origin, Error> {
        let image = if root.image.is_empty() { self.library.base() } else { &root.image };
        if let Err(missing) = self.library.root(image) {
            self.fetch_base(owner, Base::Image, image, missing).await?;
        }
        let mut data = None;
        if !root.data.is_empty() && self.own_disk(root.shape.disk_mib).await?.1 != root.data {
            if self.library.disk(&root.data).is_none() {
                let missing = Error::WrongState(format!("the disk {} is not there", root.data));
                self.fetch_base(owner, Base::Disk, &root.data, missing).await?;
            }
            data = self.library.disk(&root.data);
        }
        Ok(Origin { shape: root.shape, root: self.library.root(image)?, data })
    }

    /// This host's own empty disk of a size, and its digest.
    async fn own_disk(&self, disk_mib: u32) -> Result<(PathBuf, String), Error> {
        let path = self.host.call(move |engine| engine.empty_disk(disk_mib)).await?;
        let library = self.library.clone();
        blocking(move || {
            let digest = library.digest_of_disk(&path)?;
            Ok((path, digest))
        })
        .await
    }

    /// Says what a line is over, and sees to it that it stays, whatever becomes of the guest's files.
    pub(in crate::sandbox) async fn keep_bases(&self, root: &mut Root) -> Result<(), Error> {
        if root.data.is_empty() {
            root.data = self.own_disk(root.shape.disk_mib).await?.1;
        }
        if root.image.is_empty() {
            root.image = self.library.base().to_owned();
        }
        let (library, image) = (self.library.clone(), root.image.clone());
        // A guest without files has none to keep.
        if image.is_empty() {
            return Ok(());
        }
        blocking(move || library.keep(&image)).await
    }

    /// Whether something that a line is over is here.
    pub(super) async fn has_base(&self, base: Base, root: &Root) -> Result<bool, Error> {
        match base {
            Base::Image => Ok(self.library.root(&root.image).is_ok()),
            Base::Disk => {
                let own = self.own_disk(root.shape.disk_mib).await?.1 == root.data;
                Ok(own || self.library.disk(&root.data).is_some())
            }
        }
    }

    /// Puts what a line is over into the store, each under a root of its own.
    pub(super) async fn store_bases(
        &self,
        owner: &Tenant,
        root: &Root,
    ) -> Result<Vec<ramet_store::Root>, Error> {
        let mut roots = Vec::new();
        for (base, digest) in Base::of(root) {
            roots.push(self.store_base(owner, base, digest, root).await?);
        }
        Ok(roots)
    }

    async fn store_base(
        &self,
        owner: &Tenant,
        base: Base,
        digest: &str,
        root: &Root,
    ) -> Result<ramet_store::Root, Error> {
        let vault = self.vault().await?.clone();
        match vault.store().root(owner, base.kind(), digest).await {
            Err(ramet_store::Error::NotFound { .. }) => {}
            found => return Ok(found?),
        }
        let file = self.base_file(owner, base, root).await?;
        let directory = vault.fresh()?;
        let placed = directory.clone();
        blocking(move || place(&file, &placed)).await?;
        let new = NewRoot::new(base.kind(), digest, serde_json::json!({}));
        let stored = async {
            let draft = vault.store().put_state(owner, &directory, None, Hot::new()).await?;
            match vault.store().publish(draft, new).await {
                Err(ramet_store::Error::Exists { .. }) => {
                    vault.store().root(owner, base.kind(), digest).await
                }
                published => published,
            }
        };
        let stored = stored.await;
        // What cannot be removed now goes at the next start.
        drop(blocking(move || Ok(std::fs::remove_dir_all(directory)?)).await);
        Ok(stored?)
    }

    async fn base_file(&self, owner: &Tenant, base: Base, root: &Root) -> Result<PathBuf, Error> {
        let origin = self.origin_over(owner, root).await?;
        match (base, origin.root, origin.data) {
            (Base::Image, Some(path), _) | (Base::Disk, _, Some(path)) => Ok(path),
            (Base::Image, None, _) => Ok(self.library.base_file()),
            (Base::Disk, _, None) => Ok(self.own_disk(root.shape.disk_mib).await?.0),
        }
    }

    /// Forgets what is in the store only to be under disks, and that no commit or template there is over. What a move
    /// brings is not forgotten while it is under way.
    pub(super) async fn forget_bases(&self, owner: &Tenant) -> Result<(), Error> {
        let all = u32::try_from(MOVES_MAX).unwrap_or(u32::MAX);
        let Ok(_alone) = self.moves.try_acquire_many(all) else { return Ok(()) };
        let vault = self.vault().await?;
        let mut needed = BTreeSet::new();
        for kind in [COMMIT_ROOT, TEMPLATE_ROOT] {
            for root in vault.roots(owner, kind).await? {
                // Of a commit, and of a template.
                let places = ["/root/image", "/root/data", "/image", "/data"];
                let named = places.iter().filter_map(|place| root.value.pointer(place));
                needed.extend(named.filter_map(|digest| Some(digest.as_str()?.to_owned())));
            }
        }
        for kind in [Base::Image.kind(), Base::Disk.kind()] {
            for root in vault.roots(owner, kind).await? {
                if !needed.contains(&root.name) {
                    vault.store().delete_root(owner, kind, &root.name).await?;
                }
            }
        }
        Ok(())
    }

    /// Brings something from the store into the library, verified. The error is that it is missing, if it is not there.
    async fn fetch_base(
        &self,
        owner: &Tenant,
        base: Base,
        digest: &str,
        missing: Error,
    ) -> Result<(), Error> {
        let vault = self.vault().await?.clone();
        let root = match vault.store().root(owner, base.kind(), digest).await {
            Err(ramet_store::Error::NotFound { .. }) => return Err(missing),
            found => found?,
        };
        let manifest = vault.store().manifest(owner, root.state).await?;
        let length = match manifest.blobs.as_slice() {
            [blob] if blob.name == FILE && blob.length <= IMAGE_MAX => {
                manifest.totals().content_bytes
            }
            _ => return Err(Error::Bad(format!("what came as {digest} is no file of a disk"))),
        };
        let (library, directory) = (self.library.clone(), vault.fresh()?);
        let made = directory.clone();
        blocking(move || {
            library.room(length)?;
            Ok(std::fs::create_dir_all(&made)?)
        })
        .await?;
        let fetched = vault.store().fetch_state(owner, root.state, &directory, |_| ()).await;
        let (library, digest) = (self.library.clone(), digest.to_owned());
        blocking(move || {
            let adopted = fetched.map_err(Error::from).and_then(|_| match base {
                Base::Image => library.adopt_image(&directory.join(FILE), &digest),
                Base::Disk => library.adopt_disk(&directory.join(FILE), &digest),
            });
            // What cannot be removed now goes at the next start.
            let _left = std::fs::remove_dir_all(&directory);
            adopted
        })
        .await
    }
}

/// Makes a directory with this file alone in it.
fn place(file: &Path, directory: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(directory)?;
    let target = directory.join(FILE);
    // A symlink would be linked itself, and not the file that it leads to.
    let file = &file.canonicalize()?;
    if std::fs::hard_link(file, &target).is_err() {
        std::fs::copy(file, &target)?;
    }
    Ok(())
}
