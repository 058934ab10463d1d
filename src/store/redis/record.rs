//! Encodes values as the texts that Redis stores. Servers, scripts and people can read these texts.
//!
//! A record starts with one digit for its format and one for the priority. Tab-separated fields follow, then a line
//! feed and the args verbatim. An empty field has the format's default. The last field is a checksum of
//! the id and everything else. A worker releases a job if its record has an unknown format or a checksum mismatch.

use std::time::{Duration, SystemTime};

use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::job::push::{DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT, Push};
use crate::job::{Fence, Job, JobId, JobProgress, LogLine, Priority, UNREADABLE_KIND, UniqueKey};
use crate::node::NodeId;
use crate::store::checksum::crc32;
use crate::store::open::DEFAULT_KEEP;

/// The format of all records that this version writes.
pub(super) const RECORD_FORMAT: u8 = b'1';

/// Returns the digit of a priority in records, tickets and held values.
pub(super) fn priority_digit(priority: Priority) -> u8 {
    match priority {
        Priority::Critical => b'0',
        Priority::High => b'1',
        Priority::Normal => b'2',
        Priority::Low => b'3',
    }
}

fn priority_from_digit(digit: u8) -> Priority {
    Priority::ALL.into_iter().find(|priority| self::priority_digit(*priority) == digit).unwrap_or_default()
}

/// The contents of a record.
struct RecordFields<'j> {
    id: JobId,
    priority: Priority,
    kind: &'j str,
    pushed: Micros,
    due: Micros,
    max_attempts: u32,
    timeout: Duration,
    keep: Duration,
    unique: Option<&'j str>,
    tags: &'j [String],
    traceparent: Option<&'j str>,
    args: &'j str,
}

/// Encodes a job that is pushed at about `now` and first due at `due`.
pub(super) fn encode_push(job: &Push, now: Micros, due: Micros) -> Vec<u8> {
    encode_fields(&RecordFields {
        id: job.id,
        priority: job.priority,
        kind: &job.kind,
        pushed: now,
        due,
        max_attempts: job.max_attempts,
        timeout: job.timeout,
        keep: job.keep.unwrap_or(DEFAULT_KEEP),
        unique: job.unique.as_deref(),
        tags: &job.tags,
        traceparent: job.traceparent.as_deref(),
        args: job.args.as_deref().unwrap_or("null"),
    })
}

/// Encodes a job that was pushed to another store.
pub(super) fn encode_job(job: &Job, due: Micros) -> Vec<u8> {
    encode_fields(&RecordFields {
        id: job.id,
        priority: job.priority,
        kind: &job.kind,
        pushed: to_micros(job.pushed),
        due,
        max_attempts: job.max_attempts,
        timeout: job.timeout,
        keep: job.keep,
        unique: job.unique.as_ref().map(UniqueKey::as_str),
        tags: &job.tags,
        traceparent: job.traceparent.as_deref(),
        args: &job.args,
    })
}

fn encode_fields(job: &RecordFields<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(job.args.len() + job.kind.len() + 64);
    out.extend([RECORD_FORMAT, priority_digit(job.priority)]);
    let mut field = |text: &str| {
        out.push(b'\t');
        out.extend(text.as_bytes());
    };
    let non_default = |value: i64, default: i64| if value == default { String::new() } else { value.to_string() };
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 1_000_000);
    field(job.kind);
    field(&job.pushed.to_string());
    field(&non_default(job.due, job.pushed));
    field(&non_default(job.max_attempts.into(), DEFAULT_MAX_ATTEMPTS.into()));
    field(&non_default(millis(job.timeout), millis(DEFAULT_TIMEOUT)));
    field(&non_default(millis(job.keep), millis(DEFAULT_KEEP)));
    field(job.unique.unwrap_or(""));
    field(&job.tags.join(" "));
    field(job.traceparent.unwrap_or(""));
    let checksum = crc32(&[job.id.as_bytes(), &out, job.args.as_bytes()]);
    out.extend(format!("\t{checksum:08x}").as_bytes());
    out.push(b'\n');
    out.extend(job.args.as_bytes());
    out
}

/// Decodes a job and its first due time. Logs an error if the record is unreadable.
pub(super) fn decode(id: JobId, queue: &str, record: &[u8]) -> (Job, Micros) {
    let (job, due) = decode_quietly(id, queue, record);
    if job.kind == UNREADABLE_KIND {
        tracing::error!(%id, queue, "the job's record is corrupted or was written by a newer duly; the job does not run");
    }
    (job, due)
}

/// Like [`decode`], without logging.
pub(super) fn decode_quietly(id: JobId, queue: &str, record: &[u8]) -> (Job, Micros) {
    parse(id, queue, record).unwrap_or_else(|| (unreadable_job(id, queue, record.get(1).copied().unwrap_or(b'2')), 0))
}

fn parse(id: JobId, queue: &str, record: &[u8]) -> Option<(Job, Micros)> {
    let text = std::str::from_utf8(record).ok()?;
    let (head, args) = text.split_once('\n')?;
    let mut fields = head.split('\t');
    let [RECORD_FORMAT, digit] = *fields.next()?.as_bytes() else {
        return None;
    };
    let kind = fields.next()?;
    let mut number = |default: i64| match fields.next() {
        Some("") => Some(default),
        Some(text) => text.parse::<i64>().ok(),
        None => None,
    };
    let pushed = number(0)?;
    let due = number(pushed)?;
    let max_attempts = number(DEFAULT_MAX_ATTEMPTS.into())?;
    let timeout = number(i64::try_from(DEFAULT_TIMEOUT.as_millis()).ok()?)?;
    let keep = number(i64::try_from(DEFAULT_KEEP.as_millis()).ok()?)?;
    let [unique, tags, traceparent] = [fields.next()?, fields.next()?, fields.next()?];
    let checksum = fields.next()?;
    let rest = head.get(..head.len().checked_sub(checksum.len() + 1)?)?;
    let computed = crc32(&[id.as_bytes(), rest.as_bytes(), args.as_bytes()]);
    (u32::from_str_radix(checksum, 16).ok()? == computed).then_some(())?;
    let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let job = Job {
        id,
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        args: args.to_owned(),
        priority: priority_from_digit(digit),
        pushed: from_micros(pushed),
        max_attempts: u32::try_from(max_attempts).ok()?,
        timeout: Duration::from_millis(timeout.unsigned_abs()),
        keep: Duration::from_millis(keep.unsigned_abs()),
        unique: non_empty(unique).map(UniqueKey::from_stored),
        tags: tags.split(' ').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        traceparent: non_empty(traceparent),
    };
    Some((job, due))
}

/// Builds the job of an unreadable record: the second byte is the priority in every format.
fn unreadable_job(id: JobId, queue: &str, digit: u8) -> Job {
    Job {
        id,
        queue: queue.to_owned(),
        kind: UNREADABLE_KIND.to_owned(),
        args: "null".to_owned(),
        priority: priority_from_digit(digit),
        pushed: from_micros(0),
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        timeout: DEFAULT_TIMEOUT,
        keep: DEFAULT_KEEP,
        unique: None,
        tags: Vec::new(),
        traceparent: None,
    }
}

/// The maximum of any counter; scripts count no further.
pub(super) const COUNT_MAX: u32 = u32::MAX >> 1;

/// The mutable part of a job that has failed, crashed or been rescheduled. Other jobs have no meta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobMeta {
    /// When the job is due; 0 means the due time of its record.
    pub(super) due: Micros,
    /// When this meta was written.
    pub(super) changed_at: Micros,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// Number of recorded runs ever, without the ack of a done job; the newest are kept.
    pub(super) runs: u32,
    /// Number of tickets that the job has had.
    pub(super) ticket_number: u32,
}

impl JobMeta {
    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        // A dead job has its group and index terms after the meta.
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() >= 72 && text.is_ascii())?;
        let small = |from: usize| text[from..from + 10].parse().ok();
        Some(JobMeta {
            due: text[..16].parse().ok()?,
            changed_at: text[16..32].parse().ok()?,
            attempts: small(32)?,
            crashes: small(42)?,
            runs: small(52)?,
            ticket_number: small(62)?,
        })
    }

    /// Returns the group of a dead job from its meta.
    pub(super) fn dead_group(text: &[u8]) -> Option<&str> {
        std::str::from_utf8(text.get(72..88)?).ok()
    }

    /// Encodes the whole meta as a script would.
    pub(super) fn encode(&self) -> String {
        format!("{:016}{:016}{}", self.due, self.changed_at, self.encode_counts())
    }

    /// Encodes the counters, without the times.
    pub(super) fn encode_counts(&self) -> String {
        let [attempts, crashes, runs, ticket_number] =
            [self.attempts, self.crashes, self.runs, self.ticket_number].map(|count| count.min(COUNT_MAX));
        format!("{attempts:010}{crashes:010}{runs:010}{ticket_number:010}")
    }
}

/// Encodes a ticket: id, flag, and for a job with a meta its ticket number.
/// In a ready list a job without a meta has only its id.
pub(super) fn encode_ticket(id: JobId, priority: Priority, ticket_number: Option<u32>) -> Vec<u8> {
    let mut ticket = Vec::with_capacity(18);
    ticket.extend(id.as_bytes());
    ticket.push(priority_flag(priority, ticket_number.is_some()));
    if let Some(ticket_number) = ticket_number {
        ticket.extend(ticket_number.to_string().as_bytes());
    }
    ticket
}

/// Encodes an entry of the schedule: the ticket, a space, and the job's index terms.
pub(super) fn encode_due_ticket(
    id: JobId,
    priority: Priority,
    ticket_number: Option<u32>,
    kind: &str,
    tags: &[String],
) -> Vec<u8> {
    let mut ticket = encode_ticket(id, priority, ticket_number);
    ticket.push(b' ');
    ticket.extend(index_terms(kind, tags).as_bytes());
    ticket
}

/// Returns the index terms of a job: its kind and its tags.
pub(super) fn index_terms(kind: &str, tags: &[String]) -> String {
    tags.iter().fold(kind.to_owned(), |terms, tag| terms + " " + tag)
}

/// Returns the index terms of a record, as a script would find them.
pub(super) fn record_index_terms(record: &[u8]) -> String {
    let head = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let fields: Vec<&[u8]> = head.split(|byte| *byte == b'\t').collect();
    let (Some(kind), Some(tags)) = (fields.get(1), fields.get(8)) else {
        return String::new();
    };
    let terms = if tags.is_empty() { kind.to_vec() } else { [kind, &b" "[..], tags].concat() };
    String::from_utf8_lossy(&terms).into_owned()
}

/// Returns the flag of a job: its priority digit, or the matching letter if the job has a meta.
pub(super) fn priority_flag(priority: Priority, has_meta: bool) -> u8 {
    priority_digit(priority) + if has_meta { b'a' - b'0' } else { 0 }
}

/// Decodes a ticket of a ready list: the id, and whether the job has a meta.
pub(super) fn decode_ticket(ticket: &[u8]) -> Option<(JobId, bool)> {
    let (id, rest) = ticket.split_first_chunk::<16>()?;
    Some((JobId::from_bytes(*id), rest.first().is_some_and(u8::is_ascii_lowercase)))
}

/// Encodes the entry of a held job: node, fence and flag. Padded to over 64 bytes, so that the server stores the hash
/// as a table and not as a list with linear lookups.
pub(super) fn encode_held(node: NodeId, fence: Fence, flag: u8) -> String {
    format!("{:<64}{}", format!("{node} {:016}", fence.0), char::from(flag))
}

/// Length of a held value without the mark of a cancel.
const HELD_BYTES: usize = 65;

/// Decodes the node and the fence of a held job, and whether the job has a meta.
pub(super) fn decode_held(value: &[u8]) -> Option<(NodeId, Fence, bool)> {
    let text = std::str::from_utf8(value).ok()?;
    let (node, rest) = text.split_once(' ')?;
    let has_meta = value.get(64).is_some_and(u8::is_ascii_lowercase);
    Some((node.parse().ok()?, Fence(rest.get(..16)?.parse().ok()?), has_meta))
}

/// Returns whether a held job was cancelled: its value then has a mark.
pub(super) fn is_cancelled(held: &[u8]) -> bool {
    held.len() > HELD_BYTES
}

/// Decodes the minimum and the maximum time that done jobs of a queue are kept.
pub(super) fn decode_keep_range(text: &[u8]) -> Option<(Micros, Micros)> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 32 && text.is_ascii())?;
    Some((text[..16].parse().ok()?, text[16..].parse().ok()?))
}

/// Clamps a time to the range in which scripts can do arithmetic with it.
pub(super) fn clamp_moment(at: SystemTime) -> Micros {
    to_micros(at).clamp(0, 2 * DELAY_MAX)
}

/// Encodes the progress of an attempt: time, fraction, tab, message.
pub(super) fn encode_progress(progress: &JobProgress) -> String {
    format!("{:016}{}\t{}", clamp_moment(progress.at), progress.fraction, progress.message)
}

pub(super) fn decode_progress(text: &[u8]) -> Option<JobProgress> {
    let text = String::from_utf8_lossy(text);
    let at = from_micros(text.get(..16)?.parse().ok()?);
    let (fraction, message) = text.get(16..)?.split_once('\t')?;
    Some(JobProgress::new(fraction.parse().ok()?, message, at))
}

/// Encodes a log line: time, attempt, text.
pub(super) fn encode_log_line(at: SystemTime, attempt: u32, line: &str) -> String {
    format!("{:016}{attempt:010}{line}", clamp_moment(at))
}

pub(super) fn decode_log_line(text: &[u8]) -> Option<LogLine> {
    let text = String::from_utf8_lossy(text);
    Some(LogLine {
        at: from_micros(text.get(..16)?.parse().ok()?),
        attempt: text.get(16..26)?.parse().ok()?,
        line: text.get(26..)?.to_owned(),
    })
}

/// Encodes a due time for a script as `+n`, microseconds from now.
pub(super) fn encode_delay(after: Duration) -> String {
    format!("+{}", micros(after).min(DELAY_MAX))
}

/// The maximum delay; above it a script's numbers lose microseconds.
pub(super) const DELAY_MAX: Micros = 4_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn push_of(kind: String, args: String, key: Option<String>, tags: Vec<String>) -> Push {
        let mut push = Push::with_args(kind, Ok(args)).tags(tags).keep(DEFAULT_KEEP);
        push.unique = key;
        push
    }

    proptest! {
        #[test]
        fn records_round_trip(kind in "[a-z:./_-]{1,20}", args in "\\PC{0,200}|[\\n\\t\\r ]{0,9}", key in proptest::option::of("\\PC{1,20}"),
                             tags in proptest::collection::vec("[a-z]{1,5}", 0..4), pushed in 0i64..4_000_000_000_000_000, delay in 0i64..9_999_999) {
            let push = push_of(kind, args, key, tags);
            let (decoded, due) = decode(push.id, "q", &encode_push(&push, pushed, pushed + delay));
            prop_assert_eq!(due, pushed + delay);
            prop_assert_eq!(decoded.kind, push.kind);
            prop_assert_eq!(&decoded.args, push.args.as_ref().expect("given"));
            let key = decoded.unique.map(|key| key.as_str().to_owned());
            prop_assert_eq!((key, decoded.tags), (push.unique, push.tags));
            prop_assert_eq!((decoded.max_attempts, decoded.timeout, Some(decoded.keep)), (push.max_attempts, push.timeout, push.keep));
        }

        #[test]
        fn metas_round_trip(due in 0i64..8_000_000_000_000_000, attempts in 0..=COUNT_MAX, runs in 0..=COUNT_MAX) {
            let meta = JobMeta { due, changed_at: due / 2, attempts, crashes: 7, runs, ticket_number: 0 };
            prop_assert_eq!(JobMeta::decode(meta.encode().as_bytes()), Some(meta));
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(JobId::from_name("x"), "q", &bytes);
            let _ = (decode_progress(&bytes), decode_log_line(&bytes), JobMeta::dead_group(&bytes));
            let _ = (JobMeta::decode(&bytes), decode_ticket(&bytes), decode_held(&bytes));
        }

        #[test]
        fn held_values_round_trip(fence in 0u64..9_999_999_999_999_999) {
            let node = NodeId::fresh();
            let value = encode_held(node, Fence(fence), b'2');
            prop_assert_eq!(value.len(), HELD_BYTES);
            prop_assert_eq!(decode_held(value.as_bytes()), Some((node, Fence(fence), false)));
        }
    }

    #[test]
    fn record_of_newer_format_is_unreadable() {
        let mut record = encode_push(&push_of("mail".into(), "{}".into(), None, Vec::new()), 5, 5);
        record[0] += 1;
        assert_eq!(decode(JobId::from_name("x"), "q", &record).0.kind, UNREADABLE_KIND);
    }
}
