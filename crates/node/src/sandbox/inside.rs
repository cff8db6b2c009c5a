//! What the agent inside a sandbox knows and does beyond the node's own API: its commands and accounts, input for a process that
//! somebody else hears, files with everything that is known of them.
//!
//! For dialects, whose clients ask for these. A sandbox is found by its full id there, without a principal: whoever asks has shown a
//! secret of that very sandbox, and acts as its owner.

use std::collections::BTreeMap;
use std::time::Duration;

use ramet_proto::agent::{
    Accounts, Attach, Command, Entry, Exec, Input, List, Reply, Request, Usage,
};
use tokio::time::timeout;

use super::error::Error;
use super::guest::{Busy, GuestStream, expect_stat};
use super::record::Phase;
use super::{Service, check};
use crate::auth::Principal;
use crate::host::agent::{self, Session, unexpected};

/// Most commands and entries of one answer.
const ANSWERS_MAX: usize = 100_000;

/// A sandbox that is not gone.
#[derive(Debug, Clone)]
pub struct Live {
    /// Its owner.
    pub who: Principal,
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// A request that needs it resumes it.
    pub auto_resume: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// User of processes that name none.
    pub user: Option<String>,
    /// Working directory of processes that name none.
    pub workdir: Option<String>,
}

/// Speaks to a process without hearing it.
pub struct Mouth {
    session: Session,
    _busy: Busy,
}

impl Mouth {
    /// Gives the process input, and waits until it has it all.
    pub async fn bytes(&mut self, bytes: &[u8], patience: Duration) -> Result<(), Error> {
        for part in bytes.chunks(ramet_proto::agent::FRAME_MAX) {
            let told = async {
                self.session.speaker.bytes(part).await?;
                self.session.listener.next().await
            };
            match timeout(patience, told).await.unwrap_or(Err(agent::Error::Timeout))? {
                agent::Frame::Reply(Reply::Done {}) => {}
                agent::Frame::Reply(other) => return Err(unexpected(&other).into()),
                agent::Frame::Bytes(channel, _) => {
                    return Err(agent::Error::Protocol(format!("bytes on {channel:?}")).into());
                }
            }
        }
        Ok(())
    }

    /// Tells it something else.
    pub async fn tell(&mut self, input: &Input) -> Result<(), Error> {
        self.session.speaker.input(input).await?;
        match self.session.listener.reply().await? {
            Reply::Done {} => Ok(()),
            other => Err(unexpected(&other).into()),
        }
    }
}

impl Service {
    /// The sandbox with this full id, if it is not gone.
    pub fn live(&self, id: &str) -> Option<Live> {
        let registry = self.registry();
        let record = registry.get(id).filter(|record| record.phase != Phase::Gone)?;
        Some(Live {
            who: Principal::new(&record.owner),
            id: record.id.clone(),
            phase: record.phase,
            auto_resume: record.auto_resume,
            labels: record.labels.clone(),
            env: record.env.clone(),
            user: record.user.clone(),
            workdir: record.workdir.clone(),
        })
    }

    /// Ids of all that are not gone.
    pub fn live_ids(&self) -> Vec<String> {
        let registry = self.registry();
        let live = registry.all().filter(|record| record.phase != Phase::Gone);
        live.map(|record| record.id.clone()).collect()
    }

    /// Starts a process as the agent is asked to.
    pub async fn start_command(
        &self,
        who: &Principal,
        key: &str,
        exec: Exec,
    ) -> Result<GuestStream, Error> {
        check::env(&exec.env)?;
        exec.cwd.as_deref().map_or(Ok(()), |cwd| check::path("cwd", cwd))?;
        self.start(who, key, exec).await
    }

    /// Hears a process, beside others.
    pub async fn join(&self, who: &Principal, key: &str, pid: i32) -> Result<GuestStream, Error> {
        self.open(who, key, "attach", Request::Join(Attach { pid })).await
    }

    /// Speaks to a process.
    pub async fn speak_to(&self, who: &Principal, key: &str, pid: i32) -> Result<Mouth, Error> {
        let (mut session, busy) = self.session(who, key).await?;
        match session.ask(&Request::Feed(Attach { pid })).await? {
            Reply::Started { .. } => Ok(Mouth { session, _busy: busy }),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Processes that were started from outside, as they were asked for.
    pub async fn commands(&self, who: &Principal, key: &str) -> Result<Vec<Command>, Error> {
        let take = |reply| match reply {
            Reply::Commands { commands } => Ok(commands),
            other => Err(unexpected(&other).into()),
        };
        self.parts(who, key, &Request::Commands {}, take).await
    }

    /// Everything below a directory.
    pub async fn entries(
        &self,
        who: &Principal,
        key: &str,
        path: &str,
        depth: u32,
    ) -> Result<Vec<Entry>, Error> {
        check::path("path", path)?;
        let take = |reply| match reply {
            Reply::Entries { entries } => Ok(entries),
            other => Err(unexpected(&other).into()),
        };
        let list = Request::List(List { path: path.to_owned(), depth });
        self.parts(who, key, &list, take).await
    }

    /// An answer that comes in parts.
    async fn parts<T>(
        &self,
        who: &Principal,
        key: &str,
        request: &Request,
        take: impl Fn(Reply) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let (mut session, _busy) = self.session(who, key).await?;
        session.speaker.message(request).await?;
        let mut all = Vec::new();
        loop {
            match session.listener.reply().await? {
                Reply::Done {} => return Ok(all),
                part => all.extend(take(part)?),
            }
            if all.len() > ANSWERS_MAX {
                return Err(Error::TooMany(format!("more than {ANSWERS_MAX}; ask for less")));
            }
        }
    }

    /// What is at a path.
    pub async fn entry(&self, who: &Principal, key: &str, path: &str) -> Result<Entry, Error> {
        check::path("path", path)?;
        let (mut session, _busy) = self.session(who, key).await?;
        expect_stat(session.ask(&Request::Stat { path: path.to_owned() }).await?)
    }

    /// Users and groups.
    pub async fn accounts(&self, who: &Principal, key: &str) -> Result<Accounts, Error> {
        let (mut session, _busy) = self.session(who, key).await?;
        match session.ask(&Request::Accounts {}).await? {
            Reply::Accounts(accounts) => Ok(accounts),
            other => Err(unexpected(&other).into()),
        }
    }

    /// What the guest uses.
    pub async fn guest_usage(&self, who: &Principal, key: &str) -> Result<Usage, Error> {
        let (mut session, _busy) = self.session(who, key).await?;
        match session.ask(&Request::Usage {}).await? {
            Reply::Usage(usage) => Ok(usage),
            other => Err(unexpected(&other).into()),
        }
    }
}
