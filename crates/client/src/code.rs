//! Code in contexts of a sandbox.

use reqwest::{Method, Response};

use crate::api::{CodeContext, CodeEvent, ContextList, CreateContext, Interrupted, RunCode};
use crate::transport::{MAKE_TIME, PIECE_TIME};
use crate::{Client, Error};

/// Longest event that is taken from a node: a picture is in one.
const EVENT_MAX: usize = 96 << 20;

/// What comes of code. Dropped before its end, it interrupts the code.
pub struct CodeEvents {
    response: Response,
    bytes: Vec<u8>,
    /// Where the next end of a line is looked for.
    looked: usize,
}

impl CodeEvents {
    /// The next event; none after the last. A node that says nothing for two minutes, not even that
    /// it is still there, is an error.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, Error> {
        loop {
            if let Some(at) = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(self.looked + at + 1);
                let line = std::mem::replace(&mut self.bytes, rest);
                self.looked = 0;
                let event = serde_json::from_slice(&line);
                return event.map(Some).map_err(|error| Error::Protocol(error.to_string()));
            }
            self.looked = self.bytes.len();
            if self.bytes.len() > EVENT_MAX {
                return Err(Error::Protocol("an event without an end".into()));
            }
            let piece = tokio::time::timeout(PIECE_TIME, self.response.chunk()).await;
            match piece.map_err(|_| Error::Timeout(PIECE_TIME))?.map_err(Error::broken)? {
                Some(piece) => self.bytes.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

impl Client {
    /// Runs code. The interpreter is started if it does not run yet.
    pub async fn run_code(&self, id: &str, request: &RunCode) -> Result<CodeEvents, Error> {
        let request = self.request(Method::POST, &["sandboxes", id, "code"]).json(request);
        let response = self.send(request, MAKE_TIME).await?;
        Ok(CodeEvents { response, bytes: Vec::new(), looked: 0 })
    }

    /// All contexts.
    pub async fn contexts(&self, id: &str) -> Result<Vec<CodeContext>, Error> {
        let list: ContextList = self.get(&["sandboxes", id, "contexts"]).await?;
        Ok(list.contexts)
    }

    /// Makes a context.
    pub async fn create_context(
        &self,
        id: &str,
        request: &CreateContext,
    ) -> Result<CodeContext, Error> {
        self.post(&["sandboxes", id, "contexts"], request, MAKE_TIME).await
    }

    /// Ends a context.
    pub async fn delete_context(&self, id: &str, context: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["sandboxes", id, "contexts", context])).await
    }

    /// Gives a context a new process, which knows nothing of what the old one knew.
    pub async fn restart_context(&self, id: &str, context: &str) -> Result<CodeContext, Error> {
        let parts = ["sandboxes", id, "contexts", context, "restart"];
        self.answer(self.request(Method::POST, &parts), MAKE_TIME).await
    }

    /// Interrupts what runs in a context.
    pub async fn interrupt_context(&self, id: &str, context: &str) -> Result<Interrupted, Error> {
        let parts = ["sandboxes", id, "contexts", context, "interrupt"];
        self.answer(self.request(Method::POST, &parts), MAKE_TIME).await
    }
}
