//! What happens to sandboxes, as it happens (server-sent events).

use std::collections::VecDeque;

use reqwest::{Method, Response};

use crate::api::{Event, EventsQuery};
use crate::transport::{ASK_TIME, PIECE_TIME};
use crate::{Client, Error};

/// Longest event that is taken from a node.
const EVENT_MAX: usize = 1 << 20;

/// A subscription. It ends with an error when the node says nothing for two minutes, not even that
/// it is still there: subscribe again, and ask for the state anew.
pub struct Events {
    response: Response,
    parser: Parser,
}

impl Client {
    /// Subscribes.
    pub async fn events(&self, query: &EventsQuery) -> Result<Events, Error> {
        let request = self.request(Method::GET, &["events"]).query(query);
        Ok(Events { response: self.send(request, ASK_TIME).await?, parser: Parser::default() })
    }
}

impl Events {
    /// The next event; none if the node has ended the stream.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(data) = self.parser.ready.pop_front() {
                let event = serde_json::from_str(&data);
                return event.map(Some).map_err(|error| Error::Protocol(error.to_string()));
            }
            let piece = tokio::time::timeout(PIECE_TIME, self.response.chunk()).await;
            match piece.map_err(|_| Error::Timeout(PIECE_TIME))?.map_err(Error::broken)? {
                Some(bytes) => self.parser.feed(&bytes)?,
                None => return Ok(None),
            }
        }
    }
}

/// Takes bytes, gives the data of whole events.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    data: String,
    ready: VecDeque<String>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.take(String::from_utf8_lossy(&line).trim_end_matches('\r'));
            } else {
                self.line.push(*byte);
            }
            if self.line.len() + self.data.len() > EVENT_MAX {
                return Err(Error::Protocol("an event without an end".into()));
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        if line.is_empty() {
            if !self.data.is_empty() {
                self.ready.push_back(std::mem::take(&mut self.data));
            }
        } else if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text = "event: created\r\ndata: {\"a\":\ndata: 1}\n\n: still here\n\ndata:x\n\n";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(size) {
                parser.feed(piece).unwrap();
            }
            assert_eq!(parser.ready, ["{\"a\":\n1}", "x"]);
        }
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let mut parser = Parser::default();
        assert!(parser.feed(&vec![b'x'; EVENT_MAX + 1]).is_err());
    }
}
