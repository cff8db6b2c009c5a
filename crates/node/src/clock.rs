//! Two clocks: the wall clock, which the API tells and which may be set at any moment, and the time since the
//! host's boot, which never jumps and is what limits are counted by.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
