//! Lists jobs in pages: by queue name, then by state.

use redis::Value;

use crate::clock::{Micros, to_micros};
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::{ScannedHeldJob, decode_held_jobs, scan_held};
use crate::store::redis::jobs::job_index::RedisIndexQuery;
use crate::store::redis::jobs::list_cursor::{EXACT_INTEGER_MAX, RedisListCursor, invalid_cursor};
use crate::store::redis::jobs::query::{StateDetail, build_record, get_from_queue, queue_counts};
use crate::store::redis::jobs::sorted_list;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::completions::JOB_ID_BYTES;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::{Redis, reply, run_text, script};
use crate::store::{DEFAULT_PAGE_SIZE, Filter, JobPage, LIST_EXAMINED_MAX, PAGE_SIZE_MAX};

/// Jobs read in one request; their args come along and may be large.
const JOBS_PER_BATCH: usize = 200;
/// Number of concurrent requests for the details of jobs.
const DETAILS_AT_ONCE: usize = 50;
/// The order in which states are listed.
pub(super) const STATE_ORDER: [State; 6] =
    [State::Running, State::Ready, State::Scheduled, State::Dead, State::Cancelled, State::Done];

/// Implements `JobStore::list`.
pub(crate) async fn list(store: &Redis, filter: &Filter) -> Result<JobPage> {
    if let Some(order) = filter.order {
        return sorted_list::list(store, filter, order).await;
    }
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let mut from = filter.cursor.as_deref().map(RedisListCursor::parse).transpose()?;
    let mut queues = store.queue_names("list").await?;
    queues.retain(|queue| filter.queue.as_ref().is_none_or(|only| only == queue));
    queues.retain(|queue| from.as_ref().is_none_or(|from| from.queue <= *queue));
    let query = RedisListQuery::new(store, filter);
    let mut page = JobPage::default();
    if query.group.is_some() && query.state != Some(State::Dead) {
        return Ok(page);
    }
    for queue in queues {
        let mut cursor = match from.take() {
            Some(from) if from.queue == queue => from,
            _ => RedisListCursor { queue, ..RedisListCursor::default() },
        };
        let counts = queue_counts(store, &cursor.queue).await?;
        while let Some(state) = STATE_ORDER.get(cursor.state) {
            if query.state.is_some_and(|only| only != *state) || counts.count_in(*state) == 0 {
                cursor.next_state();
                continue;
            }
            if *state == State::Ready && query.priority_list.is_some_and(|only| only != cursor.priority_list) {
                cursor.next_priority_list(*state);
                continue;
            }
            if page.jobs.len() == limit || page.scanned >= LIST_EXAMINED_MAX as u64 {
                page.next_cursor = Some(cursor.encode());
                return Ok(page);
            }
            // A filtered list reads more jobs than it returns.
            let max = if query.needs_filtering(*state) {
                JOBS_PER_BATCH
            } else {
                JOBS_PER_BATCH.min(limit - page.jobs.len())
            };
            let (jobs, next_cursor) = query.read_jobs(&cursor, *state, max).await?;
            let mut complete = true;
            for (record, job_cursor) in jobs {
                if page.jobs.len() == limit {
                    complete = false;
                    break;
                }
                cursor = job_cursor;
                page.scanned += 1;
                page.jobs.extend(record.and_then(|record| query.filter_job(record)));
            }
            if complete {
                cursor = next_cursor;
            }
        }
    }
    Ok(page)
}

/// The jobs of one request, each with the cursor after it; `None` for a stale ticket.
pub(super) type FoundJobs = Vec<(Option<JobRecord>, RedisListCursor)>;

/// A list request: the filter, and the states and lists that can have matching jobs.
pub(super) struct RedisListQuery<'l> {
    store: &'l Redis,
    matcher: Matcher,
    /// The only state that can have matching jobs.
    pub(super) state: Option<State>,
    /// The only ready list that can have matching jobs.
    priority_list: Option<usize>,
    group: Option<&'l str>,
    index: RedisIndexQuery,
    /// The list has an order across queues, and whether that is the other way around than usual.
    is_sorted: bool,
    is_reversed: bool,
    /// Include runs, progress, log and result.
    with_details: bool,
}

impl<'l> RedisListQuery<'l> {
    pub(super) fn new(store: &'l Redis, filter: &'l Filter) -> Self {
        // The meta has the group, so the matcher need not check it.
        let matcher = Matcher::new(&Filter { group: None, ..filter.clone() }, store.now());
        let state = if filter.group.is_some() { filter.state.or(Some(State::Dead)) } else { filter.state };
        let priority_list = filter.priority.map(|priority| usize::from(record::priority_digit(priority) - b'0'));
        let (group, index) = (filter.group.as_deref(), RedisIndexQuery::from_filter(filter));
        RedisListQuery {
            store,
            matcher,
            state,
            priority_list,
            group,
            index,
            is_sorted: filter.order.is_some(),
            is_reversed: filter.reverse,
            with_details: filter.with_details,
        }
    }

    /// Returns the requested time: its start, and its exclusive end.
    pub(super) fn time_range(&self) -> (Option<Micros>, Option<Micros>) {
        self.matcher.time_range()
    }

    /// Returns whether jobs of a state are read from the index. It has dead jobs in the order of their end.
    pub(super) fn uses_index(&self, state: State) -> bool {
        self.index.can_answer(state, self.matcher.time_range()) || (self.is_sorted && state == State::Dead)
    }

    /// Returns whether more jobs of a state are read than match.
    pub(super) fn needs_filtering(&self, state: State) -> bool {
        match self.uses_index(state) {
            true => self.index.needs_filtering(),
            false => self.matcher.has_job_conditions(),
        }
    }

    /// Returns the job if it matches.
    pub(super) fn filter_job(&self, mut record: JobRecord) -> Option<JobRecord> {
        let matches = self.matcher.matches(&record);
        if !self.with_details {
            record.set_runs(Vec::new());
            record.log.clear();
            (record.progress, record.result) = (None, None);
        }
        matches.then_some(record)
    }

    /// Reads a batch from a cursor on. Returns it with the cursor after it.
    pub(super) async fn read_jobs(
        &self,
        cursor: &RedisListCursor,
        state: State,
        max: usize,
    ) -> Result<(FoundJobs, RedisListCursor)> {
        let (mut jobs, mut next_cursor) = match state {
            State::Running => read_running(self.store, &self.store.keys(&cursor.queue), cursor).await?,
            _ => self.read_not_running(cursor, state, max).await?,
        };
        if state == State::Running && (self.with_details || self.matcher.needs_error()) {
            let all: Vec<usize> = (0..jobs.len()).collect();
            add_details(self.store, &self.store.keys(&cursor.queue), &mut jobs, &all).await?;
        }
        let last_due = jobs.last().and_then(|(record, _)| record.as_ref()).map(|record| to_micros(record.due));
        let until = self.matcher.time_range().1;
        let same_state = next_cursor.state == cursor.state;
        let is_in_order = state == State::Scheduled && !self.is_reversed;
        if is_in_order && same_state && last_due.zip(until).is_some_and(|(due, until)| due >= until) {
            next_cursor.next_priority_list(state);
        }
        Ok((jobs, next_cursor))
    }

    async fn read_not_running(
        &self,
        cursor: &RedisListCursor,
        state: State,
        max: usize,
    ) -> Result<(FoundJobs, RedisListCursor)> {
        let (store, keys) = (self.store, self.store.keys(&cursor.queue));
        let keep_range = self.keep_range(&keys, state).await?;
        let mut reply = self.read_page(&keys, cursor, state, keep_range, max).await?;
        let (members, numbers, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        // The script returns fewer records than it found if they are long.
        let all = usize::try_from(reply.int()?).unwrap_or(0);
        let is_last_page = all < max && members.len() == all;
        let mut jobs: FoundJobs = Vec::with_capacity(members.len());
        let mut failed = Vec::new();
        for (((member, position), record), meta) in members.into_iter().zip(numbers).zip(records).zip(metas) {
            let (last, position) = (member.unwrap_or_default(), position.as_deref().map_or(0, reply::parse_number));
            let detail = match state {
                State::Scheduled => StateDetail::Scheduled(position),
                State::Done => StateDetail::Done(position),
                State::Dead => StateDetail::Dead,
                State::Cancelled => StateDetail::Cancelled,
                State::Ready | State::Running => StateDetail::Ready,
            };
            let id = last.get(..16).and_then(reply::parse_job_id);
            let meta = meta.as_deref();
            let runs = meta.and_then(JobMeta::decode).map_or(0, |meta| meta.runs);
            if let (Some(id), true) = (id, runs > 0) {
                failed.push((jobs.len(), id, runs));
            }
            let in_group = self.group.is_none_or(|group| meta.and_then(JobMeta::dead_group) == Some(group));
            let complete = id.zip(record).filter(|_| in_group);
            let record = complete.map(|(id, record)| build_record(id, &cursor.queue, &record, meta, detail));
            jobs.push((record, RedisListCursor { last_member: last, position, ..cursor.clone() }));
        }
        // Details include the runs, and progress and log of jobs that reported any.
        if self.with_details {
            let failed: Vec<usize> = failed.iter().map(|(cursor, _, _)| *cursor).collect();
            add_details(store, &keys, &mut jobs, &failed).await?;
            if state == State::Done {
                add_acks(store, &keys, &mut jobs).await?;
            }
        } else if self.matcher.needs_error() {
            add_last_errors(store, &keys, &mut jobs, &failed).await?;
        }
        let mut next_cursor = jobs.last().map_or(cursor, |(_, cursor)| cursor).clone();
        let is_past_range = keep_range.is_some_and(|(first, _)| next_cursor.position < first);
        if is_last_page || is_past_range {
            next_cursor.next_priority_list(state);
        }
        Ok((jobs, next_cursor))
    }

    /// Reads a page of a state: from the index if it can answer, otherwise in the order of the state.
    async fn read_page(
        &self,
        keys: &QueueKeys,
        cursor: &RedisListCursor,
        state: State,
        keep_range: Option<(Micros, Micros)>,
        max: usize,
    ) -> Result<ScriptReply> {
        let (store, range) = (self.store, self.matcher.time_range());
        if self.uses_index(state) {
            let is_descending = (state == State::Dead) != self.is_reversed;
            let last = (&cursor.last_member[..], cursor.position);
            let cmd = self.index.page_command(store, keys, (state, is_descending), last, range, max);
            return store.run_script("list", ConnectionRole::Client, keys.slot, &script::LIST_BY_INDEX, &cmd).await;
        }
        let name = match state {
            State::Ready | State::Running => "ready",
            State::Scheduled => "scheduled",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        };
        let is_start = cursor.last_member.is_empty() && cursor.position == 0;
        let position = match (state, range.0, keep_range) {
            (State::Scheduled, Some(since), _) if is_start && !self.is_reversed => since.clamp(0, EXACT_INTEGER_MAX),
            (State::Done, _, Some((_, last))) if is_start => last,
            _ => cursor.position,
        };
        let mut cmd = script::LIST.call(keys);
        cmd.arg(store.manual_now())
            .arg(name)
            .arg(cursor.priority_list)
            .arg(&cursor.last_member[..])
            .arg(position)
            .arg(max)
            .arg(u8::from(self.is_reversed));
        store.run_script("list", ConnectionRole::Client, keys.slot, &script::LIST, &cmd).await
    }

    /// Returns the range of keep-until times of done jobs that ended in the requested time; `None` if all may match.
    async fn keep_range(&self, keys: &QueueKeys, state: State) -> Result<Option<(Micros, Micros)>> {
        let (since, until) = self.matcher.time_range();
        if self.is_sorted || state != State::Done || (since.is_none() && until.is_none()) {
            return Ok(None);
        }
        let Some((keep_min, keep_max)) = read_keep_range(self.store, keys).await? else {
            return Ok(None);
        };
        let from = since.map_or(0, |since| since.saturating_add(keep_min));
        // Excludes the upper bound: jobs that ended exactly then do not match.
        let until_max = until.map_or(EXACT_INTEGER_MAX, |until| until.saturating_add(keep_max).saturating_sub(1));
        Ok(Some((from, until_max.clamp(1, EXACT_INTEGER_MAX))))
    }
}

/// Returns the shortest and the longest time for which done jobs of a queue are kept.
pub(super) async fn read_keep_range(store: &Redis, keys: &QueueKeys) -> Result<Option<(Micros, Micros)>> {
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.conf).arg("done_retention");
    match store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await? {
        Value::BulkString(range_text) => Ok(record::decode_keep_range(&range_text)),
        _ => Ok(None),
    }
}

/// Adds the last failure to each of these jobs.
async fn add_last_errors(
    store: &Redis,
    keys: &QueueKeys,
    jobs: &mut FoundJobs,
    failed: &[(usize, JobId, u32)],
) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.runs);
    for (_, id, last) in failed {
        cmd.arg(run_field(*id, *last));
    }
    let Value::Array(runs) = store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await?
    else {
        return Ok(());
    };
    let mut released = Vec::new();
    for ((index, _, _), run) in failed.iter().zip(runs) {
        if let (Some((Some(record), _)), Value::BulkString(run)) = (jobs.get_mut(*index), run) {
            record.set_runs(run_text::decode_run(&run).into_iter().collect());
            released.extend(record.failures.is_empty().then_some(*index));
        }
    }
    // The last run of these did not fail, but an earlier one may have.
    add_details(store, keys, jobs, &released).await
}

/// Returns the field of a run.
fn run_field(id: JobId, number: u32) -> Vec<u8> {
    [id.as_bytes(), number.to_string().as_bytes()].concat()
}

/// Adds the ack to each of these done jobs whose details have not been read.
async fn add_acks(store: &Redis, keys: &QueueKeys, jobs: &mut FoundJobs) -> Result<()> {
    let mut done: Vec<&mut JobRecord> =
        jobs.iter_mut().filter_map(|(record, _)| record.as_mut()).filter(|record| record.runs.is_empty()).collect();
    if done.is_empty() {
        return Ok(());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.runs);
    for record in &done {
        cmd.arg(record.job.id.as_bytes());
    }
    let Value::Array(acks) = store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await?
    else {
        return Ok(());
    };
    for (record, ack) in done.iter_mut().zip(acks) {
        if let Value::BulkString(ack) = ack {
            let ack = run_text::decode_ack(&ack, record);
            record.set_runs(ack.into_iter().collect());
        }
    }
    Ok(())
}

/// Adds the details of the failed jobs, or of all found jobs if any job of the queue has reported progress.
async fn add_details(store: &Redis, keys: &QueueKeys, jobs: &mut FoundJobs, failed: &[usize]) -> Result<()> {
    let mut cmd = redis::cmd("HLEN");
    cmd.arg(&keys.progress);
    let has_progress =
        store.servers.send_idempotent("list", ConnectionRole::Client, keys.slot, &cmd).await? != Value::Int(0);
    let all: Vec<usize> = if has_progress { (0..jobs.len()).collect() } else { failed.to_vec() };
    for batch in all.chunks(DETAILS_AT_ONCE) {
        let requests = batch.iter().map(|index| async {
            match &jobs[*index].0 {
                Some(record) => get_from_queue(store, "list", &record.job.queue, record.job.id).await,
                None => Ok(None),
            }
        });
        for (index, details) in batch.iter().zip(futures_util::future::join_all(requests).await) {
            if let (Some(record), Some(details)) = (&mut jobs[*index].0, details?) {
                record.set_runs(details.runs);
                record.progress = details.progress;
                (record.result, record.log) = (details.result, details.log);
            }
        }
    }
    Ok(())
}

/// Reads running jobs, which have no order but the server's: it scans them with its own cursor, a few at a time. That
/// set changes with claims and settles, so a page that ends within it remembers which of its jobs were listed.
async fn read_running(
    store: &Redis,
    keys: &QueueKeys,
    cursor: &RedisListCursor,
) -> Result<(FoundJobs, RedisListCursor)> {
    if !cursor.last_member.len().is_multiple_of(JOB_ID_BYTES) {
        return Err(invalid_cursor());
    }
    let mut reply = scan_held(store, "list", ConnectionRole::Client, keys, "", &cursor.position.to_string()).await?;
    let next = reply.text()?;
    let held = decode_held_jobs(&mut reply, keys)?;
    let mut job_cursor = cursor.clone();
    let mut jobs = FoundJobs::with_capacity(held.len());
    for (held, from) in held.into_iter().zip(reply.list()?) {
        let from = parse_server_cursor(from.as_deref().unwrap_or_default());
        if from != job_cursor.position {
            job_cursor = RedisListCursor { last_member: Vec::new(), position: from, ..job_cursor };
        }
        let Some(found) = held else { continue };
        let id = found.held.job.id.as_bytes();
        if !job_cursor.last_member.chunks(JOB_ID_BYTES).any(|listed| listed == id) {
            job_cursor.last_member.extend(id);
            jobs.push((Some(running_record(found)), job_cursor.clone()));
        }
    }
    let mut next_cursor =
        RedisListCursor { last_member: Vec::new(), position: parse_server_cursor(next.as_bytes()), ..cursor.clone() };
    if next == "0" {
        next_cursor.next_state();
    }
    Ok((jobs, next_cursor))
}

/// Parses a cursor of the server, which is a position in its hash table.
fn parse_server_cursor(digits: &[u8]) -> i64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn running_record(found: ScannedHeldJob) -> JobRecord {
    let ScannedHeldJob { node, held, cancelling } = found;
    let record = JobRecord::new(held.job, State::Running, held.due, held.attempts, held.crashes);
    JobRecord { node: Some(node), fence: Some(held.fence), cancelling, ..record }
}
