//! What sandboxes reach, who reaches them, secrets and tokens.

use std::time::Duration;

use reqwest::Method;

use crate::api::network::{
    CreateLink, CreateToken, CreatedToken, Link, LinkList, LogEntry, NetworkLog, NetworkLogQuery,
    NetworkRequest, PortReady, PortWaitQuery, PutSecret, SandboxNetwork, Secret, SecretList, Token,
    TokenList,
};
use crate::transport::{ASK_TIME, MAKE_TIME};
use crate::{Client, Error};

/// How long a node waits for a port if it is not said; the node's own rule.
const WAIT_TIME: Duration = Duration::from_secs(30);

impl Client {
    /// What a sandbox may reach, and what it did.
    pub async fn network(&self, id: &str) -> Result<SandboxNetwork, Error> {
        self.get(&["sandboxes", id, "network"]).await
    }

    /// Replaces what a sandbox itself allows, its limits and its edge rules.
    pub async fn set_network(
        &self,
        id: &str,
        request: &NetworkRequest,
    ) -> Result<SandboxNetwork, Error> {
        let request = self.request(Method::PUT, &["sandboxes", id, "network"]).json(request);
        self.answer(request, MAKE_TIME).await
    }

    /// What was refused, oldest first.
    pub async fn network_log(
        &self,
        id: &str,
        query: &NetworkLogQuery,
    ) -> Result<Vec<LogEntry>, Error> {
        let log: NetworkLog = self.get_with(&["sandboxes", id, "network", "log"], query).await?;
        Ok(log.entries)
    }

    /// Secrets that edge rules can name, without their values.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let list: SecretList = self.get(&["secrets"]).await?;
        Ok(list.secrets)
    }

    /// Sets a secret.
    pub async fn put_secret(&self, name: &str, value: &str) -> Result<Secret, Error> {
        let body = PutSecret { value: value.to_owned() };
        let request = self.request(Method::PUT, &["secrets", name]).json(&body);
        self.answer(request, MAKE_TIME).await
    }

    /// Forgets a secret that no rule names.
    pub async fn delete_secret(&self, name: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["secrets", name])).await
    }

    /// Tokens that the node accepts; for its administrator.
    pub async fn tokens(&self) -> Result<Vec<Token>, Error> {
        let list: TokenList = self.get(&["tokens"]).await?;
        Ok(list.tokens)
    }

    /// Makes a token, which is shown this once.
    pub async fn create_token(&self, request: &CreateToken) -> Result<CreatedToken, Error> {
        self.post(&["tokens"], request, ASK_TIME).await
    }

    /// Has a token no longer accepted.
    pub async fn delete_token(&self, token: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["tokens", token])).await
    }

    /// Makes a way to a port that needs no token.
    pub async fn create_link(&self, id: &str, request: &CreateLink) -> Result<Link, Error> {
        self.post(&["sandboxes", id, "links"], request, ASK_TIME).await
    }

    /// Links to ports of a sandbox.
    pub async fn links(&self, id: &str) -> Result<Vec<Link>, Error> {
        let list: LinkList = self.get(&["sandboxes", id, "links"]).await?;
        Ok(list.links)
    }

    /// Ends a link.
    pub async fn delete_link(&self, id: &str, link: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["sandboxes", id, "links", link])).await
    }

    /// The whole address of a path at the node, as a link has.
    pub fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url().trim_end_matches('/'))
    }

    /// Waits until something listens on a port, or answers there.
    pub async fn wait_port(
        &self,
        id: &str,
        port: u16,
        query: &PortWaitQuery,
    ) -> Result<PortReady, Error> {
        let parts = ["sandboxes", id, "tcp", &port.to_string(), "wait"];
        let time = query.timeout_s.map_or(WAIT_TIME, Duration::from_secs) + ASK_TIME;
        self.answer(self.request(Method::GET, &parts).query(query), time).await
    }
}
