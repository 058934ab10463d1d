//! Lists jobs page by page, section by section. A job that stays at its position appears on at least one page, even if
//! others move in the meantime.

use super::Sidekiq;
use super::cursor::{SectionPosition, SidekiqListCursor as ListCursor, entry_digest};
use crate::clock::Micros;
use crate::compat::sidekiq::find_job::{EntryPosition, JobSet, LocatedEntry};
use crate::compat::sidekiq::{counts, find_job};
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::{Job, JobRecord, State};
use crate::store::{DEFAULT_PAGE_SIZE, Filter, JobPage, PAGE_SIZE_MAX};

/// Entries read at a time.
const ENTRIES_PER_BATCH: usize = 200;
/// Most entries scanned for one page; after that the page ends early, with a cursor.
const SCANNED_MAX: usize = 20_000;

/// The sections of a list, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListSection {
    Running,
    Ready,
    Set(JobSet),
    Done,
}

const SECTIONS: [ListSection; 6] = [
    ListSection::Running,
    ListSection::Ready,
    ListSection::Set(JobSet::Schedule),
    ListSection::Set(JobSet::Retry),
    ListSection::Set(JobSet::Dead),
    ListSection::Done,
];

impl ListSection {
    fn state(self) -> State {
        match self {
            ListSection::Running => State::Running,
            ListSection::Ready => State::Ready,
            ListSection::Set(JobSet::Schedule | JobSet::Retry) => State::Scheduled,
            ListSection::Set(JobSet::Dead) => State::Dead,
            ListSection::Done => State::Done,
        }
    }

    /// Returns whether each queue has its own key for this section.
    fn is_per_queue(self) -> bool {
        !matches!(self, ListSection::Set(_))
    }
}

/// Implements `JobStore::list`.
pub(super) async fn list(store: &Sidekiq, filter: &Filter) -> Result<JobPage> {
    if filter.with_details {
        store.state().located.clear();
    }
    let mut page = list_with_failures(store, filter).await?;
    if !filter.with_details {
        page.jobs.iter_mut().for_each(|record| record.set_runs(Vec::new()));
    }
    Ok(page)
}

/// Returns a page of jobs with their failures.
async fn list_with_failures(store: &Sidekiq, filter: &Filter) -> Result<JobPage> {
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let parse = |text: &str| ListCursor::parse(text, SECTIONS.len());
    let mut cursor = filter.cursor.as_deref().map(parse).transpose()?.unwrap_or_default();
    let mut queues = store.queue_names("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    let matcher = Matcher::new(filter, store.now());
    let (mut page, mut scanned) = (JobPage::default(), 0);
    while let Some(section) = SECTIONS.get(cursor.section).copied() {
        let is_wanted = filter.state.is_none_or(|only| only == section.state());
        let queue = match section.is_per_queue() {
            true => queues.iter().find(|queue| **queue >= cursor.queue).cloned(),
            false => Some(String::new()),
        };
        let Some(queue) = queue.filter(|_| is_wanted) else {
            cursor = ListCursor { section: cursor.section + 1, ..ListCursor::default() };
            continue;
        };
        if queue != cursor.queue {
            cursor = ListCursor { section: cursor.section, queue: queue.clone(), ..ListCursor::default() };
        }
        if page.jobs.len() == limit || scanned >= SCANNED_MAX {
            page.next_cursor = Some(cursor.encode());
            return Ok(page);
        }
        let found = read_section(store, section, &mut cursor).await?;
        let is_last = found.len() < ENTRIES_PER_BATCH;
        scanned += found.len();
        let mut passed_all = true;
        for (found, record) in build_records(store, section, &queue, found).await? {
            if page.jobs.len() == limit {
                passed_all = false;
                break;
            }
            cursor.position.advance(&found);
            page.scanned += 1;
            if let Some(record) = record.filter(|record| matcher.matches(record)) {
                if filter.with_details {
                    remember_location(store, &record.job, found);
                }
                page.jobs.push(record);
            }
        }
        if passed_all && is_last {
            // `\0` makes the smallest name after this queue, which no queue has.
            cursor = match section.is_per_queue() {
                true => ListCursor { section: cursor.section, queue: format!("{queue}\0"), ..ListCursor::default() },
                false => ListCursor { section: cursor.section + 1, ..ListCursor::default() },
            };
        }
    }
    Ok(page)
}

/// Returns the next entries of a section: fewer than [`ENTRIES_PER_BATCH`] only if there are no more.
async fn read_section(store: &Sidekiq, section: ListSection, cursor: &mut ListCursor) -> Result<Vec<LocatedEntry>> {
    match section {
        ListSection::Ready => read_ready(store, cursor).await,
        ListSection::Set(_) | ListSection::Done => read_scored(store, section, cursor).await,
        ListSection::Running => {
            let keys = store.redis.keys(&cursor.queue);
            let holders = counts::read_queue(store, "list", &keys).await?.holders;
            let mut held = find_job::read_held(store, "list", &keys, &holders).await?;
            if let SectionPosition::Held(fence, locator) = cursor.position {
                let after = (fence, locator);
                held.retain(|entry| matches!(entry.position, EntryPosition::Running(_, f, l) if (f.0, l) > after));
            }
            held.truncate(ENTRIES_PER_BATCH);
            Ok(held)
        }
    }
}

/// Returns the ready entries after those that were passed.
async fn read_ready(store: &Sidekiq, cursor: &mut ListCursor) -> Result<Vec<LocatedEntry>> {
    let (mut from, queue) = (0, &cursor.queue);
    if let SectionPosition::Listed(passed, digests) = &cursor.position {
        // In the usual case, no entry has moved.
        let mut found = find_job::read_queue_page(store, "list", queue, passed - 1, ENTRIES_PER_BATCH + 1).await?;
        if found.first().map(entry_digest).as_ref() == digests.back() {
            found.remove(0);
            return Ok(found);
        }
        from = find_resume_offset(store, queue, *passed, digests).await?;
        cursor.position =
            if from == 0 { SectionPosition::Start } else { SectionPosition::Listed(from, digests.clone()) };
    }
    find_job::read_queue_page(store, "list", queue, from, ENTRIES_PER_BATCH).await
}

/// Returns the index after the last entry with a known digest, or 0 if none exists any more.
/// That entry has moved towards the end at which entries are claimed, or a little the other way if some were released.
async fn find_resume_offset(
    store: &Sidekiq,
    queue: &str,
    passed: usize,
    digests: &std::collections::VecDeque<String>,
) -> Result<usize> {
    let mut end = passed + ENTRIES_PER_BATCH;
    while end > 0 && passed.saturating_sub(end) < SCANNED_MAX {
        let from = end.saturating_sub(2 * ENTRIES_PER_BATCH);
        let found = find_job::read_queue_page(store, "list", queue, from, end - from).await?;
        if let Some(last) = found.iter().rposition(|entry| digests.contains(&entry_digest(entry))) {
            return Ok(from + last + 1);
        }
        end = from;
    }
    Ok(0)
}

/// Returns the entries of a sorted set after the last one that was passed.
async fn read_scored(store: &Sidekiq, section: ListSection, cursor: &ListCursor) -> Result<Vec<LocatedEntry>> {
    let queue = &cursor.queue;
    let SectionPosition::Scored(score, digest) = &cursor.position else {
        return read_scored_since(store, section, queue, Micros::MIN, 0).await;
    };
    let (mut offset, mut first_page) = (0, None);
    loop {
        let mut found = read_scored_since(store, section, queue, *score, offset).await?;
        let same_score = found.iter().take_while(|entry| score_of(entry) <= *score).count();
        if let Some(last) = found[..same_score].iter().position(|entry| entry_digest(entry) == *digest) {
            // Always a full page if possible: a short one means that there are no more.
            return match found.len() {
                ENTRIES_PER_BATCH => read_scored_since(store, section, queue, *score, offset + last + 1).await,
                _ => Ok(found.split_off(last + 1)),
            };
        }
        let has_more = same_score == ENTRIES_PER_BATCH && offset < SCANNED_MAX;
        let first_page = first_page.get_or_insert(found);
        if !has_more {
            // The entry is gone, so other entries with its score are shown again.
            return Ok(std::mem::take(first_page));
        }
        offset += ENTRIES_PER_BATCH;
    }
}

fn score_of(found: &LocatedEntry) -> Micros {
    match found.position {
        EntryPosition::Schedule(score)
        | EntryPosition::Retry(score)
        | EntryPosition::Dead(score)
        | EntryPosition::Done(score) => score,
        EntryPosition::Ready | EntryPosition::Running(..) | EntryPosition::Reserved(..) => Micros::MIN,
    }
}

/// Returns the entries of a sorted set with this score or more, without the first `offset`.
async fn read_scored_since(
    store: &Sidekiq,
    section: ListSection,
    queue: &str,
    score: Micros,
    offset: usize,
) -> Result<Vec<LocatedEntry>> {
    match section {
        ListSection::Set(set) => find_job::read_set_since(store, "list", set, score, offset, ENTRIES_PER_BATCH).await,
        _ => find_job::read_done_since(store, "list", &store.redis.keys(queue), score, offset, ENTRIES_PER_BATCH).await,
    }
}

/// Pairs entries with their jobs; `None` if an entry is unreadable.
async fn build_records(
    store: &Sidekiq,
    section: ListSection,
    queue: &str,
    found: Vec<LocatedEntry>,
) -> Result<Vec<(LocatedEntry, Option<JobRecord>)>> {
    let crashes = match section {
        ListSection::Running | ListSection::Ready => {
            let keys = store.redis.keys(queue);
            find_job::read_crashes(store, "list", &keys, found.iter().map(|entry| &entry.bytes[..])).await?
        }
        ListSection::Set(_) | ListSection::Done => found.iter().map(|_| None).collect(),
    };
    let records = found.into_iter().zip(crashes).map(|(found, crash)| {
        let record = found.to_record(crash.as_ref());
        (found, record)
    });
    Ok(records.collect())
}

/// Remembers the position of an entry: a transfer lists jobs with details, and deletes them right after.
/// If two entries have the same id and push time, the first is transferred first.
fn remember_location(store: &Sidekiq, job: &Job, found: LocatedEntry) {
    store.state().located.entry((job.id, job.pushed)).or_insert(found);
}
