//! Templates and images.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_LENGTH;
use tokio::io::AsyncRead;

use crate::api::{
    BuildTemplate, Image, ImageList, PutImageQuery, Template, TemplateList, TemplateLog,
    TemplateQuery,
};
use crate::sse::{Message, Messages};
use crate::transport::ASK_TIME;
use crate::{Client, Error};

/// What is told of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildNews {
    /// Its commands have written something.
    Log(TemplateLog),
    /// It is over: the template is ready, or has failed.
    End(Box<Template>),
}

/// A build that is followed. It ends with an error when the node says nothing for two minutes.
pub struct BuildFollower {
    messages: Messages,
}

impl BuildFollower {
    /// The next news; none if the node has ended the stream, or the template was deleted.
    pub async fn next(&mut self) -> Result<Option<BuildNews>, Error> {
        let Some(message) = self.messages.next().await? else { return Ok(None) };
        news(&message).map(Some)
    }
}

fn news(message: &Message) -> Result<BuildNews, Error> {
    let news = match message.event.as_str() {
        "log" => serde_json::from_str(&message.data).map(BuildNews::Log),
        _ => serde_json::from_str(&message.data).map(BuildNews::End),
    };
    news.map_err(|error| Error::Protocol(error.to_string()))
}

impl Client {
    /// Begins to build a template; gives it as it is, which is ready if the same was built before.
    pub async fn build_template(&self, request: &BuildTemplate) -> Result<Template, Error> {
        self.post(&["templates"], request, ASK_TIME).await
    }

    /// All templates.
    pub async fn templates(&self) -> Result<Vec<Template>, Error> {
        let list: TemplateList = self.get(&["templates"]).await?;
        Ok(list.templates)
    }

    /// A template, by name or id.
    pub async fn template(&self, name: &str) -> Result<Template, Error> {
        self.get(&["templates", name]).await
    }

    /// A template, when it is no longer being built, or after this time (at most ten minutes).
    pub async fn await_template(&self, name: &str, time: Duration) -> Result<Template, Error> {
        let query = TemplateQuery { wait_s: Some(time.as_secs()) };
        let request = self.request(Method::GET, &["templates", name]).query(&query);
        self.answer(request, time + ASK_TIME).await
    }

    /// Hears what a build writes, from its beginning.
    pub async fn follow_template(&self, name: &str) -> Result<BuildFollower, Error> {
        let request = self.request(Method::GET, &["templates", name, "log"]);
        Ok(BuildFollower { messages: Messages::new(self.send(request, ASK_TIME).await?) })
    }

    /// Deletes a template. Its sandboxes go on.
    pub async fn delete_template(&self, name: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["templates", name])).await
    }

    /// All images.
    pub async fn images(&self) -> Result<Vec<Image>, Error> {
        let list: ImageList = self.get(&["images"]).await?;
        Ok(list.images)
    }

    /// An image.
    pub async fn image(&self, name: &str) -> Result<Image, Error> {
        self.get(&["images", name]).await
    }

    /// Hands over an image: a file system of this many bytes with this BLAKE3 in hex. It appears
    /// whole or not at all.
    pub async fn put_image(
        &self,
        name: &str,
        digest: &str,
        length: u64,
        content: impl AsyncRead + Send + 'static,
    ) -> Result<Image, Error> {
        let query = PutImageQuery { digest: digest.to_owned() };
        let request = self.request(Method::PUT, &["images", name]).query(&query);
        let request = request.header(CONTENT_LENGTH, length);
        self.pour(request, content).await
    }

    /// Gives an image that the node has another name.
    pub async fn name_image(&self, name: &str, digest: &str) -> Result<Image, Error> {
        let query = PutImageQuery { digest: digest.to_owned() };
        self.answer(self.request(Method::PUT, &["images", name]).query(&query), ASK_TIME).await
    }

    /// Deletes an image that no template is built on.
    pub async fn delete_image(&self, name: &str) -> Result<(), Error> {
        self.done(self.request(Method::DELETE, &["images", name])).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(event: &str, data: &str) -> Message {
        Message { event: event.to_owned(), data: data.to_owned(), id: None }
    }

    #[test]
    fn the_log_and_the_end_are_told_apart() {
        let log = news(&said("log", r#"{"offset":3,"text":"x"}"#)).unwrap();
        assert_eq!(log, BuildNews::Log(TemplateLog { offset: 3, text: "x".into() }));
        let end = r#"{"id":"tmpl-1","name":"a","state":"ready","vcpus":1,"memory_mib":512}"#;
        assert!(
            matches!(news(&said("end", end)).unwrap(), BuildNews::End(template) if template.name == "a")
        );
        assert!(news(&said("log", "{}")).is_err());
    }
}
