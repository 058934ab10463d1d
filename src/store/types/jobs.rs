//! What is said to a store, and what it answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::job::push::RESERVED_KIND_PREFIX;
use crate::job::{Fence, HeldJob, JobId, JobRecord, Outcome, Priority, State};
use crate::node::NodeId;
use crate::store::{Capacity, TransferMark};

/// What a worker asks of one queue.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: String,
    /// Take at most so many.
    pub max: usize,
    /// The answer to an earlier claim was lost: give everything that the node holds in this queue, and nothing new.
    pub resync: bool,
    /// A node that may be dead: take back what it holds here, if it is.
    pub suspect: Option<NodeId>,
    /// The kinds that the node can run, `None` if any: of what others have put off, because they do not know its kind, it is
    /// given what it knows, before that is due. What is ready comes in its order, whatever it is: what the node does not know
    /// it puts off in its turn. A store that others share with us leaves theirs alone.
    pub kinds: Option<Arc<[String]>>,
}

/// What a claim gives.
#[derive(Debug)]
pub struct ClaimReply {
    /// The jobs, in the order in which they should start.
    pub jobs: Vec<HeldJob>,
    /// The store's time at this step.
    pub now: SystemTime,
    /// There may be more that is ready, or to take back or to promote: ask again.
    pub has_more: bool,
    /// How long from `now` until the next job of this queue falls due; `None` if none is scheduled.
    pub next_due: Option<Duration>,
    /// How long from `now` until the next tick of a cron rule of this queue; nothing if one is due.
    pub next_tick: Option<Duration>,
    /// How many other idle nodes wait for this queue: at a due moment the node of rank r looks a little later than that of rank r - 1.
    pub idle_rank: u32,
    /// How many jobs were taken back from the suspect.
    pub taken_back: usize,
    /// The suspect is dead and may hold more: name it again.
    pub suspect_has_more: bool,
}

/// How one attempt ended: names the held job whole, so that holder, job and fence are checked at once.
#[derive(Clone, Debug)]
pub struct AttemptEnd {
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
    /// How long the attempt took, and how long after its due moment it started; `None` if there was none.
    pub timing: Option<AttemptTiming>,
    /// What it gives, as JSON: kept with the job if it is done and stays.
    pub result: Option<String>,
    /// It is released because the node does not know its kind: one that does may have it before it is due.
    pub deferred: bool,
    /// Its kind, by which dead ones are grouped and found.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "a file knows it by the number of the job"))]
    pub(crate) kind: String,
    /// Its tags, by which those that wait and dead ones are found.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "a file knows them by the number of the job"))]
    pub(crate) tags: Vec<String>,
    /// How many bytes its args have.
    pub(crate) args_bytes: u64,
    /// As the claim said it: saves the store a look at what only the holder can change.
    pub(crate) due: SystemTime,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only on a server it is a part of what is held"))]
    pub(crate) priority: Priority,
    /// The store's own number for the job.
    pub(crate) locator: i64,
}

impl AttemptEnd {
    /// Those of each queue, in their order: on a server a step is about one queue.
    #[cfg(feature = "redis")]
    pub(crate) fn group_by_queue(ends: &[AttemptEnd]) -> Vec<(&str, Vec<&AttemptEnd>)> {
        let mut queues: Vec<(&str, Vec<&AttemptEnd>)> = Vec::new();
        for end in ends {
            match queues.iter_mut().find(|(queue, _)| *queue == end.queue) {
                Some((_, of_queue)) => of_queue.push(end),
                None => queues.push((&end.queue, vec![end])),
            }
        }
        queues
    }

    /// Whether a node that knows its kind may have it before it is due. Of what nobody can read the kind is not known either.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred && !self.kind.starts_with(RESERVED_KIND_PREFIX)
    }

    /// The end of an attempt at this held job; once done or dead it stays for `keep`.
    #[must_use]
    pub fn from_held(held: &HeldJob, outcome: Outcome, keep: Duration) -> Self {
        AttemptEnd {
            queue: held.job.queue.clone(),
            id: held.job.id,
            fence: held.fence,
            outcome,
            unique: held.job.unique.clone(),
            keep,
            timing: None,
            result: None,
            deferred: false,
            kind: held.job.kind.clone(),
            tags: held.job.tags.clone(),
            args_bytes: held.job.args.len() as u64,
            due: held.due,
            attempts: held.attempts,
            crashes: held.crashes,
            priority: held.job.priority,
            locator: held.locator,
        }
    }
}

/// When an attempt ran, as far as its worker knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTiming {
    /// How long after its due moment it started.
    pub lateness: Duration,
    /// How long it took.
    pub duration: Duration,
}

/// What a beat answers.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatReply {
    /// How many jobs the node holds, by queue; queues in which it holds none are absent.
    pub held: Vec<(String, u64)>,
    /// Nodes that may be dead, and the queues in which they hold something.
    pub suspects: Vec<(NodeId, String)>,
    /// Nodes whose lease ends before the next beat, unless they beat: whom to suspect, in which queue, and when.
    pub expiring: Vec<(NodeId, String, Duration)>,
    /// Queues in which something may be claimed.
    pub queues_to_check: Vec<String>,
    /// Queues of which nothing is known this time, because their server did not answer.
    pub unreachable: Vec<String>,
    /// Somebody has told this node, through the store, to take no more jobs. Not taken back.
    pub quiet: bool,
    /// Somebody has told this node, through the store, to stop.
    pub stop: bool,
}

/// A signal that something happened sooner than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Look into this queue.
    Queue(String),
    /// A node may have died: beat, and see whom the answer suspects.
    Heartbeat,
    /// The node holds this job from now on: a push has put it into its hands. Only for a node that accepts jobs so.
    Job(Box<HeldJob>),
    /// A [`Wake::Job`] of this queue may have been lost: ask for everything the node holds there.
    Resync(String),
}

/// What became of a remove or a reschedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeResult {
    /// Done.
    Applied,
    /// There is no such job.
    NotFound,
    /// The job is running: it cannot be moved under its holder's feet.
    Running,
    /// The job's unique key belongs to this other job now.
    Existing(JobId),
    /// The job's queue is moving to another store.
    Moving,
    /// The job is not in the state any more in which it was seen.
    Changed,
    /// The job is not as it was written, so what else of it is true nobody knows: push it anew, and remove this one.
    Unreadable,
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct JobPage {
    /// The jobs, without their failures unless those were asked for.
    pub jobs: Vec<JobRecord>,
    /// Where the next page starts, if there may be one.
    pub next_cursor: Option<String>,
    /// How many jobs were looked at to find these.
    pub scanned: u64,
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
    pub moving: Option<TransferMark>,
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
    /// Bytes of args of those that are unfinished: scheduled, ready and running.
    pub bytes: u64,
    /// Since when the first ready job could have been claimed: the oldest among the heads of all priorities; `None` if none is
    /// ready, or the store does not say.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub oldest_ready: Option<SystemTime>,
    /// How much may be in it.
    #[serde(skip_serializing_if = "Capacity::is_unlimited")]
    pub capacity: Capacity,
}

impl QueueCounts {
    /// How many are in this state.
    #[must_use]
    pub fn count_in(&self, state: State) -> u64 {
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

impl Health {
    /// Notes that no history is kept, so that nobody wonders where it is.
    pub(crate) fn add_history_fact(&mut self, kept: bool) {
        if !kept {
            self.facts.push(("history".to_owned(), "off, as far as this process is concerned".to_owned()));
        }
    }
}
