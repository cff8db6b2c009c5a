//! Images: take in, look at, delete.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{Image, ImageList, Problem, PutImageQuery};

use super::extract::{Caller, Path, Pieces, Query};
use super::problem::Refusal;
use super::{App, json};

/// All images.
#[utoipa::path(get, path = "/v1/images", tag = "images",
    responses((status = 200, body = ImageList), (status = "4XX", body = Problem)))]
pub async fn list(State(app): State<App>, Caller(who): Caller) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.list_images(&who))
}

/// An image.
#[utoipa::path(get, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path)),
    responses((status = 200, body = Image), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    json(StatusCode::OK, &app.service.get_image(&who, &name)?)
}

/// Take an image in, under a name. It appears whole or not at all; one that had the name is replaced.
#[utoipa::path(put, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path), PutImageQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 201, body = Image), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub async fn put(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    Query(query): Query<PutImageQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut sink = app.service.put_image(&who, &name, query, length).await?;
    let mut pieces = Pieces::of(body);
    while let Some(bytes) = pieces.next().await? {
        sink.data(bytes.to_vec()).await?;
    }
    json(StatusCode::CREATED, &sink.finish().await?)
}

/// Delete an image that no template is built on.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    app.service.delete_image(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
