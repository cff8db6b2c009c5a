//! What every command gets: how to print, and the node.
//!
//! The node is the one of `RAMET_URL`, else the own one; if that does not run it is started.

use ramet_client::Client;

use crate::failure::{Failure, UNREACHABLE};
use crate::node::home::Home;
use crate::node::start;
use crate::output::{self, Paint};

/// Surroundings of a command.
pub struct Context {
    /// Print JSON.
    pub json: bool,
    /// Colours of standard output.
    pub paint: Paint,
    start: bool,
    url: Option<String>,
}

impl Context {
    /// As the options say.
    pub fn new(json: bool, start: bool, url: Option<String>) -> Self {
        let url = url.filter(|url| !url.is_empty());
        Self { json, paint: Paint::stdout(), start, url }
    }

    /// A client of the node; starts the own one if it has to and may.
    pub async fn client(&self) -> Result<Client, Failure> {
        if let Some(client) = self.running()? {
            return Ok(client);
        }
        if !self.start {
            return Err(Failure::new("no node is running")
                .exit(UNREACHABLE)
                .next("`ramet up` starts one; so does this command without --no-start"));
        }
        start::start(&Home::find()?, &start::Options::default()).await?;
        self.running()?.ok_or_else(|| Failure::new("the node ended again").exit(UNREACHABLE))
    }

    /// A client of the node, if one is known.
    pub fn running(&self) -> Result<Option<Client>, Failure> {
        match self.address()? {
            Some((url, token)) => Ok(Some(Client::new(&url, &token)?)),
            None => Ok(None),
        }
    }

    /// Where the node is, and the token for it, if one is known.
    pub fn address(&self) -> Result<Option<(String, String)>, Failure> {
        if let Some(url) = &self.url {
            return Ok(Some((url.clone(), own_token()?)));
        }
        let home = Home::find()?;
        match home.running() {
            Some(record) => Ok(Some((record.url.clone(), record.token()?))),
            None => Ok(None),
        }
    }

    /// The node is not one of ours.
    pub fn elsewhere(&self) -> bool {
        self.url.is_some()
    }

    /// Prints a value as JSON, or what the closure makes of it.
    pub fn show<T: serde::Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) {
        if self.json {
            output::json(value);
        } else {
            output::print(&text(value));
        }
    }
}

/// `RAMET_TOKEN`, or that of the own node, which may be the one that is meant.
fn own_token() -> Result<String, Failure> {
    if let Ok(token) = std::env::var("RAMET_TOKEN") {
        return Ok(token);
    }
    let path = Home::find()?.token_file();
    std::fs::read_to_string(path).map_err(|_| {
        Failure::new("RAMET_URL is set and RAMET_TOKEN is not")
            .exit(UNREACHABLE)
            .next("set RAMET_TOKEN to the token of that node")
    })
}
