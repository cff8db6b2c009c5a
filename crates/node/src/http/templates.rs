//! Templates: build, look at, follow, delete.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ramet_proto::api::{
    BuildTemplate, Problem, Template, TemplateList, TemplateLog, TemplateQuery, TemplateState,
};

use super::extract::{Caller, Json, Path, Query};
use super::problem::Refusal;
use super::{App, events, json};
use crate::auth::Principal;
use crate::sandbox::template::Work;

/// Longest between two looks whether a build is over.
const LOOK: Duration = Duration::from_secs(1);

/// Build a template.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", request_body = BuildTemplate,
    responses((status = 202, body = Template), (status = 200, body = Template, description = "it was built before"),
        (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn build(
    State(app): State<App>,
    Caller(who): Caller,
    Json(request): Json<BuildTemplate>,
) -> Result<Response, Refusal> {
    let (template, _) = app.service.build_template(&who, request).await?;
    let status = match template.state {
        TemplateState::Building => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    json(status, &template)
}

/// All templates.
#[utoipa::path(get, path = "/v1/templates", tag = "templates",
    responses((status = 200, body = TemplateList), (status = "4XX", body = Problem)))]
pub async fn list(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.list_templates(&who))
}

/// A template.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path), TemplateQuery),
    responses((status = 200, body = Template), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<TemplateQuery>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get_template(&who, &name, &query).await?)
}

/// Delete a template. Its sandboxes go on.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_template(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What the commands of a build write, until it is over.
#[utoipa::path(get, path = "/v1/templates/{name}/log", tag = "templates", params(("name" = String, Path)),
    responses((status = 200, body = TemplateLog, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub async fn log(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    let (id, work) = app.service.template_log(&who, &name)?;
    let stop = app.service.stopping();
    let follower = Some(Follower { app, who, id, work, offset: 0 });
    let told = stream::unfold(follower, |follower| async move { follower?.next().await });
    Ok(events::stream_of(told, stop))
}

/// Who follows a log, and how far.
struct Follower {
    app: App,
    who: Principal,
    id: String,
    work: Arc<Work>,
    offset: u64,
}

impl Follower {
    /// The next event, and who goes on; nobody after the last.
    async fn next(mut self) -> Option<(Option<sse::Event>, Option<Self>)> {
        let mut grown = self.work.log.follow();
        loop {
            // In this order: what is written before the end is seen before the end.
            let template = self.template().await;
            let over = template.as_ref().is_none_or(|one| one.state != TemplateState::Building);
            let (offset, text) = self.work.log.since(self.offset);
            if !text.is_empty() {
                self.offset = offset + text.len() as u64;
                return Some((events::named(&"log", &TemplateLog { offset, text }), Some(self)));
            }
            if over {
                return Some((events::named(&"end", &template?), None));
            }
            // Whichever it was, the next look tells.
            let _grown = tokio::time::timeout(LOOK, grown.changed()).await;
        }
    }

    /// As it is now; nothing if it was deleted.
    async fn template(&self) -> Option<Template> {
        let query = TemplateQuery::default();
        self.app.service.get_template(&self.who, &self.id, &query).await.ok()
    }
}
