//! Parses filters. Errors point at the position with a caret.

use std::time::Duration;

use crate::error::Error;
use crate::job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, FilterTerm, FilterTime};
use crate::job::{IdPart, Priority, State};

const FIELD_NAMES: &str =
    "id, state, queue, kind, tag, priority, args.PATH, error, group, since, until, due<TIME, due>TIME";

/// A word of a filter, with the positions of the word and of its value.
struct FilterWord {
    start: usize,
    negated: bool,
    has_quotes: bool,
    name: Option<(String, char)>,
    value: String,
    value_start: usize,
}

/// Parses a filter. `is_change`: it selects jobs to change, so a bare word must not look like an id.
pub(crate) fn parse(text: &str, is_change: bool) -> Result<Filter, Error> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(Error::invalid("filter", format!("longer than {FILTER_BYTES_MAX} bytes; make it shorter")));
    }
    let mut filter = Filter::default();
    for (n, word) in (FilterWords { text, position: 0 }).enumerate() {
        let word = word?;
        if n == FILTER_TERMS_MAX {
            return Err(error_at(text, word.start, &format!("more than {FILTER_TERMS_MAX} conditions; remove some")));
        }
        if is_change && word.name.is_none() && !word.has_quotes && IdPart::is_id_like(&word.value) {
            return Err(error_at(
                text,
                word.start,
                "looks like an id; write id:DIGITS to select a job by its id, or quotes around it to search args and errors",
            ));
        }
        add_word(text, &mut filter, word)?;
    }
    Ok(filter)
}

/// Adds the condition of one word.
fn add_word(text: &str, filter: &mut Filter, word: FilterWord) -> Result<(), Error> {
    let FilterWord { start, negated, name, value, value_start, .. } = word;
    let Some((name, operator)) = name else {
        match negated {
            true => filter.not.push(FilterTerm::Text(value)),
            false => filter.text.push(value),
        }
        return Ok(());
    };
    if operator != ':' {
        return add_comparison(text, filter, start, negated, &name, operator, &value, value_start);
    }
    if value.is_empty() && !matches!(name.as_str(), "error") && !name.starts_with("args.") {
        return Err(error_at(
            text,
            value_start,
            &format!("no value after {name}:; write {name}:VALUE without a space"),
        ));
    }
    let time = || parse_filter_time(text, value_start, &value);
    let term = match name.as_str() {
        "state" => {
            let state: State = value.parse().map_err(|_| {
                error_at(text, value_start, "not a state; use scheduled, ready, running, done, dead or cancelled")
            })?;
            FilterTerm::State(state)
        }
        "priority" => {
            let priority: Priority = value
                .parse()
                .map_err(|_| error_at(text, value_start, "not a priority; use low, normal, high or critical"))?;
            FilterTerm::Priority(priority)
        }
        "id" => FilterTerm::Id(value.parse().map_err(|_| {
            error_at(text, value_start, "not an id; use the whole id, or 4 or more digits of its beginning or end")
        })?),
        "queue" => FilterTerm::Queue(value),
        "kind" => FilterTerm::Kind(value),
        "tag" => FilterTerm::Tag(value),
        "error" => FilterTerm::Error(value),
        "group" | "since" | "until" if negated => {
            return Err(error_at(text, start, &format!("{name}: cannot be negated; remove the minus")));
        }
        "group" => return set_once(text, start, &name, &mut filter.group, value),
        "since" => return set_once(text, start, &name, &mut filter.since, time()?),
        "until" => return set_once(text, start, &name, &mut filter.until, time()?),
        _ => match name.strip_prefix("args.") {
            Some(path) if !path.is_empty() && path.split('.').all(|key| !key.is_empty()) => {
                FilterTerm::Args(path.to_owned(), value)
            }
            Some(_) => return Err(error_at(text, start, "invalid path; use args.to:VALUE or args.user.name:VALUE")),
            None if name == "due" => return Err(error_at(text, start, "due needs a comparison: due<10m or due>1h")),
            None => {
                let reason = format!("unknown field {name:?}; use {FIELD_NAMES}; a word with a colon needs quotes");
                return Err(error_at(text, start, &reason));
            }
        },
    };
    if negated {
        filter.not.push(term);
        return Ok(());
    }
    set_condition(text, filter, start, term)
}

/// Adds a condition that jobs must meet.
fn set_condition(text: &str, filter: &mut Filter, start: usize, term: FilterTerm) -> Result<(), Error> {
    match term {
        FilterTerm::Id(id) => return set_once(text, start, "id", &mut filter.id, id),
        FilterTerm::State(state) => return set_once(text, start, "state", &mut filter.state, state),
        FilterTerm::Queue(queue) => return set_once(text, start, "queue", &mut filter.queue, queue),
        FilterTerm::Kind(kind) => return set_once(text, start, "kind", &mut filter.kind, kind),
        FilterTerm::Priority(priority) => return set_once(text, start, "priority", &mut filter.priority, priority),
        FilterTerm::Error(error) => return set_once(text, start, "error", &mut filter.error, error),
        FilterTerm::Tag(tag) => filter.tags.push(tag),
        FilterTerm::Args(path, needle) => filter.args.push((path, needle)),
        FilterTerm::Text(word) => filter.text.push(word),
    }
    Ok(())
}

/// Adds `due<10m` (scheduled and due within ten minutes) or `due>1h` (not before an hour from now).
#[expect(clippy::too_many_arguments, reason = "the parts of a word")]
fn add_comparison(
    text: &str,
    filter: &mut Filter,
    start: usize,
    negated: bool,
    name: &str,
    operator: char,
    value: &str,
    value_start: usize,
) -> Result<(), Error> {
    if name != "due" || negated {
        return Err(error_at(text, start, "only due can be compared: due<10m, due>1h; otherwise use NAME:VALUE"));
    }
    if filter.state.is_some_and(|state| state != State::Scheduled) {
        return Err(error_at(text, start, "due selects scheduled jobs; remove the state, or use since: and until:"));
    }
    let time = match parse_filter_time(text, value_start, value)? {
        FilterTime::Ago(delay) => FilterTime::In(delay),
        time => time,
    };
    filter.state = Some(State::Scheduled);
    match operator {
        '<' => set_once(text, start, "until", &mut filter.until, time),
        _ => set_once(text, start, "since", &mut filter.since, time),
    }
}

fn set_once<T: PartialEq>(text: &str, start: usize, name: &str, slot: &mut Option<T>, value: T) -> Result<(), Error> {
    match slot {
        Some(old) if *old != value => {
            Err(error_at(text, start, &format!("{name} is given twice, but a job has only one; remove one")))
        }
        _ => {
            *slot = Some(value);
            Ok(())
        }
    }
}

/// Parses `1h` (ago), `+1h` (from now) or an absolute time.
fn parse_filter_time(text: &str, start: usize, value: &str) -> Result<FilterTime, Error> {
    let (is_future, span) = match value.strip_prefix('+') {
        Some(span) => (true, span),
        None => (false, value),
    };
    if let Ok(span) = crate::store::parse_duration(span) {
        let span = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        return Ok(if is_future { FilterTime::In(span) } else { FilterTime::Ago(span) });
    }
    let day = |value: &str| value.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let time = value.parse::<jiff::Timestamp>().ok().or_else(|| day(value).map(|day| day.timestamp()));
    match time {
        Some(time) if !is_future => {
            // Whole microseconds, as in stores.
            Ok(FilterTime::At(crate::clock::from_micros(time.as_microsecond())))
        }
        _ => Err(error_at(
            text,
            start,
            "not a time; use 10m (ago), +10m (from now), 2026-12-01 or 2026-12-01T09:00:00Z (UTC by default)",
        )),
    }
}

/// Returns an error with the input and a caret under the position.
fn error_at(text: &str, position: usize, reason: &str) -> Error {
    // Control characters would break the line above the caret.
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let before = text[..position.min(text.len())].chars().count();
    Error::invalid("filter", format!("{reason}\n  {plain}\n  {caret:>width$}", caret = '^', width = before + 1))
}

/// The words of a filter, separated by spaces outside quotes.
struct FilterWords<'t> {
    text: &'t str,
    position: usize,
}

impl Iterator for FilterWords<'_> {
    type Item = Result<FilterWord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.text[self.position..];
        self.position += rest.len() - rest.trim_start().len();
        let start = self.position;
        if start == self.text.len() {
            return None;
        }
        Some(self.read_word(start))
    }
}

impl FilterWords<'_> {
    fn read_word(&mut self, start: usize) -> Result<FilterWord, Error> {
        let text = self.text;
        let negated = text[start..].starts_with('-');
        self.position += usize::from(negated);
        let value_start = self.position;
        let mut word = FilterWord { start, negated, has_quotes: false, name: None, value: String::new(), value_start };
        while let Some(c) = text[self.position..].chars().next() {
            let here = self.position;
            self.position += c.len_utf8();
            match c {
                '"' => {
                    word.has_quotes = true;
                    self.read_quoted(here, &mut word.value)?;
                }
                c if c.is_whitespace() => break,
                ':' | '<' | '>' if word.name.is_none() && !word.has_quotes => {
                    word.name = Some((std::mem::take(&mut word.value), c));
                    word.value_start = self.position;
                }
                c => word.value.push(c),
            }
        }
        if word.value.is_empty() && word.name.is_none() {
            let reason = if word.has_quotes { "no text between the quotes" } else { "no word after the minus" };
            return Err(error_at(text, start, reason));
        }
        Ok(word)
    }

    /// Reads a quoted text; the opening quote is at `start`. A backslash escapes the next character.
    fn read_quoted(&mut self, start: usize, value: &mut String) -> Result<(), Error> {
        let text = self.text;
        while let Some(c) = text[self.position..].chars().next() {
            self.position += c.len_utf8();
            match c {
                '"' => return Ok(()),
                '\\' => match text[self.position..].chars().next() {
                    Some(next) => {
                        self.position += next.len_utf8();
                        value.push(next);
                    }
                    None => break,
                },
                c => value.push(c),
            }
        }
        Err(error_at(text, start, "the quotes are not closed"))
    }
}
