//! One write transaction: its time, its changes of counts, and the notifications after it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::clock::Micros;
use crate::error::Result;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::Capacity;
use crate::store::sqlite::disk_reserve::DiskReserve;
use crate::store::sqlite::jobs::counts::{CountColumn, CountDeltas};
use crate::store::sqlite::nodes::wakes::{LockTurnNotice, PendingNotifications};

/// The numbers of queues. A queue keeps its number, and no other queue gets the number of a removed one.
#[derive(Default)]
pub(super) struct QueueNumbers {
    by_name: RefCell<HashMap<String, i64>>,
    /// How many queues of the file had been removed when the numbers were read.
    removed_queues: Cell<i64>,
}

impl QueueNumbers {
    /// Clears the cache. After a rollback, a number may not be assigned.
    pub(super) fn clear(&self) {
        self.by_name.borrow_mut().clear();
    }
}

/// One write transaction.
///
/// The caller begins it, calls [`Tx::flush`] last, and commits.
pub(super) struct Tx<'c> {
    pub(super) conn: &'c Connection,
    /// The time of this transaction: all its changes happen at this time.
    pub(super) now: Micros,
    queue_numbers: &'c QueueNumbers,
    /// Whether this transaction has checked that no other process has removed a queue.
    queue_numbers_checked: Cell<bool>,
    /// The next free number, once it has been read.
    next_number: Cell<Option<i64>>,
    /// The table that takes new removed ids, once it has been read.
    removed_id_half: Cell<Option<i64>>,
    notifications: RefCell<PendingNotifications>,
    /// Jobs that this transaction completes or deletes, by the number of their queue.
    completed: RefCell<Vec<(i64, Vec<JobId>)>>,
    /// The changes of counts and counters.
    deltas: RefCell<CountDeltas>,
    /// Capacities of queues, once they have been read.
    capacities: RefCell<Vec<(i64, Capacity)>>,
    /// Whether any job has progress or a log, once it has been checked.
    has_progress_rows: Cell<Option<bool>>,
    /// Whether any job has a recorded run, once it has been checked.
    has_run_rows: Cell<Option<bool>>,
    /// Whether the next transaction will take further rows of the inbox.
    has_more_inbox_rows: Cell<bool>,
    /// `None` for a store in memory.
    disk_reserve: Option<&'c DiskReserve>,
    /// Bytes of the new jobs for which there was room on the disk.
    admitted_bytes: Cell<u64>,
}

impl<'c> Tx<'c> {
    pub(super) fn new(conn: &'c Connection, now: Micros, queues: &'c QueueNumbers, history: bool) -> Self {
        Tx {
            conn,
            now,
            queue_numbers: queues,
            queue_numbers_checked: Cell::new(false),
            next_number: Cell::new(None),
            removed_id_half: Cell::new(None),
            notifications: RefCell::default(),
            completed: RefCell::default(),
            deltas: RefCell::new(CountDeltas::new(history)),
            capacities: RefCell::default(),
            has_progress_rows: Cell::new(None),
            has_run_rows: Cell::new(None),
            has_more_inbox_rows: Cell::new(false),
            disk_reserve: None,
            admitted_bytes: Cell::new(0),
        }
    }

    /// Sets the reserve that new jobs must leave free on the disk.
    pub(super) fn with_disk_reserve(self, disk_reserve: Option<&'c DiskReserve>) -> Self {
        Tx { disk_reserve, ..self }
    }

    /// Checks that the disk has room for new jobs of this size. Called before they are written.
    pub(super) fn check_disk_room(&self, op: &'static str, bytes: u64) -> rusqlite::Result<Result<()>> {
        let Some(reserve) = self.disk_reserve.filter(|_| bytes > 0) else {
            return Ok(Ok(()));
        };
        let admitted = self.admitted_bytes.get();
        let checked = reserve.check(self.conn, op, bytes, admitted)?;
        if checked.is_ok() {
            self.admitted_bytes.set(admitted + bytes);
        }
        Ok(checked)
    }

    pub(super) fn statement(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    /// Records whether the next transaction will take further rows of the inbox.
    pub(super) fn set_has_more_inbox_rows(&self, has_more: bool) {
        self.has_more_inbox_rows.set(has_more);
    }

    pub(super) fn has_more_inbox_rows(&self) -> bool {
        self.has_more_inbox_rows.get()
    }

    /// Returns a number that no job and no position in this file has had.
    pub(super) fn next_number(&self) -> rusqlite::Result<i64> {
        let next = match self.next_number.get() {
            Some(next) => next,
            None => self.read_sequence("next_number")?,
        };
        self.next_number.set(Some(next + 1));
        Ok(next)
    }

    /// Returns a fence greater than all before: the time, or the last fence plus one if the clock went back.
    pub(super) fn next_fence(&self) -> rusqlite::Result<i64> {
        self.statement("UPDATE duly_sequence SET value = max(value + 1, ?1) WHERE name = 'last_fence' RETURNING value")?
            .query_row([self.now], |row| row.get(0))
    }

    /// Returns the last fence.
    pub(super) fn last_fence(&self) -> rusqlite::Result<i64> {
        self.read_sequence("last_fence")
    }

    /// Makes all later fences greater than this one.
    pub(super) fn raise_fence(&self, fence: i64) -> rusqlite::Result<()> {
        self.statement("UPDATE duly_sequence SET value = ?1 WHERE name = 'last_fence' AND value < ?1")?
            .execute([fence])?;
        Ok(())
    }

    /// Returns the number of a queue. The first use assigns it.
    pub(super) fn ensure_queue(&self, name: &str) -> rusqlite::Result<i64> {
        if let Some(queue_no) = self.find_queue(name)? {
            return Ok(queue_no);
        }
        let queue_no: i64 = self
            .statement("INSERT INTO duly_queue (name) VALUES (?1) RETURNING queue_no")?
            .query_row([name], |row| row.get(0))?;
        self.queue_numbers.by_name.borrow_mut().insert(name.to_owned(), queue_no);
        Ok(queue_no)
    }

    /// Clears the numbers of queues if any process has removed a queue since they were read.
    fn check_queue_numbers(&self) -> rusqlite::Result<()> {
        if self.queue_numbers_checked.replace(true) {
            return Ok(());
        }
        let removed = self.read_sequence("removed_queues")?;
        if self.queue_numbers.removed_queues.replace(removed) != removed {
            self.queue_numbers.clear();
        }
        Ok(())
    }

    /// Forgets a queue whose rows this transaction has deleted. Other processes notice it with their next transaction.
    pub(super) fn forget_queue(&self, name: &str, queue: i64) -> rusqlite::Result<()> {
        self.queue_numbers.by_name.borrow_mut().remove(name);
        self.deltas.borrow_mut().forget_queue(queue);
        self.capacities.borrow_mut().retain(|(queue_no, _)| *queue_no != queue);
        self.statement("UPDATE duly_sequence SET value = value + 1 WHERE name = 'removed_queues'")?
            .execute([])
            .map(drop)
    }

    /// Returns the number of a queue, if it has one.
    pub(super) fn find_queue(&self, name: &str) -> rusqlite::Result<Option<i64>> {
        self.check_queue_numbers()?;
        if let Some(queue_no) = self.queue_numbers.by_name.borrow().get(name) {
            return Ok(Some(*queue_no));
        }
        let queue_no = self
            .statement("SELECT queue_no FROM duly_queue WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()?;
        if let Some(queue_no) = queue_no {
            self.queue_numbers.by_name.borrow_mut().insert(name.to_owned(), queue_no);
        }
        Ok(queue_no)
    }

    /// Remembers the id of a removed job, so that a repeated push changes nothing.
    pub(super) fn remember_removed_id(&self, queue: i64, id: &[u8]) -> rusqlite::Result<()> {
        let half = match self.removed_id_half.get() {
            Some(half) => half,
            None => {
                let half = self.read_sequence("removed_id_table")?;
                self.removed_id_half.set(Some(half));
                half
            }
        };
        let sql = match half {
            0 => "INSERT OR IGNORE INTO duly_removed_id_0 (queue_no, job_id) VALUES (?1, ?2)",
            _ => "INSERT OR IGNORE INTO duly_removed_id_1 (queue_no, job_id) VALUES (?1, ?2)",
        };
        self.statement(sql)?.execute(params![queue, id])?;
        Ok(())
    }

    /// Returns whether a job with this id was removed recently.
    pub(super) fn is_recently_removed(&self, queue: i64, id: JobId) -> rusqlite::Result<bool> {
        self.statement(
            "SELECT EXISTS (SELECT 1 FROM duly_removed_id_0 WHERE queue_no = ?1 AND job_id = ?2)
                 OR EXISTS (SELECT 1 FROM duly_removed_id_1 WHERE queue_no = ?1 AND job_id = ?2)",
        )?
        .query_row(params![queue, id.as_bytes()], |row| row.get(0))
    }

    /// If one table took removed ids for `remember_ids`, empties the other and lets it take over.
    pub(super) fn rotate_removed_ids(&self, remember: Micros) -> rusqlite::Result<()> {
        let swapped_at = self.read_sequence("removed_id_swapped_at")?;
        if swapped_at > self.now {
            // The clock was ahead. Otherwise no id would be forgotten until then.
            return self.set_sequence("removed_id_swapped_at", self.now);
        }
        if self.now - swapped_at < remember {
            return Ok(());
        }
        let next = 1 - self.read_sequence("removed_id_table")?;
        let forget = match next {
            0 => "DELETE FROM duly_removed_id_0",
            _ => "DELETE FROM duly_removed_id_1",
        };
        self.statement(forget)?.execute([])?;
        self.set_sequence("removed_id_table", next)?;
        self.set_sequence("removed_id_swapped_at", self.now)?;
        self.removed_id_half.set(Some(next));
        Ok(())
    }

    /// Wakes one idle node for this queue after the commit.
    pub(super) fn wake_one(&self, queue: &str) {
        let queues = &mut self.notifications.borrow_mut().wake_one;
        if !queues.contains(queue) {
            queues.insert(queue.to_owned());
        }
    }

    /// Wakes all idle nodes for this queue after the commit.
    pub(super) fn wake_all(&self, queue: &str) {
        self.notifications.borrow_mut().wake_all.insert(queue.to_owned());
    }

    /// Notifies a lock waiter of its turn after the commit.
    pub(super) fn notify_lock_turn(&self, called: LockTurnNotice) {
        self.notifications.borrow_mut().lock_turns.push(called);
    }

    /// Notifies the nodes that wait for this job after the commit.
    pub(super) fn notify_completed(&self, queue: i64, id: JobId) {
        let mut completed = self.completed.borrow_mut();
        match completed.iter_mut().find(|(queue_no, _)| *queue_no == queue) {
            Some((_, ids)) => ids.push(id),
            None => completed.push((queue, vec![id])),
        }
    }

    /// Makes a node send a heartbeat after the commit, because its reply has news.
    pub(super) fn request_heartbeat(&self, node: NodeId) {
        self.notifications.borrow_mut().heartbeats.push(node);
    }

    /// Returns the name of a queue.
    fn find_queue_name(&self, queue: i64) -> Option<String> {
        let cached = self
            .queue_numbers
            .by_name
            .borrow()
            .iter()
            .find(|(_, queue_no)| **queue_no == queue)
            .map(|(name, _)| name.clone());
        cached.or_else(|| {
            let mut statement = self.statement("SELECT name FROM duly_queue WHERE queue_no = ?1").ok()?;
            statement.query_row([queue], |row| row.get(0)).ok()
        })
    }

    /// Adds to a count of this queue.
    pub(super) fn change_count(&self, queue: i64, of: CountColumn, more: i64) {
        self.deltas.borrow_mut().change_count(queue, of, more);
    }

    /// Adds to a counter of this queue's history.
    pub(super) fn increment_counter(&self, queue: i64, index: usize, times: u64) {
        self.deltas.borrow_mut().increment_counter(queue, index, times);
    }

    /// Returns the changes so far, for [`Tx::restore`].
    pub(super) fn save_deltas(&self) -> CountDeltas {
        self.deltas.borrow().clone()
    }

    /// Restores earlier changes. The caller must roll back the rows that were written since.
    pub(super) fn restore_deltas(&self, deltas: CountDeltas) {
        *self.deltas.borrow_mut() = deltas;
        self.queue_numbers.clear();
        self.capacities.borrow_mut().clear();
    }

    /// Returns the capacity of a queue.
    pub(super) fn capacity(&self, queue: i64) -> rusqlite::Result<Capacity> {
        if let Some((_, capacity)) = self.capacities.borrow().iter().find(|(queue_no, _)| *queue_no == queue) {
            return Ok(*capacity);
        }
        let capacity = crate::store::sqlite::jobs::capacity::queue_capacity(self.conn, queue)?;
        self.capacities.borrow_mut().push((queue, capacity));
        Ok(capacity)
    }

    /// Clears the cache of capacities.
    pub(super) fn clear_capacities(&self) {
        self.capacities.borrow_mut().clear();
    }

    /// Returns whether any job has progress or a log. Most stores have none, which saves two deletions per job.
    pub(super) fn has_progress_rows(&self) -> rusqlite::Result<bool> {
        if let Some(noted) = self.has_progress_rows.get() {
            return Ok(noted);
        }
        let noted = self
            .statement("SELECT EXISTS (SELECT 1 FROM duly_progress) OR EXISTS (SELECT 1 FROM duly_log)")?
            .query_row([], |row| row.get(0))?;
        self.has_progress_rows.set(Some(noted));
        Ok(noted)
    }

    /// Records that a job now has progress or a log.
    pub(super) fn mark_progress_written(&self) {
        self.has_progress_rows.set(Some(true));
    }

    /// Returns whether any job has a recorded run. While none has, each deleted job saves a deletion.
    pub(super) fn has_run_rows(&self) -> rusqlite::Result<bool> {
        if let Some(recorded) = self.has_run_rows.get() {
            return Ok(recorded);
        }
        let recorded = self.statement("SELECT EXISTS (SELECT 1 FROM duly_run)")?.query_row([], |row| row.get(0))?;
        self.has_run_rows.set(Some(recorded));
        Ok(recorded)
    }

    /// Records that a job now has a recorded run.
    pub(super) fn mark_runs_written(&self) {
        self.has_run_rows.set(Some(true));
    }

    /// Writes the collected changes. Called once, last.
    pub(super) fn flush(&self) -> rusqlite::Result<()> {
        self.deltas.borrow_mut().write(self)?;
        match self.next_number.get() {
            Some(next) => self.set_sequence("next_number", next),
            None => Ok(()),
        }
    }

    pub(super) fn into_notifications(self) -> PendingNotifications {
        let completed = self.completed.take().into_iter();
        let completed = completed.filter_map(|(queue, ids)| Some((self.find_queue_name(queue)?, ids))).collect();
        PendingNotifications { completed, ..self.notifications.into_inner() }
    }

    fn read_sequence(&self, name: &str) -> rusqlite::Result<i64> {
        self.statement("SELECT value FROM duly_sequence WHERE name = ?1")?.query_row([name], |row| row.get(0))
    }

    fn set_sequence(&self, name: &str, value: i64) -> rusqlite::Result<()> {
        self.statement("UPDATE duly_sequence SET value = ?2 WHERE name = ?1")?.execute(params![name, value])?;
        Ok(())
    }
}
