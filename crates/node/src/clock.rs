//! Two clocks: the wall clock, which the API tells and which may be set at any moment, and the time since the
//! host's boot, which never jumps and is what limits are counted by.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clocks have moved against each other by so much if one was set; by less, only the readings differ.
const WOBBLE_MS: u64 = 100;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since the host's boot, sleep included.
pub fn uptime_ms() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    let since = time.map(Duration::from).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What the wall clock shows at a moment of [`uptime_ms`]: the same at every call, until it is set.
pub fn wall_ms(uptime: u64) -> u64 {
    static BETWEEN: AtomicU64 = AtomicU64::new(0);
    let (kept, read) = (BETWEEN.load(Ordering::Relaxed), now_ms().saturating_sub(uptime_ms()));
    if kept.abs_diff(read) < WOBBLE_MS {
        return kept.saturating_add(uptime);
    }
    BETWEEN.store(read, Ordering::Relaxed);
    read.saturating_add(uptime)
}

/// Names this boot of the host; empty if it has no name.
pub fn boot() -> &'static str {
    static BOOT: LazyLock<String> = LazyLock::new(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        name.unwrap_or_default().trim().to_owned()
    });
    &BOOT
}

/// Microseconds since a moment.
pub fn since_us(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_one_time() {
        let (moment, wall) = (uptime_ms(), now_ms());
        let first = wall_ms(moment);
        assert!(first.abs_diff(wall) <= 2 * WOBBLE_MS, "{first} {wall}");
        assert!((0..100_000).all(|_| wall_ms(moment) == first));
        assert_eq!(wall_ms(moment + 5), first + 5);
        assert_eq!(wall_ms(u64::MAX), u64::MAX);
    }
}
