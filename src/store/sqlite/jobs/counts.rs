//! Counts of jobs by state, and counters of events. A transaction collects them and writes them once, at its end.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::Micros;
use crate::store::sqlite::stats::add_to_hour;
use crate::store::sqlite::tx::Tx;
use crate::store::{HISTORY_MINUTES_MAX, STAT_NUMBERS};

/// A minute, in microseconds.
pub(crate) const MINUTE_MICROS: Micros = 60_000_000;

/// The counts of a queue, in the order of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountColumn {
    Scheduled,
    Ready,
    Running,
    Done,
    Dead,
    Cancelled,
    /// Bytes of args of unfinished jobs.
    UnfinishedBytes,
}

/// The changes of one queue.
#[derive(Clone)]
struct QueueDelta {
    queue_no: i64,
    counts: [i64; 7],
    /// `None` until an event is counted for the history.
    counters: Option<Box<[u64; STAT_NUMBERS]>>,
}

/// The changes of one transaction. A linear search is enough: a transaction touches few queues.
#[derive(Clone)]
pub(crate) struct CountDeltas {
    queues: Vec<QueueDelta>,
    /// Whether events are counted.
    history_enabled: bool,
}

impl CountDeltas {
    pub(crate) fn new(history: bool) -> Self {
        CountDeltas { queues: Vec::new(), history_enabled: history }
    }

    fn queue_mut(&mut self, queue: i64) -> &mut QueueDelta {
        let index = self.queues.iter().position(|delta| delta.queue_no == queue).unwrap_or_else(|| {
            self.queues.push(QueueDelta { queue_no: queue, counts: [0; 7], counters: None });
            self.queues.len() - 1
        });
        &mut self.queues[index]
    }

    /// Drops the changes of a queue that is removed.
    pub(crate) fn forget_queue(&mut self, queue: i64) {
        self.queues.retain(|delta| delta.queue_no != queue);
    }

    pub(crate) fn change_count(&mut self, queue: i64, of: CountColumn, more: i64) {
        self.queue_mut(queue).counts[of as usize] += more;
    }

    pub(crate) fn increment_counter(&mut self, queue: i64, index: usize, times: u64) {
        if !self.history_enabled {
            return;
        }
        let counters = self.queue_mut(queue).counters.get_or_insert_with(|| Box::new([0; STAT_NUMBERS]));
        if let Some(count) = counters.get_mut(index) {
            *count += times;
        }
    }

    /// Returns the unfinished jobs and their bytes that this transaction adds to a queue.
    pub(crate) fn unfinished_delta(&self, queue: i64) -> (i64, i64) {
        let counts = self.queues.iter().find(|delta| delta.queue_no == queue).map_or([0; 7], |delta| delta.counts);
        let bytes = counts[CountColumn::UnfinishedBytes as usize];
        (counts[0] + counts[1] + counts[2], bytes)
    }

    /// Writes all changes.
    pub(crate) fn write(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        for delta in std::mem::take(&mut self.queues) {
            let [scheduled, ready, running, done, dead, cancelled, bytes] = delta.counts;
            let row = params![delta.queue_no, scheduled, ready, running, done, dead, cancelled, bytes];
            let changed = match &delta.counters {
                None if delta.counts == [0; 7] => 1,
                None => tx
                    .statement(
                        "UPDATE duly_queue_stats SET scheduled = scheduled + ?2, ready = ready + ?3,
                           running = running + ?4, done = done + ?5, dead = dead + ?6, cancelled = cancelled + ?7,
                           unfinished_bytes = unfinished_bytes + ?8
                          WHERE queue_no = ?1",
                    )?
                    .execute(row)?,
                Some(counters) => {
                    let (minute, packed) = roll_minute(tx, delta.queue_no, counters)?;
                    tx.statement(
                        "UPDATE duly_queue_stats SET scheduled = scheduled + ?2, ready = ready + ?3,
                           running = running + ?4, done = done + ?5, dead = dead + ?6, cancelled = cancelled + ?7,
                           unfinished_bytes = unfinished_bytes + ?8, minute = ?9, counters = ?10
                          WHERE queue_no = ?1",
                    )?
                    .execute(params![
                        delta.queue_no,
                        scheduled,
                        ready,
                        running,
                        done,
                        dead,
                        cancelled,
                        bytes,
                        minute,
                        packed
                    ])?
                }
            };
            if changed == 0 {
                let packed = pack_counters(delta.counters.as_deref().unwrap_or(&[0; STAT_NUMBERS]));
                tx.statement(
                    "INSERT INTO duly_queue_stats
                       (queue_no, scheduled, ready, running, done, dead, cancelled, unfinished_bytes, minute, counters)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                )?
                .execute(params![
                    delta.queue_no,
                    scheduled,
                    ready,
                    running,
                    done,
                    dead,
                    cancelled,
                    bytes,
                    tx.now.div_euclid(MINUTE_MICROS),
                    packed
                ])?;
            }
        }
        Ok(())
    }
}

/// Returns the current minute and its counters. If a new minute has begun, the last one moves to the history.
fn roll_minute(tx: &Tx<'_>, queue: i64, counters: &[u64; STAT_NUMBERS]) -> rusqlite::Result<(i64, Vec<u8>)> {
    let minute = tx.now.div_euclid(MINUTE_MICROS);
    let last: Option<(i64, Vec<u8>)> = tx
        .statement("SELECT minute, counters FROM duly_queue_stats WHERE queue_no = ?1")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((last_minute, last)) = last else {
        return Ok((minute, pack_counters(counters)));
    };
    if last_minute == minute {
        return Ok((minute, pack_counters(&add_counters(&unpack_counters(&last), counters))));
    }
    // A clock that went back may reach a minute a second time.
    let before: Option<Vec<u8>> = tx
        .statement("SELECT counters FROM duly_history WHERE queue_no = ?1 AND minute = ?2")?
        .query_row(params![queue, last_minute], |row| row.get(0))
        .optional()?;
    let whole = before.map_or(last.clone(), |before| {
        pack_counters(&add_counters(&unpack_counters(&before), &unpack_counters(&last)))
    });
    if unpack_counters(&whole) != [0; STAT_NUMBERS] {
        tx.statement("INSERT OR REPLACE INTO duly_history (queue_no, minute, counters) VALUES (?1, ?2, ?3)")?
            .execute(params![queue, last_minute, whole])?;
    }
    add_to_total(tx, queue, &unpack_counters(&last))?;
    add_to_hour(tx, queue, last_minute, &unpack_counters(&last))?;
    tx.statement("DELETE FROM duly_history WHERE queue_no = ?1 AND minute <= ?2")?
        .execute(params![queue, minute - i64::from(HISTORY_MINUTES_MAX)])?;
    Ok((minute, pack_counters(counters)))
}

/// Adds a finished minute to the totals of a queue.
fn add_to_total(tx: &Tx<'_>, queue: i64, minute: &[u64; STAT_NUMBERS]) -> rusqlite::Result<()> {
    let before: Option<Vec<u8>> = tx
        .statement("SELECT counters FROM duly_queue_total WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))
        .optional()?;
    let whole = pack_counters(&add_counters(&unpack_counters(&before.unwrap_or_default()), minute));
    tx.statement("INSERT OR REPLACE INTO duly_queue_total (queue_no, counters) VALUES (?1, ?2)")?
        .execute(params![queue, whole])?;
    Ok(())
}

pub(crate) fn add_counters(a: &[u64; STAT_NUMBERS], b: &[u64; STAT_NUMBERS]) -> [u64; STAT_NUMBERS] {
    let mut out = *a;
    out.iter_mut().zip(b).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    out
}

/// Packs numbers into bytes of seven bits, lowest first. Trailing zeroes are left out.
pub(crate) fn pack_counters(numbers: &[u64; STAT_NUMBERS]) -> Vec<u8> {
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

pub(crate) fn unpack_counters(bytes: &[u8]) -> [u64; STAT_NUMBERS] {
    let mut out = [0; STAT_NUMBERS];
    let (mut index, mut shift) = (0, 0);
    for byte in bytes {
        if let Some(number) = out.get_mut(index) {
            *number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        }
        (index, shift) = if byte & 0x80 == 0 { (index + 1, 0) } else { (index, shift + 7) };
    }
    out
}

/// Recounts all jobs and rebuilds the job index after a repair. The counters of events cannot be recounted and stay.
pub(crate) fn recount(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!(
        "DELETE FROM duly_queue_stats WHERE queue_no NOT IN (SELECT queue_no FROM duly_queue);
         INSERT OR REPLACE INTO duly_queue_stats
           (queue_no, scheduled, ready, running, done, dead, cancelled, unfinished_bytes, minute, counters)
         SELECT q.queue_no,
                (SELECT count(*) FROM duly_scheduled p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_ready p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_running p WHERE p.queue_no = q.queue_no),
                (SELECT count(*) FROM duly_ended p WHERE p.queue_no = q.queue_no AND p.state = 3),
                (SELECT count(*) FROM duly_ended p WHERE p.queue_no = q.queue_no AND p.state = 4),
                (SELECT count(*) FROM duly_ended p WHERE p.queue_no = q.queue_no AND p.state = 5),
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
         {TERMS} INSERT INTO duly_job_index (queue_no, state, term, due_or_ended_at, job_no)
           SELECT queue_no, state, term, due_or_ended_at, job_no FROM wanted;",
        TERMS = crate::store::sqlite::jobs::job_index::EXPECTED_TERMS_CTE
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_counters_are_unpacked_unchanged(numbers in proptest::collection::vec(prop_oneof![Just(0), 0..300u64, any::<u64>()], STAT_NUMBERS)) {
            let numbers: [u64; STAT_NUMBERS] = numbers.try_into().expect("as many");
            prop_assert_eq!(unpack_counters(&pack_counters(&numbers)), numbers);
        }

        #[test]
        fn any_bytes_can_be_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack_counters(&bytes);
        }
    }
}
