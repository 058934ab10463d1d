//! Formats filters as text that parses to the same filter.

use std::fmt;
use std::time::Duration;

use crate::clock::to_micros;
use crate::job::IdPart;
use crate::job::filter::{Filter, FilterTerm, FilterTime};

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.id.iter().map(|id| format!("id:{id}")).collect();
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
        for (name, time) in [("since", self.since), ("until", self.until)] {
            if let Some(time) = time {
                word(name, &time.to_string());
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
            FilterTerm::Id(id) => write!(f, "id:{id}"),
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
            FilterTime::At(time) => {
                let time = jiff::Timestamp::from_microsecond(to_micros(*time)).unwrap_or(jiff::Timestamp::MAX);
                write!(f, "{time}")
            }
        }
    }
}

/// Formats a duration as [`parse`] accepts it: whole milliseconds, in the largest units that fit.
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

/// Quotes a value if it needs quotes.
fn quote_if_needed(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\');
    if plain { value.to_owned() } else { quote(value) }
}

/// Quotes a free word if it could be taken for something else.
fn quote_bare_word(word: &str) -> String {
    let special = word.starts_with('-') || word.contains([':', '<', '>']) || IdPart::is_id_like(word);
    if special { quote(word) } else { quote_if_needed(word) }
}

fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}
