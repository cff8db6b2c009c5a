//! States as OCI artifacts in a registry.
//!
//! | part | media type | content |
//! |---|---|---|
//! | config | [`ROOTS`] | roots with their signatures, JSON |
//! | layer | [`MANIFEST`] | a manifest, as it is in a store |
//! | layer | [`CHUNK`] | a chunk, as it is in a store; its annotation says which |
//!
//! A registry has a blob once for each repository, so a chunk that is there does not travel again, in either direction.
//! Registries bound the size of a manifest: an artifact of more than [`PART`] layers is an index of manifests, which
//! all have the same config.
//!
//! Nothing that a registry says is believed. Blobs have the digest they were asked for by, roots are verified by their
//! signatures, manifests by their ids, and chunks by the hashes in the manifests. The tag is written last: an artifact
//! that is there is whole.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError as Theirs, OciErrorCode};
use oci_client::manifest::{
    ImageIndexEntry, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, OciDescriptor,
    OciImageIndex, OciImageManifest, OciManifest,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWrite;

use crate::Store;
use crate::chunk::{self, ChunkEntry};
use crate::error::{Error, Result};
use crate::id::{ChunkId, StateId, Tenant, hex};
use crate::manifest::{self, Manifest};
use crate::pack::Unpacking;
use crate::parcel::{Meter, PackedRoot, Parcel, ROOTS_MAX};
use crate::remote::Repository;
use crate::roots::Root;
use crate::transfer::Trust;

/// What the artifact is.
const ARTIFACT: &str = "application/vnd.ramet.state.v1";
/// Roots.
const ROOTS: &str = "application/vnd.ramet.roots.v1+json";
/// A manifest.
const MANIFEST: &str = "application/vnd.ramet.manifest.v1";
/// A chunk.
const CHUNK: &str = "application/vnd.ramet.chunk.v1";
/// Which state or chunk a layer is.
const NAME: &str = "dev.ramet.name";
/// Layers of one manifest, at most: about 300 bytes each, of the 4 MiB that registries take.
pub const PART: usize = 8000;
/// Manifests of an index, at most.
const PARTS_MAX: usize = 1000;
/// Bytes of all roots, at most.
const ROOTS_BYTES_MAX: usize = 8 << 20;
/// Requests at once.
const PARALLEL: usize = 8;
/// Attempts for each request, and the time between the first two.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Time for each attempt; a blob has at most a few MiB.
const TIME: Duration = Duration::from_secs(120);
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Who asks a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// Nobody in particular.
    Anonymous,
    /// A name and a password.
    Basic(String, String),
    /// A token.
    Bearer(String),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic(..) => "Basic(..)",
            Self::Bearer(_) => "Bearer(..)",
        })
    }
}

/// A repository of a registry, as it is reached.
#[derive(Clone)]
pub struct Registry {
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
    part: usize,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({})", self.reference)
    }
}

/// The config.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Roots {
    roots: Vec<PackedRoot>,
}

/// An artifact that can be pulled: what it holds is known, and nothing was stored.
#[derive(Debug)]
pub struct Artifact {
    /// What it holds. What is left out of it is not pulled.
    pub parcel: Parcel,
    registry: Registry,
    /// Blobs of chunks.
    blobs: HashMap<String, OciDescriptor>,
}

impl Registry {
    /// A repository. Nothing is asked yet.
    pub fn new(repository: &Repository, login: Login) -> Result<Self> {
        // Another part of the process may have chosen a provider already; any will do.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let reference: Reference =
            repository.reference.parse().map_err(|error: oci_client::ParseError| {
                Error::bad(format!("{}: {error}", repository.reference))
            })?;
        let client = Client::new(ClientConfig {
            protocol: match repository.plain {
                true => ClientProtocol::Http,
                false => ClientProtocol::Https,
            },
            use_monolithic_push: true,
            read_timeout: Some(TIME),
            connect_timeout: Some(CONNECT_TIME),
            user_agent: concat!("ramet/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        let auth = match login {
            Login::Anonymous => RegistryAuth::Anonymous,
            Login::Basic(name, password) => RegistryAuth::Basic(name, password),
            Login::Bearer(token) => RegistryAuth::Bearer(token),
        };
        Ok(Self { client, reference, auth, part: PART })
    }

    /// With fewer layers in a manifest.
    #[cfg(feature = "testing")]
    pub fn with_part(mut self, layers: usize) -> Self {
        self.part = layers.max(1);
        self
    }

    /// A request, again if it failed for no reason of its own.
    async fn ask<T, F: Future<Output = std::result::Result<T, Theirs>>>(
        &self,
        doing: &str,
        request: impl Fn() -> F,
    ) -> Result<T> {
        let mut pause = PAUSE;
        let mut attempt = 1;
        loop {
            let failed = match tokio::time::timeout(TIME, request()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) if attempt < ATTEMPTS && is_passing(&error) => error.to_string(),
                Ok(Err(error)) => return Err(self.failure(doing, &error)),
                Err(_) if attempt < ATTEMPTS => "no answer in time".to_owned(),
                Err(_) => {
                    let reason = format!("no answer within {TIME:?}");
                    return Err(Error::Unavailable { doing: self.doing(doing), reason });
                }
            };
            tracing::debug!(failed, doing, "trying again");
            tokio::time::sleep(pause).await;
            (pause, attempt) = (pause * 2, attempt + 1);
        }
    }

    fn doing(&self, doing: &str) -> String {
        format!("{doing} {}", self.reference)
    }

    /// Our error for theirs.
    fn failure(&self, doing: &str, error: &Theirs) -> Error {
        let doing = self.doing(doing);
        let reason = error.to_string();
        let codes = |wanted: &[OciErrorCode]| match error {
            Theirs::RegistryError { envelope, .. } => {
                envelope.errors.iter().any(|one| wanted.contains(&one.code))
            }
            _ => false,
        };
        let status = status_of(error);
        match error {
            Theirs::ImageManifestNotFoundError(_) => Error::NotFound { what: doing },
            _ if status == Some(404)
                || codes(&[
                    OciErrorCode::ManifestUnknown,
                    OciErrorCode::NameUnknown,
                    OciErrorCode::BlobUnknown,
                    OciErrorCode::NotFound,
                ]) =>
            {
                Error::NotFound { what: format!("{} ({reason})", self.reference) }
            }
            Theirs::UnauthorizedError { .. } | Theirs::AuthenticationFailure(_) => {
                Error::Denied { doing, reason }
            }
            _ if matches!(status, Some(401 | 403))
                || codes(&[OciErrorCode::Unauthorized, OciErrorCode::Denied]) =>
            {
                Error::Denied { doing, reason }
            }
            Theirs::DigestError(_) => {
                Error::bad(format!("{}: the registry gave other bytes: {reason}", self.reference))
            }
            Theirs::IoError(inner) if inner.kind() == io::ErrorKind::InvalidData => {
                Error::bad(format!("{}: {inner}", self.reference))
            }
            _ => Error::Unavailable { doing, reason },
        }
    }

    /// Sees to it that a blob is there. The bytes that travelled, if they did.
    async fn put_blob(&self, digest: &str, bytes: &Bytes) -> Result<Option<u64>> {
        let there =
            self.ask("looking at", || self.client.blob_exists(&self.reference, digest)).await?;
        if there {
            return Ok(None);
        }
        self.ask("writing to", || self.client.push_blob(&self.reference, bytes.clone(), digest))
            .await?;
        Ok(Some(bytes.len() as u64))
    }

    /// A blob of at most so many bytes, with the digest that it is asked for by.
    async fn get_blob(&self, blob: &OciDescriptor, most: usize) -> Result<Bytes> {
        let most = usize::try_from(blob.size).unwrap_or(0).min(most);
        let read = self.ask("reading from", || async {
            let mut out = Bounded { bytes: Vec::new(), most };
            self.client.pull_blob(&self.reference, blob, &mut out).await?;
            Ok(Bytes::from(out.bytes))
        });
        read.await
    }

    async fn put_manifest(&self, reference: &Reference, bytes: &[u8], kind: &str) -> Result<()> {
        let kind: reqwest::header::HeaderValue =
            kind.parse().map_err(|_| Error::bad("no media type"))?;
        let put = || self.client.push_manifest_raw(reference, bytes.to_vec(), kind.clone());
        self.ask("writing to", put).await.map(drop)
    }

    /// Writes the manifest, or several and an index; the tag comes last.
    async fn put_artifact(&self, config: OciDescriptor, layers: Vec<OciDescriptor>) -> Result<()> {
        let manifest = |layers: &[OciDescriptor]| {
            let manifest = OciImageManifest {
                media_type: Some(OCI_IMAGE_MEDIA_TYPE.to_owned()),
                config: config.clone(),
                layers: layers.to_vec(),
                artifact_type: Some(ARTIFACT.to_owned()),
                ..OciImageManifest::default()
            };
            serde_json::to_vec(&manifest).map_err(|error| Error::bad(error.to_string()))
        };
        if layers.len() <= self.part {
            return self
                .put_manifest(&self.reference, &manifest(&layers)?, OCI_IMAGE_MEDIA_TYPE)
                .await;
        }
        let mut manifests = Vec::new();
        for part in layers.chunks(self.part) {
            let bytes = manifest(part)?;
            let digest = digest_of(&bytes);
            let reference = self.reference.clone_with_digest(digest.clone());
            self.put_manifest(&reference, &bytes, OCI_IMAGE_MEDIA_TYPE).await?;
            manifests.push(ImageIndexEntry {
                media_type: OCI_IMAGE_MEDIA_TYPE.to_owned(),
                digest,
                size: length(&bytes),
                platform: None,
                annotations: None,
                artifact_type: Some(ARTIFACT.to_owned()),
            });
        }
        let index = OciImageIndex {
            schema_version: 2,
            media_type: Some(OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned()),
            manifests,
            artifact_type: Some(ARTIFACT.to_owned()),
            annotations: None,
        };
        let bytes = serde_json::to_vec(&index).map_err(|error| Error::bad(error.to_string()))?;
        self.put_manifest(&self.reference, &bytes, OCI_IMAGE_INDEX_MEDIA_TYPE).await
    }

    /// The manifests of the artifact.
    async fn get_manifests(&self) -> Result<Vec<OciImageManifest>> {
        let (manifest, _) = self.get_manifest(&self.reference).await?;
        let index = match manifest {
            OciManifest::Image(manifest) => return Ok(vec![manifest]),
            OciManifest::ImageIndex(index) => index,
        };
        if index.manifests.len() > PARTS_MAX {
            return Err(self.refused("its index is too long"));
        }
        let mut all = Vec::new();
        for entry in index.manifests {
            let reference = self.reference.clone_with_digest(entry.digest.clone());
            match self.get_manifest(&reference).await? {
                (OciManifest::Image(manifest), digest) if digest == entry.digest => {
                    all.push(manifest);
                }
                _ => return Err(self.refused("its index leads to something else")),
            }
        }
        Ok(all)
    }

    async fn get_manifest(&self, reference: &Reference) -> Result<(OciManifest, String)> {
        self.ask("reading", || self.client.pull_manifest(reference, &self.auth)).await
    }

    fn refused(&self, what: &str) -> Error {
        Error::bad(format!("{} is no state of a machine: {what}", self.reference))
    }

    /// Looks at the artifact, and reads everything but its chunks.
    pub async fn open(self) -> Result<Artifact> {
        let manifests = self.get_manifests().await?;
        let config = manifests.first().map(|manifest| manifest.config.clone());
        let config = config.filter(|config| config.media_type == ROOTS);
        let config = config.ok_or_else(|| self.refused("its config is of another kind"))?;
        let json = self.get_blob(&config, ROOTS_BYTES_MAX).await?;
        let Roots { roots } = serde_json::from_slice(&json)
            .map_err(|error| self.refused(&format!("its roots make no sense: {error}")))?;
        if roots.is_empty() || roots.len() > ROOTS_MAX {
            return Err(self.refused("it has no roots, or too many"));
        }
        let mut named: HashMap<String, OciDescriptor> = HashMap::new();
        for layer in manifests.into_iter().flat_map(|manifest| manifest.layers) {
            let name = layer.annotations.as_ref().and_then(|all| all.get(NAME)).cloned();
            let name = name.filter(|_| [MANIFEST, CHUNK].contains(&layer.media_type.as_str()));
            let name = name.ok_or_else(|| self.refused("it has a layer that is unknown"))?;
            named.insert(name, layer);
        }
        let mut manifests = BTreeMap::new();
        for root in &roots {
            if let Entry::Vacant(place) = manifests.entry(root.state) {
                place.insert(Arc::new(self.read_manifest(&named, root.state).await?));
            }
        }
        let parcel = Parcel { roots, manifests };
        Ok(Artifact { parcel, registry: self, blobs: named })
    }

    async fn read_manifest(
        &self,
        named: &HashMap<String, OciDescriptor>,
        state: StateId,
    ) -> Result<Manifest> {
        let blob = named.get(&state.to_string());
        let blob = blob.ok_or_else(|| self.refused("a manifest is missing"))?;
        let object = self.get_blob(blob, manifest::OBJECT_MAX).await?;
        Manifest::decode(state, &object)
            .map_err(|reason| self.refused(&format!("it has a manifest that {reason}")))
    }
}

impl Store {
    /// Pushes roots and everything they need as one artifact.
    pub async fn push(
        &self,
        tenant: &Tenant,
        roots: &[Root],
        registry: &Registry,
        trust: Trust<'_>,
        meter: &Meter,
    ) -> Result<()> {
        let parcel = self.parcel(tenant, roots, trust).await?;
        let address = registry.reference.resolve_registry();
        registry.client.store_auth_if_needed(address, &registry.auth).await;
        let chunks = parcel.chunks();
        meter.expect(chunks.len());
        let mut layers: Vec<OciDescriptor> = Vec::new();
        for state in parcel.manifests.keys() {
            let object = self.manifest_object(tenant, *state).await?;
            let blob = layer(MANIFEST, &state.to_string(), &object);
            registry.put_blob(&blob.digest, &object).await?;
            layers.push(blob);
        }
        let sent = futures_util::stream::iter(chunks).map(|chunk| async move {
            let object = self.chunk_object(tenant, &chunk).await?;
            let blob = layer(CHUNK, &name_of(chunk.id, chunk.generation), &object);
            meter.done(registry.put_blob(&blob.digest, &object).await?);
            Ok::<_, Error>(blob)
        });
        layers.extend(sent.buffered(PARALLEL).try_collect::<Vec<_>>().await?);
        let json = serde_json::to_vec(&Roots { roots: parcel.roots })
            .map_err(|error| Error::bad(error.to_string()))?;
        let json = Bytes::from(json);
        let config = OciDescriptor { annotations: None, ..layer(ROOTS, "", &json) };
        registry.put_blob(&config.digest, &json).await?;
        registry.put_artifact(config, layers).await
    }

    /// Takes in what an artifact holds. Only what is not here is asked for.
    pub async fn pull(
        &self,
        tenant: &Tenant,
        artifact: Artifact,
        unpacking: Unpacking<'_>,
    ) -> Result<Vec<Root>> {
        let Artifact { parcel, registry, blobs } = artifact;
        let Unpacking { mode, trust, meter } = unpacking;
        meter.inspect(|meter| meter.expect(parcel.chunks().len()));
        let mut intake = self.intake(tenant, parcel, mode, trust).await?;
        for _ in 0..intake.look().await? {
            meter.inspect(|meter| meter.done(None));
        }
        let taken = {
            let (intake, registry, blobs) = (&intake, &registry, &blobs);
            let fetches = futures_util::stream::iter(intake.wanted()).map(|chunk| async move {
                let object = fetch_chunk(registry, blobs, &chunk).await?;
                let bytes = object.len() as u64;
                let here = intake.store_chunk(&chunk, object).await?;
                meter.inspect(|meter| meter.done(Some(bytes)));
                Ok::<_, Error>((chunk, here))
            });
            fetches.buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await?
        };
        for (chunk, here) in taken {
            intake.settle(&chunk, here);
        }
        intake.finish().await
    }
}

async fn fetch_chunk(
    registry: &Registry,
    blobs: &HashMap<String, OciDescriptor>,
    chunk: &ChunkEntry,
) -> Result<Bytes> {
    let blob = blobs.get(&name_of(chunk.id, chunk.generation));
    let blob = blob.ok_or_else(|| registry.refused("a chunk is missing"))?;
    registry.get_blob(blob, chunk::OBJECT_MAX).await
}

fn name_of(id: ChunkId, generation: u32) -> String {
    format!("{id}.{generation}")
}

fn layer(kind: &str, name: &str, bytes: &[u8]) -> OciDescriptor {
    OciDescriptor {
        media_type: kind.to_owned(),
        digest: digest_of(bytes),
        size: length(bytes),
        annotations: Some(BTreeMap::from([(NAME.to_owned(), name.to_owned())])),
        ..OciDescriptor::default()
    }
}

fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn length(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// The status that an error says, if it does.
fn status_of(error: &Theirs) -> Option<u16> {
    match error {
        Theirs::ServerError { code, .. } => Some(*code),
        Theirs::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    }
}

/// Whether another attempt may do better.
fn is_passing(error: &Theirs) -> bool {
    match (error, status_of(error)) {
        (_, Some(status)) => status >= 500 || status == 429,
        (Theirs::RequestError(error), None) => !error.is_builder(),
        // Bytes that were changed on their way may come whole the next time.
        (Theirs::DigestError(_), None) => true,
        (Theirs::IoError(error), None) => error.kind() != io::ErrorKind::InvalidData,
        (Theirs::RegistryError { envelope, .. }, None) => {
            envelope.errors.iter().any(|one| one.code == OciErrorCode::Toomanyrequests)
        }
        _ => false,
    }
}

/// Takes bytes up to a bound.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.bytes.len() + bytes.len() > self.most {
            let text = format!("a blob has more than {} bytes", self.most);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
