//! A backend between the store and another one that can fail, lie, wait or let a test decide who goes on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails and does nothing.
    Before,
    /// It does what it should, and the answer is lost.
    After,
    /// The disk is full.
    Full,
    /// What is read has a flipped bit.
    Flip,
    /// What is read is too short.
    Short,
    /// It never ends.
    Hang,
    /// It takes its time.
    Slow,
}

/// Decides about each request: what it does, and with which object.
pub type Hook = Arc<dyn Fn(&str, &str) -> BoxFuture<'static, Fault> + Send + Sync>;

/// The backend.
#[derive(Clone)]
pub struct Hooked {
    inner: Arc<dyn ObjectStore>,
    hook: Hook,
}

impl Hooked {
    pub fn new(inner: Arc<dyn ObjectStore>, hook: Hook) -> Self {
        Self { inner, hook }
    }

    async fn ask(&self, verb: &'static str, path: Option<&Path>) -> Result<Fault> {
        let path = path.map(Path::to_string).unwrap_or_default();
        let fault = (self.hook)(verb, &path).await;
        match fault {
            Fault::Before => Err(failure("broken")),
            Fault::Full => Err(Error::Generic {
                store: "hooked",
                source: Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
            }),
            Fault::Hang => std::future::pending().await,
            Fault::Slow => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok(fault)
            }
            other => Ok(other),
        }
    }
}

fn failure(message: &str) -> Error {
    Error::Generic { store: "hooked", source: message.into() }
}

fn lost<T>(fault: Fault, value: T) -> Result<T> {
    match fault {
        Fault::After => Err(failure("the answer is lost")),
        _ => Ok(value),
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:?})", self.inner)
    }
}

impl fmt::Display for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Hooked {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let fault = self.ask("put", Some(path)).await?;
        let done = self.inner.put_opts(path, payload, options).await?;
        lost(fault, done)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ask("multipart", Some(path)).await?;
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let verb = if options.head { "head" } else { "get" };
        let fault = self.ask(verb, Some(path)).await?;
        let mut found = self.inner.get_opts(path, options).await?;
        if !matches!(fault, Fault::Flip | Fault::Short) || verb == "head" {
            return lost(fault, found);
        }
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let attributes = std::mem::take(&mut found.attributes);
        let extensions = std::mem::take(&mut found.extensions);
        let mut bytes = found.bytes().await?.to_vec();
        match (fault, bytes.len()) {
            (_, 0) => {}
            (Fault::Flip, length) => bytes[length / 2] ^= 0x10,
            (_, length) => bytes.truncate(length / 2),
        }
        let payload = stream::once(async move { Ok(Bytes::from(bytes)) }).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            meta,
            range,
            attributes,
            extensions,
        })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        paths
            .then(move |path| {
                let this = this.clone();
                async move {
                    let path = path?;
                    let fault = this.ask("delete", Some(&path)).await?;
                    this.inner.delete(&path).await?;
                    lost(fault, path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        stream::once(async move {
            let fault = this.ask("list", prefix.as_ref()).await?;
            let listed = this.inner.list(prefix.as_ref());
            let end = stream::iter(lost(fault, ()).err().map(Err));
            Ok::<_, Error>(listed.chain(end))
        })
        .try_flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fault = self.ask("list", prefix).await?;
        lost(fault, self.inner.list_with_delimiter(prefix).await?)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.ask("copy", Some(from)).await?;
        self.inner.copy_opts(from, to, options).await?;
        lost(fault, ())
    }
}
