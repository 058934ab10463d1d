//! Transfer of everything from one store to another. It may be killed at any time and run again: nothing is lost or
//! doubled.
//!
//! Life of a transfer, for each queue:
//! 1. The queue is marked in the source: nothing is claimed from it any more, and its jobs do not change.
//! 2. A checkpoint is created in the target. If one exists, an earlier mover was killed: the jobs of its last batch are
//!    deleted from the source.
//! 3. The mover waits for running jobs and takes back the jobs of dead nodes.
//! 4. Batch by batch, it reads jobs, reserves them, adds them to the target together with a checkpoint that names them,
//!    and deletes them. Reserved jobs that no checkpoint names return to their places when the transfer continues.
//! 5. Cron rules follow, each with its next tick.
//! 6. The checkpoint is removed, then the mark.
//!
//! A mover that continues a transfer puts its own id into mark and checkpoint. Both stores check these ids in the same
//! operation as they write. So a mover that was only slow finds that it has lost the queue, and changes nothing.

mod cron_rules;
mod queue;
mod retrying_store;

use std::time::Duration;

use serde::Serialize;

use self::queue::{QueueTransfer, TransferStores};
use crate::client::Duly;
use crate::error::{ConflictKind, Error, Result};
use crate::job::State;
use crate::job::push::check_name;
use crate::node::{Node, NodeId};
use crate::store::{
    Claim, Filter, JobStore, QueueCounts, TRANSFER_BATCH_MAX, TransactionStore, TransferMark, TransferStore,
    display_url,
};

/// First delay between checks for running jobs; doubles up to the heartbeat interval.
const RUNNING_POLL_MIN: Duration = Duration::from_millis(20);
/// Most claims that take back a dead node's jobs before running jobs are checked again.
const TAKE_BACKS_MAX: usize = 100;
/// If another system's queues have this many jobs in total, the counts may be too low.
const FOREIGN_JOBS_COUNTED_MAX: u64 = 100_000;
/// Most processes of other programs named in an error.
const NAMED_PROCESSES_MAX: usize = 3;
/// States of the jobs to transfer, in this order; the mover waits for running jobs.
const TRANSFER_STATES: [State; 5] = [State::Ready, State::Scheduled, State::Dead, State::Cancelled, State::Done];

/// A transfer of jobs from one store to another, created by [`Duly::transfer_to`].
#[must_use = "call `run`"]
pub struct Transfer {
    source: Duly,
    target: Duly,
    queues: Vec<String>,
    on_progress: Box<dyn Fn(&TransferProgress<'_>) + Send + Sync>,
    calls_left: Option<u64>,
    allows_foreign_processes: bool,
}

/// The progress of a transfer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferProgress<'m> {
    /// The current queue.
    pub queue: &'m str,
    /// Jobs of all queues that this run has transferred.
    pub moved: u64,
    /// Jobs of all queues to transfer, counted at the start.
    pub total: u64,
    /// Whether the transfer waits for running jobs of this queue.
    pub is_waiting: bool,
}

/// The result for one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueTransferReport {
    /// The queue.
    pub queue: String,
    /// Ready jobs transferred.
    pub ready: u64,
    /// Scheduled jobs transferred.
    pub scheduled: u64,
    /// Dead jobs transferred.
    pub dead: u64,
    /// Cancelled jobs transferred.
    pub cancelled: u64,
    /// Done jobs transferred.
    pub done: u64,
    /// Cron rules transferred.
    pub cron_rules: u64,
    /// Jobs skipped because the target has or recently had a job with the same id.
    pub already_present: u64,
    /// Jobs that became dead because another job in the target has their unique key.
    pub buried: u64,
    /// Entries that remain in another system's queue: unreadable ones and those added since.
    pub remaining: u64,
}

impl QueueTransferReport {
    /// Returns the number of transferred jobs, without skipped ones.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ready + self.scheduled + self.dead + self.cancelled + self.done
    }
}

impl Duly {
    /// Transfers all jobs to another store unchanged: ready ones in claim order, scheduled ones, dead ones with their
    /// history, and done ones. Cron rules are transferred with their next tick. A queue keeps its capacity, unless it
    /// has one in the target.
    ///
    /// Queues are transferred one by one. Meanwhile nothing is claimed from a queue here; running jobs finish first.
    /// Jobs pushed here meanwhile are transferred too. Switch programs to the other store before the transfer ends.
    /// An interrupted transfer continues when it is run again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let (old, new) = (Duly::open(":memory:").await?, Duly::open(":memory:").await?);
    /// let id = old.push(Push::new("mail", "{}")).await?.id();
    /// let moved = old.transfer_to(&new).run().await?;
    /// assert_eq!((moved[0].queue.as_str(), moved[0].ready), ("default", 1));
    /// assert!(old.jobs().get(id).await?.is_none() && new.jobs().get(id).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn transfer_to(&self, target: &Duly) -> Transfer {
        Transfer {
            source: self.clone(),
            target: target.clone(),
            queues: Vec::new(),
            on_progress: Box::new(|_| {}),
            calls_left: None,
            allows_foreign_processes: false,
        }
    }

    /// Resumes a queue that is moving to another store, before the transfer is complete. Returns whether it was moving.
    ///
    /// Use this only if the other store is lost: jobs of the last batch may be in both stores.
    /// Otherwise run the transfer again, or transfer everything back, which is exact.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the name of the queue is invalid.
    /// - [`Error::Store`]: the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// assert!(!duly.abandon_transfer("mail").await?, "the queue is not moving");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn abandon_transfer(&self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        let counts = self.store.counts().await?;
        match counts.into_iter().find(|count| count.queue == queue).and_then(|count| count.moving) {
            Some(moving) => Ok(self.store.set_transfer_mark(queue, moving.mover, None).await?.mark.is_none()),
            None => Ok(false),
        }
    }
}

impl Transfer {
    /// Limits the transfer to this queue; may be called several times.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(old: duly::Duly, new: duly::Duly) -> duly::Result<()> {
    /// old.transfer_to(&new).queue("mail").queue("import").run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Sets a callback for progress, called after each batch and periodically while waiting for running jobs.
    pub fn on_progress(mut self, callback: impl Fn(&TransferProgress<'_>) + Send + Sync + 'static) -> Self {
        self.on_progress = Box::new(callback);
        self
    }

    /// Transfers although live processes of another program, such as Sidekiq, take jobs from these queues.
    ///
    /// Each job still runs in only one of the two stores. A job that such a process has taken returns to the source if it
    /// fails. Jobs that programs push to the source later stay there.
    pub fn allow_foreign_processes(mut self) -> Self {
        self.allows_foreign_processes = true;
        self
    }

    /// Ends the transfer as if killed after this many requests to the stores: for tests.
    #[doc(hidden)]
    pub fn kill_after(mut self, calls: u64) -> Self {
        self.calls_left = Some(calls);
        self
    }

    /// Runs the transfer and returns a report for each queue.
    ///
    /// See [`Duly::transfer_to`] for an example.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: a queue to transfer does not exist.
    /// - [`Error::Conflict`]: another transfer has taken over, or an earlier one to another target is not complete.
    /// - [`Error::Invalid`]: both stores are the same.
    pub async fn run(self) -> Result<Vec<QueueTransferReport>> {
        // Rows of the inbox become jobs first: their queues may have no job yet.
        match self.source.store.take_inbox().await {
            Ok(()) | Err(Error::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
        let mover = NodeId::fresh();
        let source_url = display_url(&self.source.url, &self.source.options);
        let target_url = display_url(&self.target.url, &self.target.options);
        let stores = TransferStores::new(&self.source, &self.target, mover, target_url, self.calls_left);
        let mut run = TransferRun {
            stores,
            source_url,
            lease: self.source.options.lease,
            on_progress: self.on_progress,
            allows_foreign_processes: self.allows_foreign_processes,
            moved: 0,
            total: 0,
        };
        let result = run.run(&self.queues).await;
        // The mover holds no jobs. If it cannot leave, it disappears when its lease expires.
        let _ = self.source.store.leave(mover).await;
        result
    }
}

/// One run of a transfer.
struct TransferRun {
    stores: TransferStores,
    /// The source for people.
    source_url: String,
    /// The lease of nodes in the source.
    lease: Duration,
    on_progress: Box<dyn Fn(&TransferProgress<'_>) + Send + Sync>,
    allows_foreign_processes: bool,
    moved: u64,
    total: u64,
}

impl TransferRun {
    async fn run(&mut self, only: &[String]) -> Result<Vec<QueueTransferReport>> {
        let target_counts = self.stores.target.counts().await?;
        let queues = self.select_queues(only, &target_counts).await?;
        let node = Node {
            id: self.stores.mover,
            lease: self.lease,
            queues: queues.iter().map(|count| count.queue.clone()).collect(),
            profile: crate::node::NodeProfile::default(),
        };
        self.stores.target.check_transfer_support()?;
        self.check_foreign_processes(&queues).await?;
        self.check_distinct_stores(&node).await?;
        for count in &queues {
            let other = target_counts.iter().find(|other| other.queue == count.queue);
            self.check_marks(count, other.and_then(|other| other.moving.as_ref())).await?;
            cron_rules::check_supported(&self.stores, &count.queue).await?;
            self.total += count_jobs(count);
        }
        let mut reports = Vec::with_capacity(queues.len());
        for count in &queues {
            let other = target_counts.iter().find(|other| other.queue == count.queue);
            self.copy_capacity(count, other).await?;
            reports.push(self.transfer_queue(count, &node).await?);
        }
        Ok(reports)
    }

    /// Returns the queues to transfer, including those that were moving here and have no job here yet.
    async fn select_queues(&self, only: &[String], target_counts: &[QueueCounts]) -> Result<Vec<QueueCounts>> {
        for queue in only {
            check_name("queue", queue)?;
        }
        let mut queues = self.stores.source.counts().await?;
        let is_coming_back =
            |other: &&QueueCounts| other.moving.as_ref().is_some_and(|mark| mark.to == self.source_url);
        for other in target_counts.iter().filter(is_coming_back) {
            if !queues.iter().any(|count| count.queue == other.queue) {
                queues.push(QueueCounts { queue: other.queue.clone(), ..QueueCounts::default() });
            }
        }
        if let Some(missing) = only.iter().find(|only| !queues.iter().any(|count| count.queue == **only)) {
            return Err(Error::not_found("queue", missing));
        }
        queues.retain(|count| only.is_empty() || only.contains(&count.queue));
        Ok(queues)
    }

    /// Returns an error if a live process of another program takes jobs from these queues, unless that is allowed.
    async fn check_foreign_processes(&self, queues: &[QueueCounts]) -> Result<()> {
        if self.allows_foreign_processes || queues.is_empty() {
            return Ok(());
        }
        let mut processes = self.stores.source.foreign_processes().await?;
        processes.retain(|process| queues.iter().any(|count| process.may_work(&count.queue)));
        if processes.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = processes.iter().take(NAMED_PROCESSES_MAX).map(|process| &process.name[..]).collect();
        let more = if processes.len() > names.len() { ", ..." } else { "" };
        let interrupted = queues.iter().find(|count| count.moving.is_some()).map_or(String::new(), |count| {
            format!(
                "; a move of queue {} was interrupted; until it resumes, those processes cannot see up to {TRANSFER_BATCH_MAX} of its jobs",
                count.queue
            )
        });
        Err(Error::conflict(
            ConflictKind::InUse,
            format!(
                "{} live processes of another program take jobs from these queues ({}{more}); stop them first (a killed one disappears within a minute), or force the move{interrupted}",
                processes.len(),
                names.join(", ")
            ),
        ))
    }

    /// Returns an error if both URLs lead to one store: the mover joins the source and must not appear in the target.
    async fn check_distinct_stores(&mut self, node: &Node) -> Result<()> {
        if node.queues.is_empty() {
            return Ok(());
        }
        let same = || Err(Error::invalid("to", "is the store that the jobs are in; name another store"));
        let keyspace = self.stores.source.shared_keyspace().await?;
        self.stores.is_source_foreign = keyspace.is_some();
        if keyspace.is_some() && keyspace == self.stores.target.shared_keyspace().await? {
            return same();
        }
        self.stores.source.heartbeat(node).await?;
        let others = self.stores.target.nodes().await?;
        match others.iter().any(|other| other.id == node.id) {
            true => same(),
            false => Ok(()),
        }
    }

    /// Checks for unfinished transfers of a queue from or to other stores, and completes one in the opposite direction.
    async fn check_marks(&self, count: &QueueCounts, target_mark: Option<&TransferMark>) -> Result<()> {
        let queue = count.queue.as_str();
        let unfinished = |store: &str, to: &str| {
            Err(Error::conflict(
                ConflictKind::Moving,
                format!(
                    "queue {queue} of {store} was moving to {to} when that move was interrupted; complete that move first, or move the queue back"
                ),
            ))
        };
        if let Some(mark) = count.moving.as_ref().filter(|mark| mark.to != self.stores.target_url)
            && self.stores.read_checkpoint(queue, mark.begun_by).await?.is_none()
        {
            return unfinished("the store to move from", &mark.to);
        }
        let Some(mark) = target_mark else {
            return Ok(());
        };
        let back = self.stores.reversed(&self.source_url);
        if mark.to != back.target_url && back.read_checkpoint(queue, mark.begun_by).await?.is_none() {
            return unfinished("the store to move to", &mark.to);
        }
        // The queue was moving in the opposite direction: resolve its last batch first.
        QueueTransfer::begin(&back, queue).await?.finish().await
    }

    /// Copies the capacity of a queue, unless it already has one in the target.
    async fn copy_capacity(&self, count: &QueueCounts, target: Option<&QueueCounts>) -> Result<()> {
        if count.capacity.is_unlimited() || target.is_some_and(|target| !target.capacity.is_unlimited()) {
            return Ok(());
        }
        if self.stores.target.capabilities().admin.is_none() {
            tracing::warn!(queue = %count.queue, "the target store does not support capacities; the queue is unlimited there");
            return Ok(());
        }
        self.stores.target.set_capacity(&count.queue, count.capacity).await.map(drop)
    }

    async fn transfer_queue(&mut self, count: &QueueCounts, node: &Node) -> Result<QueueTransferReport> {
        let queue = count.queue.as_str();
        if count.paused {
            self.stores.target.pause(queue).await?;
        }
        let mut report = QueueTransferReport { queue: queue.to_owned(), ..QueueTransferReport::default() };
        let stores = self.stores.clone();
        // Stores of other systems count jobs only up to a maximum.
        let is_count_exact =
            !stores.is_source_foreign || self.total < FOREIGN_JOBS_COUNTED_MAX || self.is_empty(queue).await?;
        if count_jobs(count) == 0
            && is_count_exact
            && count.moving.is_none()
            && cron_rules::list_rules(&stores, queue).await?.is_empty()
        {
            return Ok(report);
        }
        let mut transfer = QueueTransfer::begin(&stores, queue).await?;
        self.wait_for_running(queue, node).await?;
        // Repeats while programs push.
        loop {
            let before = self.moved;
            for state in TRANSFER_STATES {
                while let Some(batch) = transfer.read_batch(state).await? {
                    self.moved += transfer.transfer_batch(batch, &mut report).await?;
                    self.report_progress(queue, false);
                }
            }
            if self.moved == before {
                break;
            }
        }
        report.cron_rules = cron_rules::transfer_rules(&stores, queue).await?;
        transfer.finish().await?;
        if stores.is_source_foreign {
            let counts = self.stores.source.counts().await?;
            report.remaining = counts.iter().filter(|count| count.queue == queue).map(count_jobs).sum();
        }
        Ok(report)
    }

    /// Returns whether a queue has no jobs.
    async fn is_empty(&self, queue: &str) -> Result<bool> {
        let mut filter = Filter { queue: Some(queue.to_owned()), limit: 1, ..Filter::default() };
        loop {
            let page = self.stores.source.list(filter.clone()).await?;
            if !page.jobs.is_empty() || page.next_cursor.is_none() {
                return Ok(page.jobs.is_empty());
            }
            filter.cursor = page.next_cursor;
        }
    }

    /// Waits until no job of a queue is running, and takes back the jobs of dead nodes.
    async fn wait_for_running(&self, queue: &str, node: &Node) -> Result<()> {
        let running =
            Filter { queue: Some(queue.to_owned()), state: Some(State::Running), limit: 1, ..Filter::default() };
        let mut delay = RUNNING_POLL_MIN;
        loop {
            let page = self.stores.source.list(running.clone()).await?;
            if page.jobs.is_empty() && page.next_cursor.is_none() {
                return Ok(());
            }
            self.report_progress(queue, true);
            let reply = self.stores.source.heartbeat(node).await?;
            for (suspect, _) in reply.suspects.iter().filter(|(_, suspect_queue)| suspect_queue == queue) {
                let claim = Claim { suspect: Some(*suspect), ..Claim::new(queue, 0) };
                for _ in 0..TAKE_BACKS_MAX {
                    let reply = self.stores.source.claim(node.id, claim.clone()).await?;
                    if !reply.has_more {
                        break;
                    }
                }
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(node.heartbeat_interval());
        }
    }

    fn report_progress(&self, queue: &str, is_waiting: bool) {
        (self.on_progress)(&TransferProgress {
            queue,
            moved: self.moved,
            total: self.total.max(self.moved),
            is_waiting,
        });
    }
}

fn count_jobs(count: &QueueCounts) -> u64 {
    State::ALL.iter().map(|state| count.count_in(*state)).sum()
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("source", &self.source).field("target", &self.target).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
