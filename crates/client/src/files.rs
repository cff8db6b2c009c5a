//! Files in a sandbox. Contents and archives are streamed: neither side holds a whole one.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use reqwest::header::RANGE;
use reqwest::{Body, Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::StreamReader;

use crate::api::{
    Change, File, FileList, ListFilesQuery, MkdirRequest, MoveRequest, ReadArchiveQuery, ReadQuery,
    RemoveQuery, Unpacked, WatchQuery, WriteArchiveQuery, WriteQuery,
};
use crate::sse::Messages;
use crate::transport::{ASK_TIME, MAKE_TIME, PIECE_TIME, accepted};
use crate::{Client, Error};

/// Bytes read at a time from what is uploaded.
const PIECE: usize = 256 << 10;

/// Content of a file on its way here.
pub struct FileReader {
    response: Response,
}

impl FileReader {
    pub(crate) fn new(response: Response) -> Self {
        Self { response }
    }

    /// The same as something to read from.
    pub fn into_reader(self) -> impl AsyncRead + Send + 'static {
        let pieces = stream::unfold(self, |mut content| async move {
            match content.next().await {
                Ok(None) => None,
                Ok(Some(bytes)) => Some((Ok(bytes), content)),
                Err(error) => Some((Err(io::Error::other(error)), content)),
            }
        });
        StreamReader::new(Box::pin(pieces))
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let piece = tokio::time::timeout(PIECE_TIME, self.response.chunk()).await;
        piece.map_err(|_| Error::Timeout(PIECE_TIME))?.map_err(Error::broken)
    }

    /// How many bytes will come, if the node says so.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }
}

/// Changes below a path, until it is dropped.
pub struct Watch {
    messages: Messages,
}

impl Watch {
    /// Waits for the next change; none if the node has ended the stream, which it does when it stops.
    /// When the machine that is watched is gone, that is an error.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        let Some(message) = self.messages.next().await? else { return Ok(None) };
        let wrong = |error: serde_json::Error| Error::Protocol(error.to_string());
        if message.event == "error" {
            return Err(Error::refused(serde_json::from_str(&message.data).map_err(wrong)?));
        }
        serde_json::from_str(&message.data).map(Some).map_err(wrong)
    }
}

impl Client {
    /// Reads a file as a stream.
    pub async fn read_file(&self, id: &str, path: &str) -> Result<FileReader, Error> {
        let query = ReadQuery { path: path.to_owned() };
        let request = self.request(Method::GET, &["sandboxes", id, "files"]).query(&query);
        Ok(FileReader { response: self.send(request, ASK_TIME).await? })
    }

    /// Reads some bytes of a file.
    pub async fn read_range(
        &self,
        id: &str,
        path: &str,
        range: Range<u64>,
    ) -> Result<FileReader, Error> {
        let query = ReadQuery { path: path.to_owned() };
        let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let request = self.request(Method::GET, &["sandboxes", id, "files"]).query(&query);
        Ok(FileReader { response: self.send(request.header(RANGE, bytes), ASK_TIME).await? })
    }

    /// Writes a file. It appears whole or not at all.
    pub async fn write_file(
        &self,
        id: &str,
        query: &WriteQuery,
        content: impl Into<Bytes>,
    ) -> Result<File, Error> {
        let request = self.request(Method::PUT, &["sandboxes", id, "files"]).query(query);
        self.answer(request.body(content.into()), MAKE_TIME).await
    }

    /// Writes a file with all that can be read from `content`, which may be of any size as long as
    /// it does not stall.
    pub async fn upload(
        &self,
        id: &str,
        query: &WriteQuery,
        content: impl AsyncRead + Send + 'static,
    ) -> Result<File, Error> {
        let request = self.request(Method::PUT, &["sandboxes", id, "files"]).query(query);
        self.pour(request, content).await
    }

    /// Reads a directory as an archive.
    pub async fn read_archive(
        &self,
        id: &str,
        query: &ReadArchiveQuery,
    ) -> Result<FileReader, Error> {
        let parts = ["sandboxes", id, "files", "archive"];
        let request = self.request(Method::GET, &parts).query(query);
        Ok(FileReader { response: self.send(request, ASK_TIME).await? })
    }

    /// Unpacks an archive of any size, as long as it does not stall.
    pub async fn write_archive(
        &self,
        id: &str,
        query: &WriteArchiveQuery,
        archive: impl AsyncRead + Send + 'static,
    ) -> Result<Unpacked, Error> {
        let parts = ["sandboxes", id, "files", "archive"];
        self.pour(self.request(Method::PUT, &parts).query(query), archive).await
    }

    /// Begins to watch. What changes after this returns is told.
    pub async fn watch_files(&self, id: &str, query: &WatchQuery) -> Result<Watch, Error> {
        let parts = ["sandboxes", id, "files", "watch"];
        let request = self.request(Method::GET, &parts).query(query);
        Ok(Watch { messages: Messages::new(self.send(request, ASK_TIME).await?) })
    }

    /// Sends a request with all that can be read from `content`.
    pub(crate) async fn pour<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        content: impl AsyncRead + Send + 'static,
    ) -> Result<T, Error> {
        let progress = Arc::new(Progress::default());
        let body = Body::wrap_stream(pieces(content, progress.clone()));
        let mut sending = pin!(request.body(body).send());
        let sent = loop {
            let before = progress.pieces.load(Ordering::Relaxed);
            match tokio::time::timeout(PIECE_TIME, &mut sending).await {
                Ok(sent) => break sent,
                Err(_) if progress.pieces.load(Ordering::Relaxed) == before => {
                    return Err(Error::Timeout(PIECE_TIME));
                }
                Err(_) => {}
            }
        };
        // What went wrong on this side is the cause, whatever the transport made of it.
        if let Some(error) = progress.failure.lock().ok().and_then(|mut failure| failure.take()) {
            return Err(Error::Source(error));
        }
        let response = accepted(sent.map_err(|error| self.failed(error, PIECE_TIME))?).await?;
        self.json(response, ASK_TIME).await
    }

    /// Removes a file or directory.
    pub async fn remove_file(&self, id: &str, query: &RemoveQuery) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["sandboxes", id, "files"]).query(query)).await
    }

    /// Entries of a directory.
    pub async fn list_files(&self, id: &str, query: &ListFilesQuery) -> Result<Vec<File>, Error> {
        let list: FileList = self.get_with(&["sandboxes", id, "files", "list"], query).await?;
        Ok(list.entries)
    }

    /// What a path is. Symlinks are not followed.
    pub async fn stat(&self, id: &str, path: &str) -> Result<File, Error> {
        let query = ReadQuery { path: path.to_owned() };
        self.get_with(&["sandboxes", id, "files", "stat"], &query).await
    }

    /// Makes a directory, and its parents.
    pub async fn mkdir(&self, id: &str, request: &MkdirRequest) -> Result<File, Error> {
        self.post(&["sandboxes", id, "files", "mkdir"], request, ASK_TIME).await
    }

    /// Gives a file another path.
    pub async fn move_file(&self, id: &str, request: &MoveRequest) -> Result<(), Error> {
        let parts = ["sandboxes", id, "files", "move"];
        self.done(self.request(Method::POST, &parts).json(request)).await
    }
}

/// How far an upload is. The transport owns the content, so both sides look here.
#[derive(Default)]
struct Progress {
    pieces: AtomicU64,
    failure: Mutex<Option<io::Error>>,
}

fn pieces(
    content: impl AsyncRead + Send + 'static,
    progress: Arc<Progress>,
) -> impl stream::Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Box::pin(content), move |mut content| {
        let progress = progress.clone();
        async move {
            let mut piece = Vec::with_capacity(PIECE);
            let read = content.as_mut().take(PIECE as u64).read_to_end(&mut piece).await;
            progress.pieces.fetch_add(1, Ordering::Relaxed);
            match read {
                Ok(0) => None,
                Ok(_) => Some((Ok(Bytes::from(piece)), content)),
                Err(error) => {
                    let kind = error.kind();
                    if let Ok(mut failure) = progress.failure.lock() {
                        *failure = Some(error);
                    }
                    Some((Err(kind.into()), content))
                }
            }
        }
    })
}
