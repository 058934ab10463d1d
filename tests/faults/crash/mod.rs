//! Real processes on one file, killed with SIGKILL at random moments or paused. No acknowledged job is lost, settled
//! twice or started early, no healthy job is buried, and no outcome of a worker that sends heartbeats is rejected.
//!
//! The children are this test binary, started again with a role in the environment.
//! `DULY_CRASH_SECONDS=n` makes the random run longer.

mod checker;
pub mod child;
mod file_attacks;
mod lock_holder;
mod storm;
mod transactions;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use checker::{Fault, History, lone_job, was_alone_at_the_end};
use child::{Child, ChildEvent, Role};
use duly::admin::CancelResult;
use duly::{Duly, JobId, Push, State};

use crate::{runtime, wait_until_empty};

/// Duration of the random run by default.
const SECONDS: u64 = 12;
/// Maximum number of faults in a failure message.
const FAULTS_SHOWN: usize = 20;
/// Timeout of all waits; every wait of a passing test is far shorter.
const LONG: Duration = Duration::from_secs(60);

struct File {
    _dir: test_support::TempDir,
    url: String,
}

fn file(options: &str) -> File {
    let dir = test_support::temp_dir();
    let url = format!("{}{options}", dir.path().join("crash.db").display());
    File { _dir: dir, url }
}

#[test]
fn random_kills_lose_nothing() {
    let file = file("");
    let seconds = test_support::env_number("DULY_CRASH_SECONDS").unwrap_or(SECONDS);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    let roles = [Role::Worker, Role::Worker, Role::Worker, Role::Pusher, Role::Pusher];
    let mut children: Vec<Child> = roles.map(|role| Child::start(role, &file.url)).into();
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let (mut kills, mut killed_alone) = (0, BTreeSet::new());
    while Instant::now() < deadline {
        // The nemesis has no event to wait for: its moments are random on purpose.
        std::thread::sleep(Duration::from_millis(random.u64(20..250)));
        let index = random.usize(..children.len());
        let killed = std::mem::replace(&mut children[index], Child::start(roles[index], &file.url));
        let events = killed.kill();
        killed_alone.extend(lone_job(&events));
        history.add(events);
        kills += 1;
    }
    for pusher in children.drain(3..) {
        history.add(pusher.kill());
    }
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    runtime.block_on(wait_until_empty(&duly));
    for worker in children {
        history.add(worker.kill());
    }
    let pushed = history.pushed();
    let states =
        pushed.iter().map(|id| (*id, runtime.block_on(duly.jobs().get(*id)).expect("a reply").map(|r| r.state)));
    let mut faults = history.check(states.collect());
    // A healthy job that was alone in processes that were killed looks like one that kills them.
    faults.retain(|fault| !matches!(fault, Fault::Buried(id) if killed_alone.contains(id)));
    println!("seed {seed}: {kills} kills, {} pushes acknowledged, {} attempts", pushed.len(), history.attempts());
    assert!(pushed.len() > 100, "the run did something: {} pushes", pushed.len());
    assert!(
        faults.is_empty(),
        "seed {seed}: {} faults, first {:?}",
        faults.len(),
        &faults[..faults.len().min(FAULTS_SHOWN)]
    );
}

#[test]
fn jobs_of_a_killed_worker_are_taken_over_at_once() {
    let file = file("");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let mut workers = vec![Child::start(Role::Worker, &file.url), Child::start(Role::Worker, &file.url)];
    for worker in &mut workers {
        worker.wait(|event| matches!(event, ChildEvent::Joined));
    }
    let mut times = Vec::new();
    for _ in 0..8 {
        let id = runtime.block_on(duly.push(Push::new("sleep", "600"))).expect("pushes").id();
        let holder = loop {
            if let Some(index) = workers.iter_mut().position(|worker| worker.has_reported(|event| event.starts(id))) {
                break index;
            }
        };
        let killed = std::mem::replace(&mut workers[holder], Child::start(Role::Worker, &file.url));
        let killed_at = Instant::now();
        killed.kill();
        while !workers.iter_mut().any(|worker| worker.has_reported(|event| event.starts(id))) {
            assert!(killed_at.elapsed() < LONG, "no worker took the job over");
        }
        times.push(killed_at.elapsed());
        runtime.block_on(wait_until_empty(&duly));
    }
    times.sort();
    println!("from kill -9 to the next start: median {:?}, worst {:?}", times[times.len() / 2], times[times.len() - 1]);
    assert!(times[times.len() - 1] < Duration::from_secs(10), "{times:?}");
}

#[test]
fn cancelled_job_is_not_run_again_after_its_worker_is_killed() {
    let file = file("");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let mut worker = Child::start(Role::Worker, &file.url);
    let id = runtime.block_on(duly.push(Push::new("sleep", "600000"))).expect("pushes").id();
    worker.wait(|event| event.starts(id));
    // The worker is stopped, so that it cannot end the attempt before it is killed.
    worker.pause();
    let result = runtime.block_on(duly.jobs().cancel(id)).expect("cancels");
    assert!(matches!(result, CancelResult::Cancelling { .. }), "{result:?}");
    worker.kill();
    let mut other = Child::start(Role::Worker, &file.url);
    let next = runtime.block_on(duly.push(Push::new("sleep", "1"))).expect("pushes").id();
    other.wait(|event| matches!(event, ChildEvent::Acked(acked, _) if *acked == next));
    let waits = async { tokio::time::timeout(LONG, duly.jobs().wait(id)).await };
    let record = runtime.block_on(waits).expect("in time").expect("a reply").expect("is kept");
    assert_eq!((record.state, record.crashes), (State::Cancelled, 1));
    runtime.block_on(wait_until_empty(&duly));
    assert!(!other.has_reported(|event| event.starts(id)), "it was run again");
}

#[test]
fn paused_worker_is_rejected_and_notified() {
    let file = file("?lease=1s");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let id = runtime.block_on(duly.push(Push::new("sleep", "3000"))).expect("pushes").id();
    let mut paused = Child::start(Role::Worker, &file.url);
    paused.wait(|event| event.starts(id));
    paused.pause();
    let mut other = Child::start(Role::Worker, &file.url);
    other.wait(|event| event.starts(id));
    paused.resume();
    paused.wait(|event| matches!(event, ChildEvent::Lost(lost) if *lost == id));
    other.wait(|event| matches!(event, ChildEvent::Acked(acked, _) if *acked == id));

    let record = runtime.block_on(duly.jobs().get(id)).expect("a reply").expect("is kept");
    assert_eq!((record.state, record.crashes), (State::Done, 1));
}

#[test]
fn job_that_aborts_its_process_is_buried() {
    let file = file("");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let poison = runtime.block_on(duly.push(Push::new("abort", "null"))).expect("pushes").id();
    let mut starts = 0;
    let deadline = Instant::now() + LONG;
    let state = || runtime.block_on(duly.jobs().get(poison)).expect("a reply").expect("is kept");
    while state().state != State::Dead {
        let mut worker = Child::start(Role::Worker, &file.url);
        let events = worker.wait_for_end_or(|| state().state == State::Dead);
        starts += events.iter().filter(|event| event.starts(poison)).count();
        assert!(Instant::now() < deadline, "it is not buried");
    }
    let record = state();
    assert_eq!(starts, 4, "once, and three more times after crashes");
    assert_eq!((record.crashes, record.attempts), (4, 1), "{record:?}");
    assert!(record.failures.last().expect("a reason").error.contains("its process died 4 times"), "{record:?}");
}

#[test]
fn aborting_job_does_not_bury_its_neighbours() {
    let file = file("");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let jobs = (0..8).map(|n| if n == 0 { Push::new("abort", "50") } else { Push::new("sleep", "150") });
    let ids: Vec<JobId> = runtime.block_on(duly.push_all(jobs)).expect("pushes").iter().map(|p| p.id()).collect();
    let (ends, _) = work_until_final(Role::Worker, &runtime, &duly, &file.url, &ids);
    assert_eq!(ends[0], (State::Dead, 4));
    assert!(ends[1..].iter().all(|(state, _)| *state == State::Done), "{ends:?}");
}

/// Runs one process with this role after the other until these jobs have ended. Returns how each ended, with its
/// crashes, and the number of processes.
fn work_until_final(
    role: Role,
    runtime: &tokio::runtime::Runtime,
    duly: &Duly,
    url: &str,
    ids: &[JobId],
) -> (Vec<(State, u32)>, usize) {
    let end = |id: &JobId| {
        let record = runtime.block_on(duly.jobs().get(*id)).expect("a reply").expect("is kept");
        (record.state, record.crashes)
    };
    let ended = || ids.iter().all(|id| end(id).0.is_final());
    let (deadline, mut workers) = (Instant::now() + LONG, 0);
    while !ended() {
        let mut worker = Child::start(role, url);
        workers += 1;
        worker.wait_for_end_or(ended);
        assert!(Instant::now() < deadline, "{:?}", ids.iter().map(end).collect::<Vec<_>>());
    }
    (ids.iter().map(end).collect(), workers)
}

/// A job that runs longer than the time between two crashes, in another queue than the jobs that crash its process.
fn check_long_neighbour(role: Role, url: &str, poisons: usize) {
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(url)).expect("opens");
    let poison = |_| Push::new("abort", "200").keep(LONG);
    let neighbour = Push::new("sleep", "1500").queue("other").keep(LONG);
    let jobs = std::iter::once(neighbour).chain((0..poisons).map(poison));
    let ids: Vec<JobId> = runtime.block_on(duly.push_all(jobs)).expect("pushes").iter().map(|p| p.id()).collect();
    let (ends, workers) = work_until_final(role, &runtime, &duly, url, &ids);
    assert_eq!(ends[0], (State::Done, 2), "only crashes before it was suspected count: {ends:?}");
    assert!(ends[1..].iter().all(|end| *end == (State::Dead, 4)), "{ends:?}");
    assert!(workers <= 3 + 2 * poisons, "{workers} workers: each trial should find its job");
}

#[test]
fn jobs_that_abort_never_bury_a_long_neighbour() {
    check_long_neighbour(Role::Worker, &file("").url, 3);
}

#[test]
fn jobs_that_abort_never_bury_a_long_job_of_another_worker_in_the_process() {
    check_long_neighbour(Role::TwoWorkers, &file("").url, 1);
}

#[cfg(feature = "redis")]
#[test]
fn jobs_that_abort_never_bury_a_long_neighbour_on_redis() {
    use test_support::servers::{Binary, Options};
    let server = Options::durable(Binary::Redis).start();
    check_long_neighbour(Role::Worker, &format!("{}?lease=1s", server.url()), 1);
}

/// Bystanders are cleared in growing groups, not one by one.
#[test]
fn many_bystanders_are_cleared_quickly() {
    let file = file("");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let jobs = (0..40).map(|_| Push::new("sleep", "1000").queue("many").keep(LONG));
    let ids: Vec<JobId> = runtime.block_on(duly.push_all(jobs)).expect("pushes").iter().map(|p| p.id()).collect();
    for _ in 0..2 {
        let mut worker = Child::start(Role::Worker, &file.url);
        for id in &ids {
            worker.wait(|event| event.starts(*id));
        }
        worker.kill();
    }
    let started = Instant::now();
    let (ends, workers) = work_until_final(Role::Worker, &runtime, &duly, &file.url, &ids);
    println!("40 suspects of a second each took {:?}", started.elapsed());
    assert!(ends.iter().all(|end| *end == (State::Done, 2)), "{ends:?}");
    assert_eq!(workers, 1);
    assert!(started.elapsed() < Duration::from_secs(30), "one by one they take 40 s");
}

/// Control of the checker: it reports each kind of fault.
#[test]
fn checker_finds_every_fault() {
    let id = JobId::from_name("one");
    let start = |fence, late| ChildEvent::Started { id, fence, late };
    let whole = || vec![ChildEvent::Pushed(id), start(1, 5), ChildEvent::Acked(id, 1)];
    let check = |events: Vec<ChildEvent>, state| {
        let mut history = History::default();
        history.add(events);
        history.check([(id, state)].into())
    };
    assert_eq!(check(whole(), Some(State::Done)), []);
    assert_eq!(check(whole(), None), [Fault::Lost(id)]);
    assert_eq!(check(whole(), Some(State::Ready)), [Fault::Unfinished(id)]);
    assert_eq!(check(whole(), Some(State::Dead)), [Fault::Buried(id)]);
    let poison = || vec![ChildEvent::Poison(id), start(1, 5)];
    assert_eq!(check(poison(), Some(State::Dead)), [], "it is meant to be buried");
    assert_eq!(check(poison(), Some(State::Ready)), [Fault::Unfinished(id)]);
    assert_eq!(check(poison(), None), [Fault::Lost(id)]);
    let recovery = |took| {
        let mut history = History::default();
        history.add_recovery(id, took, LONG);
        history.check([(id, Some(State::Done))].into())
    };
    assert_eq!(recovery(LONG), []);
    assert_eq!(recovery(LONG + Duration::from_nanos(1)), [Fault::RecoveredLate(id)]);
    assert_eq!(check([whole(), vec![ChildEvent::Acked(id, 1)]].concat(), Some(State::Done)), [Fault::SettledTwice(id)]);
    assert_eq!(check([whole(), vec![start(2, 5)]].concat(), Some(State::Done)), [Fault::StartedAfterAck(id)]);
    assert_eq!(check(vec![ChildEvent::Pushed(id), start(1, -1)], Some(State::Done)), [Fault::Early(id)]);
    assert_eq!(check([whole(), vec![ChildEvent::Lost(id)]].concat(), Some(State::Done)), [Fault::OutcomeRejected(id)]);
    let other = || ChildEvent::Started { id: JobId::from_name("other"), fence: 1, late: 0 };
    assert!(was_alone_at_the_end(&[start(1, 5)], id));
    assert!(was_alone_at_the_end(&[start(1, 5), ChildEvent::Lost(id), other()], id), "it was paused");
    assert!(!was_alone_at_the_end(&[other(), start(1, 5)], id) && !was_alone_at_the_end(&[start(1, 5), other()], id));
    assert!(!was_alone_at_the_end(&whole(), id) && !was_alone_at_the_end(&[], id));
    assert_eq!((lone_job(&[start(1, 5)]), lone_job(&[start(1, 5), other()])), (Some(id), None));
    assert_eq!(
        check(vec![start(1, 0), start(1, 0)], Some(State::Done)),
        [Fault::FenceTwice(id)],
        "two claims never share a fence"
    );
}
