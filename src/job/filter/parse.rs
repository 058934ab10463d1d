//! From text to a filter. What is wrong is shown with a caret under the place.

use std::time::Duration;

use crate::error::Error;
use crate::job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, FilterTerm, FilterTime};
use crate::job::{Priority, State};

const FIELD_NAMES: &str =
    "state, queue, kind, tag, priority, args.PATH, error, group, since, until, due<TIME, due>TIME";

/// A word of a filter: where it begins, whether it is negated, its name if it has one, its value and where that begins.
struct FilterWord {
    start: usize,
    negated: bool,
    name: Option<(String, char)>,
    value: String,
    value_start: usize,
}

pub(crate) fn parse(text: &str) -> Result<Filter, Error> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(Error::invalid("filter", format!("longer than {FILTER_BYTES_MAX} bytes")));
    }
    let mut filter = Filter::default();
    for (n, word) in (FilterWords { text, position: 0 }).enumerate() {
        let word = word?;
        if n == FILTER_TERMS_MAX {
            return Err(error_at(text, word.start, &format!("more than {FILTER_TERMS_MAX} conditions")));
        }
        add_word(text, &mut filter, word)?;
    }
    Ok(filter)
}

/// Adds what one word says.
fn add_word(text: &str, filter: &mut Filter, word: FilterWord) -> Result<(), Error> {
    let FilterWord { start: at, negated: not, name, value, value_start: value_at } = word;
    let Some((name, operator)) = name else {
        match not {
            true => filter.not.push(FilterTerm::Text(value)),
            false => filter.text.push(value),
        }
        return Ok(());
    };
    if operator != ':' {
        return add_comparison(text, filter, at, not, &name, operator, &value, value_at);
    }
    if value.is_empty() && !matches!(name.as_str(), "error") && !name.starts_with("args.") {
        return Err(error_at(
            text,
            value_at,
            &format!("nothing after {name}:; write {name}:VALUE without a space between"),
        ));
    }
    let term = match name.as_str() {
        "state" => {
            let state: State = value
                .parse()
                .map_err(|_| error_at(text, value_at, "no state; write scheduled, ready, running, done or dead"))?;
            FilterTerm::State(state)
        }
        "priority" => {
            let priority: Priority = value
                .parse()
                .map_err(|_| error_at(text, value_at, "no priority; write low, normal, high or critical"))?;
            FilterTerm::Priority(priority)
        }
        "queue" => FilterTerm::Queue(value),
        "kind" => FilterTerm::Kind(value),
        "tag" => FilterTerm::Tag(value),
        "error" => FilterTerm::Error(value),
        "group" | "since" | "until" if not => {
            return Err(error_at(text, at, &format!("{name}: cannot be negated")));
        }
        "group" => return set_once(text, at, &name, &mut filter.group, value),
        "since" => return set_once(text, at, &name, &mut filter.since, parse_filter_time(text, value_at, &value)?),
        "until" => return set_once(text, at, &name, &mut filter.until, parse_filter_time(text, value_at, &value)?),
        _ => match name.strip_prefix("args.") {
            Some(path) if !path.is_empty() && path.split('.').all(|step| !step.is_empty()) => {
                FilterTerm::Args(path.to_owned(), value)
            }
            Some(_) => return Err(error_at(text, at, "no path; write args.to:VALUE or args.user.name:VALUE")),
            None if name == "due" => return Err(error_at(text, at, "due is compared: write due<10m or due>1h")),
            None => {
                let mut hint = format!("{name:?} is nothing to look for; there are {FIELD_NAMES}");
                hint.push_str("; a word with a colon in it goes in quotes");
                return Err(error_at(text, at, &hint));
            }
        },
    };
    match (not, term) {
        (true, term) => filter.not.push(term),
        (false, FilterTerm::State(state)) => return set_once(text, at, "state", &mut filter.state, state),
        (false, FilterTerm::Queue(queue)) => return set_once(text, at, "queue", &mut filter.queue, queue),
        (false, FilterTerm::Kind(kind)) => return set_once(text, at, "kind", &mut filter.kind, kind),
        (false, FilterTerm::Priority(priority)) => {
            return set_once(text, at, "priority", &mut filter.priority, priority);
        }
        (false, FilterTerm::Error(error)) => return set_once(text, at, "error", &mut filter.error, error),
        (false, FilterTerm::Tag(tag)) => filter.tags.push(tag),
        (false, FilterTerm::Args(path, needle)) => filter.args.push((path, needle)),
        (false, FilterTerm::Text(word)) => filter.text.push(word),
    }
    Ok(())
}

/// `due<10m`: scheduled, and due within ten minutes; `due>1h`: not before an hour from now.
#[expect(clippy::too_many_arguments, reason = "a word, taken apart")]
fn add_comparison(
    text: &str,
    filter: &mut Filter,
    at: usize,
    not: bool,
    name: &str,
    operator: char,
    value: &str,
    value_at: usize,
) -> Result<(), Error> {
    if name != "due" || not {
        return Err(error_at(text, at, "only due can be compared: due<10m, due>1h; else write NAME:VALUE"));
    }
    if filter.state.is_some_and(|state| state != State::Scheduled) {
        return Err(error_at(text, at, "due is about scheduled jobs; leave out the state, or use since: and until:"));
    }
    let moment = match parse_filter_time(text, value_at, value)? {
        FilterTime::Ago(ahead) => FilterTime::In(ahead),
        moment => moment,
    };
    filter.state = Some(State::Scheduled);
    match operator {
        '<' => set_once(text, at, "until", &mut filter.until, moment),
        _ => set_once(text, at, "since", &mut filter.since, moment),
    }
}

fn set_once<T: PartialEq>(text: &str, at: usize, name: &str, place: &mut Option<T>, value: T) -> Result<(), Error> {
    match place {
        Some(old) if *old != value => {
            Err(error_at(text, at, &format!("{name} is said twice, and a job can have only one; leave one out")))
        }
        _ => {
            *place = Some(value);
            Ok(())
        }
    }
}

/// `1h` ago, `+1h` ahead, or a moment.
fn parse_filter_time(text: &str, at: usize, value: &str) -> Result<FilterTime, Error> {
    let (ahead, span) = match value.strip_prefix('+') {
        Some(span) => (true, span),
        None => (false, value),
    };
    if let Ok(span) = crate::store::parse_duration(span) {
        let span = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        return Ok(if ahead { FilterTime::In(span) } else { FilterTime::Ago(span) });
    }
    let day = |value: &str| value.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let moment = value.parse::<jiff::Timestamp>().ok().or_else(|| day(value).map(|day| day.timestamp()));
    match moment {
        Some(moment) if !ahead => {
            // Whole microseconds, as everything is kept.
            Ok(FilterTime::At(crate::clock::from_micros(moment.as_microsecond())))
        }
        _ => Err(error_at(
            text,
            at,
            "no time; write 10m (ago), +10m (from now), 2026-12-01 or 2026-12-01T09:00:00Z (UTC unless it says otherwise)",
        )),
    }
}

/// What is wrong, with the input and a caret under the place.
fn error_at(text: &str, at: usize, why: &str) -> Error {
    // Control characters would break the line that the caret stands under.
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let before = text[..at.min(text.len())].chars().count();
    Error::invalid("filter", format!("{why}\n  {plain}\n  {caret:>width$}", caret = '^', width = before + 1))
}

/// The words of a filter: parted by spaces, except in quotes.
struct FilterWords<'t> {
    text: &'t str,
    position: usize,
}

impl Iterator for FilterWords<'_> {
    type Item = Result<FilterWord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.text[self.position..];
        self.position += rest.len() - rest.trim_start().len();
        let at = self.position;
        if at == self.text.len() {
            return None;
        }
        Some(self.read_word(at))
    }
}

impl FilterWords<'_> {
    fn read_word(&mut self, at: usize) -> Result<FilterWord, Error> {
        let text = self.text;
        let not = text[at..].starts_with('-');
        self.position += usize::from(not);
        let mut word =
            FilterWord { start: at, negated: not, name: None, value: String::new(), value_start: self.position };
        let mut quoted = false;
        while let Some(c) = text[self.position..].chars().next() {
            let here = self.position;
            self.position += c.len_utf8();
            match c {
                '"' => {
                    quoted = true;
                    self.read_quoted(here, &mut word.value)?;
                }
                c if c.is_whitespace() => break,
                ':' | '<' | '>' if word.name.is_none() && !quoted => {
                    word.name = Some((std::mem::take(&mut word.value), c));
                    word.value_start = self.position;
                }
                c => word.value.push(c),
            }
        }
        if word.value.is_empty() && word.name.is_none() {
            let why = if quoted { "nothing between the quotes" } else { "nothing after the minus" };
            return Err(error_at(text, at, why));
        }
        Ok(word)
    }

    /// What stands between quotes, the first of which is at `begin`; a backslash takes what follows as it is.
    fn read_quoted(&mut self, begin: usize, value: &mut String) -> Result<(), Error> {
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
        Err(error_at(text, begin, "these quotes are not closed"))
    }
}
