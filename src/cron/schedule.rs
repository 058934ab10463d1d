//! When a cron rule fires: a pattern in a time zone, and the moments at which it matches. Pure: reads no clock.
//!
//! What happens when clocks change is croner's policy, held by the tests below:
//! a rule for fixed times (`30 2 * * *`) fires once a day, in a gap at the first moment behind it, in a fold at the first of the two
//! (croner knows one such time; a rule that lists several, `30 2,14 * * *`, is made of rules for each of them);
//! a rule that repeats (`*/10 * * * *`) fires whenever the clock on the wall matches, so not in a gap, and in both halves of a fold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::clock::{Micros, from_micros, to_micros};
use crate::cron::parse_error;
use crate::error::{Error, Result};

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256;
/// Patterns that are remembered as they were parsed.
const PATTERN_CACHE_MAX: usize = 1_000;
/// Most times of the day in one rule that are fixed: one with more repeats.
const FIXED_TIMES_MAX: usize = 64;
/// The zone of a rule that names none.
pub(crate) const UTC: &str = "UTC";

/// The moments of a pattern in a time zone.
///
/// ```
/// let daily = duly::Schedule::parse("0 3 * * *", "Europe/Berlin")?;
/// assert_eq!(daily.in_words(), "At 03:00.");
/// let from = std::time::UNIX_EPOCH; // 1 January 1970, 01:00 in Berlin
/// let first = daily.after(from).next().expect("there is one");
/// assert_eq!(first, from + std::time::Duration::from_secs(2 * 3600));
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pattern: Arc<ParsedPattern>,
    zone: TimeZone,
}

/// A pattern as it was parsed.
#[derive(Debug)]
struct ParsedPattern {
    cron: Cron,
    /// One for each of the fixed times that it lists; none if it has one such time, or repeats.
    fixed_times: Vec<Cron>,
}

impl ParsedPattern {
    fn parse(pattern: &str) -> Result<Self> {
        let parse = |pattern: &str| parser().parse(pattern).map_err(|e| parse_error::invalid_pattern(pattern, &e));
        let whole = parse(pattern)?;
        let times = split_fixed_times(pattern).iter().map(|time| parse(time)).collect::<Result<_>>()?;
        Ok(ParsedPattern { cron: whole, fixed_times: times })
    }

    /// The first moment after this one.
    fn next_after(&self, from: &Zoned) -> Option<Zoned> {
        let next = |cron: &Cron| cron.find_next_occurrence(from, false).ok();
        match &self.fixed_times[..] {
            [] => next(&self.cron),
            times => times.iter().filter_map(next).min(),
        }
    }
}

impl Schedule {
    /// From a pattern of five fields (minute, hour, day of the month, month, day of the week), or six with seconds in front,
    /// and the name of a time zone such as `Europe/Berlin` or `UTC`.
    ///
    /// Refuses what never matches, such as 31 February.
    pub fn parse(pattern: &str, zone: &str) -> Result<Self> {
        if pattern.len() > PATTERN_BYTES_MAX {
            let reason = format!("{} bytes long; a pattern has at most {PATTERN_BYTES_MAX}", pattern.len());
            return Err(Error::invalid("pattern", reason));
        }
        let schedule = Schedule::parse_unchecked(pattern, zone)?;
        // From a fixed moment: what never matches after it never matches at all, for no pattern has a year. It is the days that
        // decide, so of several times of the day one is enough.
        let since = Timestamp::from_second(MATCH_CHECK_START_SECS)
            .unwrap_or(Timestamp::UNIX_EPOCH)
            .to_zoned(schedule.zone.clone());
        match schedule.pattern.cron.find_next_occurrence(&since, false) {
            Ok(_) => Ok(schedule),
            Err(_) => Err(parse_error::pattern_never_matches(pattern)),
        }
    }

    /// The same for what has been looked at before: not whether it ever matches, which takes longer than all the rest.
    pub(crate) fn parse_unchecked(pattern: &str, zone: &str) -> Result<Self> {
        Ok(Schedule { pattern: parse_cached(pattern)?, zone: parse_zone(zone)? })
    }

    /// All moments after this one, in their order.
    pub fn ticks_after(&self, moment: SystemTime) -> impl Iterator<Item = SystemTime> + '_ {
        std::iter::successors(self.next_after(to_micros(moment)), |tick| self.next_after(*tick)).map(from_micros)
    }

    /// The first moment after this one.
    pub(crate) fn next_after(&self, moment: Micros) -> Option<Micros> {
        // Whole seconds, rounded down also before 1970: the search leaves out the second it starts from.
        let from = Timestamp::from_second(moment.div_euclid(1_000_000)).ok()?.to_zoned(self.zone.clone());
        let at = self.pattern.next_after(&from)?.timestamp().as_microsecond();
        (at > moment).then_some(at)
    }

    /// The pattern in words.
    #[must_use]
    pub fn describe(&self) -> String {
        self.pattern.cron.describe()
    }

    /// The name of the time zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or(UTC)
    }

    /// A moment as clocks in this zone show it: `Sun 2026-10-25 02:30 CET`.
    #[must_use]
    pub fn format_in_zone(&self, moment: SystemTime) -> String {
        let at = Timestamp::from_microsecond(to_micros(moment)).unwrap_or(Timestamp::MAX).to_zoned(self.zone.clone());
        let format = if at.second() == 0 { "%a %Y-%m-%d %H:%M %Z" } else { "%a %Y-%m-%d %H:%M:%S %Z" };
        at.strftime(format).to_string()
    }

    /// What changing clocks do to a moment of this rule, if they do anything: said in words.
    #[must_use]
    pub fn dst_note(&self, moment: SystemTime) -> Option<&'static str> {
        let at = Timestamp::from_microsecond(to_micros(moment)).ok()?.to_zoned(self.zone.clone());
        if !self.pattern.cron.is_time_matching(&at).ok()? {
            return Some("clocks go forward: the time of the rule is skipped, so it fires at the first moment after");
        }
        let both = self.zone.to_ambiguous_zoned(at.datetime());
        if !both.is_ambiguous() {
            return None;
        }
        let first = both.earlier().ok()?.timestamp() == at.timestamp();
        let again = self.next_after(to_micros(moment)).and_then(|next| Timestamp::from_microsecond(next).ok());
        let listed = !self.pattern.fixed_times.is_empty();
        let repeats = !listed && again.is_some_and(|next| next.to_zoned(self.zone.clone()).offset() == at.offset());
        Some(match (first, repeats || self.fires_twice(&at)) {
            (true, false) => "clocks go back: this time comes twice, and the rule fires the first time only",
            (true, true) => "clocks go back: this time comes twice, and this is the first",
            (false, _) => "clocks go back: this time comes twice, and this is the second",
        })
    }

    /// Whether the rule fires at the second of two moments that look alike.
    fn fires_twice(&self, first: &Zoned) -> bool {
        let later = self.zone.to_ambiguous_zoned(first.datetime()).later();
        let Ok(later) = later.map(|at| at.timestamp().as_microsecond()) else {
            return false;
        };
        self.next_after(later - 1) == Some(later)
    }
}

/// The year 2000 begins a whole cycle of the calendar.
const MATCH_CHECK_START_SECS: i64 = 946_684_800;

/// A rule is read at each of its ticks, and most of that would be to parse its pattern again. Zones are not remembered here: what
/// is known of them may change while a process runs.
fn parse_cached(pattern: &str) -> Result<Arc<ParsedPattern>> {
    static PARSED: Mutex<BTreeMap<String, Arc<ParsedPattern>>> = Mutex::new(BTreeMap::new());
    let known = || PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known().get(pattern) {
        return Ok(known.clone());
    }
    let new = Arc::new(ParsedPattern::parse(pattern)?);
    let mut known = known();
    if known.len() >= PATTERN_CACHE_MAX {
        known.pop_first();
    }
    known.insert(pattern.to_owned(), new.clone());
    Ok(new)
}

/// A pattern for each time of the day, if this one lists several by their numbers: `0 6 * * *` and `0 18 * * *` of `0 6,18 * * *`.
pub(super) fn split_fixed_times(pattern: &str) -> Vec<String> {
    let fields: Vec<&str> = pattern.split_ascii_whitespace().collect();
    // The last three are days.
    let Some((clock, days)) = fields.len().checked_sub(3).map(|at| fields.split_at(at)) else {
        return Vec::new();
    };
    let plain = |field: &&str| field.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    let times: usize = clock.iter().map(|field| field.split(',').count()).product();
    if clock.len() < 2 || !clock.iter().all(plain) || !(2..=FIXED_TIMES_MAX).contains(&times) {
        return Vec::new();
    }
    let first = vec![String::new()];
    let of_clock = clock.iter().fold(first, |so_far, field| {
        so_far.iter().flat_map(|begin| field.split(',').map(move |number| format!("{begin}{number} "))).collect()
    });
    of_clock.into_iter().map(|time| time + &days.join(" ")).collect()
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
