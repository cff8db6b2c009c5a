//! Commits and templates on their way between nodes, remotes and files.

use reqwest::Method;
use tokio::io::AsyncRead;

use crate::api::{MoveProgress, Moved, PackQuery, Problem, PullRequest, PushRequest, UnpackQuery};
use crate::files::FileReader;
use crate::sse::{Message, Messages};
use crate::transport::MAKE_TIME;
use crate::{Client, Error};

/// What is told of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveNews {
    /// How far it is.
    Progress(MoveProgress),
    /// It is over, and succeeded.
    End(Box<Moved>),
}

/// A move that is followed. It goes on if this is dropped.
pub struct MoveFollower {
    messages: Messages,
}

impl MoveFollower {
    /// The next news. A move that did not succeed is an error, and so is a stream that ends before the move.
    pub async fn next(&mut self) -> Result<MoveNews, Error> {
        let message = self.messages.next().await?;
        news(&message.ok_or_else(|| Error::Protocol("it does not tell the end".to_owned()))?)
    }

    /// What came of it.
    pub async fn end(mut self) -> Result<Moved, Error> {
        loop {
            if let MoveNews::End(moved) = self.next().await? {
                return Ok(*moved);
            }
        }
    }
}

fn news(message: &Message) -> Result<MoveNews, Error> {
    let wrong = |error: serde_json::Error| Error::Protocol(error.to_string());
    match message.event.as_str() {
        "progress" => serde_json::from_str(&message.data).map(MoveNews::Progress).map_err(wrong),
        "end" => serde_json::from_str(&message.data).map(MoveNews::End).map_err(wrong),
        _ => {
            let problem: Problem = serde_json::from_str(&message.data).map_err(wrong)?;
            Err(Error::refused(problem))
        }
    }
}

impl Client {
    /// Begins to push a commit to a remote.
    pub async fn push_commit(
        &self,
        commit: &str,
        request: &PushRequest,
    ) -> Result<MoveFollower, Error> {
        self.follow_move(&["commits", commit, "push"], request).await
    }

    /// Begins to push a template to a remote.
    pub async fn push_template(
        &self,
        name: &str,
        request: &PushRequest,
    ) -> Result<MoveFollower, Error> {
        self.follow_move(&["templates", name, "push"], request).await
    }

    /// Begins to pull a commit or template from a remote.
    pub async fn pull(&self, request: &PullRequest) -> Result<MoveFollower, Error> {
        self.follow_move(&["pull"], request).await
    }

    async fn follow_move(
        &self,
        parts: &[&str],
        body: &impl serde::Serialize,
    ) -> Result<MoveFollower, Error> {
        let request = self.request(Method::POST, parts).json(body);
        Ok(MoveFollower { messages: Messages::new(self.send(request, MAKE_TIME).await?) })
    }

    /// A commit as a stream, without what the commits hold that the receiver has.
    pub async fn pack_commit(&self, commit: &str, have: &[String]) -> Result<FileReader, Error> {
        self.pack(&["commits", commit, "pack"], have).await
    }

    /// A template as a stream, without what the commits hold that the receiver has.
    pub async fn pack_template(&self, name: &str, have: &[String]) -> Result<FileReader, Error> {
        self.pack(&["templates", name, "pack"], have).await
    }

    async fn pack(&self, parts: &[&str], have: &[String]) -> Result<FileReader, Error> {
        let have = (!have.is_empty()).then(|| have.join(","));
        let request = self.request(Method::GET, parts).query(&PackQuery { have });
        Ok(FileReader::new(self.send(request, MAKE_TIME).await?))
    }

    /// Has a node take in a commit or template from a stream.
    pub async fn unpack(
        &self,
        query: &UnpackQuery,
        content: impl AsyncRead + Send + 'static,
    ) -> Result<Moved, Error> {
        self.pour(self.request(Method::POST, &["unpack"]).query(query), content).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(event: &str, data: &str) -> Message {
        Message { event: event.to_owned(), data: data.to_owned(), id: None }
    }

    #[test]
    fn progress_end_and_problem_are_told_apart() {
        let progress = r#"{"chunks":9,"done_chunks":3,"moved_chunks":2,"moved_bytes":77}"#;
        let told = news(&said("progress", progress)).unwrap();
        assert!(matches!(told, MoveNews::Progress(progress) if progress.moved_bytes == 77));
        let end = format!(r#"{{"known":true,"progress":{progress}}}"#);
        assert!(matches!(news(&said("end", &end)).unwrap(), MoveNews::End(moved) if moved.known));
        let problem =
            r#"{"type":"about:blank","title":"t","status":409,"code":"incompatible","detail":"d"}"#;
        let error = news(&said("problem", problem)).unwrap_err();
        assert_eq!(error.code(), Some(crate::api::Code::Incompatible));
        assert!(news(&said("end", "{}")).is_err());
    }
}
