//! Ports of a sandbox: what listens, HTTP to it, raw streams to it.

use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, RequestBuilder, StatusCode};

use crate::api::{Port, PortList, TCP};
use crate::transport::{ASK_TIME, accepted};
use crate::{Client, Error};

/// A raw stream to a port, to be read and written.
pub type PortStream = reqwest::Upgraded;

impl Client {
    /// Sockets in a sandbox that wait for others.
    pub async fn ports(&self, id: &str) -> Result<Vec<Port>, Error> {
        let list: PortList = self.get(&["sandboxes", id, "ports"]).await?;
        Ok(list.ports)
    }

    /// A request to the HTTP server on a port of a sandbox, to be completed and sent by the caller.
    /// `path` may have a query. The answer is the server's own, unless its type is `application/problem+json`
    /// and its status 4xx or 5xx: then it may be the node's.
    pub fn port_request(
        &self,
        method: Method,
        id: &str,
        port: u16,
        path: &str,
    ) -> Result<RequestBuilder, Error> {
        let base = self.route(&["sandboxes", id, "ports", &port.to_string()]);
        let whole = format!("{base}/{}", path.trim_start_matches('/'));
        let url = whole.parse().map_err(Error::broken)?;
        Ok(self.request_to(method, url))
    }

    /// A raw stream to a TCP port of a sandbox. Each direction is closed on its own: shutting the stream down
    /// ends what is sent, and what the other side still says can be read.
    pub async fn tcp(&self, id: &str, port: u16) -> Result<PortStream, Error> {
        let request = self.request(Method::GET, &["sandboxes", id, "tcp", &port.to_string()]);
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, TCP);
        let begin = async {
            let sent = request.send().await.map_err(|error| self.failed(error, ASK_TIME))?;
            if sent.status() != StatusCode::SWITCHING_PROTOCOLS {
                let answer = accepted(sent).await?;
                let text = format!("it answered {} instead of a stream", answer.status());
                return Err(Error::Protocol(text));
            }
            sent.upgrade().await.map_err(Error::broken)
        };
        tokio::time::timeout(ASK_TIME, begin).await.map_err(|_| Error::Timeout(ASK_TIME))?
    }
}
