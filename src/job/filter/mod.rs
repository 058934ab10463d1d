//! One language in which jobs are looked for, in code, on the command line, over HTTP and in the dashboard:
//! `state:dead kind:email args.to:ada error:timeout since:1h`. Pure: no clock, no store.

mod matches;
mod parse;

#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use crate::job::filter::matches::Matcher;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::clock::{from_micros, to_micros};
use crate::error::Error;
use crate::job::{Priority, State};

/// Longest filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Most conditions in one filter.
pub const FILTER_TERMS_MAX: usize = 64;

/// Which jobs are meant: those that meet all that is said here. Nothing said means all.
///
/// Parsed from text by [`str::parse`]; its [`Display`](fmt::Display) is text that parses to the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only in this state.
    pub state: Option<State>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// With all these tags.
    pub tags: Vec<String>,
    /// Only of this priority.
    pub priority: Option<Priority>,
    /// Paths into args (`to`, `user.name`, `items.0`) and what is there: a text that has this in it, or a number, true, false
    /// or null that is this. Letters count the same in either case.
    pub args: Vec<(String, String)>,
    /// With this in their last error, letters in either case.
    pub error: Option<String>,
    /// With each of these in their args or their last error, letters in either case.
    pub text: Vec<String>,
    /// Only dead ones of this group, as [`DeadGroup::id`](crate::DeadGroup::id) names it.
    pub group: Option<String>,
    /// From this moment on: what counts is when a scheduled job is due, when a done or dead one ended, when any other was pushed.
    pub since: Option<FilterTime>,
    /// Before this moment, by the same measure.
    pub until: Option<FilterTime>,
    /// And none of these.
    pub not: Vec<FilterTerm>,
    /// At most so many on a page; 0 means [`PAGE`](crate::store::PAGE).
    pub limit: usize,
    /// Go on after this page.
    pub cursor: Option<String>,
    /// With their failures, progress, log and result, which cost a look for each job that has any.
    pub with_details: bool,
}

impl Filter {
    /// Returns whether the filter reads args. A client that may not see args could learn them by such a filter.
    #[must_use]
    pub fn uses_args(&self) -> bool {
        let of_args = |term: &FilterTerm| matches!(term, FilterTerm::Args(..) | FilterTerm::Text(_));
        !self.args.is_empty() || !self.text.is_empty() || self.not.iter().any(of_args)
    }
}

/// One thing that a job must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterTerm {
    /// In this state.
    State(State),
    /// Of this queue.
    Queue(String),
    /// Of this kind.
    Kind(String),
    /// With this tag.
    Tag(String),
    /// Of this priority.
    Priority(Priority),
    /// With this at that path of its args.
    Args(String, String),
    /// With this in its last error.
    Error(String),
    /// With this in its args or its last error.
    Text(String),
}

/// A moment, said from now on or from the calendar. What is said from now on is resolved when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterTime {
    /// So long ago.
    Ago(Duration),
    /// So long from now.
    In(Duration),
    /// At this moment.
    At(SystemTime),
}

impl FilterTime {
    /// The moment that is meant, if it is now `now`.
    #[must_use]
    pub fn resolve(self, now: SystemTime) -> SystemTime {
        match self {
            FilterTime::Ago(ago) => from_micros(to_micros(now).saturating_sub(crate::clock::micros(ago))),
            FilterTime::In(ahead) => from_micros(to_micros(now).saturating_add(crate::clock::micros(ahead))),
            FilterTime::At(at) => at,
        }
    }
}

impl Filter {
    /// All jobs.
    #[must_use]
    pub fn all() -> Self {
        Filter::default()
    }

    /// The same with its moments fixed, if it is now `now`.
    #[must_use]
    pub fn resolve_times(mut self, now: SystemTime) -> Self {
        let fix = |when: FilterTime| FilterTime::At(when.resolve(now));
        self.since = self.since.map(fix);
        self.until = self.until.map(fix);
        self
    }

    /// Whether every job is meant: nothing is said but how to show them.
    #[must_use]
    pub fn is_all(&self) -> bool {
        let Filter { limit, cursor, with_details: failures, .. } = self;
        *self == Filter { limit: *limit, cursor: cursor.clone(), with_details: *failures, ..Filter::default() }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse::parse(text)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let mut word = |name: &str, value: &str| words.push(format!("{name}:{}", quote_if_needed(value)));
        if let Some(state) = self.state {
            word("state", state.as_str());
        }
        for (name, value) in [("queue", &self.queue), ("kind", &self.kind)] {
            if let Some(value) = value {
                word(name, value);
            }
        }
        self.tags.iter().for_each(|tag| word("tag", tag));
        if let Some(priority) = self.priority {
            word("priority", priority.as_str());
        }
        for (path, value) in &self.args {
            word(&format!("args.{path}"), value);
        }
        for (name, value) in [("error", &self.error), ("group", &self.group)] {
            if let Some(value) = value {
                word(name, value);
            }
        }
        for (name, when) in [("since", self.since), ("until", self.until)] {
            if let Some(when) = when {
                word(name, &when.to_string());
            }
        }
        words.extend(self.text.iter().map(|text| quote_bare_word(text)));
        words.extend(self.not.iter().map(|term| format!("-{term}")));
        f.write_str(&words.join(" "))
    }
}

impl fmt::Display for FilterTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterTerm::State(state) => write!(f, "state:{state}"),
            FilterTerm::Queue(queue) => write!(f, "queue:{}", quote_if_needed(queue)),
            FilterTerm::Kind(kind) => write!(f, "kind:{}", quote_if_needed(kind)),
            FilterTerm::Tag(tag) => write!(f, "tag:{}", quote_if_needed(tag)),
            FilterTerm::Priority(priority) => write!(f, "priority:{priority}"),
            FilterTerm::Args(path, value) => write!(f, "args.{path}:{}", quote_if_needed(value)),
            FilterTerm::Error(error) => write!(f, "error:{}", quote_if_needed(error)),
            FilterTerm::Text(text) => f.write_str(&quote_bare_word(text)),
        }
    }
}

impl fmt::Display for FilterTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterTime::Ago(ago) => f.write_str(&format_span(*ago)),
            FilterTime::In(ahead) => write!(f, "+{}", format_span(*ahead)),
            FilterTime::At(at) => {
                let at = jiff::Timestamp::from_microsecond(to_micros(*at)).unwrap_or(jiff::Timestamp::MAX);
                write!(f, "{at}")
            }
        }
    }
}

/// A duration as [`parse`] takes it: whole milliseconds, in the largest units that fit.
fn format_span(time: Duration) -> String {
    let (secs, millis) = (time.as_secs(), time.subsec_millis());
    let units = [
        (secs / 86_400, "d"),
        (secs % 86_400 / 3_600, "h"),
        (secs % 3_600 / 60, "m"),
        (secs % 60, "s"),
        (u64::from(millis), "ms"),
    ];
    let text: String =
        units.into_iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0".to_owned() } else { text }
}

/// A value in quotes where it needs them.
fn quote_if_needed(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\');
    if plain { value.to_owned() } else { quote(value) }
}

/// A word of its own in quotes where it would be taken for something else.
fn quote_bare_word(word: &str) -> String {
    let special = word.starts_with('-') || word.contains([':', '<', '>']);
    if special { quote(word) } else { quote_if_needed(word) }
}

fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests;
