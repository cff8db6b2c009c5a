//! What becomes of a sandbox: connect, time limits, pause, end.
//!
//! A sandbox of E2B that was paused by hand stays until it is killed, while ours ends with its time if it was made so. So it gets
//! `on_timeout: pause` for as long as it is paused, and a label says what was asked for; whoever connects restores it.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{OnTimeout, PauseRequest, Sandbox, State as Phase, UpdateSandbox};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout as within;

use super::extract::{Caller, Json, Path};
use super::{Control, create, json, labels, network, shapes};
use crate::auth::Principal;
use crate::dialects::e2b::Fault;
use crate::dialects::e2b::data::TRAFFIC_S;
use crate::sandbox::Renewal;

/// Seconds that a sandbox has after a connect, if nobody says.
const CONNECT_S: u64 = 300;
/// Likewise after the oldest kind of resume, and after a refresh.
const RESUME_S: u64 = 15;
/// How long a guest may take to show that it is well.
const HEALTH: Duration = Duration::from_secs(5);

/// `GET /sandboxes/{id}`.
pub async fn get(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let sandbox = shapes::find(&control, &who, &id)?;
    let network = control.service().network(&who, &sandbox.id).await?;
    let mut detail = shapes::listed(&sandbox);
    let Value::Object(more) = shapes::sandbox(&control, &sandbox) else {
        return Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "a sandbox cannot be shown"));
    };
    detail.extend(more);
    let on_timeout = match shapes::on_timeout(&sandbox) {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause => "pause",
    };
    let lifecycle = json!({"autoResume": sandbox.auto_resume, "onTimeout": on_timeout});
    detail.insert("lifecycle".to_owned(), lifecycle);
    let open = network::is_open(&network);
    detail.insert("allowInternetAccess".to_owned(), json!(open));
    detail.insert("network".to_owned(), network::shown(&network, &sandbox));
    if let Some(stored) = &sandbox.stored {
        let mode = if stored.disk { "filesystem" } else { "full" };
        detail.insert("pauseMode".to_owned(), json!(mode));
    }
    Ok(json(StatusCode::OK, &Value::Object(detail)))
}

/// `DELETE /sandboxes/{id}`.
pub async fn kill(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Fault> {
    let sandbox = shapes::find_to_kill(&control, &who, &id)?;
    control.service().delete(&who, &sandbox.id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Body of `…/connect`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
}

/// `POST /sandboxes/{id}/connect`, of both generations. The time of one that runs is only ever extended.
pub async fn connect(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Connect>,
) -> Result<Response, Fault> {
    let seconds = create::seconds(body.timeout, CONNECT_S)?;
    let sandbox = shapes::find(&control, &who, &id)?;
    if sandbox.state == Phase::Paused {
        let files = sandbox.stored.as_ref().is_some_and(|stored| stored.disk);
        if body.memory == Some(false) && !files {
            return Err(Fault::unsupported("memory: false (a resume that boots anew)"));
        }
        let resumed = wake(&control, &who, &sandbox, seconds).await?;
        return Ok(json(StatusCode::CREATED, &shapes::sandbox(&control, &resumed)));
    }
    restore(&control, &who, &sandbox).await?;
    let sandbox = control.service().renew(&who, &sandbox.id, Renewal::AtLeast(seconds)).await?;
    Ok(json(StatusCode::OK, &shapes::sandbox(&control, &sandbox)))
}

/// Lets a paused sandbox go on, with so much time.
async fn wake(
    control: &Control,
    who: &Principal,
    sandbox: &Sandbox,
    seconds: u64,
) -> Result<Sandbox, Fault> {
    let resumed = control.service().resume(who, &sandbox.id).await?;
    restore(control, who, &resumed).await?;
    Ok(control.service().renew(who, &sandbox.id, Renewal::Set(seconds)).await?)
}

/// What happens at the end of its time is what was asked for again.
async fn restore(control: &Control, who: &Principal, sandbox: &Sandbox) -> Result<(), Fault> {
    let mut labels = sandbox.labels.clone();
    if labels.remove(labels::ON_TIMEOUT).is_none() {
        return Ok(());
    }
    let update = UpdateSandbox {
        labels: Some(labels),
        on_timeout: Some(OnTimeout::Kill),
        ..UpdateSandbox::default()
    };
    control.service().update(who, &sandbox.id, update).await?;
    Ok(())
}

/// Body of `…/resume`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    timeout: Option<u64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
}

/// `POST /sandboxes/{id}/resume`.
pub async fn resume(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Resume>,
) -> Result<Response, Fault> {
    let seconds = create::seconds(body.timeout, RESUME_S)?;
    let sandbox = shapes::find(&control, &who, &id)?;
    if sandbox.state == Phase::Running {
        let text = format!("the sandbox {id} is running already");
        return Err(Fault::new(StatusCode::CONFLICT, text));
    }
    let mut resumed = wake(&control, &who, &sandbox, seconds).await?;
    if let Some(pause) = body.auto_pause {
        let on_timeout = Some(if pause { OnTimeout::Pause } else { OnTimeout::Kill });
        let update = UpdateSandbox { on_timeout, ..UpdateSandbox::default() };
        resumed = control.service().update(&who, &sandbox.id, update).await?;
    }
    Ok(json(StatusCode::CREATED, &shapes::sandbox(&control, &resumed)))
}

/// Body of `…/timeout`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    timeout: u64,
}

/// `POST /sandboxes/{id}/timeout`: from now, whatever was left. With 0 its time is over.
pub async fn timeout(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Timeout>,
) -> Result<Response, Fault> {
    let sandbox = running(&control, &who, &id)?;
    let service = control.service();
    match (body.timeout, shapes::on_timeout(&sandbox)) {
        (0, OnTimeout::Kill) => service.delete(&who, &sandbox.id).await?,
        (0, OnTimeout::Pause) => {
            service.pause(&who, &sandbox.id, PauseRequest::default()).await?;
        }
        (seconds, _) => {
            service.renew(&who, &sandbox.id, Renewal::Set(seconds)).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Body of `…/refreshes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    duration: Option<u64>,
}

/// `POST /sandboxes/{id}/refreshes`: at least so long from now.
pub async fn refresh(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Refresh>,
) -> Result<Response, Fault> {
    let sandbox = running(&control, &who, &id)?;
    let seconds = create::seconds(body.duration, RESUME_S)?;
    control.service().renew(&who, &sandbox.id, Renewal::AtLeast(seconds)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The sandbox, if it runs.
pub fn running(control: &Control, who: &Principal, id: &str) -> Result<Sandbox, Fault> {
    let sandbox = shapes::find(control, who, id)?;
    match sandbox.state {
        Phase::Running => Ok(sandbox),
        _ => Err(Fault::new(StatusCode::CONFLICT, format!("the sandbox {id} is paused"))),
    }
}

/// Body of `…/pause`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    memory: Option<bool>,
    #[serde(rename = "requireHealthyGuest")]
    require_healthy: Option<bool>,
}

/// `POST /sandboxes/{id}/pause`.
pub async fn pause(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Pause>,
) -> Result<Response, Fault> {
    let sandbox = running(&control, &who, &id)?;
    let service = control.service();
    if body.require_healthy == Some(true) {
        let well = within(HEALTH, service.processes(&who, &sandbox.id)).await;
        if !matches!(well, Ok(Ok(_))) {
            let text = format!("the guest of the sandbox {id} does not answer; it goes on");
            return Err(Fault::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
    }
    if sandbox.on_timeout == OnTimeout::Kill {
        outlive(&control, &who, &sandbox).await?;
    }
    let request = PauseRequest { disk: body.memory == Some(false), ..PauseRequest::default() };
    if let Err(error) = service.pause(&who, &sandbox.id, request).await {
        if let Some(end) = sandbox.ends_at_ms {
            let left = end.saturating_sub(crate::clock::now_ms()).div_ceil(1000).max(1);
            service.renew(&who, &sandbox.id, Renewal::Set(left)).await?;
        }
        restore(&control, &who, &shapes::find(&control, &who, &id)?).await?;
        return Err(error.into());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Its time does not end it while it is paused.
async fn outlive(control: &Control, who: &Principal, sandbox: &Sandbox) -> Result<(), Fault> {
    let mut labels = sandbox.labels.clone();
    labels.insert(labels::ON_TIMEOUT.to_owned(), "kill".to_owned());
    let update = UpdateSandbox {
        labels: Some(labels),
        on_timeout: Some(OnTimeout::Pause),
        timeout_s: Some(TRAFFIC_S),
        ..UpdateSandbox::default()
    };
    control.service().update(who, &sandbox.id, update).await?;
    // What is left of it must not be over before it is paused.
    control.service().renew(who, &sandbox.id, Renewal::Set(TRAFFIC_S)).await?;
    Ok(())
}
