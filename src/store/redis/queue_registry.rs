//! The names of queues, put into the hall where others find them.
//!
//! In a Cluster the hall has a server of its own: while that is away, the queues on the others must go on. So only a name
//! that this process has never put there is waited for; later on it is done aside.
//!
//! A server can lose what it has without losing a connection (FLUSHALL). A node learns of it by its next beat; whoever only
//! pushes puts the names of all queues it has pushed to there again a moment later, in one request a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::store::redis::conn::{Link, Way};
use crate::store::redis::keys::PeerKeys;
use crate::store::redis::script;
use crate::store::redis::url::Shape;

/// How long the first beat in a queue waits for its name: whoever looks after it should find the node.
const FIRST_BEAT: Duration = Duration::from_millis(500);
/// How long the first push to a queue waits until its name is where others find it, if that may be another server.
const FIRST_PUSH: Duration = Duration::from_secs(1);

/// How long after a name could not be put there for the first time it is tried again; doubles up to the longest.
const LATER_MIN: Duration = Duration::from_secs(1);
const LATER_MAX: Duration = Duration::from_secs(30);

/// How long after a push the name of its queue is put there again, at most.
const AGAIN: Duration = Duration::from_secs(1);
/// Most names in one request.
const TOGETHER_MAX: usize = 500;

/// Which names are in the hall, as far as this process knows.
pub(super) struct Names {
    link: Arc<Link>,
    /// Where names are put there that nobody waits for.
    home: Handle,
    keys: PeerKeys,
    known: Mutex<HashMap<String, Name>>,
    /// Those that were pushed to are about to be put there again.
    again: AtomicBool,
    /// A name is no longer on its way.
    news: Notify,
}

#[derive(Clone, Copy, Default)]
struct Name {
    /// Through which connection it got there; `None` if it never did.
    by: Option<u64>,
    /// It is on its way, and nobody waits for it.
    under_way: bool,
    /// It was waited for in vain: whoever comes now goes on at once.
    late: bool,
    /// The queue was pushed to since its name was put there.
    pushed: bool,
}

impl Names {
    pub(super) fn new(link: Arc<Link>, home: Handle, hall: &PeerKeys) -> Arc<Self> {
        Arc::new(Names {
            link,
            home,
            keys: hall.clone(),
            known: Mutex::default(),
            again: AtomicBool::new(false),
            news: Notify::new(),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a queue that is about to get something is there, or, if it was before, will be again.
    pub(super) async fn put(self: &Arc<Self>, op: &'static str, queue: &str, now: String) -> Result<()> {
        if !self.note_push(queue) {
            if self.link.place().shape != Shape::Cluster || op != "push" {
                return self.send(op, &[queue.to_owned()], now).await;
            }
            // The names may live with a server that is away, and the queue with another: then a push goes on without its name,
            // which is put there later, by us or by who works it.
            drop(self.put_aside(queue, now));
            if tokio::time::timeout(FIRST_PUSH, self.arrived(queue)).await.is_err() {
                self.known().entry(queue.to_owned()).or_default().late = true;
            }
            return Ok(());
        }
        self.put_aside(queue, now.clone());
        self.put_again(now);
        Ok(())
    }

    /// Notes that a queue is pushed to, and answers whether its name has been put there before.
    fn note_push(&self, queue: &str) -> bool {
        let mut known = self.known();
        let Some(name) = known.get_mut(queue).filter(|name| name.by.is_some()) else {
            return false;
        };
        name.pushed = true;
        true
    }

    /// Before long puts the names of all queues there again that were pushed to, and lets nobody wait for it.
    fn put_again(self: &Arc<Self>, now: String) {
        if self.again.swap(true, Ordering::SeqCst) {
            return;
        }
        let names = self.clone();
        self.home.spawn(async move {
            tokio::time::sleep(AGAIN).await;
            names.again.store(false, Ordering::SeqCst);
            for some in names.take_pushed().chunks(TOGETHER_MAX) {
                if let Err(error) = names.send("register", some, now.clone()).await {
                    tracing::debug!(%error, "the names of queues are put there with a later push");
                }
            }
        });
    }

    /// The queues that were pushed to since this was last asked.
    fn take_pushed(&self) -> Vec<String> {
        let mut known = self.known();
        let pushed = |(queue, name): (&String, &mut Name)| std::mem::take(&mut name.pushed).then(|| queue.clone());
        known.iter_mut().filter_map(pushed).collect()
    }

    /// The server may have lost this name, although the connection is the same.
    pub(super) fn doubt(&self, queue: &str) {
        if let Some(name) = self.known().get_mut(queue) {
            // It was there; but not by any connection that still counts.
            name.by = name.by.map(|_| 0);
        }
    }

    /// The same for a queue in which a node has just beaten: that counts, whatever becomes of the name.
    pub(super) async fn put_after_beat(self: &Arc<Self>, queue: &str, now: String) {
        let first = !self.known().contains_key(queue);
        if let Some(under_way) = self.put_aside(queue, now)
            && first
        {
            let _ = tokio::time::timeout(FIRST_BEAT, under_way).await;
        }
    }

    /// Resolves when a name is no longer on its way, whoever has sent it, or known to take long.
    async fn arrived(&self, queue: &str) {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if !self.known().get(queue).is_some_and(|name| name.under_way && !name.late) {
                return;
            }
            news.await;
        }
    }

    /// Puts a name there again if it may be missing, and lets nobody wait for it.
    fn put_aside(self: &Arc<Self>, queue: &str, now: String) -> Option<JoinHandle<()>> {
        // A server that came back, or another in its place, may have forgotten it.
        let by = self.link.generation(Way::Door, self.keys.slot);
        let is_there = |name: &Name| name.under_way || (by != 0 && name.by == Some(by));
        if self.known().get(queue).is_some_and(is_there) {
            return None;
        }
        self.known().entry(queue.to_owned()).or_default().under_way = true;
        let (names, queue) = (self.clone(), queue.to_owned());
        Some(self.home.spawn(async move {
            let mut pause = LATER_MIN;
            while let Err(error) = names.send("register", std::slice::from_ref(&queue), now.clone()).await {
                match pause {
                    LATER_MIN => tracing::warn!(queue, %error, "others may not find this queue yet"),
                    _ => tracing::debug!(queue, %error, "others may not find this queue yet"),
                }
                // One that was there before is put there with the next beat or push; one that never was has jobs that nobody
                // finds, and perhaps there is no next.
                if !names.is_missing(&queue) {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LATER_MAX);
            }
            names.known().entry(queue).or_default().under_way = false;
            names.news.notify_waiters();
        }))
    }

    /// Notes that it takes long to put a name there, and answers whether it never was.
    fn is_missing(&self, queue: &str) -> bool {
        let missing = {
            let mut known = self.known();
            let name = known.entry(queue.to_owned()).or_default();
            name.late = name.by.is_none();
            name.late
        };
        self.news.notify_waiters();
        missing
    }

    async fn send(&self, op: &'static str, queues: &[String], now: String) -> Result<()> {
        let mut cmd = script::REGISTER_QUEUES.call(&self.keys);
        cmd.arg(now).arg(queues);
        self.link.repeat(op, Way::Door, self.keys.slot, &script::REGISTER_QUEUES, &cmd).await?;
        let by = self.link.generation(Way::Door, self.keys.slot);
        let mut known = self.known();
        for queue in queues {
            let name = known.entry(queue.clone()).or_default();
            (name.by, name.late) = (Some(by), false);
        }
        Ok(())
    }
}
