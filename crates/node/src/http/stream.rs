//! Processes that are streamed over a WebSocket; [`ramet_proto::api`] describes the frames.
//!
//! Two directions, each at its reader's pace: a client that does not read stops the process's output, and a process
//! that does not read stops the client's input. The stream ends when the process has ended, when either
//! side hangs up, or when the node stops; a process outlives its stream.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use ramet_proto::agent::{self as wire, Channel, Input, Reply};
use ramet_proto::api::{
    Code, Problem, STDERR, STDIN, STDOUT, StreamInput, StreamReply, StreamRequest,
};
use tokio::time::timeout;

use super::extract::{Caller, Path, parse};
use super::problem::{self, Refusal};
use super::{App, Held};
use crate::auth::Principal;
use crate::host::agent::{Frame, Listener, Speaker, unexpected};
use crate::sandbox::{Error, GuestStream};

/// Time for a client to say what it wants.
const FIRST: Duration = Duration::from_secs(30);
/// Time for a client to take what it is sent.
const TAKE: Duration = Duration::from_secs(300);
/// Longest frame of a client.
const FRAME_MAX: usize = 1 << 20;

/// Start or join a process over a WebSocket.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/exec/ws", tag = "processes", params(("id" = String, Path)),
    responses((status = 101, description = "a WebSocket"), (status = "4XX", body = Problem)))]
pub async fn stream(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Extension(held): Extension<Held>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let id = app.service.id_of(&who, &id)?;
    let upgrade = upgrade.map_err(|error| Refusal::new(Code::BadRequest, error.body_text()))?;
    let upgrade = upgrade.max_message_size(FRAME_MAX).max_frame_size(FRAME_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        serve(app, who, id, socket).await;
        drop(held);
    }))
}

async fn serve(app: App, who: Principal, id: String, mut socket: WebSocket) {
    let stream = match begin(&app, &who, &id, &mut socket).await {
        Ok(stream) => stream,
        Err(refusal) => return close(socket, StreamReply::Error(*refusal.0)).await,
    };
    let GuestStream { pid, listener, speaker, busy } = stream;
    let (mut sender, receiver) = socket.split();
    if say(&mut sender, &StreamReply::Started { pid }).await.is_err() {
        return;
    }
    tokio::select! {
        () = outward(listener, &mut sender) => {}
        () = inward(receiver, speaker) => {}
        () = app.service.stopping().cancelled_owned() => {}
    }
    drop(busy);
    // Whoever has hung up does not hear it.
    drop(timeout(FIRST, sender.close()).await);
}

async fn begin(
    app: &App,
    who: &Principal,
    id: &str,
    socket: &mut WebSocket,
) -> Result<GuestStream, Refusal> {
    let first = match timeout(FIRST, socket.recv()).await {
        Ok(Some(Ok(Message::Text(text)))) => text,
        _ => return Err(Refusal::new(Code::BadRequest, "the first frame must be a text frame")),
    };
    let request: StreamRequest = parse(first.as_bytes())?;
    Ok(app.service.stream(who, id, request).await?)
}

async fn close(mut socket: WebSocket, reply: StreamReply) {
    if let Ok(text) = serde_json::to_string(&reply) {
        drop(timeout(FIRST, socket.send(Message::Text(text.into()))).await);
    }
    drop(timeout(FIRST, socket.send(Message::Close(None))).await);
}

type Sender = SplitSink<WebSocket, Message>;

/// The client is gone.
struct HungUp;

async fn say(sender: &mut Sender, reply: &StreamReply) -> Result<(), HungUp> {
    let text = serde_json::to_string(reply).map_err(|_| HungUp)?;
    send(sender, Message::Text(text.into())).await
}

async fn send(sender: &mut Sender, message: Message) -> Result<(), HungUp> {
    match timeout(TAKE, sender.send(message)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(HungUp),
    }
}

/// From the process to the client, to the end.
async fn outward(mut listener: Listener, sender: &mut Sender) {
    loop {
        let message = match listener.next().await {
            Ok(Frame::Bytes(channel, bytes)) => {
                let number = if channel == Channel::Stderr { STDERR } else { STDOUT };
                let mut frame = Vec::with_capacity(1 + bytes.len());
                frame.push(number);
                frame.extend_from_slice(&bytes);
                Ok(frame)
            }
            Ok(Frame::Reply(Reply::Exited(exited))) => Err(ended(&exited)),
            Ok(Frame::Reply(other)) => Err(failed(unexpected(&other))),
            Err(error) => Err(failed(error)),
        };
        let sent = match &message {
            Ok(frame) => send(sender, Message::Binary(frame.clone().into())).await,
            Err(last) => say(sender, last).await,
        };
        if sent.is_err() || message.is_err() {
            return;
        }
    }
}

fn ended(exited: &wire::Exited) -> StreamReply {
    StreamReply::Exited {
        exit_code: exited.code,
        signal: exited.signal,
        timed_out: exited.timed_out,
        dropped_bytes: exited.dropped_bytes,
    }
}

fn failed(error: crate::host::agent::Error) -> StreamReply {
    StreamReply::Error(problem::of(&Error::Guest(error)))
}

/// From the client to the process, until the client hangs up or breaks the rules. When the process
/// takes no more, this waits for its end.
async fn inward(mut receiver: SplitStream<WebSocket>, mut speaker: Speaker) {
    let mut takes = true;
    while let Some(Ok(message)) = receiver.next().await {
        let done = match message {
            Message::Binary(bytes) => match bytes.split_first() {
                Some((&STDIN, bytes)) if takes => speaker.bytes(bytes).await,
                Some((&STDIN, _)) => Ok(()),
                _ => return,
            },
            Message::Text(text) => match parse::<StreamInput>(text.as_bytes()) {
                Ok(input) if takes => speaker.input(&input_of(&input)).await,
                Ok(_) => Ok(()),
                Err(_) => return,
            },
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        takes = takes && done.is_ok();
    }
}

fn input_of(input: &StreamInput) -> Input {
    match input {
        StreamInput::End {} => Input::End {},
        StreamInput::Resize(size) => {
            Input::Resize(wire::Terminal { columns: size.columns, rows: size.rows })
        }
        StreamInput::Signal { signal } => Input::Signal { signal: *signal },
    }
}
