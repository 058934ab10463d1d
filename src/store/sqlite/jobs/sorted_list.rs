//! Sorted lists: merges the sections of all queues by time, and reads only as much of each as the page needs. Never writes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::filter::{JobOrder, Matcher};
use crate::job::{JobRecord, State};
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::jobs::job_index;
use crate::store::sqlite::jobs::list::{RowScan, STATE_ORDER, find_sections, record_bytes, with_state_of_group};
use crate::store::sqlite::jobs::query::find_queue;
use crate::store::sqlite::jobs::state::{STATE_CANCELLED, STATE_DEAD, STATE_DONE};
use crate::store::sqlite::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, RawText, read_job, read_text};
use crate::store::{
    DEFAULT_PAGE_SIZE, Filter, JobPage, LIST_BATCH_MAX, LIST_EXAMINED_MAX, PAGE_BYTES_MAX, PAGE_SIZE_MAX,
};

/// Most keys read from a section at once.
const SECTION_KEYS_MAX: usize = 50;

/// The position of a job in the order: its time and its number. In descending order, both are negated.
type SortedRowKey = (i64, i64);

/// The end of a page, as text: the order, and the key of the last job.
fn encode_cursor(order: JobOrder, (time, job_no): SortedRowKey) -> String {
    format!("{order}.{time}.{job_no}")
}

fn parse_cursor(order: JobOrder, text: &str) -> Result<SortedRowKey> {
    let parse = || {
        let (time, job_no) = text.strip_prefix(order.as_str())?.strip_prefix('.')?.split_once('.')?;
        time.parse().ok().zip(job_no.parse().ok())
    };
    parse().ok_or_else(|| {
        Error::invalid("cursor", "is not from a list in this order; use the cursor of the previous page")
    })
}

/// The unread part of one section.
struct SortedRowSection {
    state: State,
    queue_no: i64,
    sql: String,
    /// Keys that were read and are not in the heap, in the order.
    keys: VecDeque<SortedRowKey>,
    /// Where the next read continues.
    last: SortedRowKey,
    is_exhausted: bool,
}

/// Merges the sections of a filter.
struct Merge<'m> {
    conn: &'m Connection,
    sections: Vec<SortedRowSection>,
    /// The next key of each section that is not exhausted, with the index of the section.
    heap: BinaryHeap<Reverse<(SortedRowKey, usize)>>,
    is_descending: bool,
    /// The keys of the requested time: its first and its last, exclusive.
    end: SortedRowKey,
    term: Option<RawText>,
    chunk: usize,
}

/// The result of one read.
struct SortedBatch {
    jobs: Vec<JobRecord>,
    scanned: usize,
    /// The position to continue from; `None` at the end.
    next: Option<SortedRowKey>,
}

/// Implements `JobStore::list` for a filter with an order.
pub(super) async fn list(store: &Sqlite, filter: &Filter, order: JobOrder) -> Result<JobPage> {
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let mut from = filter.cursor.as_deref().map(|text| parse_cursor(order, text)).transpose()?;
    let (mut page, mut bytes, now) = (JobPage::default(), 0, store.clock.now_micros());
    loop {
        let (filter, room) = (filter.clone(), limit - page.jobs.len());
        let batch = store.query("list", move |conn| scan(conn, &filter, order, from, room, now)).await?;
        bytes += batch.jobs.iter().map(record_bytes).sum::<usize>();
        page.jobs.extend(batch.jobs);
        page.scanned += batch.scanned as u64;
        from = batch.next;
        let is_full = page.jobs.len() >= limit || bytes >= PAGE_BYTES_MAX;
        if from.is_none() || is_full || page.scanned >= LIST_EXAMINED_MAX as u64 {
            page.next_cursor = from.map(|from| encode_cursor(order, from));
            return Ok(page);
        }
    }
}

/// Reads a bounded number of jobs in the order, after `from`. Returns at most `limit` jobs.
fn scan(
    conn: &Connection,
    filter: &Filter,
    order: JobOrder,
    from: Option<SortedRowKey>,
    limit: usize,
    now: Micros,
) -> rusqlite::Result<SortedBatch> {
    let Some(filter) = with_state_of_group(filter) else {
        return Ok(SortedBatch { jobs: Vec::new(), scanned: 0, next: None });
    };
    // The index term already selects the group.
    let matcher = Matcher::new(&Filter { group: None, ..filter.clone() }, now);
    let mut scan = RowScan { conn, matcher, filter: &filter, limit, jobs: Vec::new(), scanned: 0, bytes: 0 };
    let (mut next, mut merge) = (None, Merge::start(&scan, order, from)?);
    while let Some((key, section)) = merge.pop()? {
        let (state, job_no) = (merge.sections[section].state, if merge.is_descending { -key.1 } else { key.1 });
        let job = conn
            .prepare_cached(&format!(
                "SELECT {JOB_COLUMNS}, q.name FROM duly_job j
                   JOIN duly_queue q ON q.queue_no = j.queue_no WHERE j.job_no = ?1"
            ))?
            .query_row([job_no], |row| read_job(row, read_text(row, JOB_COLUMNS_LEN)?))
            .optional()?;
        scan.scanned += 1;
        if let Some(job) = job {
            scan.bytes += job.args.len();
            scan.add_if_matching(job, job_no, Some(state))?;
        }
        if scan.is_finished() {
            next = (!merge.heap.is_empty()).then_some(key);
            break;
        }
    }
    Ok(SortedBatch { jobs: scan.jobs, scanned: scan.scanned, next })
}

impl<'m> Merge<'m> {
    /// Reads the first keys of every section that is not empty.
    fn start(scan: &RowScan<'m>, order: JobOrder, from: Option<SortedRowKey>) -> rusqlite::Result<Self> {
        let (conn, filter) = (scan.conn, scan.filter);
        let is_descending = order.is_descending(filter.reverse);
        let (since, until) = scan.matcher.time_range();
        let (since, until) = (since.unwrap_or(-i64::MAX), until.unwrap_or(i64::MAX));
        // The start of the time is included, and its end is not.
        let (first, end) = match is_descending {
            true => ((-until, i64::MAX), (-since, i64::MAX)),
            false => ((since, i64::MIN), (until, i64::MIN)),
        };
        let queue = match &filter.queue {
            Some(name) => find_queue(conn, name)?.or(Some(-1)),
            None => None,
        };
        let mut sections = find_sections(conn, queue, filter.state)?;
        sections.retain(|(index, _)| order.states().contains(&STATE_ORDER[*index]));
        let chunk = (LIST_BATCH_MAX / sections.len().max(1)).clamp(1, SECTION_KEYS_MAX);
        let last = from.unwrap_or(first);
        let term = scan.most_selective_term();
        let sections = sections.into_iter().map(|(index, queue_no)| SortedRowSection {
            state: STATE_ORDER[index],
            queue_no,
            sql: section_sql(STATE_ORDER[index], term.is_some(), is_descending),
            keys: VecDeque::new(),
            last,
            is_exhausted: false,
        });
        let heap = BinaryHeap::new();
        let mut merge = Merge { conn, sections: sections.collect(), heap, is_descending, end, term, chunk };
        for section in 0..merge.sections.len() {
            merge.push_next(section)?;
        }
        Ok(merge)
    }

    /// Returns the next key in the order, with its section.
    fn pop(&mut self) -> rusqlite::Result<Option<(SortedRowKey, usize)>> {
        let Some(Reverse((key, section))) = self.heap.pop() else {
            return Ok(None);
        };
        self.push_next(section)?;
        Ok(Some((key, section)))
    }

    /// Puts the next key of a section into the heap.
    fn push_next(&mut self, index: usize) -> rusqlite::Result<()> {
        let section = &mut self.sections[index];
        if section.keys.is_empty() && !section.is_exhausted {
            let sign = if self.is_descending { -1 } else { 1 };
            let from_stored = |(time, job_no): SortedRowKey| (sign * time, sign * job_no);
            // The least number cannot be negated.
            let to_stored = |(time, job_no): SortedRowKey| (time.saturating_mul(sign), job_no.saturating_mul(sign));
            let ((a, b), (c, d)) = (to_stored(section.last), to_stored(self.end));
            let mut select = self.conn.prepare_cached(&section.sql)?;
            let found = select.query_map(params![section.queue_no, a, b, c, d, self.chunk, self.term], |row| {
                Ok(from_stored((row.get(0)?, row.get(1)?)))
            })?;
            section.keys = found.collect::<rusqlite::Result<_>>()?;
            section.is_exhausted = section.keys.len() < self.chunk;
            section.last = section.keys.back().copied().unwrap_or(section.last);
        }
        if let Some(key) = section.keys.pop_front() {
            self.heap.push(Reverse((key, index)));
        }
        Ok(())
    }
}

/// Selects the keys of one section after (?2, ?3) and before (?4, ?5).
fn section_sql(state: State, has_term: bool, is_descending: bool) -> String {
    let (after, before, direction) = if is_descending { ("<", ">", "DESC") } else { (">", "<", "ASC") };
    let state_no = match state {
        State::Scheduled => job_index::STATE_SCHEDULED,
        State::Dead => STATE_DEAD,
        State::Cancelled => STATE_CANCELLED,
        _ => STATE_DONE,
    };
    let (table, time, and) = match state {
        State::Scheduled | State::Dead if has_term => {
            ("duly_job_index", "due_or_ended_at", format!("AND state = {state_no} AND term = ?7"))
        }
        State::Scheduled => ("duly_scheduled", "due_at", String::new()),
        _ => ("duly_ended", "ended_at", format!("AND state = {state_no}")),
    };
    // Uses ?7, so that the query has the same parameters with and without a term.
    format!(
        "SELECT {time}, job_no FROM {table}
          WHERE queue_no = ?1 {and} AND ({time}, job_no) {after} (?2, ?3) AND ({time}, job_no) {before} (?4, ?5)
            AND (?7 IS NULL OR ?7 IS NOT NULL) ORDER BY {time} {direction}, job_no {direction} LIMIT ?6"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_queries_neither_sort_nor_scan() {
        let conn = crate::store::sqlite::file::connect_in_memory().expect("opens");
        for state in [State::Scheduled, State::Done, State::Dead, State::Cancelled] {
            for (has_term, is_descending) in [(false, false), (false, true), (true, false), (true, true)] {
                let sql = section_sql(state, has_term, is_descending);
                let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("is SQL");
                let plan = explain.query_map(params![0, 0, 0, 0, 0, 0, 0], |row| row.get::<_, String>(3));
                let plan = plan.expect("explains").collect::<rusqlite::Result<Vec<_>>>().expect("explains").join("; ");
                assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}\n{sql}");
                assert!(plan.contains("INDEX") || plan.contains("PRIMARY KEY"), "{plan}\n{sql}");
            }
        }
    }

    #[test]
    fn cursors_round_trip_as_text() {
        for key in [(0, 0), (-1_763_270_431_123_456, -7), (i64::MAX, i64::MIN)] {
            let text = encode_cursor(JobOrder::End, key);
            assert_eq!(parse_cursor(JobOrder::End, &text).expect("its own text"), key);
            assert!(parse_cursor(JobOrder::Due, &text).is_err());
        }
        assert!(parse_cursor(JobOrder::Due, "4.7.1.0.0").is_err());
    }
}
