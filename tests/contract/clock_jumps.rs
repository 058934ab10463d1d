//! Jumps of the store's clock: however far it was off, recovery and cron go on at the latest a lease after it is right again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duly::cron::{CronRule, Missed};
use duly::store::{CronStore, LockRequest};
use duly::{Ctx, JobId, Outcome, PushResult};

use crate::locks::{TTL, acquire, assert_refused, lock, request};
use crate::test_store::*;

/// How long a clock is wrong.
const WRONG_FOR: Duration = Duration::from_secs(5);
/// Names of one node each.
const NODES: [&str; 10] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"];

/// Returns wrong times: within a lease of the true one, beyond it, and beyond everything.
fn wrong_times(now: SystemTime) -> [SystemTime; 10] {
    let hour = Duration::from_secs(3_600);
    let years = 20 * 365 * 24 * hour;
    let short = Duration::from_millis(2_500);
    [
        now + short,
        now - short,
        now + 20 * SECOND,
        now - 20 * SECOND,
        now + hour,
        now - hour,
        now + years,
        now - years,
        UNIX_EPOCH + SECOND,
        UNIX_EPOCH + 200 * years,
    ]
}

/// How long after its death the jobs of a node are taken back: its lease, and the interval between two heartbeats of the
/// survivor before it notices that the clock was set, and before it notices the death.
fn take_back_delay() -> Duration {
    past_the_lease() + 2 * SECOND
}

pub async fn jump_of_the_clock_does_not_delay_take_back(store: TestStore) {
    store.node("survivor").await;
    for (wrong, dead) in wrong_times(store.now()).into_iter().zip(NODES) {
        let id = store.push(job("one")).await.id();
        store.claim_one(dead).await;
        store.jump(wrong, WRONG_FOR).await;
        store.silence(dead);
        store.advance(take_back_delay()).await;

        let suspects = store.heartbeat("survivor").await.suspects;
        assert_eq!(suspects, [(store.node(dead).await, "default".into())], "after {wrong:?}");
        let reply = store.claim_from("survivor", dead, 1).await;
        assert_eq!((reply.taken_back, reply.jobs[0].job.id), (1, id), "after {wrong:?}");
        assert_eq!(store.settle("survivor", &reply.jobs[0], Outcome::Ack).await, nothing_lost());
    }
}

pub async fn node_that_dies_while_the_clock_is_wrong_loses_its_jobs(store: TestStore) {
    store.node("survivor").await;
    for (wrong, dead) in wrong_times(store.now()).into_iter().zip(NODES) {
        store.push(job("one")).await;
        store.set_clock(wrong).await;
        let held = store.claim_one(dead).await;
        store.heartbeat(dead).await;
        store.silence(dead);
        store.correct_clock().await;
        store.advance(take_back_delay()).await;

        let reply = store.claim_from("survivor", dead, 1).await;
        assert_eq!((reply.taken_back, reply.jobs.len()), (1, 1), "after {wrong:?}");
        assert!(reply.jobs[0].fence > held.fence);
        store.settle("survivor", &reply.jobs[0], Outcome::Ack).await;
    }
}

pub async fn jump_of_the_clock_kills_no_node_with_heartbeats(store: TestStore) {
    store.push(job("one")).await;
    let held = store.claim_one("a").await;
    store.node("b").await;
    for wrong in wrong_times(store.now()) {
        store.set_clock(wrong).await;
        assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 0, "at {wrong:?}");
        store.advance(WRONG_FOR).await;
        assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 0, "at {wrong:?}");
        store.correct_clock().await;
        assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 0, "after {wrong:?}");
    }
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn survivor_with_an_expired_lease_takes_nothing_back(store: TestStore) {
    store.push(job("one")).await;
    store.node("b").await;
    let held = store.claim_one("a").await;
    store.advance(2 * past_the_lease()).await;
    // Both miss their heartbeats, for example because the machine was suspended. b claims first.
    store.sleep(past_the_lease());
    assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 0, "b cannot tell a death from an outage");
    store.heartbeat("a").await;
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

/// Runs the jobs of due ticks, on a node that knows nothing of earlier ones. Returns how many ran.
async fn fire_and_run(store: &TestStore) -> u64 {
    store.duly.worker().on_kind("tick", async |_: Ctx| {}).drain().await.expect("drains").acked
}

/// Rules that fire each minute, whatever they do with missed ticks.
pub async fn jump_of_the_clock_does_not_stop_cron_rules(store: TestStore) {
    const RULES: [(&str, Missed); 3] = [("skip", Missed::Skip), ("once", Missed::Once), ("all", Missed::All(3))];
    let minute = Duration::from_secs(60);
    for (name, missed) in RULES {
        let rule = CronRule::new(name, "* * * * *", job("tick")).expect("a rule");
        store.duly.crons().put(rule.missed(missed)).await.expect("puts");
    }
    for wrong in wrong_times(store.now()) {
        store.set_clock(wrong).await;
        fire_and_run(&store).await;
        store.advance(WRONG_FOR).await;
        store.correct_clock().await;
        fire_and_run(&store).await;

        let corrected = store.now();
        // A tick that fired while the clock was slightly ahead does not fire again, so one minute may go by without a job.
        let mut ran = 0;
        for _ in 0..3 {
            let rules = store.duly.crons().list().await.expect("lists");
            let next = rules.iter().map(|record| record.next.expect("has a tick")).max().expect("some");
            assert!(next > store.now() && next <= store.now() + minute + 10 * SECOND, "after {wrong:?}: {rules:?}");
            store.advance(next.duration_since(store.now()).expect("is later")).await;
            ran += fire_and_run(&store).await;
        }
        assert!(ran >= RULES.len() as u64, "after {wrong:?}: {ran} ticks");
        for record in store.duly.crons().list().await.expect("lists") {
            let last = record.last.expect("has fired");
            assert!(last >= corrected && last <= store.now(), "after {wrong:?}: {record:?}");
        }
    }
}

/// A claim reports a due tick until a caller has planned all ticks again.
pub async fn ticks_are_planned_again_after_the_clock_was_set_back(store: TestStore) {
    let rule = CronRule::new("yearly", "0 0 1 1 *", job("tick")).expect("a rule");
    let ahead = store.now() + 7 * SECOND;
    store.set_clock(ahead).await;
    store.duly.crons().put(rule).await.expect("puts");
    let due = store.store.due_crons("default", &[]).await.expect("reads");
    assert_eq!(due.planned_at, None, "the clock was not set back");

    store.correct_clock().await;
    assert_eq!(store.claim_with("a", claim(1)).await.next_tick, Some(Duration::ZERO));
    assert!(store.heartbeat("a").await.queues_to_check.contains(&"default".to_owned()));
    let due = store.store.due_crons("default", &[]).await.expect("reads");
    let planned_at = due.planned_at.expect("the clock was set back");
    assert!(due.rules.is_empty() && planned_at >= ahead);
    store.store.confirm_ticks("default", planned_at - SECOND).await.expect("confirms");
    assert!(store.store.due_crons("default", &[]).await.expect("reads").planned_at.is_some(), "not of this time");
    store.store.confirm_ticks("default", planned_at).await.expect("confirms");
    assert_eq!(store.store.due_crons("default", &[]).await.expect("reads").planned_at, None);
    assert!(store.claim_with("a", claim(1)).await.next_tick > Some(SECOND));
}

pub async fn removed_ids_are_forgotten_after_the_clock_was_ahead(store: TestStore) {
    async fn run_once(store: &TestStore, id: JobId) {
        assert_eq!(store.push(job("first").id(id).keep(Duration::ZERO)).await, PushResult::New(id));
        let held = store.claim_one("a").await;
        assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
    }
    let hour = Duration::from_secs(3_600);
    store.set_clock(store.now() + 20 * 365 * 24 * hour).await;
    run_once(&store, JobId::from_name("while ahead")).await;
    store.prune().await;
    store.correct_clock().await;
    let id = JobId::from_name("once");
    run_once(&store, id).await;
    assert_eq!(store.push(job("again").id(id)).await, PushResult::Existing(id), "it is remembered");
    for _ in 0..3 {
        store.sleep(REMEMBER);
        store.prune().await;
    }
    assert_eq!(store.push(job("again").id(id)).await, PushResult::New(id));
}

/// The holder dies while the clock is ahead, or after it has extended its hold then.
pub async fn lock_of_dead_holder_is_free_after_the_clock_was_ahead(store: TestStore) {
    for wrong in wrong_times(store.now()) {
        store.set_clock(wrong).await;
        let holder = request(&store, "holder").await;
        acquire(&store, &holder).await;
        store.correct_clock().await;
        let other = request(&store, "other").await;
        // The store may notice only now that the hold is too long. The holder relies on it for its whole time.
        lock(&store, &other).await;
        store.sleep(TTL + MS);
        acquire(&store, &other).await;
        assert!(crate::locks::unlock(&store, &other).await, "after {wrong:?}");
    }
}

pub async fn dead_waiter_does_not_block_a_lock_after_the_clock_was_ahead(store: TestStore) {
    let hour = Duration::from_secs(3_600);
    let holder = LockRequest { ttl: 2 * hour, ..request(&store, "holder").await };
    acquire(&store, &holder).await;
    let waiting = async |peer| {
        let request = LockRequest { wait: true, ..request(&store, peer).await };
        assert_refused(&store, &request).await;
        request
    };
    store.set_clock(store.now() + hour).await;
    waiting("dead").await;
    store.silence("dead");
    store.correct_clock().await;
    let living = waiting("living").await;
    assert!(crate::locks::unlock(&store, &holder).await);
    store.advance(take_back_delay()).await;
    acquire(&store, &living).await;
}

/// The clock is in 1970 at first, as on a machine without a battery.
pub async fn totals_are_complete_after_the_clock_was_wrong(store: TestStore) {
    use duly::store::StatsStore;
    let hour = Duration::from_secs(3_600);
    let total = async || {
        let totals = store.store.queue_totals().await.expect("reads");
        totals.into_iter().find(|(queue, _)| queue == "default").map_or(0, |(_, counters)| counters.pushed)
    };
    let mut pushed = 0;
    for wrong in [UNIX_EPOCH + SECOND, store.now() + 24 * hour] {
        store.set_clock(wrong).await;
        store.push(job("one")).await;
        store.sleep(hour);
        store.prune().await;
        pushed += 1;
        assert_eq!(total().await, pushed, "at {wrong:?}");
        store.correct_clock().await;
        store.prune().await;
        store.sleep(hour);
        store.push(job("one")).await;
        pushed += 1;
        store.sleep(hour);
        store.prune().await;
        assert_eq!(total().await, pushed, "after {wrong:?}");
    }
    store.sleep(48 * hour);
    assert_eq!(total().await, pushed, "no minute is added twice");
}
