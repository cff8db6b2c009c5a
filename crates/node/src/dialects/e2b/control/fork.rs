//! Forks: children of one instant, running or paused.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::{ForkRequest, ForkedChild, OnTimeout, Problem};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Caller, Json, Key, Path};
use super::{Control, create, json, labels, shapes};
use crate::dialects::e2b::Fault;
use crate::http::problem;

/// Most children.
const COUNT_MAX: u32 = 100;
/// Seconds that a child has, if nobody says.
const FORK_S: u64 = 15;

/// Body of `…/fork`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// `POST /sandboxes/{id}/fork`.
pub async fn fork(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Key(key): Key,
    Json(body): Json<Fork>,
) -> Result<Response, Fault> {
    let count = body.count.unwrap_or(1);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Fault::bad(format!("count: 1 to {COUNT_MAX}, not {count}")));
    }
    let timeout_s = Some(create::seconds(body.timeout, FORK_S)?);
    let source = shapes::find(&control, &who, &id)?;
    // A child runs, whatever its source does.
    let mut own = source.labels.clone();
    let on_timeout = own.remove(labels::ON_TIMEOUT).map(|_| OnTimeout::Kill);
    let request = ForkRequest {
        count: Some(count),
        labels: Some(own),
        keep_edge: true,
        timeout_s,
        on_timeout,
        ..ForkRequest::default()
    };
    let service = control.service();
    let forked = service.fork(&who, &source.id, request, key, problem::of).await?;
    let children = forked.children.iter().map(|child| shown(&control, child)).collect();
    Ok(json(StatusCode::CREATED, &Value::Array(children)))
}

fn shown(control: &Control, child: &ForkedChild) -> Value {
    match (&child.sandbox, &child.error) {
        (Some(sandbox), _) => json!({"sandbox": shapes::sandbox(control, sandbox)}),
        (None, Some(Problem { status, detail, .. })) => {
            json!({"error": {"code": status, "message": detail}})
        }
        (None, None) => json!({"error": {"code": 500, "message": "the node failed"}}),
    }
}
