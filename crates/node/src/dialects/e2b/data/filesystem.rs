//! The service `filesystem.Filesystem`, but for watching. What is done is done as root, and what is made belongs to the user.

use axum::body::Body;
use ramet_proto::agent::{Entry, FileKind};
use ramet_proto::api;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Failed};
use super::entry;
use super::person::{self, Guest};

/// Deepest list.
const DEPTH_MAX: u32 = 64;

#[derive(Debug, Deserialize)]
struct At {
    #[serde(default)]
    path: String,
}

#[derive(Debug, Deserialize)]
struct ListDir {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Debug, Deserialize)]
struct Move {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

async fn message<T: serde::de::DeserializeOwned>(body: Body) -> Result<T, Failed> {
    connect::message(body, connect::MESSAGE_MAX).await
}

impl Guest {
    /// What is at a path.
    pub(super) async fn entry(&self, path: &str) -> Result<Entry, Failed> {
        Ok(self.e2b.app.service.entry(&self.live.who, &self.live.id, path).await?)
    }

    /// The same; nothing if nothing is there.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Entry>, Failed> {
        match self.entry(path).await {
            Ok(entry) => Ok(Some(entry)),
            Err(failed) if failed.code == "not_found" => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// What is at a path, as SDKs see it.
    pub(super) async fn shown(&self, path: &str) -> Result<Value, Failed> {
        let found = self.entry(path).await?;
        let accounts = self.e2b.app.service.accounts(&self.live.who, &self.live.id).await?;
        Ok(entry::shown(&found, &accounts))
    }

    async fn mkdir(&self, path: &str, owner: &str) -> Result<(), Failed> {
        let request = api::MkdirRequest {
            path: path.to_owned(),
            mode: Some("755".to_owned()),
            owner: Some(owner.to_owned()),
        };
        self.e2b.app.service.mkdir(&self.live.who, &self.live.id, request).await?;
        Ok(())
    }
}

/// Whether it is a directory, or a link to one.
pub fn is_directory(entry: &Entry) -> bool {
    let kind = entry.end.as_ref().map_or(entry.kind, |end| end.kind);
    kind == FileKind::Directory
}

/// `Stat`.
pub async fn stat(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let At { path } = message(body).await?;
    let path = guest.place(&path).await?;
    Ok(json!({ "entry": guest.shown(&path).await? }))
}

/// `MakeDir`.
pub async fn make_dir(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let At { path } = message(body).await?;
    let (account, _) = guest.person().await?;
    let path = person::resolve(&path, &account.home)?;
    match guest.find(&path).await? {
        Some(found) if is_directory(&found) => {
            Err(Failed::new("already_exists", format!("directory already exists: {path}")))
        }
        Some(_) => {
            Err(Failed::invalid(format!("path already exists but it is not a directory: {path}")))
        }
        None => {
            guest.mkdir(&path, &account.name).await?;
            Ok(json!({ "entry": guest.shown(&path).await? }))
        }
    }
}

/// `Move`.
pub async fn rename(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let Move { source, destination } = message(body).await?;
    let (account, _) = guest.person().await?;
    let from = person::resolve(&source, &account.home)?;
    let to = person::resolve(&destination, &account.home)?;
    guest.entry(&from).await?;
    if let Some((parent, _)) = to.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        guest.mkdir(parent, &account.name).await?;
    }
    let request = api::MoveRequest { from, to: to.clone() };
    guest.e2b.app.service.move_file(&guest.live.who, &guest.live.id, request).await?;
    Ok(json!({ "entry": guest.shown(&to).await? }))
}

/// `ListDir`.
pub async fn list_dir(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let ListDir { path, depth } = message(body).await?;
    if depth > DEPTH_MAX {
        return Err(Failed::invalid(format!("depth: at most {DEPTH_MAX}, not {depth}")));
    }
    let path = guest.place(&path).await?;
    let service = &guest.e2b.app.service;
    let (who, id) = (&guest.live.who, &guest.live.id);
    let entries = service.entries(who, id, &path, depth.max(1)).await?;
    let accounts = service.accounts(who, id).await?;
    let entries: Vec<Value> = entries.iter().map(|one| entry::shown(one, &accounts)).collect();
    Ok(json!({ "entries": entries }))
}

/// `Remove`.
pub async fn remove(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let At { path } = message(body).await?;
    let path = guest.place(&path).await?;
    let query = api::RemoveQuery { path, recursive: true };
    let removed = guest.e2b.app.service.remove_file(&guest.live.who, &guest.live.id, query).await;
    match removed.map_err(Failed::from) {
        Err(failed) if failed.code != "not_found" => Err(failed),
        _ => Ok(json!({})),
    }
}
