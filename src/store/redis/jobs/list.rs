//! List: jobs page by page, queue by queue in the order of their names, state by state.

use redis::Value;

use crate::clock::{Micros, to_micros};
use crate::error::{Error, Result};
use crate::job::filter::Matcher;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::{decode_held_jobs, scan_held};
use crate::store::redis::jobs::job_index::RedisIndexQuery;
use crate::store::redis::jobs::query::{StateDetail, build_record, get_from_queue, queue_counts};
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::completions::JOB_ID_BYTES;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::{Redis, reply, script};
use crate::store::{Filter, JobPage, LIST_EXAMINED_MAX, PAGE_SIZE, PAGE_SIZE_MAX};

/// Jobs looked through in one step: their args come along, and may be large.
const JOBS_PER_STEP: usize = 200;
/// Jobs whose failures are asked for at a time.
const DETAILS_AT_ONCE: usize = 50;
/// The order in which states are listed.
const STATE_ORDER: [State; 5] = [State::Running, State::Ready, State::Scheduled, State::Dead, State::Done];

/// The largest number in a cursor: scripts could not tell larger ones apart.
const EXACT_INTEGER_MAX: i64 = 1 << 53;

/// Where a page ended. Jobs that stay where they are appear once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RedisListCursor {
    queue: String,
    /// Which of the states.
    state: usize,
    /// Which of the ready lists.
    priority_list: usize,
    /// The last ticket or id; for running jobs the ids of all behind the server's cursor that were shown.
    last_member: Vec<u8>,
    /// Its place or score; for running jobs the server's own cursor.
    position: i64,
}

/// `list` of the contract.
pub(crate) async fn list(store: &Redis, filter: &Filter) -> Result<JobPage> {
    let limit = if filter.limit == 0 { PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let mut from = filter.cursor.as_deref().map(RedisListCursor::parse).transpose()?;
    let mut queues = store.queue_names("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    queues.retain(|queue| from.as_ref().is_none_or(|from| from.queue <= *queue));
    let look = RedisListQuery::new(store, filter);
    let mut page = JobPage::default();
    if look.group.is_some() && look.state != Some(State::Dead) {
        return Ok(page);
    }
    for queue in queues {
        let mut at = match from.take() {
            Some(from) if from.queue == queue => from,
            _ => RedisListCursor { queue, ..RedisListCursor::default() },
        };
        let counts = queue_counts(store, &at.queue).await?;
        while let Some(state) = STATE_ORDER.get(at.state) {
            if look.state.is_some_and(|only| only != *state) || counts.count_in(*state) == 0 {
                at.next_state();
                continue;
            }
            if *state == State::Ready && look.priority_list.is_some_and(|only| only != at.priority_list) {
                at.next_priority_list(*state);
                continue;
            }
            if page.jobs.len() == limit || page.scanned >= LIST_EXAMINED_MAX as u64 {
                page.next_cursor = Some(at.encode());
                return Ok(page);
            }
            // A filtered list looks through more than it shows.
            let most =
                if look.needs_filtering(*state) { JOBS_PER_STEP } else { JOBS_PER_STEP.min(limit - page.jobs.len()) };
            let (found, after) = look.read_jobs(&at, *state, most).await?;
            let mut whole = true;
            for (record, here) in found {
                if page.jobs.len() == limit {
                    whole = false;
                    break;
                }
                at = here;
                page.scanned += 1;
                page.jobs.extend(record.and_then(|record| look.filter_job(record)));
            }
            if whole {
                at = after;
            }
        }
    }
    Ok(page)
}

/// What one step found: jobs, `None` for a ticket that means nothing any more, each with the cursor behind it.
type FoundJobs = Vec<(Option<JobRecord>, RedisListCursor)>;

/// What a list looks for.
struct RedisListQuery<'l> {
    store: &'l Redis,
    matcher: Matcher,
    /// The only state in which there can be any.
    state: Option<State>,
    /// The only ready list in which there can be any.
    priority_list: Option<usize>,
    group: Option<&'l str>,
    index: RedisIndexQuery,
    /// With their failures.
    with_details: bool,
}

impl<'l> RedisListQuery<'l> {
    fn new(store: &'l Redis, filter: &'l Filter) -> Self {
        // Who is in a group is said by its meta.
        let matcher = Matcher::new(&Filter { group: None, ..filter.clone() }, store.now());
        let state = if filter.group.is_some() { filter.state.or(Some(State::Dead)) } else { filter.state };
        let lane = filter.priority.map(|priority| usize::from(record::priority_digit(priority) - b'0'));
        let (group, words) = (filter.group.as_deref(), RedisIndexQuery::from_filter(filter));
        RedisListQuery {
            store,
            matcher,
            state,
            priority_list: lane,
            group,
            index: words,
            with_details: filter.with_details,
        }
    }

    /// Whether more jobs of a state are looked through than are meant.
    fn needs_filtering(&self, state: State) -> bool {
        match self.index.can_answer(state, self.matcher.time_range()) {
            true => self.index.needs_filtering(),
            false => self.matcher.has_job_conditions(),
        }
    }

    /// The job, if it is meant.
    fn filter_job(&self, mut record: JobRecord) -> Option<JobRecord> {
        let meant = self.matcher.matches(&record);
        if !self.with_details {
            record.failures.clear();
        }
        meant.then_some(record)
    }

    /// One step from a cursor, and the cursor behind it.
    async fn read_jobs(&self, at: &RedisListCursor, state: State, most: usize) -> Result<(FoundJobs, RedisListCursor)> {
        let (mut found, mut after) = match state {
            State::Running => read_running(self.store, &self.store.keys(&at.queue), at).await?,
            _ => self.read_not_running(at, state, most).await?,
        };
        if state == State::Running && (self.with_details || self.matcher.needs_error()) {
            let all: Vec<usize> = (0..found.len()).collect();
            add_details(self.store, &self.store.keys(&at.queue), &mut found, &all).await?;
        }
        let last_due = found.last().and_then(|(record, _)| record.as_ref()).map(|record| to_micros(record.due));
        let until = self.matcher.time_range().1;
        let goes_on = after.state == at.state;
        if state == State::Scheduled && goes_on && last_due.zip(until).is_some_and(|(due, until)| due >= until) {
            after.next_priority_list(state);
        }
        Ok((found, after))
    }

    async fn read_not_running(
        &self,
        at: &RedisListCursor,
        state: State,
        most: usize,
    ) -> Result<(FoundJobs, RedisListCursor)> {
        let (store, keys) = (self.store, self.store.keys(&at.queue));
        let kept = self.keep_range(&keys, state).await?;
        let mut reply = self.read_page(&keys, at, state, kept, most).await?;
        let (members, numbers, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        // There may be fewer of them here than there were: long ones come a few at a time.
        let all = usize::try_from(reply.int()?).unwrap_or(0);
        let short = all < most && members.len() == all;
        let mut found: FoundJobs = Vec::with_capacity(members.len());
        let mut failed = Vec::new();
        for (((member, number), record), meta) in members.into_iter().zip(numbers).zip(records).zip(metas) {
            let (last, number) = (member.unwrap_or_default(), number.as_deref().map_or(0, reply::parse_number));
            let place = match state {
                State::Scheduled => StateDetail::Scheduled(number),
                State::Done => StateDetail::Done(number),
                State::Dead => StateDetail::Dead,
                State::Ready | State::Running => StateDetail::Ready,
            };
            let id = last.get(..16).and_then(reply::parse_job_id);
            let meta = meta.as_deref();
            let failures = meta.and_then(JobMeta::decode).map_or(0, |meta| meta.failures);
            if let (Some(id), true) = (id, failures > 0) {
                failed.push((found.len(), id, failures));
            }
            let of_group = self.group.is_none_or(|group| meta.and_then(JobMeta::dead_group) == Some(group));
            let whole = id.zip(record).filter(|_| of_group);
            let record = whole.map(|(id, record)| build_record(id, &at.queue, &record, meta, place));
            found.push((record, RedisListCursor { last_member: last, position: number, ..at.clone() }));
        }
        // Whoever wants everything gets what each job has said, too.
        if self.with_details {
            let failed: Vec<usize> = failed.iter().map(|(at, _, _)| *at).collect();
            add_details(store, &keys, &mut found, &failed).await?;
        } else if self.matcher.needs_error() {
            add_last_errors(store, &keys, &mut found, &failed).await?;
        }
        let mut after = found.last().map_or(at, |(_, cursor)| cursor).clone();
        let beyond = kept.is_some_and(|(first, _)| after.position < first);
        if short || beyond {
            after.next_priority_list(state);
        }
        Ok((found, after))
    }

    /// A page of a state: by its words where it has any, else by its own order.
    async fn read_page(
        &self,
        keys: &QueueKeys,
        at: &RedisListCursor,
        state: State,
        kept: Option<(Micros, Micros)>,
        most: usize,
    ) -> Result<ScriptReply> {
        let (store, range) = (self.store, self.matcher.time_range());
        if self.index.can_answer(state, range) {
            let cmd = self.index.page_command(store, keys, state, (&at.last_member, at.position), range, most);
            return store.parse_reply(
                "list",
                store
                    .servers
                    .run_script("list", ConnectionRole::Client, keys.slot, &script::LIST_BY_INDEX, &cmd)
                    .await?,
            );
        }
        let name = match state {
            State::Ready | State::Running => "ready",
            State::Scheduled => "scheduled",
            State::Done => "done",
            State::Dead => "dead",
        };
        let begins = at.last_member.is_empty() && at.position == 0;
        let number = match (state, range.0, kept) {
            (State::Scheduled, Some(since), _) if begins => since.clamp(0, EXACT_INTEGER_MAX),
            (State::Done, _, Some((_, last))) if begins => last,
            _ => at.position,
        };
        let mut cmd = script::LIST.call(keys);
        cmd.arg(store.manual_now()).arg(name).arg(at.priority_list).arg(&at.last_member[..]).arg(number).arg(most);
        store.parse_reply(
            "list",
            store.servers.run_script("list", ConnectionRole::Client, keys.slot, &script::LIST, &cmd).await?,
        )
    }

    /// Until when done jobs are kept that ended in the time that is asked for: from, and up to. `None` if all may be meant.
    async fn keep_range(&self, keys: &QueueKeys, state: State) -> Result<Option<(Micros, Micros)>> {
        let (since, until) = self.matcher.time_range();
        if state != State::Done || (since.is_none() && until.is_none()) {
            return Ok(None);
        }
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&keys.conf).arg("done_retention");
        let Value::BulkString(told) =
            self.store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await?
        else {
            return Ok(None);
        };
        let Some((least, longest)) = record::decode_keep_range(&told) else {
            return Ok(None);
        };
        let from = since.map_or(0, |since| since.saturating_add(least));
        // Up to, and not at, the moment of those that ended then and are kept longest.
        let up_to = until.map_or(EXACT_INTEGER_MAX, |until| until.saturating_add(longest).saturating_sub(1));
        Ok(Some((from, up_to.clamp(1, EXACT_INTEGER_MAX))))
    }
}

/// Adds the last failure of each of these jobs to what was found.
async fn add_last_errors(
    store: &Redis,
    keys: &QueueKeys,
    found: &mut FoundJobs,
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
    let Value::Array(errors) = store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await?
    else {
        return Ok(());
    };
    for ((at, _, _), error) in failed.iter().zip(errors) {
        if let (Some((Some(record), _)), Value::BulkString(error)) = (found.get_mut(*at), error) {
            record.failures = record::decode_failure(&error).into_iter().collect();
        }
    }
    Ok(())
}

/// Adds all that is known of the jobs that were found: those that have failed, and if any has said anything, all.
async fn add_details(store: &Redis, keys: &QueueKeys, found: &mut FoundJobs, failed: &[usize]) -> Result<()> {
    let mut cmd = redis::cmd("HLEN");
    cmd.arg(&keys.progress);
    let noted = store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await? != Value::Int(0);
    let all: Vec<usize> = if noted { (0..found.len()).collect() } else { failed.to_vec() };
    for some in all.chunks(DETAILS_AT_ONCE) {
        let asks = some.iter().map(|at| async {
            match &found[*at].0 {
                Some(record) => get_from_queue(store, "list", &record.job.queue, record.job.id).await,
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
async fn read_running(store: &Redis, keys: &QueueKeys, at: &RedisListCursor) -> Result<(FoundJobs, RedisListCursor)> {
    if !at.last_member.len().is_multiple_of(JOB_ID_BYTES) {
        return Err(invalid_cursor());
    }
    let mut reply = scan_held(store, "list", ConnectionRole::Client, keys, "", &at.position.to_string()).await?;
    let next = reply.text()?;
    let held = decode_held_jobs(&mut reply, keys)?;
    let mut here = at.clone();
    let mut found = FoundJobs::with_capacity(held.len());
    for (held, from) in held.into_iter().zip(reply.list()?) {
        let from = parse_server_cursor(from.as_deref().unwrap_or_default());
        if from != here.position {
            here = RedisListCursor { last_member: Vec::new(), position: from, ..here };
        }
        let Some((node, held)) = held else { continue };
        let id = held.job.id.as_bytes();
        if !here.last_member.chunks(JOB_ID_BYTES).any(|shown| shown == id) {
            here.last_member.extend(id);
            found.push((Some(running_record(node, held)), here.clone()));
        }
    }
    let mut after =
        RedisListCursor { last_member: Vec::new(), position: parse_server_cursor(next.as_bytes()), ..at.clone() };
    if next == "0" {
        after.next_state();
    }
    Ok((found, after))
}

fn invalid_cursor() -> Error {
    Error::invalid("cursor", "not one that a list has given")
}

/// A cursor of the server: a place in its table, so never greater than that is large.
fn parse_server_cursor(digits: &[u8]) -> i64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn running_record(node: crate::NodeId, held: crate::HeldJob) -> JobRecord {
    JobRecord {
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

impl RedisListCursor {
    fn next_state(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        *self = RedisListCursor { queue, state: self.state + 1, ..RedisListCursor::default() };
    }

    fn next_priority_list(&mut self, state: State) {
        if state != State::Ready || self.priority_list == 3 {
            return self.next_state();
        }
        let queue = std::mem::take(&mut self.queue);
        *self = RedisListCursor {
            queue,
            state: self.state,
            priority_list: self.priority_list + 1,
            ..RedisListCursor::default()
        };
    }

    /// Readable enough to be logged, plain enough for a URL.
    fn encode(&self) -> String {
        let last: String = self.last_member.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{}.{}.{last}.{}", self.state, self.priority_list, self.position, self.queue)
    }

    fn parse(text: &str) -> Result<Self> {
        let [state, lane, number, last, queue] = text.splitn(5, '.').collect::<Vec<_>>()[..] else {
            return Err(invalid_cursor());
        };
        if !last.is_ascii() || last.len() % 2 != 0 {
            return Err(invalid_cursor());
        }
        let byte = |at: usize| u8::from_str_radix(&last[at..at + 2], 16).map_err(|_| invalid_cursor());
        let cursor = RedisListCursor {
            queue: queue.to_owned(),
            state: state.parse().map_err(|_| invalid_cursor())?,
            priority_list: lane.parse().map_err(|_| invalid_cursor())?,
            last_member: (0..last.len()).step_by(2).map(byte).collect::<Result<_>>()?,
            position: number.parse().map_err(|_| invalid_cursor())?,
        };
        if cursor.priority_list > 3 || cursor.queue.is_empty() || !(0..=EXACT_INTEGER_MAX).contains(&cursor.position) {
            return Err(invalid_cursor());
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
        fn parsing_any_text_does_not_panic(text in ".*") {
            let _ = RedisListCursor::parse(&text);
        }

        #[test]
        fn cursors_round_trip_as_text(queue in "[a-z.:/-]{1,20}", state in 0usize..5, priority_list in 0usize..4, position in 0..=EXACT_INTEGER_MAX,
                                      last_member in proptest::collection::vec(any::<u8>(), 0..20)) {
            let cursor = RedisListCursor { queue, state, priority_list, last_member, position };
            prop_assert_eq!(RedisListCursor::parse(&cursor.encode()).expect("its own text"), cursor);
        }
    }
}
