//! THE CONTRACT: what every store promises, one paragraph per method.
//!
//! A store keeps state and moves it in atomic steps.
//! It never decides: it knows no limits, no backoff and no handlers.
//! Absence is a value, not an error.
//! One clock decides what is due and which lease is over: the store's own, read once in each step.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::job::{Fence, Held, JobId, Outcome, Priority, Record, State};
use crate::node::{Node, NodeId, NodeRecord};
use crate::push::{Due, Push, Pushed};

mod hall;
mod moving;
mod open;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use hall::{
    Attended, CONNECTIONS_MAX, EXTEND_MAX, Guest, Heard, LINE_LOOK_MAX, LOCK_SLOTS_MAX, LOCKS_PAGE, LockAsk, LockPage,
    LockRecord, LockTaken, Owner, To, Turn, WAITS_MAX,
};
pub use moving::{Marked, Marker, MoveIn, MovedIn, Moving};
pub use open::{Durability, StoreUrl, duration};
pub(crate) use open::{Options, open, place_of};

/// Most jobs in one claim.
pub const CLAIM_MAX: usize = 1_000;
/// Most outcomes in one settle.
pub const SETTLE_MAX: usize = 1_000;
/// Most jobs taken back from a dead node in one claim.
pub const TAKE_BACK_MAX: usize = 500;
/// Most jobs moved from scheduled to ready in one claim.
pub const PROMOTE_MAX: usize = 1_000;
/// Even a claim of one job moves so many due ones: a backlog of due jobs is worked off, not nibbled at.
pub(crate) const PROMOTE_MIN: usize = 200;
/// Most ended jobs deleted in one prune.
pub const PRUNE_MAX: usize = 1_000;
/// Most jobs in one batch of a move.
pub const MOVE_MAX: usize = 500;
/// Jobs on one page of a list, unless it says otherwise.
pub const PAGE: usize = 50;
/// Most jobs on one page of a list.
pub const PAGE_MAX: usize = 1_000;
/// Longest error text kept in a job's history, in bytes.
pub const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Most failures kept per job: the newest stay.
pub const FAILURES_MAX: usize = 50;

/// What a worker asks of one queue.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: String,
    /// Take at most so many.
    pub max: usize,
    /// The answer to an earlier claim was lost: give everything that the node holds in this queue, and nothing new.
    pub redo: bool,
    /// A node that may be dead: take back what it holds here, if it is.
    pub suspect: Option<NodeId>,
}

/// What a claim gives.
#[derive(Debug)]
pub struct Claimed {
    /// The jobs, in the order in which they should start.
    pub jobs: Vec<Held>,
    /// The store's time at this step.
    pub now: SystemTime,
    /// There may be more that is ready, or to take back or to promote: ask again.
    pub more: bool,
    /// How long from `now` until the next job of this queue falls due; `None` if none is scheduled.
    pub next_due: Option<Duration>,
    /// How many other idle nodes wait for this queue: at a due moment the node of rank r looks a little later than that of rank r - 1.
    pub rank: u32,
    /// How many jobs were taken back from the suspect.
    pub taken_back: usize,
    /// The suspect is dead and may hold more: name it again.
    pub left: bool,
}

/// How one attempt ended: names the held job whole, so that holder, job and fence are checked at once.
#[derive(Clone, Debug)]
pub struct End {
    /// The job's queue.
    pub queue: String,
    /// The job.
    pub id: JobId,
    /// The claim it was held under.
    pub fence: Fence,
    /// What to record.
    pub outcome: Outcome,
    /// Its unique key, to be freed if this ends the job.
    pub unique: Option<String>,
    /// How long it stays once it is done, or dead.
    pub keep: Duration,
    /// As the claim said it: saves the store a look at what only the holder can change.
    pub(crate) due: SystemTime,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only on a server it is a part of what is held"))]
    pub(crate) priority: Priority,
    /// The store's own number for the job.
    pub(crate) place: i64,
}

impl End {
    /// The end of an attempt at this held job; once done or dead it stays for `keep`.
    #[must_use]
    pub fn of(held: &Held, outcome: Outcome, keep: Duration) -> Self {
        End {
            queue: held.job.queue.clone(),
            id: held.job.id,
            fence: held.fence,
            outcome,
            unique: held.job.unique.clone(),
            keep,
            due: held.due,
            attempts: held.attempts,
            crashes: held.crashes,
            priority: held.job.priority,
            place: held.place,
        }
    }
}

/// What a beat answers.
#[derive(Clone, Debug, Default)]
pub struct Beaten {
    /// How many jobs the node holds, by queue; queues in which it holds none are absent.
    pub held: Vec<(String, u64)>,
    /// Nodes that may be dead, and the queues in which they hold something.
    pub suspects: Vec<(NodeId, String)>,
    /// Nodes whose lease ends before the next beat, unless they beat: whom to suspect, in which queue, and when.
    pub ending: Vec<(NodeId, String, Duration)>,
    /// Queues in which something may be claimed.
    pub look: Vec<String>,
    /// Queues of which nothing is known this time, because their server did not answer.
    pub unheard: Vec<String>,
}

/// A signal that something happened sooner than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Look into this queue.
    Queue(String),
    /// A node may have died: beat, and see whom the answer suspects.
    Beat,
    /// The node holds this job from now on: a push has put it into its hands. Only for a node that accepts jobs so.
    Job(Box<Held>),
    /// A [`Wake::Job`] of this queue may have been lost: ask for everything the node holds there.
    Missed(String),
}

/// What became of a remove or a reschedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moved {
    /// Done.
    Yes,
    /// There is no such job.
    NotFound,
    /// The job is running: it cannot be moved under its holder's feet.
    Running,
    /// The job's unique key belongs to this other job now.
    Existing(JobId),
    /// The job's queue is moving to another store.
    Moving,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only in this state.
    pub state: Option<State>,
    /// Only of this kind.
    pub kind: Option<String>,
    /// At most so many; 0 means [`PAGE`].
    pub limit: usize,
    /// Go on after this page.
    pub cursor: Option<String>,
    /// With their failures, which cost a look for each job that has any.
    pub failures: bool,
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct Page {
    /// The jobs, without their failures unless those were asked for.
    pub jobs: Vec<Record>,
    /// Where the next page starts, if there may be one.
    pub next: Option<String>,
}

/// How many jobs of a queue are in which state.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct QueueCounts {
    /// The queue.
    pub queue: String,
    /// Nothing is claimed from it.
    pub paused: bool,
    /// It is moving to another store: nothing is claimed from it either.
    pub moving: Option<Moving>,
    /// Jobs that wait for their due moment.
    pub scheduled: u64,
    /// Jobs that may be claimed.
    pub ready: u64,
    /// Jobs held by a node.
    pub running: u64,
    /// Done jobs that are still kept.
    pub done: u64,
    /// Jobs that were given up.
    pub dead: u64,
}

impl QueueCounts {
    /// How many are in this state.
    #[must_use]
    pub fn of(&self, state: State) -> u64 {
        match state {
            State::Scheduled => self.scheduled,
            State::Ready => self.ready,
            State::Running => self.running,
            State::Done => self.done,
            State::Dead => self.dead,
        }
    }
}

/// What a store says about itself: each fact a line for people.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Health {
    /// What survives a crash and a power cut, in one sentence.
    pub durability: String,
    /// Name and value of everything else worth knowing.
    pub facts: Vec<(String, String)>,
    /// What should be mended, with what to do.
    pub warnings: Vec<String>,
    /// The rules for a user of the server that may do what duly does and nothing else; `None` where there is no server.
    #[serde(skip)]
    pub acl: Option<String>,
}

mod sealed {
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
    fn home(&self) -> Option<tokio::runtime::Handle> {
        None
    }

    /// Puts jobs into the store, each into its own queue at its own time and priority: all or none per queue.
    ///
    /// A job whose id is in its queue, or was there in the last ten minutes, changes nothing and answers `Existing`.
    /// So does one whose unique key is taken, unless it asks to replace a job that waits.
    /// Of two jobs with the same key in one push the first wins. Answers in the order of the jobs.
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>>;

    /// Takes up to `max` jobs of one queue for `node`: first what the suspect held, if it is dead, goes back to ready;
    /// then what has fallen due becomes ready; then the first ready jobs are taken, by priority and by the moment they became ready.
    ///
    /// A claim of no job takes the node off the list of those that a push may wake, and passes a wake on if jobs are ready.
    /// Never blocks, never takes a job before its due moment, and takes nothing from a queue that is paused or moving.
    /// An answer with fewer jobs than asked for says when to look again,
    /// and puts the node on the list of those that the next push may wake.
    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed>;

    /// Records how attempts ended, and returns those the node no longer held: nothing of theirs was recorded.
    ///
    /// A retried job goes to the tail of its queue at its new due moment, a released one back to the head.
    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>>;

    /// One job with all that is known of it.
    async fn get(&self, id: JobId) -> Result<Option<Record>>;

    /// A page of jobs.
    async fn list(&self, filter: Filter) -> Result<Page>;

    /// Deletes a job that is not running and whose queue is not moving; its id stays remembered.
    async fn remove(&self, id: JobId) -> Result<Moved>;

    /// Gives a job that is not running and whose queue is not moving a new due moment;
    /// a dead or done one starts over with no failed attempts.
    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved>;

    /// How many jobs are in which state, by queue.
    async fn counts(&self) -> Result<Vec<QueueCounts>>;

    /// Stops or starts claiming from a queue, also one that has no job yet. Answers whether that changed anything.
    async fn pause(&self, queue: &str, paused: bool) -> Result<bool>;

    /// Deletes done and dead jobs that are past their time, and of the done ones beyond `done_max` those that would go next.
    /// Answers how many went: as many as [`PRUNE_MAX`] means that there may be more.
    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize>;

    /// A node's sign of life; the first one makes it known.
    /// While its lease runs, what it holds is its own.
    async fn beat(&self, node: &Node) -> Result<Beaten>;

    /// A node goes in good order. What it still holds can be taken back at once.
    async fn leave(&self, node: NodeId) -> Result<()>;

    /// All nodes the store knows.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;

    /// The wakes meant for a node that has beaten. A wake may be lost: look once a second besides.
    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>>;

    /// From now on a push may put a job into the hands of this subscribed node, while it waits in a queue where nothing is
    /// ready: the node holds it as if it had claimed it, and is told by [`Wake::Job`]. At most one for each claim.
    ///
    /// If that word is lost, the node's beat counts the job, and a claim that says `redo` finds it.
    /// Whatever was put into its hands before a claim is heard of before that claim is answered.
    /// A store need not do any of this.
    async fn accept(&self, _node: NodeId) -> Result<()> {
        Ok(())
    }

    /// Marks a queue as moving to another store for this mover, or, without a place to go to, as not moving any more.
    ///
    /// While it is marked nothing is claimed from it, whatever pause and resume say, and its jobs stay as they are:
    /// none is removed, rescheduled or replaced by a push (which answers `Existing`). Running ones go on, pushes go in.
    /// A queue that is marked already stays marked as it was, for the new mover; only the last mover can take the mark away.
    /// Answers how the queue is marked now.
    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked>;

    /// Puts jobs into one queue as they are, the ready ones behind those that are there, and changes the marker of the move
    /// in the same step: all or nothing. Nothing is changed either if the marker is not as it was, or if a unique key is taken.
    ///
    /// A job whose id is in the queue, or was there in the last ten minutes, is left out.
    /// If the marker is already as it will be, this very batch has gone in before: then nothing is changed, and that is a yes.
    async fn move_in(&self, batch: MoveIn) -> Result<MovedIn>;

    /// Deletes jobs that are in another store now, each only if it was pushed at that moment and is not running.
    /// Answers how many went; `None`, and none, if the queue is not marked for this mover.
    ///
    /// Their ids are not remembered: they may come back.
    async fn move_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>>;

    /// Takes a free slot of a lock for the owner, until `ttl` from now; or, if none is free and `wait` says so, a place at the
    /// end of its line.
    ///
    /// First come, first served: a slot that is free goes to those who stand in line, as far as their nodes live,
    /// also against an ask that does not wait. An owner who holds the lock already holds it for `ttl` from now, under the fence
    /// that it has; one who stands in line already keeps its place. So an ask may be repeated.
    /// The fence is greater than all that were ever given for a lock of this store.
    /// A hold has ended when its time is over, or when the process of its node is known to be gone
    /// (which a server never knows); silence alone ends no hold.
    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken>;

    /// Lets holds last for their `ttl` from now, each only if its owner still has it. Answers which, in the order of the asks.
    /// At most [`EXTEND_MAX`].
    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>>;

    /// Gives up whatever the owner has of a lock: its slot, or its place in the line. Answers whether it held a slot.
    ///
    /// If slots are free then, as many of the first in line that live are told that it is their turn.
    async fn unlock(&self, ask: &LockAsk) -> Result<bool>;

    /// A page of holds, by name; only those of one lock if it is named.
    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage>;

    /// Ends all holds of a lock, whoever has them. They and the first in line are told to ask again. Answers how many there were.
    async fn break_lock(&self, name: &str) -> Result<u64>;

    /// A node's sign of life in the hall; the first one makes it known, and every one that it listens.
    /// While its lease runs, its places in lines are its own, and its connections.
    async fn attend(&self, guest: &Guest) -> Result<Attended>;

    /// A node leaves the hall in good order: with it its places in lines and its connections. Its locks stay as they are.
    async fn depart(&self, node: NodeId) -> Result<()>;

    /// What is said to this node of our process and, if it says so, what is said to all; from its next [`Store::attend`] on,
    /// until it departs or the receiver is dropped. May be called for several nodes, of which one should hear what is for all.
    /// What comes while nobody takes it, or while the way is broken, is lost.
    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>>;

    /// Says something to nodes that listen. Answers how many were reached: of those that hear what is for all, one per process.
    async fn send(&self, to: To, message: &[u8]) -> Result<u64>;

    /// Notes connections that a node holds, and forgets others of its: at most [`CONNECTIONS_MAX`] in one step.
    /// One that another node held is this node's from now on.
    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()>;

    /// The node that holds a connection, if it is there.
    async fn connection(&self, connection: &str) -> Result<Option<NodeId>>;

    /// Nodes in the hall that can be asked to do this: those that are there and not quiet.
    async fn answering(&self, method: &str) -> Result<Vec<NodeId>>;

    /// The store's time, as far as is known without asking.
    fn now(&self) -> SystemTime;

    /// What the store says about itself.
    async fn health(&self) -> Result<Health>;
}

#[cfg(test)]
pub(crate) mod faulty;
