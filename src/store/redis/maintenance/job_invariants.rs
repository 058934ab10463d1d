//! What is seen of one job in a queue's keys, and which rules that breaks. Pure.

use crate::clock::to_micros;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::Invariant;
use crate::store::redis::jobs::job_index::members;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;

/// How many ready lists there are.
pub(crate) const PRIORITY_LISTS: usize = 4;

/// What is written in the record of a job, as far as a rule asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) priority_list: usize,
    pub(crate) unique_key: String,
    pub(crate) is_readable: bool,
    /// Kind and tags.
    pub(crate) index_terms: String,
    /// Of its args.
    pub(crate) args_bytes: usize,
    /// How long it is kept when done.
    pub(crate) keep: i64,
    /// When it was to be due, if not at once.
    pub(crate) scheduled_due: Option<i64>,
}

impl RecordHead {
    /// From a record.
    pub(crate) fn from_record(id: JobId, record: &[u8]) -> Self {
        let line = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let lane = record.get(1).map_or(usize::MAX, |digit| usize::from(digit.wrapping_sub(b'0')));
        let text = String::from_utf8_lossy(line);
        let key = text.split('\t').nth(7).unwrap_or_default().to_owned();
        // Without a word: who looks at all of them says itself what is wrong.
        let (job, due) = record::decode_quietly(id, "", record);
        let json = serde_json::from_str::<&serde_json::value::RawValue>(&job.args).is_ok();
        let readable = lane < PRIORITY_LISTS && job.kind != crate::job::UNREADABLE_KIND && json;
        let bytes = record.len().saturating_sub(line.len() + 1);
        let (words, keep) = (record::record_index_terms(record), crate::clock::micros(job.keep));
        let later = Some(due).filter(|due| *due > to_micros(job.pushed));
        RecordHead {
            priority_list: if lane < PRIORITY_LISTS { lane } else { 2 },
            unique_key: key,
            is_readable: readable,
            index_terms: words,
            args_bytes: bytes,
            keep,
            scheduled_due: later,
        }
    }
}

/// A ticket that may stand for the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedTicket {
    pub(crate) text: Vec<u8>,
    pub(crate) due: Option<i64>,
    pub(crate) is_stale: bool,
    /// How often it is in each ready list.
    pub(crate) list_counts: [usize; PRIORITY_LISTS],
}

impl ObservedTicket {
    /// How often it means the job: one mark stands for one ticket.
    fn live_count(&self) -> usize {
        self.list_counts.iter().sum::<usize>().saturating_sub(usize::from(self.is_stale))
    }
}

/// All that is seen of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedJob {
    pub(crate) head: Option<RecordHead>,
    pub(crate) meta: Option<Vec<u8>>,
    pub(crate) held: Option<Vec<u8>>,
    pub(crate) done: Option<i64>,
    pub(crate) dead: Option<i64>,
    pub(crate) is_gone: bool,
    pub(crate) tickets: Vec<ObservedTicket>,
    /// Unique keys that name it.
    pub(crate) unique_keys: Vec<String>,
    /// Numbers of its failures.
    pub(crate) failure_numbers: Vec<u32>,
    /// Something is kept of what its attempts have said.
    pub(crate) has_output: bool,
    /// Its holder has a lease.
    pub(crate) holder_has_lease: bool,
    /// By how many words of its own it is found, and where it is found besides.
    pub(crate) index_hits: usize,
    pub(crate) unexpected_members: Vec<Vec<u8>>,
}

impl ObservedJob {
    pub(crate) fn ticket_mut(&mut self, text: &[u8]) -> &mut ObservedTicket {
        let at = self.tickets.iter().position(|ticket| ticket.text == text).unwrap_or_else(|| {
            self.tickets.push(ObservedTicket { text: text.to_vec(), ..ObservedTicket::default() });
            self.tickets.len() - 1
        });
        &mut self.tickets[at]
    }

    /// A member of the index names it. What it is must have been seen before.
    pub(crate) fn add_index_member(&mut self, id: JobId, member: Vec<u8>) {
        if self.expected_members(id).contains(&member) {
            self.index_hits += 1;
        } else if !self.unexpected_members.contains(&member) {
            self.unexpected_members.push(member);
        }
    }

    /// Where it must stand in the index.
    fn expected_members(&self, id: JobId) -> Vec<Vec<u8>> {
        let Some(head) = &self.head else {
            return Vec::new();
        };
        let dues = self.tickets.iter().filter_map(|ticket| ticket.due);
        let mut all: Vec<_> = dues.flat_map(|due| members::scheduled(id.as_bytes(), &head.index_terms, due)).collect();
        if let (Some(_), Some(meta)) = (self.dead, &self.meta) {
            all.extend(members::dead(id.as_bytes(), &head.index_terms, meta));
        }
        // A tag may be said twice.
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How often it stands where: ready, scheduled, held, done, dead.
    fn state_counts(&self) -> [(&'static str, usize); 5] {
        [
            ("ready", self.tickets.iter().map(ObservedTicket::live_count).sum()),
            ("scheduled", self.tickets.iter().filter(|ticket| ticket.due.is_some()).count()),
            ("running", usize::from(self.held.is_some())),
            ("done", usize::from(self.done.is_some())),
            ("dead", usize::from(self.dead.is_some())),
        ]
    }

    fn describe_states(&self) -> String {
        let at: Vec<&str> =
            self.state_counts().iter().flat_map(|(name, times)| std::iter::repeat_n(*name, *times)).collect();
        if at.is_empty() { "none".to_owned() } else { at.join(", ") }
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.done.is_none() && self.dead.is_none()
    }

    /// Where it should be, if it has to be put into one place: where it can still run, rather than where it has ended.
    pub(crate) fn repair_target(&self) -> (&'static str, i64) {
        let held = self.held.is_some() && self.holder_has_lease && self.has_valid_held_flag();
        let due = self.tickets.iter().find_map(|ticket| ticket.due);
        match (&self.head, due, self.dead, self.done) {
            (None, ..) => ("none", 0),
            _ if held => ("held", 0),
            _ if self.held.is_some() || self.tickets.iter().any(|ticket| ticket.live_count() > 0) => ("ready", 0),
            (_, Some(due), ..) => ("due", due),
            (_, None, Some(until), _) => ("dead", until),
            (_, None, None, Some(until)) => ("done", until),
            // It was nowhere: not before its time, if that is known. One that is past comes with the next claim.
            (_, None, None, None) => self.recorded_due().map_or(("ready", 0), |due| ("due", due)),
        }
    }

    /// When it is due by what is written of it, if that was not at once.
    fn recorded_due(&self) -> Option<i64> {
        let again = self.meta.as_deref().and_then(JobMeta::decode).map(|meta| meta.due).filter(|due| *due > 0);
        again.or(self.head.as_ref()?.scheduled_due)
    }

    fn has_valid_held_flag(&self) -> bool {
        let Some((head, held)) = self.head.as_ref().zip(self.held.as_ref()) else {
            return false;
        };
        let digit = if self.meta.is_some() { b'a' } else { b'0' };
        held.len() == 65 && held.last() == Some(&(digit + head.priority_list as u8))
    }

    /// Which rules are broken, and how.
    pub(crate) fn check(&self, id: JobId) -> Vec<(Invariant, String)> {
        let mut broken = Vec::new();
        let Some(head) = &self.head else {
            self.check_orphan(&mut broken);
            return broken;
        };
        if !head.is_readable {
            broken
                .push((Invariant::Readable, "has a record that cannot be read, or is not what was written".to_owned()));
        }
        if self.state_counts().iter().map(|(_, times)| times).sum::<usize>() != 1 {
            broken.push((Invariant::OneState, format!("must be in one state, and is in: {}", self.describe_states())));
        } else {
            self.check_state(id, head, &mut broken);
        }
        self.check_index(id, head, &mut broken);
        if self.meta.as_deref().is_some_and(|meta| JobMeta::decode(meta).is_none()) {
            broken.push((Invariant::AttemptRecords, "has a note of what has changed that cannot be read".to_owned()));
        }
        if self.meta.is_none() && !self.failure_numbers.is_empty() {
            broken.push((Invariant::AttemptRecords, "has failures, and no note of them".to_owned()));
        }
        if self.is_gone {
            broken.push((Invariant::RememberedIds, "is there, and remembered as gone".to_owned()));
        }
        let owns = !head.unique_key.is_empty() && self.is_unfinished();
        if owns && !self.unique_keys.contains(&head.unique_key) {
            broken.push((
                Invariant::UniqueKeys,
                format!("has not ended, and its unique key is not its own: {}", head.unique_key),
            ));
        }
        if let Some(key) = self.unique_keys.iter().find(|key| !owns || **key != head.unique_key) {
            broken.push((Invariant::UniqueKeys, format!("is named by a unique key that it has not: {key}")));
        }
        broken
    }

    /// It is found by its words, and by no others.
    fn check_index(&self, id: JobId, head: &RecordHead, broken: &mut Vec<(Invariant, String)>) {
        if self.index_hits != self.expected_members(id).len() {
            broken.push((Invariant::JobIndex, format!("is not found by all its words: {}", head.index_terms)));
        }
        if let Some(member) = self.unexpected_members.first() {
            broken.push((
                Invariant::JobIndex,
                format!("is found by a word that it has not: {}", describe_member(member)),
            ));
        }
        let noted = self.meta.as_deref().and_then(|meta| meta.get(88..));
        if self.dead.is_some() && noted != Some(head.index_terms.as_bytes()) {
            broken.push((Invariant::JobIndex, "is dead, and its words are not noted".to_owned()));
        }
    }

    /// Something is left of a job that is not there.
    fn check_orphan(&self, broken: &mut Vec<(Invariant, String)>) {
        if self.describe_states() != "none" {
            broken.push((Invariant::HasRecord, format!("is {}, and has no record", self.describe_states())));
        }
        if self.meta.is_some() || !self.failure_numbers.is_empty() {
            broken.push((Invariant::AttemptRecords, "is not there, and something is noted of its failures".to_owned()));
        }
        if self.has_output {
            broken.push((
                Invariant::AttemptRecords,
                "is not there, and something is kept of what it has said".to_owned(),
            ));
        }
        if let Some(key) = self.unique_keys.first() {
            broken.push((Invariant::UniqueKeys, format!("is not there, and named by the unique key {key}")));
        }
        if let Some(member) = self.unexpected_members.first() {
            broken
                .push((Invariant::JobIndex, format!("is not there, and found by a word: {}", describe_member(member))));
        }
        self.check_stale_tickets(broken);
    }

    /// It is in one place: the right one, by the right ticket, in known hands.
    fn check_state(&self, id: JobId, head: &RecordHead, broken: &mut Vec<(Invariant, String)>) {
        let turn = self.meta.as_deref().and_then(JobMeta::decode).map(|meta| meta.ticket_number);
        let mut scheduled = id.as_bytes().to_vec();
        scheduled.push(if turn.is_some() { b'a' } else { b'0' } + head.priority_list as u8);
        scheduled.extend(turn.map_or(String::new(), |turn| turn.to_string()).as_bytes());
        let ready = if turn.is_some() { scheduled.clone() } else { id.as_bytes().to_vec() };
        scheduled.push(b' ');
        scheduled.extend(head.index_terms.as_bytes());
        for ticket in &self.tickets {
            let right = ticket.text == ready && ticket.list_counts[head.priority_list] > 0;
            if ticket.live_count() > 0 && !right {
                broken.push((Invariant::QueuePosition, "is ready by a ticket that is not its own".to_owned()));
            }
            if ticket.due.is_some() && ticket.text != scheduled {
                broken.push((Invariant::QueuePosition, "is scheduled by a ticket that is not its own".to_owned()));
            }
        }
        self.check_stale_tickets(broken);
        let Some(held) = &self.held else {
            return;
        };
        match record::decode_held(held) {
            Some((node, ..)) if !self.holder_has_lease => {
                broken.push((Invariant::Holders, format!("is held by a node that nobody knows: {node}")));
            }
            Some(_) if self.has_valid_held_flag() => {}
            _ => broken.push((Invariant::QueuePosition, "is held by a value that is not its own".to_owned())),
        }
    }

    fn check_stale_tickets(&self, broken: &mut Vec<(Invariant, String)>) {
        if self.tickets.iter().any(|ticket| ticket.is_stale && ticket.list_counts == [0; PRIORITY_LISTS]) {
            broken.push((Invariant::QueuePosition, "has left a ticket behind that is in no list".to_owned()));
        }
    }
}

/// A member of the index as people read it: state and word, and the moment it is ordered by.
fn describe_member(member: &[u8]) -> String {
    let shown = member.get(..member.len().saturating_sub(16)).unwrap_or_default();
    String::from_utf8_lossy(shown).replace('\0', " at ")
}

/// The holder that a held value names.
pub(crate) fn decode_holder(held: &[u8]) -> Option<NodeId> {
    record::decode_held(held).map(|(node, ..)| node)
}
