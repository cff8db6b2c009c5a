//! What happens to sandboxes, as it happens (server-sent events).

use reqwest::Method;

use crate::api::{Event, EventsQuery, LAST_EVENT_ID};
use crate::sse::Messages;
use crate::transport::ASK_TIME;
use crate::{Client, Error};

/// A subscription. It ends with an error when the node says nothing for two minutes, not even that
/// it is still there: go on with [`Client::events_after`], or ask for the state anew.
pub struct Events {
    messages: Messages,
    last_id: Option<String>,
}

impl Client {
    /// Subscribes to what happens from now on.
    pub async fn events(&self, query: &EventsQuery) -> Result<Events, Error> {
        self.subscribe(query, None).await
    }

    /// Subscribes to what happened after an event ([`Events::last_id`]). If the node no longer knows
    /// all of it, the first event is of kind `gap`.
    pub async fn events_after(&self, query: &EventsQuery, id: &str) -> Result<Events, Error> {
        self.subscribe(query, Some(id)).await
    }

    async fn subscribe(&self, query: &EventsQuery, after: Option<&str>) -> Result<Events, Error> {
        let mut request = self.request(Method::GET, &["events"]).query(query);
        if let Some(id) = after {
            request = request.header(LAST_EVENT_ID, id);
        }
        let messages = Messages::new(self.send(request, ASK_TIME).await?);
        Ok(Events { messages, last_id: after.map(str::to_owned) })
    }
}

impl Events {
    /// The next event; none if the node has ended the stream.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        let Some(message) = self.messages.next().await? else { return Ok(None) };
        if message.id.is_some() {
            self.last_id = message.id;
        }
        let event = serde_json::from_str(&message.data);
        event.map(Some).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Id of the last event that was seen.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }
}
