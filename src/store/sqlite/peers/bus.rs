//! The thread of the bus: messages between processes never wait for jobs, and jobs never wait for messages.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::error::{Error, Result};
use crate::store::sqlite::errors;
use crate::store::sqlite::nodes::slots::CurrentSlots;
use crate::store::sqlite::peers::bus_file::BusFile;
use crate::sync::start_thread;

/// Most requests that wait for the thread.
const PENDING_TASKS_MAX: usize = 1_024;

type BusTask = Box<dyn FnOnce(&mut BusFile) + Send>;

/// The thread of the bus. Dropping it waits until its connection is closed.
pub(crate) struct MessageBus {
    /// `None` once it is closed.
    tasks: Option<Sender<BusTask>>,
    permits: Semaphore,
    thread: Option<JoinHandle<()>>,
}

impl MessageBus {
    /// Starts the thread. The file in the directory of these slots is opened on first use. Without slots, the bus is in
    /// memory.
    pub(crate) fn start(slots: Option<&CurrentSlots>) -> Result<Self> {
        let (work, inbox) = channel::<BusTask>();
        let mut file = BusFile::beside(slots);
        let thread = start_thread("open", "duly-bus", move || inbox.into_iter().for_each(|work| work(&mut file)))?;
        Ok(MessageBus { tasks: Some(work), permits: Semaphore::new(PENDING_TASKS_MAX), thread: Some(thread) })
    }

    /// Runs `run` on the bus. Returns its value and the inode of the file. `run` may run twice.
    pub(crate) async fn run<T, F>(&self, name: &'static str, mut run: F) -> Result<(T, u64)>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed; open it again");
        let _room = self.permits.acquire().await.map_err(|_| gone())?;
        let (reply, result) = oneshot::channel();
        let work = move |file: &mut BusFile| {
            let ran = errors::catch_panic(|| file.with(&mut run)).flatten();
            let _ = reply.send(ran.map(|value| (value, file.inode())).map_err(|e| errors::from_sqlite(name, e)));
        };
        let inbox = self.tasks.as_ref().ok_or_else(gone)?;
        inbox.send(Box::new(work)).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

impl Drop for MessageBus {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
