//! Snapshots: commits that carry a name in a label, or none.
//!
//! A snapshot with a name is `NAME:TAG`; the name alone stands for its tag `default`. Several of one name are builds of it, of which
//! the newest counts. One without a name is known by the digits of its commit.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::{Commit, CommitState, CommitsQuery, CreateCommit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Caller, Json, Path, Query};
use super::templates::{self, Name};
use super::{Control, json, labels, list, shapes};
use crate::auth::Principal;
use crate::dialects::e2b::Fault;

/// Commits that are asked for at a time.
const STEP: u32 = 1000;
/// What the ids of commits begin with.
const COMMIT: &str = "cm-";

/// Body of `POST …/snapshots`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    name: Option<String>,
    memory: Option<bool>,
}

/// `POST /sandboxes/{id}/snapshots`.
pub async fn create(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<NewSnapshot>,
) -> Result<Response, Fault> {
    let sandbox = shapes::find(&control, &who, &id)?;
    let name = body.name.map(|name| Name::parse(&who, &name)).transpose()?;
    if let Some(name) = &name
        && templates::known(&control, &who)?.iter().any(|one| one.is(&name.name))
    {
        let text = format!("a template has the name {:?}; choose another", name.name);
        return Err(Fault::new(StatusCode::CONFLICT, text));
    }
    let name = name.map(|name| name.to_string()).unwrap_or_default();
    let request = CreateCommit {
        labels: [(labels::SNAPSHOT.to_owned(), name)].into(),
        wait: true,
        disk: body.memory == Some(false),
        ..CreateCommit::default()
    };
    let commit = control.service().commit_sandbox(&who, &sandbox.id, request).await?;
    Ok(json(StatusCode::CREATED, &shown(&commit)))
}

/// Query of `GET /snapshots`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    #[serde(rename = "sandboxID")]
    sandbox: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    #[serde(rename = "nextToken")]
    next: Option<String>,
}

/// `GET /snapshots`: newest first.
pub async fn list(
    State(control): State<Control>,
    Caller(who): Caller,
    Query(query): Query<Wanted>,
) -> Result<Response, Fault> {
    let mut all = all(&control, &who).await?;
    let sandbox = query.sandbox.map(|id| crate::dialects::e2b::inner_id(&id).unwrap_or(id));
    let name = query.name.map(|name| Name::parse(&who, &name)).transpose()?;
    all.retain(|one| {
        sandbox.as_ref().is_none_or(|sandbox| one.sandbox == *sandbox)
            && name.as_ref().is_none_or(|name| named(one) == name.to_string())
    });
    let (page, next) =
        list::page(all, query.limit, query.next.as_deref(), |commit| commit.id.clone())?;
    let mut response = json(StatusCode::OK, &page.iter().map(shown).collect());
    list::tell_next(&mut response, next);
    Ok(response)
}

/// All snapshots, newest first.
async fn all(control: &Control, who: &Principal) -> Result<Vec<Commit>, Fault> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let label = Some(labels::SNAPSHOT.to_owned());
        let query = CommitsQuery { label, limit: Some(STEP), cursor, ..CommitsQuery::default() };
        let page = control.service().commits(who, &query).await?;
        all.extend(page.commits.into_iter().filter(|one| one.state == CommitState::Durable));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

/// Those that a name or an id means, newest first.
pub async fn meant(control: &Control, who: &Principal, name: &Name) -> Result<Vec<Commit>, Fault> {
    let mut all = all(control, who).await?;
    let full = name.to_string();
    let id = format!("{COMMIT}{}", name.name);
    all.retain(|one| named(one) == full || (one.id == id && name.is_usual()));
    Ok(all)
}

/// Deletes what a name or an id means; false if it means nothing.
pub async fn delete(control: &Control, who: &Principal, name: &Name) -> Result<bool, Fault> {
    let meant = meant(control, who, name).await?;
    for commit in &meant {
        control.service().delete_commit(who, &commit.id).await?;
    }
    Ok(!meant.is_empty())
}

fn named(commit: &Commit) -> &str {
    commit.labels.get(labels::SNAPSHOT).map_or("", String::as_str)
}

/// Digits of a commit's id.
pub fn digits(commit: &Commit) -> &str {
    commit.id.strip_prefix(COMMIT).unwrap_or(&commit.id)
}

/// `SnapshotInfo`.
fn shown(commit: &Commit) -> Value {
    match named(commit) {
        "" => json!({"snapshotID": format!("{}:default", digits(commit)), "names": []}),
        name => json!({"snapshotID": name, "names": [name]}),
    }
}
