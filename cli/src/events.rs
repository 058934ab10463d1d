//! What a worker tells, as a line for people or as JSON for scripts. The demo reads the JSON back.

use duly::{Event, Held, JobId, NodeId, Outcome};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::escape::safe;
use crate::output::{CYAN, DIM, GREEN, RED, YELLOW, paint};
use crate::time;

/// So many characters at the end of an id tell jobs apart: the front of it is the time of the push.
const SHORT_ID_CHARS: usize = 8;
/// Longest error in a line for people.
const ERROR_CHARS_MAX: usize = 200;

/// One event with its moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Microseconds since 1970.
    pub(crate) at_us: i64,
    #[serde(flatten)]
    pub(crate) what: What,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum What {
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
        late_us: u64,
    },
    Done {
        id: JobId,
        kind: String,
        took_us: u64,
    },
    Retry {
        id: JobId,
        kind: String,
        took_us: u64,
        after_us: u64,
        error: String,
    },
    Buried {
        id: JobId,
        kind: String,
        took_us: u64,
        error: String,
    },
    Released {
        id: JobId,
        kind: String,
        took_us: u64,
        after_us: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
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
        again_in_us: u64,
    },
    Stopping {
        running: usize,
    },
}

impl Told {
    /// What an event says, now; `None` for events that this version does not know.
    pub(crate) fn of(event: &Event<'_>) -> Option<Told> {
        let what = match event {
            Event::Joined { node } => What::Joined { node: *node },
            Event::Started { held, late } => started(held, *late),
            Event::Settled { held, outcome, why, took } => settled(held, outcome, *why, *took),
            Event::Lost { id } => What::Lost { id: *id },
            Event::TakenBack { node, jobs } => What::TakenBack { node: *node, jobs: *jobs },
            Event::StoreFailed { error, again_in } => {
                What::StoreFailed { error: error.to_string(), again_in_us: micros(*again_in) }
            }
            Event::Stopping { running } => What::Stopping { running: *running },
            _ => return None,
        };
        Some(Told { at_us: time::micros(time::now()), what })
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let clock = paint(DIM, time::clock_of(time::from_micros(self.at_us)));
        let line = |id: &str, word: String, rest: String| format!("{clock}  {id:<8}  {word} {rest}");
        let word = |style, word: &str| paint(style, format!("{word:<9}"));
        match &self.what {
            What::Joined { node } => line("", word(CYAN, "joined"), format!("as node {node}")),
            What::Started { id, kind, attempt, max_attempts, late_us, .. } => {
                let late = time::short(Duration::from_micros(*late_us));
                line(
                    &short_id(*id),
                    word(CYAN, "started"),
                    format!("{}  attempt {attempt}/{max_attempts}  late {late}", safe(kind)),
                )
            }
            What::Done { id, kind, took_us } => {
                line(&short_id(*id), word(GREEN, "done"), format!("{}  {}", safe(kind), took(*took_us)))
            }
            What::Retry { id, kind, after_us, error, .. } => line(
                &short_id(*id),
                word(YELLOW, "retry"),
                format!("{}  in {}: {}", safe(kind), took(*after_us), brief(error)),
            ),
            What::Buried { id, kind, error, .. } => {
                line(&short_id(*id), word(RED, "buried"), format!("{}  {}", safe(kind), brief(error)))
            }
            What::Released { id, kind, took_us, after_us, why } => {
                let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
                let rest = format!("{}  after {}, again in {}{why}", safe(kind), took(*took_us), took(*after_us));
                line(&short_id(*id), word(YELLOW, "released"), rest)
            }
            What::Lost { id } => line(&short_id(*id), word(RED, "lost"), "another node has the job now".to_owned()),
            What::TakenBack { node, jobs } => {
                line("", word(YELLOW, "took back"), format!("{jobs} {} of dead node {node}", plural(*jobs)))
            }
            What::StoreFailed { error, again_in_us } => {
                line("", word(RED, "store"), format!("{}; again in {}", brief(error), took(*again_in_us)))
            }
            What::Stopping { running } => {
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

fn started(held: &Held, late: Duration) -> What {
    let job = &held.job;
    What::Started {
        id: job.id,
        kind: job.kind.clone(),
        queue: job.queue.clone(),
        attempt: held.attempt(),
        max_attempts: job.max_attempts,
        fence: held.fence.0,
        due_us: time::micros(held.due),
        late_us: micros(late),
    }
}

fn settled(held: &Held, outcome: &Outcome, why: Option<&str>, took: Duration) -> What {
    let (id, kind, took_us) = (held.job.id, held.job.kind.clone(), micros(took));
    match outcome {
        Outcome::Ack => What::Done { id, kind, took_us },
        Outcome::Retry { after, error } => {
            What::Retry { id, kind, took_us, after_us: micros(*after), error: error.clone() }
        }
        Outcome::Bury { error } => What::Buried { id, kind, took_us, error: error.clone() },
        Outcome::Release { after } => {
            What::Released { id, kind, took_us, after_us: micros(*after), why: why.map(str::to_owned) }
        }
    }
}

/// The end of an id: enough to tell jobs apart on a screen.
pub(crate) fn short_id(id: JobId) -> String {
    let text = id.to_string();
    text[text.len() - SHORT_ID_CHARS..].to_owned()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn took(us: u64) -> String {
    time::short(Duration::from_micros(us))
}

fn plural(jobs: usize) -> &'static str {
    if jobs == 1 { "job" } else { "jobs" }
}

fn brief(error: &str) -> String {
    crate::escape::cut(&safe(error.trim_end()), ERROR_CHARS_MAX)
}
