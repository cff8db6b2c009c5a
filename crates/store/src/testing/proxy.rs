//! A proxy before an HTTP server that delays, cuts, answers errors and changes bytes, as a test says.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Bytes of a request or an answer, at most.
const MESSAGE_MAX: usize = 64 << 20;

/// What the proxy does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Pass it on, and the answer back.
    Pass,
    /// Wait, then pass it on.
    Delay(Duration),
    /// Answer with this status; the server knows nothing of it.
    Answer(u16),
    /// Close the connection; the server knows nothing of it.
    CutBefore,
    /// Pass it on, and close the connection instead of answering.
    CutAfter,
    /// Pass it on, and close the connection in the middle of the answer.
    CutMiddle,
    /// Pass it on, and flip a bit in the middle of the answer's body.
    Flip,
    /// Pass it on, and never answer.
    Hang,
}

/// A request, as far as a test decides by it.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `PUT` and so on.
    pub method: String,
    /// Path and query.
    pub target: String,
}

type Rule = Box<dyn FnMut(&Request) -> Act + Send>;

/// The proxy. Dropping it ends it.
pub struct Proxy {
    address: SocketAddr,
    rule: Arc<Mutex<Rule>>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({})", self.address)
    }
}

impl Proxy {
    /// Listens on loopback and passes everything on to `server`.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Act::Pass)));
        let shared = Arc::clone(&rule);
        let task = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    // A connection that breaks is what a proxy like this is for.
                    let _ended = serve(client, server, &shared).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, rule, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Decides about requests from now on.
    pub fn rule(&self, rule: impl FnMut(&Request) -> Act + Send + 'static) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves one request: every answer ends its connection.
async fn serve(mut client: TcpStream, server: SocketAddr, rule: &Mutex<Rule>) -> io::Result<()> {
    let Some(message) = read_request(&mut client).await? else { return Ok(()) };
    let act = {
        let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
        (*rule)(&message.request)
    };
    match act {
        Act::CutBefore => return Ok(()),
        Act::Answer(status) => {
            let body = "<Error><Code>InternalError</Code></Error>";
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} Injected\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            return client.write_all(answer.as_bytes()).await;
        }
        Act::Delay(time) => tokio::time::sleep(time).await,
        Act::Pass | Act::CutAfter | Act::CutMiddle | Act::Flip | Act::Hang => {}
    }
    let mut answer = forward(&message.bytes, server).await?;
    let body = find(&answer, b"\r\n\r\n").map_or(0, |at| at + 4);
    match act {
        Act::CutAfter => return Ok(()),
        Act::Hang => std::future::pending().await,
        Act::CutMiddle => answer.truncate(body + (answer.len() - body) / 2),
        Act::Flip if answer.len() > body => {
            let middle = body + (answer.len() - body) / 2;
            answer[middle] ^= 4;
        }
        _ => {}
    }
    client.write_all(&answer).await?;
    client.shutdown().await
}

struct Message {
    request: Request,
    bytes: Vec<u8>,
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn bad(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// A request with its body, told to be the connection's last. None at the end of the connection.
async fn read_request(client: &mut TcpStream) -> io::Result<Option<Message>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at + 4;
        }
        if bytes.len() > 64 << 10 {
            return Err(bad("a head without end"));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let text = std::str::from_utf8(&bytes[..head]).map_err(|_| bad("a head that is no text"))?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or("").split(' ').map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(bad("no request"));
    };
    let mut length = 0;
    let mut kept = vec![format!("{method} {target} HTTP/1.1"), "Connection: close".to_owned()];
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("no header"))?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().map_err(|_| bad("no length"))?,
            "transfer-encoding" => return Err(bad("chunked requests are not understood")),
            "connection" => continue,
            _ => {}
        }
        kept.push(line.to_owned());
    }
    if length > MESSAGE_MAX {
        return Err(bad("too long"));
    }
    let mut body = bytes.split_off(head);
    while body.len() < length {
        if client.read_buf(&mut body).await? == 0 {
            return Err(bad("a body without end"));
        }
    }
    let mut bytes = kept.join("\r\n").into_bytes();
    bytes.extend_from_slice(b"\r\n\r\n");
    bytes.extend_from_slice(&body);
    Ok(Some(Message { request: Request { method, target }, bytes }))
}

async fn forward(request: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut upstream = TcpStream::connect(server).await?;
    upstream.write_all(request).await?;
    let mut answer = Vec::new();
    let most = u64::try_from(MESSAGE_MAX).unwrap_or(u64::MAX);
    upstream.take(most).read_to_end(&mut answer).await?;
    Ok(answer)
}
