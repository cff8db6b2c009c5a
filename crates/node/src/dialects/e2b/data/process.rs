//! The service `process.Process`.
//!
//! Processes belong to the agent in the guest, with their tags and what they were asked for: children of a fork have the same ones. A client that
//! hangs up leaves its process running. The time that a client gives to `Start` is that of the process: the agent kills it then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ramet_proto::agent::{Channel, Command, Exec, Input, Reply, Terminal};
use ramet_proto::api::Code;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connect::{self, Failed, HungUp, Messages, Sink};
use super::person::{self, Guest};
use super::signals;
use crate::host::agent::{self, Frame};
use crate::http::problem;
use crate::sandbox::{Error, GuestStream, INTERPRETER_TAG, Mouth};

/// Most bytes of output in one message.
const CHUNK: usize = 32 << 10;
/// How long a process may take to read what it is sent.
const FEED_TIME: Duration = Duration::from_secs(300);
/// Longest time of a process: a year.
const TIME_MAX: Duration = Duration::from_secs(366 * 86400);
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Base64 in both alphabets is told apart by the caller; padding is as it comes.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

#[derive(Debug, Deserialize)]
struct StartRequest {
    process: Option<Config>,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    cmd: String,
    args: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
struct Selector {
    pid: Option<Pid>,
    tag: Option<String>,
}

/// A number, as proto3's JSON may write it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pid {
    Number(i32),
    Text(String),
}

#[derive(Debug, Deserialize)]
struct Selected {
    process: Option<Selector>,
}

#[derive(Debug, Deserialize)]
struct SendInput {
    process: Option<Selector>,
    input: Option<Given>,
}

#[derive(Debug, Deserialize)]
struct Given {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamInput {
    start: Option<Selected>,
    data: Option<Data>,
    keepalive: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Data {
    input: Option<Given>,
}

#[derive(Debug, Deserialize)]
struct SendSignal {
    process: Option<Selector>,
    signal: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Update {
    process: Option<Selector>,
    pty: Option<Pty>,
}

#[derive(Debug, Deserialize)]
struct Nothing {}

/// How a process is heard.
struct Hearing {
    ping: Duration,
    /// When the stream ends, if the process has not.
    until: Option<Instant>,
    terminal: bool,
    /// The client has given the process its time.
    own: bool,
}

/// `Start`.
pub async fn start(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Response, Failed> {
    let limit = connect::time_limit(headers)?;
    let ping = connect::ping(headers);
    let request: StartRequest = connect::first(body).await?;
    let exec = exec(guest, request, limit).await?;
    let terminal = exec.terminal.is_some();
    let stream = begin(guest, exec).await?;
    Ok(heard(guest, stream, Hearing { ping, until: None, terminal, own: true }))
}

async fn exec(
    guest: &Guest,
    request: StartRequest,
    limit: Option<Duration>,
) -> Result<Exec, Failed> {
    let config = request.process.ok_or_else(|| Failed::invalid("process: is missing"))?;
    let cwd = match config.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(guest.place(&cwd).await?),
        None => None,
    };
    let user = match &guest.named {
        Some(_) => guest.person().await?.0.name,
        None => guest.live.user.clone().unwrap_or_else(|| person::USUAL.to_owned()),
    };
    let terminal = request.pty.map(|pty| terminal(&pty)).transpose()?;
    let limit = limit.map(|limit| limit.min(TIME_MAX).as_millis());
    Ok(Exec {
        argv: [config.cmd].into_iter().chain(config.args.unwrap_or_default()).collect(),
        env: config.envs.unwrap_or_default(),
        cwd,
        user: Some(user),
        // A terminal has its own.
        stdin: request.stdin.unwrap_or(true) && terminal.is_none(),
        terminal,
        timeout_ms: limit.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX)),
        tag: request.tag.filter(|tag| !tag.is_empty()),
        linger: true,
    })
}

async fn begin(guest: &Guest, exec: Exec) -> Result<GuestStream, Failed> {
    let service = &guest.e2b.app.service;
    let (who, id) = (&guest.live.who, &guest.live.id);
    let started = service.start_command(who, id, exec.clone()).await;
    let usual = guest.named.is_none() && guest.live.user.is_none();
    let started = match started {
        // An image without the usual user has root at least.
        Err(error) if usual && problem::of(&error).code == Code::NoSuchUser => {
            let exec = Exec { user: Some(person::ROOT.to_owned()), ..exec };
            service.start_command(who, id, exec).await
        }
        started => started,
    };
    started.map_err(|error| match Failed::from(error) {
        // Neither the program nor the directory is what the procedure is about.
        Failed { code: "not_found" | "permission_denied", message } => Failed::invalid(message),
        failed => failed,
    })
}

fn terminal(pty: &Pty) -> Result<Terminal, Failed> {
    let size = pty.size.as_ref().ok_or_else(|| Failed::invalid("pty: has no size"))?;
    let narrow = |number: u32| {
        u16::try_from(number).map_err(|_| Failed::invalid("pty: the size is beyond any terminal"))
    };
    Ok(Terminal { columns: narrow(size.cols)?, rows: narrow(size.rows)? })
}

/// `Connect`.
pub async fn join(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Response, Failed> {
    let limit = connect::time_limit(headers)?;
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let ping = connect::ping(headers);
    let Selected { process } = connect::first(body).await?;
    let command = select(guest, process).await?;
    let (who, id) = (&guest.live.who, &guest.live.id);
    let stream = guest.e2b.app.service.join(who, id, command.pid).await?;
    Ok(heard(guest, stream, Hearing { ping, until, terminal: command.terminal, own: false }))
}

/// `List`.
pub async fn list(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let Nothing {} = connect::message(body, connect::MESSAGE_MAX).await?;
    let commands = guest.e2b.app.service.commands(&guest.live.who, &guest.live.id).await?;
    let running = commands.iter().filter(|command| !command.ended && !is_hidden(command));
    Ok(json!({ "processes": running.map(shown).collect::<Vec<_>>() }))
}

fn is_hidden(command: &Command) -> bool {
    command.tag.as_deref() == Some(INTERPRETER_TAG)
}

fn shown(command: &Command) -> Value {
    let mut config = json!({
        "cmd": command.argv.first(),
        "args": command.argv.get(1..).unwrap_or_default(),
        "envs": command.env,
    });
    if let Some(cwd) = &command.cwd {
        config["cwd"] = json!(cwd);
    }
    let mut shown = json!({ "config": config, "pid": command.pid });
    if let Some(tag) = &command.tag {
        shown["tag"] = json!(tag);
    }
    shown
}

/// `SendInput`.
pub async fn send_input(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Value, Failed> {
    let patience = connect::time_limit(headers)?.unwrap_or(FEED_TIME).min(FEED_TIME);
    let request: SendInput = connect::message(body, connect::INPUT_MAX).await?;
    let bytes = given(request.input)?;
    mouth(guest, request.process).await?.bytes(&bytes, patience).await?;
    Ok(json!({}))
}

/// `StreamInput`.
pub async fn stream_input(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let mut messages = Messages::of(body);
    let mut speaking: Option<Mouth> = None;
    while let Some(message) = messages.next::<StreamInput>().await? {
        match (message.start, message.data, message.keepalive) {
            (Some(Selected { process }), None, None) => {
                speaking = Some(mouth(guest, process).await?);
            }
            (None, Some(data), None) => {
                let bytes = given(data.input)?;
                let none = || Failed::invalid("the first message says which process");
                speaking.as_mut().ok_or_else(none)?.bytes(&bytes, FEED_TIME).await?;
            }
            (None, None, _) => {}
            _ => return Err(Failed::invalid("one of start, data and keepalive")),
        }
    }
    Ok(json!({}))
}

/// `SendSignal`: to the process and all that it has started.
pub async fn send_signal(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let request: SendSignal = connect::message(body, connect::MESSAGE_MAX).await?;
    let signal = match request.signal.as_ref() {
        Some(Value::String(name)) if name == "SIGNAL_SIGTERM" => SIGTERM,
        Some(Value::String(name)) if name == "SIGNAL_SIGKILL" => SIGKILL,
        Some(Value::Number(number)) if number.as_i64() == Some(15) => SIGTERM,
        Some(Value::Number(number)) if number.as_i64() == Some(9) => SIGKILL,
        other => {
            return Err(Failed::new("unimplemented", format!("signal {other:?} is not supported")));
        }
    };
    mouth(guest, request.process).await?.tell(&Input::Signal { signal }).await?;
    Ok(json!({}))
}

/// `Update`: the size of a terminal.
pub async fn update(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let request: Update = connect::message(body, connect::MESSAGE_MAX).await?;
    let mut mouth = mouth(guest, request.process).await?;
    if let Some(pty) = request.pty {
        mouth.tell(&Input::Resize(terminal(&pty)?)).await?;
    }
    Ok(json!({}))
}

/// `CloseStdin`.
pub async fn close_stdin(guest: &Guest, body: Body) -> Result<Value, Failed> {
    let Selected { process } = connect::message(body, connect::MESSAGE_MAX).await?;
    mouth(guest, process).await?.tell(&Input::End {}).await?;
    Ok(json!({}))
}

fn given(input: Option<Given>) -> Result<Vec<u8>, Failed> {
    let input = input.ok_or_else(|| Failed::invalid("input: is missing"))?;
    let text = match (input.stdin, input.pty) {
        (Some(text), None) | (None, Some(text)) => text,
        _ => return Err(Failed::invalid("input: one of stdin and pty")),
    };
    let alphabet =
        if text.contains(['-', '_']) { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let decoded = GeneralPurpose::new(alphabet, LENIENT).decode(text);
    decoded.map_err(|error| Failed::invalid(format!("input: not base64: {error}")))
}

/// A way to speak to the process that is meant.
async fn mouth(guest: &Guest, selector: Option<Selector>) -> Result<Mouth, Failed> {
    let pid = match pid_of(selector)? {
        Ok(pid) => pid,
        Err(tag) => find(guest, |command| command.tag.as_deref() == Some(tag.as_str())).await?.pid,
    };
    Ok(guest.e2b.app.service.speak_to(&guest.live.who, &guest.live.id, pid).await?)
}

/// The process that is meant.
async fn select(guest: &Guest, selector: Option<Selector>) -> Result<Command, Failed> {
    match pid_of(selector)? {
        Ok(pid) => find(guest, |command| command.pid == pid).await,
        Err(tag) => find(guest, |command| command.tag.as_deref() == Some(tag.as_str())).await,
    }
}

fn pid_of(selector: Option<Selector>) -> Result<Result<i32, String>, Failed> {
    let selector = selector.ok_or_else(|| Failed::invalid("process: is missing"))?;
    match (selector.pid, selector.tag) {
        (Some(Pid::Number(pid)), None) => Ok(Ok(pid)),
        (Some(Pid::Text(text)), None) => match text.parse() {
            Ok(pid) => Ok(Ok(pid)),
            Err(_) => Err(Failed::invalid(format!("process: {text:?} is no pid"))),
        },
        (None, Some(tag)) => Ok(Err(tag)),
        _ => Err(Failed::invalid("process: one of pid and tag")),
    }
}

/// The process, the one that runs before those that have ended.
async fn find(guest: &Guest, meant: impl Fn(&Command) -> bool) -> Result<Command, Failed> {
    let commands = guest.e2b.app.service.commands(&guest.live.who, &guest.live.id).await?;
    let mut found: Vec<Command> = commands.into_iter().filter(|one| meant(one)).collect();
    found.sort_by_key(|command| command.ended);
    let first = found.into_iter().next();
    first.ok_or_else(|| Failed::new("not_found", "process not found"))
}

fn heard(guest: &Guest, stream: GuestStream, hearing: Hearing) -> Response {
    connect::stream(&guest.e2b.app.service, |sink| hear(stream, hearing, sink))
}

async fn hear(stream: GuestStream, hearing: Hearing, sink: Sink) {
    let GuestStream { pid, mut listener, speaker, busy } = stream;
    let told = async {
        event(&sink, json!({ "start": { "pid": pid } })).await?;
        loop {
            let next = std::pin::pin!(listener.next());
            let frame = match next_of(next, &hearing, &sink).await? {
                Some(frame) => frame,
                None => {
                    let text = "the time that the client gave is over";
                    return Ok(Some(Failed::new("deadline_exceeded", text)));
                }
            };
            match frame {
                Ok(Frame::Bytes(channel, bytes)) => {
                    for part in bytes.chunks(CHUNK) {
                        let name = match channel {
                            Channel::Stderr => "stderr",
                            _ if hearing.terminal => "pty",
                            _ => "stdout",
                        };
                        event(&sink, json!({ "data": { name: STANDARD.encode(part) } })).await?;
                    }
                }
                Ok(Frame::Reply(Reply::Exited(exited))) if exited.timed_out && hearing.own => {
                    let text = "the process was killed: its time was over";
                    return Ok(Some(Failed::new("deadline_exceeded", text)));
                }
                Ok(Frame::Reply(Reply::Exited(exited))) => {
                    event(&sink, json!({ "end": signals::end(&exited) })).await?;
                    return Ok(None);
                }
                Ok(Frame::Reply(other)) => {
                    return Ok(Some(Error::Guest(agent::unexpected(&other)).into()));
                }
                Err(error) => return Ok(Some(broken(error))),
            }
        }
    };
    let ended: Option<Result<Option<Failed>, HungUp>> = tokio::select! {
        ended = told => Some(ended),
        () = sink.hung_up() => None,
    };
    drop((speaker, busy));
    if let Some(Ok(failed)) = ended {
        sink.end(failed.as_ref()).await;
    }
}

/// The sandbox has stopped in the middle, or its guest did wrong.
fn broken(error: agent::Error) -> Failed {
    match error {
        agent::Error::Closed => Failed::new("unavailable", "the sandbox is not running any more"),
        error => Error::Guest(error).into(),
    }
}

/// Waits for a frame, and tells the client meanwhile that the stream is there. Nothing if its time is over.
async fn next_of<T>(
    mut next: std::pin::Pin<&mut impl Future<Output = T>>,
    hearing: &Hearing,
    sink: &Sink,
) -> Result<Option<T>, HungUp> {
    loop {
        let left = hearing.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let wait = left.map_or(hearing.ping, |left| left.min(hearing.ping));
        match timeout(wait, &mut next).await {
            Ok(frame) => return Ok(Some(frame)),
            Err(_) if wait == hearing.ping => event(sink, json!({ "keepalive": {} })).await?,
            Err(_) => {}
        }
    }
}

async fn event(sink: &Sink, event: Value) -> Result<(), HungUp> {
    sink.message(&json!({ "event": event })).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_and_input_are_read_as_proto_json_has_them() {
        let pid = |text: &str| pid_of(serde_json::from_str::<Selected>(text).unwrap().process);
        assert_eq!(pid(r#"{"process":{"pid":7}}"#).unwrap(), Ok(7));
        assert_eq!(pid(r#"{"process":{"pid":"7"}}"#).unwrap(), Ok(7));
        assert_eq!(pid(r#"{"process":{"tag":"t"}}"#).unwrap(), Err("t".to_owned()));
        for bad in ["{}", r#"{"process":{}}"#, r#"{"process":{"pid":1,"tag":"t"}}"#] {
            assert_eq!(pid(bad).unwrap_err().code, "invalid_argument", "{bad}");
        }
        let bytes = |stdin: &str| given(Some(Given { stdin: Some(stdin.to_owned()), pty: None }));
        assert_eq!(bytes("aGk=").unwrap(), b"hi");
        assert_eq!(bytes("aGk").unwrap(), b"hi");
        assert_eq!(bytes("-_-_").unwrap(), bytes("+/+/").unwrap());
        assert!(bytes("!").is_err() && given(None).is_err());
    }
}
