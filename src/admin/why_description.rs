//! The sentence that explains why a job is not running.

use std::fmt;
use std::time::SystemTime;

use super::why::Why;
use crate::clock::to_micros;

/// Longest part of an error quoted in a sentence, in characters.
const ERROR_CHARS_MAX: usize = 200;

/// The sentence of a reason, with times in a given format.
pub(super) struct Description<'d> {
    pub why: &'d Why,
    pub format_time: &'d dyn Fn(SystemTime) -> String,
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.format_time;
        let since = |ended: &Option<SystemTime>| ended.map_or(String::new(), |ended| format!(" since {}", time(ended)));
        match self.why {
            Why::NotFound => {
                f.write_str("there is no such job: it was never pushed here, or has been removed or pruned")
            }
            Why::Done { ended } => write!(f, "it is done{}", since(ended)),
            Why::Cancelled { ended } => {
                write!(f, "it was cancelled{}; retry it to start over", since(ended))
            }
            Why::Dead { ended, error } => {
                write!(f, "it is dead{}{}; retry it to start over", since(ended), error_clause(error))
            }
            Why::UniqueHolder { key, holder, error } => write!(
                f,
                "it is dead{}, and its unique key {key:?} belongs to job {holder}: retry it after that job has ended",
                error_clause(error)
            ),
            Why::Held { .. } => self.fmt_held(f),
            Why::BackingOff { due, attempts, max_attempts, error } => write!(
                f,
                "attempt {attempts} of at most {max_attempts} has failed{}; the next one is due at {}",
                error_clause(error),
                time(*due)
            ),
            Why::Suspect { due, crashes } => write!(
                f,
                "{crashes} nodes have died while they held it: it must run alone for a while, and no worker was free for that; \
                 the next attempt is due at {}",
                time(*due)
            ),
            Why::DueLater { due } => write!(f, "it is due later, at {}", time(*due)),
            Why::Moving { queue, moving } => write!(
                f,
                "its queue {queue} is moving to {}: it runs there, or here if the move is abandoned",
                moving.to
            ),
            Why::Paused { queue } => write!(f, "its queue {queue} is paused: it runs once the queue is resumed"),
            Why::NoNode { queue, due: None } => write!(f, "no node works on its queue {queue}: start a worker for it"),
            Why::NoNode { queue, due: Some(due) } => {
                write!(f, "no node works on its queue {queue}: start a worker for it; it is due at {}", time(*due))
            }
            _ => self.fmt_node(f),
        }
    }
}

fn pluralize(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns an error as part of a sentence: on one line, truncated.
fn error_clause(error: &Option<String>) -> String {
    let Some(error) = error else {
        return String::new();
    };
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = line.chars().take(ERROR_CHARS_MAX).collect();
    let ellipsis = if shown.len() < line.len() { "..." } else { "" };
    format!(" ({shown}{ellipsis})")
}

/// Formats a time in UTC, to the second.
pub(super) fn format_utc(at: SystemTime) -> String {
    let seconds = to_micros(at).div_euclid(1_000_000);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a time out of range".to_owned(), |at| at.to_string())
}

impl Description<'_> {
    /// Writes the reason of a held job; nothing for others.
    fn fmt_held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Why::Held { node, host, since, alive, cancelling, return_command, waits_for } = self.why else {
            return Ok(());
        };
        let host = host.as_deref().map_or(String::new(), |host| format!(" on {host}"));
        let running = if waits_for.is_some() { "" } else { "it is running: " };
        write!(f, "{running}node {node}{host} has held it since {}", (self.format_time)(*since))?;
        if let Some(others) = waits_for {
            let others = pluralize(*others, "other job has", "other jobs have");
            write!(f, "; several nodes died while they held it, so it may wait there until {others} ended")?;
        }
        if !alive {
            f.write_str(", but sends no heartbeats")?;
        }
        match (*cancelling, *alive) {
            (true, true) => f.write_str("; it was cancelled, and ends cancelled unless this attempt succeeds")?,
            (true, false) => f.write_str("; it was cancelled, and ends when the lease expires")?,
            (false, _) => {}
        }
        match return_command {
            _ if *alive => Ok(()),
            None if *cancelling => Ok(()),
            None => f.write_str("; other nodes of the queue take the job back when its lease expires"),
            Some(command) => write!(f, "; no live node of its queue can take the job back; to do so: {command}"),
        }
    }

    /// Describes a ready job that waits for a node: the last reasons of the list.
    fn fmt_node(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Quiet { queue, nodes: 1 } => write!(
                f,
                "the only node of queue {queue} that could run it is quiet or stopping: start another node, or run `duly nodes quiet --off --all`"
            ),
            Why::Quiet { queue, nodes } => write!(
                f,
                "all {nodes} nodes of queue {queue} that could run it are quiet or stopping: start another node, or run `duly nodes quiet --off --all`"
            ),
            Why::UnknownKind { queue, kind, nodes: 1 } => write!(
                f,
                "the only node that works on its queue {queue} has no handler for its kind {kind}: start a worker that has one"
            ),
            Why::UnknownKind { queue, kind, nodes } => write!(
                f,
                "none of the {nodes} nodes that work on its queue {queue} has a handler for its kind {kind}: start a worker that has one"
            ),
            Why::SlotsBusy { queue, nodes, running, ready } => write!(
                f,
                "all slots are busy: {} {} of queue {queue}, and {} ready",
                pluralize(*nodes as u64, "node runs", "nodes run"),
                pluralize(*running, "job", "jobs"),
                pluralize(*ready, "is", "are"),
            ),
            Why::Next { queue, ready: 1 } => {
                write!(f, "nothing blocks it: it is the only ready job of queue {queue}, so it starts next")
            }
            Why::Next { queue, ready } => write!(
                f,
                "nothing blocks it: queue {queue} has {ready} ready jobs, and it starts after those ahead of it"
            ),
            _ => Ok(()),
        }
    }
}
