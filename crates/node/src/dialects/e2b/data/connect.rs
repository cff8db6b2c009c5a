//! The Connect protocol as E2B's SDKs speak it: JSON, one message or a stream of envelopes.
//!
//! An envelope is a byte of flags, a length (big endian) and a message. A length beyond the bound is refused before anything of the message is
//! kept. Compression and the binary form of messages are refused by name. Errors of a stream come in its last envelope, with status 200.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::Code;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::http::problem;
use crate::sandbox::{Error, Service};

/// Content of a request with one message, and of its answer.
const UNARY: &str = "application/json";
/// Content of a stream.
const STREAM: &str = "application/connect+json";
/// Longest message with input for a process.
pub const INPUT_MAX: usize = 64 << 20;
/// Longest message otherwise.
pub const MESSAGE_MAX: usize = 1 << 20;
/// Time for a client to send its only message.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Time between two pieces of a stream of input; clients send something every 50 s.
const PIECE_TIME: Duration = Duration::from_secs(600);
/// Time for a client to take what it is sent.
const TAKE: Duration = Duration::from_secs(300);
/// Silence after which a stream says that it is there, if the client wishes nothing else.
const PING: Duration = Duration::from_secs(90);
/// Messages on their way to a client.
const QUEUE: usize = 8;
/// Flags of an envelope.
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Bytes before the message of an envelope.
const HEAD: usize = 5;

/// A refusal, in Connect's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// One of Connect's codes.
    pub code: &'static str,
    /// What was wrong.
    pub message: String,
}

impl Failed {
    /// With this code.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }

    fn shown(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }

    fn status(&self) -> StatusCode {
        match self.code {
            "invalid_argument" | "failed_precondition" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "permission_denied" => StatusCode::FORBIDDEN,
            "not_found" => StatusCode::NOT_FOUND,
            "already_exists" => StatusCode::CONFLICT,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let problem = problem::of(&error);
        let code = match problem.code {
            Code::FileNotFound | Code::NoSuchProcess => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::BadRequest | Code::NotADirectory | Code::IsADirectory | Code::NotEmpty => {
                "invalid_argument"
            }
            Code::PermissionDenied => "permission_denied",
            Code::NoSuchUser => "unauthenticated",
            Code::NoSpace | Code::TooMany | Code::NoCapacity => "resource_exhausted",
            Code::UnsupportedOption => "unimplemented",
            Code::GuestUnresponsive => "deadline_exceeded",
            Code::NotFound | Code::Gone | Code::Promoted | Code::WrongState | Code::NotReady => {
                "unavailable"
            }
            _ => "internal",
        };
        Self { code, message: problem.detail }
    }
}

/// How a request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One message.
    Unary,
    /// Envelopes.
    Stream,
}

/// The refusal of a request that is not written as its procedure wants it.
pub fn wrong_form(headers: &HeaderMap, wanted: Form) -> Option<Response> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let right = if wanted == Form::Unary { UNARY } else { STREAM };
    if kind != right {
        let text = format!("content type {kind:?} is not supported: this procedure takes {right}");
        let mut response = (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response();
        response.headers_mut().insert("accept-post", HeaderValue::from_static(right));
        return Some(response);
    }
    let encoded = ["content-encoding", "connect-content-encoding"].iter().any(|name| {
        headers.get(*name).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    });
    let failed = Failed::new("unimplemented", "compressed messages are not supported");
    encoded.then(|| if wanted == Form::Unary { refuse(&failed) } else { ended(&failed) })
}

/// How long the client gives the call; none if it says nothing.
pub fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, Failed> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.ok_or_else(|| Failed::invalid("Connect-Timeout-Ms: not a number"))?;
    Ok((number > 0).then(|| Duration::from_millis(number)))
}

/// Silence after which a stream says that it is there.
pub fn ping(headers: &HeaderMap) -> Duration {
    let value = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds = value.and_then(|value| value.parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(PING, |seconds| Duration::from_secs(seconds.min(3600)))
}

/// The only message of a request.
pub async fn message<T: DeserializeOwned>(body: Body, most: usize) -> Result<T, Failed> {
    let read = timeout(BODY_TIME, axum::body::to_bytes(body, most)).await;
    let late = |_| Failed::new("deadline_exceeded", "the body did not come in time");
    let bytes = read.map_err(late)?.map_err(|_| {
        let text = format!("the body broke off or is longer than {most} bytes");
        Failed::new("resource_exhausted", text)
    })?;
    parse(&bytes)
}

/// A message; an empty one says nothing.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failed> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| Failed::invalid(error.to_string()))
}

/// Takes envelopes apart, however their bytes come.
#[derive(Debug)]
pub struct Envelopes {
    buffer: Vec<u8>,
    most: usize,
}

impl Envelopes {
    /// With messages of at most so many bytes.
    pub fn new(most: usize) -> Self {
        Self { buffer: Vec::new(), most }
    }

    /// The next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, if it is whole.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, Failed> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [flags, a, b, c, d] = *head;
        if flags & COMPRESSED != 0 {
            return Err(Failed::new("unimplemented", "compressed messages are not supported"));
        }
        if flags != 0 {
            return Err(Failed::invalid(format!("an envelope with flags {flags}")));
        }
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > self.most {
            let text = format!("a message of {length} bytes; {} is the most", self.most);
            return Err(Failed::new("resource_exhausted", text));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let rest = rest[length..].to_vec();
        let mut message = std::mem::replace(&mut self.buffer, rest);
        message.truncate(HEAD + length);
        message.drain(..HEAD);
        Ok(Some(message))
    }

    /// Nothing is left over.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Messages of a client, as they come.
pub struct Messages {
    body: axum::body::BodyDataStream,
    envelopes: Envelopes,
    patience: Duration,
}

impl Messages {
    /// Of a stream of input.
    pub fn of(body: Body) -> Self {
        let envelopes = Envelopes::new(INPUT_MAX);
        Self { body: body.into_data_stream(), envelopes, patience: PIECE_TIME }
    }

    /// The next; none at the end.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failed> {
        loop {
            if let Some(message) = self.envelopes.next()? {
                return parse(&message).map(Some);
            }
            let late = |_| Failed::new("deadline_exceeded", "nothing came in time");
            match timeout(self.patience, self.body.next()).await.map_err(late)? {
                Some(Ok(bytes)) => self.envelopes.push(&bytes),
                Some(Err(_)) => return Err(Failed::new("canceled", "the body broke off")),
                None if self.envelopes.is_empty() => return Ok(None),
                None => return Err(Failed::invalid("the body ends within an envelope")),
            }
        }
    }
}

/// The only message of a request that is answered with a stream.
pub async fn first<T: DeserializeOwned>(body: Body) -> Result<T, Failed> {
    let body = body.into_data_stream();
    let envelopes = Envelopes::new(MESSAGE_MAX);
    let mut messages = Messages { body, envelopes, patience: BODY_TIME };
    messages.next().await?.ok_or_else(|| Failed::invalid("the request has no message"))
}

fn envelope(flags: u8, message: &Value) -> Bytes {
    let text = message.to_string();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD + text.len());
    bytes.push(flags);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

fn last(failed: Option<&Failed>) -> Bytes {
    envelope(END, &failed.map_or_else(|| json!({}), |failed| json!({ "error": failed.shown() })))
}

/// An answer of one message.
pub fn reply(message: &Value) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(UNARY));
    ([kind], message.to_string()).into_response()
}

/// A refusal in place of one message.
pub fn refuse(failed: &Failed) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(UNARY));
    let mut response = (failed.status(), [kind], failed.shown().to_string()).into_response();
    if failed.status().is_server_error() {
        response.headers_mut().insert("should-retry", HeaderValue::from_static("false"));
    }
    response
}

/// A stream of one message.
pub fn single(message: &Value) -> Response {
    streamed(Body::from([&envelope(0, message)[..], &last(None)[..]].concat()))
}

/// A stream that is only a refusal.
pub fn ended(failed: &Failed) -> Response {
    streamed(Body::from(last(Some(failed))))
}

fn streamed(body: Body) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(STREAM));
    ([kind], body).into_response()
}

/// The client is gone, or does not read.
#[derive(Debug)]
pub struct HungUp;

/// Where messages of a stream go.
pub struct Sink(mpsc::Sender<Result<Bytes, Infallible>>);

impl Sink {
    /// One more.
    pub async fn message(&self, message: &Value) -> Result<(), HungUp> {
        self.send(envelope(0, message)).await
    }

    /// The last of all.
    pub async fn end(self, failed: Option<&Failed>) {
        // Who has hung up does not hear it.
        drop(self.send(last(failed)).await);
    }

    /// Until the client has hung up.
    pub async fn hung_up(&self) {
        self.0.closed().await;
    }

    async fn send(&self, bytes: Bytes) -> Result<(), HungUp> {
        match timeout(TAKE, self.0.send(Ok(bytes))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(HungUp),
        }
    }
}

/// A stream that a task of the service writes; it ends with the task, and the task with its client.
pub fn stream<F: Future<Output = ()> + Send + 'static>(
    service: &Service,
    work: impl FnOnce(Sink) -> F,
) -> Response {
    let (sender, receiver) = mpsc::channel(QUEUE);
    service.keep(work(Sink(sender)));
    streamed(Body::from_stream(ReceiverStream::new(receiver)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    proptest! {
        #[test]
        fn envelopes_are_the_same_however_they_are_split(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            pieces in prop::collection::vec(1_usize..20, 1..50),
        ) {
            let bytes = written(&messages);
            let (mut envelopes, mut found) = (Envelopes::new(100), Vec::new());
            let (mut rest, mut sizes) = (&bytes[..], pieces.iter().cycle());
            while !rest.is_empty() {
                let size = rest.len().min(*sizes.next().unwrap());
                envelopes.push(&rest[..size]);
                rest = &rest[size..];
                while let Some(message) = envelopes.next().unwrap() {
                    found.push(message);
                }
            }
            prop_assert_eq!(found, messages);
            prop_assert!(envelopes.is_empty());
        }

        #[test]
        fn no_bytes_are_kept_beyond_the_bound(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut envelopes = Envelopes::new(16);
            for byte in bytes {
                envelopes.push(&[byte]);
                match envelopes.next() {
                    Ok(_) => prop_assert!(envelopes.buffer.len() <= HEAD + 16),
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    #[test]
    fn hostile_envelopes_are_refused() {
        for (bytes, code) in [
            (&[0, 255, 255, 255, 255][..], "resource_exhausted"),
            (&[0, 4, 0, 0, 1], "resource_exhausted"),
            (&[1, 0, 0, 0, 0], "unimplemented"),
            (&[2, 0, 0, 0, 0], "invalid_argument"),
            (&[9, 0, 0, 0, 0], "unimplemented"),
        ] {
            let mut envelopes = Envelopes::new(INPUT_MAX);
            envelopes.push(bytes);
            assert_eq!(envelopes.next().unwrap_err().code, code, "{bytes:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse::<Value>(deep.as_bytes()).unwrap_err().code, "invalid_argument");
    }
}
