//! The reading thread: reads never wait for writes, and never block them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::error::{Error, Result};
use crate::store::sqlite::errors;
use crate::store::sqlite::file_watch::FileWatch;
use crate::sync::start_thread;

/// Most reads that wait for the thread.
const PENDING_READS_MAX: usize = 1_024;

type ReadTask = Box<dyn FnOnce(&Connection) + Send>;

/// The reading thread. Dropping it waits until its connection is closed.
pub(super) struct Reader {
    /// `None` once it is closed.
    tasks: Option<Sender<ReadTask>>,
    permits: Semaphore,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub(super) fn start(conn: Connection, watch: Arc<FileWatch>) -> Result<Self> {
        let (tasks, inbox) = channel::<ReadTask>();
        let run = move || {
            inbox.into_iter().for_each(|read| read(&conn));
            watch.before_close(&conn);
        };
        let thread = start_thread("open", "duly-reader", run)?;
        Ok(Reader { tasks: Some(tasks), permits: Semaphore::new(PENDING_READS_MAX), thread: Some(thread) })
    }

    /// Runs `read` on one snapshot of the file.
    pub(super) async fn read<T, F>(&self, name: &'static str, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed; open it again");
        let _room = self.permits.acquire().await.map_err(|_| gone())?;
        let (reply, result) = oneshot::channel();
        let run = move |conn: &Connection| {
            let result = errors::catch_panic(|| run_in_snapshot(conn, name, read));
            let _ = reply.send(result.unwrap_or_else(|panic| Err(errors::from_sqlite(name, panic))));
        };
        let tasks = self.tasks.as_ref().ok_or_else(gone)?;
        tasks.send(Box::new(run)).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run_in_snapshot<T>(conn: &Connection, name: &'static str, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let snapshot = conn.unchecked_transaction().map_err(|e| errors::from_sqlite(name, e))?;
    let result = read(&snapshot);
    drop(snapshot);
    result
}
