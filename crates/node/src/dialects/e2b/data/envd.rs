//! The port of the agent: which path is which procedure.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::connect::{self, Failed, Form};
use super::person::{Guest, named};
use super::{Fault, files, filesystem, process, watch};
use crate::clock::now_ms;
use crate::dialects::e2b::E2b;
use crate::sandbox::Live;

/// Between two looks at the processors.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);
const MIB: u64 = 1 << 20;

/// Answers a request that may.
pub async fn serve(e2b: &E2b, live: Live, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let guest = Guest { e2b: e2b.clone(), live, named: None };
    if let Some(procedure) = path.strip_prefix("/process.Process/") {
        return called(guest, process_call(procedure), request).await;
    }
    if let Some(procedure) = path.strip_prefix("/filesystem.Filesystem/") {
        return called(guest, filesystem_call(procedure), request).await;
    }
    let answered = match (request.method().clone(), path.as_str()) {
        (Method::GET, "/health") => health(&guest).await,
        (Method::GET, "/metrics") => metrics(&guest).await,
        (Method::GET, "/envs") => Ok(json(&json!(guest.live.env))),
        (Method::GET, "/files") => Box::pin(files::read(guest, request)).await,
        (Method::POST, "/files") => Box::pin(files::write(guest, request)).await,
        (Method::POST, "/files/compose") => Err(Fault::unsupported("/files/compose")),
        (_, "/health" | "/metrics" | "/envs" | "/files" | "/files/compose") => {
            let text = format!("{path} does not take {}", request.method());
            Err(Fault::new(StatusCode::METHOD_NOT_ALLOWED, text))
        }
        _ => Err(Fault::new(StatusCode::NOT_FOUND, format!("there is no route {path}"))),
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

fn json(body: &Value) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    ([kind], body.to_string()).into_response()
}

/// A procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Start,
    Connect,
    List,
    SendInput,
    StreamInput,
    SendSignal,
    Update,
    CloseStdin,
    Stat,
    MakeDir,
    Move,
    ListDir,
    Remove,
    WatchDir,
    CreateWatcher,
    GetWatcherEvents,
    RemoveWatcher,
}

fn process_call(name: &str) -> Option<Call> {
    Some(match name {
        "Start" => Call::Start,
        "Connect" => Call::Connect,
        "List" => Call::List,
        "SendInput" => Call::SendInput,
        "StreamInput" => Call::StreamInput,
        "SendSignal" => Call::SendSignal,
        "Update" => Call::Update,
        "CloseStdin" => Call::CloseStdin,
        _ => return None,
    })
}

fn filesystem_call(name: &str) -> Option<Call> {
    Some(match name {
        "Stat" => Call::Stat,
        "MakeDir" => Call::MakeDir,
        "Move" => Call::Move,
        "ListDir" => Call::ListDir,
        "Remove" => Call::Remove,
        "WatchDir" => Call::WatchDir,
        "CreateWatcher" => Call::CreateWatcher,
        "GetWatcherEvents" => Call::GetWatcherEvents,
        "RemoveWatcher" => Call::RemoveWatcher,
        _ => return None,
    })
}

impl Call {
    fn form(self) -> Form {
        match self {
            Self::Start | Self::Connect | Self::StreamInput | Self::WatchDir => Form::Stream,
            _ => Form::Unary,
        }
    }
}

async fn called(mut guest: Guest, call: Option<Call>, request: Request) -> Response {
    let Some(call) = call else {
        let text = format!("there is no procedure {}", request.uri().path());
        return connect::refuse(&Failed::new("unimplemented", text));
    };
    if request.method() != Method::POST {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response();
    }
    let (parts, body) = request.into_parts();
    if let Some(refusal) = connect::wrong_form(&parts.headers, call.form()) {
        return refusal;
    }
    let answered = match named(&parts.headers) {
        Ok(name) => {
            guest.named = name;
            // In a box, or the type of the whole would be too deep.
            Box::pin(answer(&guest, call, &parts.headers, body)).await
        }
        Err(failed) => Err(failed),
    };
    match (answered, call.form()) {
        (Ok(response), _) => response,
        (Err(failed), Form::Unary) => connect::refuse(&failed),
        (Err(failed), Form::Stream) => connect::ended(&failed),
    }
}

async fn answer(
    guest: &Guest,
    call: Call,
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<Response, Failed> {
    let message = match call {
        Call::Start => return process::start(guest, headers, body).await,
        Call::Connect => return process::join(guest, headers, body).await,
        Call::WatchDir => return watch::watch_dir(guest, headers, body).await,
        Call::StreamInput => {
            return process::stream_input(guest, body)
                .await
                .map(|message| connect::single(&message));
        }
        Call::List => process::list(guest, body).await,
        Call::SendInput => process::send_input(guest, headers, body).await,
        Call::SendSignal => process::send_signal(guest, body).await,
        Call::Update => process::update(guest, body).await,
        Call::CloseStdin => process::close_stdin(guest, body).await,
        Call::Stat => filesystem::stat(guest, body).await,
        Call::MakeDir => filesystem::make_dir(guest, body).await,
        Call::Move => filesystem::rename(guest, body).await,
        Call::ListDir => filesystem::list_dir(guest, body).await,
        Call::Remove => filesystem::remove(guest, body).await,
        Call::CreateWatcher => watch::create(guest, body).await,
        Call::GetWatcherEvents => watch::events(guest, body).await,
        Call::RemoveWatcher => watch::remove(guest, body).await,
    };
    message.map(|message| connect::reply(&message))
}

async fn health(guest: &Guest) -> Result<Response, Fault> {
    guest.e2b.app.service.guest_usage(&guest.live.who, &guest.live.id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn metrics(guest: &Guest) -> Result<Response, Fault> {
    let service = &guest.e2b.app.service;
    let (who, id) = (&guest.live.who, &guest.live.id);
    let before = service.guest_usage(who, id).await?;
    tokio::time::sleep(LOOK).await;
    let usage = service.guest_usage(who, id).await?;
    let time =
        usage.uptime_ms.saturating_sub(before.uptime_ms).max(1) * u64::from(usage.cpus.max(1));
    let busy = usage.cpu_busy_ms.saturating_sub(before.cpu_busy_ms);
    let percent = u32::try_from(busy.saturating_mul(10_000) / time).unwrap_or(10_000).min(10_000);
    let used = usage.memory_total_bytes.saturating_sub(usage.memory_available_bytes);
    Ok(json(&json!({
        "ts": now_ms() / 1000,
        "cpu_count": usage.cpus,
        "cpu_used_pct": f64::from(percent) / 100.0,
        "mem_total": usage.memory_total_bytes,
        "mem_used": used,
        "mem_cache": usage.memory_cached_bytes,
        "mem_total_mib": usage.memory_total_bytes / MIB,
        "mem_used_mib": used / MIB,
        "disk_used": usage.disk_total_bytes.saturating_sub(usage.disk_free_bytes),
        "disk_total": usage.disk_total_bytes,
    })))
}
