//! List: jobs page by page, place by place. What is claimed while somebody turns pages moves the rest up: a list is a look at
//! what there is, not an account.

use super::Sidekiq;
use super::find::{self, Found, Set};
use crate::error::{Error, Result};
use crate::filter::Matcher;
use crate::job::{JobId, Record, State};
use crate::store::{Filter, MOVE_MAX, PAGE, PAGE_MAX, Page};

/// Entries looked through in one step.
const STEP: usize = 200;
/// Most entries looked through for one page: one that finds too little is short, and says where to go on.
const LOOKED_MAX: usize = 20_000;
/// Entries of a moving queue whose place is remembered for those who delete them.
const SEEN_MAX: usize = 2 * MOVE_MAX;

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

/// Where a page ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Which of the places.
    place: usize,
    /// How many entries there were looked at.
    passed: usize,
    /// In which queue, where each has its own.
    queue: String,
}

/// `list` of the contract.
pub(super) async fn list(store: &Sidekiq, filter: &Filter) -> Result<Page> {
    let mut page = whole(store, filter).await?;
    if !filter.failures {
        page.jobs.iter_mut().for_each(|record| record.failures.clear());
    }
    Ok(page)
}

/// A page of jobs with their failures.
async fn whole(store: &Sidekiq, filter: &Filter) -> Result<Page> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let mut at = filter.cursor.as_deref().map(Cursor::parse).transpose()?.unwrap_or_default();
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
            at = Cursor { place: at.place, passed: 0, queue: queue.clone() };
        }
        if page.jobs.len() == limit || looked >= LOOKED_MAX {
            page.next = Some(at.text());
            return Ok(page);
        }
        let found = step(store, place, &at).await?;
        let short = found.len() < STEP;
        looked += found.len();
        let mut whole = true;
        for (found, record) in whole_of(store, place, &queue, found).await? {
            if page.jobs.len() == limit {
                whole = false;
                break;
            }
            at.passed += 1;
            page.looked += 1;
            if let Some(record) = record.filter(|record| matcher.is_met(record)) {
                if filter.failures {
                    see(store, record.job.id, found);
                }
                page.jobs.push(record);
            }
        }
        if whole && short {
            // A name that no queue has comes right behind this one.
            at = match place.is_of_a_queue() {
                true => Cursor { place: at.place, passed: 0, queue: format!("{queue}\0") },
                false => Cursor { place: at.place + 1, ..Cursor::default() },
            };
        }
    }
    Ok(page)
}

async fn step(store: &Sidekiq, place: Place, at: &Cursor) -> Result<Vec<Found>> {
    let op = "list";
    match place {
        Place::Ready => find::window(store, op, &at.queue, at.passed, STEP).await,
        Place::In(set) => find::page(store, op, set, at.passed, STEP).await,
        Place::Done => find::done_page(store, op, &store.redis.keys(&at.queue), at.passed, STEP).await,
        Place::Running => {
            let keys = store.redis.keys(&at.queue);
            let all = find::held(store, op, &keys, &find::holders(store, op, &keys).await?).await?;
            Ok(all.into_iter().skip(at.passed).take(STEP).collect())
        }
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
            find::crashes(store, "list", &keys, found.iter().map(|one| &one.bytes[..])).await?
        }
        Place::In(_) | Place::Done => found.iter().map(|_| None).collect(),
    };
    let whole = found.into_iter().zip(crashes).map(|(found, crash)| {
        let record = found.record(crash.as_ref());
        (found, record)
    });
    Ok(whole.collect())
}

/// Notes where an entry was: who asks for whole jobs moves them, and deletes them right after.
fn see(store: &Sidekiq, id: JobId, found: Found) {
    let mut known = store.known();
    if known.seen.len() >= SEEN_MAX {
        known.seen.clear();
    }
    known.seen.insert(id, found);
}

impl Cursor {
    fn text(&self) -> String {
        format!("{}.{}.{}", self.place, self.passed, self.queue)
    }

    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("cursor", "not one that a list has given");
        let [place, passed, queue] = text.splitn(3, '.').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        let cursor = Cursor {
            place: place.parse().map_err(|_| wrong())?,
            passed: passed.parse().map_err(|_| wrong())?,
            queue: queue.to_owned(),
        };
        if cursor.place >= PLACES.len() || cursor.passed > i32::MAX as usize {
            return Err(wrong());
        }
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cursor_parses_or_is_refused(text in ".*") {
            let _ = Cursor::parse(&text);
        }

        #[test]
        fn cursors_survive_their_text(place in 0usize..6, passed in 0usize..1_000_000, queue in "[a-z.:/-]{1,20}") {
            let cursor = Cursor { place, passed, queue };
            prop_assert_eq!(Cursor::parse(&cursor.text()).expect("its own text"), cursor);
        }
    }
}
