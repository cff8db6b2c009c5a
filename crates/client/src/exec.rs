//! A process in a sandbox, as a stream over a WebSocket.
//!
//! [`ExecStream`] has one half to write ([`ExecInput`]) and one to read ([`ExecOutput`]); they can be
//! used from different tasks. Dropping both leaves the process running, and
//! [`Client::attach`] joins it again.
//!
//! A process may be silent for as long as it likes, so reading has no deadline of its own: a dead
//! connection is found out by the kernel's keep-alive probes.

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::api::{
    STDERR, STDIN, STDOUT, StreamExec, StreamInput, StreamReply, StreamRequest, Terminal,
};
use crate::transport::{ASK_TIME, CONNECT_TIME, PIECE_TIME, PROBE_AFTER, PROBE_EVERY, problem_of};
use crate::{Client, Error};

/// Largest message that is taken from a node.
const MESSAGE_MAX: usize = 16 << 20;
/// Most standard input in one message.
const INPUT_PIECE: usize = 64 << 10;

type Socket = WebSocketStream<TcpStream>;

/// What a process does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// It wrote to its standard output, or to its terminal.
    Stdout(Bytes),
    /// It wrote to its standard error.
    Stderr(Bytes),
    /// It has ended; nothing comes after this.
    Exited(Exited),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited {
    /// Exit code, if it exited.
    pub exit_code: Option<i32>,
    /// Signal, if one killed it.
    pub signal: Option<i32>,
    /// Its time was over.
    pub timed_out: bool,
    /// Output that was dropped while nobody was attached.
    pub dropped_bytes: u64,
}

/// A process that runs, or that has just ended.
pub struct ExecStream {
    pid: i32,
    input: ExecInput,
    output: ExecOutput,
}

/// What is sent to a process.
pub struct ExecInput {
    sink: SplitSink<Socket, Message>,
}

/// What comes from a process.
pub struct ExecOutput {
    stream: SplitStream<Socket>,
}

impl Client {
    /// Starts a process.
    pub async fn exec_stream(&self, id: &str, exec: StreamExec) -> Result<ExecStream, Error> {
        self.stream(id, &StreamRequest::Exec(exec)).await
    }

    /// Joins a process that was started by an exec, also if it has ended lately.
    pub async fn attach(&self, id: &str, pid: i32) -> Result<ExecStream, Error> {
        self.stream(id, &StreamRequest::Attach { pid }).await
    }

    async fn stream(&self, id: &str, request: &StreamRequest) -> Result<ExecStream, Error> {
        let begin = async {
            let (mut sink, stream) = self.open_socket(id).await?.split();
            sink.send(text(request)?).await.map_err(Error::broken)?;
            let mut output = ExecOutput { stream };
            match output.frame().await? {
                Frame::Reply(StreamReply::Started { pid }) => {
                    Ok(ExecStream { pid, input: ExecInput { sink }, output })
                }
                other => Err(Error::Protocol(format!("a stream began with {other:?}"))),
            }
        };
        tokio::time::timeout(ASK_TIME, begin).await.map_err(|_| Error::Timeout(ASK_TIME))?
    }

    async fn open_socket(&self, id: &str) -> Result<Socket, Error> {
        let mut url = self.route(&["sandboxes", id, "exec", "ws"]);
        let mut request = {
            url.set_scheme("ws").map_err(|()| Error::Protocol("ws is no scheme".into()))?;
            url.as_str().into_client_request().map_err(Error::broken)?
        };
        request.headers_mut().insert(AUTHORIZATION, self.bearer().clone());
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX));
        let tcp = self.connect().await?;
        match client_async_with_config(request, tcp, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => Err(self.refusal(id, &response).await),
            Err(error) => Err(Error::broken(error)),
        }
    }

    /// Why there is no stream. The body of the answer may not have come together with its head, and
    /// is lost then; what is wrong with the sandbox can be asked for.
    async fn refusal(
        &self,
        id: &str,
        response: &tungstenite::http::Response<Option<Vec<u8>>>,
    ) -> Error {
        let body = response.body().as_deref().unwrap_or_default();
        if let Some(problem) = problem_of(body, true) {
            return Error::refused(problem);
        }
        match self.sandbox(id).await {
            Err(error) => error,
            Ok(_) => {
                Error::Protocol(format!("it answered {} instead of a stream", response.status()))
            }
        }
    }

    async fn connect(&self) -> Result<TcpStream, Error> {
        let unreachable = |source: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable {
            url: self.url().to_owned(),
            source,
        };
        let host = self.base().host_str().unwrap_or_default().trim_matches(['[', ']']);
        let address = (host, self.base().port_or_known_default().unwrap_or(80));
        let tcp = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(address))
            .await
            .map_err(|_| unreachable("no connection in time".into()))?
            .map_err(|error| unreachable(error.into()))?;
        tcp.set_nodelay(true).map_err(Error::broken)?;
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
        SockRef::from(&tcp).set_tcp_keepalive(&probes).map_err(Error::broken)?;
        Ok(tcp)
    }
}

impl ExecStream {
    /// Its pid in the sandbox.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// One half to write, one to read.
    pub fn split(self) -> (ExecInput, ExecOutput) {
        (self.input, self.output)
    }

    /// What is sent to it.
    pub fn input(&mut self) -> &mut ExecInput {
        &mut self.input
    }

    /// Waits for what comes next.
    pub async fn next(&mut self) -> Result<Output, Error> {
        self.output.next().await
    }
}

impl ExecInput {
    /// Writes to its standard input or terminal. Waits as long as the process does not read.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(INPUT_PIECE) {
            let mut message = Vec::with_capacity(piece.len() + 1);
            message.push(STDIN);
            message.extend_from_slice(piece);
            self.sink.send(Message::Binary(message.into())).await.map_err(Error::broken)?;
        }
        Ok(())
    }

    /// Closes its standard input.
    pub async fn end(&mut self) -> Result<(), Error> {
        self.message(&StreamInput::End {}).await
    }

    /// Gives its terminal another size.
    pub async fn resize(&mut self, terminal: Terminal) -> Result<(), Error> {
        self.message(&StreamInput::Resize(terminal)).await
    }

    /// Sends a signal to its group.
    pub async fn signal(&mut self, signal: i32) -> Result<(), Error> {
        self.message(&StreamInput::Signal { signal }).await
    }

    /// Hangs up. The process goes on.
    pub async fn close(&mut self) -> Result<(), Error> {
        self.sink.close().await.map_err(Error::broken)
    }

    async fn message(&mut self, input: &StreamInput) -> Result<(), Error> {
        let sent = tokio::time::timeout(PIECE_TIME, self.sink.send(text(input)?)).await;
        sent.map_err(|_| Error::Timeout(PIECE_TIME))?.map_err(Error::broken)
    }
}

#[derive(Debug)]
enum Frame {
    Reply(StreamReply),
    Output(Output),
}

impl ExecOutput {
    /// Waits for what comes next.
    pub async fn next(&mut self) -> Result<Output, Error> {
        match self.frame().await? {
            Frame::Output(output) => Ok(output),
            Frame::Reply(StreamReply::Exited { exit_code, signal, timed_out, dropped_bytes }) => {
                Ok(Output::Exited(Exited { exit_code, signal, timed_out, dropped_bytes }))
            }
            Frame::Reply(other) => Err(Error::Protocol(format!("a stream said {other:?}"))),
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(Message::Text(text))) => return reply(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => return output(bytes).map(Frame::Output),
                Some(Ok(Message::Close(_))) | None => {
                    return Err(Error::broken("the stream ended before the process did"));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::broken(error)),
            }
        }
    }
}

fn reply(text: &[u8]) -> Result<Frame, Error> {
    match serde_json::from_slice(text) {
        Ok(StreamReply::Error(problem)) => Err(Error::refused(problem)),
        Ok(reply) => Ok(Frame::Reply(reply)),
        Err(error) => Err(Error::Protocol(format!("a frame that is not known: {error}"))),
    }
}

fn output(mut bytes: Bytes) -> Result<Output, Error> {
    if bytes.is_empty() {
        return Err(Error::Protocol("a frame without a channel".into()));
    }
    match bytes.split_to(1)[0] {
        STDOUT => Ok(Output::Stdout(bytes)),
        STDERR => Ok(Output::Stderr(bytes)),
        other => Err(Error::Protocol(format!("bytes on channel {other}"))),
    }
}

fn text(message: &impl serde::Serialize) -> Result<Message, Error> {
    let text =
        serde_json::to_string(message).map_err(|error| Error::Protocol(error.to_string()))?;
    Ok(Message::Text(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_belong_to_a_channel() {
        let of = |bytes: &'static [u8]| output(Bytes::from_static(bytes));
        assert_eq!(of(&[STDOUT, b'a']).unwrap(), Output::Stdout(Bytes::from_static(b"a")));
        assert_eq!(of(&[STDERR]).unwrap(), Output::Stderr(Bytes::new()));
        assert!(matches!(of(&[]), Err(Error::Protocol(_))));
        assert!(matches!(of(&[9, 1]), Err(Error::Protocol(_))));
    }
}
