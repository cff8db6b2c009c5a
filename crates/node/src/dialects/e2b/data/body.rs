//! Bodies of files as they come and go: perhaps compressed, never whole in memory.

use std::io::Write;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};

use super::Fault;
use crate::http::extract::Pieces;
use crate::sandbox::FileSource;

/// Compressed bytes that are taken at a time: they become at most a thousand times as many.
const STEP: usize = 4 << 10;

/// What a client sends.
pub struct Inflow {
    pieces: Pieces,
    unpack: Option<MultiGzDecoder<Vec<u8>>>,
    /// Compressed bytes that were not taken yet.
    rest: Bytes,
}

impl Inflow {
    /// The body of a request with these headers.
    pub fn of(headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        let encoding =
            headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        let unpack = match encoding.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "identity") => None,
            Some("gzip" | "x-gzip") => Some(MultiGzDecoder::new(Vec::new())),
            Some(other) => {
                return Err(Fault::bad(format!("Content-Encoding {other:?} is not supported")));
            }
        };
        Ok(Self { pieces: Pieces::of(body), unpack, rest: Bytes::new() })
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if self.rest.is_empty() {
                let piece =
                    self.pieces.next().await.map_err(|refusal| Fault::bad(refusal.0.detail))?;
                match piece {
                    None => return self.end(),
                    Some(bytes) if self.unpack.is_none() => return Ok(Some(bytes)),
                    Some(bytes) => self.rest = bytes,
                }
            }
            let Some(unpack) = &mut self.unpack else { return Ok(None) };
            let step = self.rest.split_to(self.rest.len().min(STEP));
            unpack.write_all(&step).map_err(damaged)?;
            let bytes = std::mem::take(unpack.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
    }

    fn end(&mut self) -> Result<Option<Bytes>, Fault> {
        let Some(unpack) = self.unpack.take() else { return Ok(None) };
        let bytes = unpack.finish().map_err(damaged)?;
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` has")]
fn damaged(error: std::io::Error) -> Fault {
    Fault::bad(format!("the body is no gzip: {error}"))
}

/// How a client wants a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// As it is.
    Plain,
    /// Compressed.
    Gzip,
}

/// What `Accept-Encoding` says.
pub fn wanted(headers: &HeaderMap) -> Result<Wanted, Fault> {
    let Some(value) = headers.get(header::ACCEPT_ENCODING) else { return Ok(Wanted::Plain) };
    let text = value.to_str().unwrap_or("").to_ascii_lowercase();
    let weight = |name: &str| {
        let mut all = text.split(',').map(str::trim);
        let found =
            all.find(|one| one.split(';').next().is_some_and(|kind| kind.trim() == name))?;
        let quality = found.split(';').find_map(|part| part.trim().strip_prefix("q="));
        Some(quality.and_then(|quality| quality.parse::<f32>().ok()).unwrap_or(1.0))
    };
    let gzip = weight("gzip").unwrap_or(0.0);
    let plain =
        weight("identity").or_else(|| weight("*")).unwrap_or(if gzip > 0.0 { 0.5 } else { 1.0 });
    match (gzip > 0.0, plain > 0.0) {
        (true, _) if gzip >= plain => Ok(Wanted::Gzip),
        (_, true) => Ok(Wanted::Plain),
        (true, false) => Ok(Wanted::Gzip),
        (false, false) => {
            let text = "no acceptable encoding; gzip and identity are supported";
            Err(Fault::new(StatusCode::NOT_ACCEPTABLE, text))
        }
    }
}

/// A file that is sent.
pub struct Outflow {
    source: FileSource,
    /// What was read already.
    first: Option<Vec<u8>>,
    pack: Option<GzEncoder<Vec<u8>>>,
    over: bool,
}

impl Outflow {
    /// The file, after what was read of it.
    pub fn new(source: FileSource, first: Option<Vec<u8>>, wanted: Wanted) -> Self {
        let pack = || GzEncoder::new(Vec::new(), Compression::fast());
        Self { source, first, pack: (wanted == Wanted::Gzip).then(pack), over: false }
    }

    /// As a body. What goes wrong in the middle breaks it off, so nobody takes it for whole.
    pub fn body(self) -> Body {
        Body::from_stream(futures_util::stream::try_unfold(self, |mut flow| async move {
            Ok::<_, std::io::Error>(flow.next().await?.map(|bytes| (bytes, flow)))
        }))
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, std::io::Error> {
        while !self.over {
            let piece = match self.first.take() {
                Some(first) => Some(first),
                None => self
                    .source
                    .next()
                    .await
                    .map_err(|error| std::io::Error::other(error.to_string()))?,
            };
            let Some(pack) = &mut self.pack else { return Ok(piece) };
            let bytes = match piece {
                Some(piece) => {
                    pack.write_all(&piece)?;
                    std::mem::take(pack.get_mut())
                }
                None => {
                    self.over = true;
                    self.pack.take().map_or(Ok(Vec::new()), GzEncoder::finish)?
                }
            };
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_accepted_decides() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
            wanted(&headers)
        };
        for plain in ["", "identity", "br", "gzip;q=0", "deflate, *", "gzip;q=0.1, identity;q=1"] {
            assert_eq!(of(plain).unwrap(), Wanted::Plain, "{plain}");
        }
        for gzip in ["gzip", "gzip, deflate", "identity;q=0, gzip", "GZIP;q=1.0"] {
            assert_eq!(of(gzip).unwrap(), Wanted::Gzip, "{gzip}");
        }
        assert_eq!(of("identity;q=0").unwrap_err().status, 406);
    }

    #[tokio::test]
    async fn compressed_bodies_are_unpacked_piece_by_piece() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut packed = Vec::new();
        flate2::read::GzEncoder::new(&content[..], Compression::fast())
            .read_to_end(&mut packed)
            .unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        let mut inflow = Inflow::of(&headers, Body::from(packed.clone())).unwrap();
        let mut found = Vec::new();
        while let Some(bytes) = inflow.next().await.unwrap() {
            found.extend_from_slice(&bytes);
        }
        assert!(found == content);
        for damaged in [packed[..packed.len() / 2].to_vec(), b"no gzip at all".to_vec()] {
            let mut inflow = Inflow::of(&headers, Body::from(damaged)).unwrap();
            let refused = loop {
                match inflow.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it was taken for whole"),
                    Err(fault) => break fault,
                }
            };
            assert_eq!(refused.status, 400);
        }
        headers.insert(header::CONTENT_ENCODING, "br".parse().unwrap());
        assert!(Inflow::of(&headers, Body::empty()).is_err());
    }
}
