//! What outlives machines: commits, their names, and the store.

use reqwest::Method;

use crate::api::{
    CheckReport, CheckRequest, Commit, CommitList, CommitsQuery, CreateCommit, GcReport, GcRequest,
    PutRef, Ref, RefList, StoreUsage,
};
use crate::transport::{ASK_TIME, MAKE_TIME, PAGE, turn};
use crate::{Client, Error};

impl Client {
    /// Keeps a moment of a sandbox for good. Answered when it is kept in memory, or with `wait` when
    /// it is in the store.
    pub async fn commit(&self, id: &str, request: &CreateCommit) -> Result<Commit, Error> {
        self.post(&["sandboxes", id, "commits"], request, MAKE_TIME).await
    }

    /// A page of commits, newest first.
    pub async fn commits(&self, query: &CommitsQuery) -> Result<CommitList, Error> {
        self.get_with(&["commits"], query).await
    }

    /// All commits that the query means, newest first, whatever its limit and cursor say.
    pub async fn commits_all(&self, query: &CommitsQuery) -> Result<Vec<Commit>, Error> {
        let mut query = CommitsQuery { limit: Some(PAGE), cursor: None, ..query.clone() };
        let mut all = Vec::new();
        loop {
            let page = self.commits(&query).await?;
            all.extend(page.commits);
            if !turn(&mut query.cursor, page.next_cursor)? {
                return Ok(all);
            }
        }
    }

    /// A commit, by id, a unique beginning of it, or name.
    pub async fn get_commit(&self, commit: &str) -> Result<Commit, Error> {
        self.get(&["commits", commit]).await
    }

    /// Deletes a commit that no name points to. Those that come from it stay.
    pub async fn delete_commit(&self, commit: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["commits", commit])).await
    }

    /// All names of commits.
    pub async fn refs(&self) -> Result<Vec<Ref>, Error> {
        let list: RefList = self.get(&["refs"]).await?;
        Ok(list.refs)
    }

    /// Makes a name of a commit; with `force`, moves it.
    pub async fn put_ref(&self, name: &str, request: &PutRef) -> Result<Ref, Error> {
        self.answer(self.request(Method::PUT, &["refs", name]).json(request), ASK_TIME).await
    }

    /// Deletes a name. Its commit stays.
    pub async fn delete_ref(&self, name: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["refs", name])).await
    }

    /// What is kept in the store, and what it takes.
    pub async fn store_usage(&self) -> Result<StoreUsage, Error> {
        self.get(&["store"]).await
    }

    /// Removes what nothing needs from the store.
    pub async fn store_gc(&self, request: &GcRequest) -> Result<GcReport, Error> {
        self.post(&["store", "gc"], request, MAKE_TIME).await
    }

    /// Looks whether everything in the store is there and whole.
    pub async fn store_check(&self, request: &CheckRequest) -> Result<CheckReport, Error> {
        self.post(&["store", "check"], request, MAKE_TIME).await
    }
}
