//! The conversation with the interpreter: one HTTP request on one stream.

use axum::body::{Body, to_bytes};
use futures_util::StreamExt;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use ramet_proto::api::{CodeError, CodeEvent, CodeResult, CodeText};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::super::error::Error;
use super::super::guest::Busy;
use super::super::{PortStream, Service};
use super::broken;

/// Longest line of an answer: a picture in base64 is in one.
const LINE_MAX: usize = 80 << 20;
/// Longest answer that is no stream.
const SHORT_MAX: usize = 4 << 20;
/// Time for a short answer, once it has begun.
const SHORT_TIME: Duration = Duration::from_secs(30);
/// Most of what the interpreter says about a refusal.
const REFUSAL_CHARS_MAX: usize = 1000;

/// What is asked.
pub struct Call {
    /// How.
    pub method: Method,
    /// Of what.
    pub path: String,
    /// With what.
    pub body: Option<Value>,
}

impl Call {
    /// Only asks.
    pub fn get(path: String) -> Self {
        Self { method: Method::GET, path, body: None }
    }

    /// Id of the context that it is about.
    fn context(&self) -> String {
        let said = self.body.as_ref().and_then(|body| body["context_id"].as_str());
        said.or_else(|| self.path.split('/').nth(2)).unwrap_or_default().to_owned()
    }
}

/// An answer whose body is still to come. Dropping it hangs up.
pub struct Answer {
    body: axum::body::BodyDataStream,
    line: Vec<u8>,
    /// Where the next end of a line is looked for.
    looked: usize,
    _connection: AbortOnDropHandle<()>,
    _busy: Busy,
}

impl Service {
    /// Asks the interpreter on a stream to it; a refusal is an error.
    pub(super) async fn ask(
        &self,
        stream: PortStream,
        call: Call,
        time: Duration,
    ) -> Result<Answer, Error> {
        let PortStream { stream, busy } = stream;
        let asked = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let task = self.tasks.spawn(async move { drop(connection.await) });
            let connection = AbortOnDropHandle::new(task);
            Ok::<_, hyper::Error>((sender.send_request(request(&call)).await?, connection))
        };
        let answered = timeout(time, asked).await;
        let answered = answered
            .map_err(|_| Error::NotInTime("the interpreter does not answer".to_owned()))?
            .map_err(|error| broken(format!("the interpreter's answer broke off: {error}")));
        let (response, connection) = answered?;
        let status = response.status();
        let body = Body::new(response.into_body());
        if !status.is_success() {
            return Err(refusal(status, body, &call).await);
        }
        let (body, line) = (body.into_data_stream(), Vec::new());
        Ok(Answer { body, line, looked: 0, _connection: connection, _busy: busy })
    }
}

fn request(call: &Call) -> hyper::Request<Body> {
    let body = call.body.as_ref().map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let mut request = hyper::Request::new(body);
    *request.method_mut() = call.method.clone();
    // Paths are made of checked ids.
    *request.uri_mut() = call.path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(HOST, hyper::header::HeaderValue::from_static("localhost"));
    headers.insert(CONNECTION, hyper::header::HeaderValue::from_static("close"));
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    request
}

async fn refusal(status: StatusCode, body: Body, call: &Call) -> Error {
    let text = match timeout(SHORT_TIME, to_bytes(body, SHORT_MAX)).await {
        Ok(Ok(bytes)) => String::from_utf8_lossy(&bytes).chars().take(REFUSAL_CHARS_MAX).collect(),
        _ => format!("the interpreter answered {status}"),
    };
    match status.as_u16() {
        400 | 413 => Error::Bad(text),
        404 => Error::NotFound { what: "context", key: call.context() },
        429 => Error::TooMany(text),
        501 => Error::Unsupported(text),
        503 => Error::WrongState(text),
        504 => Error::NotInTime(text),
        _ => broken(text),
    }
}

impl Answer {
    /// A short answer in JSON; nothing is null.
    pub async fn json<T: DeserializeOwned>(mut self) -> Result<T, Error> {
        let read = async {
            while self.more().await? {
                if self.line.len() > SHORT_MAX {
                    return Err(broken("an answer without an end"));
                }
            }
            Ok(())
        };
        timeout(SHORT_TIME, read)
            .await
            .map_err(|_| Error::NotInTime("the interpreter does not answer".to_owned()))??;
        let bytes = if self.line.is_empty() { b"null" } else { &self.line[..] };
        serde_json::from_slice(bytes).map_err(|error| broken(error.to_string()))
    }

    /// The next event. May be given up and asked again.
    pub async fn event(&mut self) -> Result<CodeEvent, Error> {
        loop {
            let line = self.next_line().await?;
            match serde_json::from_slice::<Event>(&line) {
                Ok(event) => return Ok(event.told()),
                // Types of events that are not known are left out, broken ones are not.
                Err(_) if is_event(&line) => {}
                Err(error) => return Err(broken(error.to_string())),
            }
        }
    }

    async fn next_line(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            if let Some(at) = self.line[self.looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(self.looked + at + 1);
                self.looked = 0;
                return Ok(std::mem::replace(&mut self.line, rest));
            }
            self.looked = self.line.len();
            if self.line.len() > LINE_MAX {
                return Err(broken("an event without an end"));
            }
            if !self.more().await? {
                return Err(broken("the interpreter hung up before the code had ended"));
            }
        }
    }

    /// Waits for more bytes; whether there are any.
    async fn more(&mut self) -> Result<bool, Error> {
        match self.body.next().await {
            Some(Ok(bytes)) => {
                self.line.extend_from_slice(&bytes);
                Ok(true)
            }
            Some(Err(error)) => Err(broken(format!("the interpreter broke off: {error}"))),
            None => Ok(false),
        }
    }
}

fn is_event(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(rename = "type")]
        _kind: String,
    }
    serde_json::from_slice::<Typed>(line).is_ok()
}

/// An event as the interpreter says it.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The code has its turn.
    NumberOfExecutions {
        /// The how manieth it is.
        execution_count: u64,
    },
    /// Output.
    Stdout(Text),
    /// Output.
    Stderr(Text),
    /// Something is shown.
    Result(Box<Shown>),
    /// The code failed.
    Error(CodeError),
    /// It is still there.
    Keepalive {},
    /// The code has ended.
    EndOfExecution {},
}

/// Output.
#[derive(Debug, Deserialize)]
pub struct Text {
    text: String,
    #[serde(default)]
    timestamp: u64,
}

/// Something that is shown.
#[derive(Debug, Deserialize)]
pub struct Shown {
    #[serde(default)]
    is_main_result: bool,
    text: Option<String>,
    html: Option<String>,
    markdown: Option<String>,
    svg: Option<String>,
    png: Option<String>,
    jpeg: Option<String>,
    pdf: Option<String>,
    latex: Option<String>,
    json: Option<Value>,
    javascript: Option<String>,
    data: Option<Value>,
    chart: Option<Value>,
    extra: Option<Map<String, Value>>,
}

impl Event {
    /// In the node's words.
    fn told(self) -> CodeEvent {
        let text = |text: Text| CodeText { text: text.text, timestamp_ns: text.timestamp };
        match self {
            Self::NumberOfExecutions { execution_count } => {
                CodeEvent::Started { count: execution_count }
            }
            Self::Stdout(said) => CodeEvent::Stdout(text(said)),
            Self::Stderr(said) => CodeEvent::Stderr(text(said)),
            Self::Result(shown) => CodeEvent::Result(Box::new(shown.told())),
            Self::Error(error) => CodeEvent::Error(error),
            Self::Keepalive {} => CodeEvent::Keepalive {},
            Self::EndOfExecution {} => CodeEvent::End {},
        }
    }
}

impl Shown {
    fn told(self) -> CodeResult {
        CodeResult {
            main: self.is_main_result,
            text: self.text,
            html: self.html,
            markdown: self.markdown,
            svg: self.svg,
            png: self.png,
            jpeg: self.jpeg,
            pdf: self.pdf,
            latex: self.latex,
            json: self.json,
            javascript: self.javascript,
            data: self.data,
            chart: self.chart,
            extra: self.extra,
        }
    }
}
