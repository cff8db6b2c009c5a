//! Volumes, and giving them to sandboxes.

use reqwest::Method;

use crate::api::{AttachVolume, CreateVolume, Sandbox, Volume, VolumeList};
use crate::transport::MAKE_TIME;
use crate::{Client, Error};

impl Client {
    /// Makes a volume.
    pub async fn create_volume(&self, request: &CreateVolume) -> Result<Volume, Error> {
        self.post(&["volumes"], request, MAKE_TIME).await
    }

    /// All volumes, by name.
    pub async fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let list: VolumeList = self.get(&["volumes"]).await?;
        Ok(list.volumes)
    }

    /// A volume, by name or id.
    pub async fn volume(&self, volume: &str) -> Result<Volume, Error> {
        self.get(&["volumes", volume]).await
    }

    /// Removes a volume that no sandbox has, and everything in it.
    pub async fn delete_volume(&self, volume: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["volumes", volume])).await
    }

    /// Gives a running sandbox a volume.
    pub async fn attach_volume(&self, id: &str, request: &AttachVolume) -> Result<Sandbox, Error> {
        self.post(&["sandboxes", id, "volumes"], request, MAKE_TIME).await
    }

    /// Takes a volume, or a snapshot of one, from a running sandbox: by name, id, or where it is.
    pub async fn detach_volume(&self, id: &str, volume: &str) -> Result<Sandbox, Error> {
        let request = self.request(Method::DELETE, &["sandboxes", id, "volumes", volume]);
        self.answer(request, MAKE_TIME).await
    }
}
