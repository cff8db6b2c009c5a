//! Lists of sandboxes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ramet_proto::api::{ListQuery, Sandbox, State as Phase};
use serde::Deserialize;
use serde_json::Value;

use super::extract::{Caller, Query};
use super::{Control, json, labels, shapes, time};
use crate::auth::Principal;
use crate::dialects::e2b::Fault;

/// Most sandboxes of a page, and as many as come if nobody says.
const PAGE_MAX: usize = 100;
/// Sandboxes that are asked for at a time.
const STEP: u32 = 1000;
const NEXT_TOKEN: &str = "x-next-token";
const TOTAL_RUNNING: &str = "x-total-running";

/// Query of `GET /v2/sandboxes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    metadata: Option<String>,
    state: Option<String>,
    order: Option<Order>,
    #[serde(rename = "startedAfter")]
    started_after: Option<String>,
    template: Option<String>,
    #[serde(rename = "nextToken")]
    next: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    Desc,
}

/// Query of `GET /sandboxes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Legacy {
    metadata: Option<String>,
}

/// `GET /sandboxes`: those that run.
pub async fn running(
    State(control): State<Control>,
    Caller(who): Caller,
    Query(query): Query<Legacy>,
) -> Result<Response, Fault> {
    let metadata = query.metadata.as_deref().map(filter).unwrap_or_default();
    let mut all = all(&control, &who)?;
    all.retain(|one| one.state == Phase::Running && fits(one, &metadata));
    Ok(json(StatusCode::OK, &shown(&all)))
}

/// `GET /v2/sandboxes`.
pub async fn list(
    State(control): State<Control>,
    Caller(who): Caller,
    Query(query): Query<Wanted>,
) -> Result<Response, Fault> {
    let metadata = query.metadata.as_deref().map(filter).unwrap_or_default();
    let states = states(query.state.as_deref())?;
    let after = match query.started_after.as_deref() {
        None => None,
        Some(text) => {
            let bad = || Fault::bad(format!("startedAfter: a time of RFC 3339, not {text:?}"));
            Some(time::parse(text).ok_or_else(bad)?)
        }
    };
    let template = query.template.as_deref();
    let mut all = all(&control, &who)?;
    all.retain(|one| {
        fits(one, &metadata)
            && after.is_none_or(|after| one.created_at_ms > after)
            && template.is_none_or(|template| is_from(one, template))
    });
    let running = all.iter().filter(|one| one.state == Phase::Running).count();
    all.retain(|one| states.contains(&one.state));
    all.sort_by(|one, other| place(one).cmp(&place(other)));
    if query.order != Some(Order::Asc) {
        all.reverse();
    }
    let (page, next) = page(all, query.limit, query.next.as_deref(), |one| one.id.clone())?;
    let mut response = json(StatusCode::OK, &shown(&page));
    response.headers_mut().insert(TOTAL_RUNNING, running.into());
    tell_next(&mut response, next);
    Ok(response)
}

/// Where a sandbox is in the list.
fn place(sandbox: &Sandbox) -> (u64, &str) {
    (sandbox.created_at_ms, &sandbox.id)
}

/// A page of what is there, and where the next one begins: after this name.
pub fn page<T>(
    all: Vec<T>,
    limit: Option<usize>,
    after: Option<&str>,
    name: impl Fn(&T) -> String,
) -> Result<(Vec<T>, Option<String>), Fault> {
    let limit = limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Fault::bad(format!("limit: 1 to {PAGE_MAX}, not {limit}")));
    }
    let from = match after.filter(|after| !after.is_empty()) {
        None => 0,
        Some(after) => {
            let at = all.iter().position(|one| name(one) == after);
            at.ok_or_else(|| Fault::bad("nextToken: what it named is gone; begin anew"))? + 1
        }
    };
    let more = all.len() > from + limit;
    let page: Vec<T> = all.into_iter().skip(from).take(limit).collect();
    let next = page.last().filter(|_| more).map(name);
    Ok((page, next))
}

/// Says where the next page begins.
pub fn tell_next(response: &mut Response, next: Option<String>) {
    if let Some(value) = next.and_then(|next| next.parse().ok()) {
        response.headers_mut().insert(NEXT_TOKEN, value);
    }
}

/// Every sandbox that shows.
fn all(control: &Control, who: &Principal) -> Result<Vec<Sandbox>, Fault> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let query = ListQuery { limit: Some(STEP), cursor, ..ListQuery::default() };
        let page = control.service().list(who, &query)?;
        all.extend(page.sandboxes.into_iter().filter(shapes::shows));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

fn shown(sandboxes: &[Sandbox]) -> Value {
    sandboxes.iter().map(|one| Value::Object(shapes::listed(one))).collect()
}

fn fits(sandbox: &Sandbox, wanted: &BTreeMap<String, String>) -> bool {
    let metadata = labels::metadata(&sandbox.labels);
    wanted.iter().all(|(key, value)| metadata.get(key) == Some(value))
}

fn is_from(sandbox: &Sandbox, template: &str) -> bool {
    shapes::template_of(sandbox) == template || shapes::alias_of(sandbox) == template
}

fn states(text: Option<&str>) -> Result<Vec<Phase>, Fault> {
    let state = |word: &str| match word {
        "running" => Ok(Phase::Running),
        "paused" => Ok(Phase::Paused),
        _ => Err(Fault::bad(format!("state: running or paused, not {word:?}"))),
    };
    text.unwrap_or("running,paused").split(',').map(|word| state(word.trim())).collect()
}

/// Metadata that is asked for: a form within the query, whose keys and values SDKs have encoded once more.
fn filter(text: &str) -> BTreeMap<String, String> {
    let part = |text: &str| decoded(&decoded(&text.replace('+', " ")));
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) => (part(key), part(value)),
        None => (part(pair), String::new()),
    };
    text.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

/// Without percent signs; one that begins nothing stands for itself.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_encoded_twice() {
        let of = |text: &str| filter(text).into_iter().collect::<Vec<_>>();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        // What is left of `metadata=k%3Dv%252520a` after the query was read.
        assert_eq!(of("k=v%2520a"), [pair("k", "v a")]);
        assert_eq!(of("a=1&b=x+y"), [pair("a", "1"), pair("b", "x y")]);
        assert_eq!(of("a%253Db=%2526"), [pair("a=b", "&")]);
        assert_eq!(of("k=100%"), [pair("k", "100%")]);
        assert!(of("").is_empty());
    }
}
