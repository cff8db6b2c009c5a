//! Links: ways to a port of a sandbox for whoever has their address, which nobody can guess. Only a hash of it is kept. A link ends when
//! its time is over, when it is deleted, and with its sandbox.

use std::time::Duration;

use ramet_proto::agent::Dial;
use ramet_proto::api::EventKind;
use ramet_proto::api::network::{self as api, CreateLink, LinkList, PortReady, PortWaitQuery};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::auth::Principal;
use crate::clock::now_ms;
use crate::host::agent;
use crate::random;
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::record::Phase;
use crate::sandbox::registry::Registry;
use crate::store::Change;

/// Most links of a sandbox.
const LINKS_MAX: usize = 64;
/// How long a link holds, if nothing is said, and at most.
const USUAL_S: u64 = 24 * 3600;
const LONGEST_S: u64 = 30 * 24 * 3600;
/// How long a port is waited for, if nothing is said, and at most.
const WAIT_USUAL_S: u64 = 30;
const WAIT_MAX_S: u64 = 600;
/// Between two looks at a port.
const LOOK: Duration = Duration::from_millis(50);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest path that is asked for.
const PATH_MAX: usize = 2048;
/// Least digits of an id that stand for it.
const BEGINNING_MIN: usize = 4;

/// A link, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Id.
    pub id: String,
    /// Its sandbox.
    pub sandbox: String,
    /// Of what stands in its address.
    pub hash: String,
    /// Port in the guest.
    pub port: u16,
    /// It was asked for as public.
    pub public: bool,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it ends.
    pub expires_at_ms: Option<u64>,
}

impl Link {
    fn shown(&self) -> api::Link {
        api::Link {
            id: self.id.clone(),
            sandbox: self.sandbox.clone(),
            port: self.port,
            public: self.public,
            created_at_ms: self.created_at_ms,
            expires_at_ms: self.expires_at_ms,
            path: None,
        }
    }

    fn is_over(&self) -> bool {
        self.expires_at_ms.is_some_and(|end| end <= now_ms())
    }
}

impl Registry {
    /// Links to a sandbox, oldest first.
    pub fn links_of(&self, sandbox: &str) -> Vec<&Link> {
        let mut found: Vec<&Link> = self.links().filter(|link| link.sandbox == sandbox).collect();
        found.sort_by_key(|link| link.created_at_ms);
        found
    }

    /// Ids of links that lead nowhere any more.
    pub fn stale_links(&self) -> Vec<String> {
        let stale = |link: &&Link| link.is_over() || !self.keeps(&link.sandbox);
        self.links().filter(stale).map(|link| link.id.clone()).collect()
    }
}

fn ends_at(request: &CreateLink, now: u64) -> Result<Option<u64>, Error> {
    match request.expires_s {
        Some(seconds) if !(1..=LONGEST_S).contains(&seconds) => {
            Err(Error::Bad(format!("expires_s: 1 to {LONGEST_S}, not {seconds}")))
        }
        None if request.public => Ok(None),
        seconds => Ok(Some(now + seconds.unwrap_or(USUAL_S) * 1000)),
    }
}

fn check_port(port: u16) -> Result<(), Error> {
    match port {
        0 => Err(Error::Bad("port: 1 to 65535, not 0".to_owned())),
        _ => Ok(()),
    }
}

impl Service {
    /// Makes a link.
    pub async fn create_link(
        &self,
        who: &Principal,
        key: &str,
        request: CreateLink,
    ) -> Result<api::Link, Error> {
        check_port(request.port)?;
        let now = now_ms();
        let expires_at_ms = ends_at(&request, now)?;
        let id = self.find(who, key)?.id;
        let (service, principal) = (self.clone(), who.clone());
        let target = format!("{id} {}", request.port);
        self.operate(who, "link_create", &target, async move {
            let secret = random::hex(32)?;
            let link = Link {
                id: format!("ln-{}", random::hex(8)?),
                sandbox: id.clone(),
                hash: crate::auth::hash(&secret),
                port: request.port,
                public: request.public,
                created_at_ms: now,
                expires_at_ms,
            };
            service.commit(|registry| {
                registry.find(&principal, &id)?;
                let forget_links = registry.stale_links();
                let live = registry.links_of(&id).iter().filter(|link| !link.is_over()).count();
                if live >= LINKS_MAX {
                    let text = format!("{id} has {LINKS_MAX} links, the most; delete some");
                    return Err(Error::TooMany(text));
                }
                Ok(Change { links: vec![link.clone()], forget_links, ..Change::default() })
            })?;
            let (owner, other) = (principal.name(), Some(link.id.as_str()));
            service.events.tell(owner, EventKind::LinkCreated, &id, other, None);
            Ok(api::Link { path: Some(format!("/l/{secret}/")), ..link.shown() })
        })
        .await
    }

    /// Links to a sandbox.
    pub fn links(&self, who: &Principal, key: &str) -> Result<LinkList, Error> {
        let registry = self.registry();
        let id = &registry.find(who, key)?.id;
        let live = registry.links_of(id).into_iter().filter(|link| !link.is_over());
        Ok(LinkList { links: live.map(Link::shown).collect() })
    }

    /// Ends a link.
    pub async fn delete_link(&self, who: &Principal, key: &str, link: &str) -> Result<(), Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, key) = (self.clone(), who.clone(), link.to_owned());
        let target = format!("{id} {link}");
        self.operate(who, "link_delete", &target, async move {
            let mut ended = String::new();
            service.commit(|registry| {
                registry.find(&principal, &id)?;
                let digits = key.strip_prefix("ln-").unwrap_or(&key);
                let meant = |link: &&&Link| {
                    digits.len() >= BEGINNING_MIN && link.id[3..].starts_with(digits)
                };
                let links = registry.links_of(&id);
                ended = match links.iter().filter(meant).collect::<Vec<_>>()[..] {
                    [one] => one.id.clone(),
                    [] => return Err(Error::NotFound { what: "link", key: key.clone() }),
                    _ => return Err(Error::Ambiguous(key.clone())),
                };
                Ok(Change { forget_links: vec![ended.clone()], ..Change::default() })
            })?;
            let owner = principal.name();
            service.events.tell(owner, EventKind::LinkDeleted, &id, Some(&ended), None);
            Ok(())
        })
        .await
    }

    /// Where what stands in a link's address leads to: whose sandbox, which, which port.
    pub fn follow_link(&self, secret: &str) -> Result<(Principal, String, u16), Error> {
        let none = || Error::NotFound { what: "link", key: "of this address".to_owned() };
        let hash = crate::auth::hash(secret);
        let registry = self.registry();
        let link = registry.links().find(|link| link.hash == hash && !link.is_over());
        let link = link.ok_or_else(none)?;
        let record = registry.get(&link.sandbox).filter(|record| record.phase != Phase::Gone);
        let record = record.ok_or_else(none)?;
        Ok((Principal::new(&record.owner), record.id.clone(), link.port))
    }

    /// Waits until something listens on a port; with a path, until it answers.
    pub async fn wait_port(
        &self,
        who: &Principal,
        key: &str,
        port: u16,
        query: &PortWaitQuery,
    ) -> Result<PortReady, Error> {
        check_port(port)?;
        let seconds = query.timeout_s.unwrap_or(WAIT_USUAL_S);
        if seconds > WAIT_MAX_S {
            return Err(Error::Bad(format!("timeout_s: at most {WAIT_MAX_S}, not {seconds}")));
        }
        let path = query.path.as_deref();
        path.map_or(Ok(()), check_path)?;
        let began = Instant::now();
        let end = began + Duration::from_secs(seconds);
        loop {
            let turn = end.max(Instant::now() + LOOK);
            let seen = timeout_at(turn, self.look_at_port(who, key, port, path)).await;
            match seen {
                Ok(Ok(Some(status))) => {
                    let waited = began.elapsed().as_millis();
                    let waited_ms = u64::try_from(waited).unwrap_or(u64::MAX);
                    return Ok(PortReady { port, status, waited_ms });
                }
                // It may pass.
                Ok(Ok(None) | Err(Error::Guest(_) | Error::Host(_))) | Err(_) => {}
                Ok(Err(error)) => return Err(error),
            }
            if Instant::now() + LOOK >= end {
                return Err(Error::NotInTime(match path {
                    Some(path) => format!(
                        "no answer below 500 to GET {path} on TCP port {port} within {seconds} s"
                    ),
                    None => format!("nothing listens on TCP port {port} within {seconds} s"),
                }));
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                () = self.stop.cancelled() => return Err(crate::host::Error::Stopping.into()),
            }
        }
    }

    /// Nothing if nothing is there yet; with a path, the status of its answer.
    async fn look_at_port(
        &self,
        who: &Principal,
        key: &str,
        port: u16,
        path: Option<&str>,
    ) -> Result<Option<Option<u16>>, Error> {
        let (session, _busy) = self.session(who, key).await?;
        let stream = match session.dial(Dial::Tcp { port }).await {
            Ok(stream) => stream,
            Err(agent::Error::Failure(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(path) = path else { return Ok(Some(None)) };
        let answer = timeout(ANSWER, status_of(stream, port, path)).await.unwrap_or(None);
        Ok(answer.filter(|status| *status < 500).map(Some))
    }
}

fn check_path(path: &str) -> Result<(), Error> {
    let visible = path.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if !path.starts_with('/') || path.len() > PATH_MAX || !visible {
        let text = format!("a path of at most {PATH_MAX} visible characters that begins with /");
        return Err(Error::Bad(format!("path: {text}")));
    }
    Ok(())
}

/// The status that a server answers with. What it says is not trusted: the first line is read, and no more.
async fn status_of(mut stream: agent::Dialled, port: u16, path: &str) -> Option<u16> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nUser-Agent: ramet\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.ok()?;
    let line = std::str::from_utf8(&line).ok()?;
    let status = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    status.parse().ok().filter(|status| (100..600).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_end_unless_they_are_public() {
        let request = |expires_s, public| CreateLink { port: 1, expires_s, public };
        assert_eq!(ends_at(&request(None, false), 1).unwrap(), Some(1 + USUAL_S * 1000));
        assert_eq!(ends_at(&request(None, true), 1).unwrap(), None);
        assert_eq!(ends_at(&request(Some(5), true), 1).unwrap(), Some(5001));
        for seconds in [0, LONGEST_S + 1] {
            assert!(ends_at(&request(Some(seconds), false), 1).is_err());
        }
    }
}
