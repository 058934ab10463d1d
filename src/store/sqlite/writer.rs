//! The writing thread: all waiting operations share one transaction and one sync.
//!
//! A caller sends an operation and waits. The thread gathers the waiting operations, begins a transaction, reads the
//! clock, runs each operation and commits. Then it delivers notifications and replies to all callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::group_commit::{GroupCommitWindow, GroupWait};
use super::tx::{QueueNumbers, Tx};
use crate::clock::{self, Clock};
use crate::error::{Error, Result};
use crate::store::sqlite::disk_reserve::DiskReserve;
use crate::store::sqlite::file_watch::FileWatch;
use crate::store::sqlite::inbox::{InboxReader, InboxSignal, TakenRows};
use crate::store::sqlite::lock_holder::describe_lock_holder;
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::nodes::wakes::Notifier;
use crate::store::sqlite::transaction_error::TransactionError;
use crate::store::sqlite::wal_sync::WalSync;
use crate::store::sqlite::{errors, file};
use crate::sync::start_thread;

/// Most operations that wait for the thread. Further callers wait for room.
const PENDING_WRITES_MAX: usize = 4_096;
/// Most operations in one transaction.
const GROUP_OPERATIONS_MAX: usize = 256;

/// The writing thread. Dropping it waits until all operations are written and the connection is closed. The last
/// process to close leaves one complete file without a WAL.
pub(super) struct Writer {
    /// `None` once it is closed.
    tasks: Option<Sender<WriteTask>>,
    permits: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

/// The settings of the thread.
pub(super) struct WriterSettings {
    pub(super) clock: Clock,
    pub(super) notifier: Notifier,
    /// `None` for a store in memory.
    pub(super) watch: Option<Arc<FileWatch>>,
    /// Commits are not synced one by one: the thread syncs the WAL once a second instead.
    pub(super) syncs_later: bool,
    /// Whether events are counted minute by minute.
    pub(super) history_enabled: bool,
    pub(super) inbox: InboxReader,
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
            (None, None) => Err(Error::store(self.name, "the operation did not run; please report this as a bug")),
        };
        // A caller that has gone away does not need the reply.
        let _ = self.reply.send(result);
    }
}

impl Writer {
    /// Starts the thread on a connection that is set up.
    pub(super) fn start(conn: Connection, settings: WriterSettings) -> Result<Self> {
        let (sender, tasks) = channel();
        let wal = settings.watch.as_ref().filter(|_| settings.syncs_later).map(|watch| file::wal_path(watch.path()));
        let mut writer = WriterThread {
            conn,
            disk_reserve: settings.watch.as_ref().map(|watch| DiskReserve::new(watch.path())),
            settings,
            queue_numbers: QueueNumbers::default(),
            wal_sync: WalSync::new(wal),
            has_more_rows: false,
        };
        let run = move || {
            writer.run(&tasks);
            let watch = writer.settings.watch.clone();
            drop(writer);
            if let Some(watch) = watch {
                watch.after_close();
            }
        };
        let thread = start_thread("open", "duly-writer", run)?;
        Ok(Writer { tasks: Some(sender), permits: Arc::new(Semaphore::new(PENDING_WRITES_MAX)), thread: Some(thread) })
    }

    /// Runs `run` in a transaction and returns once it is committed.
    pub(super) async fn write<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed; open it again");
        let room = self.permits.clone().acquire_owned().await.map_err(|_| gone())?;
        let (reply, result) = oneshot::channel();
        let op = Box::new(PendingWrite { name, run, value: None, reply, _permit: room });
        self.send(WriteTask::Grouped(op)).ok_or_else(gone)?;
        // The thread ended without a reply, perhaps after the commit.
        result.await.map_err(|lost| Error::unknown_with_cause(name, lost))?
    }

    /// Runs upkeep on the connection, between transactions.
    pub(super) async fn run_outside_transaction<T, F>(&self, name: &'static str, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed; open it again");
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

    /// Returns a function that asks for a transaction which takes the rows of the inbox. It keeps the thread alive, so it
    /// must be dropped before the writer. It returns `None` while the last request is on its way, and otherwise whether
    /// rows were handled since.
    pub(super) fn inbox_requester(&self, signal: Arc<InboxSignal>) -> impl FnMut() -> Option<bool> + Send + 'static {
        let (tasks, mut last_handled) = (self.tasks.clone(), signal.handled.load(Ordering::SeqCst));
        move || {
            if signal.is_requested.swap(true, Ordering::SeqCst) {
                return None;
            }
            let handled = signal.handled.load(Ordering::SeqCst);
            if let Some(tasks) = &tasks {
                // Fails only if the thread has ended.
                let _ = tasks.send(WriteTask::Grouped(Box::new(TakeInbox(signal.clone()))));
            }
            Some(std::mem::replace(&mut last_handled, handled) != handled)
        }
    }
}

/// Does nothing: every transaction takes the rows of the inbox.
struct TakeInbox(Arc<InboxSignal>);

impl WriteOperation for TakeInbox {
    fn run(&mut self, _tx: &Tx<'_>) -> rusqlite::Result<()> {
        Ok(())
    }

    fn name(&self) -> &'static str {
        "take_inbox"
    }

    fn finish(self: Box<Self>, _failed: Option<Error>) {
        self.0.is_requested.store(false, Ordering::SeqCst);
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
    settings: WriterSettings,
    queue_numbers: QueueNumbers,
    /// `None` for a store in memory.
    disk_reserve: Option<DiskReserve>,
    wal_sync: WalSync,
    /// Rows of the inbox did not fit into the last transaction.
    has_more_rows: bool,
}

impl WriterThread {
    fn run(&mut self, tasks: &Receiver<WriteTask>) {
        let mut window = GroupCommitWindow::default();
        while let Some(first) = self.next_task(tasks) {
            let (group, bare) = collect_group(tasks, first, &mut window);
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
            if let Some(watch) = &self.settings.watch {
                upkeep::checkpoint_if_long(&self.conn, watch);
            }
            self.wal_sync.record_commit();
        }
        if let Some(watch) = &self.settings.watch {
            watch.before_close(&self.conn);
        }
    }

    /// Waits for the next task, or takes further rows of the inbox at once.
    fn next_task(&mut self, tasks: &Receiver<WriteTask>) -> Option<WriteTask> {
        let has_more_rows = std::mem::take(&mut self.has_more_rows);
        match tasks.try_recv() {
            Ok(task) => Some(task),
            Err(TryRecvError::Empty) if has_more_rows => Some(WriteTask::Grouped(Box::new(TakeInbox(Arc::default())))),
            // If the store is closed, the rows stay for the next process, but the last commits must still be synced.
            Err(_) => self.wal_sync.next_task(tasks),
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
        let WriterThread { conn, settings, queue_numbers, disk_reserve, .. } = self;
        let disk_reserve = disk_reserve.as_ref();
        let mut tx = begin(conn, settings, queue_numbers, disk_reserve)?;
        let taken = match errors::catch_panic(|| settings.inbox.take_rows(&tx)).flatten() {
            Ok(taken) => taken,
            Err(error) => {
                // No operation may fail because of rows in the inbox, so the transaction starts again without them.
                drop(tx);
                tracing::warn!(%error, "the rows of duly_inbox could not be read; they will be tried again");
                settings.inbox.pause();
                roll_back(conn, queue_numbers);
                tx = begin(conn, settings, queue_numbers, disk_reserve)?;
                TakenRows::default()
            }
        };
        let ran =
            group.iter_mut().try_for_each(|op| errors::catch_panic(|| op.run(&tx)).flatten()).and_then(|()| tx.flush());
        let notifications = tx.into_notifications();
        let committed = ran.map_err(TransactionError::Operation).and_then(|()| {
            // Checked last: a commit into a deleted file would be acknowledged and lost.
            let checked = settings.watch.as_ref().map_or(Ok(()), |watch| watch.check_before_commit());
            checked.map_err(TransactionError::WrongFile)?;
            conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])).map_err(TransactionError::Commit)
        });
        match committed {
            Ok(_) => {
                settings.notifier.deliver(notifications);
                self.has_more_rows = taken.has_more;
                settings.inbox.report(taken);
                Ok(())
            }
            Err(failed) => {
                roll_back(conn, queue_numbers);
                Err(failed)
            }
        }
    }
}

/// Begins a transaction that holds the write lock.
fn begin<'c>(
    conn: &'c Connection,
    settings: &WriterSettings,
    queue_numbers: &'c QueueNumbers,
    disk_reserve: Option<&'c DiskReserve>,
) -> Result<Tx<'c>, TransactionError> {
    conn.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([])).map_err(|error| {
        // Names the process that holds the write lock.
        let is_busy = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
        let watch = settings.watch.as_ref().filter(|_| is_busy);
        TransactionError::Begin(error, watch.map(|watch| describe_lock_holder(watch.path())))
    })?;
    // The wait for the write lock may have been long, so the clock is read after it.
    let tx = Tx::new(conn, settings.clock.now_micros(), queue_numbers, settings.history_enabled);
    Ok(tx.with_disk_reserve(disk_reserve))
}

fn roll_back(conn: &Connection, queue_numbers: &QueueNumbers) {
    // Fails only if SQLite rolled back by itself.
    let _ = conn.execute_batch("ROLLBACK");
    queue_numbers.clear();
}

type ExclusiveTask = Box<dyn FnOnce(&Connection) + Send>;

/// Gathers waiting operations up to the first upkeep.
fn collect_group(
    tasks: &Receiver<WriteTask>,
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
        next = tasks.try_recv().ok().or_else(|| window.wait_for_task(tasks, group.len(), &mut wait));
    }
    window.record_group(group.len(), &wait);
    (group, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Durability;
    use crate::store::sqlite::group_commit::GROUP_WAIT;
    use crate::store::sqlite::nodes::registry::NodeRegistry;
    use futures_util::FutureExt;

    fn start_writer() -> Writer {
        start_on(file::connect_in_memory().expect("opens"))
    }

    fn start_on(conn: Connection) -> Writer {
        Writer::start(conn, settings()).expect("starts")
    }

    fn settings() -> WriterSettings {
        WriterSettings {
            clock: Clock::system(),
            notifier: Notifier::new(Arc::new(NodeRegistry::in_memory(Clock::system()))),
            watch: None,
            syncs_later: false,
            history_enabled: true,
            inbox: InboxReader::new(Duration::ZERO, Arc::default()),
        }
    }

    #[test]
    fn store_closed_between_two_batches_of_the_inbox_syncs_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let wal = dir.path().join("duly.db-wal");
        std::fs::write(&wal, "a commit").expect("writes");
        let mut writer = WriterThread {
            conn: file::connect_in_memory().expect("opens"),
            settings: settings(),
            queue_numbers: QueueNumbers::default(),
            disk_reserve: None,
            wal_sync: WalSync::new(Some(wal)),
            has_more_rows: true,
        };
        writer.wal_sync.record_commit();
        let (sender, tasks) = channel();
        drop(sender);
        assert!(writer.next_task(&tasks).is_none(), "the rows stay for the next process");
        assert!(!writer.wal_sync.has_unsynced_commit());
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
        let (sender, tasks) = channel();
        let send = || sender.send(WriteTask::Exclusive(Box::new(|_| {}))).expect("is open");
        let mut window = GroupCommitWindow::default();
        window.expected_size = 9;
        let mut wait = GroupWait::default();
        send();
        assert!(window.wait_for_task(&tasks, 1, &mut wait).is_some(), "one more in time");
        std::thread::sleep(2 * GROUP_WAIT);
        send();
        assert!(window.wait_for_task(&tasks, 2, &mut wait).is_none(), "another commit would have been sooner");
        assert!(window.wait_for_task(&tasks, 1, &mut GroupWait::default()).is_none(), "the next group does not wait");
        assert!(window.wait_for_task(&tasks, 1, &mut GroupWait::default()).is_some(), "the one after that tries again");
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
        let writer = start_on(conn);
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
