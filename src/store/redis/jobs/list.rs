//! List: jobs page by page, queue by queue in the order of their names, state by state.

use redis::Value;

use crate::clock::{Micros, to_micros};
use crate::error::{Error, Result};
use crate::job::filter::Matcher;
use crate::job::{JobId, Record, State};
use crate::store::redis::conn::Way;
use crate::store::redis::jobs::claim::{held_of, holding};
use crate::store::redis::jobs::job_index::Words;
use crate::store::redis::jobs::query::{At, assemble, counts_of, get_in};
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::completions::ID_BYTES;
use crate::store::redis::record;
use crate::store::redis::record::Meta;
use crate::store::redis::reply::Reply;
use crate::store::redis::{Redis, reply, script};
use crate::store::{Filter, LOOKED_MAX, PAGE, PAGE_MAX, Page};

/// Jobs looked through in one step: their args come along, and may be large.
const STEP: usize = 200;
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
    /// The last ticket or id; for running jobs the ids of all behind the server's cursor that were shown.
    last: Vec<u8>,
    /// Its place or score; for running jobs the server's own cursor.
    number: i64,
}

/// `list` of the contract.
pub(crate) async fn list(store: &Redis, filter: &Filter) -> Result<Page> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let mut from = filter.cursor.as_deref().map(Cursor::parse).transpose()?;
    let mut queues = store.queues("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    queues.retain(|queue| from.as_ref().is_none_or(|from| from.queue <= *queue));
    let look = Look::new(store, filter);
    let mut page = Page::default();
    if look.group.is_some() && look.state != Some(State::Dead) {
        return Ok(page);
    }
    for queue in queues {
        let mut at = match from.take() {
            Some(from) if from.queue == queue => from,
            _ => Cursor { queue, ..Cursor::default() },
        };
        let counts = counts_of(store, &at.queue).await?;
        while let Some(state) = STATES.get(at.state) {
            if look.state.is_some_and(|only| only != *state) || counts.of(*state) == 0 {
                at.next_state();
                continue;
            }
            if *state == State::Ready && look.lane.is_some_and(|only| only != at.lane) {
                at.next_lane(*state);
                continue;
            }
            if page.jobs.len() == limit || page.looked >= LOOKED_MAX as u64 {
                page.next = Some(at.text());
                return Ok(page);
            }
            // A filtered list looks through more than it shows.
            let most = if look.is_narrow(*state) { STEP } else { STEP.min(limit - page.jobs.len()) };
            let (found, after) = look.step(&at, *state, most).await?;
            let mut whole = true;
            for (record, here) in found {
                if page.jobs.len() == limit {
                    whole = false;
                    break;
                }
                at = here;
                page.looked += 1;
                page.jobs.extend(record.and_then(|record| look.meant(record)));
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

/// What a list looks for.
struct Look<'l> {
    store: &'l Redis,
    matcher: Matcher,
    /// The only state in which there can be any.
    state: Option<State>,
    /// The only ready list in which there can be any.
    lane: Option<usize>,
    group: Option<&'l str>,
    words: Words,
    /// With their failures.
    whole: bool,
}

impl<'l> Look<'l> {
    fn new(store: &'l Redis, filter: &'l Filter) -> Self {
        // Who is in a group is said by its meta.
        let matcher = Matcher::new(&Filter { group: None, ..filter.clone() }, store.now());
        let state = if filter.group.is_some() { filter.state.or(Some(State::Dead)) } else { filter.state };
        let lane = filter.priority.map(|priority| usize::from(record::digit(priority) - b'0'));
        let (group, words) = (filter.group.as_deref(), Words::of(filter));
        Look { store, matcher, state, lane, group, words, whole: filter.failures }
    }

    /// Whether more jobs of a state are looked through than are meant.
    fn is_narrow(&self, state: State) -> bool {
        match self.words.know(state, self.matcher.range()) {
            true => self.words.are_narrow(),
            false => self.matcher.is_narrow(),
        }
    }

    /// The job, if it is meant.
    fn meant(&self, mut record: Record) -> Option<Record> {
        let meant = self.matcher.is_met(&record);
        if !self.whole {
            record.failures.clear();
        }
        meant.then_some(record)
    }

    /// One step from a cursor, and the cursor behind it.
    async fn step(&self, at: &Cursor, state: State, most: usize) -> Result<(Found, Cursor)> {
        let (mut found, mut after) = match state {
            State::Running => step_running(self.store, &self.store.keys(&at.queue), at).await?,
            _ => self.step_waiting(at, state, most).await?,
        };
        if state == State::Running && (self.whole || self.matcher.needs_error()) {
            let all: Vec<usize> = (0..found.len()).collect();
            add_all(self.store, &self.store.keys(&at.queue), &mut found, &all).await?;
        }
        let last_due = found.last().and_then(|(record, _)| record.as_ref()).map(|record| to_micros(record.due));
        let until = self.matcher.range().1;
        let goes_on = after.state == at.state;
        if state == State::Scheduled && goes_on && last_due.zip(until).is_some_and(|(due, until)| due >= until) {
            after.next_lane(state);
        }
        Ok((found, after))
    }

    async fn step_waiting(&self, at: &Cursor, state: State, most: usize) -> Result<(Found, Cursor)> {
        let (store, keys) = (self.store, self.store.keys(&at.queue));
        let kept = self.kept(&keys, state).await?;
        let mut reply = self.read(&keys, at, state, kept, most).await?;
        let (members, numbers, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        // There may be fewer of them here than there were: long ones come a few at a time.
        let all = usize::try_from(reply.int()?).unwrap_or(0);
        let short = all < most && members.len() == all;
        let mut found: Found = Vec::with_capacity(members.len());
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
            let meta = meta.as_deref();
            let failures = meta.and_then(Meta::read).map_or(0, |meta| meta.failures);
            if let (Some(id), true) = (id, failures > 0) {
                failed.push((found.len(), id, failures));
            }
            let of_group = self.group.is_none_or(|group| meta.and_then(Meta::group_of) == Some(group));
            let whole = id.zip(record).filter(|_| of_group);
            let record = whole.map(|(id, record)| assemble(id, &at.queue, &record, meta, place));
            found.push((record, Cursor { last, number, ..at.clone() }));
        }
        // Whoever wants everything gets what each job has said, too.
        if self.whole {
            let failed: Vec<usize> = failed.iter().map(|(at, _, _)| *at).collect();
            add_all(store, &keys, &mut found, &failed).await?;
        } else if self.matcher.needs_error() {
            add_last_errors(store, &keys, &mut found, &failed).await?;
        }
        let mut after = found.last().map_or(at, |(_, cursor)| cursor).clone();
        let beyond = kept.is_some_and(|(first, _)| after.number < first);
        if short || beyond {
            after.next_lane(state);
        }
        Ok((found, after))
    }

    /// A page of a state: by its words where it has any, else by its own order.
    async fn read(
        &self,
        keys: &QueueKeys,
        at: &Cursor,
        state: State,
        kept: Option<(Micros, Micros)>,
        most: usize,
    ) -> Result<Reply> {
        let (store, range) = (self.store, self.matcher.range());
        if self.words.know(state, range) {
            let cmd = self.words.page(store, keys, state, (&at.last, at.number), range, most);
            return store
                .reply("list", store.link.run("list", Way::Door, keys.slot, &script::LIST_BY_INDEX, &cmd).await?);
        }
        let name = match state {
            State::Ready | State::Running => "ready",
            State::Scheduled => "scheduled",
            State::Done => "done",
            State::Dead => "dead",
        };
        let begins = at.last.is_empty() && at.number == 0;
        let number = match (state, range.0, kept) {
            (State::Scheduled, Some(since), _) if begins => since.clamp(0, NUMBER_MAX),
            (State::Done, _, Some((_, last))) if begins => last,
            _ => at.number,
        };
        let mut cmd = script::LIST.call(keys);
        cmd.arg(store.manual_now()).arg(name).arg(at.lane).arg(&at.last[..]).arg(number).arg(most);
        store.reply("list", store.link.run("list", Way::Door, keys.slot, &script::LIST, &cmd).await?)
    }

    /// Until when done jobs are kept that ended in the time that is asked for: from, and up to. `None` if all may be meant.
    async fn kept(&self, keys: &QueueKeys, state: State) -> Result<Option<(Micros, Micros)>> {
        let (since, until) = self.matcher.range();
        if state != State::Done || (since.is_none() && until.is_none()) {
            return Ok(None);
        }
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&keys.conf).arg("done_retention");
        let Value::BulkString(told) = self.store.link.ask("list", Way::Door, keys.slot, &cmd).await? else {
            return Ok(None);
        };
        let Some((least, longest)) = record::read_kept(&told) else {
            return Ok(None);
        };
        let from = since.map_or(0, |since| since.saturating_add(least));
        // Up to, and not at, the moment of those that ended then and are kept longest.
        let up_to = until.map_or(NUMBER_MAX, |until| until.saturating_add(longest).saturating_sub(1));
        Ok(Some((from, up_to.clamp(1, NUMBER_MAX))))
    }
}

/// Adds the last failure of each of these jobs to what was found.
async fn add_last_errors(
    store: &Redis,
    keys: &QueueKeys,
    found: &mut Found,
    failed: &[(usize, JobId, u32)],
) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.errors);
    for (_, id, last) in failed {
        let mut field = id.as_bytes().to_vec();
        field.extend(last.to_string().as_bytes());
        cmd.arg(field);
    }
    let Value::Array(errors) = store.link.ask("list", Way::Door, keys.slot, &cmd).await? else {
        return Ok(());
    };
    for ((at, _, _), error) in failed.iter().zip(errors) {
        if let (Some((Some(record), _)), Value::BulkString(error)) = (found.get_mut(*at), error) {
            record.failures = record::read_failure(&error).into_iter().collect();
        }
    }
    Ok(())
}

/// Adds all that is known of the jobs that were found: those that have failed, and if any has said anything, all.
async fn add_all(store: &Redis, keys: &QueueKeys, found: &mut Found, failed: &[usize]) -> Result<()> {
    let mut cmd = redis::cmd("HLEN");
    cmd.arg(&keys.progress);
    let noted = store.link.ask("list", Way::Door, keys.slot, &cmd).await? != Value::Int(0);
    let all: Vec<usize> = if noted { (0..found.len()).collect() } else { failed.to_vec() };
    for some in all.chunks(FAILED_AT_ONCE) {
        let asks = some.iter().map(|at| async {
            match &found[*at].0 {
                Some(record) => get_in(store, "list", &record.job.queue, record.job.id).await,
                None => Ok(None),
            }
        });
        for (at, got) in some.iter().zip(futures_util::future::join_all(asks).await) {
            if let (Some(record), Some(got)) = (&mut found[*at].0, got?) {
                (record.failures, record.progress) = (got.failures, got.progress);
                (record.result, record.log) = (got.result, got.log);
            }
        }
    }
    Ok(())
}

/// Running jobs stand in no order but the server's own: it goes through them by a cursor of its own, a few behind each.
/// Which few these are changes with what comes and goes, so where a page ends among them it is kept which were shown.
async fn step_running(store: &Redis, keys: &QueueKeys, at: &Cursor) -> Result<(Found, Cursor)> {
    if !at.last.len().is_multiple_of(ID_BYTES) {
        return Err(wrong());
    }
    let mut reply = holding(store, "list", Way::Door, keys, "", &at.number.to_string()).await?;
    let next = reply.text()?;
    let held = held_of(&mut reply, keys)?;
    let mut here = at.clone();
    let mut found = Found::with_capacity(held.len());
    for (held, from) in held.into_iter().zip(reply.list()?) {
        let from = server_cursor(from.as_deref().unwrap_or_default());
        if from != here.number {
            here = Cursor { last: Vec::new(), number: from, ..here };
        }
        let Some((node, held)) = held else { continue };
        let id = held.job.id.as_bytes();
        if !here.last.chunks(ID_BYTES).any(|shown| shown == id) {
            here.last.extend(id);
            found.push((Some(running(node, held)), here.clone()));
        }
    }
    let mut after = Cursor { last: Vec::new(), number: server_cursor(next.as_bytes()), ..at.clone() };
    if next == "0" {
        after.next_state();
    }
    Ok((found, after))
}

fn wrong() -> Error {
    Error::invalid("cursor", "not one that a list has given")
}

/// A cursor of the server: a place in its table, so never greater than that is large.
fn server_cursor(digits: &[u8]) -> i64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn running(node: crate::NodeId, held: crate::Held) -> Record {
    Record {
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
    }
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
