//! What the agents of both sides tell, in order, read side by side.
//!
//! What a guest says is data: entries must be within what was asked for and in order, each once, and their number
//! is bounded. Nothing is kept but the entries that are looked at now, so memory does not grow with a guest's disk.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use ramet_proto::agent::{
    Layered, Listener, Name, Place, Process, ReadFile, Reply, Request, Seen, path_order,
    path_within,
};
use tokio::time::timeout;

use crate::host::agent::{self, Frame, PATIENCE, Session, unexpected};
use crate::host::{Host, MachineId};
use crate::sandbox::Error;

/// Most entries of one walk.
const ENTRIES_MAX: u64 = 5_000_000;

/// An entry of a walk.
pub trait Entry: Sized {
    /// Where.
    fn path(&self) -> &Name;
    /// The entries of a reply.
    fn of(reply: Reply) -> Result<Vec<Self>, agent::Error>;
}

impl Entry for Layered {
    fn path(&self) -> &Name {
        &self.path
    }

    fn of(reply: Reply) -> Result<Vec<Self>, agent::Error> {
        match reply {
            Reply::Layered { entries } => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }
}

impl Entry for Seen {
    fn path(&self) -> &Name {
        &self.path
    }

    fn of(reply: Reply) -> Result<Vec<Self>, agent::Error> {
        match reply {
            Reply::Seen { entries } => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }
}

/// A walk through one side.
pub struct Walk<T> {
    session: Session,
    within: Vec<Name>,
    waiting: VecDeque<T>,
    last: Option<Vec<u8>>,
    count: u64,
    over: bool,
}

impl<T: Entry> Walk<T> {
    fn new(session: Session, within: Vec<Name>) -> Self {
        Self { session, within, waiting: VecDeque::new(), last: None, count: 0, over: false }
    }

    /// How many entries came.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Makes the next entry wait, if there is one.
    async fn fill(&mut self) -> Result<(), Error> {
        while self.waiting.is_empty() && !self.over {
            match self.session.listener.reply().await? {
                Reply::Done {} => self.over = true,
                reply => self.take(T::of(reply)?)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, entries: Vec<T>) -> Result<(), Error> {
        for entry in entries {
            let path = entry.path().bytes();
            let asked = self.within.iter().any(|above| path_within(path, above.bytes()));
            let later = self.last.as_ref().is_none_or(|last| path_order(last, path).is_lt());
            if !asked || !later {
                let text =
                    format!("{} was not asked for, or is out of order", entry.path().shown());
                return Err(agent::Error::Protocol(text).into());
            }
            self.last = Some(path.to_vec());
            self.count += 1;
            self.waiting.push_back(entry);
        }
        if self.count > ENTRIES_MAX {
            let text = format!("more than {ENTRIES_MAX} files; compare less");
            return Err(Error::TooMany(text));
        }
        Ok(())
    }
}

/// The next path of two walks, with what each has there; nothing at their end.
pub async fn next<T: Entry>(
    a: &mut Walk<T>,
    b: &mut Walk<T>,
) -> Result<Option<(Option<T>, Option<T>)>, Error> {
    tokio::try_join!(a.fill(), b.fill())?;
    let order = match (a.waiting.front(), b.waiting.front()) {
        (None, None) => return Ok(None),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(one), Some(other)) => path_order(one.path().bytes(), other.path().bytes()),
    };
    let one = if order.is_le() { a.waiting.pop_front() } else { None };
    let other = if order.is_ge() { b.waiting.pop_front() } else { None };
    Ok(Some((one, other)))
}

/// The agent of a machine that is looked at.
#[derive(Clone)]
pub struct Guest {
    host: Host,
    machine: MachineId,
}

impl Guest {
    /// Of this machine.
    pub fn new(host: Host, machine: MachineId) -> Self {
        Self { host, machine }
    }

    async fn begin(&self, request: &Request) -> Result<Session, Error> {
        let mut session = self.host.agent(&self.machine).await?;
        session.speaker.message(request).await?;
        Ok(session)
    }

    /// Its writable layer below these paths, and what the layer lies on.
    pub async fn layer(&self, paths: &[String]) -> Result<(String, Walk<Layered>), Error> {
        let mut session = self.begin(&Request::Layer { paths: paths.to_vec() }).await?;
        let within = paths.iter().map(|path| Name::new(path.as_bytes())).collect();
        match session.listener.reply().await? {
            Reply::Layer { base } => Ok((base, Walk::new(session, within))),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Files as its processes see them.
    pub async fn look(&self, places: &[Place]) -> Result<Walk<Seen>, Error> {
        let session = self.begin(&Request::Look { places: places.to_vec() }).await?;
        Ok(Walk::new(session, places.iter().map(|place| place.path.clone()).collect()))
    }

    /// What files hold, one for each path.
    pub async fn digests(
        &self,
        paths: &[Name],
        time: Duration,
    ) -> Result<Vec<Option<String>>, Error> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut session = self.begin(&Request::Digest { paths: paths.to_vec(), time_ms }).await?;
        let mut all = Vec::with_capacity(paths.len());
        loop {
            let frame = timeout(time + PATIENCE, session.listener.next()).await;
            match frame.unwrap_or(Err(agent::Error::Timeout))? {
                Frame::Reply(Reply::Digests { digests }) => all.extend(digests),
                Frame::Reply(Reply::Done {}) if all.len() == paths.len() => return Ok(all),
                Frame::Reply(other) => return Err(unexpected(&other).into()),
                Frame::Bytes(channel, _) => {
                    return Err(agent::Error::Protocol(format!("bytes on {channel:?}")).into());
                }
            }
            if all.len() > paths.len() {
                return Err(agent::Error::Protocol("more digests than files".to_owned()).into());
            }
        }
    }

    /// A file, if it has at most so many bytes.
    pub async fn read(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let length = Some(most as u64 + 1);
        let request = ReadFile { path: path.to_owned(), offset: 0, length };
        let mut session = self.begin(&Request::ReadFile(request)).await?;
        let mut bytes = Vec::new();
        loop {
            match session.listener.soon().await? {
                Frame::Reply(Reply::Stat(_)) => {}
                Frame::Reply(Reply::Done {}) => return Ok(Some(bytes)),
                Frame::Reply(Reply::Hole { length }) => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX).min(most + 1);
                    bytes.resize(bytes.len() + length, 0);
                }
                Frame::Bytes(_, more) => bytes.extend(more),
                Frame::Reply(other) => return Err(unexpected(&other).into()),
            }
            if bytes.len() > most {
                return Ok(None);
            }
        }
    }

    /// Its processes.
    pub async fn processes(&self) -> Result<Vec<Process>, Error> {
        match self.host.agent(&self.machine).await?.ask(&Request::Processes {}).await? {
            Reply::Processes { processes } => Ok(processes),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Its waiting sockets.
    pub async fn listeners(&self) -> Result<Vec<Listener>, Error> {
        match self.host.agent(&self.machine).await?.ask(&Request::Listeners {}).await? {
            Reply::Listeners { listeners } => Ok(listeners),
            other => Err(unexpected(&other).into()),
        }
    }
}
