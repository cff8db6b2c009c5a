//! Server-sent events: bytes of an answer, as messages.

use std::collections::VecDeque;

use reqwest::Response;

use crate::Error;
use crate::transport::PIECE_TIME;

/// Longest message that is taken from a node.
const MESSAGE_MAX: usize = 1 << 20;

/// One message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// What it is; empty if it does not say.
    pub(crate) event: String,
    /// What it says.
    pub(crate) data: String,
    /// Its id.
    pub(crate) id: Option<String>,
}

/// Messages as they come.
pub(crate) struct Messages {
    response: Response,
    parser: Parser,
}

impl Messages {
    pub(crate) fn new(response: Response) -> Self {
        Self { response, parser: Parser::default() }
    }

    /// The next message; none if the node has ended the stream. A node that says nothing for two
    /// minutes, not even that it is still there, is an error.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(message) = self.parser.ready.pop_front() {
                return Ok(Some(message));
            }
            let piece = tokio::time::timeout(PIECE_TIME, self.response.chunk()).await;
            match piece.map_err(|_| Error::Timeout(PIECE_TIME))?.map_err(Error::broken)? {
                Some(bytes) => self.parser.feed(&bytes)?,
                None => return Ok(None),
            }
        }
    }
}

/// Takes bytes, gives whole messages.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    message: Message,
    ready: VecDeque<Message>,
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
            if self.line.len() + self.message.data.len() > MESSAGE_MAX {
                return Err(Error::Protocol("an event without an end".into()));
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" if line.is_empty() => {
                let message = std::mem::take(&mut self.message);
                if !message.data.is_empty() {
                    self.ready.push_back(message);
                }
            }
            "event" => self.message.event = value.to_owned(),
            "id" => self.message.id = Some(value.to_owned()),
            "data" => {
                if !self.message.data.is_empty() {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let text =
            "event: created\r\nid: 1-2\ndata: {\"a\":\ndata: 1}\n\n: still here\n\ndata:x\n\n";
        let first =
            Message { event: "created".into(), data: "{\"a\":\n1}".into(), id: Some("1-2".into()) };
        let second = Message { data: "x".into(), ..Message::default() };
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(size) {
                parser.feed(piece).unwrap();
            }
            assert_eq!(parser.ready, [first.clone(), second.clone()]);
        }
    }

    #[test]
    fn a_message_without_an_end_is_refused() {
        let mut parser = Parser::default();
        assert!(parser.feed(&vec![b'x'; MESSAGE_MAX + 1]).is_err());
    }
}
