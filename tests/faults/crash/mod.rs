//! Real processes on one file, killed with SIGKILL at random moments or paused. No acknowledged job is lost, settled
//! twice or started early, and no outcome of a worker that sends heartbeats is rejected.
//!
//! The children are this test binary, started again with a role in the environment.
//! `DULY_CRASH_SECONDS=n` makes the random run longer.

mod checker;
mod child;

use std::time::{Duration, Instant};

use checker::{Fault, History};
use child::{Child, ChildEvent, Role};
use duly::{Duly, JobId, Push, State};

use crate::wait_until_empty;

/// Duration of the random run by default.
const SECONDS: u64 = 12;
/// Maximum number of faults in a failure message.
const FAULTS_SHOWN: usize = 20;
/// Timeout of all waits; every wait of a passing test is far shorter.
const LONG: Duration = Duration::from_secs(60);

/// Not a test: the entry point of a child process.
#[test]
fn child_process() {
    child::run_role();
}

struct File {
    _dir: test_support::TempDir,
    url: String,
}

fn file(options: &str) -> File {
    let dir = test_support::temp_dir();
    let url = format!("{}{options}", dir.path().join("crash.db").display());
    File { _dir: dir, url }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
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
    let mut kills = 0;
    while Instant::now() < deadline {
        // The nemesis has no event to wait for: its moments are random on purpose.
        std::thread::sleep(Duration::from_millis(random.u64(20..250)));
        let index = random.usize(..children.len());
        let killed = std::mem::replace(&mut children[index], Child::start(roles[index], &file.url));
        history.add(killed.kill());
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
    let states = pushed.iter().map(|id| (*id, runtime.block_on(duly.get(*id)).expect("a reply").map(|r| r.state)));
    let faults = history.check(states.collect());
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
fn paused_worker_is_rejected_and_notified() {
    let file = file("?lease=1s");
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let id = runtime.block_on(duly.push(Push::new("sleep", "3000"))).expect("pushes").id();
    let mut paused = Child::start(Role::Worker, &file.url);
    paused.wait(|event| event.starts(id));
    paused.signal(rustix::process::Signal::STOP);
    let mut other = Child::start(Role::Worker, &file.url);
    other.wait(|event| event.starts(id));
    paused.signal(rustix::process::Signal::CONT);
    paused.wait(|event| matches!(event, ChildEvent::Lost(lost) if *lost == id));
    other.wait(|event| matches!(event, ChildEvent::Acked(acked, _) if *acked == id));

    let record = runtime.block_on(duly.get(id)).expect("a reply").expect("is kept");
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
    let state = || runtime.block_on(duly.get(poison)).expect("a reply").expect("is kept");
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
    let state = |id: &JobId| runtime.block_on(duly.get(*id)).expect("a reply").expect("is kept").state;
    let deadline = Instant::now() + LONG;
    while !ids.iter().all(|id| state(id).is_final()) {
        let mut worker = Child::start(Role::Worker, &file.url);
        worker.wait_for_end_or(|| ids.iter().all(|id| state(id).is_final()));
        assert!(Instant::now() < deadline, "{:?}", ids.iter().map(state).collect::<Vec<_>>());
    }
    assert_eq!(state(&ids[0]), State::Dead);
    assert!(ids[1..].iter().all(|id| state(id) == State::Done), "{:?}", ids.iter().map(state).collect::<Vec<_>>());
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
    assert_eq!(check([whole(), vec![ChildEvent::Acked(id, 1)]].concat(), Some(State::Done)), [Fault::SettledTwice(id)]);
    assert_eq!(check([whole(), vec![start(2, 5)]].concat(), Some(State::Done)), [Fault::StartedAfterAck(id)]);
    assert_eq!(check(vec![ChildEvent::Pushed(id), start(1, -1)], Some(State::Done)), [Fault::Early(id)]);
    assert_eq!(check([whole(), vec![ChildEvent::Lost(id)]].concat(), Some(State::Done)), [Fault::OutcomeRejected(id)]);
    assert_eq!(
        check(vec![start(1, 0), start(1, 0)], Some(State::Done)),
        [Fault::FenceTwice(id)],
        "two claims never share a fence"
    );
}
