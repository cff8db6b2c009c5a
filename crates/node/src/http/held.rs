//! The place that a request takes among those that are answered at once, until its answer has been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// One of the bounded number of requests. What goes on after its answer, as a WebSocket does, keeps it.
#[derive(Clone)]
pub struct Held {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Held {
    /// With its permit.
    pub fn new(permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Arc::new(permit) }
    }

    /// The same body, which keeps the place; it may be a long stream.
    pub fn with(self, body: Body) -> Body {
        Body::new(Holding { body, _held: self })
    }
}

/// Says of its size what the body says: clients are told the length of what has one.
struct Holding {
    body: Body,
    _held: Held,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_body_keeps_its_length_and_its_place() {
        let places = Arc::new(Semaphore::new(1));
        for (text, length) in [("", 0), ("abc", 3)] {
            let held = Held::new(places.clone().try_acquire_owned().unwrap());
            let body = held.with(Body::from(text));
            assert_eq!(
                (body.size_hint().exact(), body.is_end_stream()),
                (Some(length), length == 0)
            );
            assert_eq!(places.available_permits(), 0);
            assert_eq!(axum::body::to_bytes(body, 9).await.unwrap(), text);
            assert_eq!(places.available_permits(), 1);
        }
    }
}
