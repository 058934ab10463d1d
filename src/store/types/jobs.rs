//! Claims, outcomes, heartbeats and pages of jobs: the arguments and replies of the job operations.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::job::push::RESERVED_KIND_PREFIX;
#[cfg(any(feature = "sqlite", feature = "redis"))]
use crate::job::{Failure, JobRun, RunOutcome};
use crate::job::{Fence, HeldJob, JobId, JobRecord, Outcome, State};
use crate::node::NodeId;
use crate::store::{Capacity, TransferMark};

/// A job that was held during this many crashes may be their cause; a single crash may be a coincidence.
pub const CRASH_SUSPECT_MIN: u32 = 2;

/// Most jobs whose ids are examined to find one by the end of its id.
pub const ID_SCAN_MAX: usize = 4_000_000;

/// The ids of jobs that have a part of an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundIds {
    /// The ids, each once.
    pub ids: Vec<JobId>,
    /// Whether no other job matches.
    pub is_complete: bool,
}

/// A worker's claim on one queue.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: String,
    /// Most jobs to claim.
    pub max: usize,
    /// The reply to an earlier claim was lost: return all jobs that the node holds in this queue, and no new ones.
    pub resync: bool,
    /// A node that may be dead: if it is, its jobs in this queue are taken back.
    pub suspect: Option<NodeId>,
    /// The kinds that the node has handlers for, `None` if it accepts any.
    /// Jobs of these kinds that other nodes deferred are offered to this node before they are due.
    /// Ready jobs come in order, whatever their kind; the node defers those it has no handler for.
    /// A store shared with another system does not touch jobs that the other system deferred.
    pub kinds: Option<Arc<[String]>>,
    /// With `kinds: None`, the kind whose deferred jobs are not offered to this node, because it would defer them again.
    pub excluded_kind: Option<Arc<str>>,
    /// Most bytes of args in the reply: further jobs stay ready. The first job comes whatever its size. With a limit, a
    /// resync lists the jobs without their args.
    pub args_bytes_max: Option<usize>,
}

impl Claim {
    /// Returns a claim of at most `max` jobs of any kind from this queue.
    #[must_use]
    pub fn new(queue: impl Into<String>, max: usize) -> Self {
        Claim {
            queue: queue.into(),
            max,
            resync: false,
            suspect: None,
            kinds: None,
            excluded_kind: None,
            args_bytes_max: None,
        }
    }
}

/// The reply to a claim.
#[derive(Debug)]
pub struct ClaimReply {
    /// The jobs, in the order in which they should start.
    pub jobs: Vec<HeldJob>,
    /// The store's time at this operation.
    pub now: SystemTime,
    /// More jobs may be ready, to take back or to promote: claim again.
    pub has_more: bool,
    /// Time from `now` until the next job of this queue is due; `None` if none is scheduled.
    pub next_due: Option<Duration>,
    /// Time from `now` until the next tick of a cron rule of this queue; zero if one is due.
    pub next_tick: Option<Duration>,
    /// How many other idle nodes wait for this queue. At a due time, nodes claim in the order of this rank.
    pub idle_rank: u32,
    /// The number of jobs taken back from the suspect.
    pub taken_back: usize,
    /// The suspect is dead and may hold more jobs: name it again.
    pub suspect_has_more: bool,
}

impl ClaimReply {
    /// Returns the reply with these jobs, claimed at this time by the store's clock, and nothing else.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn new(now: crate::clock::Micros, jobs: Vec<HeldJob>) -> Self {
        ClaimReply {
            jobs,
            now: crate::clock::from_micros(now),
            has_more: false,
            next_due: None,
            next_tick: None,
            idle_rank: 0,
            taken_back: 0,
            suspect_has_more: false,
        }
    }
}

/// How one attempt ended, as the store records it. Identifies the held job completely, so that holder, job and fence
/// are checked at once. The values of the claim save the store a read: only the holder can change them.
#[derive(Clone, Debug)]
pub struct AttemptEnd {
    pub(crate) held: Arc<HeldJob>,
    /// The outcome to record.
    pub outcome: Outcome,
    /// How long the job is kept once it is done or dead.
    pub keep: Duration,
    /// Duration and lateness of the attempt; `None` if there was no attempt.
    pub timing: Option<AttemptTiming>,
    /// When the attempt started, by the store's clock. `None` if there was no attempt, or if attempts are not recorded:
    /// then only a failure is kept.
    pub started: Option<SystemTime>,
    /// The end of what the attempt logged, at most [`RUN_OUTPUT_BYTES_MAX`](crate::bounds::RUN_OUTPUT_BYTES_MAX) bytes.
    pub output: Option<String>,
    /// The result as JSON, stored with the job if it is done and kept.
    pub result: Option<String>,
    /// The job is released because the node has no handler for its kind. A node with one may claim it before it is due.
    pub deferred: bool,
}

impl AttemptEnd {
    /// Returns the end of an attempt at this held job. A dead job is kept for `keep_dead`, a done job for as long as
    /// its push asked for.
    #[must_use]
    pub fn new(held: Arc<HeldJob>, outcome: Outcome, keep_dead: Duration) -> Self {
        let keep = match outcome {
            Outcome::Bury { .. } => keep_dead,
            _ => held.job.keep,
        };
        AttemptEnd { held, outcome, keep, timing: None, started: None, output: None, result: None, deferred: false }
    }

    /// Returns the end of an attempt at this held job, which is kept for `keep` once it is done or dead.
    #[must_use]
    pub fn from_held(held: &HeldJob, outcome: Outcome, keep: Duration) -> Self {
        AttemptEnd { keep, ..AttemptEnd::new(Arc::new(held.clone()), outcome, keep) }
    }

    /// Returns the job and its claim.
    #[must_use]
    pub fn held(&self) -> &Arc<HeldJob> {
        &self.held
    }

    /// Returns the job's queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.held.job.queue
    }

    /// Returns the job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.held.job.id
    }

    /// Returns the fence of the claim.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Groups ends by queue, in order: on Redis an operation concerns one queue.
    #[cfg(feature = "redis")]
    pub(crate) fn group_by_queue(ends: &[AttemptEnd]) -> Vec<(&str, Vec<&AttemptEnd>)> {
        let mut queues: Vec<(&str, Vec<&AttemptEnd>)> = Vec::new();
        for end in ends {
            match queues.iter_mut().find(|(queue, _)| *queue == end.queue()) {
                Some((_, of_queue)) => of_queue.push(end),
                None => queues.push((end.queue(), vec![end])),
            }
        }
        queues
    }

    /// Returns whether the attempt becomes a run in the history of a job that is kept.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn is_recorded(&self) -> bool {
        match self.outcome {
            Outcome::Retry { .. } | Outcome::Bury { .. } => true,
            Outcome::Ack => self.started.is_some(),
            // A node without a handler has not run the job.
            Outcome::Release { .. } => self.started.is_some() && !self.deferred,
        }
    }

    /// Returns the attempt as a run of the job on this node.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn to_run(&self, node: NodeId, ended: SystemTime) -> JobRun {
        let error = match &self.outcome {
            Outcome::Retry { error, .. } | Outcome::Bury { error } => Some(Failure::truncate_error(error).to_owned()),
            Outcome::Ack | Outcome::Release { .. } => None,
        };
        JobRun {
            attempt: self.held.attempt(),
            outcome: RunOutcome::from(&self.outcome),
            node,
            started: self.started,
            ended,
            duration: self.timing.filter(|_| self.started.is_some()).map(|timing| timing.duration),
            error,
            output: self.output.clone(),
        }
    }

    /// Returns whether a node with a handler for the kind may claim the job before it is due.
    /// The kind of an unreadable job is unknown, so such a job is never deferred.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred && !self.held.job.kind.starts_with(RESERVED_KIND_PREFIX)
    }
}

/// Lateness and duration of an attempt, measured by its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTiming {
    /// How long after its due time it started.
    pub lateness: Duration,
    /// How long it took.
    pub duration: Duration,
}

/// The reply to a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatReply {
    /// How many jobs the node holds, by queue; queues without held jobs are absent.
    pub held: Vec<(String, u64)>,
    /// Nodes that may be dead, with the queues in which they hold jobs.
    pub suspects: Vec<(NodeId, String)>,
    /// Nodes whose lease expires before the next heartbeat unless renewed: the node, the queue and the time left.
    pub expiring: Vec<(NodeId, String, Duration)>,
    /// Queues that may have jobs to claim.
    pub queues_to_check: Vec<String>,
    /// Jobs that the node holds and that were cancelled. Repeated until they are settled.
    pub cancelled: Vec<JobId>,
    /// Queues that this reply does not cover, because their server did not reply.
    pub unreachable: Vec<String>,
    /// An operator has told this node, through the store, to claim no more jobs. This is final.
    pub quiet: bool,
    /// An operator has told this node, through the store, to stop.
    pub stop: bool,
}

/// Tells a node to act before its next poll or heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// This queue may have jobs to claim.
    Queue(String),
    /// A node may have died: send a heartbeat, and check the suspects in its reply.
    Heartbeat,
    /// A push delivered this job, and the node now holds it. Sent only to nodes that accept deliveries.
    Job(Box<HeldJob>),
    /// A [`Wake::Job`] of this queue may have been lost: claim with `resync`.
    Resync(String),
}

/// The result of changing a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeResult {
    /// The change was made.
    Applied,
    /// There is no such job.
    NotFound,
    /// The job is running, so it cannot be changed.
    Running,
    /// Another job, this one, has the unique key now.
    Existing(JobId),
    /// The job's queue is moving to another store.
    Moving,
    /// The job is no longer in the given state.
    Changed,
    /// The job is corrupted (checksum mismatch): push it again and remove this one.
    Unreadable,
}

/// The effect of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelResult {
    /// The job has ended in the state cancelled, now or before.
    Cancelled,
    /// The job is running. It is marked, and ends cancelled when its attempt ends, unless that succeeds.
    Cancelling {
        /// The node that runs it, which has been notified.
        node: NodeId,
    },
    /// The job was done or dead before, so there was nothing to cancel.
    Ended(State),
}

/// A store's reply to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReply {
    /// The job has ended in the state cancelled, now or before.
    Cancelled,
    /// The job is running on this node. It is marked, and ends cancelled when its attempt ends, unless that succeeds.
    Cancelling(NodeId),
    /// The job is done or dead, so there is nothing to cancel.
    Ended(State),
    /// There is no such job.
    NotFound,
    /// The job waits, and its queue is moving to another store.
    Moving,
}

/// A page of a list.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs, without their runs unless requested.
    pub jobs: Vec<JobRecord>,
    /// The start of the next page, if there may be one.
    pub next_cursor: Option<String>,
    /// The number of jobs examined to find these.
    pub scanned: u64,
}

/// The number of jobs of a queue in each state.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct QueueCounts {
    /// The queue.
    pub queue: String,
    /// Whether the queue is paused, so that nothing is claimed from it.
    pub paused: bool,
    /// Set while the queue is moving to another store; nothing is claimed from it then.
    pub moving: Option<TransferMark>,
    /// Jobs that wait for their due time.
    pub scheduled: u64,
    /// Jobs that may be claimed.
    pub ready: u64,
    /// Jobs held by a node.
    pub running: u64,
    /// Done jobs that are kept.
    pub done: u64,
    /// Jobs that failed for good.
    pub dead: u64,
    /// Cancelled jobs.
    pub cancelled: u64,
    /// Bytes of args of unfinished jobs: scheduled, ready and running.
    pub bytes: u64,
    /// Since when the oldest head of all priorities has been ready; `None` if there is none or the store does not know.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub oldest_ready: Option<SystemTime>,
    /// The capacity of the queue.
    #[serde(skip_serializing_if = "Capacity::is_unlimited")]
    pub capacity: Capacity,
}

impl QueueCounts {
    /// Returns the number of jobs in this state.
    #[must_use]
    pub fn count_in(&self, state: State) -> u64 {
        match state {
            State::Scheduled => self.scheduled,
            State::Ready => self.ready,
            State::Running => self.running,
            State::Done => self.done,
            State::Dead => self.dead,
            State::Cancelled => self.cancelled,
        }
    }
}

/// A store's report on itself, one readable line per fact.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Which writes survive a crash and a power cut, in one sentence.
    pub durability: String,
    /// Names and values of all other facts.
    pub facts: Vec<(String, String)>,
    /// Problems and how to fix them.
    pub warnings: Vec<String>,
    /// Minimal ACL rules for the server's user; `None` without a server.
    #[serde(skip)]
    pub acl: Option<String>,
}

impl Health {
    /// Adds a fact if no history is kept, to explain its absence.
    pub(crate) fn add_history_fact(&mut self, kept: bool) {
        if !kept {
            self.facts.push(("history".to_owned(), "off in this process".to_owned()));
        }
    }
}
