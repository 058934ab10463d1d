//! THE CONTRACT: the guarantees of every store, one paragraph per method.
//!
//! A store keeps state and changes it in atomic operations. It makes no policy decisions: it does not know attempt
//! limits, backoff or handlers. Absence is a value, not an error. The store's clock alone decides which jobs are due
//! and which leases have expired; each operation reads it once.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::admin::token::Token;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord, State};
use crate::node::{NodeId, NodeRecord};

#[cfg(any(feature = "sqlite", feature = "redis"))]
mod checksum;
mod duration;
mod open;
#[cfg(feature = "redis")]
#[cfg_attr(not(feature = "compat"), allow(dead_code, reason = "compat uses more of it"))]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod traced;
mod types;
mod url;

pub(crate) use self::types::admin::truncate_text;
pub use self::types::admin::{
    BULK_CHANGE_MAX, Capacity, ChangeTarget, DEAD_GROUPS_MAX, DeadGroup, JobEdit, LIST_BATCH_BYTES_MAX, LIST_BATCH_MAX,
    LIST_EXAMINED_MAX, LOG_LINE_BYTES_MAX, LOG_LINES_MAX, PAGE_BYTES_MAX, PROGRESS_NOTE_BYTES_MAX,
    PROGRESS_UPDATES_MAX, ProgressUpdate, RESULT_BYTES_MAX,
};
pub use self::types::audit::{AUDIT_ENTRIES_MAX, AUDIT_PAGE_MAX, AuditEntry, AuditRecord};
pub use self::types::completions::{COMPLETION_CHECK_MAX, COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION};
pub use self::types::cron::{
    CRON_FIRINGS_MAX, CRON_PAGE_SIZE, CronFiring, CronFiringResult, CronPage, CronRecord, DueCrons, FireCronsReply,
    OverlapWait, PutCron, PutCronResult, WAITING_TICK_RECHECK_INTERVAL,
};
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::types::history::PUSHED_INDEX;
#[cfg(feature = "sqlite")]
pub(crate) use self::types::history::TAKEN_BACK_INDEX;
pub use self::types::history::{
    HISTOGRAM_BUCKETS, HISTORY_MINUTES_MAX, Histogram, History, HistoryPoint, HistoryQuery, StatCounters,
};
pub(crate) use self::types::history::{STAT_NUMBERS, outcome_index, timing_indexes};
pub use self::types::jobs::{
    AttemptEnd, AttemptTiming, ChangeResult, Claim, ClaimReply, Health, HeartbeatReply, JobPage, QueueCounts, Wake,
};
pub use self::types::kinds::{KIND_HOURS_MAX, KIND_STATS_MAX, KindStats, OTHER_KINDS};
pub use self::types::locks::{
    LOCK_EXTENDS_MAX, LOCK_PAGE_SIZE, LOCK_SLOTS_MAX, LOCK_WAITERS_CHECKED_MAX, LOCK_WAITS_MAX, LockOwner, LockPage,
    LockRecord, LockReply, LockRequest, LockTurn,
};
pub use self::types::peers::{AnnounceReply, CONNECTIONS_BATCH_MAX, Notification, PeerInfo, Recipient};
pub use self::types::tokens::NewToken;
pub use self::types::transfer::{
    TransferBatch, TransferBatchResult, TransferCheckpoint, TransferMark, TransferMarkReply,
};
pub use self::types::verify::{Invariant, VIOLATIONS_MAX, VerifyReport, Violation};
pub use self::url::StoreUrl;
pub use crate::job::filter::Filter;
pub use crate::node::Node;
pub use duration::parse_duration;
pub use open::Durability;
#[cfg(feature = "compat")]
pub(crate) use open::{DEFAULT_KEEP, StoreAddress, parse_url};
pub(crate) use open::{StoreOptions, create_file_store, display_url, open};
pub(crate) use traced::TracedStore;

/// Most jobs in one claim.
pub const CLAIM_MAX: usize = 1_000;
/// Most outcomes in one settle.
pub const SETTLE_MAX: usize = 1_000;
/// Most jobs taken back from a dead node in one claim.
pub const TAKE_BACK_MAX: usize = 500;
/// Most jobs promoted from scheduled to ready in one claim; a store may promote fewer at a time.
pub const PROMOTE_MAX: usize = 500;
/// A claim on a SQLite file promotes at least this many due jobs, even if it takes only one, to work off a backlog.
pub(crate) const PROMOTE_MIN: usize = 200;
/// Most done and dead jobs deleted in one prune.
pub const PRUNE_MAX: usize = 1_000;
/// Most deferred hints of one queue. One more clears them all, and those jobs wait until they are due.
pub const DEFERRED_HINTS_MAX: usize = 10_000;
/// Most deferred hints that one claim reads.
pub(crate) const DEFERRED_HINTS_PER_CLAIM_MAX: usize = 1_000;
/// Most jobs in one batch of a transfer.
pub const TRANSFER_BATCH_MAX: usize = 500;
/// Default number of jobs on one page of a list.
pub const PAGE_SIZE: usize = 50;
/// Most jobs on one page of a list.
pub const PAGE_SIZE_MAX: usize = 1_000;
/// Longest error text kept in a job's history, in bytes.
pub const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Most failures kept per job: the newest stay.
pub const FAILURES_MAX: usize = 50;

pub(crate) mod sealed {
    /// Only this crate can implement the contract.
    pub trait Sealed {}
    #[cfg(feature = "sqlite")]
    impl Sealed for super::sqlite::Sqlite {}
    #[cfg(feature = "redis")]
    impl Sealed for super::redis::Redis {}
}

/// Keeps all state: jobs, nodes, cron rules, locks, peers, statistics and access tokens.
///
/// Public to read, sealed until 1.0: implement it only inside this crate.
#[async_trait]
pub trait Store: sealed::Sealed + Send + Sync + 'static {
    /// Returns the runtime that receives this store's notifications, if it has one that handlers cannot block.
    /// Tasks that consume notifications should run on it.
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        None
    }

    /// Pushes jobs, each into its own queue with its own due time and priority: all or none per queue.
    ///
    /// If the job's id is in the queue, or was there in the last ten minutes, nothing changes and the result is
    /// `Existing`. The same holds if its unique key is taken, unless the push asks to replace a waiting job. If two
    /// jobs in one push have the same key, the first wins. Results are in the order of the jobs.
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>>;

    /// Claims up to `max` jobs of one queue for `node`, in this order:
    /// 1. If the suspect is dead, its jobs go back to ready.
    /// 2. Due jobs become ready, and so do jobs deferred by other nodes if this node has a handler for their kind.
    /// 3. The first ready jobs are claimed, by priority and then by the time they became ready.
    ///
    /// Never blocks. Never claims a job before its due time unless it was deferred. Claims nothing from a queue that is
    /// paused or moving. If it returns fewer jobs than requested, it reports when to claim again and adds the node to
    /// the idle list, from which a push wakes nodes. With `max == 0`, removes the node from the idle list; if jobs are
    /// ready, wakes another idle node.
    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply>;

    /// Records how attempts ended. Returns the jobs that the node no longer held; nothing is recorded for those.
    ///
    /// A retried job goes to the tail of its queue at its new due time; a released job goes back to the head.
    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>>;

    /// Returns one job with its failures, progress, log and result.
    async fn get(&self, id: JobId) -> Result<Option<JobRecord>>;

    /// Returns a page of jobs that match the filter. The order is stable: a job that does not change appears on exactly
    /// one page.
    /// Exception: on Redis, running jobs may appear on two pages while their hash table grows, but none is left out.
    ///
    /// State, queue, due time and end time are looked up in an index; so are kind and tag of scheduled and dead jobs if
    /// the store supports it. Other conditions are checked job by job in bounded batches. A page may therefore be short
    /// and still have a next cursor.
    async fn list(&self, filter: Filter) -> Result<JobPage>;

    /// Deletes a job, unless it is running or its queue is moving. Its id stays remembered.
    async fn remove(&self, id: JobId) -> Result<ChangeResult>;

    /// Gives a job a new due time, unless it is running or its queue is moving.
    /// A dead or done job starts over with no failed attempts.
    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult>;

    /// Changes a job, unless it is running or its queue is moving.
    async fn edit(&self, _id: JobId, _edit: JobEdit) -> Result<ChangeResult> {
        Err(Error::unsupported("edit jobs"))
    }

    /// Deletes these jobs as [`Store::remove`] does, each only if it is still in the given state.
    /// Results are in the order of the targets. At most [`BULK_CHANGE_MAX`]. The default deletes one job at a time.
    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        let mut results = Vec::with_capacity(targets.len());
        for target in targets {
            results.push(match self.get(target.id).await? {
                Some(record) if record.state == target.state => self.remove(target.id).await?,
                Some(record) if record.state == State::Running => ChangeResult::Running,
                Some(_) => ChangeResult::Changed,
                None => ChangeResult::NotFound,
            });
        }
        Ok(results)
    }

    /// Reschedules these jobs as [`Store::reschedule`] does, each only if it is still in the given state.
    /// Results are in the order of the targets. At most [`BULK_CHANGE_MAX`]. The default reschedules one job at a time.
    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        let mut results = Vec::with_capacity(targets.len());
        for target in targets {
            results.push(match self.get(target.id).await? {
                Some(record) if record.state == target.state => self.reschedule(target.id, due).await?,
                Some(record) if record.state == State::Running => ChangeResult::Running,
                Some(_) => ChangeResult::Changed,
                None => ChangeResult::NotFound,
            });
        }
        Ok(results)
    }

    /// Sets the capacity of a queue, which need not have a job yet. Returns the previous capacity.
    async fn set_capacity(&self, _queue: &str, _capacity: Capacity) -> Result<Capacity> {
        Err(Error::unsupported("limit the capacity of queues"))
    }

    /// Records progress and log lines of running attempts, at most [`PROGRESS_UPDATES_MAX`] updates.
    /// Returns the jobs that the node no longer holds; nothing is recorded for those.
    /// The last progress replaces earlier ones, and the newest [`LOG_LINES_MAX`] lines are kept.
    async fn record_progress(&self, _node: NodeId, _updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        Err(Error::unsupported("keep progress and log lines"))
    }

    /// Returns the statistics of the last minutes. Each operation counts its own effects atomically.
    /// They are kept for [`HISTORY_MINUTES_MAX`] minutes.
    async fn history(&self, _query: HistoryQuery) -> Result<History> {
        Err(Error::unsupported("keep a history"))
    }

    /// Returns the counters of each queue since the store was created, by name. They never decrease.
    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        Err(Error::unsupported("keep a history"))
    }

    /// Adds attempt statistics by kind to the current hour. The store keeps at most [`KIND_STATS_MAX`] kinds per hour;
    /// further kinds are counted under [`OTHER_KINDS`].
    async fn add_kind_stats(&self, _kinds: Vec<(String, StatCounters)>) -> Result<()> {
        Err(Error::unsupported("keep a history"))
    }

    /// Returns the attempt statistics of each kind in the last hours, including the current one, by hour and kind.
    /// At most [`KIND_HOURS_MAX`] hours.
    async fn kind_stats(&self, _hours: u32) -> Result<Vec<KindStats>> {
        Err(Error::unsupported("keep a history"))
    }

    /// Returns the dead jobs of one queue, or of all, grouped by kind and error, the largest groups first.
    async fn dead_groups(&self, _queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        Err(Error::unsupported("group dead jobs"))
    }

    /// Returns the number of jobs in each state, by queue.
    async fn counts(&self) -> Result<Vec<QueueCounts>>;

    /// Pauses or resumes a queue, which need not have a job yet. Returns whether that changed anything.
    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool>;

    /// Deletes done and dead jobs whose retention is over, and the done jobs beyond `done_max` that would expire first.
    /// Returns how many were deleted; if that is [`PRUNE_MAX`], there may be more.
    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize>;

    /// Renews a node's lease; the first heartbeat registers the node.
    /// Until the lease expires, no other node can take back its jobs.
    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply>;

    /// Removes a node that shuts down. The jobs it still holds can be taken back immediately.
    async fn leave(&self, node: NodeId) -> Result<()>;

    /// Returns all registered nodes.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;

    /// Subscribes to the wakes of a node that has sent a heartbeat. A wake may be lost, so poll once a second as well.
    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>>;

    /// Allows pushes to deliver jobs of these kinds, or of any kind if `None`, directly to this subscribed node. A push
    /// delivers only while the node is idle in a queue without ready jobs. The node then holds the job as if it had
    /// claimed it, and receives [`Wake::Job`]. It gets at most one job per claim, and never one of another kind.
    ///
    /// If that wake is lost, the heartbeat reply counts the job, and a claim with `resync` returns it. A delivery made
    /// before a claim arrives before the reply to that claim. A store need not implement direct delivery.
    async fn accept_deliveries(&self, _node: NodeId, _kinds: Option<Arc<[String]>>) -> Result<()> {
        Ok(())
    }

    /// Marks a queue as moving to another store, on behalf of this mover. With `to == None`, removes the mark.
    ///
    /// While a queue is marked, nothing is claimed from it, paused or not, and its jobs do not change. None is removed,
    /// rescheduled or replaced by a push, which returns `Existing`. Running jobs continue, and pushes are accepted. A
    /// queue that is already marked keeps its mark, now for the new mover; only the latest mover can remove it. Returns
    /// the mark after the call.
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply>;

    /// Adds jobs to one queue unchanged, the ready ones behind those already there, and updates the checkpoint of the
    /// transfer in the same operation: all or nothing. Changes nothing if the checkpoint differs from the expected one,
    /// or if a unique key is taken.
    ///
    /// Skips a job if its id is in the queue or was there in the last ten minutes. If the checkpoint already equals the
    /// replacement, this batch was applied before: nothing changes, and the result is `Applied`.
    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult>;

    /// Deletes jobs that are now in another store, each only if it was pushed at the given time and is not running.
    /// Returns how many were deleted; `None`, deleting nothing, if the queue is not marked for this mover.
    ///
    /// Their ids are not remembered, so the jobs may come back.
    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>>;

    /// Stores a cron rule with its next tick and wakes a node of its queue. Applies only if the rule has the expected
    /// revision, or does not exist if none is expected. The rule may change its queue.
    ///
    /// A rule's name is unique in a store. The store does not evaluate patterns: callers compute the ticks.
    async fn put_cron(&self, _change: PutCron) -> Result<PutCronResult> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Deletes a cron rule; the jobs it pushed stay. Returns whether the rule existed.
    async fn remove_cron(&self, _name: &str) -> Result<bool> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Returns one cron rule.
    async fn cron(&self, _name: &str) -> Result<Option<CronRecord>> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Returns a page of at most [`CRON_PAGE_SIZE`] cron rules, only those of `queue` if given.
    async fn crons(&self, _queue: Option<&str>, _cursor: Option<&str>) -> Result<CronPage> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Returns the rules of a queue that have a due tick, and those named in `freed` that have a waiting tick.
    /// Paused rules are left out. Returns none while the queue is moving to another store.
    /// A paused queue does not matter: ticks push jobs, they do not claim.
    async fn due_crons(&self, _queue: &str, _freed: &[String]) -> Result<DueCrons> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Fires ticks of at most [`CRON_FIRINGS_MAX`] rules of one queue: pushes their jobs and advances each rule to its
    /// next tick. Each rule and its jobs change in one operation, which increments the revision. A rule fires only if
    /// its revision and tick are as the caller read them and the tick is due.
    ///
    /// If another job has the unique key and the overlap policy waits for it, nothing is pushed. The tick then waits
    /// until the rule is passed to [`Store::due_crons`] as `freed`, or for [`WAITING_TICK_RECHECK_INTERVAL`].
    async fn fire_crons(&self, _queue: &str, _firings: Vec<CronFiring>) -> Result<FireCronsReply> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Acquires a free slot of a lock for the owner until `ttl` from now. If none is free and `wait` is set, adds the
    /// owner to the end of the waiter queue.
    ///
    /// First come, first served: a free slot goes to the waiters of live nodes first, even before a request that does
    /// not wait. The call is idempotent. An owner that already holds the lock keeps its fence and holds it until `ttl`
    /// from now; an owner that already waits keeps its position. The fence is greater than every fence ever returned
    /// for a lock of this store. A hold ends when its time is over, or when its node's process is known to have exited
    /// (SQLite only). A missed heartbeat alone never ends a hold.
    async fn lock(&self, request: &LockRequest) -> Result<LockReply>;

    /// Extends holds until `ttl` from now, each only if its owner still has it, in any slot.
    /// Returns for each request whether that is so, in order. At most [`LOCK_EXTENDS_MAX`].
    /// A hold extended in the name of another node than the one that acquired it ends only by its time from then on.
    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>>;

    /// Releases the owner's slot of a lock, or removes it from the waiters. Returns whether it held a slot.
    ///
    /// If slots are free afterwards, notifies as many of the first live waiters that it is their turn.
    async fn unlock(&self, request: &LockRequest) -> Result<bool>;

    /// Removes the owner from the waiters of a lock, if it waits. A slot it holds stays held.
    ///
    /// If slots are free afterwards, notifies as many of the first live waiters that it is their turn.
    async fn cancel_wait(&self, _request: &LockRequest) -> Result<()> {
        Err(Error::unsupported("cancel a wait for a lock"))
    }

    /// Returns a page of holds by lock name, only those of one lock if `name` is given.
    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage>;

    /// Ends all holds of a lock. Notifies their owners and the first waiters to request it again.
    /// Returns how many holds there were.
    async fn break_lock(&self, name: &str) -> Result<u64>;

    /// Renews a peer's lease; the first call registers the peer, and every call confirms that it listens.
    /// Until the lease expires, the peer keeps its positions among lock waiters and its connections.
    /// The reply reports waits that were lost anyway.
    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply>;

    /// Removes a peer with its lock waits and its connections. Locks it holds stay held.
    async fn withdraw(&self, node: NodeId) -> Result<()>;

    /// Subscribes a local node to messages addressed to it and, if `all`, to broadcasts. Delivery starts with its next
    /// [`Store::announce`] and ends when it withdraws or drops the receiver. A process may subscribe several nodes; one
    /// of them should take the broadcasts. Messages are lost while the receiver is full or the connection is broken.
    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>>;

    /// Sends a message to listening nodes. Returns how many it reached; a broadcast counts one node per process.
    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64>;

    /// Sends a local listening node a [`Notification::Completed`] for each job of these queues that is done, dead or
    /// removed. The watch lasts [`COMPLETION_WATCH_DURATION`] and replaces the node's previous one. At most
    /// [`COMPLETION_QUEUES_MAX`] queues. A notification may be lost; after a broken connection the node receives
    /// [`Notification::Gap`]. Without a watch, no notifications are sent, and a settle on Redis has no extra cost.
    async fn watch_completions(&self, _node: NodeId, _queues: &[String]) -> Result<()> {
        Err(Error::unsupported("report completed jobs"))
    }

    /// Returns which of these jobs of one queue are done, dead or gone. At most [`COMPLETION_CHECK_MAX`].
    /// The default reads one job at a time.
    async fn completed_among(&self, _queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        let mut completed = Vec::new();
        for id in ids {
            if self.get(id).await?.is_none_or(|record| record.state.is_final()) {
                completed.push(id);
            }
        }
        Ok(completed)
    }

    /// Registers connections that a node holds and removes others, at most [`CONNECTIONS_BATCH_MAX`] in one call.
    /// A connection that another node held belongs to this node from now on.
    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()>;

    /// Registers a node's connections again in case the store lost them, at most [`CONNECTIONS_BATCH_MAX`].
    /// A connection that another node has registered since stays with that node while it is alive.
    async fn refresh_connections(&self, _node: NodeId, _held: &[String]) -> Result<()> {
        Err(Error::unsupported("register connections"))
    }

    /// Returns the node that holds a connection, if that node is alive.
    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>>;

    /// Returns the live peers that offer this method and are not quiet.
    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>>;

    /// Adds a token, unless its name is taken or the maximum is reached. Returns whether it was added.
    async fn add_token(&self, _token: &NewToken) -> Result<bool> {
        Err(Error::unsupported("keep tokens"))
    }

    /// Removes a token. Returns whether it existed.
    async fn remove_token(&self, _name: &str) -> Result<bool> {
        Err(Error::unsupported("keep tokens"))
    }

    /// Returns all tokens by name, including expired ones.
    async fn tokens(&self) -> Result<Vec<Token>> {
        Err(Error::unsupported("keep tokens"))
    }

    /// Adds an entry to the audit log, which keeps the newest [`AUDIT_ENTRIES_MAX`].
    async fn add_audit_entry(&self, _entry: &AuditEntry) -> Result<()> {
        Err(Error::unsupported("keep an audit log"))
    }

    /// Returns at most `limit` audit entries, newest first, starting below the number `before` if given.
    async fn audit_entries(&self, _before: Option<u64>, _limit: usize) -> Result<Vec<AuditRecord>> {
        Err(Error::unsupported("keep an audit log"))
    }

    /// Returns the store's time as far as it is known without a request.
    fn now(&self) -> SystemTime;

    /// Returns the store's durability, facts and warnings.
    async fn health(&self) -> Result<Health>;

    /// Returns an identifier of the keyspace that this store shares with another system, `None` if only duly uses its
    /// keys. Stores with the same identifier have the same jobs, regardless of their prefixes.
    async fn shared_keyspace(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns the unfinished job of a queue that has this unique key.
    async fn unique_holder(&self, _queue: &str, _key: &str) -> Result<Option<JobId>> {
        Err(Error::unsupported("look up unique keys"))
    }

    /// Checks all data and reports violated invariants. Changes nothing and does not block other operations for long.
    /// The report is consistent with one point in time, even under concurrent changes.
    async fn verify(&self) -> Result<VerifyReport> {
        Err(Error::unsupported("be verified; use the tools of its own system"))
    }

    /// Repairs what [`Store::verify`] finds, as far as possible without losing a job.
    /// A job that may have run already is run again rather than lost.
    async fn repair(&self) -> Result<()> {
        Err(Error::unsupported("be repaired; move its jobs to a new store"))
    }

    /// Writes a consistent snapshot of everything to a new SQLite file.
    async fn backup(&self, _to: &std::path::Path) -> Result<()> {
        Err(Error::unsupported("write a snapshot of itself"))
    }

    /// Returns some jobs of a queue in no order, with their failures, and a cursor for the next batch.
    /// A job that exists during the whole scan is returned at least once, in a state that it had during the scan.
    /// All calls of one scan must run on one runtime.
    async fn scan(&self, _queue: &str, _cursor: Option<&str>) -> Result<JobPage> {
        Err(Error::unsupported("be scanned"))
    }
}

#[cfg(test)]
pub(crate) mod faulty;
