//! Quarantine: runs jobs that may have crashed their process alone, so that the next crash shows which one does it.
//! The other workers of the process wait too ([`ProcessMember`]).
//!
//! A job that was held during [`CRASH_SUSPECT_MIN`] crashes is a crash suspect. Most suspects are bystanders.
//!
//! ```text
//!          a suspect arrives                 nothing else runs
//!   Open ───────────────────▶ MakingRoom ────────────────────────▶ Marking (one suspect)
//!    ▲ ▲                          │                  │                 │ the store has noted it
//!    │ └── not empty in time: ────┘                  │ several         ▼
//!    │     suspects are released for a while         └─────────────▶ Trial
//!    │                                                                 │
//!    │                                                                 │
//!    └──── all have ended, or have run long enough (Unmarking) ◀───────┘
//!
//!         it is the only attempt again         another job was claimed
//!   Open ─────────────────────▶ Remarking, Alone ─────────────▶ Unmarking ──▶ Open
//! ```
//!
//! Only in the state `Open` does the node start other jobs; in every other state it has reserved the process. A
//! draining worker keeps its suspects instead of releasing them: then it is `Yielding` to the other workers.
//!
//! A suspect that outlives its trial is marked again whenever nothing else runs, so that a job that crashes late is found
//! too. A store counts a crash of a suspect only if it was marked, so no bystander is ever buried. After a trial without
//! a crash, the next one takes twice as many suspects: many bystanders are cleared quickly, and a crash among several is
//! followed by trials of one.

mod exchange;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) use self::exchange::{Admission, AloneReply, CrashSuspect, NodeActivity, QuarantineAction};
use crate::job::{HeldJob, JobId};
use crate::store::CRASH_SUSPECT_MIN;
use crate::worker::outcomes::{ClaimKey, claim_key};
use crate::worker::process::ProcessMember;

/// Bounds of a trial, after which other jobs start next to the suspect. A trial is half as long as the job has been due:
/// a job that crashes after minutes is found after a few more crashes, and a long job does not keep the node to itself.
const TRIAL_MIN: Duration = Duration::from_secs(10);
const TRIAL_MAX: Duration = Duration::from_secs(600);
/// How long a suspect that has outlived its trial must be the only attempt before it is marked again. The next job
/// that arrives is released once, because the mark is removed before another job starts.
const REMARK_DELAY: Duration = TRIAL_MIN;
/// Bounds of the time in which other jobs have to end before a trial. It doubles each time that it was too short.
const ROOM_WAIT_MIN: Duration = Duration::from_secs(10);
const ROOM_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often that time may be too short in a row: as often as it takes to reach its maximum. Then a suspect waits for
/// other jobs of its worker without limit, or long jobs that overlap would keep it out for ever. Jobs of other workers
/// may themselves wait for this one, so that wait always has a limit.
const GIVE_UPS_MAX: u32 = 7;
/// If that time was too short, the node runs other jobs for this many times as long before it tries again, which is at
/// most `ROOM_PAUSE_MAX`.
const ROOM_PAUSE_FACTOR: u32 = 2;
pub(crate) const ROOM_PAUSE_MAX: Duration = Duration::from_secs(1200);
/// Most suspects that run together.
const GROUP_MAX: usize = 64;
/// The delay before a failed request to the store is repeated.
const MARK_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum QuarantineState {
    Open,
    MakingRoom {
        give_up_at: Option<Instant>,
    },
    Yielding {
        until: Instant,
    },
    /// The request is sent at this time; `None` while it is in flight.
    Marking {
        suspect: CrashSuspect,
        send_at: Option<Instant>,
    },
    /// If there is one suspect, the store knows that it runs alone.
    Trial {
        until: Instant,
        suspects: Vec<StartedSuspect>,
    },
    Unmarking {
        suspect: StartedSuspect,
        send_at: Option<Instant>,
    },
    /// A suspect that has outlived its trial is the only attempt. The request is in flight.
    Remarking(StartedSuspect),
    /// The store knows that this suspect runs alone again.
    Alone(StartedSuspect),
}

/// A suspect that runs.
#[derive(Clone, Debug)]
struct StartedSuspect {
    queue_index: usize,
    held: Arc<HeldJob>,
}

impl StartedSuspect {
    fn from_waiting(suspect: &CrashSuspect) -> Self {
        StartedSuspect { queue_index: suspect.queue_index, held: suspect.held.clone() }
    }

    fn set_alone(&self, alone: bool) -> QuarantineAction {
        QuarantineAction::SetAlone { queue_index: self.queue_index, held: self.held.clone(), alone }
    }
}

/// The quarantine of one node.
#[derive(Debug)]
pub(super) struct Quarantine {
    state: QuarantineState,
    process: ProcessMember,
    /// A job with more crashes is not tried again; it is buried.
    max_crashes: u32,
    /// A draining worker keeps its suspects until there is room.
    gives_up: bool,
    /// Suspects that wait for their trial. No claim is sent meanwhile, so they are at most as many as the slots.
    waiting: VecDeque<CrashSuspect>,
    /// The suspects of the last trial, if they have outlived it: at most [`GROUP_MAX`].
    outlived: Vec<StartedSuspect>,
    /// When to mark the only attempt again, if it is one of them.
    remark_at: Option<Instant>,
    /// Suspects to release, because they were cancelled.
    released: Vec<CrashSuspect>,
    /// How many suspects the next trial takes.
    group: usize,
    room_wait: Duration,
    /// How often in a row that time was too short.
    give_ups: u32,
    /// No trial begins before.
    paused_until: Option<Instant>,
}

impl Quarantine {
    pub(super) fn new(max_crashes: u32, gives_up: bool, process: ProcessMember) -> Self {
        Quarantine {
            state: QuarantineState::Open,
            process,
            max_crashes,
            gives_up,
            waiting: VecDeque::new(),
            outlived: Vec::new(),
            remark_at: None,
            released: Vec::new(),
            group: 1,
            room_wait: ROOM_WAIT_MIN,
            give_ups: 0,
            paused_until: None,
        }
    }

    /// Returns how many jobs the node may claim: none while a trial runs or is prepared, and after a trial no more than
    /// the next one takes, because they may all be suspects. A claim next to a marked suspect only shows that there are
    /// other jobs.
    pub(super) fn claim_limit(&self) -> usize {
        let limit = match self.state {
            QuarantineState::Open if self.group > 1 => self.group,
            QuarantineState::Open => usize::MAX,
            QuarantineState::Remarking(_) | QuarantineState::Alone(_) => 1,
            _ => 0,
        };
        limit.min(self.process.claim_limit())
    }

    /// Returns the notification that another worker of the process has reserved it, or has ended that.
    pub(super) fn process_changes(&self) -> Arc<Notify> {
        self.process.changes()
    }

    /// Records that a suspect starts.
    pub(super) fn record_started(&mut self) {
        self.process.begin_attempt();
    }

    /// Records that no attempt runs, and that all outcomes are recorded.
    pub(super) fn record_idle(&mut self) {
        self.process.end_attempts();
    }

    /// Returns whether there is nothing to do: the usual case.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_open() && self.released.is_empty() && self.outlived.is_empty()
    }

    /// Returns whether other jobs may start.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, QuarantineState::Open)
    }

    /// Decides what happens with a claimed job. `store_now` is the store's time.
    pub(super) fn admit(
        &mut self,
        queue_index: usize,
        held: HeldJob,
        store_now: SystemTime,
        now: Instant,
    ) -> Admission {
        if !(CRASH_SUSPECT_MIN..=self.max_crashes).contains(&held.crashes) {
            if self.is_open() && self.process.begin_attempt() {
                self.group = 1;
                return Admission::Start(held);
            }
            self.unmark_lone_suspect(now);
            return Admission::Release(held, Duration::ZERO);
        }
        if let Some(pause) = self.paused_until.and_then(|until| until.checked_duration_since(now)) {
            return Admission::Release(held, pause);
        }
        let trial = (store_now.duration_since(held.due).unwrap_or_default() / 2).clamp(TRIAL_MIN, TRIAL_MAX);
        self.waiting.push_back(CrashSuspect { queue_index, held: Arc::new(held), held_since: now, trial });
        if self.is_open() {
            self.make_room(now);
        }
        self.unmark_lone_suspect(now);
        Admission::Waits
    }

    /// Returns the next action; `None` if there is nothing to do until [`Quarantine::deadline`] or the next event.
    pub(super) fn next_action(&mut self, activity: NodeActivity, now: Instant) -> Option<QuarantineAction> {
        if !activity.accepts_jobs {
            self.released.extend(self.waiting.drain(..));
        }
        if !self.released.is_empty() {
            return Some(QuarantineAction::Release(std::mem::take(&mut self.released), Duration::ZERO));
        }
        match &mut self.state {
            QuarantineState::Open => self.mark_lone_suspect(activity, now),
            QuarantineState::MakingRoom { .. } | QuarantineState::Yielding { .. } if self.waiting.is_empty() => {
                self.open();
                None
            }
            QuarantineState::MakingRoom { .. } if activity.has_room() && self.process.is_alone() => {
                self.begin_trial(now)
            }
            QuarantineState::MakingRoom { give_up_at: Some(at) } if *at <= now => self.give_up(now),
            QuarantineState::MakingRoom { .. } => None,
            QuarantineState::Yielding { until } if *until > now => None,
            QuarantineState::Yielding { .. } => {
                self.make_room(now);
                self.next_action(activity, now)
            }
            QuarantineState::Marking { suspect, send_at } => send_at.take_if(|at| *at <= now).map(|_| {
                QuarantineAction::SetAlone { queue_index: suspect.queue_index, held: suspect.held.clone(), alone: true }
            }),
            // The mark of a job that has ended does no harm: it names the claim.
            QuarantineState::Trial { .. } if !activity.runs => {
                self.end_trial(now);
                self.next_action(activity, now)
            }
            QuarantineState::Unmarking { .. } | QuarantineState::Remarking(_) | QuarantineState::Alone(_)
                if !activity.runs =>
            {
                self.make_room(now);
                self.next_action(activity, now)
            }
            QuarantineState::Trial { until, .. } if *until > now => None,
            QuarantineState::Trial { suspects, .. } => {
                self.outlived = std::mem::take(suspects);
                match &self.outlived[..] {
                    // The process stays reserved until the mark is removed.
                    [suspect] => {
                        self.state = QuarantineState::Unmarking { suspect: suspect.clone(), send_at: Some(now) };
                        self.grow_group();
                    }
                    _ => self.end_trial(now),
                }
                self.next_action(activity, now)
            }
            QuarantineState::Unmarking { suspect, send_at } => {
                send_at.take_if(|at| *at <= now).map(|_| suspect.set_alone(false))
            }
            QuarantineState::Alone(_) if self.process.is_wanted() => {
                self.unmark_lone_suspect(now);
                self.next_action(activity, now)
            }
            QuarantineState::Remarking(_) | QuarantineState::Alone(_) => None,
        }
    }

    /// Marks the only attempt if it is a suspect that has outlived its trial.
    fn mark_lone_suspect(&mut self, activity: NodeActivity, now: Instant) -> Option<QuarantineAction> {
        if !activity.runs {
            self.outlived.clear();
        }
        let is_only = |suspect: &&StartedSuspect| activity.only == Some(claim_key(&suspect.held));
        let Some(suspect) = self.outlived.iter().find(is_only).cloned() else {
            self.remark_at = None;
            return None;
        };
        if *self.remark_at.get_or_insert(now + REMARK_DELAY) > now {
            return None;
        }
        if activity.expects_jobs || !self.process.try_reserve_idle() {
            self.remark_at = Some(now + MARK_RETRY);
            return None;
        }
        self.remark_at = None;
        self.state = QuarantineState::Remarking(suspect.clone());
        Some(suspect.set_alone(true))
    }

    /// Begins to remove the mark of a suspect that has outlived its trial, because another job has arrived.
    fn unmark_lone_suspect(&mut self, now: Instant) {
        if let QuarantineState::Alone(suspect) = &self.state {
            self.state = QuarantineState::Unmarking { suspect: suspect.clone(), send_at: Some(now) };
        }
    }

    /// Records the reply to a request, unless it is not the one in flight. Returns the suspect to start.
    pub(super) fn record_alone_reply(&mut self, reply: AloneReply, now: Instant) -> Option<CrashSuspect> {
        // The attempt of a late reply has ended.
        if self.request_in_flight() != Some((reply.claim, reply.alone)) {
            return None;
        }
        let is_held = reply.is_held;
        match std::mem::replace(&mut self.state, QuarantineState::Open) {
            QuarantineState::Marking { suspect, .. } if is_held == Some(true) => {
                let suspects = vec![StartedSuspect::from_waiting(&suspect)];
                self.state = QuarantineState::Trial { until: now + suspect.trial, suspects };
                return Some(suspect);
            }
            QuarantineState::Marking { suspect, .. } if is_held.is_none() => {
                self.state = QuarantineState::Marking { suspect, send_at: Some(now + MARK_RETRY) };
            }
            // A failed request may have been applied.
            QuarantineState::Unmarking { suspect, .. } | QuarantineState::Remarking(suspect) if is_held.is_none() => {
                self.state = QuarantineState::Unmarking { suspect, send_at: Some(now + MARK_RETRY) };
            }
            QuarantineState::Remarking(suspect) if is_held == Some(true) => {
                self.state = QuarantineState::Alone(suspect);
                if !self.waiting.is_empty() {
                    self.unmark_lone_suspect(now);
                }
            }
            QuarantineState::Remarking(suspect) => {
                self.outlived.retain(|other| claim_key(&other.held) != claim_key(&suspect.held));
                self.make_room(now);
            }
            QuarantineState::Unmarking { .. } => self.make_room(now),
            // Another node has the job.
            QuarantineState::Marking { .. } => self.make_room(now),
            other => self.state = other,
        }
        None
    }

    /// Returns the claim and the mark of the request in flight.
    fn request_in_flight(&self) -> Option<(ClaimKey, bool)> {
        match &self.state {
            QuarantineState::Marking { suspect, send_at: None } => Some((claim_key(&suspect.held), true)),
            QuarantineState::Unmarking { suspect, send_at: None } => Some((claim_key(&suspect.held), false)),
            QuarantineState::Remarking(suspect) => Some((claim_key(&suspect.held), true)),
            _ => None,
        }
    }

    /// Returns when the next action is due even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            QuarantineState::Open => self.remark_at,
            QuarantineState::Remarking(_) | QuarantineState::Alone(_) => None,
            QuarantineState::MakingRoom { give_up_at } => *give_up_at,
            QuarantineState::Yielding { until } => Some(*until),
            QuarantineState::Marking { send_at, .. } | QuarantineState::Unmarking { send_at, .. } => *send_at,
            QuarantineState::Trial { until, .. } => Some(*until),
        }
    }

    /// Returns the suspects that are held here and have not started.
    fn held(&self) -> impl Iterator<Item = &CrashSuspect> {
        let marking = if let QuarantineState::Marking { suspect, .. } = &self.state { Some(suspect) } else { None };
        self.waiting.iter().chain(&self.released).chain(marking)
    }

    /// Returns whether no suspect is held here.
    pub(super) fn is_empty(&self) -> bool {
        self.held().next().is_none()
    }

    /// Returns the suspect that runs alone.
    pub(super) fn lone_suspect(&self) -> Option<&Arc<HeldJob>> {
        match &self.state {
            QuarantineState::Trial { suspects, .. } => match &suspects[..] {
                [suspect] => Some(&suspect.held),
                _ => None,
            },
            QuarantineState::Alone(suspect) => Some(&suspect.held),
            _ => None,
        }
    }

    /// Returns how many suspects of a queue are held here.
    pub(super) fn count(&self, queue_index: usize) -> usize {
        self.held().filter(|suspect| suspect.queue_index == queue_index).count()
    }

    pub(super) fn contains(&self, key: ClaimKey) -> bool {
        self.held().any(|suspect| claim_key(&suspect.held) == key)
    }

    /// Releases a suspect that was cancelled. Returns whether it waits here.
    pub(super) fn cancel(&mut self, id: JobId) -> bool {
        let found = self.waiting.iter().position(|suspect| suspect.held.job.id == id);
        let cancelled = found.and_then(|index| self.waiting.remove(index));
        self.released.extend(cancelled);
        found.is_some()
    }

    /// Returns the queue of each waiting suspect, and when the store last listed it as held by this node.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, Instant)> {
        self.waiting.iter().map(|suspect| (suspect.queue_index, suspect.held_since))
    }

    /// Forgets waiting suspects of a queue that the node does not hold any more, by a list that was requested at `sent`.
    pub(super) fn retain(&mut self, queue_index: usize, sent: Instant, is_held: impl Fn(ClaimKey) -> bool) {
        self.waiting.retain(|suspect| suspect.queue_index != queue_index || is_held(claim_key(&suspect.held)));
        for suspect in self.waiting.iter_mut().filter(|suspect| suspect.queue_index == queue_index) {
            suspect.held_since = suspect.held_since.max(sent);
        }
    }

    // Transitions.

    fn open(&mut self) {
        self.state = QuarantineState::Open;
        self.process.release();
    }

    fn make_room(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return self.open();
        }
        self.process.reserve();
        let is_limited = self.give_ups < GIVE_UPS_MAX || self.process.waits_for_others();
        let give_up_at = is_limited.then(|| now + self.room_wait);
        self.state = QuarantineState::MakingRoom { give_up_at };
    }

    fn give_up(&mut self, now: Instant) -> Option<QuarantineAction> {
        let pause = self.room_wait * ROOM_PAUSE_FACTOR;
        self.room_wait = (self.room_wait * 2).min(ROOM_WAIT_MAX);
        self.give_ups += 1;
        self.open();
        if !self.gives_up {
            self.state = QuarantineState::Yielding { until: now + pause };
            return None;
        }
        self.paused_until = Some(now + pause);
        Some(QuarantineAction::Release(self.waiting.drain(..).collect(), pause))
    }

    fn begin_trial(&mut self, now: Instant) -> Option<QuarantineAction> {
        (self.room_wait, self.give_ups) = (ROOM_WAIT_MIN, 0);
        self.outlived.clear();
        let size = self.group.min(self.waiting.len());
        if size == 1
            && let Some(suspect) = self.waiting.pop_front()
        {
            let (queue_index, held) = (suspect.queue_index, suspect.held.clone());
            self.state = QuarantineState::Marking { suspect, send_at: None };
            return Some(QuarantineAction::SetAlone { queue_index, held, alone: true });
        }
        let group: Vec<CrashSuspect> = self.waiting.drain(..size).collect();
        let longest = group.iter().map(|suspect| suspect.trial).max().unwrap_or(TRIAL_MIN);
        let suspects = group.iter().map(StartedSuspect::from_waiting).collect();
        self.state = QuarantineState::Trial { until: now + longest, suspects };
        Some(QuarantineAction::Start(group))
    }

    /// No suspect of the trial has crashed this process.
    fn end_trial(&mut self, now: Instant) {
        self.grow_group();
        self.make_room(now);
    }

    fn grow_group(&mut self) {
        self.group = (self.group * 2).min(GROUP_MAX);
    }
}

#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;
