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

use super::group_commit::{GroupCommitWindow, GroupWait};
use super::tx::{QueueNumbers, Tx};
use crate::clock::{self, Clock};
use crate::error::{Error, Result};
use crate::store::sqlite::errors;
use crate::store::sqlite::nodes::wake::Notifier;
use crate::sync::start_thread;

/// Most operations that wait for the thread. Further callers wait for room.
const PENDING_WRITES_MAX: usize = 4_096;
/// Most operations in one transaction.
const GROUP_OPERATIONS_MAX: usize = 256;

/// How often the file is synced if commits are not: the most that a loss of power can cost.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The writing thread. Dropping it waits until all operations are written and the connection is closed. The last
/// process to close leaves one complete file without a WAL.
pub(super) struct Writer {
    /// `None` once it is closed.
    tasks: Option<Sender<WriteTask>>,
    permits: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

enum WriteTask {
    /// Shares a transaction with others.
    Grouped(Box<dyn WriteOperation>),
    /// Cannot run inside a transaction: upkeep of the file.
    Exclusive(ExclusiveTask),
}

/// An operation inside a transaction. If another operation of its group fails, it runs a second time on its own, so it
/// must not depend on an earlier run.
trait WriteOperation: Send {
    fn run(&mut self, tx: &Tx<'_>) -> rusqlite::Result<()>;
    fn name(&self) -> &'static str;
    /// Ends the operation; `None` means committed.
    fn finish(self: Box<Self>, failed: Option<Error>);
}

struct PendingWrite<T, F> {
    name: &'static str,
    run: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
    _permit: OwnedSemaphorePermit,
}

impl<T, F> WriteOperation for PendingWrite<T, F>
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

    fn finish(self: Box<Self>, failed: Option<Error>) {
        let result = match (failed, self.value) {
            (None, Some(value)) => Ok(value),
            (Some(error), _) => Err(error),
            (None, None) => Err(Error::store(self.name, "the operation did not run")),
        };
        // A caller that has gone away does not need the reply.
        let _ = self.reply.send(result);
    }
}

impl Writer {
    /// Starts the thread on a connection that is set up.
    ///
    /// With `wal`, commits are not synced one by one. The thread syncs that file once a second instead.
    pub(super) fn start(
        conn: Connection,
        clock: Clock,
        waker: Notifier,
        wal: Option<PathBuf>,
        history: bool,
    ) -> Result<Self> {
        let (work, inbox) = channel();
        let mut writer = WriterThread {
            conn,
            clock,
            notifier: waker,
            queue_numbers: QueueNumbers::default(),
            wal_sync: WalSync::new(wal),
            history_enabled: history,
        };
        let thread = start_thread("open", "duly-writer", move || writer.run(&inbox))?;
        Ok(Writer { tasks: Some(work), permits: Arc::new(Semaphore::new(PENDING_WRITES_MAX)), thread: Some(thread) })
    }

    /// Runs `run` in a transaction and returns once it is committed.
    pub(super) async fn write<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed");
        let room = self.permits.clone().acquire_owned().await.map_err(|_| gone())?;
        let (reply, result) = oneshot::channel();
        let op = Box::new(PendingWrite { name, run, value: None, reply, _permit: room });
        self.send(WriteTask::Grouped(op)).ok_or_else(gone)?;
        // The thread ended without a reply, perhaps after the commit.
        result.await.map_err(|lost| Error::Unknown { op: name, source: Some(Box::new(lost)) })?
    }

    /// Runs upkeep on the connection, between transactions.
    pub(super) async fn run_outside_transaction<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed");
        let (reply, result) = oneshot::channel();
        let bare = WriteTask::Exclusive(Box::new(move |conn| {
            let _ = reply.send(errors::catch_panic(|| run(conn)).flatten().map_err(|e| errors::from_sqlite(name, e)));
        }));
        self.send(bare).ok_or_else(gone)?;
        result.await.map_err(|_| gone())?
    }

    fn send(&self, work: WriteTask) -> Option<()> {
        self.tasks.as_ref()?.send(work).ok()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct WriterThread {
    conn: Connection,
    clock: Clock,
    notifier: Notifier,
    queue_numbers: QueueNumbers,
    wal_sync: WalSync,
    /// Whether events are counted minute by minute.
    history_enabled: bool,
}

impl WriterThread {
    fn run(&mut self, inbox: &Receiver<WriteTask>) {
        let mut window = GroupCommitWindow::default();
        while let Some(first) = self.wal_sync.next_task(inbox) {
            let (group, bare) = collect_group(inbox, first, &mut window);
            if !group.is_empty() {
                let began = clock::monotonic_now();
                self.commit_group(group);
                window.last_commit_time = clock::monotonic_now() - began;
            }
            if let Some(bare) = bare {
                bare(&self.conn);
                // After a panic inside a transaction, no later write could begin.
                if !self.conn.is_autocommit() {
                    let _ = self.conn.execute_batch("ROLLBACK");
                }
            }
            self.wal_sync.record_commit();
        }
    }

    /// Commits all in one transaction. If one fails, commits each on its own, so that no operation fails because of
    /// another.
    fn commit_group(&mut self, mut group: Vec<Box<dyn WriteOperation>>) {
        match self.try_commit(&mut group) {
            Ok(()) => group.into_iter().for_each(|op| op.finish(None)),
            // It is unknown which operation is at fault, so each runs on its own.
            Err(TransactionError::Operation(_) | TransactionError::Commit(_)) if group.len() > 1 => {
                group.into_iter().for_each(|op| self.commit_group(vec![op]));
            }
            Err(failed) => group.into_iter().for_each(|op| {
                let error = failed.to_error(op.name());
                op.finish(Some(error));
            }),
        }
    }

    fn try_commit(&mut self, group: &mut [Box<dyn WriteOperation>]) -> Result<(), TransactionError> {
        self.conn
            .prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut begin| begin.execute([]))
            .map_err(TransactionError::Begin)?;
        // The wait for the write lock may have been long, so the clock is read after it.
        let tx = Tx::new(&self.conn, self.clock.now_micros(), &self.queue_numbers, self.history_enabled);
        let ran =
            group.iter_mut().try_for_each(|op| errors::catch_panic(|| op.run(&tx)).flatten()).and_then(|()| tx.flush());
        let notifications = tx.into_notifications();
        let committed = ran.map_err(TransactionError::Operation).and_then(|()| {
            self.conn
                .prepare_cached("COMMIT")
                .and_then(|mut commit| commit.execute([]))
                .map_err(TransactionError::Commit)
        });
        match committed {
            Ok(_) => {
                self.notifier.deliver(notifications);
                Ok(())
            }
            Err(failed) => {
                // Fails only if SQLite rolled back by itself.
                let _ = self.conn.execute_batch("ROLLBACK");
                self.queue_numbers.clear();
                Err(failed)
            }
        }
    }
}

/// The syncs for `durability=second`.
struct WalSync {
    wal: Option<PathBuf>,
    /// The time of the oldest commit that is not synced.
    unsynced_since: Option<Instant>,
}

impl WalSync {
    fn new(wal: Option<PathBuf>) -> Self {
        WalSync { wal, unsynced_since: None }
    }

    /// Returns the next work. Syncs when a sync is due, and before the end: closing the file syncs it only if no other
    /// process has it open.
    fn next_task(&mut self, inbox: &Receiver<WriteTask>) -> Option<WriteTask> {
        while let Some(since) = self.unsynced_since {
            match inbox.recv_timeout(SYNC_INTERVAL.saturating_sub(clock::monotonic_now() - since)) {
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
    fn record_commit(&mut self) {
        if self.wal.is_none() {
            return;
        }
        let since = *self.unsynced_since.get_or_insert_with(clock::monotonic_now);
        if clock::monotonic_now() - since >= SYNC_INTERVAL {
            self.sync();
        }
    }

    fn sync(&mut self) {
        self.unsynced_since = None;
        let synced = self.wal.as_ref().map(|wal| std::fs::File::open(wal).and_then(|wal| wal.sync_data()));
        if let Some(Err(error)) = synced {
            tracing::error!(%error, "the disk did not sync; commits of the last second may be lost");
        }
    }
}

/// The phase in which a transaction failed. Only a failed commit has an unknown outcome.
enum TransactionError {
    /// The write lock was not available, so a retry of each alone would not help.
    Begin(rusqlite::Error),
    Operation(rusqlite::Error),
    Commit(rusqlite::Error),
}

impl TransactionError {
    fn to_error(self: &TransactionError, op: &'static str) -> Error {
        // The errors of rusqlite cannot be cloned, so each operation gets a copy.
        let copy = |error: &rusqlite::Error| match error {
            rusqlite::Error::SqliteFailure(code, text) => rusqlite::Error::SqliteFailure(*code, text.clone()),
            other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
        };
        match self {
            TransactionError::Begin(error) | TransactionError::Operation(error) => errors::from_sqlite(op, copy(error)),
            TransactionError::Commit(error) => errors::from_commit(op, copy(error)),
        }
    }
}

type ExclusiveTask = Box<dyn FnOnce(&Connection) + Send>;

/// Gathers waiting operations up to the first upkeep.
fn collect_group(
    inbox: &Receiver<WriteTask>,
    first: WriteTask,
    window: &mut GroupCommitWindow,
) -> (Vec<Box<dyn WriteOperation>>, Option<ExclusiveTask>) {
    let mut group = Vec::new();
    let mut next = Some(first);
    let mut wait = GroupWait::default();
    while let Some(work) = next.take() {
        match work {
            WriteTask::Grouped(op) => group.push(op),
            WriteTask::Exclusive(bare) => return (group, Some(bare)),
        }
        if group.len() >= GROUP_OPERATIONS_MAX {
            break;
        }
        next = inbox.try_recv().ok().or_else(|| window.wait_for_task(inbox, group.len(), &mut wait));
    }
    window.record_group(group.len(), &wait);
    (group, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Durability;
    use crate::store::sqlite::file;
    use crate::store::sqlite::group_commit::GROUP_WAIT;
    use crate::store::sqlite::nodes::registry::NodeRegistry;
    use futures_util::FutureExt;

    fn start_writer() -> Writer {
        let waker = Notifier::new(Arc::new(NodeRegistry::in_memory(Clock::system())));
        let conn = file::connect_in_memory().expect("opens");
        Writer::start(conn, Clock::system(), waker, None, true).expect("starts")
    }

    /// Returns whether a queue of this name exists.
    async fn queue_exists(writer: &Writer, name: &'static str) -> bool {
        writer.write("read", move |tx| tx.find_queue(name).map(|queue_no| queue_no.is_some())).await.expect("reads")
    }

    #[tokio::test]
    async fn panicking_operation_does_not_fail_its_group() {
        let writer = start_writer();
        let panics = writer.write("panics", |tx| -> rusqlite::Result<()> {
            tx.ensure_queue("bad")?;
            panic!("a bug");
        });
        let (first, panicked, second) = tokio::join!(
            writer.write("first", |tx| tx.ensure_queue("first")),
            panics,
            writer.write("second", |tx| tx.ensure_queue("second")),
        );
        let error = panicked.expect_err("fails");
        assert_eq!((error.code(), error.to_string().contains("panicked")), ("store", true), "{error}");
        first.and(second).expect("other operations succeed");
        assert!(
            queue_exists(&writer, "first").await
                && queue_exists(&writer, "second").await
                && !queue_exists(&writer, "bad").await
        );
    }

    #[tokio::test]
    async fn panic_outside_transaction_leaves_no_transaction_open() {
        let writer = start_writer();
        let panicked = writer.run_outside_transaction("upkeep", |conn| -> rusqlite::Result<()> {
            conn.execute_batch("BEGIN IMMEDIATE")?;
            panic!("a bug");
        });
        assert_eq!(panicked.await.expect_err("fails").code(), "store");
        writer.write("after", |tx| tx.ensure_queue("after")).await.expect("continues");
    }

    #[test]
    fn group_wait_backs_off_when_callers_return_late() {
        let (work, inbox) = channel();
        let send = || work.send(WriteTask::Exclusive(Box::new(|_| {}))).expect("is open");
        let mut window = GroupCommitWindow::default();
        window.expected_size = 9;
        let mut wait = GroupWait::default();
        send();
        assert!(window.wait_for_task(&inbox, 1, &mut wait).is_some(), "one more in time");
        std::thread::sleep(2 * GROUP_WAIT);
        send();
        assert!(window.wait_for_task(&inbox, 2, &mut wait).is_none(), "another commit would have been sooner");
        assert!(window.wait_for_task(&inbox, 1, &mut GroupWait::default()).is_none(), "the next group does not wait");
        assert!(window.wait_for_task(&inbox, 1, &mut GroupWait::default()).is_some(), "the one after that tries again");
    }

    #[test]
    fn last_commit_is_synced_before_the_thread_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let wal = dir.path().join("duly.db-wal");
        std::fs::write(&wal, "a commit").expect("writes");
        let (work, inbox) = channel();
        let mut syncs = WalSync::new(Some(wal));
        syncs.record_commit();
        assert!(syncs.unsynced_since.is_some(), "not one by one");
        drop(work);
        assert!(syncs.next_task(&inbox).is_none(), "there is no more to do");
        assert_eq!(syncs.unsynced_since, None);
    }

    /// A value that panics when it is dropped.
    struct PanicOnDrop;

    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("outside of any op");
        }
    }

    #[tokio::test]
    async fn reply_lost_after_commit_is_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file::prepare_file(&dir.path().join("duly.db")).expect("a new file");
        let conn = file::connect(&path, Durability::Fsync).expect("opens");
        let waker = Notifier::new(Arc::new(NodeRegistry::in_memory(Clock::system())));
        let writer = Writer::start(conn, Clock::system(), waker, None, true).expect("starts");
        // The thread is busy until two operations wait for it, so that they share one commit.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = writer.run_outside_transaction("busy", move |_| Ok(wait.recv().is_ok()));
        // The caller of the first operation is gone. Its value ends the thread before the second one gets a reply.
        let mut gone = Box::pin(writer.write("gone", |_| Ok(PanicOnDrop)));
        let (_, second) = tokio::join!(busy, async {
            let mut second = Box::pin(writer.write("push", |tx| tx.ensure_queue("second")));
            assert!(gone.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
            drop(gone);
            go.send(()).expect("the thread waits");
            second.await
        });
        assert_eq!(second.expect_err("no reply").code(), "unknown");
        let conn = Connection::open(&path).expect("opens");
        let committed: i64 = conn
            .query_row("SELECT count(*) FROM duly_queue WHERE name = 'second'", [], |row| row.get(0))
            .expect("reads");
        assert_eq!(committed, 1, "it was committed");
    }
}
