//! Several real processes with many rules that fire each second, killed with SIGKILL at random moments. Every tick has
//! exactly one job.
//!
//! The children are this test binary, started again with a store in the environment. `DULY_CRON_SECONDS=n` sets the
//! duration, `DULY_CRON_RULES=n` the number of rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duly::cron::{CronRecord, CronRule, Missed};
use duly::worker::Event;
use duly::{Ctx, Duly, Filter, JobId, Outcome, Push};
#[cfg(feature = "redis")]
use test_support::servers;
use test_support::{KillOnDrop, env_number};

use crate::{runtime, wait_until_empty};

const STORE: &str = "DULY_CRON_STORE";
/// Duration of the run and number of rules by default.
const SECONDS: u64 = 6;
const RULES: u64 = 500;
const PROCESSES: usize = 3;

/// Runs a child process; returns at once in any other process.
pub fn run_role() {
    if let Ok(store) = std::env::var(STORE) {
        runtime().block_on(work(&store));
    }
}

/// Works until it is killed, and reports each completed job.
async fn work(store: &str) {
    let duly = Duly::open(store).await.expect("opens");
    let worker = duly.worker().queue("default", 50).keep_done_max(usize::MAX).on_kind("tick", |_: Ctx| async {});
    let worker = worker.on_event(|event| {
        if let Event::Settled { held, outcome: Outcome::Ack, .. } = event {
            test_support::report(held.job.id);
        }
    });
    worker.run().await.expect("works");
}

/// How often each job was reported as done by any process.
type AckCounts = Arc<Mutex<BTreeMap<JobId, usize>>>;

fn start(store: &str, acked: &AckCounts) -> KillOnDrop {
    let acked = acked.clone();
    test_support::start_reporting(crate::child_command().env(STORE, store), move |id| {
        let id = id.parse().expect("the id of a job");
        *acked.lock().expect("no panic").entry(id).or_default() += 1;
    })
}

/// Runs rules that fire each second while processes are killed at random. Returns the rules as created and as at the
/// end.
fn run(url: &str, keep: Duration) -> (Duly, Vec<(CronRecord, CronRecord)>, AckCounts) {
    let (runtime, acked) = (runtime(), AckCounts::default());
    let (seconds, rules) =
        (env_number("DULY_CRON_SECONDS").unwrap_or(SECONDS), env_number("DULY_CRON_RULES").unwrap_or(RULES));
    let duly = runtime.block_on(Duly::open(url)).expect("opens");
    let job = |_| Push::new("tick", "null").keep(keep);
    let rule =
        |n: u64| CronRule::new(format!("r{n}"), "* * * * * *", job(n)).expect("a rule").missed(Missed::All(1_000));
    let put = async |n| duly.crons().put(rule(n)).await.expect("puts");
    let created: Vec<CronRecord> =
        runtime.block_on(async { futures_util::future::join_all((0..rules).map(put)).await });
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut children: Vec<KillOnDrop> = (0..PROCESSES).map(|_| start(url, &acked)).collect();
    let (deadline, mut kills) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < deadline {
        // The kills wait for no event: their times are random on purpose.
        std::thread::sleep(Duration::from_millis(random.u64(50..500)));
        let index = random.usize(..children.len());
        drop(std::mem::replace(&mut children[index], start(url, &acked)));
        kills += 1;
    }
    let end = runtime.block_on(async {
        futures_util::future::join_all(created.iter().map(|record| duly.crons().pause(&record.rule.name))).await
    });
    let end: Vec<CronRecord> = end.into_iter().map(|record| record.expect("pauses")).collect();
    runtime.block_on(wait_until_empty(&duly));
    drop(children);
    println!(
        "seed {seed}: {kills} kills, {rules} rules, {} jobs reported as done",
        acked.lock().expect("no panic").len()
    );
    (duly, created.into_iter().zip(end).collect(), acked)
}

/// Returns the jobs of all ticks from the first to the last one fired.
fn expected(rules: &[(CronRecord, CronRecord)]) -> BTreeSet<JobId> {
    let mut ids = BTreeSet::new();
    for (created, end) in rules {
        let last = end.last.expect("has fired");
        let mut tick = created.next.expect("has a tick");
        while tick <= last {
            let micros = tick.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
            ids.insert(JobId::from_name(&format!("cron:{}:{micros}", created.rule.name)));
            tick += Duration::from_secs(1);
        }
    }
    ids
}

fn every_tick_has_one_job(url: &str) {
    let (duly, rules, _) = run(url, Duration::from_secs(3_600));
    let (runtime, expected) = (runtime(), expected(&rules));
    let found: BTreeSet<JobId> = runtime.block_on(async {
        let (mut found, mut cursor) = (BTreeSet::new(), None);
        loop {
            let page = duly.jobs().list(Filter::all().limit(1_000).cursor(cursor)).await.expect("lists");
            found.extend(page.jobs.iter().map(|record| record.job.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    });
    assert!(expected.len() as u64 >= rules.len() as u64 * 3, "the run did something: {}", expected.len());
    let (missing, extra) = (expected.difference(&found).count(), found.difference(&expected).count());
    assert_eq!((missing, extra), (0, 0), "of {} ticks: missing, and too many", expected.len());
}

/// Ids are forgotten at once here, so a tick that fires twice would run twice.
fn no_tick_fires_twice(url: &str) {
    let (_, rules, acked) =
        run(&format!("{url}{}remember_ids=0", if url.contains('?') { "&" } else { "?" }), Duration::ZERO);
    let (acked, expected) = (acked.lock().expect("no panic"), expected(&rules));
    assert!(acked.len() > expected.len() / 2, "most were reported: {} of {}", acked.len(), expected.len());
    let twice: Vec<_> = acked.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{} of {} twice", twice.len(), acked.len());
    assert!(acked.keys().all(|id| expected.contains(id)), "and only ticks");
}

fn file(dir: &test_support::TempDir) -> String {
    dir.path().join("cron.db").display().to_string()
}

#[test]
fn on_file_every_tick_has_one_job() {
    let dir = test_support::temp_dir();
    every_tick_has_one_job(&file(&dir));
}

#[test]
fn on_file_no_tick_fires_twice() {
    let dir = test_support::temp_dir();
    no_tick_fires_twice(&file(&dir));
}

#[cfg(feature = "redis")]
#[test]
fn on_redis_every_tick_has_one_job() {
    every_tick_has_one_job(&format!("{}?prefix={}", servers::redis().url(), JobId::fresh()));
}

#[cfg(feature = "redis")]
#[test]
fn on_redis_no_tick_fires_twice() {
    no_tick_fires_twice(&format!("{}?prefix={}", servers::redis().url(), JobId::fresh()));
}
