//! Parses and formats times. Only this file of the binary reads a clock.

use std::time::{Duration, Instant, SystemTime};

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

const NOT_A_TIME: &str = "not a time; write '2026-12-01 09:00', 14:30, 'tomorrow 9:00' or 2026-12-01T09:00:00+01:00";

/// Returns the current time.
pub(crate) fn now() -> SystemTime {
    duly::Clock::system().now()
}

/// Returns the current time of a monotonic clock, for measuring.
pub(crate) fn monotonic_now() -> Instant {
    Instant::now()
}

/// Returns microseconds since 1970, as in the library's JSON.
pub(crate) fn to_micros(moment: SystemTime) -> i64 {
    to_timestamp(moment).as_microsecond()
}

/// Returns the time that is `us` microseconds after 1970.
pub(crate) fn from_micros(us: i64) -> SystemTime {
    SystemTime::from(Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX))
}

fn to_timestamp(moment: SystemTime) -> Timestamp {
    Timestamp::try_from(moment).unwrap_or(Timestamp::MAX)
}

fn to_local(moment: SystemTime) -> Zoned {
    to_timestamp(moment).to_zoned(TimeZone::system())
}

/// Parses a time for clap; it is local unless it names a zone.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, String> {
    let parsed = parse_time_relative_to(text, &to_local(now()));
    parsed.map(|zoned| SystemTime::from(zoned.timestamp())).ok_or_else(|| NOT_A_TIME.to_owned())
}

/// Parses a time; it is in this zone unless it names one.
pub(crate) fn parse_time_in_zone(text: &str, zone: &str) -> Result<SystemTime, String> {
    let zone = TimeZone::get(zone).unwrap_or_else(|_| TimeZone::system());
    let parsed = parse_time_relative_to(text, &to_timestamp(now()).to_zoned(zone));
    parsed.map(|zoned| SystemTime::from(zoned.timestamp())).ok_or_else(|| NOT_A_TIME.to_owned())
}

fn parse_time_relative_to(text: &str, now: &Zoned) -> Option<Zoned> {
    let text = text.trim();
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp.to_zoned(now.time_zone().clone()));
    }
    if let Ok(zoned) = text.parse::<Zoned>() {
        return Some(zoned);
    }
    let on_day = |day: &Zoned, time: &str| {
        day.date().to_datetime(parse_clock_time(time)?).to_zoned(now.time_zone().clone()).ok()
    };
    let tomorrow = now.checked_add(1.day()).ok()?;
    if let Some(time) = text.strip_prefix("tomorrow") {
        return on_day(&tomorrow, time);
    }
    if let Some(time) = text.strip_prefix("today") {
        return on_day(now, time);
    }
    if parse_clock_time(text).is_some() {
        // A time of day that has passed means tomorrow.
        return on_day(now, text).filter(|time| time > now).or_else(|| on_day(&tomorrow, text));
    }
    text.parse::<DateTime>().ok()?.to_zoned(now.time_zone().clone()).ok()
}

/// Parses `9:00`, `09:00` or `09:00:30`.
fn parse_clock_time(text: &str) -> Option<Time> {
    let text = text.trim();
    if !text.contains(':') || text.contains('-') {
        return None;
    }
    let padded = if text.find(':') == Some(1) { format!("0{text}") } else { text.to_owned() };
    padded.parse().ok()
}

/// Formats as `14:32:07.004`, in local time.
pub(crate) fn format_clock_time(moment: SystemTime) -> String {
    to_local(moment).strftime("%H:%M:%S%.3f").to_string()
}

/// Formats as `2026-12-01 14:32:07`, in local time.
pub(crate) fn format_date_time(moment: SystemTime) -> String {
    to_local(moment).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Formats as RFC 3339 with the offset of the local zone.
pub(crate) fn format_rfc3339(moment: SystemTime) -> String {
    to_local(moment).strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string()
}

/// Formats as RFC 3339 in UTC, as the logs of the library do.
pub(crate) fn format_utc(moment: SystemTime) -> String {
    Timestamp::from_microsecond(to_micros(moment)).map_or_else(|_| "-".to_owned(), |at| format!("{at:.6}"))
}

/// Returns the time that is `ms` milliseconds after 1970.
pub(crate) fn from_millis(ms: i64) -> SystemTime {
    SystemTime::from(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX))
}

/// Returns the name of the local zone.
pub(crate) fn local_zone_name() -> String {
    let zone = TimeZone::system();
    zone.iana_name().map_or_else(|| to_local(now()).strftime("%Z").to_string(), str::to_owned)
}

/// Formats relative to now: `in 10m`, `2h ago`, `now`.
pub(crate) fn format_relative(moment: SystemTime) -> String {
    let now = now();
    match moment.duration_since(now) {
        Ok(remaining) if remaining >= Duration::from_millis(500) => format!("in {}", format_duration(remaining)),
        Ok(_) => "now".to_owned(),
        Err(past) if past.duration() < Duration::from_secs(1) => "now".to_owned(),
        Err(past) => format!("{} ago", format_duration(past.duration())),
    }
}

/// Formats a duration in at most two units: `387 ms`, `2.1 s`, `4m10s`, `3d4h`.
pub(crate) fn format_duration(time: Duration) -> String {
    let nearest = time.checked_add(Duration::from_millis(500)).unwrap_or(time).as_secs();
    let secs = if nearest < 60 { time.as_secs() } else { nearest };
    let two_units = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match secs {
        0 if time.as_micros() < 10_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        0 => format!("{} ms", time.as_millis()),
        1..=59 => format!("{:.1} s", time.as_secs_f64()),
        60..=3_599 => two_units(secs / 60, "m", secs % 60, "s"),
        3_600..=86_399 => two_units(secs / 3_600, "h", secs % 3_600 / 60, "m"),
        _ => two_units(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

/// Formats a duration without rounding: `30s`, `1m30s`, `500ms`.
pub(crate) fn format_duration_exact(time: Duration) -> String {
    let (secs, millis) = (time.as_secs(), time.subsec_millis());
    let units = [(secs / 3_600, "h"), (secs % 3_600 / 60, "m"), (secs % 60, "s"), (u64::from(millis), "ms")];
    units.into_iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in ".*", digits in "[0-9: T+Zdhms.-]{0,20}") {
            for text in [&text, &digits, &format!("tomorrow {text}"), &format!("tomorrow {digits}")] {
                let _ = parse_time(text);
            }
        }

        #[test]
        fn any_duration_and_moment_can_be_shown(secs in any::<u64>(), nanos in 0u32..1_000_000_000, us in any::<i64>()) {
            prop_assert!(!format_duration(Duration::new(secs, nanos)).is_empty());
            prop_assert!(!format_date_time(from_micros(us)).is_empty());
        }
    }

    fn parse_at_noon(text: &str) -> Option<String> {
        let now: Zoned = "2026-03-10T12:00:00[Europe/Berlin]".parse().expect("a moment");
        parse_time_relative_to(text, &now)
            .map(|zoned| zoned.with_time_zone(now.time_zone().clone()).datetime().to_string())
    }

    #[test]
    fn common_time_formats_are_parsed() {
        let cases = [
            ("2026-12-01 09:00", "2026-12-01T09:00:00"),
            ("2026-12-01T09:00:00Z", "2026-12-01T10:00:00"),
            ("2026-12-01T09:00:00+05:00", "2026-12-01T05:00:00"),
            ("14:30", "2026-03-10T14:30:00"),
            ("9:00", "2026-03-11T09:00:00"),
            ("12:00", "2026-03-11T12:00:00"),
            ("tomorrow 9:00", "2026-03-11T09:00:00"),
            ("today 23:59:30", "2026-03-10T23:59:30"),
            ("2026-12-01", "2026-12-01T00:00:00"),
        ];
        for (text, moment) in cases {
            assert_eq!(parse_at_noon(text).as_deref(), Some(moment), "{text}");
        }
        for text in ["", "soon", "25:00", "tomorrow", "2026-13-01", "9", "-1:00"] {
            assert_eq!(parse_at_noon(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_formatted() {
        let cases = [(387, "387 ms"), (2_100, "2.1 s"), (250_000, "4m10s"), (3_600_000, "1h"), (273_600_000, "3d4h")];
        for (millis, text) in cases {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_duration(Duration::from_micros(1_240)), "1.2 ms");
        for (millis, text) in [(30_000, "30s"), (90_000, "1m30s"), (500, "500ms"), (7_200_250, "2h250ms")] {
            assert_eq!(format_duration_exact(Duration::from_millis(millis)), text);
        }
    }
}
