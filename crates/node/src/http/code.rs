//! Code in contexts. What comes of it is told as it happens, one line of JSON for each event.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use ramet_proto::api::{
    CodeContext, CodeEvent, ContextList, CreateContext, Interrupted, Problem, RunCode,
};

use super::extract::{Caller, Json, Path};
use super::problem::{self, Refusal};
use super::{App, json};
use crate::sandbox::CodeStream;

/// Run code in a context.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/code", tag = "code", params(("id" = String, Path)),
    request_body = RunCode, responses((status = 200, body = CodeEvent, content_type = "application/x-ndjson"),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn run(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<RunCode>,
) -> Result<Response, Refusal> {
    let code = app.service.run_code(&who, &id, request).await?;
    let lines = lines(code).take_until(app.service.stopping().cancelled_owned());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(lines)).into_response())
}

/// Events as lines. Dropped with the answer, which interrupts the code.
fn lines(code: CodeStream) -> impl Stream<Item = Result<Vec<u8>, serde_json::Error>> {
    stream::unfold(Some(code), |code| async move {
        let mut code = code?;
        let (event, rest) = match code.next().await {
            Ok(event) => (event?, Some(code)),
            Err(error) => (CodeEvent::Failed { problem: problem::of(&error) }, None),
        };
        let line = serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            line
        });
        Some((line, rest))
    })
}

/// The contexts of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/contexts", tag = "code", params(("id" = String, Path)),
    responses((status = 200, body = ContextList), (status = "4XX", body = Problem)))]
pub async fn contexts(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.contexts(&who, &id).await?)
}

/// Make a context.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts", tag = "code", params(("id" = String, Path)),
    request_body = CreateContext, responses((status = 201, body = CodeContext), (status = "4XX", body = Problem)))]
pub async fn create_context(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(request): Json<CreateContext>,
) -> Result<Response, Refusal> {
    json(StatusCode::CREATED, &app.service.create_context(&who, &id, request).await?)
}

/// End a context.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/contexts/{context}", tag = "code",
    params(("id" = String, Path), ("context" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete_context(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    app.service.delete_context(&who, &id, &context).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Give a context a new process.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{context}/restart", tag = "code",
    params(("id" = String, Path), ("context" = String, Path)),
    responses((status = 200, body = CodeContext), (status = "4XX", body = Problem)))]
pub async fn restart_context(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.restart_context(&who, &id, &context).await?)
}

/// Interrupt what runs in a context.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{context}/interrupt", tag = "code",
    params(("id" = String, Path), ("context" = String, Path)),
    responses((status = 200, body = Interrupted), (status = "4XX", body = Problem)))]
pub async fn interrupt_context(
    State(app): State<App>,
    Caller(who): Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.interrupt_context(&who, &id, &context).await?)
}
