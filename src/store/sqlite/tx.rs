//! One write transaction: its time, its share of the counters, and whom to tell after it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::count::{Deltas, Of};
use super::wake::{Called, News};
use crate::clock::Micros;
use crate::job::JobId;
use crate::store::Capacity;

/// Numbers of queues, which never change once they are given.
#[derive(Default)]
pub(super) struct Queues(RefCell<HashMap<String, i64>>);

impl Queues {
    /// After a rollback a number may not have been given after all.
    pub(super) fn forget(&self) {
        self.0.borrow_mut().clear();
    }
}

/// One write transaction.
///
/// Whoever makes one has begun it, calls [`Tx::flush`] last, and commits.
pub(super) struct Tx<'c> {
    pub(super) conn: &'c Connection,
    /// The moment of this transaction: everything in it happens now.
    pub(super) now: Micros,
    queues: &'c Queues,
    /// The next free number, once it has been read.
    number: Cell<Option<i64>>,
    /// The half of the remembered ids that is written to, once it has been read.
    half: Cell<Option<i64>>,
    news: RefCell<News>,
    /// Jobs that are done, dead or deleted by this transaction, by the number of their queue: there are few.
    ended: RefCell<Vec<(i64, Vec<JobId>)>>,
    /// What this transaction changes about how many jobs are where.
    deltas: RefCell<Deltas>,
    /// Limits of queues, once they have been read.
    limits: RefCell<Vec<(i64, Capacity)>>,
    /// Whether any job has notes, once that has been looked for.
    noted: Cell<Option<bool>>,
}

impl<'c> Tx<'c> {
    pub(super) fn new(conn: &'c Connection, now: Micros, queues: &'c Queues, history: bool) -> Self {
        Tx {
            conn,
            now,
            queues,
            number: Cell::new(None),
            half: Cell::new(None),
            news: RefCell::default(),
            ended: RefCell::default(),
            deltas: RefCell::new(Deltas::new(history)),
            limits: RefCell::default(),
            noted: Cell::new(None),
        }
    }

    pub(super) fn statement(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    /// A number that no job and no place in this file has had.
    pub(super) fn number(&self) -> rusqlite::Result<i64> {
        let next = match self.number.get() {
            Some(next) => next,
            None => self.mark("number")?,
        };
        self.number.set(Some(next + 1));
        Ok(next)
    }

    /// A fence greater than all before: the time, or one more than the last if the clock has gone back.
    pub(super) fn fence(&self) -> rusqlite::Result<i64> {
        self.statement("UPDATE duly_mark SET value = max(value + 1, ?1) WHERE name = 'fence' RETURNING value")?
            .query_row([self.now], |row| row.get(0))
    }

    /// The last fence that was drawn.
    pub(super) fn last_fence(&self) -> rusqlite::Result<i64> {
        self.mark("fence")
    }

    /// From now on fences are greater than this one too.
    pub(super) fn raise_fence(&self, fence: i64) -> rusqlite::Result<()> {
        self.statement("UPDATE duly_mark SET value = ?1 WHERE name = 'fence' AND value < ?1")?.execute([fence])?;
        Ok(())
    }

    /// The number of a queue, given at its first use.
    pub(super) fn queue(&self, name: &str) -> rusqlite::Result<i64> {
        if let Some(no) = self.known_queue(name)? {
            return Ok(no);
        }
        let no: i64 = self
            .statement("INSERT INTO duly_queue (name) VALUES (?1) RETURNING no")?
            .query_row([name], |row| row.get(0))?;
        self.queues.0.borrow_mut().insert(name.to_owned(), no);
        Ok(no)
    }

    /// The number of a queue, if it has one.
    pub(super) fn known_queue(&self, name: &str) -> rusqlite::Result<Option<i64>> {
        if let Some(no) = self.queues.0.borrow().get(name) {
            return Ok(Some(*no));
        }
        let no = self
            .statement("SELECT no FROM duly_queue WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()?;
        if let Some(no) = no {
            self.queues.0.borrow_mut().insert(name.to_owned(), no);
        }
        Ok(no)
    }

    /// Remembers that a job with this id was here, so that a repeated push of it changes nothing.
    pub(super) fn remember(&self, queue: i64, id: &[u8]) -> rusqlite::Result<()> {
        let half = match self.half.get() {
            Some(half) => half,
            None => {
                let half = self.mark("gone_half")?;
                self.half.set(Some(half));
                half
            }
        };
        let sql = match half {
            0 => "INSERT OR IGNORE INTO duly_gone_0 (queue, id) VALUES (?1, ?2)",
            _ => "INSERT OR IGNORE INTO duly_gone_1 (queue, id) VALUES (?1, ?2)",
        };
        self.statement(sql)?.execute(params![queue, id])?;
        Ok(())
    }

    /// Whether a job with this id was here not long ago.
    pub(super) fn remembers(&self, queue: i64, id: JobId) -> rusqlite::Result<bool> {
        self.statement(
            "SELECT EXISTS (SELECT 1 FROM duly_gone_0 WHERE queue = ?1 AND id = ?2)
                 OR EXISTS (SELECT 1 FROM duly_gone_1 WHERE queue = ?1 AND id = ?2)",
        )?
        .query_row(params![queue, id.as_bytes()], |row| row.get(0))
    }

    /// Forgets the older half of the remembered ids if the newer one has been filled for `remember` already.
    pub(super) fn swap_gone(&self, remember: Micros) -> rusqlite::Result<()> {
        if self.now - self.mark("gone_since")? < remember {
            return Ok(());
        }
        let next = 1 - self.mark("gone_half")?;
        let forget = match next {
            0 => "DELETE FROM duly_gone_0",
            _ => "DELETE FROM duly_gone_1",
        };
        self.statement(forget)?.execute([])?;
        self.set_mark("gone_half", next)?;
        self.set_mark("gone_since", self.now)?;
        self.half.set(Some(next));
        Ok(())
    }

    /// After the commit, somebody should look into this queue.
    pub(super) fn wake(&self, queue: &str) {
        let queues = &mut self.news.borrow_mut().queues;
        if !queues.contains(queue) {
            queues.insert(queue.to_owned());
        }
    }

    /// After the commit, everybody who has room should look into this queue.
    pub(super) fn wake_all(&self, queue: &str) {
        self.news.borrow_mut().all.insert(queue.to_owned());
    }

    /// After the commit, somebody in line should hear that it is its turn.
    pub(super) fn call(&self, called: Called) {
        self.news.borrow_mut().turns.push(called);
    }

    /// After the commit, whoever waits for this job should hear that it has ended.
    pub(super) fn ended(&self, queue: i64, id: JobId) {
        let mut ended = self.ended.borrow_mut();
        match ended.iter_mut().find(|(no, _)| *no == queue) {
            Some((_, ids)) => ids.push(id),
            None => ended.push((queue, vec![id])),
        }
    }

    /// The name of a queue that has this number.
    fn name_of(&self, queue: i64) -> Option<String> {
        let known = self.queues.0.borrow().iter().find(|(_, no)| **no == queue).map(|(name, _)| name.clone());
        known.or_else(|| {
            let mut look = self.statement("SELECT name FROM duly_queue WHERE no = ?1").ok()?;
            look.query_row([queue], |row| row.get(0)).ok()
        })
    }

    /// So many more jobs, or bytes, are there in this queue.
    pub(super) fn add(&self, queue: i64, of: Of, more: i64) {
        self.deltas.borrow_mut().add(queue, of, more);
    }

    /// So many more things have happened in this queue, counted at this place of a tally.
    pub(super) fn happened(&self, queue: i64, place: usize, times: u64) {
        self.deltas.borrow_mut().happened(queue, place, times);
    }

    /// What has changed so far in this transaction, to come back to with [`Tx::restore`].
    pub(super) fn deltas(&self) -> Deltas {
        self.deltas.borrow().clone()
    }

    /// Takes back what was counted since; and what was written since must be rolled back too.
    pub(super) fn restore(&self, deltas: Deltas) {
        *self.deltas.borrow_mut() = deltas;
        self.queues.forget();
        self.limits.borrow_mut().clear();
    }

    /// How much may be in a queue.
    pub(super) fn capacity(&self, queue: i64) -> rusqlite::Result<Capacity> {
        if let Some((_, limit)) = self.limits.borrow().iter().find(|(no, _)| *no == queue) {
            return Ok(*limit);
        }
        let limit = super::limit::of_queue(self.conn, queue)?;
        self.limits.borrow_mut().push((queue, limit));
        Ok(limit)
    }

    /// After this a limit is read anew.
    pub(super) fn forget_limits(&self) {
        self.limits.borrow_mut().clear();
    }

    /// Whether any job has notes: mostly none has, and then nobody needs to look for them.
    pub(super) fn any_notes(&self) -> rusqlite::Result<bool> {
        if let Some(noted) = self.noted.get() {
            return Ok(noted);
        }
        let noted = self
            .statement("SELECT EXISTS (SELECT 1 FROM duly_note) OR EXISTS (SELECT 1 FROM duly_log)")?
            .query_row([], |row| row.get(0))?;
        self.noted.set(Some(noted));
        Ok(noted)
    }

    /// Some job has notes now.
    pub(super) fn has_noted(&self) {
        self.noted.set(Some(true));
    }

    /// Writes back what was counted in memory. Called once, last.
    pub(super) fn flush(&self) -> rusqlite::Result<()> {
        self.deltas.borrow_mut().write(self)?;
        match self.number.get() {
            Some(next) => self.set_mark("number", next),
            None => Ok(()),
        }
    }

    pub(super) fn into_news(self) -> News {
        let ended = self.ended.take().into_iter();
        let ended = ended.filter_map(|(queue, ids)| Some((self.name_of(queue)?, ids))).collect();
        News { ended, ..self.news.into_inner() }
    }

    fn mark(&self, name: &str) -> rusqlite::Result<i64> {
        self.statement("SELECT value FROM duly_mark WHERE name = ?1")?.query_row([name], |row| row.get(0))
    }

    fn set_mark(&self, name: &str, value: i64) -> rusqlite::Result<()> {
        self.statement("UPDATE duly_mark SET value = ?2 WHERE name = ?1")?.execute(params![name, value])?;
        Ok(())
    }
}
