//! List: jobs page by page, place by place. A job that stays where it is appears on one page at least, whatever moves meanwhile.

use super::Sidekiq;
use super::cursor::{SectionPosition, SidekiqListCursor, entry_digest};
use crate::clock::Micros;
use crate::compat::sidekiq::find_job;
use crate::compat::sidekiq::find_job::{EntryPosition, JobSet, LocatedEntry};
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::{Job, JobRecord, State};
use crate::store::{Filter, JobPage, PAGE_SIZE, PAGE_SIZE_MAX};

/// Entries looked through in one step.
const ENTRIES_PER_STEP: usize = 200;
/// Most entries looked through for one page: one that finds too little is short, and says where to go on.
const SCANNED_MAX: usize = 20_000;

/// The places in which jobs are, in the order of a list.
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

    /// Every queue has its own.
    fn is_per_queue(self) -> bool {
        !matches!(self, ListSection::Set(_))
    }
}

/// `list` of the contract.
pub(super) async fn list(store: &Sidekiq, filter: &Filter) -> Result<JobPage> {
    if filter.with_details {
        store.state().located.clear();
    }
    let mut page = list_with_failures(store, filter).await?;
    if !filter.with_details {
        page.jobs.iter_mut().for_each(|record| record.failures.clear());
    }
    Ok(page)
}

/// A page of jobs with their failures.
async fn list_with_failures(store: &Sidekiq, filter: &Filter) -> Result<JobPage> {
    let limit = if filter.limit == 0 { PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let mut at = filter
        .cursor
        .as_deref()
        .map(|text| SidekiqListCursor::parse(text, SECTIONS.len()))
        .transpose()?
        .unwrap_or_default();
    let mut queues = store.queue_names("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    let matcher = Matcher::new(filter, store.now());
    let (mut page, mut looked) = (JobPage::default(), 0);
    while let Some(place) = SECTIONS.get(at.section).copied() {
        let wanted = filter.state.is_none_or(|only| only == place.state());
        let queue = match place.is_per_queue() {
            true => queues.iter().find(|queue| **queue >= at.queue).cloned(),
            false => Some(String::new()),
        };
        let Some(queue) = queue.filter(|_| wanted) else {
            at = SidekiqListCursor { section: at.section + 1, ..SidekiqListCursor::default() };
            continue;
        };
        if queue != at.queue {
            at = SidekiqListCursor { section: at.section, position: SectionPosition::Start, queue: queue.clone() };
        }
        if page.jobs.len() == limit || looked >= SCANNED_MAX {
            page.next_cursor = Some(at.encode());
            return Ok(page);
        }
        let found = read_section(store, place, &mut at).await?;
        let short = found.len() < ENTRIES_PER_STEP;
        looked += found.len();
        let mut whole = true;
        for (found, record) in build_records(store, place, &queue, found).await? {
            if page.jobs.len() == limit {
                whole = false;
                break;
            }
            at.position.advance(&found);
            page.scanned += 1;
            if let Some(record) = record.filter(|record| matcher.matches(record)) {
                if filter.with_details {
                    remember_location(store, &record.job, found);
                }
                page.jobs.push(record);
            }
        }
        if whole && short {
            // A name that no queue has comes right behind this one.
            at = match place.is_per_queue() {
                true => SidekiqListCursor {
                    section: at.section,
                    position: SectionPosition::Start,
                    queue: format!("{queue}\0"),
                },
                false => SidekiqListCursor { section: at.section + 1, ..SidekiqListCursor::default() },
            };
        }
    }
    Ok(page)
}

/// The next entries: fewer than [`STEP`] only where there are no more.
async fn read_section(store: &Sidekiq, place: ListSection, at: &mut SidekiqListCursor) -> Result<Vec<LocatedEntry>> {
    let op = "list";
    match place {
        ListSection::Ready => read_ready(store, at).await,
        ListSection::Set(_) | ListSection::Done => read_scored(store, place, at).await,
        ListSection::Running => {
            let keys = store.redis.keys(&at.queue);
            let mut all =
                find_job::read_held(store, op, &keys, &find_job::read_holding_nodes(store, op, &keys).await?).await?;
            if let SectionPosition::Held(fence, number) = at.position {
                all.retain(|one| matches!(one.position, EntryPosition::Running(_, other, place) if (other.0, place) > (fence, number)));
            }
            all.truncate(ENTRIES_PER_STEP);
            Ok(all)
        }
    }
}

/// Ready entries behind those that were passed.
async fn read_ready(store: &Sidekiq, at: &mut SidekiqListCursor) -> Result<Vec<LocatedEntry>> {
    let mut from = 0;
    if let SectionPosition::Listed(passed, known) = &at.position {
        // Mostly nothing has moved.
        let mut found = find_job::read_queue_page(store, "list", &at.queue, passed - 1, ENTRIES_PER_STEP + 1).await?;
        if found.first().map(entry_digest).as_ref() == known.back() {
            found.remove(0);
            return Ok(found);
        }
        from = find_resume_offset(store, &at.queue, *passed, known).await?;
        at.position = if from == 0 { SectionPosition::Start } else { SectionPosition::Listed(from, known.clone()) };
    }
    find_job::read_queue_page(store, "list", &at.queue, from, ENTRIES_PER_STEP).await
}

/// How many entries come before the first that was not passed: those behind the last known one that is still there.
/// It has moved towards the end at which entries are claimed, or a little the other way when some were given back.
async fn find_resume_offset(
    store: &Sidekiq,
    queue: &str,
    passed: usize,
    known: &std::collections::VecDeque<String>,
) -> Result<usize> {
    let mut end = passed + ENTRIES_PER_STEP;
    while end > 0 && passed.saturating_sub(end) < SCANNED_MAX {
        let from = end.saturating_sub(2 * ENTRIES_PER_STEP);
        let found = find_job::read_queue_page(store, "list", queue, from, end - from).await?;
        if let Some(last) = found.iter().rposition(|one| known.contains(&entry_digest(one))) {
            return Ok(from + last + 1);
        }
        end = from;
    }
    Ok(0)
}

/// Entries of a sorted set behind the one that was passed last.
async fn read_scored(store: &Sidekiq, place: ListSection, at: &SidekiqListCursor) -> Result<Vec<LocatedEntry>> {
    let SectionPosition::Scored(moment, known) = &at.position else {
        return read_scored_since(store, place, &at.queue, Micros::MIN, 0).await;
    };
    let (mut offset, mut first) = (0, None);
    loop {
        let mut found = read_scored_since(store, place, &at.queue, *moment, offset).await?;
        let of_that_moment = found.iter().take_while(|one| score_of(one) <= *moment).count();
        if let Some(last) = found[..of_that_moment].iter().position(|one| entry_digest(one) == *known) {
            // Whole steps, so that a short one means that there are no more.
            return match found.len() {
                ENTRIES_PER_STEP => read_scored_since(store, place, &at.queue, *moment, offset + last + 1).await,
                _ => Ok(found.split_off(last + 1)),
            };
        }
        let more = of_that_moment == ENTRIES_PER_STEP && offset < SCANNED_MAX;
        let from_there = first.get_or_insert(found);
        if !more {
            // It is gone: others of its moment are shown again.
            return Ok(std::mem::take(from_there));
        }
        offset += ENTRIES_PER_STEP;
    }
}

fn score_of(found: &LocatedEntry) -> Micros {
    match found.position {
        EntryPosition::Schedule(at) | EntryPosition::Retry(at) | EntryPosition::Dead(at) | EntryPosition::Done(at) => {
            at
        }
        EntryPosition::Ready | EntryPosition::Running(..) => Micros::MIN,
    }
}

/// Entries of a sorted set from a moment on, without the first few.
async fn read_scored_since(
    store: &Sidekiq,
    place: ListSection,
    queue: &str,
    moment: Micros,
    offset: usize,
) -> Result<Vec<LocatedEntry>> {
    match place {
        ListSection::Set(set) => find_job::read_set_since(store, "list", set, moment, offset, ENTRIES_PER_STEP).await,
        _ => find_job::read_done_since(store, "list", &store.redis.keys(queue), moment, offset, ENTRIES_PER_STEP).await,
    }
}

/// Entries with the jobs in them, and where they were.
async fn build_records(
    store: &Sidekiq,
    place: ListSection,
    queue: &str,
    found: Vec<LocatedEntry>,
) -> Result<Vec<(LocatedEntry, Option<JobRecord>)>> {
    let crashes = match place {
        ListSection::Running | ListSection::Ready => {
            let keys = store.redis.keys(queue);
            find_job::read_crashes(store, "list", &keys, found.iter().map(|one| &one.bytes[..])).await?
        }
        ListSection::Set(_) | ListSection::Done => found.iter().map(|_| None).collect(),
    };
    let whole = found.into_iter().zip(crashes).map(|(found, crash)| {
        let record = found.to_record(crash.as_ref());
        (found, record)
    });
    Ok(whole.collect())
}

/// Notes where an entry was: who asks for whole jobs moves them, and deletes them right after. Of two with one id and moment
/// the first is moved first.
fn remember_location(store: &Sidekiq, job: &Job, found: LocatedEntry) {
    store.state().located.entry((job.id, job.pushed)).or_insert(found);
}
