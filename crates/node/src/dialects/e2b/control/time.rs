//! Times as E2B writes them: RFC 3339.

use crate::clock::date;

/// Days of 400 years of the Gregorian calendar.
const ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;
const DAY_MS: i64 = 86_400_000;

/// A time in milliseconds since 1970, in UTC.
pub fn shown(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let (day, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(day);
    let (seconds, ms) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The day since 1970 that a date is. Years begin in March, so that the leap day is their last.
fn day(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH
}

/// Milliseconds since 1970 of a time that was written so, whatever its zone.
pub fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mark = |at: usize, marks: &[u8]| marks.contains(text.as_bytes().get(at)?).then_some(());
    let (year, month, date) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    for (at, marks) in [(4, b"--"), (7, b"--"), (10, b"Tt"), (13, b"::"), (16, b"::")] {
        mark(at, marks)?;
    }
    let right = (1..=12).contains(&month) && (1..=31).contains(&date);
    if !right || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let (ms, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let digits = format!("{:0<3}", rest.get(..end)?.get(..end.min(3))?);
            (digits.parse().ok()?, rest.get(end..)?)
        }
    };
    let local = day(year, month, date) * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + ms;
    u64::try_from(local - zone_minutes(zone)? * 60_000).ok()
}

/// Minutes that a zone is ahead.
fn zone_minutes(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        // A plus that was taken for a space.
        (" ", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two = |text: &str| -> Option<i64> {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())?
    };
    Some(sign * (two(hours)? * 60 + two(minutes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(shown(ms), text);
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(parse("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(parse("1970-01-01T00:00:00.5-00:30"), Some(1_800_500));
        for bad in ["", "now", "1970-01-01", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00", "é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
