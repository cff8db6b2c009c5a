//! New sandboxes, in both generations of the API.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::{AttachVolume, CreateSandbox, OnTimeout};
use serde::Deserialize;
use serde_json::Value;

use super::extract::{Caller, Json, Key};
use super::network::Rules;
use super::templates::reference::{self, Found, Seed};
use super::{Control, json, labels, shapes};
use crate::auth::Principal;
use crate::dialects::e2b::Fault;

/// Seconds that a sandbox of the first generation has, if nobody says.
const FIRST_S: u64 = 15;
/// Likewise of the second.
const SECOND_S: u64 = 300;

/// `NewSandbox` of both generations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory")]
    auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume")]
    auto_resume: Option<AutoResume>,
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    allow_internet_access: Option<bool>,
    network: Option<Rules>,
    metadata: Option<BTreeMap<String, String>>,
    #[serde(rename = "envVars")]
    env: Option<BTreeMap<String, String>>,
    mcp: Option<Value>,
    iam: Option<Value>,
    #[serde(rename = "volumeMounts")]
    volumes: Option<Vec<Mount>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    enabled: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mount {
    name: String,
    path: String,
}

/// `POST /sandboxes`.
pub async fn first(
    state: State<Control>,
    who: Caller,
    key: Key,
    body: Json<NewSandbox>,
) -> Result<Response, Fault> {
    create(state, who, key, body, FIRST_S).await
}

/// `POST /v2/sandboxes`.
pub async fn second(
    state: State<Control>,
    who: Caller,
    key: Key,
    body: Json<NewSandbox>,
) -> Result<Response, Fault> {
    create(state, who, key, body, SECOND_S).await
}

async fn create(
    State(control): State<Control>,
    Caller(who): Caller,
    Key(key): Key,
    Json(wish): Json<NewSandbox>,
    usual_s: u64,
) -> Result<Response, Fault> {
    check(&wish)?;
    let request = request(&control, &who, wish, usual_s).await?;
    let made = control.service().create(&who, request, key).await?;
    Ok(json(StatusCode::CREATED, &shapes::sandbox(&control, &made.sandbox)))
}

/// What is not there is refused before anything is made.
fn check(wish: &NewSandbox) -> Result<(), Fault> {
    if wish.mcp.as_ref().is_some_and(|mcp| !mcp.is_null()) {
        return Err(Fault::unsupported("mcp (the MCP gateway in a sandbox)"));
    }
    if wish.iam.as_ref().is_some_and(|iam| !iam.is_null()) {
        return Err(Fault::unsupported("iam (identities of sandboxes)"));
    }
    let resumes = wish.auto_resume.as_ref().is_some_and(|resume| resume.enabled);
    match (wish.auto_pause_memory, wish.auto_pause) {
        (Some(false), _) if resumes => {
            let text = "autoPauseMemory: false cannot be combined with autoResume";
            Err(Fault::bad(text))
        }
        (Some(false), Some(true)) => {
            Err(Fault::unsupported("autoPauseMemory: false (a pause that keeps only files)"))
        }
        _ => Ok(()),
    }
}

/// A time limit, which is never 0 here.
pub fn seconds(timeout: Option<u64>, usual_s: u64) -> Result<u64, Fault> {
    match timeout.unwrap_or(usual_s) {
        0 => Err(Fault::bad("timeout: at least 1 second")),
        seconds => Ok(seconds),
    }
}

async fn request(
    control: &Control,
    who: &Principal,
    wish: NewSandbox,
    usual_s: u64,
) -> Result<CreateSandbox, Fault> {
    let timeout_s = Some(seconds(wish.timeout, usual_s)?);
    let rules = wish.network.unwrap_or_default();
    let mut labels = labels::of(wish.metadata.unwrap_or_default())?;
    if rules.is_private() {
        labels.insert(labels::TRAFFIC.to_owned(), labels::PRIVATE.to_owned());
    }
    let secrets = control.service().secrets(who)?.secrets;
    let network = Some(rules.request(wish.allow_internet_access, &secrets)?);
    let Found { seed, id, alias } = reference::resolve(control, who, &wish.template).await?;
    labels.insert(labels::TEMPLATE.to_owned(), id);
    labels.insert(labels::ALIAS.to_owned(), alias);
    let volume =
        |mount: Mount| AttachVolume { volume: mount.name, path: mount.path, read_only: false };
    let on_timeout = match wish.auto_pause {
        Some(true) => OnTimeout::Pause,
        _ => OnTimeout::Kill,
    };
    let request = CreateSandbox {
        env: wish.env.unwrap_or_default(),
        labels,
        timeout_s,
        on_timeout,
        auto_resume: wish.auto_resume.is_some_and(|resume| resume.enabled),
        volumes: wish.volumes.unwrap_or_default().into_iter().map(volume).collect(),
        network,
        ..CreateSandbox::default()
    };
    Ok(seeded(request, seed))
}

/// From this.
pub fn seeded(request: CreateSandbox, seed: Seed) -> CreateSandbox {
    match seed {
        Seed::Template(name) => CreateSandbox { template: Some(name), ..request },
        Seed::Image(name) => CreateSandbox { image: Some(name), ..request },
        Seed::Commit(id) => CreateSandbox { commit: Some(id), ..request },
    }
}
