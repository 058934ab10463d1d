//! Moving everything from one store to another. It may be killed at any moment, and run again: nothing is lost or doubled.
//!
//! Life of a move, for each queue:
//! 1. The queue is marked in the store it leaves: nothing is claimed from it any more, its jobs stay as they are.
//! 2. A marker is made in the other store. If there is one, an earlier mover was killed: what it brought last is deleted
//!    where it came from.
//! 3. What runs is waited for; what dead nodes held is taken back.
//! 4. Batch by batch: read, put into the other store together with a marker that names the batch, delete.
//! 5. Cron rules follow, each with the tick it is at.
//! 6. The marker is removed, then the mark.
//!
//! Whoever takes a move up puts its own name on mark and marker. Both stores check them in the same step as they write,
//! so a mover that was only slow finds that it has lost the queue, and changes nothing.

mod cron_rules;
mod queue;
mod retrying_store;

use std::time::Duration;

use serde::Serialize;

use self::queue::{QueueTransfer, TransferStores};
use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::State;
use crate::job::push::check_name;
use crate::node::{Node, NodeId};
use crate::store::{Claim, Filter, QueueCounts, TransferMark, display_url};

/// The first wait for running jobs; doubles up to a beat.
const RUNNING_POLL_MIN: Duration = Duration::from_millis(20);
/// Most steps in which a dead node's jobs are taken back before the next look.
const TAKE_BACKS_MAX: usize = 100;
/// Jobs in all of another system's queues of which more may be there than were counted.
const FOREIGN_JOBS_COUNTED_MAX: u64 = 100_000;
/// Jobs that can be moved, in this order; running ones are waited for.
const TRANSFER_STATES: [State; 4] = [State::Ready, State::Scheduled, State::Dead, State::Done];

/// A move of jobs from one store to another; made by [`Duly::move_to`].
#[must_use = "call `run`"]
pub struct Transfer {
    source: Duly,
    target: Duly,
    queues: Vec<String>,
    on_progress: Box<dyn Fn(&TransferProgress<'_>) + Send + Sync>,
    calls_left: Option<u64>,
}

/// How far a move has come.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferProgress<'m> {
    /// The queue it is at.
    pub queue: &'m str,
    /// Jobs of all queues that have been moved by this run.
    pub moved: u64,
    /// Jobs of all queues that there were to move at its start.
    pub total: u64,
    /// Jobs of this queue run: it waits for them to end.
    pub is_waiting: bool,
}

/// What was moved of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueTransferReport {
    /// The queue.
    pub queue: String,
    /// Jobs that may be claimed.
    pub ready: u64,
    /// Jobs that wait for their due moment.
    pub scheduled: u64,
    /// Jobs that were given up.
    pub dead: u64,
    /// Done jobs that are still kept.
    pub done: u64,
    /// Cron rules.
    pub cron_rules: u64,
    /// Jobs that were left out, since the other store has or had one with the same id.
    pub already_present: u64,
    /// Of the dead ones, those that were not: another job of the other store has their unique key.
    pub buried: u64,
    /// What is still in a queue of another system's after the move: entries that cannot be read, or have come since.
    pub remaining: u64,
}

impl QueueTransferReport {
    /// All jobs that were moved; those that were left out are not among them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ready + self.scheduled + self.dead + self.done
    }
}

impl Duly {
    /// Moves all jobs to another store, as they are: ready ones in the order of their claims, scheduled ones,
    /// dead ones with their history, done ones; and all cron rules, each with the tick it is at. A queue takes its limit along,
    /// unless it has one there.
    ///
    /// Queues are moved one by one. Nothing is claimed from a queue here while it moves, and running jobs are waited for.
    /// What is pushed here meanwhile is moved too; let programs push to the other store before the move ends.
    /// A move that was broken off, however, is taken up by running it again.
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let (old, new) = (Duly::open(":memory:").await?, Duly::open(":memory:").await?);
    /// let id = old.push(Push::new("mail", "{}")).await?.id();
    /// let moved = old.move_to(&new).run().await?;
    /// assert_eq!((moved[0].queue.as_str(), moved[0].ready), ("default", 1));
    /// assert!(old.get(id).await?.is_none() && new.get(id).await?.is_some());
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
        }
    }

    /// Claims from a queue again although its move to another store has not ended. Answers whether it was moving.
    ///
    /// For when the other store is gone for good: the jobs of the last batch may be in both.
    /// Else run the move again, or move everything back, which is exact.
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
    /// Only this queue; may be called several times.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Called after each batch, and now and then while running jobs are waited for.
    pub fn on_progress(mut self, tell: impl Fn(&TransferProgress<'_>) + Send + Sync + 'static) -> Self {
        self.on_progress = Box::new(tell);
        self
    }

    /// Ends as if killed once the stores have been asked so many times: for tests.
    #[doc(hidden)]
    pub fn kill_after(mut self, calls: u64) -> Self {
        self.calls_left = Some(calls);
        self
    }

    /// Moves, and answers what was moved of each queue.
    pub async fn run(self) -> Result<Vec<QueueTransferReport>> {
        let mover = NodeId::fresh();
        let here = display_url(&self.source.url, &self.source.options);
        let there = display_url(&self.target.url, &self.target.options);
        let ends = TransferStores::new(&self.source, &self.target, mover, there, self.calls_left);
        let mut run = TransferRun {
            stores: ends,
            source_url: here,
            lease: self.source.options.lease,
            on_progress: self.on_progress,
            moved: 0,
            total: 0,
        };
        let moved = run.run(&self.queues).await;
        // It holds nothing: if it cannot leave, it is forgotten when its lease ends.
        let _ = self.source.store.leave(mover).await;
        moved
    }
}

/// One run of a move.
struct TransferRun {
    stores: TransferStores,
    /// Where the jobs come from, for people.
    source_url: String,
    /// How long a hold lasts there.
    lease: Duration,
    on_progress: Box<dyn Fn(&TransferProgress<'_>) + Send + Sync>,
    moved: u64,
    total: u64,
}

impl TransferRun {
    async fn run(&mut self, only: &[String]) -> Result<Vec<QueueTransferReport>> {
        let there = self.stores.target.counts().await?;
        let queues = self.select_queues(only, &there).await?;
        let node = Node {
            id: self.stores.mover,
            lease: self.lease,
            queues: queues.iter().map(|count| count.queue.clone()).collect(),
            profile: crate::node::NodeProfile::default(),
        };
        self.check_distinct_stores(&node).await?;
        for count in &queues {
            let other = there.iter().find(|other| other.queue == count.queue);
            self.check_marks(count, other.and_then(|other| other.moving.as_ref())).await?;
            cron_rules::check_supported(&self.stores, &count.queue).await?;
            self.total += count_jobs(count);
        }
        let mut moved = Vec::with_capacity(queues.len());
        for count in &queues {
            let other = there.iter().find(|other| other.queue == count.queue);
            self.copy_capacity(count, other).await?;
            moved.push(self.transfer_queue(count, &node).await?);
        }
        Ok(moved)
    }

    /// The queues to move, also those that were on their way to here and have brought nothing yet.
    async fn select_queues(&self, only: &[String], there: &[QueueCounts]) -> Result<Vec<QueueCounts>> {
        for queue in only {
            check_name("queue", queue)?;
        }
        let mut queues = self.stores.source.counts().await?;
        for other in
            there.iter().filter(|other| other.moving.as_ref().is_some_and(|moving| moving.to == self.source_url))
        {
            if !queues.iter().any(|count| count.queue == other.queue) {
                queues.push(QueueCounts { queue: other.queue.clone(), ..QueueCounts::default() });
            }
        }
        if let Some(none) = only.iter().find(|only| !queues.iter().any(|count| count.queue == **only)) {
            return Err(Error::NotFound { what: "queue", name: none.clone() });
        }
        queues.retain(|count| only.is_empty() || only.contains(&count.queue));
        Ok(queues)
    }

    /// Two URLs may lead to one store: whoever joins here must not be seen there.
    async fn check_distinct_stores(&mut self, node: &Node) -> Result<()> {
        if node.queues.is_empty() {
            return Ok(());
        }
        let same = || Err(Error::invalid("to", "is the store that the jobs are in already"));
        let realm = self.stores.source.shared_keyspace().await?;
        self.stores.is_source_foreign = realm.is_some();
        if realm.is_some() && realm == self.stores.target.shared_keyspace().await? {
            return same();
        }
        self.stores.source.heartbeat(node).await?;
        let others = self.stores.target.nodes().await?;
        match others.iter().any(|other| other.id == node.id) {
            true => same(),
            false => Ok(()),
        }
    }

    /// A queue that was on its way elsewhere, or is on its way to here, must not be mistaken for one at rest.
    async fn check_marks(&self, count: &QueueCounts, there: Option<&TransferMark>) -> Result<()> {
        let queue = count.queue.as_str();
        let unfinished = |whose: &str, to: &str| {
            Err(Error::Conflict(format!(
                "queue {queue} of {whose} was moving to {to} when that was broken off; first let that move end, or move it back from there"
            )))
        };
        if let Some(moving) = count.moving.as_ref().filter(|moving| moving.to != self.stores.target_url)
            && self.stores.read_checkpoint(queue, moving.begun_by).await?.is_none()
        {
            return unfinished("the store to move from", &moving.to);
        }
        let Some(moving) = there else {
            return Ok(());
        };
        let back = self.stores.reversed(&self.source_url);
        if moving.to != back.target_url && back.read_checkpoint(queue, moving.begun_by).await?.is_none() {
            return unfinished("the store to move to", &moving.to);
        }
        // It was on its way to here, and comes back now: what came last is put in order first.
        QueueTransfer::begin(&back, queue).await?.finish().await
    }

    /// A queue takes its limit along, unless it has one there: that is what somebody wants there.
    async fn copy_capacity(&self, count: &QueueCounts, there: Option<&QueueCounts>) -> Result<()> {
        if count.capacity.is_unlimited() || there.is_some_and(|there| !there.capacity.is_unlimited()) {
            return Ok(());
        }
        match self.stores.target.set_capacity(&count.queue, count.capacity).await {
            Err(Error::Unsupported { .. }) => {
                tracing::warn!(queue = %count.queue, "the other store keeps no limits; the queue has none there");
                Ok(())
            }
            set => set.map(drop),
        }
    }

    async fn transfer_queue(&mut self, count: &QueueCounts, node: &Node) -> Result<QueueTransferReport> {
        let queue = count.queue.as_str();
        if count.paused {
            self.stores.target.pause(queue).await?;
        }
        let mut moved = QueueTransferReport { queue: queue.to_owned(), ..QueueTransferReport::default() };
        let ends = self.stores.clone();
        // Others count no further than to some number.
        let counted = !ends.is_source_foreign || self.total < FOREIGN_JOBS_COUNTED_MAX || self.is_empty(queue).await?;
        if count_jobs(count) == 0
            && counted
            && count.moving.is_none()
            && cron_rules::list_rules(&ends, queue).await?.is_empty()
        {
            return Ok(moved);
        }
        let mut carrier = QueueTransfer::begin(&ends, queue).await?;
        self.wait_for_running(queue, node).await?;
        // Again as long as somebody pushes.
        loop {
            let before = self.moved;
            for state in TRANSFER_STATES {
                while let Some(batch) = carrier.read_batch(state).await? {
                    self.moved += batch.len() as u64;
                    carrier.transfer_batch(batch, &mut moved).await?;
                    self.report_progress(queue, false);
                }
            }
            if self.moved == before {
                break;
            }
        }
        moved.cron_rules = cron_rules::transfer_rules(&ends, queue).await?;
        carrier.finish().await?;
        if ends.is_source_foreign {
            let counts = self.stores.source.counts().await?;
            moved.remaining = counts.iter().filter(|left| left.queue == queue).map(count_jobs).sum();
        }
        Ok(moved)
    }

    /// Whether there is no job at all.
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

    /// Waits until nothing of a queue runs, and takes back what dead nodes hold.
    async fn wait_for_running(&self, queue: &str, node: &Node) -> Result<()> {
        let running =
            Filter { queue: Some(queue.to_owned()), state: Some(State::Running), limit: 1, ..Filter::default() };
        let mut pause = RUNNING_POLL_MIN;
        loop {
            let page = self.stores.source.list(running.clone()).await?;
            if page.jobs.is_empty() && page.next_cursor.is_none() {
                return Ok(());
            }
            self.report_progress(queue, true);
            let beaten = self.stores.source.heartbeat(node).await?;
            for (suspect, _) in beaten.suspects.iter().filter(|(_, of)| of == queue) {
                let claim =
                    Claim { queue: queue.to_owned(), max: 0, resync: false, suspect: Some(*suspect), kinds: None };
                for _ in 0..TAKE_BACKS_MAX {
                    let taken = self.stores.source.claim(node.id, claim.clone()).await?;
                    if !taken.has_more {
                        break;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(node.heartbeat_interval());
        }
    }

    fn report_progress(&self, queue: &str, waiting: bool) {
        (self.on_progress)(&TransferProgress {
            queue,
            moved: self.moved,
            total: self.total.max(self.moved),
            is_waiting: waiting,
        });
    }
}

fn count_jobs(count: &QueueCounts) -> u64 {
    State::ALL.iter().map(|state| count.count_in(*state)).sum()
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Move").field("from", &self.source).field("to", &self.target).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
