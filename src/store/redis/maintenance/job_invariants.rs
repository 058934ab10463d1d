//! What is seen of one job in a queue's keys, and which rules that breaks. Pure.

use crate::clock::to_micros;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::Rule;
use crate::store::redis::jobs::job_index::members;
use crate::store::redis::record;
use crate::store::redis::record::Meta;

/// How many ready lists there are.
pub(crate) const LANES: usize = 4;

/// What is written in the record of a job, as far as a rule asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) lane: usize,
    pub(crate) key: String,
    pub(crate) readable: bool,
    /// Kind and tags.
    pub(crate) words: String,
    /// Of its args.
    pub(crate) bytes: usize,
    /// How long it is kept when done.
    pub(crate) keep: i64,
    /// When it was to be due, if not at once.
    pub(crate) later: Option<i64>,
}

impl Head {
    /// From a record.
    pub(crate) fn of(id: JobId, record: &[u8]) -> Self {
        let line = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let lane = record.get(1).map_or(usize::MAX, |digit| usize::from(digit.wrapping_sub(b'0')));
        let text = String::from_utf8_lossy(line);
        let key = text.split('\t').nth(7).unwrap_or_default().to_owned();
        // Without a word: who looks at all of them says itself what is wrong.
        let (job, due) = record::look_at(id, "", record);
        let json = serde_json::from_str::<&serde_json::value::RawValue>(&job.args).is_ok();
        let readable = lane < LANES && job.kind != crate::job::UNREADABLE && json;
        let bytes = record.len().saturating_sub(line.len() + 1);
        let (words, keep) = (record::words_of(record), crate::clock::micros(job.keep));
        let later = Some(due).filter(|due| *due > to_micros(job.pushed));
        Head { lane: if lane < LANES { lane } else { 2 }, key, readable, words, bytes, keep, later }
    }
}

/// A ticket that may stand for the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) text: Vec<u8>,
    pub(crate) due: Option<i64>,
    pub(crate) stale: bool,
    /// How often it is in each ready list.
    pub(crate) times: [usize; LANES],
}

impl Ticket {
    /// How often it means the job: one mark stands for one ticket.
    fn live(&self) -> usize {
        self.times.iter().sum::<usize>().saturating_sub(usize::from(self.stale))
    }
}

/// All that is seen of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) head: Option<Head>,
    pub(crate) meta: Option<Vec<u8>>,
    pub(crate) held: Option<Vec<u8>>,
    pub(crate) done: Option<i64>,
    pub(crate) dead: Option<i64>,
    pub(crate) gone: bool,
    pub(crate) tickets: Vec<Ticket>,
    /// Unique keys that name it.
    pub(crate) keys: Vec<String>,
    /// Numbers of its failures.
    pub(crate) failures: Vec<u32>,
    /// Something is kept of what its attempts have said.
    pub(crate) noted: bool,
    /// Its holder has a lease.
    pub(crate) leased: bool,
    /// By how many words of its own it is found, and where it is found besides.
    pub(crate) found: usize,
    pub(crate) strange: Vec<Vec<u8>>,
}

impl Seen {
    pub(crate) fn ticket(&mut self, text: &[u8]) -> &mut Ticket {
        let at = self.tickets.iter().position(|ticket| ticket.text == text).unwrap_or_else(|| {
            self.tickets.push(Ticket { text: text.to_vec(), ..Ticket::default() });
            self.tickets.len() - 1
        });
        &mut self.tickets[at]
    }

    /// A member of the index names it. What it is must have been seen before.
    pub(crate) fn member(&mut self, id: JobId, member: Vec<u8>) {
        if self.expected(id).contains(&member) {
            self.found += 1;
        } else if !self.strange.contains(&member) {
            self.strange.push(member);
        }
    }

    /// Where it must stand in the index.
    fn expected(&self, id: JobId) -> Vec<Vec<u8>> {
        let Some(head) = &self.head else {
            return Vec::new();
        };
        let dues = self.tickets.iter().filter_map(|ticket| ticket.due);
        let mut all: Vec<_> = dues.flat_map(|due| members::scheduled(id.as_bytes(), &head.words, due)).collect();
        if let (Some(_), Some(meta)) = (self.dead, &self.meta) {
            all.extend(members::dead(id.as_bytes(), &head.words, meta));
        }
        // A tag may be said twice.
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How often it stands where: ready, scheduled, held, done, dead.
    fn places(&self) -> [(&'static str, usize); 5] {
        [
            ("ready", self.tickets.iter().map(Ticket::live).sum()),
            ("scheduled", self.tickets.iter().filter(|ticket| ticket.due.is_some()).count()),
            ("running", usize::from(self.held.is_some())),
            ("done", usize::from(self.done.is_some())),
            ("dead", usize::from(self.dead.is_some())),
        ]
    }

    fn shown(&self) -> String {
        let at: Vec<&str> = self.places().iter().flat_map(|(name, times)| std::iter::repeat_n(*name, *times)).collect();
        if at.is_empty() { "none".to_owned() } else { at.join(", ") }
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.done.is_none() && self.dead.is_none()
    }

    /// Where it should be, if it has to be put into one place: where it can still run, rather than where it has ended.
    pub(crate) fn home(&self) -> (&'static str, i64) {
        let held = self.held.is_some() && self.leased && self.flag_fits();
        let due = self.tickets.iter().find_map(|ticket| ticket.due);
        match (&self.head, due, self.dead, self.done) {
            (None, ..) => ("none", 0),
            _ if held => ("held", 0),
            _ if self.held.is_some() || self.tickets.iter().any(|ticket| ticket.live() > 0) => ("ready", 0),
            (_, Some(due), ..) => ("due", due),
            (_, None, Some(until), _) => ("dead", until),
            (_, None, None, Some(until)) => ("done", until),
            // It was nowhere: not before its time, if that is known. One that is past comes with the next claim.
            (_, None, None, None) => self.due_by_word().map_or(("ready", 0), |due| ("due", due)),
        }
    }

    /// When it is due by what is written of it, if that was not at once.
    fn due_by_word(&self) -> Option<i64> {
        let again = self.meta.as_deref().and_then(Meta::read).map(|meta| meta.due).filter(|due| *due > 0);
        again.or(self.head.as_ref()?.later)
    }

    fn flag_fits(&self) -> bool {
        let Some((head, held)) = self.head.as_ref().zip(self.held.as_ref()) else {
            return false;
        };
        let digit = if self.meta.is_some() { b'a' } else { b'0' };
        held.len() == 65 && held.last() == Some(&(digit + head.lane as u8))
    }

    /// Which rules are broken, and how.
    pub(crate) fn judge(&self, id: JobId) -> Vec<(Rule, String)> {
        let mut broken = Vec::new();
        let Some(head) = &self.head else {
            self.judge_orphan(&mut broken);
            return broken;
        };
        if !head.readable {
            broken.push((Rule::Readable, "has a record that cannot be read, or is not what was written".to_owned()));
        }
        if self.places().iter().map(|(_, times)| times).sum::<usize>() != 1 {
            broken.push((Rule::OneState, format!("must be in one state, and is in: {}", self.shown())));
        } else {
            self.judge_place(id, head, &mut broken);
        }
        self.judge_words(id, head, &mut broken);
        if self.meta.as_deref().is_some_and(|meta| Meta::read(meta).is_none()) {
            broken.push((Rule::History, "has a note of what has changed that cannot be read".to_owned()));
        }
        if self.meta.is_none() && !self.failures.is_empty() {
            broken.push((Rule::History, "has failures, and no note of them".to_owned()));
        }
        if self.gone {
            broken.push((Rule::Gone, "is there, and remembered as gone".to_owned()));
        }
        let owns = !head.key.is_empty() && self.is_unfinished();
        if owns && !self.keys.contains(&head.key) {
            broken.push((Rule::UniqueKeys, format!("has not ended, and its unique key is not its own: {}", head.key)));
        }
        if let Some(key) = self.keys.iter().find(|key| !owns || **key != head.key) {
            broken.push((Rule::UniqueKeys, format!("is named by a unique key that it has not: {key}")));
        }
        broken
    }

    /// It is found by its words, and by no others.
    fn judge_words(&self, id: JobId, head: &Head, broken: &mut Vec<(Rule, String)>) {
        if self.found != self.expected(id).len() {
            broken.push((Rule::Words, format!("is not found by all its words: {}", head.words)));
        }
        if let Some(member) = self.strange.first() {
            broken.push((Rule::Words, format!("is found by a word that it has not: {}", word_of(member))));
        }
        let noted = self.meta.as_deref().and_then(|meta| meta.get(88..));
        if self.dead.is_some() && noted != Some(head.words.as_bytes()) {
            broken.push((Rule::Words, "is dead, and its words are not noted".to_owned()));
        }
    }

    /// Something is left of a job that is not there.
    fn judge_orphan(&self, broken: &mut Vec<(Rule, String)>) {
        if self.shown() != "none" {
            broken.push((Rule::HasBody, format!("is {}, and has no record", self.shown())));
        }
        if self.meta.is_some() || !self.failures.is_empty() {
            broken.push((Rule::History, "is not there, and something is noted of its failures".to_owned()));
        }
        if self.noted {
            broken.push((Rule::History, "is not there, and something is kept of what it has said".to_owned()));
        }
        if let Some(key) = self.keys.first() {
            broken.push((Rule::UniqueKeys, format!("is not there, and named by the unique key {key}")));
        }
        if let Some(member) = self.strange.first() {
            broken.push((Rule::Words, format!("is not there, and found by a word: {}", word_of(member))));
        }
        self.judge_stale(broken);
    }

    /// It is in one place: the right one, by the right ticket, in known hands.
    fn judge_place(&self, id: JobId, head: &Head, broken: &mut Vec<(Rule, String)>) {
        let turn = self.meta.as_deref().and_then(Meta::read).map(|meta| meta.turn);
        let mut scheduled = id.as_bytes().to_vec();
        scheduled.push(if turn.is_some() { b'a' } else { b'0' } + head.lane as u8);
        scheduled.extend(turn.map_or(String::new(), |turn| turn.to_string()).as_bytes());
        let ready = if turn.is_some() { scheduled.clone() } else { id.as_bytes().to_vec() };
        scheduled.push(b' ');
        scheduled.extend(head.words.as_bytes());
        for ticket in &self.tickets {
            let right = ticket.text == ready && ticket.times[head.lane] > 0;
            if ticket.live() > 0 && !right {
                broken.push((Rule::RightPlace, "is ready by a ticket that is not its own".to_owned()));
            }
            if ticket.due.is_some() && ticket.text != scheduled {
                broken.push((Rule::RightPlace, "is scheduled by a ticket that is not its own".to_owned()));
            }
        }
        self.judge_stale(broken);
        let Some(held) = &self.held else {
            return;
        };
        match record::read_held(held) {
            Some((node, ..)) if !self.leased => {
                broken.push((Rule::Holders, format!("is held by a node that nobody knows: {node}")));
            }
            Some(_) if self.flag_fits() => {}
            _ => broken.push((Rule::RightPlace, "is held by a value that is not its own".to_owned())),
        }
    }

    fn judge_stale(&self, broken: &mut Vec<(Rule, String)>) {
        if self.tickets.iter().any(|ticket| ticket.stale && ticket.times == [0; LANES]) {
            broken.push((Rule::RightPlace, "has left a ticket behind that is in no list".to_owned()));
        }
    }
}

/// A member of the index as people read it: state and word, and the moment it is ordered by.
fn word_of(member: &[u8]) -> String {
    let shown = member.get(..member.len().saturating_sub(16)).unwrap_or_default();
    String::from_utf8_lossy(shown).replace('\0', " at ")
}

/// The holder that a held value names.
pub(crate) fn holder(held: &[u8]) -> Option<NodeId> {
    record::read_held(held).map(|(node, ..)| node)
}
