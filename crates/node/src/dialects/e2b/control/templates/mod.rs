//! Templates: those of the node, and those that SDKs build.
//!
//! A build is announced ([`make`]), gets its files ([`files`]), and is started ([`start`]). It is a sandbox in which the steps are carried out
//! one by one ([`build`]); at the end that becomes a template of the node, which [`known`] remembers under its name and tags.

mod build;
pub mod files;
mod known;
mod progress;
pub mod reference;
mod steps;
pub mod tags;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{BASE_TEMPLATE, DISK_MIB, Template, TemplateState};
use serde::Deserialize;
use serde_json::{Value, json};

pub use progress::Builds;
pub use reference::Name;

use super::extract::{Caller, Json, Path, Query};
use super::{Control, ENVD_VERSION, json, snapshots, time};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::dialects::e2b::Fault;
pub use known::all as known;
use known::{Build, Status};
use progress::Level;

/// Most entries of a log that are told at once.
const ENTRIES_MAX: usize = 100;

/// Body of `POST /v3/templates` and `POST /v2/templates`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTemplate {
    name: Option<String>,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    #[serde(rename = "teamID")]
    _team: Option<String>,
    #[serde(rename = "cpuCount")]
    vcpus: Option<u8>,
    #[serde(rename = "memoryMB")]
    memory_mib: Option<u32>,
    #[serde(rename = "minFreeDiskMb")]
    disk_mib: Option<u32>,
}

/// `POST /v3/templates`: announces a build.
pub async fn make(
    State(control): State<Control>,
    Caller(who): Caller,
    Json(body): Json<NewTemplate>,
) -> Result<Response, Fault> {
    let name = body.name.or(body.alias).ok_or_else(|| Fault::bad("name: it is missing"))?;
    let has_tag = name.contains(':');
    let name = Name::parse(&who, &name)?;
    let mut tags = body.tags.unwrap_or_default();
    tags::check(&who, &tags)?;
    if has_tag || tags.is_empty() {
        tags.push(name.tag.clone());
    }
    tags.sort();
    tags.dedup();
    let id = known::uuid()?;
    let build = Build {
        id: id.clone(),
        status: Status::Waiting,
        reason: None,
        tags: tags.clone(),
        vcpus: body.vcpus,
        memory_mib: body.memory_mib,
        disk_mib: body.disk_mib.filter(|mib| *mib > 0).map(|mib| mib.max(DISK_MIB)),
        template: None,
        created_at_ms: now_ms(),
        finished_at_ms: None,
    };
    let template = known::change(&control, &who, &name.name, true, |known| {
        known.builds.push(build);
        known.prune();
        Ok(known.id.clone())
    })?;
    let answer = json!({
        "templateID": template,
        "buildID": id,
        "public": false,
        "names": [name.name],
        "tags": tags,
        "aliases": [name.name],
    });
    Ok(json(StatusCode::ACCEPTED, &answer))
}

/// `POST /templates`: builds of images that a client has made itself.
pub async fn docker() -> Fault {
    Fault::unsupported("builds from images of a registry; use an SDK with POST /v3/templates")
}

/// `POST /v2/templates/{id}/builds/{build}`: starts it.
pub async fn start(
    State(control): State<Control>,
    Caller(who): Caller,
    Path((id, build)): Path<(String, String)>,
    Json(recipe): Json<steps::Recipe>,
) -> Result<Response, Fault> {
    recipe.check()?;
    let turn = control.builds.turns.clone().try_acquire_owned().map_err(|_| {
        Fault::new(StatusCode::TOO_MANY_REQUESTS, "too many templates are being built; try again")
    })?;
    let (template, wanted) = known::change(&control, &who, &id, false, |known| {
        let template = known.id.clone();
        let found = known.builds.iter_mut().find(|one| one.id == build);
        let found = found.ok_or_else(|| no_build(&build))?;
        if found.status != Status::Waiting {
            let text = format!("the build {build} was started before");
            return Err(Fault::new(StatusCode::CONFLICT, text));
        }
        found.status = Status::Building;
        Ok((template, found.clone()))
    })?;
    build::begin(control, who, template, wanted, recipe, turn);
    Ok(StatusCode::ACCEPTED.into_response())
}

fn no_build(build: &str) -> Fault {
    Fault::new(StatusCode::NOT_FOUND, format!("the build {build:?} was not found"))
}

/// Query of a build's status.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    #[serde(rename = "logsOffset")]
    offset: Option<usize>,
    limit: Option<usize>,
    level: Option<LevelName>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LevelName {
    Debug,
    Info,
    Warn,
    Error,
}

impl From<LevelName> for Level {
    fn from(name: LevelName) -> Self {
        match name {
            LevelName::Debug | LevelName::Info => Self::Info,
            LevelName::Warn => Self::Warn,
            LevelName::Error => Self::Error,
        }
    }
}

impl Progress {
    fn page(&self, control: &Control, build: &str) -> Vec<Value> {
        let Some(log) = control.builds.log(build) else { return Vec::new() };
        let count = self.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
        let least = self.level.map_or(Level::Info, Level::from);
        log.page(self.offset.unwrap_or(0), count, least)
    }
}

/// `GET /templates/{id}/builds/{build}/status`.
pub async fn status(
    State(control): State<Control>,
    Caller(who): Caller,
    Path((id, build)): Path<(String, String)>,
    Query(query): Query<Progress>,
) -> Result<Response, Fault> {
    // In this order: what is written before the end is seen with it.
    let known = known::find(&control, &who, &id)?;
    let found = known.build(&build).ok_or_else(|| no_build(&build))?;
    let entries = query.page(&control, &build);
    let lost = found.status == Status::Building && control.builds.log(&build).is_none();
    let reason = match lost {
        true => Some(("the node was restarted while it was built".to_owned(), None)),
        false => found.reason.clone(),
    };
    let mut answer = json!({
        "templateID": known.id,
        "buildID": build,
        "status": if lost { Status::Error } else { found.status },
        "logs": [],
        "logEntries": entries,
    });
    if let Some((message, step)) = reason {
        answer["reason"] = json!({"message": message, "step": step});
        if step.is_none() {
            answer["reason"] = json!({"message": message});
        }
    }
    Ok(json(StatusCode::OK, &answer))
}

/// Query of a build's log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    limit: Option<usize>,
    level: Option<LevelName>,
}

/// `GET /templates/{id}/builds/{build}/logs`: from its beginning.
pub async fn logs(
    State(control): State<Control>,
    Caller(who): Caller,
    Path((id, build)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Fault> {
    let known = known::find(&control, &who, &id)?;
    known.build(&build).ok_or_else(|| no_build(&build))?;
    let query = Progress { offset: None, limit: query.limit, level: query.level };
    Ok(json(StatusCode::OK, &json!({"logs": query.page(&control, &build)})))
}

/// `GET /templates`: what SDKs have built, then what the node has.
pub async fn list(State(control): State<Control>, Caller(who): Caller) -> Result<Response, Fault> {
    let mut shown: Vec<Value> = known::all(&control, &who)?.iter().map(brief).collect();
    shown.extend(natives(&control, &who).iter().map(native));
    Ok(json(StatusCode::OK, &Value::Array(shown)))
}

fn brief(known: &known::Known) -> Value {
    let mut shown = known.shown();
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("builds");
    }
    shown
}

/// `GET /default-templates`.
pub async fn defaults(
    State(control): State<Control>,
    Caller(who): Caller,
) -> Result<Response, Fault> {
    let list = control.service().list_templates(&who).templates;
    let base = list.iter().filter(|one| one.built_in && one.name == BASE_TEMPLATE).take(1);
    Ok(json(StatusCode::OK, &base.map(native).collect()))
}

/// The node's templates that are no builds of SDKs.
fn natives(control: &Control, who: &Principal) -> Vec<Template> {
    let mut list = control.service().list_templates(who).templates;
    list.retain(|one| reference::is(one, &one.name) && one.state == TemplateState::Ready);
    list
}

/// `Template` of one of the node's.
fn native(template: &Template) -> Value {
    json!({
        "templateID": template.name,
        "buildID": template.id,
        "cpuCount": template.vcpus,
        "memoryMB": template.memory_mib,
        "diskSizeMB": template.disk_mib,
        "public": template.built_in,
        "aliases": [template.name],
        "names": [template.name],
        "createdAt": time::of_ms(template.created_at_ms),
        "updatedAt": time::of_ms(template.created_at_ms),
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": template.sandboxes,
        "buildCount": 1,
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
        "isDefault": template.built_in,
    })
}

/// `GET /templates/{id}`.
pub async fn get(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let name = Name::parse(&who, &id)?;
    if let Some(native) = natives(&control, &who).iter().find(|one| reference::is(one, &name.name))
    {
        let mut shown = self::native(native);
        shown["builds"] = json!([]);
        return Ok(json(StatusCode::OK, &shown));
    }
    Ok(json(StatusCode::OK, &known::find(&control, &who, &name.name)?.shown()))
}

/// `GET /templates/aliases/{alias}`.
pub async fn alias(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(alias): Path<String>,
) -> Result<Response, Fault> {
    let name = Name::parse(&who, &alias)?;
    let id = match known::find(&control, &who, &name.name) {
        Ok(known) => known.id,
        Err(_) => reference::resolve(&control, &who, &alias).await?.id,
    };
    Ok(json(StatusCode::OK, &json!({"templateID": id, "public": false})))
}

/// Body of `PATCH /templates/{id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    public: Option<bool>,
}

/// `PATCH /templates/{id}`.
pub async fn update(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Update>,
) -> Result<Response, Fault> {
    if body.public == Some(true) {
        return Err(Fault::unsupported("public: true (templates for others)"));
    }
    let known = known::find(&control, &who, &Name::parse(&who, &id)?.name)?;
    Ok(json(StatusCode::OK, &json!({"names": [known.name]})))
}

/// `DELETE /templates/{id}`: also of snapshots, and of the caller's own templates on the node.
pub async fn delete(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let name = Name::parse(&who, &id)?;
    match known::find(&control, &who, &name.name) {
        Ok(known) => {
            let built: Vec<String> =
                known.builds.iter().filter_map(|build| build.template.clone()).collect();
            known::forget(&control, &who, &known.id)?;
            drop_templates(&control, &who, &built).await;
        }
        Err(_) if snapshots::delete(&control, &who, &name).await? => {}
        Err(missing) => {
            let native = natives(&control, &who).into_iter();
            let mut native = native.filter(|one| reference::is(one, &name.name));
            let native = native.next().ok_or(missing)?;
            control.service().delete_template(&who, &native.id).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Deletes the node's templates that builds were. One that is gone already was wanted gone.
async fn drop_templates(control: &Control, who: &Principal, names: &[String]) {
    for name in names {
        if let Err(error) = control.service().delete_template(who, name).await {
            tracing::warn!(name, ?error, "a template of a build could not be deleted");
        }
    }
}
