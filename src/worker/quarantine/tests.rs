//! The state machine of the quarantine.

use super::*;
use crate::clock;
use crate::job::tests::held_job;
use crate::worker::process::WorkerProcess;

const RUNS: NodeActivity =
    NodeActivity { runs: true, only: None, expects_jobs: false, may_have_lost: false, accepts_jobs: true };
const IDLE: NodeActivity = NodeActivity { runs: false, ..RUNS };
const SECOND: Duration = Duration::from_secs(1);

fn job(name: &str, crashes: u32) -> HeldJob {
    let mut held = held_job(name);
    (held.job.id, held.crashes) = (JobId::from_name(name), crashes);
    held
}

/// The quarantine of the only worker of its process.
fn lone_worker(max_crashes: u32, gives_up: bool) -> Quarantine {
    Quarantine::new(max_crashes, gives_up, WorkerProcess::default().join())
}

/// The quarantines of two workers of one process.
fn two_workers() -> (Quarantine, Quarantine) {
    let process = WorkerProcess::default();
    (Quarantine::new(3, true, process.join()), Quarantine::new(3, true, process.join()))
}

/// Admits a job that has been due for two minutes. Returns whether it may start.
fn admit(quarantine: &mut Quarantine, name: &str, crashes: u32, now: Instant) -> Admission {
    let held = job(name, crashes);
    let store_now = held.due + 120 * SECOND;
    quarantine.admit(0, held, store_now, now)
}

fn kinds(action: Option<QuarantineAction>) -> (&'static str, Vec<String>) {
    let names = |group: &[CrashSuspect]| group.iter().map(|suspect| suspect.held.job.kind.clone()).collect();
    match action {
        None => ("wait", Vec::new()),
        Some(QuarantineAction::Start(group)) => ("start", names(&group)),
        Some(QuarantineAction::Release(group, _)) => ("release", names(&group)),
        Some(QuarantineAction::SetAlone { held, alone: true, .. }) => ("mark", vec![held.job.kind.clone()]),
        Some(QuarantineAction::SetAlone { held, .. }) => ("unmark", vec![held.job.kind.clone()]),
    }
}

/// Replies to the request of this job.
fn reply(
    quarantine: &mut Quarantine,
    name: &str,
    alone: bool,
    is_held: Option<bool>,
    now: Instant,
) -> Option<CrashSuspect> {
    let reply = AloneReply { claim: claim_key(&job(name, 2)), alone, is_held };
    quarantine.record_alone_reply(reply, now)
}

fn of<'s>(step: &'s str, names: &[&str]) -> (&'s str, Vec<String>) {
    (step, names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn suspect_waits_until_the_node_is_empty_and_is_marked_before_it_starts() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    assert!(matches!(admit(&mut quarantine, "fresh", 1, now), Admission::Start(_)));
    assert!(matches!(admit(&mut quarantine, "suspect", 2, now), Admission::Waits));
    assert_eq!((quarantine.claim_limit(), quarantine.count(0), quarantine.count(1)), (0, 1, 0));
    assert!(matches!(admit(&mut quarantine, "next", 0, now), Admission::Release(_, Duration::ZERO)));
    assert_eq!(kinds(quarantine.next_action(RUNS, now)), of("wait", &[]));
    let arriving = NodeActivity { expects_jobs: true, ..IDLE };
    assert_eq!(kinds(quarantine.next_action(arriving, now)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["suspect"]));
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("wait", &[]), "the request is in flight");
    assert!(reply(&mut quarantine, "suspect", true, None, now).is_none(), "the store did not reply");
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(IDLE, now + MARK_RETRY)), of("mark", &["suspect"]));
    let started = reply(&mut quarantine, "suspect", true, Some(true), now).expect("starts");
    assert_eq!((&*started.held.job.kind, quarantine.is_empty(), quarantine.claim_limit()), ("suspect", true, 0));
    assert_eq!(kinds(quarantine.next_action(RUNS, now)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("wait", &[]), "it has ended");
    assert!(quarantine.is_open());
}

#[test]
fn others_start_beside_a_long_suspect_only_after_its_mark_is_removed() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    admit(&mut quarantine, "suspect", 2, now);
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["suspect"]));
    reply(&mut quarantine, "suspect", true, Some(true), now).expect("starts");
    let over = now + 60 * SECOND;
    assert_eq!(quarantine.deadline(), Some(over), "half as long as the job has been due");
    assert_eq!(kinds(quarantine.next_action(RUNS, over)), of("unmark", &["suspect"]));
    assert_eq!(quarantine.claim_limit(), 0);
    reply(&mut quarantine, "suspect", false, None, over);
    assert_eq!(kinds(quarantine.next_action(RUNS, over)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(RUNS, over + MARK_RETRY)), of("unmark", &["suspect"]));
    reply(&mut quarantine, "suspect", false, Some(true), over);
    assert!(quarantine.is_open());
}

#[test]
fn late_reply_of_an_ended_attempt_does_not_touch_the_next_suspect() {
    let now = clock::monotonic_now();
    for is_held in [Some(true), Some(false), None] {
        let mut quarantine = lone_worker(3, true);
        admit(&mut quarantine, "ended", 2, now);
        assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["ended"]));
        reply(&mut quarantine, "ended", true, Some(true), now).expect("starts");
        let over = now + 60 * SECOND;
        assert_eq!(kinds(quarantine.next_action(RUNS, over)), of("unmark", &["ended"]));
        quarantine.waiting.push_back(CrashSuspect {
            queue_index: 0,
            held: job("next", 2).into(),
            held_since: now,
            trial: SECOND,
        });
        assert_eq!(kinds(quarantine.next_action(IDLE, over)), of("mark", &["next"]), "the attempt has ended");
        assert!(reply(&mut quarantine, "ended", false, is_held, over).is_none(), "it is not marked yet");
        assert!(quarantine.contains(claim_key(&job("next", 2))), "it is not dropped");
        let next = reply(&mut quarantine, "next", true, Some(true), over).expect("starts");
        assert_eq!(next.held.job.kind, "next");
    }
}

#[test]
fn groups_of_suspects_grow_until_another_job_starts() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    for name in ["a", "b", "c", "d"] {
        admit(&mut quarantine, name, 2, now);
    }
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["a"]));
    reply(&mut quarantine, "a", true, Some(true), now).expect("starts");
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("start", &["b", "c"]));
    assert_eq!(kinds(quarantine.next_action(RUNS, now)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["d"]));
    reply(&mut quarantine, "d", true, Some(true), now).expect("starts");
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("wait", &[]));
    assert_eq!(quarantine.claim_limit(), 8, "the next jobs may be suspects too");
    assert!(matches!(admit(&mut quarantine, "fresh", 0, now), Admission::Start(_)));
    assert_eq!(quarantine.claim_limit(), usize::MAX);
}

#[test]
fn suspects_are_released_for_a_while_if_the_node_does_not_become_empty() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    admit(&mut quarantine, "suspect", 2, now);
    let late = now + ROOM_WAIT_MIN;
    assert_eq!(quarantine.deadline(), Some(late));
    let Some(QuarantineAction::Release(released, pause)) = quarantine.next_action(RUNS, late) else {
        panic!("not released");
    };
    assert_eq!((released.len(), pause), (1, 2 * ROOM_WAIT_MIN));
    assert!(quarantine.is_open());
    assert!(
        matches!(admit(&mut quarantine, "suspect", 2, late + SECOND), Admission::Release(_, after) if after < pause)
    );
    let again = late + pause + SECOND;
    assert!(matches!(admit(&mut quarantine, "suspect", 2, again), Admission::Waits));
    assert_eq!(quarantine.deadline(), Some(again + 2 * ROOM_WAIT_MIN), "others get more time to end");
}

#[test]
fn draining_worker_keeps_its_suspects_while_others_run() {
    let (process, now) = (WorkerProcess::default(), clock::monotonic_now());
    let (mut draining, mut other) =
        (Quarantine::new(3, false, process.join()), Quarantine::new(3, true, process.join()));
    assert!(matches!(admit(&mut other, "long", 0, now), Admission::Start(_)));
    assert!(matches!(admit(&mut draining, "suspect", 2, now), Admission::Waits));
    let late = now + ROOM_WAIT_MIN;
    assert_eq!((kinds(draining.next_action(IDLE, now)), draining.deadline()), (of("wait", &[]), Some(late)));
    assert!(matches!(admit(&mut other, "child", 0, now), Admission::Release(..)));
    assert_eq!(kinds(draining.next_action(IDLE, late)), of("wait", &[]));
    assert!(matches!(admit(&mut other, "child", 0, now), Admission::Start(_)), "the long job may wait for it");
    let again = late + 2 * ROOM_WAIT_MIN;
    assert_eq!((draining.deadline(), draining.count(0), draining.claim_limit()), (Some(again), 1, 0));
    other.record_idle();
    assert_eq!(kinds(draining.next_action(IDLE, again)), of("mark", &["suspect"]));
}

/// A suspect that runs for longer than its trial, which has just ended.
fn outlive_trial(quarantine: &mut Quarantine, now: Instant) -> (Instant, NodeActivity) {
    admit(quarantine, "late", 2, now);
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["late"]));
    reply(quarantine, "late", true, Some(true), now).expect("starts");
    let over = now + 60 * SECOND;
    assert_eq!(kinds(quarantine.next_action(RUNS, over)), of("unmark", &["late"]));
    reply(quarantine, "late", false, Some(true), over);
    assert!(quarantine.is_open() && !quarantine.is_at_rest());
    (over, NodeActivity { only: Some(claim_key(&job("late", 2))), ..RUNS })
}

#[test]
fn suspect_that_outlives_its_trial_is_marked_again_while_it_runs_alone() {
    let mut quarantine = lone_worker(3, true);
    let (over, alone) = outlive_trial(&mut quarantine, clock::monotonic_now());
    assert_eq!(kinds(quarantine.next_action(RUNS, over)), of("wait", &[]), "other jobs run");
    assert_eq!(quarantine.deadline(), None);
    assert_eq!(kinds(quarantine.next_action(alone, over)), of("wait", &[]), "the next job may arrive soon");
    let later = over + REMARK_DELAY;
    assert_eq!(quarantine.deadline(), Some(later));
    let claiming = NodeActivity { expects_jobs: true, ..alone };
    assert_eq!(kinds(quarantine.next_action(claiming, later)), of("wait", &[]));
    let later = later + MARK_RETRY;
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("mark", &["late"]));
    assert!(matches!(admit(&mut quarantine, "early", 0, later), Admission::Release(_, Duration::ZERO)));
    assert!(reply(&mut quarantine, "late", true, Some(true), later).is_none(), "it runs already");
    assert_eq!((kinds(quarantine.next_action(alone, later)), quarantine.claim_limit()), (of("wait", &[]), 1));
    assert!(matches!(admit(&mut quarantine, "other", 0, later), Admission::Release(_, Duration::ZERO)));
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("unmark", &["late"]));
    reply(&mut quarantine, "late", false, Some(true), later);
    assert!(matches!(admit(&mut quarantine, "other", 0, later), Admission::Start(_)));
    assert_eq!(kinds(quarantine.next_action(IDLE, later)), of("wait", &[]));
    assert!(quarantine.is_at_rest(), "all have ended");
}

#[test]
fn mark_that_may_be_set_is_removed_before_others_start() {
    let mut quarantine = lone_worker(3, true);
    let (over, alone) = outlive_trial(&mut quarantine, clock::monotonic_now());
    quarantine.next_action(alone, over);
    let later = over + REMARK_DELAY;
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("mark", &["late"]));
    reply(&mut quarantine, "late", true, None, later);
    assert_eq!(quarantine.claim_limit(), 0);
    assert_eq!(kinds(quarantine.next_action(alone, later + MARK_RETRY)), of("unmark", &["late"]));
    reply(&mut quarantine, "late", false, Some(true), later);
    assert!(quarantine.is_open());
}

#[test]
fn next_suspect_waits_for_a_marked_one_without_its_mark() {
    let mut quarantine = lone_worker(3, true);
    let (over, alone) = outlive_trial(&mut quarantine, clock::monotonic_now());
    quarantine.next_action(alone, over);
    let later = over + REMARK_DELAY;
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("mark", &["late"]));
    reply(&mut quarantine, "late", true, Some(true), later);
    assert!(matches!(admit(&mut quarantine, "next", 2, later), Admission::Waits));
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("unmark", &["late"]));
    reply(&mut quarantine, "late", false, Some(true), later);
    assert_eq!(kinds(quarantine.next_action(alone, later)), of("wait", &[]));
    assert_eq!(kinds(quarantine.next_action(IDLE, later)), of("mark", &["next"]));
}

/// Two jobs of half an hour overlap, so the node never becomes empty by itself.
#[test]
fn suspect_waits_without_limit_after_several_give_ups() {
    let (mut quarantine, mut now) = (lone_worker(3, true), clock::monotonic_now());
    for give_up in 0..GIVE_UPS_MAX {
        assert!(matches!(admit(&mut quarantine, "suspect", 2, now), Admission::Waits));
        now = quarantine.deadline().unwrap_or_else(|| panic!("no limit after {give_up} give-ups"));
        assert_eq!(kinds(quarantine.next_action(RUNS, now)), of("release", &["suspect"]));
        now = quarantine.paused_until.expect("a pause") + SECOND;
    }
    admit(&mut quarantine, "suspect", 2, now);
    assert_eq!(quarantine.deadline(), None);
    now += 10 * ROOM_WAIT_MAX;
    assert_eq!((kinds(quarantine.next_action(RUNS, now)), quarantine.claim_limit()), (of("wait", &[]), 0));
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["suspect"]));
    reply(&mut quarantine, "suspect", true, Some(true), now).expect("starts");
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("wait", &[]), "it has ended");
    admit(&mut quarantine, "another", 2, now);
    assert_eq!(quarantine.deadline(), Some(now + ROOM_WAIT_MIN), "the count restarts");
}

#[test]
fn cancelled_lost_and_unwanted_suspects_leave() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    for name in ["a", "b", "c"] {
        admit(&mut quarantine, name, 2, now);
    }
    assert!(quarantine.cancel(JobId::from_name("b")) && !quarantine.cancel(JobId::from_name("x")));
    assert_eq!(kinds(quarantine.next_action(RUNS, now)), of("release", &["b"]));
    quarantine.retain(0, now, |(id, _)| id == JobId::from_name("c"));
    let stopping = NodeActivity { accepts_jobs: false, ..RUNS };
    assert_eq!(kinds(quarantine.next_action(stopping, now)), of("release", &["c"]));
    assert_eq!(kinds(quarantine.next_action(stopping, now)), of("wait", &[]));
    assert!(quarantine.is_open() && quarantine.is_empty());
}

#[test]
fn job_beyond_the_limit_is_no_suspect() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    assert!(matches!(admit(&mut quarantine, "poison", 4, now), Admission::Start(_)), "it is buried at once");
    let mut strict = lone_worker(1, true);
    assert!(matches!(admit(&mut strict, "any", 2, now), Admission::Start(_)));
}

#[test]
fn suspect_is_alone_only_if_no_other_worker_of_the_process_runs_a_job() {
    let ((mut one, mut two), now) = (two_workers(), clock::monotonic_now());
    assert!(matches!(admit(&mut two, "healthy", 0, now), Admission::Start(_)));
    assert!(matches!(admit(&mut one, "poison", 2, now), Admission::Waits));
    assert_eq!(kinds(one.next_action(IDLE, now)), of("wait", &[]), "a job runs in the other worker");
    assert_eq!((one.claim_limit(), two.claim_limit()), (0, 0));
    assert!(matches!(admit(&mut two, "next", 0, now), Admission::Release(_, Duration::ZERO)));
    two.record_idle();
    assert_eq!(kinds(one.next_action(IDLE, now)), of("mark", &["poison"]));
    reply(&mut one, "poison", true, Some(true), now).expect("starts");
    assert!(matches!(admit(&mut two, "suspect", 2, now), Admission::Waits));
    assert_eq!(kinds(two.next_action(IDLE, now)), of("wait", &[]), "the other suspect is alone");
    assert_eq!(kinds(one.next_action(IDLE, now)), of("wait", &[]), "it has ended");
    assert_eq!(kinds(two.next_action(IDLE, now)), of("mark", &["suspect"]));
    assert!(matches!(admit(&mut one, "next", 0, now), Admission::Release(_, Duration::ZERO)));
    drop(two);
    assert!(matches!(admit(&mut one, "next", 0, now), Admission::Start(_)));
}

#[test]
fn job_of_another_worker_starts_only_after_a_mark_that_was_set_again_is_removed() {
    let ((mut one, mut two), now) = (two_workers(), clock::monotonic_now());
    let (over, alone) = outlive_trial(&mut one, now);
    assert!(matches!(admit(&mut two, "short", 0, over), Admission::Start(_)), "the trial is over");
    assert_eq!(kinds(one.next_action(alone, over)), of("wait", &[]));
    let later = over + REMARK_DELAY;
    assert_eq!(kinds(one.next_action(alone, later)), of("wait", &[]), "the other worker runs a job");
    two.record_idle();
    let later = later + MARK_RETRY;
    assert_eq!(kinds(one.next_action(alone, later)), of("mark", &["late"]));
    reply(&mut one, "late", true, Some(true), later);
    assert_eq!((kinds(one.next_action(alone, later)), two.claim_limit()), (of("wait", &[]), 1));
    assert!(matches!(admit(&mut two, "next", 0, later), Admission::Release(_, Duration::ZERO)));
    assert_eq!(two.claim_limit(), 0);
    assert_eq!(kinds(one.next_action(alone, later)), of("unmark", &["late"]));
    assert!(matches!(admit(&mut two, "next", 0, later), Admission::Release(_, Duration::ZERO)), "not yet removed");
    reply(&mut one, "late", false, Some(true), later);
    assert!(matches!(admit(&mut two, "next", 0, later), Admission::Start(_)));
}

#[test]
fn suspects_that_may_be_lost_wait_for_a_list_of_held_jobs() {
    let (mut quarantine, now) = (lone_worker(3, true), clock::monotonic_now());
    for name in ["a", "b"] {
        admit(&mut quarantine, name, 2, now);
    }
    let uncertain = NodeActivity { may_have_lost: true, ..IDLE };
    assert_eq!(kinds(quarantine.next_action(uncertain, now)), of("wait", &[]));
    quarantine.retain(0, now + SECOND, |(id, _)| id == JobId::from_name("b"));
    assert_eq!(quarantine.waiting().collect::<Vec<_>>(), [(0, now + SECOND)]);
    assert_eq!(kinds(quarantine.next_action(IDLE, now)), of("mark", &["b"]));
}
