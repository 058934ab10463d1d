//! Counts of jobs by state, and counters of events. A transaction collects them and writes them once, at its end.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{Micros, from_micros};
use crate::store::sqlite::rows::text;
use crate::store::sqlite::tx::Tx;
use crate::store::{HISTORY_MINUTES_MAX, History, HistoryAsk, HistoryTally, Point, TALLY};

/// A minute, in microseconds.
pub(crate) const MINUTE: Micros = 60_000_000;

/// The counts of a queue, in the order of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Scheduled,
    Ready,
    Running,
    Done,
    Dead,
    /// Bytes of args of unfinished jobs.
    Bytes,
}

/// The changes of one queue.
#[derive(Clone)]
struct Delta {
    queue: i64,
    counts: [i64; 6],
    /// `None` until an event is counted for the history.
    tally: Option<Box<[u64; TALLY]>>,
}

/// The changes of one transaction. A linear search is enough: a transaction touches few queues.
#[derive(Clone)]
pub(crate) struct Deltas {
    of: Vec<Delta>,
    /// Whether events are counted.
    history: bool,
}

impl Deltas {
    pub(crate) fn new(history: bool) -> Self {
        Deltas { of: Vec::new(), history }
    }

    fn of(&mut self, queue: i64) -> &mut Delta {
        let at = self.of.iter().position(|delta| delta.queue == queue).unwrap_or_else(|| {
            self.of.push(Delta { queue, counts: [0; 6], tally: None });
            self.of.len() - 1
        });
        &mut self.of[at]
    }

    pub(crate) fn add(&mut self, queue: i64, of: Of, more: i64) {
        self.of(queue).counts[of as usize] += more;
    }

    pub(crate) fn happened(&mut self, queue: i64, place: usize, times: u64) {
        if !self.history {
            return;
        }
        let tally = self.of(queue).tally.get_or_insert_with(|| Box::new([0; TALLY]));
        if let Some(count) = tally.get_mut(place) {
            *count += times;
        }
    }

    /// Returns the unfinished jobs and their bytes that this transaction adds to a queue.
    pub(crate) fn unfinished(&self, queue: i64) -> (i64, i64) {
        let counts = self.of.iter().find(|delta| delta.queue == queue).map_or([0; 6], |delta| delta.counts);
        (counts[0] + counts[1] + counts[2], counts[5])
    }

    /// Writes all changes.
    pub(crate) fn write(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        for delta in std::mem::take(&mut self.of) {
            let [scheduled, ready, running, done, dead, bytes] = delta.counts;
            let row = params![delta.queue, scheduled, ready, running, done, dead, bytes];
            let changed = match &delta.tally {
                None if delta.counts == [0; 6] => 1,
                None => tx
                    .statement(
                        "UPDATE duly_queue_stats SET scheduled = scheduled + ?2, ready = ready + ?3,
                           running = running + ?4, done = done + ?5, dead = dead + ?6,
                           unfinished_bytes = unfinished_bytes + ?7
                          WHERE queue_no = ?1",
                    )?
                    .execute(row)?,
                Some(tally) => {
                    let (minute, packed) = turn(tx, delta.queue, tally)?;
                    tx.statement(
                        "UPDATE duly_queue_stats SET scheduled = scheduled + ?2, ready = ready + ?3,
                           running = running + ?4, done = done + ?5, dead = dead + ?6,
                           unfinished_bytes = unfinished_bytes + ?7, minute = ?8, counters = ?9
                          WHERE queue_no = ?1",
                    )?
                    .execute(params![
                        delta.queue,
                        scheduled,
                        ready,
                        running,
                        done,
                        dead,
                        bytes,
                        minute,
                        packed
                    ])?
                }
            };
            if changed == 0 {
                let packed = pack(delta.tally.as_deref().unwrap_or(&[0; TALLY]));
                tx.statement(
                    "INSERT INTO duly_queue_stats
                       (queue_no, scheduled, ready, running, done, dead, unfinished_bytes, minute, counters)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                )?
                .execute(params![
                    delta.queue,
                    scheduled,
                    ready,
                    running,
                    done,
                    dead,
                    bytes,
                    tx.now.div_euclid(MINUTE),
                    packed
                ])?;
            }
        }
        Ok(())
    }
}

/// Returns the current minute and its counters. If a new minute has begun, the last one moves to the history.
fn turn(tx: &Tx<'_>, queue: i64, tally: &[u64; TALLY]) -> rusqlite::Result<(i64, Vec<u8>)> {
    let minute = tx.now.div_euclid(MINUTE);
    let last: Option<(i64, Vec<u8>)> = tx
        .statement("SELECT minute, counters FROM duly_queue_stats WHERE queue_no = ?1")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((last_minute, last)) = last else {
        return Ok((minute, pack(tally)));
    };
    if last_minute == minute {
        return Ok((minute, pack(&sum(&unpack(&last), tally))));
    }
    // A clock that went back may reach a minute a second time.
    let before: Option<Vec<u8>> = tx
        .statement("SELECT counters FROM duly_history WHERE queue_no = ?1 AND minute = ?2")?
        .query_row(params![queue, last_minute], |row| row.get(0))
        .optional()?;
    let whole = before.map_or(last.clone(), |before| pack(&sum(&unpack(&before), &unpack(&last))));
    if unpack(&whole) != [0; TALLY] {
        tx.statement("INSERT OR REPLACE INTO duly_history (queue_no, minute, counters) VALUES (?1, ?2, ?3)")?
            .execute(params![queue, last_minute, whole])?;
    }
    total(tx, queue, &unpack(&last))?;
    tx.statement("DELETE FROM duly_history WHERE queue_no = ?1 AND minute <= ?2")?
        .execute(params![queue, minute - i64::from(HISTORY_MINUTES_MAX)])?;
    Ok((minute, pack(tally)))
}

/// Adds a finished minute to the totals of a queue.
fn total(tx: &Tx<'_>, queue: i64, minute: &[u64; TALLY]) -> rusqlite::Result<()> {
    let before: Option<Vec<u8>> = tx
        .statement("SELECT counters FROM duly_queue_total WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))
        .optional()?;
    let whole = pack(&sum(&unpack(&before.unwrap_or_default()), minute));
    tx.statement("INSERT OR REPLACE INTO duly_queue_total (queue_no, counters) VALUES (?1, ?2)")?
        .execute(params![queue, whole])?;
    Ok(())
}

/// Implements `totals` of the store contract: the finished minutes and the current one.
pub(crate) fn totals(conn: &Connection) -> rusqlite::Result<Vec<(String, HistoryTally)>> {
    conn.prepare_cached(
        "SELECT q.name, coalesce(t.counters, x''), coalesce(c.counters, x'') FROM duly_queue q
           LEFT JOIN duly_queue_total t ON t.queue_no = q.queue_no
           LEFT JOIN duly_queue_stats c ON c.queue_no = q.queue_no ORDER BY q.name",
    )?
    .query_map([], |row| {
        let (over, present): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(2)?);
        Ok((text(row, 0)?, HistoryTally::from_numbers(&sum(&unpack(&over), &unpack(&present)))))
    })?
    .collect()
}

pub(crate) fn sum(a: &[u64; TALLY], b: &[u64; TALLY]) -> [u64; TALLY] {
    let mut out = *a;
    out.iter_mut().zip(b).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    out
}

/// Packs numbers into bytes of seven bits, lowest first. Trailing zeroes are left out.
pub(crate) fn pack(numbers: &[u64; TALLY]) -> Vec<u8> {
    let len = numbers.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    let mut out = Vec::with_capacity(len + 8);
    for mut number in numbers[..len].iter().copied() {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }
    out
}

pub(crate) fn unpack(bytes: &[u8]) -> [u64; TALLY] {
    let mut out = [0; TALLY];
    let (mut at, mut shift) = (0, 0);
    for byte in bytes {
        if let Some(number) = out.get_mut(at) {
            *number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        }
        (at, shift) = if byte & 0x80 == 0 { (at + 1, 0) } else { (at, shift + 7) };
    }
    out
}

/// Implements `history` of the store contract.
pub(crate) fn asked(conn: &Connection, ask: &HistoryAsk, now: Micros) -> rusqlite::Result<History> {
    let mut history = History { now: Some(from_micros(now)), ..History::default() };
    let queue = match &ask.queue {
        Some(name) => match crate::store::sqlite::jobs::query::queue_no(conn, name)? {
            Some(queue_no) => Some(queue_no),
            None => return Ok(history),
        },
        None => None,
    };
    let minutes = if ask.minutes == 0 { HISTORY_MINUTES_MAX } else { ask.minutes.min(HISTORY_MINUTES_MAX) };
    let first = now.div_euclid(MINUTE) - i64::from(minutes) + 1;
    let point = |(queue, minute, tally)| Point { minute: from_micros(minute * MINUTE), queue, tally };
    history.points = self::history(conn, queue, first)?.into_iter().map(point).collect();
    Ok(history)
}

/// Returns queue, minute and counters of each minute from `first` on, oldest first.
fn history(conn: &Connection, queue: Option<i64>, first: i64) -> rusqlite::Result<Vec<(String, i64, HistoryTally)>> {
    conn.prepare_cached(
        "SELECT q.name, h.minute, h.counters FROM duly_queue q
           JOIN (SELECT queue_no, minute, counters FROM duly_history
                 UNION ALL SELECT queue_no, minute, counters FROM duly_queue_stats) h ON h.queue_no = q.queue_no
          WHERE h.minute >= ?2 AND (?1 IS NULL OR q.queue_no = ?1) AND h.counters <> x'' ORDER BY h.minute, q.name",
    )?
    .query_map(params![queue, first], |row| {
        let tally: Vec<u8> = row.get(2)?;
        Ok((text(row, 0)?, row.get(1)?, HistoryTally::from_numbers(&unpack(&tally))))
    })?
    .collect()
}

/// Recounts all jobs and rebuilds the job index: for a file that was created without them, and after a repair. The
/// counters of events cannot be recounted and stay.
pub(crate) fn recount(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!(
        "DELETE FROM duly_queue_stats WHERE queue_no NOT IN (SELECT queue_no FROM duly_queue);
         INSERT OR REPLACE INTO duly_queue_stats
           (queue_no, scheduled, ready, running, done, dead, unfinished_bytes, minute, counters)
         SELECT q.queue_no,
                (SELECT count(*) FROM duly_scheduled p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_ready p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_running p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_ended p WHERE p.queue_no = q.queue_no AND p.state = 3),
                (SELECT count(*) FROM duly_ended p WHERE p.queue_no = q.queue_no AND p.state = 4),
                (SELECT coalesce(sum(octet_length(j.args)), 0) FROM duly_job j
                  WHERE j.queue_no = q.queue_no AND NOT EXISTS (SELECT 1 FROM duly_ended e WHERE e.job_no = j.job_no)),
                coalesce((SELECT minute FROM duly_queue_stats c WHERE c.queue_no = q.queue_no), 0),
                coalesce((SELECT counters FROM duly_queue_stats c WHERE c.queue_no = q.queue_no), x'')
           FROM duly_queue q;
         UPDATE duly_ended SET group_no = NULL WHERE state <> 4 OR group_no NOT IN
           (SELECT group_no FROM duly_dead_group);
         UPDATE duly_dead_group SET count =
           (SELECT count(*) FROM duly_ended e WHERE e.group_no = duly_dead_group.group_no);
         DELETE FROM duly_dead_group WHERE count = 0;
         DELETE FROM duly_job_index;
         {WORDS} INSERT INTO duly_job_index (queue_no, state, term, due_or_ended_at, job_no)
           SELECT queue_no, state, term, due_or_ended_at, job_no FROM wanted;",
        WORDS = crate::store::sqlite::jobs::job_index::WORDS
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tallies_survive_packing(numbers in proptest::collection::vec(prop_oneof![Just(0), 0..300u64, any::<u64>()], TALLY)) {
            let numbers: [u64; TALLY] = numbers.try_into().expect("as many");
            prop_assert_eq!(unpack(&pack(&numbers)), numbers);
        }

        #[test]
        fn any_bytes_can_be_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&bytes);
        }
    }
}
