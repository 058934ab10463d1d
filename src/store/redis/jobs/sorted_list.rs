//! Sorted lists: merges the sections of all queues by time, and reads only as much of each as the page needs.
//!
//! Scheduled jobs and the job index, which has all dead jobs, have the order of the list. The sets of done and cancelled jobs
//! have that of the time until which a job is kept. A read of these yields jobs in another order, and only a bound for the
//! rest. A job is listed once no unread job can precede it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use redis::Value;

use crate::clock::{Micros, to_micros};
use crate::error::{Error, Result};
use crate::job::filter::JobOrder;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::list::{RedisListQuery, STATE_ORDER, read_keep_range};
use crate::store::redis::jobs::list_cursor::{EXACT_INTEGER_MAX, RedisListCursor};
use crate::store::{DEFAULT_PAGE_SIZE, Filter, JobPage, LIST_EXAMINED_MAX, PAGE_SIZE_MAX};

/// Number of concurrent requests.
const REQUESTS_AT_ONCE: usize = 200;
/// Most jobs that one read of a section returns.
const JOBS_PER_READ: usize = 50;
/// Fewest jobs that one read returns if not all of them match.
const FILTERED_JOBS_MIN: usize = 10;

/// The position of a job in the order: its time and its id. In descending order, both are inverted.
type SortKey = (Micros, [u8; 16]);

const FIRST_KEY: SortKey = (Micros::MIN, [0; 16]);

/// One section, and where its next read begins.
#[derive(Clone)]
struct SortedSection {
    cursor: RedisListCursor,
    state: State,
    /// The shortest and the longest time for which its jobs are kept; `None` if the section has the order of the list.
    keep_range: Option<(Micros, Micros)>,
}

/// The result of reading a part of a section.
struct SectionRead {
    jobs: Vec<(SortKey, JobRecord)>,
    scanned: u64,
    /// A bound for the rest; `None` at the end of the section.
    rest: Option<(SortKey, SortedSection)>,
}

/// An entry of the merge: a job, or the unread rest of a section, which has no job before its key.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum MergeEntry {
    Job(usize),
    Rest(usize),
}

struct SortedQuery<'q> {
    store: &'q Redis,
    query: RedisListQuery<'q>,
    order: JobOrder,
    is_descending: bool,
    /// The end of the previous page.
    after: Option<SortKey>,
}

/// Implements `JobStore::list` for a filter with an order.
pub(super) async fn list(store: &Redis, filter: &Filter, order: JobOrder) -> Result<JobPage> {
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let is_descending = order.is_descending(filter.reverse);
    let after = filter.cursor.as_deref().map(|text| parse_cursor(order, text)).transpose()?;
    let after = after.map(|key| invert(is_descending, key));
    let query = SortedQuery { store, query: RedisListQuery::new(store, filter), order, is_descending, after };
    let mut sections = query.find_sections(filter).await?;
    let (mut page, mut jobs): (JobPage, BTreeMap<usize, JobRecord>) = Default::default();
    let mut heap: BinaryHeap<Reverse<(SortKey, MergeEntry)>> = BinaryHeap::new();
    heap.extend((0..sections.len()).map(|index| Reverse((FIRST_KEY, MergeEntry::Rest(index)))));
    let (mut all_read, mut next_job) = (false, 0);
    while let Some(Reverse((key, entry))) = heap.pop() {
        let first = match entry {
            MergeEntry::Job(index) => {
                page.jobs.extend(jobs.remove(&index));
                if page.jobs.len() < limit {
                    continue;
                }
                page.next_cursor = (!heap.is_empty()).then(|| query.encode_cursor(key));
                break;
            }
            MergeEntry::Rest(_) if query.is_past_range(key.0) => continue,
            MergeEntry::Rest(_) if all_read && page.scanned >= LIST_EXAMINED_MAX as u64 => {
                page.next_cursor = Some(query.cursor_of_rest(key, page.jobs.is_empty())?);
                break;
            }
            MergeEntry::Rest(index) => index,
        };
        let mut indexes = vec![first];
        while indexes.len() < REQUESTS_AT_ONCE
            && let Some(Reverse((_, MergeEntry::Rest(index)))) = heap.peek()
        {
            indexes.push(*index);
            heap.pop();
        }
        let max = (2 * (limit - page.jobs.len()) / indexes.len()).clamp(1, JOBS_PER_READ);
        let reads = indexes.iter().map(|index| query.read_section(&sections[*index], max));
        let reads = futures_util::future::join_all(reads).await;
        for (index, read) in indexes.into_iter().zip(reads) {
            let read = read?;
            page.scanned += read.scanned;
            for (key, record) in read.jobs {
                heap.push(Reverse((key, MergeEntry::Job(next_job))));
                jobs.insert(next_job, record);
                next_job += 1;
            }
            if let Some((key, section)) = read.rest {
                sections[index] = section;
                heap.push(Reverse((key, MergeEntry::Rest(index))));
            }
        }
        all_read = heap.peek().is_none_or(|Reverse((key, _))| *key > FIRST_KEY);
    }
    Ok(page)
}

impl SortedQuery<'_> {
    /// Returns the sections of the states that have the order. If there are many, without empty ones.
    async fn find_sections(&self, filter: &Filter) -> Result<Vec<SortedSection>> {
        let mut queues = self.store.queue_names("list").await?;
        queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
        let states = self.order.states().iter().filter(|state| self.query.state.is_none_or(|only| only == **state));
        let states: Vec<State> = states.copied().collect();
        let mut sections = Vec::new();
        for queue in &queues {
            sections.extend(states.iter().map(|state| self.open_section(queue, *state)));
        }
        if sections.len() <= REQUESTS_AT_ONCE {
            return Ok(sections);
        }
        let mut found = Vec::new();
        for batch in sections.chunks(REQUESTS_AT_ONCE) {
            let sizes = batch.iter().map(|section| self.has_jobs(section));
            for (section, has_jobs) in batch.iter().zip(futures_util::future::join_all(sizes).await) {
                if has_jobs? {
                    found.push(section.clone());
                }
            }
        }
        Ok(found)
    }

    async fn has_jobs(&self, section: &SortedSection) -> Result<bool> {
        let keys = self.store.keys(&section.cursor.queue);
        let mut cmd = redis::cmd("ZCARD");
        cmd.arg(match section.state {
            State::Scheduled => &keys.scheduled,
            State::Dead => &keys.dead,
            State::Cancelled => &keys.cancelled,
            _ => &keys.done,
        });
        let size = self.store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await?;
        Ok(size != Value::Int(0))
    }

    fn open_section(&self, queue: &str, state: State) -> SortedSection {
        let state_index = STATE_ORDER.iter().position(|listed| *listed == state).unwrap_or_default();
        let mut cursor = RedisListCursor { queue: queue.to_owned(), state: state_index, ..RedisListCursor::default() };
        let after = self.after.map(|key| invert(self.is_descending, key));
        if let (true, Some((time, id))) = (self.query.uses_index(state), after) {
            (cursor.last_member, cursor.position) = (id.to_vec(), time);
        }
        let keep_range = matches!(state, State::Done | State::Cancelled).then_some((0, EXACT_INTEGER_MAX));
        SortedSection { cursor, state, keep_range }
    }

    /// Reads the next jobs of a section.
    async fn read_section(&self, section: &SortedSection, max: usize) -> Result<SectionRead> {
        let mut section = section.clone();
        let is_first = section.cursor.last_member.is_empty() && section.cursor.position == 0;
        if is_first && !self.query.uses_index(section.state) {
            if section.state == State::Done {
                let keys = self.store.keys(&section.cursor.queue);
                section.keep_range = Some(read_keep_range(self.store, &keys).await?.unwrap_or((0, EXACT_INTEGER_MAX)));
            }
            section.cursor.position = self.first_score(section.keep_range);
        }
        let max = if self.query.needs_filtering(section.state) { max.max(FILTERED_JOBS_MIN) } else { max };
        let (found, next_cursor) = self.query.read_jobs(&section.cursor, section.state, max).await?;
        let (mut jobs, scanned) = (Vec::new(), found.len() as u64);
        for record in found.into_iter().filter_map(|(record, _)| record) {
            let time = if self.order == JobOrder::Due { record.due } else { record.ended.unwrap_or(record.due) };
            let key = invert(self.is_descending, (to_micros(time), *record.job.id.as_bytes()));
            if self.after.is_none_or(|after| key > after) {
                jobs.extend(self.query.filter_job(record).map(|record| (key, record)));
            }
        }
        let rest = (next_cursor.state == section.cursor.state).then(|| {
            let key = self.rest_key(&next_cursor, section.keep_range);
            (key, SortedSection { cursor: next_cursor, ..section })
        });
        Ok(SectionRead { jobs, scanned, rest })
    }

    /// Returns the score at which the first read of a section begins; 0 for the first job.
    fn first_score(&self, keep_range: Option<(Micros, Micros)>) -> Micros {
        let (since, until) = self.query.time_range();
        let after = self.after.map(|key| invert(self.is_descending, key).0);
        let (keep_min, keep_max) = keep_range.unwrap_or_default();
        let (time, keep) = match self.is_descending {
            true => (after.into_iter().chain(until).min(), keep_max),
            false => (after.into_iter().chain(since).max(), keep_min),
        };
        time.map_or(0, |time| time.saturating_add(keep).clamp(1, EXACT_INTEGER_MAX))
    }

    /// Returns whether all jobs from this key on are outside of the requested time.
    fn is_past_range(&self, time: Micros) -> bool {
        let (since, until) = self.query.time_range();
        match self.is_descending {
            true => since.is_some_and(|since| time > -since),
            false => until.is_some_and(|until| time >= until),
        }
    }

    /// Returns a key that no job of the rest of a section precedes.
    fn rest_key(&self, next: &RedisListCursor, keep_range: Option<(Micros, Micros)>) -> SortKey {
        match (keep_range, self.is_descending) {
            (None, _) => {
                let id = next.last_member.get(..16).and_then(|id| id.try_into().ok()).unwrap_or_default();
                invert(self.is_descending, (next.position, id))
            }
            (Some((keep_min, _)), true) => (-next.position.saturating_sub(keep_min), [0; 16]),
            (Some((_, keep_max)), false) => (next.position.saturating_sub(keep_max), [0; 16]),
        }
    }

    /// Returns the cursor of a page that ends before a section was read far enough.
    fn cursor_of_rest(&self, key: SortKey, is_empty: bool) -> Result<String> {
        let start = self.after.unwrap_or(if self.is_descending { (-self.store.now(), [0; 16]) } else { FIRST_KEY });
        if is_empty && key <= start {
            let reason = format!(
                "cannot sort more than {LIST_EXAMINED_MAX} jobs that are kept for different times; add state:dead or a queue, or list them unsorted"
            );
            return Err(Error::invalid("sort", reason));
        }
        Ok(self.encode_cursor(key))
    }

    fn encode_cursor(&self, key: SortKey) -> String {
        let (time, id) = invert(self.is_descending, key);
        format!("{}.{time}.{}", self.order, JobId::from_bytes(id))
    }
}

/// Converts a time and an id to their key, and back.
fn invert(is_descending: bool, (time, id): SortKey) -> SortKey {
    if is_descending { (-time, id.map(|byte| !byte)) } else { (time, id) }
}

fn parse_cursor(order: JobOrder, text: &str) -> Result<SortKey> {
    let parse = || {
        let (time, id) = text.strip_prefix(order.as_str())?.strip_prefix('.')?.split_once('.')?;
        let time: Micros = time.parse().ok()?;
        let id: JobId = id.parse().ok()?;
        (-EXACT_INTEGER_MAX..=EXACT_INTEGER_MAX).contains(&time).then_some((time, *id.as_bytes()))
    };
    parse().ok_or_else(|| {
        Error::invalid("cursor", "is not from a list in this order; use the cursor of the previous page")
    })
}
