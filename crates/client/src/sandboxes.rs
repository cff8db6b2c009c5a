//! The node and its sandboxes: one method for each route.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    Checkpoint, CheckpointList, CreateCheckpoint, CreateSandbox, Created, Diff, DiffRequest,
    ExecRequest, ExecResult, ForkRequest, Forked, Health, IDEMPOTENCY_KEY, ListQuery, Logs, Node,
    PauseRequest, Process, ProcessList, PromoteRequest, Ready, RewindRequest, Sandbox, SandboxList,
    SignalRequest, Stats, Swapped, Tree, UpdateSandbox,
};
use crate::transport::{ASK_TIME, MAKE_TIME, PAGE, turn};
use crate::{Client, Error};

/// How long a process may run if its request does not say; the node's own rule.
const EXEC_TIME: Duration = Duration::from_secs(600);

impl Client {
    /// Whether something answers. Needs no valid token.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get(&["health"]).await
    }

    /// Whether sandboxes can be created; `not_ready` if not yet.
    pub async fn ready(&self) -> Result<Ready, Error> {
        self.get(&["ready"]).await
    }

    /// Figures of the node for Prometheus, as text.
    pub async fn metrics(&self) -> Result<String, Error> {
        let mut url = self.base().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("metrics");
        }
        let work = async {
            let response = self.send(self.request_to(Method::GET, url), ASK_TIME).await?;
            response.text().await.map_err(|error| self.failed(error, ASK_TIME))
        };
        tokio::time::timeout(ASK_TIME, work).await.map_err(|_| Error::Timeout(ASK_TIME))?
    }

    /// The node.
    pub async fn node(&self) -> Result<Node, Error> {
        self.get(&["node"]).await
    }

    /// Makes a sandbox.
    pub async fn create(&self, request: &CreateSandbox) -> Result<Created, Error> {
        self.post(&["sandboxes"], request, MAKE_TIME).await
    }

    /// Makes a sandbox, once for each key.
    pub async fn create_with_key(
        &self,
        request: &CreateSandbox,
        key: &str,
    ) -> Result<Created, Error> {
        self.keyed(&["sandboxes"], request, key).await
    }

    /// A page of sandboxes.
    pub async fn list(&self, query: &ListQuery) -> Result<SandboxList, Error> {
        self.get_with(&["sandboxes"], query).await
    }

    /// All sandboxes that the query means, whatever its limit and cursor say.
    pub async fn list_all(&self, query: &ListQuery) -> Result<Vec<Sandbox>, Error> {
        let mut query = ListQuery { limit: Some(PAGE), cursor: None, ..query.clone() };
        let mut all = Vec::new();
        loop {
            let page = self.list(&query).await?;
            all.extend(page.sandboxes);
            if !turn(&mut query.cursor, page.next_cursor)? {
                return Ok(all);
            }
        }
    }

    /// A sandbox.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, Error> {
        self.get(&["sandboxes", id]).await
    }

    /// Changes name, labels or limits.
    pub async fn update(&self, id: &str, request: &UpdateSandbox) -> Result<Sandbox, Error> {
        let request = self.request(Method::PATCH, &["sandboxes", id]).json(request);
        self.answer(request, ASK_TIME).await
    }

    /// Deletes a sandbox and its checkpoints. Its children stay.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["sandboxes", id])).await
    }

    /// Makes children, all from one instant. Some may have failed: each says so itself.
    pub async fn fork(&self, id: &str, request: &ForkRequest) -> Result<Forked, Error> {
        self.post(&["sandboxes", id, "fork"], request, MAKE_TIME).await
    }

    /// Makes children, once for each key.
    pub async fn fork_with_key(
        &self,
        id: &str,
        request: &ForkRequest,
        key: &str,
    ) -> Result<Forked, Error> {
        self.keyed(&["sandboxes", id, "fork"], request, key).await
    }

    /// Stops a sandbox and puts it into the store, or with `memory` keeps it in the host's memory.
    pub async fn pause(&self, id: &str, request: &PauseRequest) -> Result<Sandbox, Error> {
        self.post(&["sandboxes", id, "pause"], request, MAKE_TIME).await
    }

    /// Lets a paused sandbox go on, exactly where it was.
    pub async fn resume(&self, id: &str) -> Result<Sandbox, Error> {
        self.answer(self.request(Method::POST, &["sandboxes", id, "resume"]), MAKE_TIME).await
    }

    /// Keeps this moment of a sandbox.
    pub async fn checkpoint(
        &self,
        id: &str,
        request: &CreateCheckpoint,
    ) -> Result<Checkpoint, Error> {
        self.post(&["sandboxes", id, "checkpoints"], request, MAKE_TIME).await
    }

    /// The kept moments of a sandbox, oldest first.
    pub async fn checkpoints(&self, id: &str) -> Result<Vec<Checkpoint>, Error> {
        let list: CheckpointList = self.get(&["sandboxes", id, "checkpoints"]).await?;
        Ok(list.checkpoints)
    }

    /// Gives a kept moment up.
    pub async fn delete_checkpoint(&self, id: &str, checkpoint: &str) -> Result<(), Error> {
        let parts = ["sandboxes", id, "checkpoints", checkpoint];
        self.done(self.request(Method::DELETE, &parts)).await
    }

    /// Goes back to a kept moment.
    pub async fn rewind(&self, id: &str, request: &RewindRequest) -> Result<Swapped, Error> {
        self.post(&["sandboxes", id, "rewind"], request, MAKE_TIME).await
    }

    /// Lets the sandbox go on as its descendant did.
    pub async fn promote(&self, id: &str, request: &PromoteRequest) -> Result<Swapped, Error> {
        self.post(&["sandboxes", id, "promote"], request, MAKE_TIME).await
    }

    /// What a sandbox, checkpoint, commit or template has, compared with another.
    pub async fn diff(&self, id: &str, request: &DiffRequest) -> Result<Diff, Error> {
        self.post(&["sandboxes", id, "diff"], request, MAKE_TIME).await
    }

    /// Everything, with parents.
    pub async fn tree(&self) -> Result<Tree, Error> {
        self.get(&["tree"]).await
    }

    /// Figures of a sandbox.
    pub async fn stats(&self, id: &str) -> Result<Stats, Error> {
        self.get(&["sandboxes", id, "stats"]).await
    }

    /// The latest output of its console.
    pub async fn logs(&self, id: &str) -> Result<Logs, Error> {
        self.get(&["sandboxes", id, "logs"]).await
    }

    /// Runs a process to its end and collects what it writes. See [`Client::exec_stream`] for
    /// long output.
    pub async fn exec(&self, id: &str, request: &ExecRequest) -> Result<ExecResult, Error> {
        let time = request.timeout_ms.map_or(EXEC_TIME, Duration::from_millis) + ASK_TIME;
        self.post(&["sandboxes", id, "exec"], request, time).await
    }

    /// The processes in a sandbox.
    pub async fn processes(&self, id: &str) -> Result<Vec<Process>, Error> {
        let list: ProcessList = self.get(&["sandboxes", id, "processes"]).await?;
        Ok(list.processes)
    }

    /// Sends a signal to a process in a sandbox.
    pub async fn signal(&self, id: &str, pid: i32, request: &SignalRequest) -> Result<(), Error> {
        let parts = ["sandboxes", id, "processes", &pid.to_string(), "signal"];
        self.done(self.request(Method::POST, &parts).json(request)).await
    }

    async fn keyed<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        body: &impl Serialize,
        key: &str,
    ) -> Result<T, Error> {
        let request = self.request(Method::POST, parts).header(IDEMPOTENCY_KEY, key).json(body);
        self.answer(request, MAKE_TIME).await
    }

    pub(crate) async fn done(&self, request: reqwest::RequestBuilder) -> Result<(), Error> {
        self.send(request, ASK_TIME).await.map(drop)
    }
}
