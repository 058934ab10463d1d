//! Formats numbers, times and names for people. Pure.

use std::borrow::Borrow;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Formats a number with separators: `1,234,567`.
pub(super) fn count(number: impl Borrow<u64>) -> String {
    let digits = number.borrow().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 job`, `2 jobs`, `2 crashes`.
pub(super) fn plural(number: impl Borrow<u64>, noun: &str) -> String {
    let number = *number.borrow();
    let ending = match number {
        1 => "",
        _ if noun.ends_with("sh") => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(number))
}

/// Formats a duration in at most two units: `350 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub(super) fn duration(time: Duration) -> String {
    let millis = time.as_millis();
    let secs = time.as_secs();
    match secs {
        0 if millis == 0 && time.is_zero() => "0 ms".to_owned(),
        0 if millis == 0 => "under 1 ms".to_owned(),
        0 => format!("{millis} ms"),
        1..=9 => format!("{:.1} s", time.as_secs_f64()),
        10..=59 => format!("{secs} s"),
        60..=3_599 => two_units(secs / 60, "min", secs % 60, "s"),
        3_600..=86_399 => two_units(secs / 3_600, "h", secs % 3_600 / 60, "min"),
        _ => two_units(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

fn two_units(large: u64, unit: &str, small: u64, smaller: &str) -> String {
    match small {
        0 => format!("{} {unit}", count(large)),
        _ => format!("{} {unit} {small} {smaller}", count(large)),
    }
}

/// Formats a number of bytes: `512 B`, `1.5 kB`, `3.2 MB`.
pub(super) fn bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if number < 1_000 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1_000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A time in three formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// RFC 3339, for scripts.
    pub iso: String,
    /// In the reader's time zone: `2026-11-16 05:20:31.123 CET`.
    pub local: String,
    /// Relative to now: `3 min ago`, `in 2 h`.
    pub relative: String,
}

/// Formats the time `at`, relative to `now` and in this time zone.
pub(super) fn moment(at: SystemTime, now: SystemTime, zone: &TimeZone) -> Moment {
    let Ok(stamp) = Timestamp::try_from(at) else {
        let far = "beyond the calendar".to_owned();
        return Moment { iso: String::new(), local: far.clone(), relative: far };
    };
    let zoned = stamp.to_zoned(zone.clone());
    Moment {
        iso: format!("{stamp:.3}"),
        local: zoned.strftime("%Y-%m-%d %H:%M:%S%.3f %Z").to_string(),
        relative: relative(at, now),
    }
}

/// Formats a time for a sentence: `2026-11-16 05:20:31 CET`.
pub(super) fn time_in_sentence(at: SystemTime, zone: &TimeZone) -> String {
    let Ok(stamp) = Timestamp::try_from(at) else {
        return "beyond the calendar".to_owned();
    };
    stamp.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// Formats a time relative to now: `just now`, `12 s ago`, `in 3 min 5 s`.
fn relative(at: SystemTime, now: SystemTime) -> String {
    match (now.duration_since(at), at.duration_since(now)) {
        (Ok(ago), _) if ago < Duration::from_secs(1) => "just now".to_owned(),
        (Ok(ago), _) => format!("{} ago", coarse_duration(ago)),
        (_, Ok(ahead)) if ahead < Duration::from_secs(1) => "now".to_owned(),
        (_, Ok(ahead)) => format!("in {}", coarse_duration(ahead)),
        _ => String::new(),
    }
}

/// As [`duration`], but in whole seconds: tenths are unreadable in a text that changes every second.
fn coarse_duration(time: Duration) -> String {
    duration(Duration::from_secs(time.as_secs().max(1))).replace(".0 s", " s")
}

/// Returns the end of an id, which distinguishes it: ids begin with the time of their creation.
pub(super) fn short_id(id: &str) -> String {
    let chars: Vec<char> = id.chars().collect();
    if chars.len() <= 16 {
        return id.to_owned();
    }
    let mut text = "…".to_owned();
    text.extend(&chars[chars.len() - 8..]);
    text
}

/// Returns the first line of a text, shortened to `chars_max` characters.
pub(super) fn truncate(text: &str, chars_max: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut shown: String = line.chars().take(chars_max).collect();
    if shown.len() < text.trim_end().len() {
        shown.push('…');
    }
    shown
}

/// Encodes a text for use in a path or a query.
pub(super) fn url_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(plural(1, "job"), "1 job");
        assert_eq!(plural(0, "job"), "0 jobs");
        assert_eq!(plural(2, "crash"), "2 crashes");
    }

    #[test]
    fn lengths_of_time_have_two_units_at_most() {
        let cases = [(0, "0 ms"), (350, "350 ms"), (4_240, "4.2 s"), (59_999, "59 s"), (60_000, "1 min")];
        for (millis, text) in cases {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration(Duration::from_micros(12)), "under 1 ms");
        assert_eq!(duration(Duration::from_secs(7_500)), "2 h 5 min");
        assert_eq!(duration(Duration::from_secs(273_600)), "3 d 4 h");
    }

    #[test]
    fn times_are_relative_and_local() {
        let at = UNIX_EPOCH + Duration::from_millis(1_763_270_431_123);
        let shown = moment(at, at + Duration::from_secs(200), &TimeZone::UTC);
        assert_eq!(shown.iso, "2025-11-16T05:20:31.123Z");
        assert_eq!(shown.local, "2025-11-16 05:20:31.123 UTC");
        assert_eq!(shown.relative, "3 min 20 s ago");
        assert_eq!(time_in_sentence(at, &TimeZone::UTC), "2025-11-16 05:20:31 UTC");
        assert_eq!(moment(at, at, &TimeZone::UTC).relative, "just now");
        assert_eq!(moment(at, at - Duration::from_secs(5), &TimeZone::UTC).relative, "in 5 s");
    }

    #[test]
    fn bytes_and_ids_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(3_200_000), "3.2 MB");
        assert_eq!(short_id("0192f7a1-0000-7000-8000-00000000c3d4"), "…0000c3d4");
    }

    proptest! {
        #[test]
        fn any_value_is_displayed(text in "\\PC*", secs in any::<u64>(), max in 0usize..50) {
            let _ = (truncate(&text, max), short_id(&text), url_encode(&text), duration(Duration::from_secs(secs)), bytes(secs));
            let at = UNIX_EPOCH.checked_add(Duration::from_secs(secs)).unwrap_or(UNIX_EPOCH);
            let _ = moment(at, UNIX_EPOCH, &TimeZone::UTC);
        }

        #[test]
        fn encoded_text_is_plain(text in "\\PC*") {
            prop_assert!(url_encode(&text).bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~%".contains(&b)));
        }
    }
}
