//! List: returns jobs page by page, in bounded reads. Never writes.
//!
//! Without a filter that has an index, jobs come newest first. Otherwise they come section by section. A section is one
//! state of one queue; it has an order in which an unchanged job keeps its position.

use rusqlite::{Connection, params};

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::filter::Matcher;
use crate::job::{Job, JobRecord, JobRun, State};
use crate::store::sqlite::jobs::job_index;
use crate::store::sqlite::jobs::query::{find_queue, read_record};
use crate::store::sqlite::jobs::runs;
use crate::store::sqlite::jobs::sorted_list;
use crate::store::sqlite::jobs::state::{STATE_CANCELLED, STATE_DEAD, STATE_DONE};
use crate::store::sqlite::rows::{
    JOB_COLUMNS, JOB_COLUMNS_LEN, RawText, priority_code, read_integer, read_job, read_text,
};
use crate::store::sqlite::{Sqlite, errors};
use crate::store::{
    DEFAULT_PAGE_SIZE, Filter, JobPage, LIST_BATCH_BYTES_MAX, LIST_BATCH_MAX, LIST_EXAMINED_MAX, PAGE_BYTES_MAX,
    PAGE_SIZE_MAX,
};

/// The order in which states are listed.
pub(super) const STATE_ORDER: [State; 6] =
    [State::Running, State::Ready, State::Scheduled, State::Dead, State::Cancelled, State::Done];

/// The end of a read: its section and the keys of the last job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCursor {
    /// The index of the state; [`ALL`] for all jobs by number.
    state_index: i64,
    queue_no: i64,
    /// `None` at the start of a section.
    last_keys: Option<(i64, i64)>,
}

/// The section of all jobs by number.
const ALL_JOBS_INDEX: i64 = STATE_ORDER.len() as i64;

impl RowCursor {
    pub(crate) fn to_text(self) -> String {
        let (a, b) = self.last_keys.unwrap_or_default();
        format!("{}.{}.{}.{a}.{b}", self.state_index, self.queue_no, u8::from(self.last_keys.is_some()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("cursor", "is not from a list of jobs; use the cursor of the previous page");
        let parts: Vec<i64> = text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        match parts[..] {
            [state @ 0..=ALL_JOBS_INDEX, queue, in_lane @ 0..=1, a, b] => {
                Ok(RowCursor { state_index: state, queue_no: queue, last_keys: (in_lane == 1).then_some((a, b)) })
            }
            _ => Err(wrong()),
        }
    }
}

/// The result of one read.
pub(crate) struct RowScanResult {
    pub(crate) jobs: Vec<JobRecord>,
    pub(crate) scanned: usize,
    /// The position to continue from; `None` at the end.
    pub(crate) next: Option<RowCursor>,
}

/// A row: the job, its number and its keys.
type ScannedRow = (Job, i64, (i64, i64));

/// Implements `JobStore::list`.
pub(crate) async fn list(store: &Sqlite, filter: &Filter) -> Result<JobPage> {
    if let Some(order) = filter.order {
        return sorted_list::list(store, filter, order).await;
    }
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let mut from = filter.cursor.as_deref().map(RowCursor::parse).transpose()?;
    let (mut page, mut bytes, now) = (JobPage::default(), 0, store.clock.now_micros());
    loop {
        let (filter, room) = (filter.clone(), limit - page.jobs.len());
        let batch = store.read("list", move |conn| scan(conn, &filter, from, room, now)).await?;
        bytes += batch.jobs.iter().map(record_bytes).sum::<usize>();
        page.jobs.extend(batch.jobs);
        page.scanned += batch.scanned as u64;
        from = batch.next;
        let is_full = page.jobs.len() >= limit || bytes >= PAGE_BYTES_MAX;
        if from.is_none() || is_full || page.scanned >= LIST_EXAMINED_MAX as u64 {
            page.next_cursor = from.map(|from| from.to_text());
            return Ok(page);
        }
    }
}

/// Reads a bounded number of rows and returns at most `limit` jobs.
fn scan(
    conn: &Connection,
    filter: &Filter,
    from: Option<RowCursor>,
    limit: usize,
    now: Micros,
) -> Result<RowScanResult> {
    let to_error = |e| errors::from_sqlite("list", e);
    let Some(filter) = with_state_of_group(filter) else {
        return Ok(RowScanResult { jobs: Vec::new(), scanned: 0, next: None });
    };
    // The index term already selects the group.
    let matcher = Matcher::new(&Filter { group: None, ..filter.clone() }, now);
    let mut scan = RowScan { conn, matcher, filter: &filter, limit, jobs: Vec::new(), scanned: 0, bytes: 0 };
    let next = match needs_no_index(&filter) && from.is_none_or(|from| from.state_index == ALL_JOBS_INDEX) {
        true => scan.scan_all(from).map_err(to_error)?,
        false => scan.scan_sections(from).map_err(to_error)?,
    };
    Ok(RowScanResult { jobs: scan.jobs, scanned: scan.scanned, next })
}

/// Returns the filter with the state that a group implies. `None` if no job can match: all jobs of a group are dead.
pub(super) fn with_state_of_group(filter: &Filter) -> Option<Filter> {
    let mut filter = filter.clone();
    if filter.group.is_some() && *filter.state.get_or_insert(State::Dead) != State::Dead {
        return None;
    }
    Some(filter)
}

/// Returns whether no filter has an index.
fn needs_no_index(filter: &Filter) -> bool {
    let Filter { queue, state, kind, tags, group, since, until, .. } = filter;
    let words = kind.is_none() && tags.is_empty() && group.is_none();
    queue.is_none() && state.is_none() && since.is_none() && until.is_none() && words
}

pub(super) struct RowScan<'l> {
    pub(super) conn: &'l Connection,
    pub(super) filter: &'l Filter,
    pub(super) matcher: Matcher,
    pub(super) limit: usize,
    pub(super) jobs: Vec<JobRecord>,
    pub(super) scanned: usize,
    pub(super) bytes: usize,
}

impl RowScan<'_> {
    pub(super) fn is_finished(&self) -> bool {
        self.jobs.len() >= self.limit || self.scanned >= LIST_BATCH_MAX || self.bytes >= LIST_BATCH_BYTES_MAX
    }

    /// Returns how many rows to read at once.
    fn batch_size(&self) -> usize {
        let room = LIST_BATCH_MAX.saturating_sub(self.scanned);
        if self.matcher.has_job_conditions() { room } else { room.min(self.limit - self.jobs.len()) }
    }

    /// Reads all jobs, newest first.
    fn scan_all(&mut self, from: Option<RowCursor>) -> rusqlite::Result<Option<RowCursor>> {
        let (last, _) = from.and_then(|from| from.last_keys).unwrap_or((i64::MAX, 0));
        let sql = format!(
            "SELECT {JOB_COLUMNS}, q.name, j.job_no, j.job_no, 0 FROM duly_job j
               JOIN duly_queue q ON q.queue_no = j.queue_no
              WHERE j.job_no < ?1 ORDER BY j.job_no DESC LIMIT ?2"
        );
        let most = self.batch_size();
        let more = self.read_rows(&sql, params![last, most], None, most)?;
        Ok(more.map(|last| RowCursor { state_index: ALL_JOBS_INDEX, queue_no: 0, last_keys: Some(last) }))
    }

    /// Reads the sections that are not empty.
    fn scan_sections(&mut self, from: Option<RowCursor>) -> rusqlite::Result<Option<RowCursor>> {
        let mut from = from.unwrap_or(RowCursor { state_index: 0, queue_no: i64::MIN, last_keys: None });
        let queue = match &self.filter.queue {
            Some(name) => match find_queue(self.conn, name)? {
                Some(queue_no) => Some(queue_no),
                None => return Ok(None),
            },
            None => None,
        };
        let sections = find_sections(self.conn, queue, self.filter.state)?;
        for (state, queue) in sections {
            let at = state as i64;
            if (at, queue) < (from.state_index, from.queue_no) {
                continue;
            }
            if (at, queue) != (from.state_index, from.queue_no) {
                from = RowCursor { state_index: at, queue_no: queue, last_keys: None };
            }
            loop {
                if self.is_finished() {
                    return Ok(Some(from));
                }
                match self.scan_section(STATE_ORDER[state], queue, from.last_keys)? {
                    Some(last) => from.last_keys = Some(last),
                    None => break,
                }
            }
        }
        Ok(None)
    }

    /// Reads a part of one section. Returns the keys of the last row, or `None` at the end of the section.
    fn scan_section(
        &mut self,
        state: State,
        queue: i64,
        last: Option<(i64, i64)>,
    ) -> rusqlite::Result<Option<(i64, i64)>> {
        let (since, until) = self.matcher.time_range();
        let most = self.batch_size();
        let (low, high) = ((i64::MIN, i64::MIN), (i64::MAX, i64::MAX));
        let (since, until) = (since.unwrap_or(i64::MIN), until.unwrap_or(i64::MAX));
        let (sql, (a, b), (c, d)) = match state {
            State::Running => (section_sql("duly_running p", "0, p.job_no", "", ">"), last.unwrap_or(low), high),
            State::Ready => {
                let priority = self.filter.priority.map(priority_code);
                let first = priority.map_or(low, |priority| (priority, i64::MIN));
                let end = priority.map_or(high, |priority| (priority, i64::MAX));
                (section_sql("duly_ready p", "p.priority, p.seq", "", ">"), last.unwrap_or(first), end)
            }
            State::Scheduled => {
                let (from, and) = self.section_source("duly_scheduled p", job_index::STATE_SCHEDULED);
                let keys = if and.is_empty() { "p.due_at, p.job_no" } else { "p.due_or_ended_at, p.job_no" };
                (section_sql(&from, keys, &and, ">"), last.unwrap_or((since, i64::MIN)), (until, i64::MIN))
            }
            State::Done | State::Dead | State::Cancelled => {
                let state_no = match state {
                    State::Done => STATE_DONE,
                    State::Cancelled => STATE_CANCELLED,
                    _ => STATE_DEAD,
                };
                let (from, mut and) = match state {
                    State::Dead => self.section_source("duly_ended p", state_no),
                    _ => ("duly_ended p".to_owned(), String::new()),
                };
                let keys = if and.is_empty() { "p.ended_at, p.job_no" } else { "p.due_or_ended_at, p.job_no" };
                if and.is_empty() {
                    and = format!("AND p.state = {state_no}");
                }
                (section_sql(&from, keys, &and, "<"), last.unwrap_or((until, i64::MIN)), (since, i64::MIN))
            }
        };
        let word = self.most_selective_term();
        self.read_rows(&sql, params![queue, a, b, c, d, most, word], Some(state), most)
    }

    /// Returns the table of a section: that of the state, or the job index.
    fn section_source(&self, table: &str, state: i64) -> (String, String) {
        match self.most_selective_term() {
            None => (table.to_owned(), String::new()),
            Some(_) => ("duly_job_index p".to_owned(), format!("AND p.state = {state} AND p.term = ?7")),
        }
    }

    /// Returns the term that probably matches fewest jobs.
    pub(super) fn most_selective_term(&self) -> Option<RawText> {
        let Filter { group, tags, kind, .. } = self.filter;
        group
            .as_deref()
            .map(job_index::group_term)
            .or_else(|| tags.first().map(job_index::tag_term))
            .or_else(|| kind.as_deref().map(job_index::kind_term))
    }

    /// Reads rows and keeps the jobs that match. Returns the keys of the last row, or `None` if there are no more.
    fn read_rows(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
        state: Option<State>,
        most: usize,
    ) -> rusqlite::Result<Option<(i64, i64)>> {
        let mut select = self.conn.prepare_cached(sql)?;
        let mut rows = select.query(params)?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = rows.next()? {
            let n = JOB_COLUMNS_LEN;
            let (job, job_no, keys): ScannedRow =
                (read_job(row, read_text(row, n)?)?, row.get(n + 1)?, (row.get(n + 2)?, row.get(n + 3)?));
            count += 1;
            last = Some(keys);
            self.scanned += 1;
            self.bytes += job.args.len();
            self.add_if_matching(job, job_no, state)?;
            if self.is_finished() {
                return Ok(last);
            }
        }
        Ok(last.filter(|_| count == most))
    }

    /// Keeps a job if it matches.
    pub(super) fn add_if_matching(&mut self, job: Job, job_no: i64, state: Option<State>) -> rusqlite::Result<()> {
        if !self.matcher.may_match(&job) {
            return Ok(());
        }
        let Some(mut record) = read_record(self.conn, job_no, job)? else {
            return Ok(());
        };
        // The read uses one snapshot, so the state cannot have changed.
        debug_assert!(state.is_none_or(|state| state == record.state));
        let error = match self.matcher.needs_error() {
            true => runs::last_error(self.conn, job_no)?.unwrap_or_default(),
            false => String::new(),
        };
        if self.matcher.matches_with_error(&record, &error) {
            if self.filter.with_details {
                record.set_runs(runs::read_all(self.conn, job_no)?);
                crate::store::sqlite::jobs::progress::read_into(self.conn, job_no, &mut record)?;
            }
            // The bytes of the args are counted already.
            self.bytes += record_bytes(&record) - record.job.args.len();
            self.jobs.push(record);
        }
        Ok(())
    }
}

/// Returns the size of the parts of a record that can be large.
pub(super) fn record_bytes(record: &JobRecord) -> usize {
    let log: usize = record.log.iter().map(|line| line.line.len()).sum();
    let runs: usize = record.runs.iter().map(JobRun::text_bytes).sum();
    record.job.args.len() + log + runs + record.result.as_ref().map_or(0, String::len)
}

/// Returns the sections that are not empty: index of the state, and queue.
pub(super) fn find_sections(
    conn: &Connection,
    queue: Option<i64>,
    state: Option<State>,
) -> rusqlite::Result<Vec<(usize, i64)>> {
    let mut select = conn.prepare_cached(
        "SELECT queue_no, running, ready, scheduled, dead, cancelled, done FROM duly_queue_stats WHERE ?1 IS NULL OR queue_no = ?1
          ORDER BY queue_no",
    )?;
    let mut rows = select.query([queue])?;
    let mut sections = Vec::new();
    while let Some(row) = rows.next()? {
        for (index, row_state) in STATE_ORDER.iter().enumerate() {
            if read_integer(row, index + 1) > 0 && state.is_none_or(|state| state == *row_state) {
                sections.push((index, row.get(0)?));
            }
        }
    }
    sections.sort_unstable();
    Ok(sections)
}

/// Selects jobs of one queue after (?2, ?3) and up to (?4, ?5).
fn section_sql(from: &str, keys: &str, and: &str, way: &str) -> String {
    let (back, order) = if way == ">" { ("<", "ASC") } else { (">=", "DESC") };
    let sorted: Vec<String> = keys.split(", ").filter(|key| *key != "0").map(|key| format!("{key} {order}")).collect();
    // Uses ?7, so that the query has the same parameters with and without a term.
    format!(
        "SELECT {JOB_COLUMNS}, q.name, p.job_no, {keys} FROM {from}
           JOIN duly_job j ON j.job_no = p.job_no JOIN duly_queue q ON q.queue_no = p.queue_no
          WHERE p.queue_no = ?1 {and} AND ({keys}) {way} (?2, ?3) AND ({keys}) {back} (?4, ?5)
            AND (?7 IS NULL OR ?7 IS NOT NULL) ORDER BY {sorted} LIMIT ?6",
        sorted = sorted.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the query plan of SQLite.
    fn query_plan(sql: &str) -> String {
        let conn = crate::store::sqlite::file::connect_in_memory().expect("opens");
        let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("is SQL");
        let parameters = explain.parameter_count();
        let nothing = rusqlite::params_from_iter((0..parameters).map(|_| 0));
        let plan = explain.query_map(nothing, |row| row.get::<_, String>(3)).expect("explains");
        plan.collect::<rusqlite::Result<Vec<_>>>().expect("explains").join("; ")
    }

    #[test]
    fn section_queries_neither_sort_nor_scan() {
        let words = "AND p.state = 4 AND p.term = ?7";
        let sections = [
            section_sql("duly_ready p", "p.priority, p.seq", "", ">"),
            section_sql("duly_scheduled p", "p.due_at, p.job_no", "", ">"),
            section_sql("duly_job_index p", "p.due_or_ended_at, p.job_no", words, ">"),
            section_sql("duly_job_index p", "p.due_or_ended_at, p.job_no", words, "<"),
            section_sql("duly_ended p", "p.ended_at, p.job_no", "AND p.state = 3", "<"),
        ];
        for sql in sections {
            let plan = query_plan(&sql);
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}\n{sql}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".*") {
            let _ = RowCursor::parse(&text);
        }

        #[test]
        fn cursors_round_trip_as_text(state_index in 0..=ALL_JOBS_INDEX, queue_no: i64, last_keys: Option<(i64, i64)>) {
            let cursor = RowCursor { state_index, queue_no, last_keys };
            prop_assert_eq!(RowCursor::parse(&cursor.to_text()).expect("its own text"), cursor);
        }
    }
}
