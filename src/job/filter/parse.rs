//! From text to a filter. What is wrong is shown with a caret under the place.

use std::time::Duration;

use crate::error::Error;
use crate::job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, Term, When};
use crate::job::{Priority, State};

const NAMES: &str = "state, queue, kind, tag, priority, args.PATH, error, group, since, until, due<TIME, due>TIME";

/// A word of a filter: where it begins, whether it is negated, its name if it has one, its value and where that begins.
struct Word {
    at: usize,
    not: bool,
    name: Option<(String, char)>,
    value: String,
    value_at: usize,
}

pub(crate) fn parse(text: &str) -> Result<Filter, Error> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(Error::invalid("filter", format!("longer than {FILTER_BYTES_MAX} bytes")));
    }
    let mut filter = Filter::default();
    for (n, word) in (Words { text, at: 0 }).enumerate() {
        let word = word?;
        if n == FILTER_TERMS_MAX {
            return Err(wrong(text, word.at, &format!("more than {FILTER_TERMS_MAX} conditions")));
        }
        add(text, &mut filter, word)?;
    }
    Ok(filter)
}

/// Adds what one word says.
fn add(text: &str, filter: &mut Filter, word: Word) -> Result<(), Error> {
    let Word { at, not, name, value, value_at } = word;
    let Some((name, operator)) = name else {
        match not {
            true => filter.not.push(Term::Text(value)),
            false => filter.text.push(value),
        }
        return Ok(());
    };
    if operator != ':' {
        return compare(text, filter, at, not, &name, operator, &value, value_at);
    }
    if value.is_empty() && !matches!(name.as_str(), "error") && !name.starts_with("args.") {
        return Err(wrong(
            text,
            value_at,
            &format!("nothing after {name}:; write {name}:VALUE without a space between"),
        ));
    }
    let term = match name.as_str() {
        "state" => {
            let state: State = value
                .parse()
                .map_err(|_| wrong(text, value_at, "no state; write scheduled, ready, running, done or dead"))?;
            Term::State(state)
        }
        "priority" => {
            let priority: Priority =
                value.parse().map_err(|_| wrong(text, value_at, "no priority; write low, normal, high or critical"))?;
            Term::Priority(priority)
        }
        "queue" => Term::Queue(value),
        "kind" => Term::Kind(value),
        "tag" => Term::Tag(value),
        "error" => Term::Error(value),
        "group" | "since" | "until" if not => {
            return Err(wrong(text, at, &format!("{name}: cannot be negated")));
        }
        "group" => return once(text, at, &name, &mut filter.group, value),
        "since" => return once(text, at, &name, &mut filter.since, when(text, value_at, &value)?),
        "until" => return once(text, at, &name, &mut filter.until, when(text, value_at, &value)?),
        _ => match name.strip_prefix("args.") {
            Some(path) if !path.is_empty() && path.split('.').all(|step| !step.is_empty()) => {
                Term::Args(path.to_owned(), value)
            }
            Some(_) => return Err(wrong(text, at, "no path; write args.to:VALUE or args.user.name:VALUE")),
            None if name == "due" => return Err(wrong(text, at, "due is compared: write due<10m or due>1h")),
            None => {
                let mut hint = format!("{name:?} is nothing to look for; there are {NAMES}");
                hint.push_str("; a word with a colon in it goes in quotes");
                return Err(wrong(text, at, &hint));
            }
        },
    };
    match (not, term) {
        (true, term) => filter.not.push(term),
        (false, Term::State(state)) => return once(text, at, "state", &mut filter.state, state),
        (false, Term::Queue(queue)) => return once(text, at, "queue", &mut filter.queue, queue),
        (false, Term::Kind(kind)) => return once(text, at, "kind", &mut filter.kind, kind),
        (false, Term::Priority(priority)) => return once(text, at, "priority", &mut filter.priority, priority),
        (false, Term::Error(error)) => return once(text, at, "error", &mut filter.error, error),
        (false, Term::Tag(tag)) => filter.tags.push(tag),
        (false, Term::Args(path, needle)) => filter.args.push((path, needle)),
        (false, Term::Text(word)) => filter.text.push(word),
    }
    Ok(())
}

/// `due<10m`: scheduled, and due within ten minutes; `due>1h`: not before an hour from now.
#[expect(clippy::too_many_arguments, reason = "a word, taken apart")]
fn compare(
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
        return Err(wrong(text, at, "only due can be compared: due<10m, due>1h; else write NAME:VALUE"));
    }
    if filter.state.is_some_and(|state| state != State::Scheduled) {
        return Err(wrong(text, at, "due is about scheduled jobs; leave out the state, or use since: and until:"));
    }
    let moment = match when(text, value_at, value)? {
        When::Ago(ahead) => When::In(ahead),
        moment => moment,
    };
    filter.state = Some(State::Scheduled);
    match operator {
        '<' => once(text, at, "until", &mut filter.until, moment),
        _ => once(text, at, "since", &mut filter.since, moment),
    }
}

fn once<T: PartialEq>(text: &str, at: usize, name: &str, place: &mut Option<T>, value: T) -> Result<(), Error> {
    match place {
        Some(old) if *old != value => {
            Err(wrong(text, at, &format!("{name} is said twice, and a job can have only one; leave one out")))
        }
        _ => {
            *place = Some(value);
            Ok(())
        }
    }
}

/// `1h` ago, `+1h` ahead, or a moment.
fn when(text: &str, at: usize, value: &str) -> Result<When, Error> {
    let (ahead, span) = match value.strip_prefix('+') {
        Some(span) => (true, span),
        None => (false, value),
    };
    if let Ok(span) = crate::store::duration(span) {
        let span = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        return Ok(if ahead { When::In(span) } else { When::Ago(span) });
    }
    let day = |value: &str| value.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let moment = value.parse::<jiff::Timestamp>().ok().or_else(|| day(value).map(|day| day.timestamp()));
    match moment {
        Some(moment) if !ahead => {
            // Whole microseconds, as everything is kept.
            Ok(When::At(crate::clock::from_micros(moment.as_microsecond())))
        }
        _ => Err(wrong(
            text,
            at,
            "no time; write 10m (ago), +10m (from now), 2026-12-01 or 2026-12-01T09:00:00Z (UTC unless it says otherwise)",
        )),
    }
}

/// What is wrong, with the input and a caret under the place.
fn wrong(text: &str, at: usize, why: &str) -> Error {
    // Control characters would break the line that the caret stands under.
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let before = text[..at.min(text.len())].chars().count();
    Error::invalid("filter", format!("{why}\n  {plain}\n  {caret:>width$}", caret = '^', width = before + 1))
}

/// The words of a filter: parted by spaces, except in quotes.
struct Words<'t> {
    text: &'t str,
    at: usize,
}

impl Iterator for Words<'_> {
    type Item = Result<Word, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        let at = self.at;
        if at == self.text.len() {
            return None;
        }
        Some(self.word(at))
    }
}

impl Words<'_> {
    fn word(&mut self, at: usize) -> Result<Word, Error> {
        let text = self.text;
        let not = text[at..].starts_with('-');
        self.at += usize::from(not);
        let mut word = Word { at, not, name: None, value: String::new(), value_at: self.at };
        let mut quoted = false;
        while let Some(c) = text[self.at..].chars().next() {
            let here = self.at;
            self.at += c.len_utf8();
            match c {
                '"' => {
                    quoted = true;
                    self.quoted(here, &mut word.value)?;
                }
                c if c.is_whitespace() => break,
                ':' | '<' | '>' if word.name.is_none() && !quoted => {
                    word.name = Some((std::mem::take(&mut word.value), c));
                    word.value_at = self.at;
                }
                c => word.value.push(c),
            }
        }
        if word.value.is_empty() && word.name.is_none() {
            let why = if quoted { "nothing between the quotes" } else { "nothing after the minus" };
            return Err(wrong(text, at, why));
        }
        Ok(word)
    }

    /// What stands between quotes, the first of which is at `begin`; a backslash takes what follows as it is.
    fn quoted(&mut self, begin: usize, value: &mut String) -> Result<(), Error> {
        let text = self.text;
        while let Some(c) = text[self.at..].chars().next() {
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(()),
                '\\' => match text[self.at..].chars().next() {
                    Some(next) => {
                        self.at += next.len_utf8();
                        value.push(next);
                    }
                    None => break,
                },
                c => value.push(c),
            }
        }
        Err(wrong(text, begin, "these quotes are not closed"))
    }
}
