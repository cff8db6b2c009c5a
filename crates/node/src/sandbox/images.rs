//! Images by name. Their bytes are in the library, once for each digest.
//!
//! An image's file stays as long as an image or a template needs it. The image `base` is the guest's own
//! and can be neither replaced nor deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ramet_proto::api::{self, BASE_IMAGE};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::library::{self, Upload};
use super::record::{Phase, Root};
use super::template::Template;
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::now_ms;

/// Most images.
const IMAGES_MAX: usize = 256;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Principal.
    pub owner: String,
    /// Name, unique among the owner's.
    pub name: String,
    /// Of its bytes.
    pub digest: String,
    /// Length.
    pub size_bytes: u64,
    /// When it came.
    pub created_at_ms: u64,
}

/// All of them, by owner and name.
#[derive(Debug, Default)]
pub struct Images(Mutex<BTreeMap<(String, String), Image>>);

impl Images {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(String, String), Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one in.
    pub fn put(&self, image: Image) -> Option<Image> {
        self.all().insert((image.owner.clone(), image.name.clone()), image)
    }

    /// Every digest that has a name.
    pub fn digests(&self) -> Vec<String> {
        self.all().values().map(|image| image.digest.clone()).collect()
    }

    fn get(&self, who: &Principal, name: &str) -> Option<Image> {
        self.all().get(&(who.name().to_owned(), name.to_owned())).cloned()
    }

    fn has(&self, who: &Principal, digest: &str) -> Option<Image> {
        let all = self.all();
        all.values().find(|image| image.owner == who.name() && image.digest == digest).cloned()
    }
}

/// An image on its way here. Dropped before its end, it leaves nothing behind.
pub struct ImageSink {
    service: Service,
    who: Principal,
    name: String,
    digest: String,
    /// Taken while a blocking thread has it.
    upload: Option<Upload>,
    operation: Option<i64>,
}

impl Drop for ImageSink {
    fn drop(&mut self) {
        self.note(Some(&Error::Bad("the client broke off".to_owned())));
    }
}

impl ImageSink {
    /// The next bytes.
    pub async fn data(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        let written = self
            .with_upload(move |mut upload| {
                upload.write(&bytes)?;
                Ok(upload)
            })
            .await;
        match written {
            Ok(upload) => {
                self.upload = Some(upload);
                Ok(())
            }
            Err(error) => {
                self.note(Some(&error));
                Err(error)
            }
        }
    }

    /// The image is whole.
    pub async fn finish(mut self) -> Result<api::Image, Error> {
        let result = self.end().await;
        self.note(result.as_ref().err());
        result
    }

    fn note(&mut self, error: Option<&Error>) {
        if let Some(number) = self.operation.take() {
            self.service.note(number, "image_put", error);
        }
    }

    async fn with_upload<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Upload) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Some(upload) = self.upload.take() else {
            return Err(Error::Internal("an upload that is over".to_owned()));
        };
        blocking(move || work(upload)).await
    }

    async fn end(&mut self) -> Result<api::Image, Error> {
        let empty = self.upload.as_ref().is_some_and(|upload| upload.length == 0);
        let known = self.service.images.has(&self.who, &self.digest).filter(|_| empty);
        let size_bytes = match known {
            Some(image) => image.size_bytes,
            None if empty => {
                let text = "the body is empty, and no image of yours has this digest";
                return Err(Error::Bad(text.to_owned()));
            }
            None => {
                let (library, digest) = (self.service.library.clone(), self.digest.clone());
                self.with_upload(move |upload| library.publish(upload, &digest)).await?
            }
        };
        let image = Image {
            owner: self.who.name().to_owned(),
            name: self.name.clone(),
            digest: self.digest.clone(),
            size_bytes,
            created_at_ms: now_ms(),
        };
        self.service.store.put_image(&image)?;
        let before = self.service.images.put(image.clone());
        if let Some(before) = before.filter(|before| before.digest != image.digest) {
            self.service.drop_image_if_unused(&before.digest).await;
        }
        Ok(self.service.shown_image(&self.who, &image))
    }
}

/// Runs file work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let task = tokio::task::spawn_blocking(work).await;
    task.unwrap_or_else(|error| Err(Error::Internal(error.to_string())))
}

impl Service {
    /// The digest of an image that is meant.
    pub(super) fn image_digest(&self, who: &Principal, name: &str) -> Result<String, Error> {
        if name == BASE_IMAGE {
            return Ok(self.library.base().to_owned());
        }
        self.images.get(who, name).map(|image| image.digest).ok_or_else(|| not_found(name))
    }

    /// All that the caller can use.
    pub fn list_images(&self, who: &Principal) -> api::ImageList {
        let own: Vec<Image> =
            self.images.all().values().filter(|image| image.owner == who.name()).cloned().collect();
        let own = own.iter().map(|image| self.shown_image(who, image));
        api::ImageList { images: self.base_image(who).into_iter().chain(own).collect() }
    }

    /// One of them.
    pub fn get_image(&self, who: &Principal, name: &str) -> Result<api::Image, Error> {
        let found = match name {
            BASE_IMAGE => self.base_image(who),
            _ => self.images.get(who, name).map(|image| self.shown_image(who, &image)),
        };
        found.ok_or_else(|| not_found(name))
    }

    fn base_image(&self, who: &Principal) -> Option<api::Image> {
        let (size_bytes, created_at_ms) = self.library.base_stat()?;
        let image = Image {
            owner: String::new(),
            name: BASE_IMAGE.to_owned(),
            digest: self.library.base().to_owned(),
            size_bytes,
            created_at_ms,
        };
        Some(api::Image { built_in: true, ..self.shown_image(who, &image) })
    }

    fn shown_image(&self, who: &Principal, image: &Image) -> api::Image {
        api::Image {
            name: image.name.clone(),
            built_in: false,
            digest: image.digest.clone(),
            size_bytes: image.size_bytes,
            created_at_ms: image.created_at_ms,
            templates: self.shelf.names_on(who, &image.digest),
        }
    }

    /// Begins to take an image in. The length is what the caller announces, if it does.
    pub async fn put_image(
        &self,
        who: &Principal,
        name: &str,
        query: api::PutImageQuery,
        length: Option<u64>,
    ) -> Result<ImageSink, Error> {
        check::name(name)?;
        if name == BASE_IMAGE {
            return Err(Error::Bad(format!("the image {BASE_IMAGE} is the node's own")));
        }
        if !library::is_digest(&query.digest) {
            let text = "digest: the BLAKE3 of the bytes, 64 digits in lower-case hex";
            return Err(Error::Bad(text.to_owned()));
        }
        if length.is_some_and(|length| length > library::IMAGE_MAX) {
            let text = format!("an image has at most {} bytes", library::IMAGE_MAX);
            return Err(Error::TooLarge(text));
        }
        if self.images.get(who, name).is_none() && self.images.all().len() >= IMAGES_MAX {
            let text = format!("this node has {IMAGES_MAX} images, the most; delete some");
            return Err(Error::TooMany(text));
        }
        let library = self.library.clone();
        let upload = blocking(move || {
            library.room(length.unwrap_or(0))?;
            library.upload()
        });
        let upload = Some(upload.await?);
        let operation =
            Some(self.store.begin_operation(who.name(), "image_put", name, now_ms())?);
        let (service, who, name) = (self.clone(), who.clone(), name.to_owned());
        Ok(ImageSink { service, who, name, digest: query.digest, upload, operation })
    }

    /// Deletes an image that no template is built on.
    pub async fn delete_image(&self, who: &Principal, name: &str) -> Result<(), Error> {
        if name == BASE_IMAGE {
            return Err(Error::Bad(format!("the image {BASE_IMAGE} is the node's own")));
        }
        let image = self.images.get(who, name).ok_or_else(|| not_found(name))?;
        let (service, target) = (self.clone(), name.to_owned());
        self.operate(who, "image_delete", &target, async move {
            let used = service.shelf.all().into_iter().find(|one| one.needs(&image.digest));
            if let Some(template) = used {
                return Err(Error::InUse(format!(
                    "the template {} is built on the image {}; delete it first",
                    template.name, image.name
                )));
            }
            service.store.forget_image(&image)?;
            service.images.all().remove(&(image.owner.clone(), image.name.clone()));
            service.drop_image_if_unused(&image.digest).await;
            Ok(())
        })
        .await
    }

    /// Something that went on from these is gone: removes what nothing else needs.
    pub(super) async fn drop_bases(&self, root: &Root) {
        if self.library.has(&root.image) {
            self.drop_image_if_unused(&root.image).await;
        }
        if self.library.disk(&root.data).is_some() {
            self.drop_image_if_unused(&root.data).await;
        }
    }

    /// Digests of all images and disks that something here needs: an image's name, a template, a sandbox, a commit.
    pub(super) fn images_needed(&self) -> BTreeSet<String> {
        let mut needed: BTreeSet<String> = self.images.digests().into_iter().collect();
        let failed = |one: &Template| one.state == api::TemplateState::Failed;
        for template in self.shelf.all().into_iter().filter(|one| !failed(one)) {
            needed.extend([template.image, template.data]);
        }
        let registry = self.registry();
        for record in registry.all().filter(|record| record.phase != Phase::Gone) {
            needed.extend([record.image.clone(), record.data.clone()]);
        }
        for commit in registry.commits_of_all() {
            needed.extend([commit.root.image.clone(), commit.root.data.clone()]);
        }
        needed
    }

    /// Removes the file of an image that nothing needs any more, and the machine that was booted from it. What
    /// fails is logged: the next start removes what is not named.
    pub(super) async fn drop_image_if_unused(&self, digest: &str) {
        let named = self.images.digests().iter().any(|own| own == digest);
        if named || self.shelf.all().iter().any(|template| template.needs(digest)) {
            return;
        }
        if digest != self.library.base() {
            for (booted, machine) in self.boots.remove_image(digest) {
                if let Err(error) = self.store.remove_boot(&booted) {
                    tracing::error!(?error, "a machine could not be forgotten");
                }
                self.kill(machine).await;
            }
        }
        // Sandboxes and commits need the file to go on from what is stored.
        if self.images_needed().contains(digest) {
            return;
        }
        let (library, digest) = (Arc::clone(&self.library), digest.to_owned());
        let removed = blocking(move || Ok(library.remove_image(&digest)?)).await;
        if let Err(error) = removed {
            tracing::error!(?error, "an image could not be removed");
        }
    }
}

fn not_found(name: &str) -> Error {
    Error::NotFound { what: "image", key: name.to_owned() }
}
