//! Requests and answers: addresses, the token, deadlines, problems.
//!
//! Everything that is sent goes through [`Client::send`], once.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::api::{Code, Problem};

/// How long making a connection may take.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a request that only asks may take.
pub(crate) const ASK_TIME: Duration = Duration::from_secs(60);
/// How long a request that makes machines, or writes or reads states of the store, may take. A template
/// may have to boot for it, and in the software host that takes its time.
pub(crate) const MAKE_TIME: Duration = Duration::from_secs(600);
/// How long the next piece of a body may take.
pub(crate) const PIECE_TIME: Duration = Duration::from_secs(120);
/// How long a connection is kept for the next request. Nodes hang up after a little longer.
const IDLE_TIME: Duration = Duration::from_secs(20);
/// Keep-alive: silence before the first probe, time between probes.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(30);
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Things in a page, where all pages are asked for.
pub(crate) const PAGE: u32 = 1000;
/// Most of an unexpected answer that is shown.
const SHOWN_MAX: usize = 200;

/// A node, and who asks. Cheap to clone; connections are shared.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    bearer: HeaderValue,
}

impl Client {
    /// A client of the node at this address (`http://HOST:PORT`). Nothing is sent yet.
    pub fn new(url: &str, token: &str) -> Result<Self, Error> {
        let base = parse(url)?;
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| Error::Token)?;
        bearer.set_sensitive(true);
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME)
            .tcp_nodelay(true)
            .tcp_keepalive(PROBE_AFTER)
            .tcp_keepalive_interval(PROBE_EVERY)
            .pool_idle_timeout(IDLE_TIME)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("ramet-client/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(Error::broken)?;
        Ok(Self { http, base, bearer })
    }

    /// The node's address.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    pub(crate) fn bearer(&self) -> &HeaderValue {
        &self.bearer
    }

    /// Address of a route; each part becomes one segment, whatever characters it has.
    pub(crate) fn route(&self, parts: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(parts);
        }
        url
    }

    pub(crate) fn request(&self, method: Method, parts: &[&str]) -> RequestBuilder {
        self.request_to(method, self.route(parts))
    }

    pub(crate) fn request_to(&self, method: Method, url: Url) -> RequestBuilder {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, self.bearer.clone());
        self.http.request(method, url).headers(headers)
    }

    /// Sends a request, waits for the head of the answer, and makes an error of a refusal.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        time: Duration,
    ) -> Result<Response, Error> {
        let response = tokio::time::timeout(time, request.send())
            .await
            .map_err(|_| Error::Timeout(time))?
            .map_err(|error| self.failed(error, time))?;
        accepted(response).await
    }

    /// The JSON that a request is answered with.
    pub(crate) async fn answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        time: Duration,
    ) -> Result<T, Error> {
        let work = async {
            let response = self.send(request, time).await?;
            self.json(response, time).await
        };
        tokio::time::timeout(time, work).await.map_err(|_| Error::Timeout(time))?
    }

    /// The JSON of an answer.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        response: Response,
        time: Duration,
    ) -> Result<T, Error> {
        let bytes = tokio::time::timeout(time, response.bytes()).await;
        let bytes = bytes.map_err(|_| Error::Timeout(time))?;
        let bytes = bytes.map_err(|error| self.failed(error, time))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Protocol(error.to_string()))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, parts: &[&str]) -> Result<T, Error> {
        self.answer(self.request(Method::GET, parts), ASK_TIME).await
    }

    pub(crate) async fn get_with<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        query: &impl Serialize,
    ) -> Result<T, Error> {
        self.answer(self.request(Method::GET, parts).query(query), ASK_TIME).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        body: &impl Serialize,
        time: Duration,
    ) -> Result<T, Error> {
        self.answer(self.request(Method::POST, parts).json(body), time).await
    }

    pub(crate) fn failed(&self, error: reqwest::Error, time: Duration) -> Error {
        if error.is_connect() {
            return Error::Unreachable { url: self.url().to_owned(), source: error.into() };
        }
        if error.is_timeout() {
            return Error::Timeout(time);
        }
        Error::broken(error)
    }
}

/// Goes on to the next page, if there is one. A list that does not come to an end is an error.
pub(crate) fn turn(cursor: &mut Option<String>, next: Option<String>) -> Result<bool, Error> {
    if next.is_some() && *cursor == next {
        return Err(Error::Protocol("its list does not come to an end".into()));
    }
    *cursor = next;
    Ok(cursor.is_some())
}

fn parse(text: &str) -> Result<Url, Error> {
    let wrong = |reason: String| Error::Address { url: text.to_owned(), reason };
    let url = Url::parse(text).map_err(|error| wrong(error.to_string()))?;
    match (url.scheme(), url.host_str()) {
        ("http", Some(_)) => Ok(url),
        ("http", None) => Err(wrong("it names no host".into())),
        (other, _) => Err(wrong(format!("{other} is not spoken here"))),
    }
}

/// An answer that is no refusal.
pub(crate) async fn accepted(response: Response) -> Result<Response, Error> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refusal(response).await)
}

/// The node's words, or what else came.
async fn refusal(response: Response) -> Error {
    let status = response.status();
    let json = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("json"));
    let body = match tokio::time::timeout(ASK_TIME, response.bytes()).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => return Error::broken(error),
        Err(_) => return Error::Timeout(ASK_TIME),
    };
    problem_of(&body, json).map_or_else(
        || {
            let text: String = String::from_utf8_lossy(&body).chars().take(SHOWN_MAX).collect();
            Error::Protocol(format!("it answered {status} {}", text.trim()))
        },
        Error::refused,
    )
}

pub(crate) fn problem_of(body: &[u8], json: bool) -> Option<Problem> {
    if !json {
        return None;
    }
    let problem: Problem = serde_json::from_slice(body).ok()?;
    // Of a newer node: at least its number is known.
    Some(if problem.code == Code::Unknown && problem.detail.is_empty() {
        Problem { detail: problem.title.clone(), ..problem }
    } else {
        problem
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_addresses_are_taken() {
        assert!(parse("http://127.0.0.1:1").is_ok());
        for wrong in ["", "127.0.0.1:1", "https://a", "file:///x", "http://"] {
            assert!(matches!(parse(wrong), Err(Error::Address { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_name_stays_one_segment() {
        let client = Client::new("http://h:1/", "t").unwrap();
        let url = client.route(&["sandboxes", "../a b/c?d", "fork"]);
        assert_eq!(url.as_str(), "http://h:1/v1/sandboxes/..%2Fa%20b%2Fc%3Fd/fork");
        assert_eq!(client.url(), "http://h:1");
    }

    #[test]
    fn a_token_with_a_line_break_is_refused() {
        assert!(matches!(Client::new("http://h", "a\nb"), Err(Error::Token)));
        assert!(Client::new("http://h", "ab\n").is_ok());
    }

    #[test]
    fn other_answers_are_no_problems() {
        assert!(problem_of(b"<html>", false).is_none());
        assert!(problem_of(b"{}", true).is_none());
    }
}
