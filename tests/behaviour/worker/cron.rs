//! Cron from the client to the handler: each tick fires once and on time, and changes lose or duplicate none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use duly::cron::{CronChange, CronRule, Missed, Overlap};
use duly::{CancellationToken, Clock, Ctx, Duly, Filter, JobRecord, Outcome, Push, State};
use test_support::until;
use tokio::sync::mpsc;

use crate::worker::{Mail, TIMEOUT, mail, memory};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A store in memory at noon of 1 January 2030, with its manual clock.
async fn at_noon() -> (Duly, Clock) {
    let clock = Clock::manual();
    clock.advance(12 * HOUR);
    (Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens"), clock)
}

/// Runs all ready jobs. Returns how many were acked.
async fn drain(duly: &Duly) -> u64 {
    duly.worker().on(|_: Mail, _: Ctx| async {}).drain().await.expect("drains").acked
}

async fn jobs(duly: &Duly) -> Vec<JobRecord> {
    duly.jobs().list(Filter::all().limit(1_000)).await.expect("lists").jobs
}

#[tokio::test]
async fn rule_fires_at_its_time() {
    let (duly, clock) = at_noon().await;
    let rule = duly.cron("report", "0 13 * * *").push(mail()).await.expect("puts");
    assert_eq!(rule.next, Some(clock.now() + HOUR));
    assert_eq!(drain(&duly).await, 0);
    clock.advance(HOUR - Duration::from_micros(1));
    assert_eq!(drain(&duly).await, 0, "not before");
    clock.advance(Duration::from_micros(1));
    assert_eq!(drain(&duly).await, 1);
    assert_eq!(drain(&duly).await, 0, "once");
    let after = duly.crons().get("report").await.expect("reads").expect("is there");
    assert_eq!((after.last, after.next), (Some(clock.now()), Some(clock.now() + 24 * HOUR)));
    assert_eq!(after.last_job(), jobs(&duly).await.first().map(|record| record.job.id));
}

/// A worker with all slots busy in one queue still fires the rules of its other queues.
#[tokio::test]
async fn worker_without_free_slots_fires_due_rules() {
    let duly = memory().await;
    let (begun, mut begins) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let worker = duly.worker().concurrency(1).queue("full", 1).queue("other", 1).on_kind("long", move |ctx| {
        let begun = begun.clone();
        async move {
            begun.send(()).await.expect("is received");
            ctx.stopping().await;
        }
    });
    // Rules that the worker reads at its start, with ticks far away.
    for queue in ["full", "other"] {
        duly.cron(format!("yearly-{queue}"), "0 0 1 1 *").push(Push::from(mail()).queue(queue)).await.expect("puts");
    }
    let working = tokio::spawn(worker.run_until(stop.clone()));
    duly.push(Push::new("long", "null").queue("full")).await.expect("pushes");
    tokio::time::timeout(TIMEOUT, begins.recv()).await.expect("in time").expect("begins");
    for queue in ["full", "other"] {
        duly.cron(queue, "* * * * * *").push(Push::from(mail()).queue(queue)).await.expect("puts");
    }
    for queue in ["full", "other"] {
        until(&format!("the rule of {queue} fires"), async || {
            duly.crons().get(queue).await.expect("reads").expect("is there").last.is_some()
        })
        .await;
    }
    stop.cancel();
    working.await.expect("no panic").expect("works");
}

#[tokio::test]
async fn same_rule_again_changes_nothing() {
    let (duly, clock) = at_noon().await;
    let put = async || duly.cron("report", "0 * * * *").tz("UTC").push(mail()).await.expect("puts");
    let first = put().await;
    clock.advance(90 * MINUTE);
    assert_eq!(put().await, first, "the tick that is due stays");
    assert_eq!(drain(&duly).await, 1);
    assert_eq!(drain(&duly).await, 0);
}

#[tokio::test]
async fn rule_change_neither_loses_nor_duplicates_a_tick() {
    let (duly, clock) = at_noon().await;
    duly.cron("report", "0 * * * *").push(mail()).await.expect("puts");
    clock.advance(HOUR);
    duly.cron("report", "0 * * * *").push(Push::from(mail()).queue("other")).await.expect("changes");
    assert_eq!(drain(&duly).await, 0, "its queue is another now");
    let worker = || duly.worker().queue("other", 1).on(|_: Mail, _: Ctx| async {});
    assert_eq!(worker().drain().await.expect("drains").acked, 1);
    duly.cron("report", "*/30 * * * *").push(Push::from(mail()).queue("other")).await.expect("changes");
    assert_eq!(worker().drain().await.expect("drains").acked, 0);
    clock.advance(30 * MINUTE);
    assert_eq!(worker().drain().await.expect("drains").acked, 1);
}

#[tokio::test]
async fn clock_set_back_duplicates_no_tick() {
    let (duly, clock) = at_noon().await;
    let noon = clock.now();
    duly.cron("report", "0 * * * *").push(mail()).await.expect("puts");
    clock.advance(HOUR);
    assert_eq!(drain(&duly).await, 1);
    clock.set(noon + HOUR / 2);
    let changed = duly.cron("report", "0 * * * *").jitter(MINUTE).push(mail()).await.expect("changes");
    assert_eq!(changed.rule.jitter, MINUTE);
    assert_eq!(drain(&duly).await, 0);
    clock.set(noon + HOUR + 2 * MINUTE);
    assert_eq!(drain(&duly).await, 0, "this tick has fired");
    clock.set(noon + 2 * HOUR + 2 * MINUTE);
    assert_eq!(drain(&duly).await, 1);
}

#[tokio::test]
async fn missed_ticks_follow_the_missed_setting() {
    for (missed, expected) in [(Missed::Skip, 0), (Missed::Once, 1), (Missed::All(3), 3), (Missed::All(100), 5)] {
        let (duly, clock) = at_noon().await;
        duly.cron("report", "0 * * * *").missed(missed).push(mail()).await.expect("puts");
        clock.advance(5 * HOUR + 30 * MINUTE);
        assert_eq!(drain(&duly).await, expected, "{missed:?}");
        clock.advance(30 * MINUTE);
        assert_eq!(drain(&duly).await, 1, "then it continues");
    }
}

#[tokio::test]
async fn paused_rule_fires_nothing_and_catches_up_nothing() {
    let (duly, clock) = at_noon().await;
    duly.cron("report", "0 * * * *").push(mail()).await.expect("puts");
    assert!(duly.crons().pause("report").await.expect("pauses").paused);
    clock.advance(3 * HOUR + MINUTE);
    assert_eq!(drain(&duly).await, 0);
    duly.cron("report", "0 * * * *").jitter(MINUTE).push(mail()).await.expect("changes");
    assert!(duly.crons().get("report").await.expect("reads").expect("is there").paused, "it stays paused");
    let resumed = duly.crons().resume("report").await.expect("resumes");
    assert_eq!(resumed.next, Some(clock.now() + 59 * MINUTE));
    assert_eq!(drain(&duly).await, 0);
    assert_eq!(duly.crons().pause("none").await.expect_err("no such rule").code(), "not_found");
}

#[tokio::test]
async fn rule_can_be_triggered_and_removed() {
    let (duly, clock) = at_noon().await;
    duly.cron("report", "0 * * * *").overlap(Overlap::Skip).push(mail()).await.expect("puts");
    let first = duly.crons().trigger("report").await.expect("triggers");
    let second = duly.crons().trigger("report").await.expect("triggers");
    assert!(first.is_new() && !second.is_new() && first.id() == second.id(), "no two overlap");
    assert_eq!(drain(&duly).await, 1);
    duly.crons().remove("report").await.expect("removes");
    assert_eq!(duly.crons().remove("report").await.expect_err("is gone").code(), "not_found");
    clock.advance(2 * HOUR);
    assert_eq!(drain(&duly).await, 0);
}

#[tokio::test]
async fn rules_can_be_applied_as_a_whole() {
    let (duly, _) = at_noon().await;
    let rule = |name: &str, pattern: &str| CronRule::new(name, pattern, mail()).expect("a rule");
    for name in ["stays", "changes", "goes"] {
        duly.crons().put(rule(name, "0 * * * *")).await.expect("puts");
    }
    let wanted = [rule("stays", "0 * * * *"), rule("changes", "5 * * * *"), rule("comes", "0 * * * *")];
    let all = [
        ("changes", CronChange::Update),
        ("comes", CronChange::Add),
        ("goes", CronChange::Remove),
        ("stays", CronChange::Unchanged),
    ];
    let expected = all.map(|(name, change)| (name.to_owned(), change)).into();
    assert_eq!(duly.crons().diff(&wanted, true).await.expect("compares"), expected);
    assert_eq!(duly.crons().list().await.expect("lists").len(), 3, "a diff changes nothing");
    assert_eq!(duly.crons().apply(&wanted, true).await.expect("applies"), expected);
    let names: Vec<String> =
        duly.crons().list().await.expect("lists").into_iter().map(|record| record.rule.name).collect();
    assert_eq!(names, ["changes", "comes", "stays"]);
    let twice = [wanted[0].clone(), wanted[0].clone()];
    assert_eq!(duly.crons().apply(&twice, false).await.expect_err("twice").code(), "invalid");
}

#[tokio::test]
async fn invalid_rules_are_rejected_before_the_store() {
    let duly = memory().await;
    let error = async |name: &str, pattern: &str, tz: &str| {
        let put = duly.cron(name, pattern).tz(tz).push(mail()).await;
        put.expect_err("is wrong").to_string()
    };
    assert!(error("a b", "* * * * *", "UTC").await.starts_with("cron: "));
    assert!(error("a", "0 0 31 2 *", "UTC").await.contains("never matches"));
    assert!(error("a", "* * * * *", "Europe/Berlni").await.contains("Europe/Berlin"));
    let huge = duly.cron("a", "* * * * *").jitter(Duration::MAX).push(mail()).await;
    assert!(huge.expect_err("is wrong").to_string().starts_with("jitter"));
    assert!(duly.crons().list().await.expect("lists").is_empty());
}

/// A worker with jobs that run until `end` is notified or they are cancelled.
struct BlockingWorker {
    started: mpsc::UnboundedReceiver<JobRecord>,
    end: Arc<tokio::sync::Notify>,
    cancelled: Arc<AtomicUsize>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<duly::Result<duly::worker::RunSummary>>,
}

impl BlockingWorker {
    fn start(duly: &Duly) -> Self {
        let (sender, started) = mpsc::unbounded_channel();
        let (end, cancelled) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (notified, count, client) = (end.clone(), cancelled.clone(), duly.clone());
        let handler = move |_: Mail, ctx: Ctx| {
            let (sender, end, cancelled, duly) = (sender.clone(), notified.clone(), count.clone(), client.clone());
            async move {
                let record = duly.jobs().get(ctx.job().id).await.expect("reads").expect("is there");
                let _ = sender.send(record);
                tokio::select! {
                    () = end.notified() => Outcome::Ack,
                    () = ctx.cancelled() => {
                        cancelled.fetch_add(1, Ordering::SeqCst);
                        Outcome::release(Duration::ZERO)
                    }
                }
            }
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(duly.worker().queue("default", 4).on(handler).run_until(stop.clone()));
        BlockingWorker { started, end, cancelled, stop, task }
    }

    async fn next(&mut self) -> JobRecord {
        tokio::time::timeout(TIMEOUT, self.started.recv()).await.expect("in time").expect("goes on")
    }

    async fn stop(self) {
        self.stop.cancel();
        self.end.notify_waiters();
        self.task.await.expect("no panic").expect("works");
    }
}

/// Returns the number of jobs in this state.
async fn count(duly: &Duly, state: State) -> u64 {
    duly.queues().counts().await.expect("counts").iter().map(|counts| counts.count_in(state)).sum()
}

#[tokio::test]
async fn ticks_wake_an_idle_worker_and_overlap_if_allowed() {
    let duly = memory().await;
    let mut worker = BlockingWorker::start(&duly);
    duly.cron("each", "* * * * * *").push(mail()).await.expect("puts");
    let (first, second) = (worker.next().await, worker.next().await);
    assert_ne!(first.job.id, second.job.id);
    for record in [first, second] {
        let due = record.due.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert!(due.subsec_millis() < 900, "at a full second, or soon after: {due:?}");
    }
    duly.crons().remove("each").await.expect("removes");
    worker.stop().await;
}

#[tokio::test]
async fn queued_tick_starts_when_the_previous_run_ends() {
    let duly = memory().await;
    let mut worker = BlockingWorker::start(&duly);
    duly.cron("each", "* * * * * *").overlap(Overlap::Queue).push(mail()).await.expect("puts");
    let first = worker.next().await;
    let is_waiting = async || duly.crons().get("each").await.expect("reads").expect("is there").waiting;
    until("the next tick waits", is_waiting).await;
    assert_eq!((count(&duly, State::Running).await, count(&duly, State::Ready).await), (1, 0));
    worker.end.notify_one();
    let ended = tokio::time::Instant::now();
    let second = worker.next().await;
    assert_ne!(first.job.id, second.job.id);
    assert!(
        ended.elapsed() < duly::store::WAITING_TICK_RECHECK_INTERVAL,
        "it was notified and did not wait for the recheck"
    );
    duly.crons().remove("each").await.expect("removes");
    worker.stop().await;
}

#[tokio::test]
async fn replacing_tick_cancels_the_previous_run() {
    let duly = memory().await;
    let mut worker = BlockingWorker::start(&duly);
    duly.cron("each", "* * * * * *").overlap(Overlap::Replace).push(mail()).await.expect("puts");
    let (first, second) = (worker.next().await, worker.next().await);
    assert_ne!(first.job.id, second.job.id);
    assert!(worker.cancelled.load(Ordering::SeqCst) >= 1);
    let old = duly.jobs().get(first.job.id).await.expect("reads").expect("is kept");
    assert_eq!(old.state, State::Cancelled);
    duly.crons().remove("each").await.expect("removes");
    worker.stop().await;
}

#[tokio::test]
async fn replaced_waiting_job_is_removed() {
    let (duly, clock) = at_noon().await;
    duly.cron("report", "0 * * * *").overlap(Overlap::Replace).push(mail()).await.expect("puts");
    duly.queues().pause("default").await.expect("pauses");
    for _ in 0..3 {
        clock.advance(HOUR);
        assert_eq!(drain(&duly).await, 0);
    }
    let waiting = jobs(&duly).await;
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(duly.crons().get("report").await.expect("reads").expect("is there").last, Some(clock.now()));
}

#[tokio::test]
async fn many_rules_due_at_once_all_fire() {
    let (duly, clock) = at_noon().await;
    for n in 0..1_200 {
        duly.cron(format!("r{n}"), "0 13 * * *").push(mail()).await.expect("puts");
    }
    clock.advance(HOUR);
    assert_eq!(drain(&duly).await, 1_200);
    assert_eq!(drain(&duly).await, 0);
}
