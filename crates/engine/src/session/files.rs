//! Files in the guest: streamed both ways, holes kept.

use std::io::Read;
use std::time::Duration;

use ramet_proto::agent::{
    Change, Channel, Entry, Input, List, Mkdir, Mount, Network, ReadFile, Reply, Request, WriteFile,
};

use super::{Agent, COLLECT_MAX, Error, Frame, Session, unexpected};

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data(Vec<u8>),
    /// That many bytes that were never written.
    Hole(u64),
}

/// A file that is being read.
pub struct FileReader {
    entry: Entry,
    session: Session,
}

impl FileReader {
    /// What the file is.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The next piece; none at the end.
    #[expect(clippy::should_implement_trait, reason = "it fails or ends, in a Result of an Option")]
    pub fn next(&mut self) -> Result<Option<Content>, Error> {
        match self.session.reader.next()? {
            Frame::Bytes(Channel::Stdout, bytes) => Ok(Some(Content::Data(bytes))),
            Frame::Bytes(channel, _) => Err(Error::Protocol(format!("bytes on {channel:?}"))),
            Frame::Reply(Reply::Hole { length }) => Ok(Some(Content::Hole(length))),
            Frame::Reply(Reply::Done {}) => Ok(None),
            Frame::Reply(Reply::Error(failure)) => Err(failure.into()),
            Frame::Reply(other) => Err(unexpected(&other)),
        }
    }
}

/// A file that is being written. It appears when [`Self::finish`] succeeds; a writer that is
/// dropped before leaves nothing behind.
pub struct FileWriter {
    session: Session,
}

impl FileWriter {
    /// The next bytes.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.session.writer.bytes(Channel::Stdin, bytes)
    }

    /// A hole of this length.
    pub fn hole(&mut self, length: u64) -> Result<(), Error> {
        self.session.input(&Input::Hole { length })
    }

    /// The file is whole.
    pub fn finish(mut self) -> Result<Entry, Error> {
        self.session.input(&Input::End {})?;
        expect_stat(self.session.reply()?)
    }

    /// Why the agent hung up on the data, if it said so.
    fn reason(mut self, error: Error) -> Error {
        match self.session.reply() {
            Err(failure @ Error::Failure { .. }) => failure,
            _ => error,
        }
    }
}

/// Changes below a path, until it is dropped.
pub struct Watcher {
    session: Session,
}

impl Watcher {
    /// Waits for the next change, at most this long if a time is given.
    pub fn next(&mut self, time: Option<Duration>) -> Result<Change, Error> {
        self.session.reader.get_ref().set_timeout(time)?;
        match self.session.reply()? {
            Reply::Changed(change) => Ok(change),
            other => Err(unexpected(&other)),
        }
    }
}

impl Agent {
    /// Begins to read a file.
    pub fn open_file(&self, file: ReadFile) -> Result<FileReader, Error> {
        let mut session = self.session(&Request::ReadFile(file))?;
        let entry = expect_stat(session.reply()?)?;
        Ok(FileReader { entry, session })
    }

    /// Reads a whole file of at most [`COLLECT_MAX`] bytes, holes as zeros.
    pub fn read_file(&self, path: &str) -> Result<Vec<u8>, Error> {
        let file = ReadFile { path: path.to_owned(), offset: 0, length: None };
        let mut reader = self.open_file(file)?;
        let mut bytes = Vec::new();
        while let Some(content) = reader.next()? {
            let length = match &content {
                Content::Data(data) => data.len(),
                Content::Hole(length) => usize::try_from(*length).unwrap_or(usize::MAX),
            };
            if length > COLLECT_MAX - bytes.len() {
                return Err(Error::TooMuch(COLLECT_MAX));
            }
            match content {
                Content::Data(data) => bytes.extend_from_slice(&data),
                Content::Hole(_) => bytes.resize(bytes.len() + length, 0),
            }
        }
        Ok(bytes)
    }

    /// Begins to write a file.
    pub fn create_file(&self, file: WriteFile) -> Result<FileWriter, Error> {
        Ok(FileWriter { session: self.session(&Request::WriteFile(file))? })
    }

    /// Writes a file from a reader.
    pub fn write_file_from(&self, file: WriteFile, mut from: impl Read) -> Result<Entry, Error> {
        let mut writer = self.create_file(file)?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer).map_err(Error::Io)?;
            if count == 0 {
                return writer.finish();
            }
            if let Err(error) = writer.data(&buffer[..count]) {
                return Err(writer.reason(error));
            }
        }
    }

    /// Writes a file that has the owner and mode of what it replaces.
    pub fn write_file(&self, path: &str, bytes: &[u8]) -> Result<Entry, Error> {
        let file = WriteFile { path: path.to_owned(), ..WriteFile::default() };
        self.write_file_from(file, bytes)
    }

    /// Everything below a directory, down to this many levels.
    pub fn list(&self, path: &str, depth: u32) -> Result<Vec<Entry>, Error> {
        let list = List { path: path.to_owned(), depth };
        let mut session = self.session(&Request::List(list))?;
        let mut all = Vec::new();
        loop {
            match session.reply()? {
                Reply::Entries { entries } => all.extend(entries),
                Reply::Done {} => return Ok(all),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// What is at this path.
    pub fn stat(&self, path: &str) -> Result<Entry, Error> {
        expect_stat(self.session(&Request::Stat { path: path.to_owned() })?.reply()?)
    }

    /// Makes a directory and its missing parents.
    pub fn mkdir(&self, mkdir: Mkdir) -> Result<Entry, Error> {
        expect_stat(self.session(&Request::Mkdir(mkdir))?.reply()?)
    }

    /// Mounts a disk that was put into a slot.
    pub fn mount(&self, mount: Mount) -> Result<(), Error> {
        self.session(&Request::Mount(mount))?.done()
    }

    /// Says what the machine is among others.
    pub fn network(&self, network: Network) -> Result<(), Error> {
        self.session(&Request::Network(network))?.done()
    }

    /// Unmounts it.
    pub fn unmount(&self, device: &str) -> Result<(), Error> {
        self.session(&Request::Unmount { device: device.to_owned() })?.done()
    }

    /// Renames.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let request = Request::Move { from: from.to_owned(), to: to.to_owned() };
        self.session(&request)?.done()
    }

    /// Removes.
    pub fn remove(&self, path: &str, recursive: bool) -> Result<(), Error> {
        self.session(&Request::Remove { path: path.to_owned(), recursive })?.done()
    }

    /// Begins to watch. What changes after this returns is reported.
    pub fn watch(&self, path: &str, recursive: bool) -> Result<Watcher, Error> {
        let mut session = self.session(&Request::Watch { path: path.to_owned(), recursive })?;
        session.done()?;
        Ok(Watcher { session })
    }
}

fn expect_stat(reply: Reply) -> Result<Entry, Error> {
    match reply {
        Reply::Stat(entry) => Ok(entry),
        other => Err(unexpected(&other)),
    }
}
