//! Schedules: the times at which a pattern matches in a time zone. Pure logic, without a clock.
//!
//! croner defines the behaviour at clock changes, and the tests pin it.
//! A pattern with a fixed time (`30 2 * * *`) fires once a day: right after a gap, and at the first time in a fold.
//! croner supports one fixed time; a pattern with several (`30 2,14 * * *`) is split into one pattern per time.
//! A repeating pattern (`*/10 * * * *`) follows the wall clock: it does not fire in a gap, and fires twice in a fold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::clock::{Micros, from_micros, to_micros};
use crate::cron::{description, parse_error};
use crate::error::{Error, Result};
use crate::sync::LockExt;

/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256;
/// Maximum cached patterns.
const PATTERN_CACHE_MAX: usize = 1_000;
/// Maximum fixed times in one pattern; a pattern with more counts as repeating.
const FIXED_TIMES_MAX: usize = 64;
/// Maximum steps of a backward search that find only times without a tick; clock changes need one or two.
const BACKWARD_STEPS_MAX: usize = 8;
/// Maximum ticks between the time that a step back finds and the start: one per second in the hour of a clock change.
const BACKWARD_TICKS_MAX: usize = 10_000;
/// The default time zone.
pub(crate) const UTC: &str = "UTC";

/// The times of a pattern in a time zone.
///
/// # Examples
///
/// ```
/// let daily = duly::cron::Schedule::parse("0 3 * * *", "Europe/Berlin")?;
/// assert_eq!(daily.describe(), "Every day at 03:00.");
/// let from = std::time::UNIX_EPOCH; // 1 January 1970, 01:00 in Berlin
/// let first = daily.ticks_after(from).next().expect("there is one");
/// assert_eq!(first, from + std::time::Duration::from_secs(2 * 3600));
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pattern: Arc<ParsedPattern>,
    zone: TimeZone,
}

/// A parsed pattern.
#[derive(Debug)]
struct ParsedPattern {
    cron: Cron,
    /// One pattern per fixed time, if there are several; empty for a single time or a repeating pattern.
    fixed_times: Vec<Cron>,
}

impl ParsedPattern {
    fn parse(pattern: &str) -> Result<Self> {
        let parse = |pattern: &str| parser().parse(pattern).map_err(|e| parse_error::invalid_pattern(pattern, &e));
        let cron = parse(pattern)?;
        let fixed_times = split_fixed_times(pattern).iter().map(|time| parse(time)).collect::<Result<_>>()?;
        Ok(ParsedPattern { cron, fixed_times })
    }

    /// Returns the last matching time before this one. Around clock changes, this may be a time without a tick.
    fn previous_before(&self, from: &Zoned) -> Option<Zoned> {
        let previous = |cron: &Cron| cron.find_previous_occurrence(from, false).ok();
        match &self.fixed_times[..] {
            [] => previous(&self.cron),
            times => times.iter().filter_map(previous).max(),
        }
    }

    /// Returns the first matching time after this one.
    fn next_after(&self, from: &Zoned) -> Option<Zoned> {
        let next = |cron: &Cron| cron.find_next_occurrence(from, false).ok();
        match &self.fixed_times[..] {
            [] => next(&self.cron),
            times => times.iter().filter_map(next).min(),
        }
    }
}

impl Schedule {
    /// Parses a pattern of five fields (minute, hour, day of the month, month, day of the week) or six (with seconds
    /// first), and the name of a time zone such as `Europe/Berlin` or `UTC`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the pattern or the zone is invalid, or if the pattern never matches, such as
    /// 31 February.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::cron::Schedule;
    ///
    /// assert!(Schedule::parse("30 2 * * MON-FRI", "Europe/Berlin").is_ok());
    /// let error = Schedule::parse("0 25 * * *", "UTC").expect_err("there is no such hour");
    /// assert!(error.to_string().contains("invalid hour"));
    /// ```
    pub fn parse(pattern: &str, zone: &str) -> Result<Self> {
        if pattern.len() > PATTERN_BYTES_MAX {
            let reason = format!("{} bytes long; a pattern has at most {PATTERN_BYTES_MAX}", pattern.len());
            return Err(Error::invalid("pattern", reason));
        }
        let schedule = Schedule::parse_unchecked(pattern, zone)?;
        // Patterns have no year, so one without a match after a given time never matches. Only the days decide, so the
        // fixed times need not be checked separately.
        let since = Timestamp::from_second(MATCH_CHECK_START_SECS)
            .unwrap_or(Timestamp::UNIX_EPOCH)
            .to_zoned(schedule.zone.clone());
        match schedule.pattern.cron.find_next_occurrence(&since, false) {
            Ok(_) => Ok(schedule),
            Err(_) => Err(parse_error::pattern_never_matches(pattern)),
        }
    }

    /// Parses a pattern that was checked before. Skips the slow check whether it ever matches.
    pub(crate) fn parse_unchecked(pattern: &str, zone: &str) -> Result<Self> {
        Ok(Schedule { pattern: parse_cached(pattern)?, zone: parse_zone(zone)? })
    }

    /// Returns all ticks after this time, in order.
    ///
    /// See [`Schedule`] for an example.
    pub fn ticks_after(&self, time: SystemTime) -> impl Iterator<Item = SystemTime> + '_ {
        std::iter::successors(self.next_after(to_micros(time)), |tick| self.next_after(*tick)).map(from_micros)
    }

    /// Returns the first tick after this time.
    pub(crate) fn next_after(&self, time: Micros) -> Option<Micros> {
        // Whole seconds, rounded down even before 1970: the search excludes the second it starts from.
        let from = Timestamp::from_second(time.div_euclid(1_000_000)).ok()?.to_zoned(self.zone.clone());
        let tick = self.pattern.next_after(&from)?.timestamp().as_microsecond();
        (tick > time).then_some(tick)
    }

    /// Returns all ticks before this time, the latest first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let hourly = duly::cron::Schedule::parse("0 * * * *", "UTC")?;
    /// let last = hourly.ticks_before(UNIX_EPOCH + Duration::from_secs(2 * 3_600)).next();
    /// assert_eq!(last, Some(UNIX_EPOCH + Duration::from_secs(3_600)));
    /// # Ok::<_, duly::Error>(())
    /// ```
    pub fn ticks_before(&self, time: SystemTime) -> impl Iterator<Item = SystemTime> + '_ {
        std::iter::successors(self.last_before(to_micros(time)), |tick| self.last_before(*tick)).map(from_micros)
    }

    /// Returns the last tick before this time.
    ///
    /// A search backwards and one forwards may differ around clock changes. Only the forward search decides.
    fn last_before(&self, time: Micros) -> Option<Micros> {
        let mut start = time;
        for _ in 0..BACKWARD_STEPS_MAX {
            // Rounded up, because the search excludes the second it starts from.
            let from = Timestamp::from_second(start.div_euclid(1_000_000) + i64::from(start.rem_euclid(1_000_000) > 0));
            let candidate = self.pattern.previous_before(&from.ok()?.to_zoned(self.zone.clone()))?;
            start = candidate.timestamp().as_microsecond().min(start - 1);
            let ticks = std::iter::successors(self.next_after(start - 1), |tick| self.next_after(*tick));
            if let Some(last) = ticks.take_while(|tick| *tick < time).take(BACKWARD_TICKS_MAX).last() {
                return Some(last);
            }
        }
        None
    }

    /// Describes the pattern in English.
    #[must_use]
    pub fn describe(&self) -> String {
        description::describe(self.pattern.cron.as_str()).unwrap_or_else(|| self.pattern.cron.describe())
    }

    /// Returns the name of the time zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or(UTC)
    }

    /// Formats a time in this time zone: `Sun 2026-10-25 02:30 CET`.
    ///
    /// # Examples
    ///
    /// ```
    /// let daily = duly::cron::Schedule::parse("0 3 * * *", "Europe/Berlin")?;
    /// assert_eq!(daily.format_in_zone(std::time::UNIX_EPOCH), "Thu 1970-01-01 01:00 CET");
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn format_in_zone(&self, time: SystemTime) -> String {
        let time = Timestamp::from_microsecond(to_micros(time)).unwrap_or(Timestamp::MAX).to_zoned(self.zone.clone());
        let format = if time.second() == 0 { "%a %Y-%m-%d %H:%M %Z" } else { "%a %Y-%m-%d %H:%M:%S %Z" };
        time.strftime(format).to_string()
    }

    /// Returns a note on how a clock change affects this tick, if it does.
    #[must_use]
    pub fn dst_note(&self, tick: SystemTime) -> Option<&'static str> {
        let time = Timestamp::from_microsecond(to_micros(tick)).ok()?.to_zoned(self.zone.clone());
        if !self.pattern.cron.is_time_matching(&time).ok()? {
            return Some("clocks go forward: the time of the rule is skipped, so it fires right after the gap");
        }
        let candidates = self.zone.to_ambiguous_zoned(time.datetime());
        if !candidates.is_ambiguous() {
            return None;
        }
        let is_first = candidates.earlier().ok()?.timestamp() == time.timestamp();
        let next = self.next_after(to_micros(tick)).and_then(|next| Timestamp::from_microsecond(next).ok());
        let listed = !self.pattern.fixed_times.is_empty();
        let repeats = !listed && next.is_some_and(|next| next.to_zoned(self.zone.clone()).offset() == time.offset());
        Some(match (is_first, repeats || self.fires_twice(&time)) {
            (true, false) => "clocks go back: this time comes twice, and the rule fires the first time only",
            (true, true) => "clocks go back: this time comes twice, and this is the first",
            (false, _) => "clocks go back: this time comes twice, and this is the second",
        })
    }

    /// Returns whether the rule also fires at the second of two times with the same wall clock reading.
    fn fires_twice(&self, first: &Zoned) -> bool {
        let later = self.zone.to_ambiguous_zoned(first.datetime()).later();
        let Ok(later) = later.map(|time| time.timestamp().as_microsecond()) else {
            return false;
        };
        self.next_after(later - 1) == Some(later)
    }
}

/// The year 2000, which begins a whole cycle of the calendar.
const MATCH_CHECK_START_SECS: i64 = 946_684_800;

/// Parses a pattern through a cache: a rule is read at each of its ticks, and parsing would dominate. Time zones are
/// not cached here: their data may change while a process runs.
fn parse_cached(pattern: &str) -> Result<Arc<ParsedPattern>> {
    static PARSED: Mutex<BTreeMap<String, Arc<ParsedPattern>>> = Mutex::new(BTreeMap::new());
    let cache = || PARSED.lock_unpoisoned();
    if let Some(parsed) = cache().get(pattern) {
        return Ok(parsed.clone());
    }
    let parsed = Arc::new(ParsedPattern::parse(pattern)?);
    let mut cache = cache();
    if cache.len() >= PATTERN_CACHE_MAX {
        cache.pop_first();
    }
    cache.insert(pattern.to_owned(), parsed.clone());
    Ok(parsed)
}

/// Splits a pattern with several fixed times into one per time: `0 6,18 * * *` into `0 6 * * *` and `0 18 * * *`.
/// Returns none for a single time or a repeating pattern.
pub(super) fn split_fixed_times(pattern: &str) -> Vec<String> {
    let fields: Vec<&str> = pattern.split_ascii_whitespace().collect();
    // The last three fields are the days.
    let Some((clock, days)) = fields.len().checked_sub(3).map(|count| fields.split_at(count)) else {
        return Vec::new();
    };
    let is_fixed = |field: &&str| field.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    let times: usize = clock.iter().map(|field| field.split(',').count()).product();
    if clock.len() < 2 || !clock.iter().all(is_fixed) || !(2..=FIXED_TIMES_MAX).contains(&times) {
        return Vec::new();
    }
    let times = clock.iter().fold(vec![String::new()], |prefixes, field| {
        prefixes.iter().flat_map(|prefix| field.split(',').map(move |number| format!("{prefix}{number} "))).collect()
    });
    times.into_iter().map(|time| time + &days.join(" ")).collect()
}

pub(super) fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build()
}

fn parse_zone(name: &str) -> Result<TimeZone> {
    if name.eq_ignore_ascii_case(UTC) {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| parse_error::unknown_zone(name))
}
