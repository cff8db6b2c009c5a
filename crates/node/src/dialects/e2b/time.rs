//! Times as E2B writes them: RFC 3339, in UTC.

use ::time::OffsetDateTime;
use ::time::format_description::well_known::Rfc3339;

/// A time in milliseconds since 1970.
pub fn of_ms(ms: u64) -> String {
    of_ns(i128::from(ms) * 1_000_000)
}

/// A time in nanoseconds since 1970, or before it. What lies outside the calendar is shown as 1970.
pub fn of_ns(ns: i128) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(ns);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}

/// Milliseconds since 1970 of a time that was written so, whatever its zone.
pub fn parse(text: &str) -> Option<u64> {
    // A plus that was taken for a space.
    let time = OffsetDateTime::parse(&text.replace(' ', "+"), &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_102_444_800_000, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(of_ms(ms), text);
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(of_ns(951_826_088_000_000_500), "2000-02-29T12:08:08.0000005Z");
        assert_eq!(of_ns(-1_000_000_000), "1969-12-31T23:59:59Z");
        assert_eq!(of_ms(u64::MAX), "1970-01-01T00:00:00Z");
        assert_eq!(parse("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(parse("1970-01-01T01:00:00 01:00"), Some(0));
        assert_eq!(parse("1970-01-01T00:00:00.5-00:30"), Some(1_800_500));
        for bad in
            ["", "now", "1970-01-01", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00", "\u{e9}"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(parse("1969-12-31T23:59:59Z"), None);
    }
}
