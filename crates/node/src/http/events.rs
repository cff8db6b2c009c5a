//! Events, as they happen.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use ramet_proto::api::{Event, EventKind, EventsQuery, LAST_EVENT_ID, Problem};
use serde::Serialize;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_util::sync::CancellationToken;

use super::App;
use super::extract::{Caller, Query};
use super::problem::Refusal;
use crate::clock::now_ms;
use crate::events::{Missed, Told};
use crate::sandbox::Service;

/// Between two signs of life on a quiet stream.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// What happens from now on, or from the event of `Last-Event-ID` on.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that was seen")),
    responses((status = 200, body = Event, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub async fn events(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (missed, listener) = match headers.get(LAST_EVENT_ID) {
        // What is no text is no id of this node.
        Some(id) => app.service.events.listen_after(id.to_str().unwrap_or("")),
        None => (Missed { gap: false, events: Vec::new() }, app.service.events.listen()),
    };
    let only = query.sandbox.map(|key| app.service.id_of(&who, &key)).transpose()?;
    let gap = missed.gap.then(|| without_number(EventKind::Gap, "earlier events are not known"));
    let heard = BroadcastStream::new(listener).map(|told| match told {
        Ok(told) => Ok(told),
        Err(BroadcastStreamRecvError::Lagged(count)) => {
            Err(without_number(EventKind::Lost, &format!("{count} events were missed")))
        }
    });
    let all = stream::iter(gap.map(Err)).chain(stream::iter(missed.events).map(Ok)).chain(heard);
    let service = app.service.clone();
    let told = all.filter_map(move |told| {
        let wanted = match told {
            Ok(Told { owner, event }) => {
                let wanted = only.as_ref().is_none_or(|id| *id == event.sandbox);
                (owner == who.name() && wanted).then_some(event)
            }
            Err(event) => Some(event),
        };
        std::future::ready(wanted.map(|event| shown(&service, &event)))
    });
    Ok(stream_of(told, app.service.stopping()))
}

fn shown(service: &Service, event: &Event) -> Option<sse::Event> {
    let shown = named(&event.kind, event)?;
    // Whoever comes back after a gap goes on from the last event that it has seen.
    Some(if event.number == 0 { shown } else { shown.id(service.events.id(event)) })
}

/// An event of this kind, unless it cannot be written.
pub fn named(kind: &impl Serialize, data: &impl Serialize) -> Option<sse::Event> {
    let kind = serde_json::to_value(kind).ok()?;
    let data = serde_json::to_string(data).ok()?;
    Some(sse::Event::default().event(kind.as_str()?).data(data))
}

/// Server-sent events, with signs of life, until the node stops. What cannot be written is left out.
pub fn stream_of(
    events: impl Stream<Item = Option<sse::Event>> + Send + 'static,
    stop: CancellationToken,
) -> Response {
    let events = events.filter_map(|event| std::future::ready(event.map(Ok::<_, Infallible>)));
    let events = events.take_until(stop.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response()
}

fn without_number(kind: EventKind, detail: &str) -> Event {
    Event {
        number: 0,
        at_ms: now_ms(),
        kind,
        sandbox: String::new(),
        other: None,
        detail: Some(detail.to_owned()),
    }
}
