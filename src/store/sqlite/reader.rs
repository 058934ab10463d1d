//! The thread that reads: looking never waits behind writing, nor holds it up.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::error::{Error, Result};

/// Most looks that wait for the thread.
const WAITING_MAX: usize = 1_024;

type Look = Box<dyn FnOnce(&Connection) + Send>;

/// A handle to the thread; the thread ends when the last handle goes.
#[derive(Clone)]
pub(super) struct Reader {
    looks: Sender<Look>,
    room: Arc<Semaphore>,
}

impl Reader {
    pub(super) fn start(conn: Connection) -> Result<Self> {
        let (looks, inbox) = channel::<Look>();
        std::thread::Builder::new()
            .name("duly-reader".into())
            .spawn(move || inbox.into_iter().for_each(|look| look(&conn)))
            .map_err(|e| Error::store("open", format!("cannot start a thread: {e}")))?;
        Ok(Reader { looks, room: Arc::new(Semaphore::new(WAITING_MAX)) })
    }

    /// Runs `look` on one snapshot of the file.
    pub(super) async fn read<T, F>(&self, name: &'static str, look: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let gone = || Error::store(name, "the store was closed");
        let _room = self.room.acquire().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        let run = move |conn: &Connection| {
            let _ = reply.send(in_snapshot(conn, name, look));
        };
        self.looks.send(Box::new(run)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn in_snapshot<T>(conn: &Connection, name: &'static str, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let snapshot = conn.unchecked_transaction().map_err(|e| super::fault::refused(name, e))?;
    let answer = look(&snapshot);
    drop(snapshot);
    answer
}
