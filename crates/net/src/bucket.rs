//! Token buckets: so many a second, and what was saved up in one.
//!
//! A rate of 0 is no bound. Time is given by the caller and never goes back.

use std::time::{Duration, Instant};

/// A bucket that fills at a rate and holds what comes in in a second, or `least` if that is more.
#[derive(Debug)]
pub struct Bucket {
    rate: u64,
    most: u64,
    held: u64,
    filled: Instant,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: u64, least: u64, now: Instant) -> Self {
        let most = rate.max(least);
        Self { rate, most, held: most, filled: now }
    }

    /// How much may be taken now.
    pub fn available(&mut self, now: Instant) -> u64 {
        if self.rate == 0 {
            return u64::MAX;
        }
        let passed = now.saturating_duration_since(self.filled);
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        let earned = micros.saturating_mul(self.rate) / 1_000_000;
        if earned > 0 {
            self.held = self.held.saturating_add(earned).min(self.most);
            let spent = earned.saturating_mul(1_000_000) / self.rate;
            self.filled += Duration::from_micros(spent.min(micros));
        }
        self.held
    }

    /// Takes; may be more than there is, which is then nothing.
    pub fn take(&mut self, amount: u64) {
        if self.rate != 0 {
            self.held = self.held.saturating_sub(amount);
        }
    }

    /// Takes all of it, or nothing.
    pub fn take_all(&mut self, amount: u64, now: Instant) -> bool {
        let enough = self.available(now) >= amount;
        if enough {
            self.take(amount);
        }
        enough
    }

    /// How long until there is some to take again: a fiftieth of a second's worth, so that it pays.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Duration::from_millis(20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_out_is_what_came_in() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000, 0, start);
        assert!(bucket.take_all(1000, start));
        assert!(!bucket.take_all(1, start));
        let later = start + Duration::from_millis(500);
        assert_eq!(bucket.available(later), 500);
        assert!(bucket.take_all(500, later));
        assert_eq!(bucket.available(later + Duration::from_secs(60)), 1000);
    }

    #[test]
    fn slow_rates_are_not_lost_to_rounding() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 0, start);
        bucket.take(10);
        for step in 1..=100u32 {
            bucket.available(start + Duration::from_millis(10) * step);
        }
        assert_eq!(bucket.available(start + Duration::from_secs(1)), 10);
    }

    #[test]
    fn no_rate_is_no_bound() {
        let mut bucket = Bucket::new(0, 0, Instant::now());
        assert!(bucket.take_all(u64::MAX, Instant::now()));
    }
}
