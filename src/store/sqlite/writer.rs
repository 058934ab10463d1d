//! The writing thread: all waiting operations share one transaction and one sync.
//!
//! A caller sends an operation and waits. The thread gathers the waiting operations, begins a transaction, reads the
//! clock, runs each operation and commits. Then it delivers notifications and replies to all callers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::tx::{Queues, Tx};
use crate::adaptive_wait::Patience;
use crate::clock::{self, Clock};
use crate::error::{Error, Result};
use crate::store::sqlite::errors;
use crate::store::sqlite::nodes::wake::Waker;

/// Most operations that wait for the thread. Further callers wait for room.
const WAITING_MAX: usize = 4_096;
/// Most operations in one transaction.
const GROUP_MAX: usize = 256;
/// How long to wait for more operations if the last transaction had several: larger groups need fewer syncs.
const LINGER: Duration = Duration::from_micros(100);

/// How often the file is synced if commits are not: the most that a loss of power can cost.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The writing thread. Dropping it waits until all operations are written and the connection is closed. The last
/// process to close leaves one complete file without a WAL.
pub(super) struct Writer {
    /// `None` once it is closed.
    work: Option<Sender<Work>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

enum Work {
    /// Shares a transaction with others.
    Op(Box<dyn Op>),
    /// Cannot run inside a transaction: upkeep of the file.
    Bare(Bare),
}

/// An operation inside a transaction. If another operation of its group fails, it runs a second time on its own, so it
/// must not depend on an earlier run.
trait Op: Send {
    fn run(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()>;
    fn name(&self) -> &'static str;
    /// Ends the operation; `None` means committed.
    fn answer(self: Box<Self>, failed: Option<Error>);
}

struct Typed<T, F> {
    name: &'static str,
    run: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
    _room: OwnedSemaphorePermit,
}

impl<T, F> Op for Typed<T, F>
where
    T: Send,
    F: FnMut(&Tx<'_>) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()> {
        self.value = Some((self.run)(tx)?);
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn answer(self: Box<Self>, failed: Option<Error>) {
        let answer = match (failed, self.value) {
            (None, Some(value)) => Ok(value),
            (Some(error), _) => Err(error),
            (None, None) => Err(Error::store(self.name, "the operation did not run")),
        };
        // A caller that has gone away does not need the reply.
        let _ = self.reply.send(answer);
    }
}

impl Writer {
    /// Starts the thread on a connection that is set up.
    ///
    /// With `wal`, commits are not synced one by one. The thread syncs that file once a second instead.
    pub(super) fn start(
        conn: Connection,
        clock: Clock,
        waker: Waker,
        wal: Option<PathBuf>,
        history: bool,
    ) -> Result<Self> {
        let (work, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("duly-writer".into())
            .spawn(move || {
                Thread { conn, clock, waker, queues: Queues::default(), syncs: Syncs::new(wal), history }.serve(&inbox);
            })
            .map_err(|e| Error::store("open", format!("cannot start a thread: {e}")))?;
        Ok(Writer { work: Some(work), room: Arc::new(Semaphore::new(WAITING_MAX)), thread: Some(thread) })
    }

    /// Runs `run` in a transaction and returns once it is committed.
    pub(super) async fn write<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed");
        let room = self.room.clone().acquire_owned().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        let op = Box::new(Typed { name, run, value: None, reply, _room: room });
        self.send(Work::Op(op)).ok_or_else(gone)?;
        // The thread ended without a reply, perhaps after the commit.
        answer.await.map_err(|lost| Error::Unknown { op: name, source: Some(Box::new(lost)) })?
    }

    /// Runs upkeep on the connection, between transactions.
    pub(super) async fn upkeep<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed");
        let (reply, answer) = oneshot::channel();
        let bare = Work::Bare(Box::new(move |conn| {
            let _ = reply.send(errors::caught(|| run(conn)).flatten().map_err(|e| errors::refused(name, e)));
        }));
        self.send(bare).ok_or_else(gone)?;
        answer.await.map_err(|_| gone())?
    }

    fn send(&self, work: Work) -> Option<()> {
        self.work.as_ref()?.send(work).ok()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Thread {
    conn: Connection,
    clock: Clock,
    waker: Waker,
    queues: Queues,
    syncs: Syncs,
    /// Whether events are counted minute by minute.
    history: bool,
}

impl Thread {
    fn serve(&mut self, inbox: &Receiver<Work>) {
        let mut company = Company::default();
        while let Some(first) = self.syncs.next(inbox) {
            let (group, bare) = gather(inbox, first, &mut company);
            if !group.is_empty() {
                let began = clock::tick();
                self.commit(group);
                company.commit = clock::tick() - began;
            }
            if let Some(bare) = bare {
                bare(&self.conn);
                // After a panic inside a transaction, no later write could begin.
                if !self.conn.is_autocommit() {
                    let _ = self.conn.execute_batch("ROLLBACK");
                }
            }
            self.syncs.written();
        }
    }

    /// Commits all in one transaction. If one fails, commits each on its own, so that no operation fails because of
    /// another.
    fn commit(&mut self, mut group: Vec<Box<dyn Op>>) {
        match self.attempt(&mut group) {
            Ok(()) => group.into_iter().for_each(|op| op.answer(None)),
            // It is unknown which operation is at fault, so each runs on its own.
            Err(Failed::Op(_) | Failed::Commit(_)) if group.len() > 1 => {
                group.into_iter().for_each(|op| self.commit(vec![op]));
            }
            Err(failed) => group.into_iter().for_each(|op| {
                let error = failed.told(op.name());
                op.answer(Some(error));
            }),
        }
    }

    fn attempt(&mut self, group: &mut [Box<dyn Op>]) -> Result<(), Failed> {
        self.conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])).map_err(Failed::Begin)?;
        // The wait for the write lock may have been long, so the clock is read after it.
        let tx = Tx::new(&self.conn, self.clock.wall(), &self.queues, self.history);
        let ran =
            group.iter_mut().try_for_each(|op| errors::caught(|| op.run(&tx)).flatten()).and_then(|()| tx.flush());
        let news = tx.into_news();
        let committed = ran.map_err(Failed::Op).and_then(|()| {
            self.conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(Failed::Commit)
        });
        match committed {
            Ok(_) => {
                self.waker.tell(news);
                Ok(())
            }
            Err(failed) => {
                // Fails only if SQLite rolled back by itself.
                let _ = self.conn.execute_batch("ROLLBACK");
                self.queues.forget();
                Err(failed)
            }
        }
    }
}

/// The syncs for `durability=second`.
struct Syncs {
    wal: Option<PathBuf>,
    /// The time of the oldest commit that is not synced.
    unsynced: Option<Instant>,
}

impl Syncs {
    fn new(wal: Option<PathBuf>) -> Self {
        Syncs { wal, unsynced: None }
    }

    /// Returns the next work. Syncs when a sync is due, and before the end: closing the file syncs it only if no other
    /// process has it open.
    fn next(&mut self, inbox: &Receiver<Work>) -> Option<Work> {
        while let Some(since) = self.unsynced {
            match inbox.recv_timeout(SYNC_EVERY.saturating_sub(clock::tick() - since)) {
                Ok(work) => return Some(work),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.sync();
                    return None;
                }
            }
        }
        inbox.recv().ok()
    }

    /// Records a commit.
    fn written(&mut self) {
        if self.wal.is_none() {
            return;
        }
        let since = *self.unsynced.get_or_insert_with(clock::tick);
        if clock::tick() - since >= SYNC_EVERY {
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.unsynced = None;
        let synced = self.wal.as_ref().map(|wal| std::fs::File::open(wal).and_then(|wal| wal.sync_data()));
        if let Some(Err(error)) = synced {
            tracing::error!(%error, "the disk did not sync; commits of the last second may be lost");
        }
    }
}

/// The phase in which a transaction failed. Only a failed commit has an unknown outcome.
enum Failed {
    /// The write lock was not available, so a retry of each alone would not help.
    Begin(rusqlite::Error),
    Op(rusqlite::Error),
    Commit(rusqlite::Error),
}

impl Failed {
    fn told(self: &Failed, op: &'static str) -> Error {
        // The errors of rusqlite cannot be cloned, so each operation gets a copy.
        let copy = |error: &rusqlite::Error| match error {
            rusqlite::Error::SqliteFailure(code, text) => rusqlite::Error::SqliteFailure(*code, text.clone()),
            other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
        };
        match self {
            Failed::Begin(error) | Failed::Op(error) => errors::refused(op, copy(error)),
            Failed::Commit(error) => errors::commit_failed(op, copy(error)),
        }
    }
}

type Bare = Box<dyn FnOnce(&Connection) + Send>;

/// The expected size of a group: the size of the last one, and sometimes more, because two waves of callers may merge.
///
/// Waiting is worth it only if the callers return sooner than another commit would take. Slower callers, for example
/// over a network, are better served in two waves: one is on its way while the other is committed.
#[derive(Default)]
struct Company {
    expected: usize,
    /// Whether to wait for more than expected.
    more: Patience,
    /// Whether the expected callers come soon enough.
    soon: Patience,
    /// The duration of the last commit.
    commit: Duration,
}

/// The wait of one group.
#[derive(Default)]
struct Lingering {
    /// The end of the wait.
    until: Option<Instant>,
    /// The size of the group when it started to wait for more than expected.
    tried_at: Option<usize>,
    /// The wait is over.
    late: bool,
}

impl Company {
    /// Waits briefly for more work, if that is worth it for a group of this size.
    fn wait(&mut self, inbox: &Receiver<Work>, group: usize, lingering: &mut Lingering) -> Option<Work> {
        let Lingering { until, tried_at, late } = lingering;
        if *late || (until.is_none() && !self.soon.is_worth_it()) {
            *late = true;
            return None;
        }
        let is_expected = group < self.expected;
        if !is_expected && (group < 2 || (tried_at.is_none() && !self.more.is_worth_it())) {
            return None;
        }
        if !is_expected {
            tried_at.get_or_insert(group);
        }
        let now = clock::tick();
        let until = *until.get_or_insert(now + (self.commit / 2).max(LINGER));
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            *late = true;
            self.soon.learn(0);
            return None;
        }
        inbox.recv_timeout(left.min(LINGER)).ok()
    }

    /// Records the final size of the group.
    fn learn(&mut self, group: usize, lingering: &Lingering) {
        self.expected = group;
        if lingering.until.is_some() && !lingering.late {
            self.soon.learn(group);
        }
        if let Some(at) = lingering.tried_at {
            self.more.learn(group - at);
        }
    }
}

/// Gathers waiting operations up to the first upkeep.
fn gather(inbox: &Receiver<Work>, first: Work, company: &mut Company) -> (Vec<Box<dyn Op>>, Option<Bare>) {
    let mut group = Vec::new();
    let mut next = Some(first);
    let mut lingering = Lingering::default();
    while let Some(work) = next.take() {
        match work {
            Work::Op(op) => group.push(op),
            Work::Bare(bare) => return (group, Some(bare)),
        }
        if group.len() >= GROUP_MAX {
            break;
        }
        next = inbox.try_recv().ok().or_else(|| company.wait(inbox, group.len(), &mut lingering));
    }
    company.learn(group.len(), &lingering);
    (group, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Durability;
    use crate::store::sqlite::file;
    use crate::store::sqlite::nodes::registry::Board;
    use futures_util::FutureExt;

    fn writer() -> Writer {
        let waker = Waker::new(Arc::new(Board::in_memory(Clock::system())));
        let conn = file::connect_in_memory().expect("opens");
        Writer::start(conn, Clock::system(), waker, None, true).expect("starts")
    }

    /// Returns whether a queue of this name exists.
    async fn knows(writer: &Writer, name: &'static str) -> bool {
        writer.write("look", move |tx| tx.known_queue(name).map(|queue_no| queue_no.is_some())).await.expect("looks")
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_op_and_nothing_else() {
        let writer = writer();
        let panics = writer.write("panics", |tx| -> rusqlite::Result<()> {
            tx.queue("bad")?;
            panic!("a bug");
        });
        let (first, panicked, second) = tokio::join!(
            writer.write("first", |tx| tx.queue("first")),
            panics,
            writer.write("second", |tx| tx.queue("second")),
        );
        let error = panicked.expect_err("fails");
        assert_eq!((error.code(), error.to_string().contains("panicked")), ("store", true), "{error}");
        first.and(second).expect("other operations succeed");
        assert!(knows(&writer, "first").await && knows(&writer, "second").await && !knows(&writer, "bad").await);
    }

    #[tokio::test]
    async fn a_panic_in_upkeep_leaves_no_transaction_open() {
        let writer = writer();
        let panicked = writer.upkeep("upkeep", |conn| -> rusqlite::Result<()> {
            conn.execute_batch("BEGIN IMMEDIATE")?;
            panic!("a bug");
        });
        assert_eq!(panicked.await.expect_err("fails").code(), "store");
        writer.write("after", |tx| tx.queue("after")).await.expect("goes on");
    }

    #[test]
    fn those_who_are_back_too_late_are_waited_for_only_now_and_then() {
        let (work, inbox) = channel();
        let send = || work.send(Work::Bare(Box::new(|_| {}))).expect("is open");
        let mut company = Company { expected: 9, ..Company::default() };
        let mut lingering = Lingering::default();
        send();
        assert!(company.wait(&inbox, 1, &mut lingering).is_some(), "one more in time");
        std::thread::sleep(2 * LINGER);
        send();
        assert!(company.wait(&inbox, 2, &mut lingering).is_none(), "another commit would have been sooner");
        assert!(company.wait(&inbox, 1, &mut Lingering::default()).is_none(), "the next group does not wait");
        assert!(company.wait(&inbox, 1, &mut Lingering::default()).is_some(), "the one after that tries again");
    }

    #[test]
    fn what_was_committed_last_is_synced_before_the_thread_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let wal = dir.path().join("duly.db-wal");
        std::fs::write(&wal, "a commit").expect("writes");
        let (work, inbox) = channel();
        let mut syncs = Syncs::new(Some(wal));
        syncs.written();
        assert!(syncs.unsynced.is_some(), "not one by one");
        drop(work);
        assert!(syncs.next(&inbox).is_none(), "there is no more to do");
        assert_eq!(syncs.unsynced, None);
    }

    /// A value that panics when it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("outside of any op");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_lost_after_the_commit_is_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file::prepare(&dir.path().join("duly.db")).expect("a new file");
        let conn = file::connect(&path, Durability::Fsync).expect("opens");
        let waker = Waker::new(Arc::new(Board::in_memory(Clock::system())));
        let writer = Writer::start(conn, Clock::system(), waker, None, true).expect("starts");
        // The thread is busy until two operations wait for it, so that they share one commit.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = writer.upkeep("busy", move |_| Ok(wait.recv().is_ok()));
        // The caller of the first operation is gone. Its value ends the thread before the second one gets a reply.
        let mut gone = Box::pin(writer.write("gone", |_| Ok(Bomb)));
        let (_, second) = tokio::join!(busy, async {
            let mut second = Box::pin(writer.write("push", |tx| tx.queue("second")));
            assert!(gone.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
            drop(gone);
            go.send(()).expect("the thread waits");
            second.await
        });
        assert_eq!(second.expect_err("no reply").code(), "unknown");
        let conn = Connection::open(&path).expect("opens");
        let committed: i64 = conn
            .query_row("SELECT count(*) FROM duly_queue WHERE name = 'second'", [], |row| row.get(0))
            .expect("looks");
        assert_eq!(committed, 1, "it was committed");
    }
}
