//! Changes of files: as a stream, or collected by a watcher that is asked for them.
//!
//! A watcher belongs to the machine that its sandbox had when it was made, and so it ends when the sandbox is paused or rewound; what it has
//! collected can be asked for once more, then it says that it is over. Their number and what they collect is bounded; one that nobody asks is
//! forgotten after a day.
//!
//! A file that is written from outside gets its name when it is whole. What it was called before is the agent's business: it is told as a file
//! that appears and is written.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use ramet_proto::api::{Change, ChangeKind, WatchQuery};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connect::{self, Failed, HungUp, Sink};
use super::filesystem::is_directory;
use super::person::Guest;
use crate::random;
use crate::sandbox::Watch;

/// Most watchers of a sandbox.
const WATCHERS_MAX: usize = 64;
/// Most changes that a watcher collects.
const CHANGES_MAX: usize = 10_000;
/// A watcher that nobody asks for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(86400);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default, alias = "include_entry")]
    include_entry: bool,
    /// Guests have no mounts that the watch would not see.
    #[serde(default, alias = "allow_network_mounts", rename = "allowNetworkMounts")]
    _allow_network_mounts: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    #[serde(default, alias = "watcher_id")]
    watcher_id: String,
}

/// All watchers, by their ids.
#[derive(Default)]
pub struct Watchers(Mutex<HashMap<String, Watcher>>);

struct Watcher {
    sandbox: String,
    asked_at: Instant,
    collected: Arc<Mutex<Collected>>,
    _until_dropped: DropGuard,
}

#[derive(Default)]
struct Collected {
    events: VecDeque<Value>,
    /// Nothing follows.
    over: Option<Failed>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Translates changes below a directory.
struct Eyes {
    guest: Guest,
    watch: Watch,
    root: String,
    include_entry: bool,
    /// What is told next.
    waiting: VecDeque<Value>,
    /// A file of the agent has just lost its name.
    landing: bool,
}

impl Eyes {
    async fn open(guest: &Guest, request: Request) -> Result<Self, Failed> {
        let root = guest.place(&request.path).await?;
        if !is_directory(&guest.entry(&root).await?) {
            return Err(Failed::invalid(format!("path is not a directory: {root}")));
        }
        let query = WatchQuery { path: root.clone(), recursive: request.recursive };
        let service = &guest.e2b.app.service;
        let watch = service.watch_files(&guest.live.who, &guest.live.id, query).await?;
        Ok(Self {
            guest: guest.clone(),
            watch,
            root,
            include_entry: request.include_entry,
            waiting: VecDeque::new(),
            landing: false,
        })
    }

    async fn next(&mut self) -> Result<Value, Failed> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            let change = self.watch.next().await.map_err(|error| match Failed::from(error) {
                Failed { code: "internal", message } => Failed::new("unavailable", message),
                failed => failed,
            })?;
            let landed = self.landing && change.kind == ChangeKind::MovedTo;
            self.landing = false;
            if is_temporary(&change.path) {
                self.landing = change.kind == ChangeKind::MovedFrom;
                continue;
            }
            let event = self.event(&change).await?;
            if landed {
                let mut written = event.clone();
                written["type"] = json!("EVENT_TYPE_WRITE");
                self.waiting.push_back(written);
            }
            return Ok(event);
        }
    }

    async fn event(&self, change: &Change) -> Result<Value, Failed> {
        let kind = match change.kind {
            // The old name is told as renamed, the new one as created, as E2B does.
            ChangeKind::Created | ChangeKind::MovedTo => "EVENT_TYPE_CREATE",
            ChangeKind::Written => "EVENT_TYPE_WRITE",
            ChangeKind::Removed => "EVENT_TYPE_REMOVE",
            ChangeKind::MovedFrom => "EVENT_TYPE_RENAME",
            ChangeKind::Attributes => "EVENT_TYPE_CHMOD",
            _ => {
                let text = "too much changed at once, and some changes were not seen";
                return Err(Failed::new("resource_exhausted", text));
            }
        };
        let mut event = json!({ "name": relative(&self.root, &change.path), "type": kind });
        // It may be gone again.
        if self.include_entry
            && !matches!(change.kind, ChangeKind::Removed | ChangeKind::MovedFrom)
            && let Ok(entry) = self.guest.shown(&change.path).await
        {
            event["entry"] = entry;
        }
        Ok(event)
    }
}

/// What the agent calls a file that is not whole yet.
fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or("");
    let numbers = name.strip_prefix(".ramet-").and_then(|rest| rest.strip_suffix(".tmp"));
    numbers.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
}

fn relative<'a>(root: &str, path: &'a str) -> &'a str {
    let below = path.strip_prefix(root).map(|rest| rest.trim_start_matches('/'));
    match below {
        Some("") => ".",
        Some(name) => name,
        None => path,
    }
}

/// `WatchDir`.
pub async fn watch_dir(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Response, Failed> {
    let ping = connect::ping(headers);
    let limit = connect::time_limit(headers)?;
    let eyes = Eyes::open(guest, connect::first(body).await?).await?;
    Ok(connect::stream(&guest.e2b.app.service, |sink| tell(eyes, ping, limit, sink)))
}

async fn tell(mut eyes: Eyes, ping: Duration, limit: Option<Duration>, sink: Sink) {
    let told = async {
        sink.message(&json!({ "start": {} })).await?;
        loop {
            let mut next = std::pin::pin!(eyes.next());
            let event = loop {
                match timeout(ping, &mut next).await {
                    Ok(event) => break event,
                    Err(_) => sink.message(&json!({ "keepalive": {} })).await?,
                }
            };
            match event {
                Ok(event) => sink.message(&json!({ "filesystem": event })).await?,
                Err(failed) => return Ok(failed),
            }
        }
    };
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let ended: Option<Result<Failed, HungUp>> = tokio::select! {
        ended = told => Some(ended),
        () = over => {
            let text = "the time that the client gave is over";
            Some(Ok(Failed::new("deadline_exceeded", text)))
        }
        () = sink.hung_up() => None,
    };
    if let Some(Ok(failed)) = ended {
        sink.end(Some(&failed)).await;
    }
}

/// `CreateWatcher`.
pub async fn create(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let request = connect::message(body, connect::MESSAGE_MAX).await?;
    let eyes = Eyes::open(guest, request).await?;
    let number = random::hex(8).map_err(|error| Failed::new("internal", error.to_string()))?;
    let id = format!("w{number}");
    let stop = CancellationToken::new();
    let collected = Arc::<Mutex<Collected>>::default();
    let watcher = Watcher {
        sandbox: guest.live.id.clone(),
        asked_at: Instant::now(),
        collected: collected.clone(),
        _until_dropped: stop.clone().drop_guard(),
    };
    guest.e2b.data.watchers.add(&id, watcher)?;
    guest.e2b.app.service.keep(async move {
        tokio::select! {
            () = collect(eyes, &collected) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(json!({ "watcherId": id }))
}

async fn collect(mut eyes: Eyes, collected: &Mutex<Collected>) {
    loop {
        let next = eyes.next().await;
        let mut collected = lock(collected);
        match next {
            Ok(event) if collected.events.len() < CHANGES_MAX => collected.events.push_back(event),
            Ok(_) => {
                let text = format!("more than {CHANGES_MAX} changes were not asked for");
                collected.over = Some(Failed::new("resource_exhausted", text));
                return;
            }
            Err(failed) => {
                collected.over = Some(failed);
                return;
            }
        }
    }
}

impl Watchers {
    fn add(&self, id: &str, watcher: Watcher) -> Result<(), Failed> {
        let mut watchers = lock(&self.0);
        watchers.retain(|_, one| one.asked_at.elapsed() < FORGOTTEN);
        let same = watchers.values().filter(|one| one.sandbox == watcher.sandbox).count();
        if same >= WATCHERS_MAX {
            let text = format!("the sandbox has {WATCHERS_MAX} watchers, the most; remove some");
            return Err(Failed::new("resource_exhausted", text));
        }
        watchers.insert(id.to_owned(), watcher);
        Ok(())
    }

    /// What was collected since it was asked last.
    fn drain(&self, sandbox: &str, id: &str) -> Result<Vec<Value>, Failed> {
        let mut watchers = lock(&self.0);
        let found = watchers.get_mut(id).filter(|one| one.sandbox == sandbox);
        let watcher = found.ok_or_else(|| none(id))?;
        watcher.asked_at = Instant::now();
        let mut collected = lock(&watcher.collected);
        match &collected.over {
            Some(failed) if collected.events.is_empty() => Err(failed.clone()),
            _ => Ok(collected.events.drain(..).collect()),
        }
    }

    fn remove(&self, sandbox: &str, id: &str) -> Result<(), Failed> {
        let mut watchers = lock(&self.0);
        match watchers.get(id).is_some_and(|one| one.sandbox == sandbox) {
            true => {
                watchers.remove(id);
                Ok(())
            }
            false => Err(none(id)),
        }
    }
}

fn none(id: &str) -> Failed {
    Failed::new("not_found", format!("watcher with id {id} not found"))
}

/// `GetWatcherEvents`.
pub async fn events(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let Named { watcher_id } = connect::message(body, connect::MESSAGE_MAX).await?;
    let events = guest.e2b.data.watchers.drain(&guest.live.id, &watcher_id)?;
    Ok(json!({ "events": events }))
}

/// `RemoveWatcher`.
pub async fn remove(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let Named { watcher_id } = connect::message(body, connect::MESSAGE_MAX).await?;
    guest.e2b.data.watchers.remove(&guest.live.id, &watcher_id)?;
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_the_directory() {
        assert_eq!(relative("/a", "/a/b/c"), "b/c");
        assert_eq!(relative("/a", "/a"), ".");
        assert_eq!(relative("/", "/b"), "b");
        assert!(is_temporary("/a/.ramet-7-1.tmp"));
        assert!(!is_temporary("/a/.ramet-x.tmp") && !is_temporary("/a/b"));
    }
}
