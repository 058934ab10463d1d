//! List: jobs page by page, place by place. A job that stays where it is appears on one page at least, whatever moves meanwhile.

use super::Sidekiq;
use super::cursor::{After, Cursor, digest};
use crate::clock::Micros;
use crate::compat::sidekiq::find_job;
use crate::compat::sidekiq::find_job::{At, Found, Set};
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::{Job, Record, State};
use crate::store::{Filter, PAGE, PAGE_MAX, Page};

/// Entries looked through in one step.
const STEP: usize = 200;
/// Most entries looked through for one page: one that finds too little is short, and says where to go on.
const LOOKED_MAX: usize = 20_000;

/// The places in which jobs are, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Running,
    Ready,
    In(Set),
    Done,
}

const PLACES: [Place; 6] =
    [Place::Running, Place::Ready, Place::In(Set::Schedule), Place::In(Set::Retry), Place::In(Set::Dead), Place::Done];

impl Place {
    fn state(self) -> State {
        match self {
            Place::Running => State::Running,
            Place::Ready => State::Ready,
            Place::In(Set::Schedule | Set::Retry) => State::Scheduled,
            Place::In(Set::Dead) => State::Dead,
            Place::Done => State::Done,
        }
    }

    /// Every queue has its own.
    fn is_of_a_queue(self) -> bool {
        !matches!(self, Place::In(_))
    }
}

/// `list` of the contract.
pub(super) async fn list(store: &Sidekiq, filter: &Filter) -> Result<Page> {
    if filter.failures {
        store.known().seen.clear();
    }
    let mut page = whole(store, filter).await?;
    if !filter.failures {
        page.jobs.iter_mut().for_each(|record| record.failures.clear());
    }
    Ok(page)
}

/// A page of jobs with their failures.
async fn whole(store: &Sidekiq, filter: &Filter) -> Result<Page> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let mut at =
        filter.cursor.as_deref().map(|text| Cursor::parse(text, PLACES.len())).transpose()?.unwrap_or_default();
    let mut queues = store.queues("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    let matcher = Matcher::new(filter, store.now());
    let (mut page, mut looked) = (Page::default(), 0);
    while let Some(place) = PLACES.get(at.place).copied() {
        let wanted = filter.state.is_none_or(|only| only == place.state());
        let queue = match place.is_of_a_queue() {
            true => queues.iter().find(|queue| **queue >= at.queue).cloned(),
            false => Some(String::new()),
        };
        let Some(queue) = queue.filter(|_| wanted) else {
            at = Cursor { place: at.place + 1, ..Cursor::default() };
            continue;
        };
        if queue != at.queue {
            at = Cursor { place: at.place, after: After::Nothing, queue: queue.clone() };
        }
        if page.jobs.len() == limit || looked >= LOOKED_MAX {
            page.next = Some(at.text());
            return Ok(page);
        }
        let found = step(store, place, &mut at).await?;
        let short = found.len() < STEP;
        looked += found.len();
        let mut whole = true;
        for (found, record) in whole_of(store, place, &queue, found).await? {
            if page.jobs.len() == limit {
                whole = false;
                break;
            }
            at.after.pass(&found);
            page.looked += 1;
            if let Some(record) = record.filter(|record| matcher.is_met(record)) {
                if filter.failures {
                    see(store, &record.job, found);
                }
                page.jobs.push(record);
            }
        }
        if whole && short {
            // A name that no queue has comes right behind this one.
            at = match place.is_of_a_queue() {
                true => Cursor { place: at.place, after: After::Nothing, queue: format!("{queue}\0") },
                false => Cursor { place: at.place + 1, ..Cursor::default() },
            };
        }
    }
    Ok(page)
}

/// The next entries: fewer than [`STEP`] only where there are no more.
async fn step(store: &Sidekiq, place: Place, at: &mut Cursor) -> Result<Vec<Found>> {
    let op = "list";
    match place {
        Place::Ready => listed(store, at).await,
        Place::In(_) | Place::Done => scored(store, place, at).await,
        Place::Running => {
            let keys = store.redis.keys(&at.queue);
            let mut all = find_job::held(store, op, &keys, &find_job::holders(store, op, &keys).await?).await?;
            if let After::Held(fence, number) = at.after {
                all.retain(|one| matches!(one.at, At::Running(_, other, place) if (other.0, place) > (fence, number)));
            }
            all.truncate(STEP);
            Ok(all)
        }
    }
}

/// Ready entries behind those that were passed.
async fn listed(store: &Sidekiq, at: &mut Cursor) -> Result<Vec<Found>> {
    let mut from = 0;
    if let After::Listed(passed, known) = &at.after {
        // Mostly nothing has moved.
        let mut found = find_job::window(store, "list", &at.queue, passed - 1, STEP + 1).await?;
        if found.first().map(digest).as_ref() == known.back() {
            found.remove(0);
            return Ok(found);
        }
        from = place_of(store, &at.queue, *passed, known).await?;
        at.after = if from == 0 { After::Nothing } else { After::Listed(from, known.clone()) };
    }
    find_job::window(store, "list", &at.queue, from, STEP).await
}

/// How many entries come before the first that was not passed: those behind the last known one that is still there.
/// It has moved towards the end at which entries are claimed, or a little the other way when some were given back.
async fn place_of(
    store: &Sidekiq,
    queue: &str,
    passed: usize,
    known: &std::collections::VecDeque<String>,
) -> Result<usize> {
    let mut end = passed + STEP;
    while end > 0 && passed.saturating_sub(end) < LOOKED_MAX {
        let from = end.saturating_sub(2 * STEP);
        let found = find_job::window(store, "list", queue, from, end - from).await?;
        if let Some(last) = found.iter().rposition(|one| known.contains(&digest(one))) {
            return Ok(from + last + 1);
        }
        end = from;
    }
    Ok(0)
}

/// Entries of a sorted set behind the one that was passed last.
async fn scored(store: &Sidekiq, place: Place, at: &Cursor) -> Result<Vec<Found>> {
    let After::Scored(moment, known) = &at.after else {
        return since(store, place, &at.queue, Micros::MIN, 0).await;
    };
    let (mut offset, mut first) = (0, None);
    loop {
        let mut found = since(store, place, &at.queue, *moment, offset).await?;
        let of_that_moment = found.iter().take_while(|one| moment_of(one) <= *moment).count();
        if let Some(last) = found[..of_that_moment].iter().position(|one| digest(one) == *known) {
            // Whole steps, so that a short one means that there are no more.
            return match found.len() {
                STEP => since(store, place, &at.queue, *moment, offset + last + 1).await,
                _ => Ok(found.split_off(last + 1)),
            };
        }
        let more = of_that_moment == STEP && offset < LOOKED_MAX;
        let from_there = first.get_or_insert(found);
        if !more {
            // It is gone: others of its moment are shown again.
            return Ok(std::mem::take(from_there));
        }
        offset += STEP;
    }
}

fn moment_of(found: &Found) -> Micros {
    match found.at {
        At::Schedule(at) | At::Retry(at) | At::Dead(at) | At::Done(at) => at,
        At::Ready | At::Running(..) => Micros::MIN,
    }
}

/// Entries of a sorted set from a moment on, without the first few.
async fn since(store: &Sidekiq, place: Place, queue: &str, moment: Micros, offset: usize) -> Result<Vec<Found>> {
    match place {
        Place::In(set) => find_job::set_since(store, "list", set, moment, offset, STEP).await,
        _ => find_job::done_since(store, "list", &store.redis.keys(queue), moment, offset, STEP).await,
    }
}

/// Entries with the jobs in them, and where they were.
async fn whole_of(
    store: &Sidekiq,
    place: Place,
    queue: &str,
    found: Vec<Found>,
) -> Result<Vec<(Found, Option<Record>)>> {
    let crashes = match place {
        Place::Running | Place::Ready => {
            let keys = store.redis.keys(queue);
            find_job::crashes(store, "list", &keys, found.iter().map(|one| &one.bytes[..])).await?
        }
        Place::In(_) | Place::Done => found.iter().map(|_| None).collect(),
    };
    let whole = found.into_iter().zip(crashes).map(|(found, crash)| {
        let record = found.record(crash.as_ref());
        (found, record)
    });
    Ok(whole.collect())
}

/// Notes where an entry was: who asks for whole jobs moves them, and deletes them right after. Of two with one id and moment
/// the first is moved first.
fn see(store: &Sidekiq, job: &Job, found: Found) {
    store.known().seen.entry((job.id, job.pushed)).or_insert(found);
}
