//! Worker events as lines for people or as JSON for scripts. The demo parses the JSON.

use duly::job::HeldJob;
use duly::worker::Event;
use duly::{JobId, NodeId, Outcome};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::escape::escape_text;
use crate::logs::{self, Level};
use crate::output::{CYAN, DIM, GREEN, RED, YELLOW, paint};
use crate::time;

/// Characters of a short id, from the end: the front encodes the time of the push and is often the same.
const SHORT_ID_CHARS: usize = 8;
/// The longest error in a line for people.
const ERROR_CHARS_MAX: usize = 200;

/// One event with its time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventRecord {
    /// Microseconds since 1970.
    pub(crate) at_us: i64,
    #[serde(flatten)]
    pub(crate) event: EventData,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum EventData {
    Joined {
        node: NodeId,
    },
    Started {
        id: JobId,
        kind: String,
        queue: String,
        attempt: u32,
        max_attempts: u32,
        fence: u64,
        due_us: i64,
        lateness_us: u64,
    },
    Done {
        id: JobId,
        kind: String,
        duration_us: u64,
    },
    Retried {
        id: JobId,
        kind: String,
        duration_us: u64,
        after_us: u64,
        error: String,
    },
    Buried {
        id: JobId,
        kind: String,
        duration_us: u64,
        error: String,
    },
    Released {
        id: JobId,
        kind: String,
        duration_us: u64,
        after_us: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The job was cancelled, and its attempt did not succeed.
    Cancelled {
        id: JobId,
        kind: String,
        duration_us: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Lost {
        id: JobId,
    },
    TakenBack {
        node: NodeId,
        jobs: usize,
    },
    StoreFailed {
        error: String,
        retry_in_us: u64,
    },
    Stopping {
        running: usize,
    },
}

impl EventRecord {
    /// Converts an event at the current time; `None` for unknown events.
    pub(crate) fn from_event(event: &Event<'_>) -> Option<EventRecord> {
        let data = match event {
            Event::Joined { node, .. } => EventData::Joined { node: *node },
            Event::Started { held, lateness, .. } => started_data(held, *lateness),
            Event::Settled { held, outcome, cancelled: true, duration, .. } => cancelled_data(held, outcome, *duration),
            Event::Settled { held, outcome, reason, duration, .. } => settled_data(held, outcome, *reason, *duration)?,
            Event::Lost { id, .. } => EventData::Lost { id: *id },
            Event::TakenBack { node, jobs, .. } => EventData::TakenBack { node: *node, jobs: *jobs },
            Event::StoreFailed { error, retry_in, .. } => {
                EventData::StoreFailed { error: error.to_string(), retry_in_us: duration_micros(*retry_in) }
            }
            Event::Stopping { running, .. } => EventData::Stopping { running: *running },
            _ => return None,
        };
        Some(EventRecord { at_us: time::to_micros(time::now()), event: data })
    }

    /// Formats one line of a JSON log, with the fields of the event.
    pub(crate) fn log_line(&self) -> String {
        let level = match &self.event {
            EventData::Retried { .. }
            | EventData::Buried { .. }
            | EventData::Lost { .. }
            | EventData::TakenBack { .. }
            | EventData::StoreFailed { .. } => Level::Warn,
            _ => Level::Info,
        };
        // Serializing our own fields cannot fail.
        let fields = match serde_json::to_value(self).unwrap_or_default() {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let name = fields.get("event").and_then(Value::as_str).unwrap_or_default().to_owned();
        logs::format_line(level, "duly::work", &name, fields)
    }

    /// Formats one line for people.
    pub(crate) fn format_line(&self) -> String {
        let clock = paint(DIM, time::format_clock_time(time::from_micros(self.at_us)));
        let line = |id: &str, word: String, rest: String| format!("{clock}  {id:<8}  {word} {rest}");
        let word = |style, word: &str| paint(style, format!("{word:<9}"));
        match &self.event {
            EventData::Joined { node } => line("", word(CYAN, "joined"), format!("as node {node}")),
            EventData::Started { id, kind, attempt, max_attempts, lateness_us, .. } => {
                let lateness = format_micros(*lateness_us);
                line(
                    &short_id(*id),
                    word(CYAN, "started"),
                    format!("{}  attempt {attempt}/{max_attempts}  late {lateness}", escape_text(kind)),
                )
            }
            EventData::Done { id, kind, duration_us } => {
                let rest = format!("{}  {}", escape_text(kind), format_micros(*duration_us));
                line(&short_id(*id), word(GREEN, "done"), rest)
            }
            EventData::Retried { id, kind, after_us, error, .. } => line(
                &short_id(*id),
                word(YELLOW, "retry"),
                format!("{}  in {}: {}", escape_text(kind), format_micros(*after_us), shorten_error(error)),
            ),
            EventData::Buried { id, kind, error, .. } => {
                line(&short_id(*id), word(RED, "buried"), format!("{}  {}", escape_text(kind), shorten_error(error)))
            }
            EventData::Cancelled { id, kind, error, .. } => {
                let error = error.as_deref().map(|error| format!("  {}", shorten_error(error))).unwrap_or_default();
                line(&short_id(*id), word(YELLOW, "cancelled"), format!("{}{error}", escape_text(kind)))
            }
            EventData::Released { id, kind, duration_us, after_us, reason } => {
                let reason = reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                let rest = format!(
                    "{}  after {}, again in {}{reason}",
                    escape_text(kind),
                    format_micros(*duration_us),
                    format_micros(*after_us)
                );
                line(&short_id(*id), word(YELLOW, "released"), rest)
            }
            EventData::Lost { id } => {
                line(&short_id(*id), word(RED, "lost"), "another node has the job now".to_owned())
            }
            EventData::TakenBack { node, jobs } => {
                line("", word(YELLOW, "took back"), format!("{jobs} {} of dead node {node}", job_noun(*jobs)))
            }
            EventData::StoreFailed { error, retry_in_us } => line(
                "",
                word(RED, "store"),
                format!("{}; again in {}", shorten_error(error), format_micros(*retry_in_us)),
            ),
            EventData::Stopping { running } => {
                let rest = if *running == 0 {
                    String::new()
                } else {
                    format!("waiting for {running} running; again to stop at once")
                };
                line("", word(YELLOW, "stopping"), rest)
            }
        }
    }
}

fn started_data(held: &HeldJob, lateness: Duration) -> EventData {
    let job = &held.job;
    EventData::Started {
        id: job.id,
        kind: job.kind.clone(),
        queue: job.queue.clone(),
        attempt: held.attempt(),
        max_attempts: job.max_attempts,
        fence: held.fence.0,
        due_us: time::to_micros(held.due),
        lateness_us: duration_micros(lateness),
    }
}

/// Returns the data of an attempt at a job that ended cancelled.
fn cancelled_data(held: &HeldJob, outcome: &Outcome, duration: Duration) -> EventData {
    let error = match outcome {
        Outcome::Retry { error, .. } | Outcome::Bury { error } => Some(error.clone()),
        _ => None,
    };
    EventData::Cancelled { id: held.job.id, kind: held.job.kind.clone(), duration_us: duration_micros(duration), error }
}

/// Returns the data of a settled attempt; `None` for unknown outcomes.
fn settled_data(held: &HeldJob, outcome: &Outcome, reason: Option<&str>, duration: Duration) -> Option<EventData> {
    let (id, kind, duration_us) = (held.job.id, held.job.kind.clone(), duration_micros(duration));
    Some(match outcome {
        Outcome::Ack => EventData::Done { id, kind, duration_us },
        Outcome::Retry { after, error } => {
            EventData::Retried { id, kind, duration_us, after_us: duration_micros(*after), error: error.clone() }
        }
        Outcome::Bury { error } => EventData::Buried { id, kind, duration_us, error: error.clone() },
        Outcome::Release { after } => EventData::Released {
            id,
            kind,
            duration_us,
            after_us: duration_micros(*after),
            reason: reason.map(str::to_owned),
        },
        _ => return None,
    })
}

/// Returns the end of an id, which is enough to distinguish jobs or nodes on a screen.
pub(crate) fn short_id(id: impl std::fmt::Display) -> String {
    let text = id.to_string();
    // An id from a server may be any text.
    text.chars().skip(text.chars().count().saturating_sub(SHORT_ID_CHARS)).collect()
}

fn duration_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn format_micros(us: u64) -> String {
    time::format_duration(Duration::from_micros(us))
}

fn job_noun(jobs: usize) -> &'static str {
    if jobs == 1 { "job" } else { "jobs" }
}

fn shorten_error(error: &str) -> String {
    crate::escape::truncate(&escape_text(error.trim_end()), ERROR_CHARS_MAX)
}
