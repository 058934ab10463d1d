//! Queues: counts, pauses, capacities and statistics.

use crate::admin::BulkOperation;
use crate::admin::unused_queues::remove_unused_queues;
use crate::client::Duly;
use crate::error::{ConflictKind, Error, Result};
use crate::job::push::check_name;
use crate::store::{
    AdminStore, Capacity, Filter, History, HistoryQuery, JobStore, PeerStore, QueueCounts, QueueUse, RemoveQueueResult,
    StatCounters, StatsStore,
};

/// The queues of a store, from [`Duly::queues`].
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.push(Push::new("welcome", "{}").queue("mail")).await?;
/// duly.queues().pause("mail").await?;
/// for queue in duly.queues().counts().await? {
///     println!("{}: {} ready, paused: {}", queue.queue, queue.ready, queue.paused);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Queues<'d> {
    duly: &'d Duly,
}

impl Duly {
    /// Returns a handle to the queues: counts, statistics, pauses, capacities.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.queues().pause("mail").await?; // while the mail server is being repaired
    /// duly.queues().resume("mail").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queues(&self) -> Queues<'_> {
        Queues { duly: self }
    }
}

impl Queues<'_> {
    /// Returns the number of jobs in each state, by queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// let counts = duly.queues().counts().await?;
    /// assert_eq!((counts[0].queue.as_str(), counts[0].ready), ("default", 1));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn counts(self) -> Result<Vec<QueueCounts>> {
        self.duly.store.counts().await
    }

    /// Pauses a queue: nothing is claimed from it, and running jobs continue. Returns whether this changed anything.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the name of the queue is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// assert!(duly.queues().pause("mail").await?);
    /// assert!(!duly.queues().pause("mail").await?, "it was already paused");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.duly.store.set_paused(queue, true).await
    }

    /// Resumes a queue. Returns whether it was paused.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the name of the queue is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.queues().pause("mail").await?;
    /// assert!(duly.queues().resume("mail").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume(self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.duly.store.set_paused(queue, false).await
    }

    /// Sets how many unfinished jobs, or bytes of their args, a queue accepts. Returns the previous capacity.
    /// The queue need not exist yet.
    ///
    /// A push beyond the capacity fails with [`Error::Full`](crate::Error::Full). Jobs that are already in the queue stay,
    /// and retried or released jobs always return to it.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`](crate::Error::Invalid): the name of the queue is invalid.
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store uses the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Error, Push, admin::Capacity};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.queues().set_capacity("mail", Capacity::unlimited().jobs(1)).await?;
    /// let push = || duly.push(Push::new("mail", "{}").queue("mail"));
    /// push().await?;
    /// assert!(matches!(push().await, Err(Error::Full { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_capacity(self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        check_name("queue", queue)?;
        self.duly.store.set_capacity(queue, capacity).await
    }

    /// Removes a queue without jobs, with its settings, its statistics and the ids that it remembers. A later push creates
    /// it again.
    ///
    /// Workers and the server remove queues on their own if nothing has used them for a day and they have no settings.
    ///
    /// # Errors
    ///
    /// - [`Error::Conflict`]: the queue has jobs, cron rules or a worker, or is moving to or from another store.
    /// - [`Error::NotFound`]: there is no such queue.
    /// - [`Error::Unsupported`]: the store uses the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Error};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.queues().pause("mail").await?;
    /// duly.queues().remove("mail").await?;
    /// assert!(matches!(duly.queues().remove("mail").await, Err(Error::NotFound { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(self, queue: &str) -> Result<()> {
        check_name("queue", queue)?;
        let in_use =
            |what: &str| Err(Error::conflict(ConflictKind::InUse, format!("cannot remove queue {queue}: {what}")));
        let nodes = self.duly.store.nodes().await?;
        if let Some(node) = nodes.iter().find(|node| node.alive && node.queues.iter().any(|name| name == queue)) {
            return in_use(&format!("node {} works on it; stop that worker first", node.id));
        }
        match self.duly.store.remove_queue(queue, false).await? {
            RemoveQueueResult::Removed => Ok(()),
            RemoveQueueResult::NotFound => Err(Error::not_found("queue", queue)),
            RemoveQueueResult::InUse(QueueUse::Jobs) => {
                in_use("it has jobs; clear it first (`duly queues clear`), and wait for jobs that run")
            }
            RemoveQueueResult::InUse(QueueUse::CronRules) => {
                in_use("cron rules push into it; remove them first (`duly cron ls`)")
            }
            RemoveQueueResult::InUse(QueueUse::Transfer) => {
                in_use("it is moving to or from another store; wait until `duly move` has ended")
            }
            RemoveQueueResult::InUse(QueueUse::Settings | QueueUse::Activity) => {
                in_use("it has just been used again; repeat the command if you still want to remove it")
            }
        }
    }

    /// Removes all unused queues and returns how many. A queue is unused if it has no jobs, settings, cron rules, live
    /// workers or remembered ids, and no statistics of the last day. Workers do this once an hour.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the store cannot be reached. Queues removed until then stay removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.queues().pause("mail").await?;
    /// assert_eq!(duly.queues().remove_unused().await?, 0, "the setting keeps the queue");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_unused(self) -> Result<usize> {
        remove_unused_queues(&*self.duly.store).await
    }

    /// Returns the statistics of the last minutes or hours, by queue. Minutes are kept for a day, hours for 30 days.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`](crate::Error::Invalid): the name of the queue is invalid.
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store keeps no statistics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, admin::HistoryQuery};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let history = duly.queues().history(HistoryQuery::last_minutes(60)).await?;
    /// println!("{} pushed in the last hour", history.total().pushed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn history(self, query: HistoryQuery) -> Result<History> {
        if let Some(queue) = &query.queue {
            check_name("queue", queue)?;
        }
        self.duly.store.history(query).await
    }

    /// Returns the counters of each queue since the store was created, by name. They never decrease.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`](crate::Error::Unsupported) if the store keeps no statistics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for (queue, counters) in duly.queues().totals().await? {
    ///     println!("{queue}: {} pushed, {} done", counters.pushed, counters.done);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn totals(self) -> Result<Vec<(String, StatCounters)>> {
        self.duly.store.queue_totals().await
    }

    /// Deletes all jobs of a queue that are not running: waiting and ended ones.
    ///
    /// Await [`BulkOperation::run`] to start.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}").queue("mail")).await?;
    /// let report = duly.queues().clear("mail").run().await?;
    /// assert_eq!(report.applied, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear<'p>(self, queue: impl Into<String>) -> BulkOperation<'p> {
        self.duly.jobs().remove_all(Filter { queue: Some(queue.into()), ..Filter::default() })
    }
}
