//! The observed keys of one job, and the invariants that they violate. No I/O.

use crate::clock::to_micros;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::Invariant;
use crate::store::redis::jobs::job_index::members;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;

/// Number of ready lists.
pub(crate) const PRIORITY_LISTS: usize = 4;

/// The parts of a job's record that invariants depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) priority_list: usize,
    pub(crate) unique_key: String,
    pub(crate) is_readable: bool,
    /// Kind and tags.
    pub(crate) index_terms: String,
    /// Length of its args.
    pub(crate) args_bytes: usize,
    /// How long it is kept when done.
    pub(crate) keep: i64,
    /// Its first due time, if it was not due at once.
    pub(crate) scheduled_due: Option<i64>,
}

impl RecordHead {
    /// Parses a record.
    pub(crate) fn from_record(id: JobId, record: &[u8]) -> Self {
        let line = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let priority_list = record.get(1).map_or(usize::MAX, |digit| usize::from(digit.wrapping_sub(b'0')));
        let text = String::from_utf8_lossy(line);
        let unique_key = text.split('\t').nth(7).unwrap_or_default().to_owned();
        // Without logging: the caller reports unreadable records.
        let (job, due) = record::decode_quietly(id, "", record);
        let has_json_args = serde_json::from_str::<&serde_json::value::RawValue>(&job.args).is_ok();
        let is_readable = priority_list < PRIORITY_LISTS && job.kind != crate::job::UNREADABLE_KIND && has_json_args;
        let args_bytes = record.len().saturating_sub(line.len() + 1);
        let (index_terms, keep) = (record::record_index_terms(record), crate::clock::micros(job.keep));
        let scheduled_due = Some(due).filter(|due| *due > to_micros(job.pushed));
        RecordHead {
            priority_list: if priority_list < PRIORITY_LISTS { priority_list } else { 2 },
            unique_key,
            is_readable,
            index_terms,
            args_bytes,
            keep,
            scheduled_due,
        }
    }
}

/// A ticket observed for the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedTicket {
    pub(crate) text: Vec<u8>,
    pub(crate) due: Option<i64>,
    pub(crate) is_stale: bool,
    /// How often it is in each ready list.
    pub(crate) list_counts: [usize; PRIORITY_LISTS],
}

impl ObservedTicket {
    /// Returns how often the ticket counts: one stale mark cancels one ticket.
    fn live_count(&self) -> usize {
        self.list_counts.iter().sum::<usize>().saturating_sub(usize::from(self.is_stale))
    }
}

/// Everything observed of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedJob {
    pub(crate) head: Option<RecordHead>,
    pub(crate) meta: Option<Vec<u8>>,
    pub(crate) held: Option<Vec<u8>>,
    pub(crate) done: Option<i64>,
    pub(crate) dead: Option<i64>,
    pub(crate) cancelled: Option<i64>,
    pub(crate) is_gone: bool,
    pub(crate) tickets: Vec<ObservedTicket>,
    /// Unique keys that name the job.
    pub(crate) unique_keys: Vec<String>,
    /// Numbers of its runs; 0 is the ack of a done job.
    pub(crate) run_numbers: Vec<u32>,
    /// Its attempts have stored progress, a log or a result.
    pub(crate) has_output: bool,
    /// Its holder has a lease.
    pub(crate) holder_has_lease: bool,
    /// Number of index members for its own terms, and other members that name it.
    pub(crate) index_hits: usize,
    pub(crate) unexpected_members: Vec<Vec<u8>>,
}

impl ObservedJob {
    pub(crate) fn ticket_mut(&mut self, text: &[u8]) -> &mut ObservedTicket {
        let index = self.tickets.iter().position(|ticket| ticket.text == text).unwrap_or_else(|| {
            self.tickets.push(ObservedTicket { text: text.to_vec(), ..ObservedTicket::default() });
            self.tickets.len() - 1
        });
        &mut self.tickets[index]
    }

    /// Adds an index member that names the job. Its tickets and meta must have been added before.
    pub(crate) fn add_index_member(&mut self, id: JobId, member: Vec<u8>) {
        if self.expected_members(id).contains(&member) {
            self.index_hits += 1;
        } else if !self.unexpected_members.contains(&member) {
            self.unexpected_members.push(member);
        }
    }

    /// Returns the index members that the job must have.
    fn expected_members(&self, id: JobId) -> Vec<Vec<u8>> {
        let Some(head) = &self.head else {
            return Vec::new();
        };
        let dues = self.tickets.iter().filter_map(|ticket| ticket.due);
        let mut all: Vec<_> = dues.flat_map(|due| members::scheduled(id.as_bytes(), &head.index_terms, due)).collect();
        if let (Some(_), Some(meta)) = (self.dead, &self.meta) {
            all.extend(members::dead(id.as_bytes(), &head.index_terms, meta));
        }
        // A job may have the same tag twice.
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns how often the job is in each state.
    fn state_counts(&self) -> [(&'static str, usize); 6] {
        [
            ("ready", self.tickets.iter().map(ObservedTicket::live_count).sum()),
            ("scheduled", self.tickets.iter().filter(|ticket| ticket.due.is_some()).count()),
            ("running", usize::from(self.held.is_some())),
            ("done", usize::from(self.done.is_some())),
            ("dead", usize::from(self.dead.is_some())),
            ("cancelled", usize::from(self.cancelled.is_some())),
        ]
    }

    fn describe_states(&self) -> String {
        let states: Vec<&str> =
            self.state_counts().iter().flat_map(|(name, count)| std::iter::repeat_n(*name, *count)).collect();
        if states.is_empty() { "none".to_owned() } else { states.join(", ") }
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.done.is_none() && self.dead.is_none() && self.cancelled.is_none()
    }

    /// Returns the state for a repair: one in which the job can still run is preferred to a final one.
    pub(crate) fn repair_target(&self) -> (&'static str, i64) {
        let held = self.held.is_some() && self.holder_has_lease && self.has_valid_held_flag();
        let due = self.tickets.iter().find_map(|ticket| ticket.due);
        match (&self.head, due, self.dead, self.done) {
            (None, ..) => ("none", 0),
            _ if held => ("running", 0),
            _ if self.cancelled_until().is_some() => ("cancelled", self.cancelled_until().unwrap_or_default()),
            _ if self.held.is_some() || self.tickets.iter().any(|ticket| ticket.live_count() > 0) => ("ready", 0),
            (_, Some(due), ..) => ("scheduled", due),
            (_, None, Some(until), _) => ("dead", until),
            (_, None, None, Some(until)) => ("done", until),
            // The job is in no state: it becomes due at its recorded time. If that is past, the next claim promotes it.
            (_, None, None, None) => self.recorded_due().map_or(("ready", 0), |due| ("scheduled", due)),
        }
    }

    /// Returns until when a cancelled job is kept: one that has ended, or one that was running and has a mark.
    fn cancelled_until(&self) -> Option<i64> {
        let mark = self.held.as_deref().and_then(|held| std::str::from_utf8(held.get(65..)?).ok()?.parse::<i64>().ok());
        // A fence is about the time of its claim.
        let fence = self.held.as_deref().and_then(record::decode_held).map_or(0, |(_, fence, _)| fence.0.cast_signed());
        self.cancelled.or(mark.map(|keep| fence.saturating_add(keep)))
    }

    /// Returns the due time from meta or record, if it was not at once.
    fn recorded_due(&self) -> Option<i64> {
        let rescheduled = self.meta.as_deref().and_then(JobMeta::decode).map(|meta| meta.due).filter(|due| *due > 0);
        rescheduled.or(self.head.as_ref()?.scheduled_due)
    }

    fn has_valid_held_flag(&self) -> bool {
        let Some((head, held)) = self.head.as_ref().zip(self.held.as_ref()) else {
            return false;
        };
        let digit = if self.meta.is_some() { b'a' } else { b'0' };
        // The mark of a cancel is 16 digits: how long the job is kept.
        let is_marked = held.get(65..).is_some_and(|mark| mark.len() == 16 && mark.iter().all(u8::is_ascii_digit));
        (held.len() == 65 || is_marked) && held.get(64) == Some(&(digit + head.priority_list as u8))
    }

    /// Returns the violated invariants with details.
    pub(crate) fn check(&self, id: JobId) -> Vec<(Invariant, String)> {
        let mut violations = Vec::new();
        let Some(head) = &self.head else {
            self.check_orphan(&mut violations);
            return violations;
        };
        if !head.is_readable {
            violations.push((
                Invariant::Readable,
                "has an unreadable record: unknown format or checksum mismatch".to_owned(),
            ));
        }
        if self.state_counts().iter().map(|(_, count)| count).sum::<usize>() != 1 {
            violations
                .push((Invariant::OneState, format!("must be in one state, but is in: {}", self.describe_states())));
        } else {
            self.check_state(id, head, &mut violations);
        }
        self.check_index(id, head, &mut violations);
        if self.meta.as_deref().is_some_and(|meta| JobMeta::decode(meta).is_none()) {
            violations.push((Invariant::AttemptRecords, "has unreadable attempt counters".to_owned()));
        }
        if self.meta.is_none() && self.run_numbers.iter().any(|number| *number > 0) {
            violations.push((Invariant::AttemptRecords, "has runs, but no attempt counters".to_owned()));
        }
        if self.is_gone {
            violations.push((Invariant::RememberedIds, "exists, but is remembered as removed".to_owned()));
        }
        let must_hold_key = !head.unique_key.is_empty() && self.is_unfinished();
        if must_hold_key && !self.unique_keys.contains(&head.unique_key) {
            violations.push((
                Invariant::UniqueKeys,
                format!("has not ended, but does not hold its unique key: {}", head.unique_key),
            ));
        }
        if let Some(key) = self.unique_keys.iter().find(|key| !must_hold_key || **key != head.unique_key) {
            violations.push((Invariant::UniqueKeys, format!("holds a unique key that is not its own: {key}")));
        }
        violations
    }

    /// Checks that the index has all terms of the job and no others.
    fn check_index(&self, id: JobId, head: &RecordHead, violations: &mut Vec<(Invariant, String)>) {
        if self.index_hits != self.expected_members(id).len() {
            violations.push((
                Invariant::JobIndex,
                format!("is not in the index under all of its terms: {}", head.index_terms),
            ));
        }
        if let Some(member) = self.unexpected_members.first() {
            violations.push((
                Invariant::JobIndex,
                format!("is in the index under a wrong term: {}", describe_member(member)),
            ));
        }
        let stored_terms = self.meta.as_deref().and_then(|meta| meta.get(88..));
        if self.dead.is_some() && stored_terms != Some(head.index_terms.as_bytes()) {
            violations.push((Invariant::JobIndex, "is dead, but its index terms are not stored".to_owned()));
        }
    }

    /// Checks the remains of a job without a record.
    fn check_orphan(&self, violations: &mut Vec<(Invariant, String)>) {
        if self.describe_states() != "none" {
            violations.push((Invariant::HasRecord, format!("is {}, but has no record", self.describe_states())));
        }
        if self.meta.is_some() || !self.run_numbers.is_empty() {
            violations.push((Invariant::AttemptRecords, "does not exist, but has runs or counters".to_owned()));
        }
        if self.has_output {
            violations
                .push((Invariant::AttemptRecords, "does not exist, but has progress, a log or a result".to_owned()));
        }
        if let Some(key) = self.unique_keys.first() {
            violations.push((Invariant::UniqueKeys, format!("does not exist, but holds the unique key {key}")));
        }
        if let Some(member) = self.unexpected_members.first() {
            violations.push((
                Invariant::JobIndex,
                format!("does not exist, but is in the index: {}", describe_member(member)),
            ));
        }
        self.check_stale_tickets(violations);
    }

    /// Checks a job in one state: its ticket, its list and its holder.
    fn check_state(&self, id: JobId, head: &RecordHead, violations: &mut Vec<(Invariant, String)>) {
        let ticket_number = self.meta.as_deref().and_then(JobMeta::decode).map(|meta| meta.ticket_number);
        let mut scheduled = id.as_bytes().to_vec();
        scheduled.push(if ticket_number.is_some() { b'a' } else { b'0' } + head.priority_list as u8);
        scheduled.extend(ticket_number.map_or(String::new(), |ticket_number| ticket_number.to_string()).as_bytes());
        let ready = if ticket_number.is_some() { scheduled.clone() } else { id.as_bytes().to_vec() };
        scheduled.push(b' ');
        scheduled.extend(head.index_terms.as_bytes());
        for ticket in &self.tickets {
            let is_expected = ticket.text == ready && ticket.list_counts[head.priority_list] > 0;
            if ticket.live_count() > 0 && !is_expected {
                violations
                    .push((Invariant::QueuePosition, "is ready under a wrong ticket or in a wrong list".to_owned()));
            }
            if ticket.due.is_some() && ticket.text != scheduled {
                violations.push((Invariant::QueuePosition, "is scheduled under a wrong ticket".to_owned()));
            }
        }
        self.check_stale_tickets(violations);
        let Some(held) = &self.held else {
            return;
        };
        match record::decode_held(held) {
            Some((node, ..)) if !self.holder_has_lease => {
                violations.push((Invariant::Holders, format!("is held by an unknown node: {node}")));
            }
            Some(_) if self.has_valid_held_flag() => {}
            _ => violations.push((Invariant::QueuePosition, "has a wrong held value".to_owned())),
        }
    }

    fn check_stale_tickets(&self, violations: &mut Vec<(Invariant, String)>) {
        if self.tickets.iter().any(|ticket| ticket.is_stale && ticket.list_counts == [0; PRIORITY_LISTS]) {
            violations.push((Invariant::QueuePosition, "has a stale ticket that is in no list".to_owned()));
        }
    }
}

/// Formats an index member for people: state and term, and the time that orders it.
fn describe_member(member: &[u8]) -> String {
    let text = member.get(..member.len().saturating_sub(16)).unwrap_or_default();
    String::from_utf8_lossy(text).replace('\0', " at ")
}

/// Returns the node in a held value.
pub(crate) fn decode_holder(held: &[u8]) -> Option<NodeId> {
    record::decode_held(held).map(|(node, ..)| node)
}
