//! Cron rules: one job per tick, whichever node fires it; none early, none lost or duplicated by a change.

use std::time::{Duration, SystemTime};

use duly::cron::{CronRule, Overlap};
use duly::job::HeldJob;
use duly::store::{
    CRON_FIRINGS_MAX, Claim, CronFiring, CronFiringResult, CronRecord, CronStore, DueCrons, FireCronsReply, JobStore,
    OverlapWait, PutCron, PutCronResult, TransferStore, WAITING_TICK_RECHECK_INTERVAL, Wake,
};
use duly::{JobId, NodeId, Outcome, Push, PushResult, State};

use crate::test_store::*;

const MINUTE: Duration = Duration::from_secs(60);

fn rule(name: &str) -> CronRule {
    CronRule::new(name, "* * * * *", job("tick")).expect("a rule")
}

/// The job of a tick, with the id derived from rule and tick.
fn tick_job(record: &CronRecord, tick: SystemTime) -> Push {
    job("tick").id(tick_job_id(&record.rule.name, tick)).queue(&record.rule.queue)
}

fn tick_job_id(name: &str, tick: SystemTime) -> JobId {
    let micros = tick.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros();
    JobId::from_name(&format!("cron:{name}:{micros}"))
}

/// The request of a worker for a rule that fires each minute.
fn firing(record: &CronRecord) -> CronFiring {
    let tick = record.next.expect("has a tick");
    CronFiring {
        name: record.rule.name.clone(),
        revision: record.revision,
        tick,
        next: Some(tick + MINUTE),
        last: Some(tick),
        jobs: vec![tick_job(record, tick)],
        overlap_wait: OverlapWait::Never,
    }
}

/// The same for a rule with an overlap setting.
fn firing_without_overlap(record: &CronRecord, overlap_wait: OverlapWait) -> CronFiring {
    let tick = record.next.expect("has a tick");
    let jobs = vec![tick_job(record, tick).unique(format!("cron:{}", record.rule.name))];
    CronFiring { jobs, overlap_wait, ..firing(record) }
}

impl TestStore {
    async fn put(&self, record: CronRecord, expected_revision: Option<u64>) -> PutCronResult {
        self.store.put_cron(PutCron { record, expected_revision }).await.expect("puts")
    }

    /// Stores a rule with its next tick one minute from now.
    async fn put_rule(&self, rule: CronRule) -> CronRecord {
        let record = CronRecord::new(rule, 1, Some(self.now() + MINUTE));
        assert_eq!(self.put(record.clone(), None).await, PutCronResult::Applied);
        record
    }

    async fn cron(&self, name: &str) -> Option<CronRecord> {
        self.store.cron(name).await.expect("reads")
    }

    async fn due(&self, queue: &str, freed: &[&str]) -> DueCrons {
        let freed: Vec<String> = freed.iter().map(|name| (*name).to_owned()).collect();
        self.store.due_crons(queue, &freed).await.expect("reads")
    }

    async fn fire(&self, firings: Vec<CronFiring>) -> FireCronsReply {
        self.store.fire_crons("default", firings).await.expect("fires")
    }

    async fn fire_one(&self, firing: CronFiring) -> CronFiringResult {
        self.fire(vec![firing]).await.results.pop().expect("one result")
    }
}

/// The same rule with the next revision.
fn revised(record: &CronRecord) -> CronRecord {
    let mut revised = record.clone();
    revised.revision += 1;
    revised
}

fn names(due: &DueCrons) -> Vec<&str> {
    due.rules.iter().map(|record| record.rule.name.as_str()).collect()
}

pub async fn rule_is_stored_unchanged(store: TestStore) {
    assert_eq!(store.cron("r").await, None);
    let rule = rule("r").tz("Europe/Berlin").overlap(Overlap::Queue).jitter(SECOND);
    let mut record = CronRecord::new(rule, 7, Some(store.now() + MINUTE));
    record.last = Some(store.now());
    assert_eq!(store.put(record.clone(), None).await, PutCronResult::Applied);
    assert_eq!(store.cron("r").await, Some(record));
    assert_eq!(store.cron("other").await, None);
}

pub async fn rule_update_requires_the_version_read(store: TestStore) {
    let first = store.put_rule(rule("r")).await;
    let second = CronRecord::new(rule("r").tz("Europe/Berlin"), 2, None);
    for wrong_revision in [None, Some(9)] {
        assert_eq!(store.put(second.clone(), wrong_revision).await, PutCronResult::Stale);
        assert_eq!(store.cron("r").await, Some(first.clone()));
    }
    assert_eq!(store.put(second.clone(), Some(1)).await, PutCronResult::Applied);
    assert_eq!(store.cron("r").await, Some(second.clone()));
    assert_eq!(store.put(CronRecord::new(rule("none"), 2, None), Some(1)).await, PutCronResult::Stale);
}

pub async fn removed_rule_is_gone(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.put_rule(rule("stays")).await;
    assert!(store.store.remove_cron("r").await.expect("removes"));
    assert!(!store.store.remove_cron("r").await.expect("replies"));
    store.advance(MINUTE).await;
    assert_eq!(names(&store.due("default", &["r"]).await), ["stays"]);
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
}

pub async fn rules_are_listed_by_pages_and_by_queue(store: TestStore) {
    for n in 0..30 {
        let job = job("tick").queue(["a", "b", "c"][n % 3]);
        store.put_rule(CronRule::new(format!("r{n}"), "* * * * *", job).expect("a rule")).await;
    }
    for (queue, count) in [(None, 30), (Some("a"), 10), (Some("none"), 0)] {
        let (mut found, mut cursor) = (std::collections::BTreeSet::new(), None);
        loop {
            let page = store.store.crons(queue, cursor.as_deref()).await.expect("lists");
            found.extend(page.rules.into_iter().map(|record| record.rule.name));
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(found.len(), count, "{queue:?}");
    }
}

pub async fn claim_returns_the_next_tick(store: TestStore) {
    let next_tick = async || store.claim_with("a", claim(1)).await.next_tick;
    assert_eq!(next_tick().await, None);
    let late = CronRecord::new(rule("late"), 1, Some(store.now() + 2 * MINUTE));
    store.put(late, None).await;
    assert_eq!(next_tick().await, Some(2 * MINUTE));
    let soon = store.put_rule(rule("soon")).await;
    assert_eq!(next_tick().await, Some(MINUTE));
    store.advance(MINUTE).await;
    assert_eq!(next_tick().await, Some(Duration::ZERO));
    let fired = store.fire(vec![firing(&soon)]).await;
    assert_eq!(fired.next_tick, Some(MINUTE));
    assert_eq!(next_tick().await, Some(MINUTE), "also with a claim that returns a job");
    store.store.remove_cron("soon").await.expect("removes");
    store.store.remove_cron("late").await.expect("removes");
    assert_eq!(next_tick().await, None);
}

pub async fn new_rule_wakes_a_node_of_its_queue(store: TestStore) {
    let node = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim("a", 1).await.is_empty());
    store.put_rule(rule("r")).await;
    let woken = tokio::time::timeout(TIMEOUT, wakes.recv()).await.expect("in time");
    assert_eq!(woken, Some(Wake::Queue("default".into())));
}

pub async fn tick_fires_once_for_concurrent_nodes(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    let due = store.due("default", &[]).await;
    assert_eq!(due.rules, std::slice::from_ref(&record));
    assert_eq!(due.now, store.now());
    let id = tick_job_id("r", record.next.expect("given"));
    let both = tokio::join!(store.fire_one(firing(&record)), store.fire_one(firing(&record)));
    let mut both = [both.0, both.1];
    both.sort_by_key(|fired| *fired == CronFiringResult::Stale);
    assert_eq!(both, [CronFiringResult::Fired(vec![PushResult::New(id)]), CronFiringResult::Stale]);
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
    assert!(store.due("default", &[]).await.rules.is_empty());
    let after = store.cron("r").await.expect("is there");
    assert_eq!((after.last, after.next), (record.next, Some(store.now() + MINUTE)));
    assert_eq!(after.last_job(), Some(id));
    assert_eq!(store.claim("a", 9).await.len(), 1);
}

pub async fn tick_does_not_fire_early(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE - MS).await;
    let due = store.due("default", &["r"]).await;
    assert!(due.rules.is_empty());
    assert_eq!(due.next_tick, Some(MS));
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
    store.advance(MS).await;
    assert!(matches!(store.fire_one(firing(&record)).await, CronFiringResult::Fired(_)));
}

pub async fn firing_with_an_outdated_rule_is_rejected(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    let changed = revised(&record);
    assert_eq!(store.put(changed.clone(), Some(1)).await, PutCronResult::Applied);
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
    assert!(
        matches!(store.fire_one(firing(&changed)).await, CronFiringResult::Fired(_)),
        "the tick that was due is not lost"
    );
}

pub async fn firing_a_tick_again_is_rejected(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    store.fire_one(firing(&record)).await;
    assert_eq!(
        store.put(revised(&record), Some(record.revision)).await,
        PutCronResult::Stale,
        "its tick would come back"
    );
    let fired = store.cron("r").await.expect("is there");
    assert_eq!(store.put(revised(&fired), Some(fired.revision)).await, PutCronResult::Applied);
}

pub async fn paused_rule_is_never_due(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    let mut paused = revised(&record);
    paused.paused = true;
    store.put(paused.clone(), Some(1)).await;
    assert_eq!(store.claim_with("a", claim(1)).await.next_tick, None);
    store.advance(MINUTE).await;
    assert!(store.due("default", &["r"]).await.rules.is_empty());
    assert_eq!(store.fire_one(firing(&paused)).await, CronFiringResult::Stale);
}

pub async fn paused_queue_receives_ticks(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.store.set_paused("default", true).await.expect("pauses");
    assert_eq!(store.claim_with("a", claim(1)).await.next_tick, Some(MINUTE));
    store.advance(MINUTE).await;
    assert!(matches!(store.fire_one(firing(&record)).await, CronFiringResult::Fired(_)));
    assert!(store.claim("a", 1).await.is_empty());
}

pub async fn moving_queue_fires_no_ticks(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    let transfer_node = NodeId::fresh();
    store.store.set_transfer_mark("default", transfer_node, Some("elsewhere")).await.expect("marks");
    store.advance(MINUTE).await;
    assert_eq!(store.claim_with("a", claim(1)).await.next_tick, None);
    assert!(store.due("default", &["r"]).await.rules.is_empty());
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
    assert_eq!(store.put(revised(&record), Some(1)).await, PutCronResult::Moving);
    assert_eq!(store.put(CronRecord::new(rule("new"), 2, None), None).await, PutCronResult::Moving);
    store.store.set_transfer_mark("default", transfer_node, None).await.expect("unmarks");
    assert!(matches!(store.fire_one(firing(&record)).await, CronFiringResult::Fired(_)));
}

pub async fn fired_job_can_be_claimed_at_once(store: TestStore) {
    let job = job("report").priority(duly::Priority::High).tag("nightly").max_attempts(3).timeout(MINUTE);
    let record = store.put_rule(CronRule::new("r", "* * * * *", job).expect("a rule")).await;
    store.advance(MINUTE).await;
    let tick = record.next.expect("given");
    let push =
        Push::new("report", "[1]").priority(duly::Priority::High).tag("nightly").id(tick_job_id("r", tick)).keep(KEEP);
    store.fire(vec![CronFiring { jobs: vec![push], ..firing(&record) }]).await;
    let held = store.claim_one("a").await;
    assert_eq!((held.job.id, held.job.args.as_str()), (tick_job_id("r", tick), "[1]"));
    assert_eq!((held.job.priority, held.job.tags), (duly::Priority::High, vec!["nightly".to_owned()]));
}

pub async fn tick_with_jitter_is_due_later(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    let tick = record.next.expect("given");
    let push = tick_job(&record, tick).at(tick + SECOND);
    store.fire(vec![CronFiring { jobs: vec![push], ..firing(&record) }]).await;
    let claimed = store.claim_with("a", claim(1)).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, Some(SECOND));
    store.advance(SECOND).await;
    assert_eq!(store.claim("a", 1).await.len(), 1);
}

pub async fn several_ticks_of_a_rule_fire_together(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(3 * MINUTE).await;
    let tick = record.next.expect("given");
    let ticks = [tick, tick + MINUTE, tick + 2 * MINUTE];
    let jobs = ticks.iter().map(|tick| tick_job(&record, *tick)).collect();
    let (next, last) = (Some(tick + 3 * MINUTE), Some(ticks[2]));
    let fired = store.fire_one(CronFiring { jobs, next, last, ..firing(&record) }).await;
    assert_eq!(fired, CronFiringResult::Fired(ticks.map(|tick| PushResult::New(tick_job_id("r", tick))).into()));
    assert_eq!(store.claim("a", 9).await.len(), 3);
    assert_eq!(store.cron("r").await.expect("is there").last, last);
}

pub async fn skipped_tick_pushes_nothing(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    let fired = store.fire_one(CronFiring { jobs: Vec::new(), last: None, ..firing(&record) }).await;
    assert_eq!(fired, CronFiringResult::Fired(Vec::new()));
    assert!(store.claim("a", 9).await.is_empty());
    let after = store.cron("r").await.expect("is there");
    assert_eq!((after.last, after.next), (None, Some(store.now() + MINUTE)));
}

pub async fn job_of_a_tick_has_a_derived_id(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    let id = store.push(tick_job(&record, record.next.expect("given"))).await.id();
    store.advance(MINUTE).await;
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Fired(vec![PushResult::Existing(id)]));
    assert_eq!(store.claim("a", 9).await.len(), 1, "one job per tick, however it came");
}

/// Fires a tick, claims its job and advances to the next tick. Returns the due rule and the running job.
async fn running(store: &TestStore, overlap_wait: OverlapWait) -> (CronRecord, HeldJob) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    assert!(matches!(store.fire_one(firing_without_overlap(&record, overlap_wait)).await, CronFiringResult::Fired(_)));
    let held = store.claim_one("a").await;
    store.advance(MINUTE).await;
    let due = store.due("default", &[]).await;
    assert_eq!(names(&due), ["r"]);
    (due.rules.into_iter().next().expect("is due"), held)
}

pub async fn overlap_skip_keeps_the_unfinished_job(store: TestStore) {
    let (record, held) = running(&store, OverlapWait::Never).await;
    let fired = store.fire_one(firing_without_overlap(&record, OverlapWait::Never)).await;
    assert_eq!(fired, CronFiringResult::Fired(vec![PushResult::Existing(held.job.id)]));
    assert_eq!(store.cron("r").await.expect("is there").next, Some(store.now() + MINUTE), "the tick is skipped");
    assert!(store.claim("a", 9).await.is_empty());
}

pub async fn overlap_queue_waits_for_the_running_job(store: TestStore) {
    let (record, held) = running(&store, OverlapWait::WhileRunning).await;
    assert_eq!(
        store.fire_one(firing_without_overlap(&record, OverlapWait::WhileRunning)).await,
        CronFiringResult::Waiting(held.job.id)
    );
    let waiting = store.cron("r").await.expect("is there");
    assert!(waiting.waiting && waiting.next == record.next, "its tick is kept: {waiting:?}");
    assert!(store.due("default", &[]).await.rules.is_empty(), "it is not due until its recheck");
    store.settle("a", &held, Outcome::Ack).await;
    let due = store.due("default", &["r", "none"]).await;
    assert_eq!(due.rules, std::slice::from_ref(&waiting));
    assert!(matches!(
        store.fire_one(firing_without_overlap(&waiting, OverlapWait::WhileRunning)).await,
        CronFiringResult::Fired(_)
    ));
    assert!(!store.cron("r").await.expect("is there").waiting);
    assert_eq!(store.claim_one("a").await.job.id, tick_job_id("r", record.next.expect("given")));

    // The job of the second tick runs now, so the third tick waits.
    store.advance(MINUTE).await;
    let third = store.cron("r").await.expect("is there");
    let running = store.fire_one(firing_without_overlap(&third, OverlapWait::WhileRunning)).await;
    assert!(matches!(running, CronFiringResult::Waiting(_)));
}

pub async fn overlap_replace_waits_for_the_unfinished_job(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    store.fire_one(firing_without_overlap(&record, OverlapWait::WhileUnfinished)).await;
    let old = tick_job_id("r", record.next.expect("given"));
    store.advance(MINUTE).await;
    let next = store.cron("r").await.expect("is there");
    assert_eq!(
        store.fire_one(firing_without_overlap(&next, OverlapWait::WhileUnfinished)).await,
        CronFiringResult::Waiting(old)
    );
    assert_eq!(store.state(old).await, Some(State::Ready));
    store.remove(old).await;
    let waiting = store.due("default", &["r"]).await.rules.pop().expect("is due again");
    assert!(matches!(
        store.fire_one(firing_without_overlap(&waiting, OverlapWait::WhileUnfinished)).await,
        CronFiringResult::Fired(_)
    ));
    assert_eq!(store.claim_one("a").await.job.id, tick_job_id("r", next.next.expect("has one")));
}

pub async fn waiting_tick_is_checked_again_later(store: TestStore) {
    let (record, _) = running(&store, OverlapWait::WhileRunning).await;
    let fired = store.fire(vec![firing_without_overlap(&record, OverlapWait::WhileRunning)]).await;
    assert_eq!(fired.next_tick, Some(WAITING_TICK_RECHECK_INTERVAL), "in case the notification is lost");
    store.advance(WAITING_TICK_RECHECK_INTERVAL).await;
    assert_eq!(names(&store.due("default", &[]).await), ["r"]);
}

pub async fn rule_moved_to_another_queue_keeps_its_tick(store: TestStore) {
    let record = store.put_rule(rule("r")).await;
    store.advance(MINUTE).await;
    let other = CronRule::new("r", "* * * * *", job("tick").queue("other")).expect("a rule");
    let requeued = CronRecord::new(other, 2, record.next);
    assert_eq!(store.put(requeued.clone(), Some(1)).await, PutCronResult::Applied);
    assert_eq!(store.cron("r").await, Some(requeued.clone()));
    assert!(store.due("default", &["r"]).await.rules.is_empty());
    assert_eq!(store.fire_one(firing(&record)).await, CronFiringResult::Stale);
    assert_eq!(store.claim_with("a", claim(1)).await.next_tick, None);
    assert_eq!(store.due("other", &[]).await.rules, std::slice::from_ref(&requeued));
    let fired = store.store.fire_crons("other", vec![firing(&requeued)]).await.expect("fires");
    assert!(matches!(fired.results[0], CronFiringResult::Fired(_)));
    let reply = store.claim_with("a", Claim { queue: "other".into(), ..claim(9) }).await;
    assert_eq!((reply.jobs.len(), reply.next_tick), (1, Some(MINUTE)));
    let page = store.store.crons(None, None).await.expect("lists");
    assert_eq!(page.rules.len(), 1);
}

pub async fn many_rules_fire_in_bounded_batches(store: TestStore) {
    let many = CRON_FIRINGS_MAX + 7;
    for n in 0..many {
        store.put_rule(rule(&format!("r{n}"))).await;
    }
    store.advance(MINUTE).await;
    for expected in [CRON_FIRINGS_MAX, 7, 0] {
        let due = store.due("default", &[]).await;
        assert_eq!(due.rules.len(), expected);
        let fired = store.fire(due.rules.iter().map(firing).collect()).await;
        assert!(fired.results.iter().all(|fired| matches!(fired, CronFiringResult::Fired(_))));
    }
    assert_eq!(store.store.counts().await.expect("counts")[0].ready, many as u64);
}

pub async fn earliest_tick_fires_first(store: TestStore) {
    for (name, after) in [("b", 2), ("a", 3), ("c", 1)] {
        store.put(CronRecord::new(rule(name), 1, Some(store.now() + after * SECOND)), None).await;
    }
    store.advance(2 * SECOND).await;
    let due = store.due("default", &[]).await;
    assert_eq!(names(&due), ["c", "b"]);
}

pub async fn args_of_a_rule_survive_byte_for_byte(store: TestStore) {
    let args = r#"{"big":9007199254740993,"none":[],"text":"ü\n\u0000 \"quoted\"","float":1.10}"#;
    let rule = CronRule::new("r", "* * * * *", Push::new("tick", args)).expect("a rule");
    store.put_rule(rule).await;
    assert_eq!(store.cron("r").await.expect("is there").rule.args, args);
}
