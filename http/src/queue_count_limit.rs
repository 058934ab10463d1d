//! The maximum number of queues that clients may create: by a push, a worker, a rule, a pause or a capacity.
//!
//! A request reserves its new queues before it creates them. If it fails, they are free again for other requests.
//!
//! A client below the role operator may create at most as many queues as are left. One client gets half of them, two
//! get a third each, and so on: whatever they push, some queues stay for other clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use duly::admin::Role;
use duly::{Clock, Duly};

use super::identity::Identity;
use super::problem::{Problem, Result};

use crate::sync::LockExt;

/// The queues of the store are read at most this often, unless a request has failed to create one.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Unused queues are removed at most this often.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(60);

/// The queues that the server knows, and the maximum number of queues that clients may create.
pub(crate) struct QueueCountLimit {
    max: usize,
    names: Arc<Mutex<QueueNames>>,
    /// Serialises reads of the store. Requests that create no queue do not wait for them.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct QueueNames {
    /// The queues of the store, when it was last read or later.
    existing: BTreeSet<String>,
    /// Those of them that were created since the last read began.
    created: BTreeSet<String>,
    /// The new queues of requests in progress, with the number of these requests.
    reserved: BTreeMap<String, usize>,
    /// The client that has created a queue, if it has a share.
    creators: BTreeMap<String, String>,
    /// When the queues were read from the store; `None` if they must be read again.
    read: Option<Duration>,
    /// The number of requests that have failed, and may have created a queue or not.
    failures: u64,
    /// When unused queues were removed.
    removed: Option<Duration>,
}

/// The reason why a request cannot create its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueRefusal {
    /// The store would have too many queues.
    Full,
    /// The client has created this many queues, its share.
    ClientShare(usize),
}

impl QueueNames {
    /// Returns the queues that do not exist yet, as far as the server knows.
    fn missing<'q>(&self, wanted: &BTreeSet<&'q str>) -> Vec<&'q str> {
        wanted.iter().copied().filter(|queue| !self.existing.contains(*queue)).collect()
    }

    /// Reserves these queues if they may be created. `client` is the name of a client with a share.
    fn reserve(&mut self, missing: &[&str], client: Option<&str>, max: usize) -> std::result::Result<(), QueueRefusal> {
        let new: Vec<&str> = missing.iter().copied().filter(|queue| !self.reserved.contains_key(*queue)).collect();
        if !new.is_empty() {
            let left = max.checked_sub(self.len() + new.len()).ok_or(QueueRefusal::Full)?;
            let own = client.map_or(0, |client| self.creators.values().filter(|creator| *creator == client).count());
            if client.is_some() && own + new.len() > left {
                return Err(QueueRefusal::ClientShare(own));
            }
        }
        for queue in missing {
            *self.reserved.entry((*queue).to_owned()).or_default() += 1;
        }
        if let Some(client) = client {
            self.creators.extend(new.into_iter().map(|queue| (queue.to_owned(), client.to_owned())));
        }
        Ok(())
    }

    /// Returns the number of queues, with the reserved ones.
    fn len(&self) -> usize {
        let reserved = self.reserved.keys().filter(|queue| !self.existing.contains(*queue));
        self.existing.len() + reserved.count()
    }

    fn release(&mut self, queue: &str) {
        if let Some(requests) = self.reserved.get_mut(queue) {
            *requests -= 1;
            if *requests == 0 {
                self.reserved.remove(queue);
            }
        }
        if !self.is_known(queue) {
            self.creators.remove(queue);
        }
    }

    fn is_known(&self, queue: &str) -> bool {
        self.existing.contains(queue) || self.reserved.contains_key(queue)
    }
}

/// The queues that a request may create. They are free again if it is dropped before [`NewQueues::confirm`].
#[must_use = "queues are reserved only as long as this value exists"]
pub(crate) struct NewQueues {
    names: Arc<Mutex<QueueNames>>,
    queues: Vec<String>,
}

impl NewQueues {
    /// Notes that the request has succeeded: the queues exist now.
    pub(crate) fn confirm(mut self) {
        let mut names = self.names.lock_unpoisoned();
        for queue in std::mem::take(&mut self.queues) {
            names.existing.insert(queue.clone());
            names.release(&queue);
            names.created.insert(queue);
        }
    }
}

impl Drop for NewQueues {
    fn drop(&mut self) {
        if self.queues.is_empty() {
            return;
        }
        let mut names = self.names.lock_unpoisoned();
        self.queues.iter().for_each(|queue| names.release(queue));
        // Some of them may exist: only the store knows.
        names.read = None;
        names.failures += 1;
    }
}

impl QueueCountLimit {
    pub(crate) fn new(max: usize) -> Self {
        QueueCountLimit { max, names: Arc::default(), reading: tokio::sync::Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, QueueNames> {
        self.names.lock_unpoisoned()
    }

    /// Reserves those of these queues that are new; a 409 if the store has too many, or the client has its share.
    pub(crate) async fn reserve(
        &self,
        duly: &Duly,
        identity: &Identity,
        queues: impl IntoIterator<Item = &str>,
    ) -> Result<NewQueues> {
        let wanted: BTreeSet<&str> = queues.into_iter().collect();
        let client = (identity.role < Role::Operator).then_some(&*identity.name);
        let reserve = || {
            let mut names = self.names();
            let missing = names.missing(&wanted);
            let reserved = names.reserve(&missing, client, self.max);
            reserved.map(|()| missing.iter().map(|queue| (*queue).to_owned()).collect::<Vec<_>>())
        };
        let has_new = { wanted.iter().any(|queue| !self.names().is_known(queue)) };
        if has_new {
            let _reading = self.reading.lock().await;
            self.read_if_old(duly).await?;
            let removes = reserve().map_err(|refusal| (refusal, self.is_removal_due()));
            match removes {
                Ok(queues) => return Ok(self.new_queues(queues)),
                Err((_, true)) if duly.queues().remove_unused().await? > 0 => self.read(duly).await?,
                Err(_) => {}
            }
        }
        let reserved = reserve().map_err(|refusal| self.refuse(refusal, &wanted, &identity.name));
        reserved.map(|queues| self.new_queues(queues))
    }

    fn new_queues(&self, queues: Vec<String>) -> NewQueues {
        NewQueues { names: self.names.clone(), queues }
    }

    async fn read_if_old(&self, duly: &Duly) -> Result<()> {
        let read = self.names().read;
        // Other programs create queues, too.
        match read.is_none_or(|read| now().saturating_sub(read) >= READ_INTERVAL) {
            true => self.read(duly).await,
            false => Ok(()),
        }
    }

    async fn read(&self, duly: &Duly) -> Result<()> {
        let failures = {
            let mut names = self.names();
            names.created.clear();
            names.failures
        };
        let read: BTreeSet<String> = duly.queues().counts().await?.into_iter().map(|count| count.queue).collect();
        let mut names = self.names();
        let QueueNames { existing, created, reserved, creators, .. } = &mut *names;
        *existing = read;
        existing.extend(created.iter().cloned());
        creators.retain(|queue, _| existing.contains(queue) || reserved.contains_key(queue));
        // The read may have missed a queue of a request that has failed meanwhile.
        names.read = (names.failures == failures).then(now);
        Ok(())
    }

    fn is_removal_due(&self) -> bool {
        let (mut names, now) = (self.names(), now());
        let is_due = names.removed.is_none_or(|removed| now.saturating_sub(removed) >= REMOVAL_INTERVAL);
        if is_due {
            names.removed = Some(now);
        }
        is_due
    }

    fn refuse(&self, refusal: QueueRefusal, wanted: &BTreeSet<&str>, client: &str) -> Problem {
        let (names, max) = (self.names(), self.max);
        let queue = wanted.iter().find(|queue| !names.is_known(queue)).copied().unwrap_or_default();
        let detail = match refusal {
            QueueRefusal::Full => format!(
                "queue {queue} does not exist; the store has {} queues, and at the limit of {max}, clients cannot create \
                 further queues; use an existing queue, remove one (`duly queues rm`), or raise --max-queues of the server",
                names.len()
            ),
            QueueRefusal::ClientShare(own) => format!(
                "queue {queue} does not exist; {client} has created {own} queues, and may create at most as many as are \
                 left of {max}; use an existing queue or several tokens, remove a queue (`duly queues rm`), or raise \
                 --max-queues of the server"
            ),
        };
        Problem::new(StatusCode::CONFLICT, "too_many_queues", detail)
    }
}

fn now() -> Duration {
    Clock::system().monotonic()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    async fn reserve(limit: &QueueCountLimit, duly: &Duly, role: Role, queues: &[&str]) -> Option<NewQueues> {
        let identity = Identity::new(role.to_string(), role);
        let reserving = limit.reserve(duly, &identity, queues.iter().copied());
        tokio::time::timeout(LONG, reserving).await.expect("in time").ok()
    }

    #[tokio::test]
    async fn failed_request_frees_its_queues() {
        let (duly, limit) = (Duly::open(":memory:").await.expect("opens"), QueueCountLimit::new(3));
        let first = reserve(&limit, &duly, Role::Operator, &["one", "two"]).await.expect("room");
        let same = reserve(&limit, &duly, Role::Operator, &["two"]).await.expect("is reserved");
        let both = ["three", "four"];
        assert!(reserve(&limit, &duly, Role::Operator, &both).await.is_none());
        drop(first);
        assert!(reserve(&limit, &duly, Role::Operator, &both).await.is_some(), "one is free again");
        duly.queues().pause("two").await.expect("creates");
        same.confirm();
        assert!(reserve(&limit, &duly, Role::Operator, &["one", "three", "four"]).await.is_none());
        let names = limit.names();
        assert_eq!((names.existing.len(), names.reserved.len()), (1, 0));
    }

    #[tokio::test]
    async fn client_below_operator_creates_at_most_as_many_as_are_left() {
        let (duly, limit) = (Duly::open(":memory:").await.expect("opens"), QueueCountLimit::new(6));
        let create = async |role, queue: &str| {
            let Some(queues) = reserve(&limit, &duly, role, &[queue]).await else {
                return false;
            };
            duly.queues().pause(queue).await.expect("creates");
            queues.confirm();
            true
        };
        assert!(reserve(&limit, &duly, Role::Pusher, &["a", "b", "c", "d"]).await.is_none());
        for queue in ["a", "b", "c", "a"] {
            assert!(create(Role::Pusher, queue).await, "{queue}");
        }
        assert!(!create(Role::Pusher, "d").await);
        for queue in ["d", "e", "f"] {
            assert!(create(Role::Operator, queue).await, "{queue}");
        }
        assert!(!create(Role::Operator, "g").await);
        assert!(create(Role::Pusher, "f").await, "it exists");
    }

    #[tokio::test]
    async fn known_queue_does_not_wait_for_a_read_of_the_store() {
        let (duly, limit) = (Duly::open(":memory:").await.expect("opens"), QueueCountLimit::new(3));
        reserve(&limit, &duly, Role::Pusher, &["one"]).await.expect("room").confirm();
        let _reading = limit.reading.lock().await;
        assert!(reserve(&limit, &duly, Role::Pusher, &["one"]).await.is_some());
    }
}
