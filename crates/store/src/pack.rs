//! States in one file or stream.
//!
//! ```text
//! "RMTPACK1" │ entry │ entry │ …
//! entry: tag u8 │ id 32 bytes │ generation u32 │ length u64 │ payload
//! ```
//!
//! Entries come in this order: roots (`R`, JSON), manifests (`M`), chunks (`C`), the end (`E`, the BLAKE3 hash of
//! everything before it). A pack is whole by itself, unless it was made for somebody who has some of its chunks.
//!
//! A pack is input from somebody else. It is read once, front to back, with bounds on everything; each part is
//! verified before it is stored, signatures before any part is; what is not needed, comes twice or is missing, here as
//! well, makes it refused. Roots are made at the end: a pack that is refused leaves chunks that nothing reaches, and
//! no more.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Store;
use crate::chunk;
use crate::error::{Error, Result};
use crate::id::{ChunkId, Hash, StateId, Tenant};
use crate::manifest::{self, Manifest};
use crate::parcel::{Meter, PackedRoot, Parcel, ROOTS_MAX};
use crate::roots::{Root, RootMode};
use crate::transfer::Trust;

const MAGIC: &[u8; 8] = b"RMTPACK1";
const HEADER: usize = 45;
const ROOT_MAX: usize = 1 << 20;
/// Bytes of all manifests of a pack, at most.
const MANIFESTS_MAX: usize = 512 << 20;

/// What stands before a payload.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u8,
    id: Hash,
    generation: u32,
    length: u64,
}

impl Entry {
    fn bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.tag;
        bytes[1..33].copy_from_slice(&self.id);
        bytes[33..37].copy_from_slice(&self.generation.to_le_bytes());
        bytes[37..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn parse(bytes: [u8; HEADER]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (id, rest) = rest.split_first_chunk::<32>()?;
        let (generation, length) = rest.split_first_chunk::<4>()?;
        let generation = u32::from_le_bytes(*generation);
        Some(Self {
            tag: *tag,
            id: *id,
            generation,
            length: u64::from_le_bytes(*length.first_chunk()?),
        })
    }
}

/// A stream that is written, and its hash.
struct Out<W> {
    stream: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: AsyncWrite + Unpin> Out<W> {
    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.stream.write_all(bytes).await.map_err(|source| stream_failed("write", source))
    }

    async fn entry(&mut self, tag: u8, id: Hash, generation: u32, payload: &[u8]) -> Result<()> {
        let length = payload.len() as u64;
        self.write(&Entry { tag, id, generation, length }.bytes()).await?;
        self.write(payload).await
    }
}

fn stream_failed(doing: &str, source: std::io::Error) -> Error {
    match crate::error::is_full(&source) {
        true => Error::Full { what: "the pack".into() },
        false => Error::File { doing: format!("{doing} the pack"), source },
    }
}

/// What a pack is made with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packing<'a> {
    /// States of the same tenant whose chunks the receiver has: they are left out.
    pub have: &'a [StateId],
    /// Keys.
    pub trust: Trust<'a>,
    /// Where it is told how far it is.
    pub meter: Option<&'a Meter>,
}

/// What a pack is taken in with.
#[derive(Debug, Clone, Copy)]
pub struct Unpacking<'a> {
    /// What to do if a root of this name is there.
    pub mode: RootMode,
    /// Keys.
    pub trust: Trust<'a>,
    /// Where it is told how far it is.
    pub meter: Option<&'a Meter>,
}

impl Store {
    /// Writes roots and everything they need to a stream. Gives the number of bytes.
    pub async fn pack(
        &self,
        tenant: &Tenant,
        roots: &[Root],
        stream: impl AsyncWrite + Unpin + Send,
        packing: Packing<'_>,
    ) -> Result<u64> {
        let parcel = self.parcel(tenant, roots, packing.trust).await?;
        let mut out = Out { stream, hasher: blake3::Hasher::new(), bytes: 0 };
        out.write(MAGIC).await?;
        for root in &parcel.roots {
            let json = serde_json::to_vec(root).map_err(|error| Error::bad(error.to_string()))?;
            out.entry(b'R', root.state.0, 0, &json).await?;
        }
        for state in parcel.manifests.keys() {
            let object = self.manifest_object(tenant, *state).await?;
            out.entry(b'M', state.0, 0, &object).await?;
        }
        self.pack_chunks(tenant, &parcel, packing, &mut out).await?;
        let seal = *out.hasher.finalize().as_bytes();
        out.entry(b'E', [0; 32], 0, &seal).await?;
        out.stream.flush().await.map_err(|source| stream_failed("write", source))?;
        Ok(out.bytes)
    }

    async fn pack_chunks(
        &self,
        tenant: &Tenant,
        parcel: &Parcel,
        packing: Packing<'_>,
        out: &mut Out<impl AsyncWrite + Unpin + Send>,
    ) -> Result<()> {
        let had = self.chunks_of_states(tenant, packing.have).await?;
        let mut chunks = parcel.chunks();
        chunks.retain(|chunk| !had.contains(&chunk.id));
        if let Some(meter) = packing.meter {
            meter.expect(chunks.len());
        }
        // Some are read ahead, in order.
        let mut objects = futures_util::StreamExt::buffered(
            futures_util::stream::iter(chunks.into_iter().map(|chunk| async move {
                let object = self.chunk_object(tenant, &chunk).await?;
                Ok::<_, Error>((chunk, object))
            })),
            self.backend.limits.parallel,
        );
        while let Some(read) = futures_util::StreamExt::next(&mut objects).await {
            let (chunk, object) = read?;
            out.entry(b'C', chunk.id.0, chunk.generation, &object).await?;
            if let Some(meter) = packing.meter {
                meter.done(Some(object.len() as u64));
            }
        }
        Ok(())
    }

    /// Chunks of states, those that are not here left out.
    async fn chunks_of_states(
        &self,
        tenant: &Tenant,
        states: &[StateId],
    ) -> Result<HashSet<ChunkId>> {
        let mut had = HashSet::new();
        for state in states {
            match self.manifest(tenant, *state).await {
                Ok(manifest) => had.extend(manifest.chunks.iter().map(|chunk| chunk.id)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(had)
    }

    pub(crate) async fn manifest_object(&self, tenant: &Tenant, state: StateId) -> Result<Bytes> {
        let path = crate::names::manifest(tenant, state);
        let object = self.backend.get(&path, manifest::OBJECT_MAX).await?;
        match Manifest::decode(state, &object) {
            Ok(_) => Ok(object),
            Err(reason) => Err(self.damaged(tenant, &path, None, &reason)),
        }
    }

    /// Stores what a pack holds and makes its roots. Nothing is stored before the signatures are right, and no root is
    /// made before everything is.
    pub async fn unpack(
        &self,
        tenant: &Tenant,
        pack: Pack<impl AsyncRead + Unpin + Send>,
        unpacking: Unpacking<'_>,
    ) -> Result<Vec<Root>> {
        let Unpacking { mode, trust, meter } = unpacking;
        let Pack { parcel, mut input, mut next, mut coming } = pack;
        if let Some(meter) = meter {
            meter.expect(parcel.chunks().len());
        }
        let mut intake = self.intake(tenant, parcel, mode, trust).await?;
        while next.tag == b'C' {
            let name = (ChunkId(next.id), next.generation);
            if !coming.remove(&name) {
                return Err(refused("a chunk that is not needed, or comes twice"));
            }
            let object = input.payload(next.length, chunk::OBJECT_MAX).await?;
            if let Some(chunk) = intake.wants(name.0, name.1).cloned() {
                let bytes = object.len() as u64;
                let here = intake.store_chunk(&chunk, object).await.map_err(in_a_pack)?;
                intake.settle(&chunk, here);
                meter.inspect(|meter| meter.done(Some(bytes)));
            }
            next = input.entry().await?;
        }
        input.end(next).await?;
        for _ in 0..intake.look().await? {
            meter.inspect(|meter| meter.done(None));
        }
        if !intake.wanted().is_empty() {
            return Err(refused(
                "chunks are missing; it was made for somebody who has them: pack it as a whole",
            ));
        }
        intake.finish().await
    }
}

/// A pack whose beginning was read: what it says of itself is known, and nothing is stored.
pub struct Pack<R> {
    /// What it holds. What is left out of it is not stored.
    pub parcel: Parcel,
    input: In<R>,
    /// The entry after that.
    next: Entry,
    /// Chunks that may come.
    coming: HashSet<(ChunkId, u32)>,
}

impl<R: AsyncRead + Unpin> Pack<R> {
    /// Reads the beginning of a pack.
    pub async fn open(stream: R) -> Result<Self> {
        let mut input = In { stream, hasher: blake3::Hasher::new() };
        let (parcel, next) = input.contents().await?;
        let coming = parcel.by_name().map_err(in_a_pack)?.into_keys().collect();
        Ok(Self { parcel, input, next, coming })
    }
}

/// What is wrong with a part is wrong with the pack.
fn in_a_pack(error: Error) -> Error {
    match error {
        Error::Bad(reason) => refused(&reason),
        other => other,
    }
}

fn refused(what: &str) -> Error {
    Error::bad(format!("this pack is not taken: {what}"))
}

/// A stream that is read, and its hash.
struct In<R> {
    stream: R,
    hasher: blake3::Hasher,
}

impl<R: AsyncRead + Unpin> In<R> {
    async fn exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self.stream.read_exact(buffer).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(refused("it ends too early"))
            }
            Err(source) => Err(stream_failed("read", source)),
        }
    }

    async fn entry(&mut self) -> Result<Entry> {
        let mut bytes = [0; HEADER];
        self.exact(&mut bytes).await?;
        let entry = Entry::parse(bytes).ok_or_else(|| refused("a broken entry"))?;
        // The end is not part of what it seals.
        if entry.tag != b'E' {
            self.hasher.update(&bytes);
        }
        Ok(entry)
    }

    /// A payload. Memory grows with what really comes.
    async fn payload(&mut self, length: u64, most: usize) -> Result<Bytes> {
        if length > most as u64 {
            return Err(refused(&format!("an entry of {length} bytes")));
        }
        let mut payload = Vec::new();
        let read = (&mut self.stream).take(length).read_to_end(&mut payload).await;
        let read = read.map_err(|source| stream_failed("read", source))?;
        if read as u64 != length {
            return Err(refused("it ends too early"));
        }
        self.hasher.update(&payload);
        Ok(payload.into())
    }

    /// What stands before the chunks, and the entry after that.
    async fn contents(&mut self) -> Result<(Parcel, Entry)> {
        let mut magic = [0; MAGIC.len()];
        self.exact(&mut magic).await?;
        if magic != *MAGIC {
            return Err(refused("it is none, or of an unknown version"));
        }
        self.hasher.update(&magic);
        let mut next = self.entry().await?;
        let mut roots: Vec<PackedRoot> = Vec::new();
        while next.tag == b'R' {
            let json = self.payload(next.length, ROOT_MAX).await?;
            let root: PackedRoot =
                serde_json::from_slice(&json).map_err(|_| refused("a root that is none"))?;
            let twice =
                roots.iter().any(|known| (&known.kind, &known.name) == (&root.kind, &root.name));
            if twice || root.state.0 != next.id || roots.len() == ROOTS_MAX {
                return Err(refused("roots that are too many, or the same"));
            }
            roots.push(root);
            next = self.entry().await?;
        }
        let wanted: HashSet<StateId> = roots.iter().map(|root| root.state).collect();
        let mut manifests: BTreeMap<StateId, Arc<Manifest>> = BTreeMap::new();
        let mut left = MANIFESTS_MAX;
        while next.tag == b'M' {
            let state = StateId(next.id);
            let object = self.payload(next.length, left.min(manifest::OBJECT_MAX)).await?;
            left -= object.len();
            let manifest = Manifest::decode(state, &object)
                .map_err(|reason| refused(&format!("a manifest that {reason}")))?;
            if !wanted.contains(&state) || manifests.insert(state, Arc::new(manifest)).is_some() {
                return Err(refused("a manifest that is not needed, or comes twice"));
            }
            next = self.entry().await?;
        }
        if manifests.len() != wanted.len() || roots.is_empty() {
            return Err(refused("manifests are missing"));
        }
        Ok((Parcel { roots, manifests }, next))
    }

    /// The end: right, and really the end.
    async fn end(&mut self, last: Entry) -> Result<()> {
        let seal = *self.hasher.finalize().as_bytes();
        let Entry { tag, id, generation, length } = last;
        if (tag, id, generation, length) != (b'E', [0; 32], 0, seal.len() as u64) {
            return Err(refused("an entry out of order"));
        }
        let mut found: Hash = [0; 32];
        self.exact(&mut found).await?;
        if found != seal {
            return Err(refused("it has another hash"));
        }
        let mut more = [0; 1];
        match self.stream.read(&mut more).await {
            Ok(0) => Ok(()),
            Ok(_) => Err(refused("it goes on after its end")),
            Err(source) => Err(stream_failed("read", source)),
        }
    }
}
