//! List: jobs page by page, queue by queue in the order of their names, state by state.

use super::claim::{held_of, holding};
use super::keys::QueueKeys;
use super::link::Way;
use super::look::{At, assemble, counts_of, get_in};
use super::record::Meta;
use super::{Redis, call, reply, script};
use crate::error::{Error, Result};
use crate::job::{Record, State};
use crate::store::{Filter, PAGE, PAGE_MAX, Page};

/// Jobs looked through in one step: their args come along, and may be large.
const STEP: usize = 200;
/// Most jobs looked through for one page: one that finds too little is short, and says where to go on.
const LOOKED_MAX: usize = 10_000;
/// Jobs whose failures are asked for at a time.
const FAILED_AT_ONCE: usize = 50;
/// The order in which states are listed.
const STATES: [State; 5] = [State::Running, State::Ready, State::Scheduled, State::Dead, State::Done];

/// The largest number in a cursor: scripts could not tell larger ones apart.
const NUMBER_MAX: i64 = 1 << 53;

/// Where a page ended. Jobs that stay where they are appear once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cursor {
    queue: String,
    /// Which of the states.
    state: usize,
    /// Which of the ready lists.
    lane: usize,
    /// The last ticket or id; for running jobs the server's own cursor.
    last: Vec<u8>,
    /// Its place or score; for running jobs how many behind that cursor were shown.
    number: i64,
}

/// `list` of the contract.
pub(super) async fn list(store: &Redis, filter: &Filter) -> Result<Page> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let mut from = filter.cursor.as_deref().map(Cursor::parse).transpose()?;
    let mut queues = store.queues("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    queues.retain(|queue| from.as_ref().is_none_or(|from| from.queue <= *queue));
    let mut page = Page::default();
    let mut looked = 0;
    for queue in queues {
        let mut at = match from.take() {
            Some(from) if from.queue == queue => from,
            _ => Cursor { queue, ..Cursor::default() },
        };
        let counts = counts_of(store, &at.queue).await?;
        while let Some(state) = STATES.get(at.state) {
            if filter.state.is_some_and(|only| only != *state) || counts.of(*state) == 0 {
                at.next_state();
                continue;
            }
            if page.jobs.len() == limit || looked >= LOOKED_MAX {
                page.next = Some(at.text());
                return Ok(page);
            }
            // A filtered list looks through more than it shows.
            let most = if filter.kind.is_some() { STEP } else { STEP.min(limit - page.jobs.len()) };
            let (found, after) = step(store, &at, *state, most, filter.failures).await?;
            looked += found.len();
            let mut whole = true;
            for (record, here) in found {
                if page.jobs.len() == limit {
                    whole = false;
                    break;
                }
                at = here;
                page.jobs.extend(record.filter(|r| filter.kind.as_ref().is_none_or(|kind| *kind == r.job.kind)));
            }
            if whole {
                at = after;
            }
        }
    }
    Ok(page)
}

/// What one step found: jobs, `None` for a ticket that means nothing any more, each with the cursor behind it.
type Found = Vec<(Option<Record>, Cursor)>;

/// One step from a cursor, and the cursor behind it.
async fn step(store: &Redis, at: &Cursor, state: State, most: usize, whole: bool) -> Result<(Found, Cursor)> {
    let keys = store.keys(&at.queue);
    let (kind, set) = match state {
        State::Running => return step_running(store, &keys, at).await,
        State::Ready => ("ready", &keys.ready[at.lane]),
        State::Scheduled => ("scheduled", &keys.due),
        State::Done => ("ended", &keys.done),
        State::Dead => ("ended", &keys.dead),
    };
    let mut cmd = call(&script::PAGE, &[&keys.job, &keys.meta, set, &keys.stale]);
    cmd.arg(store.manual_now()).arg(kind).arg(&at.last[..]).arg(at.number).arg(most);
    let mut reply = store.reply("list", store.link.run("list", Way::Door, keys.slot, &script::PAGE, &cmd).await?)?;
    let (members, numbers, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    let short = members.len() < most;
    let mut found = Vec::with_capacity(members.len());
    let mut failed = Vec::new();
    for (((member, number), record), meta) in members.into_iter().zip(numbers).zip(records).zip(metas) {
        let (last, number) = (member.unwrap_or_default(), number.as_deref().map_or(0, reply::number));
        let place = match state {
            State::Scheduled => At::Scheduled(number),
            State::Done => At::Done(number),
            State::Dead => At::Dead,
            State::Ready | State::Running => At::Ready,
        };
        let id = last.get(..16).and_then(reply::id);
        if whole && meta.as_deref().and_then(Meta::read).is_some_and(|meta| meta.failures > 0) {
            failed.push(found.len());
        }
        let record = id.zip(record).map(|(id, record)| assemble(id, &at.queue, &record, meta.as_deref(), place));
        found.push((record, Cursor { last, number, ..at.clone() }));
    }
    add_failures(store, &mut found, &failed).await?;
    let mut after = found.last().map_or(at, |(_, cursor)| cursor).clone();
    if short {
        after.next_lane(state);
    }
    Ok((found, after))
}

/// Adds their failures to these of the jobs that were found.
async fn add_failures(store: &Redis, found: &mut Found, failed: &[usize]) -> Result<()> {
    for some in failed.chunks(FAILED_AT_ONCE) {
        let asks = some.iter().map(|at| async {
            match &found[*at].0 {
                Some(record) => get_in(store, "list", &record.job.queue, record.job.id).await,
                None => Ok(None),
            }
        });
        for (at, got) in some.iter().zip(futures_util::future::join_all(asks).await) {
            if let (Some(record), Some(got)) = (&mut found[*at].0, got?) {
                record.failures = got.failures;
            }
        }
    }
    Ok(())
}

async fn step_running(store: &Redis, keys: &QueueKeys, at: &Cursor) -> Result<(Found, Cursor)> {
    let here = if at.last.is_empty() { "0".to_owned() } else { String::from_utf8_lossy(&at.last).into_owned() };
    let mut reply = holding(store, "list", Way::Door, keys, "", &here).await?;
    let next = reply.text()?;
    let mut held = held_of(&mut reply, keys)?;
    held.sort_by_key(|(_, held)| held.job.id);
    let shown = usize::try_from(at.number).unwrap_or(0);
    let record = |(node, held): (crate::NodeId, crate::Held)| Record {
        job: held.job,
        state: State::Running,
        due: held.due,
        attempts: held.attempts,
        crashes: held.crashes,
        node: Some(node),
        fence: Some(held.fence),
        ended: None,
        failures: Vec::new(),
        progress: None,
        result: None,
        log: Vec::new(),
    };
    let cursor = |number: usize| Cursor { last: here.clone().into_bytes(), number: number as i64, ..at.clone() };
    let numbered = held.into_iter().enumerate().skip(shown);
    let found = numbered.map(|(n, held)| (Some(record(held)), cursor(n + 1))).collect();
    let mut after = Cursor { last: next.clone().into_bytes(), number: 0, ..at.clone() };
    if next == "0" {
        after.next_state();
    }
    Ok((found, after))
}

impl Cursor {
    fn next_state(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        *self = Cursor { queue, state: self.state + 1, ..Cursor::default() };
    }

    fn next_lane(&mut self, state: State) {
        if state != State::Ready || self.lane == 3 {
            return self.next_state();
        }
        let queue = std::mem::take(&mut self.queue);
        *self = Cursor { queue, state: self.state, lane: self.lane + 1, ..Cursor::default() };
    }

    /// Readable enough to be logged, plain enough for a URL.
    fn text(&self) -> String {
        let last: String = self.last.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{}.{}.{last}.{}", self.state, self.lane, self.number, self.queue)
    }

    fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("cursor", "not one that a list has given");
        let [state, lane, number, last, queue] = text.splitn(5, '.').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        if !last.is_ascii() || last.len() % 2 != 0 {
            return Err(wrong());
        }
        let byte = |at: usize| u8::from_str_radix(&last[at..at + 2], 16).map_err(|_| wrong());
        let cursor = Cursor {
            queue: queue.to_owned(),
            state: state.parse().map_err(|_| wrong())?,
            lane: lane.parse().map_err(|_| wrong())?,
            last: (0..last.len()).step_by(2).map(byte).collect::<Result<_>>()?,
            number: number.parse().map_err(|_| wrong())?,
        };
        if cursor.lane > 3 || cursor.queue.is_empty() || !(0..=NUMBER_MAX).contains(&cursor.number) {
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
        fn cursors_survive_their_text(queue in "[a-z.:/-]{1,20}", state in 0usize..5, lane in 0usize..4, number in 0..=NUMBER_MAX,
                                      last in proptest::collection::vec(any::<u8>(), 0..20)) {
            let cursor = Cursor { queue, state, lane, last, number };
            prop_assert_eq!(Cursor::parse(&cursor.text()).expect("its own text"), cursor);
        }
    }
}
