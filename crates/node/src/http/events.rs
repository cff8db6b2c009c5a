//! Events, as they happen.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use ramet_proto::api::{Event, EventKind, EventsQuery, Problem};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use super::App;
use super::extract::{Caller, Query};
use super::problem::Refusal;
use crate::clock::now_ms;
use crate::events::Told;

/// Between two signs of life on a quiet stream.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// What happens from now on.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventsQuery),
    responses((status = 200, body = Event, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub async fn events(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Refusal> {
    let listener = app.service.events.listen();
    let only = query.sandbox.map(|key| app.service.id_of(&who, &key)).transpose()?;
    let stop = app.service.stopping();
    let heard = BroadcastStream::new(listener).filter_map(move |told| {
        let event = match told {
            Ok(Told { owner, event }) => {
                let wanted = only.as_ref().is_none_or(|id| *id == event.sandbox);
                (owner == who.name() && wanted).then_some(event)?
            }
            Err(BroadcastStreamRecvError::Lagged(count)) => lost(count),
        };
        let data = serde_json::to_string(&event).ok()?;
        let kind = serde_json::to_value(event.kind).ok()?;
        let sent = sse::Event::default().event(kind.as_str()?).id(event.number.to_string());
        Some(Ok::<_, Infallible>(sent.data(data)))
    });
    let heard = futures_util::StreamExt::take_until(heard, stop.cancelled_owned());
    Ok(Sse::new(heard).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE)).into_response())
}

fn lost(count: u64) -> Event {
    Event {
        number: 0,
        at_ms: now_ms(),
        kind: EventKind::Lost,
        sandbox: String::new(),
        other: None,
        detail: Some(format!("{count} events were missed")),
    }
}
