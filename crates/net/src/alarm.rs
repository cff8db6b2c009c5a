//! A timer that rings once for each time it is set, whenever it is listened to.
//!
//! Invariant: what is set rings, also if its time has come before anybody listens. Whether the runtime's timer has elapsed is therefore
//! never asked: another thread may have it elapse between the question and the answer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

/// A timer.
#[derive(Debug)]
pub struct Alarm {
    timer: Pin<Box<Sleep>>,
    /// When it is to ring.
    at: Option<Instant>,
}

impl Alarm {
    /// One that does not ring. Inside the runtime.
    #[must_use]
    pub fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(Duration::ZERO)), at: None }
    }

    /// Has it ring no later than this.
    pub fn set(&mut self, at: Instant) {
        if self.at.is_none_or(|set| at < set) {
            self.timer.as_mut().reset(at.into());
            self.at = Some(at);
        }
    }

    /// Until it rings; for ever if it was not set. Who does not wait for the end has missed nothing.
    pub async fn rings(&mut self) {
        poll_fn(|context| match self.at {
            Some(_) => self.timer.as_mut().poll(context),
            None => Poll::Pending,
        })
        .await;
        self.at = None;
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn rang(alarm: &mut Alarm) -> bool {
        tokio::time::timeout(Duration::from_millis(200), alarm.rings()).await.is_ok()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_set_rings_once_even_if_nobody_listened_in_time() {
        let mut alarm = Alarm::new();
        assert!(!rang(&mut alarm).await, "it was not set");
        alarm.set(Instant::now() + Duration::from_millis(1));
        // Other threads have the runtime's timer elapse meanwhile.
        std::thread::sleep(Duration::from_millis(50));
        assert!(rang(&mut alarm).await);
        assert!(!rang(&mut alarm).await, "it has rung already");
        alarm.set(Instant::now() + Duration::from_secs(3600));
        alarm.set(Instant::now());
        alarm.set(Instant::now() + Duration::from_secs(60));
        assert!(rang(&mut alarm).await, "the earliest counts");
    }
}
