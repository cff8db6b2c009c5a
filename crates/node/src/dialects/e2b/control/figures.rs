//! Metrics and logs of sandboxes.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::join_all;
use ramet_proto::api::{GuestUsage, Sandbox, State as Phase};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::extract::{Caller, Path, Query};
use super::{Control, json, shapes, time};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::dialects::e2b::{Fault, outer_id};

/// Between two looks at how busy a guest is.
const LOOK: Duration = Duration::from_millis(200);
/// Most sandboxes of one request.
const MANY_MAX: usize = 100;
/// Most lines of one request, and as many as come if nobody says.
const LINES_MAX: usize = 1000;

/// Query of `…/metrics`, in seconds since 1970.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    start: Option<u64>,
    end: Option<u64>,
}

/// `GET /sandboxes/{id}/metrics`: what is measured now, if that is asked for.
pub async fn metrics(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(span): Query<Span>,
) -> Result<Response, Fault> {
    let sandbox = shapes::find(&control, &who, &id)?;
    let now = now_ms() / 1000;
    let asked =
        span.start.is_none_or(|start| start <= now) && span.end.is_none_or(|end| end >= now);
    let metric = match asked {
        true => measure(&control, &who, &sandbox).await?,
        false => None,
    };
    Ok(json(StatusCode::OK, &metric.into_iter().collect()))
}

/// Query of `GET /sandboxes/metrics`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Many {
    sandbox_ids: String,
}

/// `GET /sandboxes/metrics`. Those that do not run are left out.
pub async fn metrics_of_many(
    State(control): State<Control>,
    Caller(who): Caller,
    Query(query): Query<Many>,
) -> Result<Response, Fault> {
    let ids: Vec<&str> = query.sandbox_ids.split(',').map(str::trim).collect();
    if ids.len() > MANY_MAX {
        return Err(Fault::bad(format!("sandbox_ids: at most {MANY_MAX}, not {}", ids.len())));
    }
    let found = ids.iter().filter_map(|id| shapes::find(&control, &who, id).ok());
    let measured = found.map(|sandbox| {
        let (control, who) = (&control, &who);
        async move {
            let metric = measure(control, who, &sandbox).await.ok().flatten()?;
            Some((outer_id(&sandbox.id).to_owned(), metric))
        }
    });
    let sandboxes: Map<String, Value> = join_all(measured).await.into_iter().flatten().collect();
    Ok(json(StatusCode::OK, &json!({"sandboxes": sandboxes})))
}

/// `SandboxMetric` of this moment; none if it does not run.
async fn measure(
    control: &Control,
    who: &Principal,
    sandbox: &Sandbox,
) -> Result<Option<Value>, Fault> {
    if sandbox.state != Phase::Running {
        return Ok(None);
    }
    let service = control.service();
    let Some(before) = service.stats(who, &sandbox.id).await?.guest else { return Ok(None) };
    tokio::time::sleep(LOOK).await;
    let Some(usage) = service.stats(who, &sandbox.id).await?.guest else { return Ok(None) };
    let now = now_ms();
    Ok(Some(json!({
        "timestamp": time::of_ms(now),
        "timestampUnix": now / 1000,
        "cpuCount": usage.cpus,
        "cpuUsedPct": busy_percent(&before, &usage),
        "memUsed": usage.memory_total_bytes.saturating_sub(usage.memory_available_bytes),
        "memTotal": usage.memory_total_bytes,
        "memCache": 0,
        "diskUsed": usage.disk_total_bytes.saturating_sub(usage.disk_free_bytes),
        "diskTotal": usage.disk_total_bytes,
    })))
}

/// How busy all processors were between two looks, in percent with two digits.
fn busy_percent(before: &GuestUsage, after: &GuestUsage) -> f64 {
    let busy = after.cpu_busy_ms.saturating_sub(before.cpu_busy_ms);
    let time = after.uptime_ms.saturating_sub(before.uptime_ms) * u64::from(after.cpus.max(1));
    let hundredths = (busy * 10_000).checked_div(time).unwrap_or(0).min(10_000);
    f64::from(u32::try_from(hundredths).unwrap_or(10_000)) / 100.0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Forward,
    Backward,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Query of `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    cursor: Option<u64>,
    limit: Option<usize>,
    direction: Option<Direction>,
    level: Option<Level>,
    search: Option<String>,
}

/// A line of the console, and when it stands for.
struct Line {
    at_ms: u64,
    text: String,
}

/// `GET /v2/sandboxes/{id}/logs`. Every line is of the level `info`.
pub async fn logs(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<Logs>,
) -> Result<Response, Fault> {
    let mut lines = console(&control, &who, &id).await?;
    let backward = query.direction == Some(Direction::Backward);
    let silent = matches!(query.level, Some(Level::Warn | Level::Error));
    lines.retain(|line| {
        let within = query.cursor.is_none_or(|cursor| match backward {
            true => line.at_ms < cursor,
            false => line.at_ms >= cursor,
        });
        let found = query.search.as_ref().is_none_or(|search| line.text.contains(search.as_str()));
        within && found && !silent
    });
    if backward {
        lines.reverse();
    }
    lines.truncate(limit(query.limit)?);
    let entries: Vec<Value> = lines.iter().map(entry).collect();
    Ok(json(StatusCode::OK, &json!({"logs": entries})))
}

/// Query of `GET /sandboxes/{id}/logs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lines {
    start: Option<u64>,
    limit: Option<usize>,
}

/// `GET /sandboxes/{id}/logs`.
pub async fn lines(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<Lines>,
) -> Result<Response, Fault> {
    let mut lines = console(&control, &who, &id).await?;
    lines.retain(|line| query.start.is_none_or(|start| line.at_ms >= start));
    lines.truncate(limit(query.limit)?);
    let plain = |line: &Line| json!({"timestamp": time::of_ms(line.at_ms), "line": line.text});
    let logs: Vec<Value> = lines.iter().map(plain).collect();
    let entries: Vec<Value> = lines.iter().map(entry).collect();
    Ok(json(StatusCode::OK, &json!({"logs": logs, "logEntries": entries})))
}

fn limit(limit: Option<usize>) -> Result<usize, Fault> {
    match limit.unwrap_or(LINES_MAX) {
        limit @ 0..=LINES_MAX => Ok(limit),
        limit => Err(Fault::bad(format!("limit: 0 to {LINES_MAX}, not {limit}"))),
    }
}

fn entry(line: &Line) -> Value {
    json!({
        "timestamp": time::of_ms(line.at_ms),
        "message": line.text,
        "level": "info",
        "fields": {"source": "console"},
    })
}

/// The lines of the console; none of a sandbox that is paused.
async fn console(control: &Control, who: &Principal, id: &str) -> Result<Vec<Line>, Fault> {
    let sandbox = shapes::find(control, who, id)?;
    if sandbox.state != Phase::Running {
        return Ok(Vec::new());
    }
    let logs = control.service().logs(who, &sandbox.id).await?;
    let times = (0..).map(|number: u64| sandbox.created_at_ms.saturating_add(number));
    let line = |(at_ms, text): (u64, &str)| Line { at_ms, text: text.to_owned() };
    Ok(times.zip(logs.text.lines()).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_a_share_of_all_processors() {
        let usage = |cpu_busy_ms, uptime_ms| GuestUsage {
            cpus: 2,
            cpu_busy_ms,
            uptime_ms,
            memory_total_bytes: 0,
            memory_available_bytes: 0,
            disk_total_bytes: 0,
            disk_free_bytes: 0,
            processes: 0,
        };
        let percent = |busy, time| busy_percent(&usage(0, 0), &usage(busy, time));
        assert!((percent(100, 200) - 25.0).abs() < 0.01);
        assert!(percent(0, 0) < 0.01 && percent(1000, 100) <= 100.0);
    }
}
