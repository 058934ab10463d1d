//! THE CONTRACT: what every store promises, one paragraph per method.
//!
//! A store keeps state and moves it in atomic steps.
//! It never decides: it knows no limits, no backoff and no handlers.
//! Absence is a value, not an error.
//! One clock decides what is due and which lease is over: the store's own, read once in each step.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::admin::token::Token;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord, State};
use crate::node::{Node, NodeId, NodeRecord};

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
/// Most jobs moved from scheduled to ready in one claim; a store may move fewer at a time.
pub const PROMOTE_MAX: usize = 500;
/// Even a claim of one job moves so many due ones in a file: a backlog of due jobs is worked off, not nibbled at.
pub(crate) const PROMOTE_MIN: usize = 200;
/// Most ended jobs deleted in one prune.
pub const PRUNE_MAX: usize = 1_000;
/// Most hints at jobs of a queue that a node has put off; with one more all are forgotten, and those jobs wait until they are due.
pub const DEFERRED_HINTS_MAX: usize = 10_000;
/// Most hints that one claim looks at.
pub(crate) const DEFERRED_HINTS_PER_CLAIM_MAX: usize = 1_000;
/// Most jobs in one batch of a move.
pub const TRANSFER_BATCH_MAX: usize = 500;
/// Jobs on one page of a list, unless it says otherwise.
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

/// Where all state lives.
///
/// Public to read, sealed until 1.0: implement it only inside this crate.
#[async_trait]
pub trait Store: sealed::Sealed + Send + Sync + 'static {
    /// The runtime on which this store hears, if it has one that no handler can hold up: whoever listens should live there.
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        None
    }

    /// Puts jobs into the store, each into its own queue at its own time and priority: all or none per queue.
    ///
    /// A job whose id is in its queue, or was there in the last ten minutes, changes nothing and answers `Existing`.
    /// So does one whose unique key is taken, unless it asks to replace a job that waits.
    /// Of two jobs with the same key in one push the first wins. Answers in the order of the jobs.
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>>;

    /// Takes up to `max` jobs of one queue for `node`: first what the suspect held, if it is dead, goes back to ready;
    /// then what has fallen due becomes ready, and what others have put off, if it is of a kind that the node knows;
    /// then the first ready jobs are taken, by priority and by the moment they became ready.
    ///
    /// A claim of no job takes the node off the list of those that a push may wake, and passes a wake on if jobs are ready.
    /// Never blocks, never takes a job before its due moment unless it was put off,
    /// and takes nothing from a queue that is paused or moving.
    /// An answer with fewer jobs than asked for says when to look again,
    /// and puts the node on the list of those that the next push may wake.
    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply>;

    /// Records how attempts ended, and returns those the node no longer held: nothing of theirs was recorded.
    ///
    /// A retried job goes to the tail of its queue at its new due moment, a released one back to the head.
    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>>;

    /// One job with all that is known of it.
    async fn get(&self, id: JobId) -> Result<Option<JobRecord>>;

    /// A page of jobs that the filter means, in an order in which a job that stays where it is appears on one page, whatever
    /// moves meanwhile; where running jobs stand in a table that grows just then, some may appear on two, but none is left out.
    ///
    /// State, queue, due or end time are found without looking at others, and so are kind and tag among scheduled and dead
    /// jobs where the store can; for all else jobs are looked through in bounded steps. A page may be short and still say
    /// where to go on.
    async fn list(&self, filter: Filter) -> Result<JobPage>;

    /// Deletes a job that is not running and whose queue is not moving; its id stays remembered.
    async fn remove(&self, id: JobId) -> Result<ChangeResult>;

    /// Gives a job that is not running and whose queue is not moving a new due moment;
    /// a dead or done one starts over with no failed attempts.
    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult>;

    /// Changes a job that is not running and whose queue is not moving.
    async fn edit(&self, _id: JobId, _edit: JobEdit) -> Result<ChangeResult> {
        Err(Error::unsupported("edit jobs"))
    }

    /// Deletes these jobs, each as [`Store::remove`] would, if it is still in the state in which it was seen.
    /// Answers in their order. At most [`CHANGE_MAX`]. A store that has no step for many goes one by one.
    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        let mut moved = Vec::with_capacity(targets.len());
        for target in targets {
            moved.push(match self.get(target.id).await? {
                Some(record) if record.state == target.state => self.remove(target.id).await?,
                Some(record) if record.state == State::Running => ChangeResult::Running,
                Some(_) => ChangeResult::Changed,
                None => ChangeResult::NotFound,
            });
        }
        Ok(moved)
    }

    /// Gives these jobs a new due moment, each as [`Store::reschedule`] would, if it is still in the state in which it was seen.
    /// Answers in their order. At most [`CHANGE_MAX`]. A store that has no step for many goes one by one.
    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        let mut moved = Vec::with_capacity(targets.len());
        for target in targets {
            moved.push(match self.get(target.id).await? {
                Some(record) if record.state == target.state => self.reschedule(target.id, due).await?,
                Some(record) if record.state == State::Running => ChangeResult::Running,
                Some(_) => ChangeResult::Changed,
                None => ChangeResult::NotFound,
            });
        }
        Ok(moved)
    }

    /// Sets how much may be in a queue, also one that has no job yet. Answers what was so before.
    async fn set_capacity(&self, _queue: &str, _limit: Capacity) -> Result<Capacity> {
        Err(Error::unsupported("limit queues"))
    }

    /// Records what attempts under way say of themselves, and returns the jobs that the node no longer holds: nothing of
    /// theirs was recorded. The last progress counts; of the lines the newest [`LOG_LINES_MAX`] stay. At most [`NOTES_MAX`].
    async fn record_progress(&self, _node: NodeId, _notes: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        Err(Error::unsupported("keep the progress and the log of a job"))
    }

    /// What has happened in the last minutes. Counted in the steps in which it happens, and kept for
    /// [`HISTORY_MINUTES_MAX`] minutes.
    async fn history(&self, _ask: HistoryQuery) -> Result<History> {
        Err(Error::unsupported("keep a history"))
    }

    /// What has ever been counted in each queue, by name: only grows, as long as the store is kept.
    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        Err(Error::unsupported("keep a history"))
    }

    /// Adds what attempts of these kinds have come to, to the present hour. Of an hour at most [`KINDS_COUNTED_MAX`] kinds are
    /// told apart: what comes then is counted under [`OTHER_KINDS`].
    async fn add_kind_stats(&self, _kinds: Vec<(String, StatCounters)>) -> Result<()> {
        Err(Error::unsupported("keep a history"))
    }

    /// What attempts of each kind have come to in the last hours, at most [`KIND_HOURS_MAX`], the present one among them:
    /// by hour and kind.
    async fn kind_stats(&self, _hours: u32) -> Result<Vec<KindStats>> {
        Err(Error::unsupported("keep a history"))
    }

    /// The dead jobs of a queue, or of all, by kind and error, the largest groups first.
    async fn dead_groups(&self, _queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        Err(Error::unsupported("group dead jobs"))
    }

    /// How many jobs are in which state, by queue.
    async fn counts(&self) -> Result<Vec<QueueCounts>>;

    /// Stops or starts claiming from a queue, also one that has no job yet. Answers whether that changed anything.
    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool>;

    /// Deletes done and dead jobs that are past their time, and of the done ones beyond `done_max` those that would go next.
    /// Answers how many went: as many as [`PRUNE_MAX`] means that there may be more.
    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize>;

    /// A node's sign of life; the first one makes it known.
    /// While its lease runs, what it holds is its own.
    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply>;

    /// A node goes in good order. What it still holds can be taken back at once.
    async fn leave(&self, node: NodeId) -> Result<()>;

    /// All nodes the store knows.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;

    /// The wakes meant for a node that has beaten. A wake may be lost: look once a second besides.
    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>>;

    /// From now on a push may put a job of one of these kinds, or of any if `None`, into the hands of this subscribed node,
    /// while it waits in a queue where nothing is ready: the node holds it as if it had claimed it, and is told by
    /// [`Wake::Job`]. At most one for each claim, and never one of another kind.
    ///
    /// If that word is lost, the node's beat counts the job, and a claim that says `redo` finds it.
    /// Whatever was put into its hands before a claim is heard of before that claim is answered.
    /// A store need not do any of this.
    async fn accept_deliveries(&self, _node: NodeId, _kinds: Option<Arc<[String]>>) -> Result<()> {
        Ok(())
    }

    /// Marks a queue as moving to another store for this mover, or, without a place to go to, as not moving any more.
    ///
    /// While it is marked nothing is claimed from it, whatever pause and resume say, and its jobs stay as they are:
    /// none is removed, rescheduled or replaced by a push (which answers `Existing`). Running ones go on, pushes go in.
    /// A queue that is marked already stays marked as it was, for the new mover; only the last mover can take the mark away.
    /// Answers how the queue is marked now.
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply>;

    /// Puts jobs into one queue as they are, the ready ones behind those that are there, and changes the marker of the move
    /// in the same step: all or nothing. Nothing is changed either if the marker is not as it was, or if a unique key is taken.
    ///
    /// A job whose id is in the queue, or was there in the last ten minutes, is left out.
    /// If the marker is already as it will be, this very batch has gone in before: then nothing is changed, and that is a yes.
    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult>;

    /// Deletes jobs that are in another store now, each only if it was pushed at that moment and is not running.
    /// Answers how many went; `None`, and none, if the queue is not marked for this mover.
    ///
    /// Their ids are not remembered: they may come back.
    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>>;

    /// Keeps a cron rule as it is given, with its next tick: only if the rule has the revision that it should have, or is not
    /// there if it should not. It may have been in another queue. Wakes a node of its queue.
    ///
    /// A store has one rule of a name. It knows no patterns: ticks are moments that it is given.
    async fn put_cron(&self, _put: PutCron) -> Result<PutCronResult> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Deletes a cron rule. Jobs that it has pushed stay. Answers whether there was one.
    async fn remove_cron(&self, _name: &str) -> Result<bool> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// One cron rule.
    async fn cron(&self, _name: &str) -> Result<Option<CronRecord>> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// A page of cron rules, at most [`CRONS_PAGE`]; those of one queue if it is named.
    async fn crons(&self, _queue: Option<&str>, _cursor: Option<&str>) -> Result<CronPage> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Rules of a queue whose next tick is due, and those of these names whose tick is held back; paused ones are not among them.
    /// None while the queue is moving to another store. A queue that is paused is no obstacle: ticks push, and nothing is claimed.
    async fn due_crons(&self, _queue: &str, _freed: &[String]) -> Result<DueCrons> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Fires ticks of rules of one queue: pushes their jobs and moves each rule on to its next tick, each rule in one step with its
    /// jobs, at most [`CRON_FIRE_MAX`] rules. Its revision grows by that. One is fired only if rule and tick are as they were read, and its tick is due.
    ///
    /// If it is to be held back since another job has its unique key, nothing is pushed, and its tick waits
    /// until the rule is named to [`Store::due_crons`], or for [`HELD_LOOK`].
    async fn fire_crons(&self, _queue: &str, _fires: Vec<CronFiring>) -> Result<FireCronsReply> {
        Err(Error::unsupported("keep cron rules"))
    }

    /// Takes a free slot of a lock for the owner, until `ttl` from now; or, if none is free and `wait` says so, a place at the
    /// end of its line.
    ///
    /// First come, first served: a slot that is free goes to those who stand in line, as far as their nodes live,
    /// also against an ask that does not wait. An owner who holds the lock already holds it for `ttl` from now, under the fence
    /// that it has; one who stands in line already keeps its place. So an ask may be repeated.
    /// The fence is greater than all that were ever given for a lock of this store.
    /// A hold has ended when its time is over, or when the process of its node is known to be gone
    /// (which a server never knows); silence alone ends no hold.
    async fn lock(&self, ask: &LockRequest) -> Result<LockReply>;

    /// Lets holds last for their `ttl` from now, each only if its owner still has it, whichever slot that is.
    /// Answers which, in the order of the asks. At most [`EXTEND_MAX`].
    /// A hold that is extended in the name of another node than it was taken for ends by its time alone from then on.
    async fn extend_locks(&self, asks: &[LockRequest]) -> Result<Vec<bool>>;

    /// Gives up whatever the owner has of a lock: its slot, or its place in the line. Answers whether it held a slot.
    ///
    /// If slots are free then, as many of the first in line that live are told that it is their turn.
    async fn unlock(&self, ask: &LockRequest) -> Result<bool>;

    /// Gives up the owner's place in the line of a lock, if it has one, and nothing else: what it holds, it holds.
    ///
    /// If slots are free then, as many of the first in line that live are told that it is their turn.
    async fn cancel_wait(&self, ask: &LockRequest) -> Result<()> {
        let _ = ask;
        Err(Error::unsupported("leave the line of a lock"))
    }

    /// A page of holds, by name; only those of one lock if it is named.
    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage>;

    /// Ends all holds of a lock, whoever has them. They and the first in line are told to ask again. Answers how many there were.
    async fn break_lock(&self, name: &str) -> Result<u64>;

    /// A node's sign of life in the hall; the first one makes it known, and every one that it listens.
    /// While its lease runs, its places in lines are its own, and its connections. One that is gone all the same is told.
    async fn announce(&self, guest: &PeerInfo) -> Result<AnnounceReply>;

    /// A node leaves the hall in good order: with it its places in lines and its connections. Its locks stay as they are.
    async fn withdraw(&self, node: NodeId) -> Result<()>;

    /// What is said to this node of our process and, if it says so, what is said to all; from its next [`Store::attend`] on,
    /// until it departs or the receiver is dropped. May be called for several nodes, of which one should hear what is for all.
    /// What comes while nobody takes it, or while the way is broken, is lost.
    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>>;

    /// Says something to nodes that listen. Answers how many were reached: of those that hear what is for all, one per process.
    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64>;

    /// For [`ENDS_LAST`] from now, a node of our process that hears is told of jobs of these queues that are done, dead or removed,
    /// by [`Heard::Ended`], and of no others any more. A word may be lost; if the way was broken, it hears [`Heard::Gap`].
    /// At most [`ENDS_QUEUES_MAX`] queues. While nobody asks for it, nobody is told, and a settle on a server does nothing for it.
    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        let _ = (node, queues);
        Err(Error::unsupported("tell of jobs that have ended"))
    }

    /// Which of these jobs of one queue are unfinished no more: done, dead or gone. At most [`ENDED_MAX`].
    /// A store that has no step for many looks at one after the other.
    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        let _ = queue;
        let mut ended = Vec::new();
        for id in ids {
            if self.get(id).await?.is_none_or(|record| record.state.is_final()) {
                ended.push(id);
            }
        }
        Ok(ended)
    }

    /// Notes connections that a node holds, and forgets others of its: at most [`CONNECTIONS_MAX`] in one step.
    /// One that another node held is this node's from now on.
    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()>;

    /// Notes connections once more that a node has told of before, in case they were forgotten: at most [`CONNECTIONS_MAX`].
    /// One that another node has noted since stays that node's, as long as it is there.
    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        let _ = (node, held);
        Err(Error::unsupported("keep connections"))
    }

    /// The node that holds a connection, if it is there.
    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>>;

    /// Nodes in the hall that can be asked to do this: those that are there and not quiet.
    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>>;

    /// Keeps a token, unless its name is taken or there are [`TOKENS_MAX`](crate::TOKENS_MAX) of them. Answers whether it is kept.
    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        let _ = token;
        Err(Error::unsupported("keep tokens"))
    }

    /// Forgets a token. Answers whether there was one of this name.
    async fn remove_token(&self, name: &str) -> Result<bool> {
        let _ = name;
        Err(Error::unsupported("keep tokens"))
    }

    /// All tokens, by name; also those that have ended.
    async fn tokens(&self) -> Result<Vec<Token>> {
        Err(Error::unsupported("keep tokens"))
    }

    /// Adds an entry to the audit, of which the newest [`AUDIT_MAX`] are kept.
    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        let _ = entry;
        Err(Error::unsupported("keep an audit"))
    }

    /// The newest entries of the audit, or those before this number, newest first: at most `limit`.
    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        let _ = (before, limit);
        Err(Error::unsupported("keep an audit"))
    }

    /// The store's time, as far as is known without asking.
    fn now(&self) -> SystemTime;

    /// What the store says about itself.
    async fn health(&self) -> Result<Health>;

    /// Where the jobs lie that another system's programs see too: stores that answer the same have the same jobs, whatever
    /// their prefixes. `None` if only duly knows of them.
    async fn shared_keyspace(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// The unfinished job of a queue that has this unique key.
    async fn unique_holder(&self, _queue: &str, _key: &str) -> Result<Option<JobId>> {
        Err(Error::unsupported("say who holds a unique key"))
    }

    /// Looks through everything and says which rules are broken where. Changes nothing, and holds nobody up for long;
    /// what is told was so at one moment, however much went on meanwhile.
    async fn verify(&self) -> Result<VerifyReport> {
        Err(Error::unsupported("be verified; its own programs can do that"))
    }

    /// Puts right what [`Store::verify`] finds, as far as that can be done without losing a job:
    /// one that may have run is rather run again.
    async fn repair(&self) -> Result<()> {
        Err(Error::unsupported("be repaired; move what is in it to a new store"))
    }

    /// Writes everything, as it is at one moment, into a new SQLite file.
    async fn backup(&self, _to: &std::path::Path) -> Result<()> {
        Err(Error::unsupported("write a copy of itself by itself"))
    }

    /// Some jobs of a queue in no order, with their failures, and where to go on. Every job that is there from the first
    /// step to the last is told of, in a state that it had meanwhile; some may be told of twice. All steps of one scan are
    /// asked for in one runtime.
    async fn scan(&self, _queue: &str, _cursor: Option<&str>) -> Result<JobPage> {
        Err(Error::unsupported("be gone through job by job"))
    }
}

#[cfg(test)]
pub(crate) mod faulty;
