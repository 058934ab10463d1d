//! Rows with impossible values, as after disk corruption: they block no operation, are reported and can be removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::admin::Invariant;
use duly::rusqlite::Connection;
use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Clock, Duly, JobId, Outcome, Push, PushResult, State};

const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than dead jobs are kept.
const PAST_KEEP: Duration = Duration::from_secs(1_000 * 24 * 3_600);

/// A store on a file, with a manual clock.
struct Sandbox {
    duly: Duly,
    clock: Clock,
    path: PathBuf,
    _dir: test_support::TempDir,
}

impl Sandbox {
    async fn new() -> Self {
        let dir = test_support::temp_dir();
        let (path, clock) = (dir.path().join("duly.db"), Clock::manual());
        Sandbox { duly: open(&path, &clock).await, clock, path, _dir: dir }
    }

    fn change(&self, sql: &str) {
        let conn = Connection::open(&self.path).expect("opens");
        conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn push(&self, jobs: impl IntoIterator<Item = Push>) -> Vec<JobId> {
        self.duly.push_all(jobs).await.expect("pushes").iter().map(PushResult::id).collect()
    }

    /// Runs all ready jobs of any kind. Returns the number of acks.
    async fn run(&self) -> u64 {
        self.duly.worker().on_any_kind(|_| async {}).drain().await.expect("drains").acked
    }

    /// Returns the jobs that verify reports as unreadable, each once.
    async fn unreadable(&self) -> Vec<JobId> {
        let violations = self.duly.verify().await.expect("does not fail").violations;
        let mut ids: Vec<JobId> = violations
            .iter()
            .filter(|violation| violation.invariant == Invariant::Readable)
            .filter_map(|violation| violation.id)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

async fn open(path: &Path, clock: &Clock) -> Duly {
    Duly::builder(path.to_str().expect("a plain path")).clock(clock.clone()).open().await.expect("opens")
}

fn job(name: &str) -> Push {
    Push::new(name, "1").tags(["a", "b"]).unique(name)
}

/// Corrupts a ready, a scheduled and a dead job, and checks that intact jobs are not affected.
async fn assert_other_jobs_run(column: &str) {
    let sandbox = Sandbox::new().await;
    let dead = sandbox.push([job("bad-dead"), job("good-dead")]).await;
    let buried =
        sandbox.duly.worker().on_any_kind(|_| async { Outcome::bury("no") }).drain().await.expect("drains").buried;
    assert_eq!(buried, 2);
    let waiting = [job("bad-ready"), job("good-ready"), job("bad-later").after(HOUR), job("good-later").after(HOUR)];
    let waiting = sandbox.push(waiting).await;
    sandbox.change(&format!("UPDATE duly_job SET {column} = CAST(x'62e3' AS TEXT) WHERE kind GLOB 'bad-*'"));
    let mut bad = vec![dead[0], waiting[0], waiting[2]];
    bad.sort_unstable();
    assert_eq!(sandbox.unreadable().await, bad, "{column}");

    assert_eq!(sandbox.run().await, 1, "{column}: the intact ready job");
    sandbox.clock.advance(2 * HOUR);
    assert_eq!(sandbox.run().await, 1, "{column}: the intact scheduled job");
    for id in [waiting[0], waiting[2]] {
        assert_eq!(
            sandbox.duly.jobs().get(id).await.expect("reads").expect("is there").state,
            State::Scheduled,
            "{column}: retried later"
        );
        sandbox.duly.jobs().remove(id).await.unwrap_or_else(|error| panic!("{column}: {error}"));
    }
    let again = sandbox.duly.push(job("bad-ready")).await.expect("its unique key is free");
    assert!(matches!(again, PushResult::New(_)), "{column}");
    sandbox.clock.advance(PAST_KEEP);
    assert_eq!(sandbox.duly.store().prune("default", 10).await.expect("prunes"), 4, "{column}: two done, two dead");
    assert_eq!(sandbox.duly.verify().await.expect("verifies").violations, [], "{column}: nothing remains");
}

#[tokio::test]
async fn unreadable_text_stops_no_operation() {
    for column in ["kind", "tags", "unique_key"] {
        assert_other_jobs_run(column).await;
    }
}

/// Writes a value that the strict table would reject.
const NULL_ATTEMPTS: &str = "PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET sql = replace(sql, 'attempts INTEGER NOT NULL', 'attempts INTEGER') WHERE name = 'duly_ready';
    PRAGMA writable_schema = RESET;
    UPDATE duly_ready SET attempts = NULL;
    PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET sql = replace(sql, 'attempts INTEGER', 'attempts INTEGER NOT NULL') WHERE name = 'duly_ready';
    PRAGMA schema_version = 9999; PRAGMA writable_schema = OFF;";

#[tokio::test]
async fn impossible_counts_stop_no_operation() {
    let sandbox = Sandbox::new().await;
    let ids = sandbox.push([Push::new("ready", "1"), Push::new("later", "1").after(HOUR)]).await;
    sandbox.change(
        "UPDATE duly_ready SET attempts = -1, crashes = -7; UPDATE duly_scheduled SET attempts = 1 << 40, crashes = -1",
    );
    assert_eq!(sandbox.unreadable().await.len(), 2);
    let later = sandbox.duly.jobs().get(ids[1]).await.expect("reads").expect("is there");
    assert_eq!((later.attempts, later.crashes), (u32::MAX, 0), "clamped to the valid range");
    assert_eq!(sandbox.run().await, 1);
    sandbox.clock.advance(2 * HOUR);
    assert_eq!(sandbox.run().await, 1);

    // A job that a node held when it left.
    sandbox.push([Push::new("held", "1")]).await;
    let (store, node) = (sandbox.duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let claim = Claim::new("default", 1);
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
    sandbox.change("UPDATE duly_running SET attempts = -1, crashes = -7");
    store.leave(node.id).await.expect("leaves");
    assert_eq!(sandbox.run().await, 1, "taken back");

    sandbox.push([Push::new("null", "1"), Push::new("null", "2")]).await;
    sandbox.change(NULL_ATTEMPTS);
    assert_eq!(sandbox.run().await, 2);
}

#[tokio::test]
async fn repair_renames_a_queue_with_an_unreadable_name() {
    let sandbox = Sandbox::new().await;
    sandbox.push([Push::new("mail", "1")]).await;
    sandbox.change(
        "UPDATE duly_queue SET name = CAST(x'64e3' AS TEXT), capacity_jobs = -1; UPDATE duly_queue_stats SET ready = -1",
    );
    let counts = sandbox.duly.queues().counts().await.expect("does not fail");
    assert_eq!((counts[0].ready, counts[0].capacity.jobs), (0, None));
    let repair = sandbox.duly.repair(sandbox.path.with_extension("copy")).await.expect("repairs");
    let invariants: Vec<Invariant> = repair.before.violations.iter().map(|violation| violation.invariant).collect();
    assert_eq!(invariants, [Invariant::Readable, Invariant::Counts]);
    assert_eq!(repair.after.violations, []);

    let reopened = open(&sandbox.path, &sandbox.clock).await;
    let queue = reopened.queues().counts().await.expect("counts").remove(0);
    assert_eq!((queue.queue.as_str(), queue.ready), ("recovered-1", 1));
    let summary = reopened.worker().queue("recovered-1", 1).on_any_kind(|_| async {}).drain().await.expect("drains");
    assert_eq!(summary.acked, 1);
}

#[tokio::test]
async fn unreadable_due_rules_do_not_starve_the_others() {
    let sandbox = Sandbox::new().await;
    // More than were once read at most.
    for number in 0..3_100 {
        sandbox.duly.cron(format!("bad-{number}"), "* * * * *").push(Push::new("bad", "1")).await.expect("puts");
    }
    sandbox.duly.cron("good", "0 * * * *").push(Push::new("good", "1")).await.expect("puts");
    sandbox.change("UPDATE duly_cron SET rule = 'x' WHERE name GLOB 'bad-*'");
    sandbox.clock.advance(HOUR + HOUR / 2);
    assert_eq!(sandbox.run().await, 1);
}

/// The clock was ahead when a rule was put, and no worker runs that would correct it.
#[tokio::test]
async fn verify_names_rules_planned_while_the_clock_was_ahead() {
    let sandbox = Sandbox::new().await;
    let right = sandbox.clock.now();
    sandbox.duly.cron("always-right", "* * * * *").push(Push::new("a", "1")).await.expect("puts");
    sandbox.clock.set(right + 1_000 * HOUR);
    sandbox.duly.cron("delayed", "* * * * *").push(Push::new("b", "1")).await.expect("puts");
    sandbox.clock.set(right);
    let delayed = sandbox.duly.crons().delayed().await.expect("reads");
    assert_eq!(delayed.iter().map(|record| record.rule.name.as_str()).collect::<Vec<_>>(), ["delayed"]);

    let repair = sandbox.duly.repair(sandbox.path.with_extension("copy")).await.expect("repairs");
    assert_eq!(repair.before.violations.len(), 1, "{repair:?}");
    assert_eq!(repair.before.violations[0].invariant, Invariant::CronTicks);
    assert!(repair.before.violations[0].details.contains("cron rule delayed"));
    assert_eq!(repair.after.violations, []);
    let next = sandbox.duly.crons().get("delayed").await.expect("reads").expect("is there").next;
    assert!(next.is_some_and(|next| next <= right + Duration::from_secs(60)), "{next:?}");
}
