//! Cron rules are transferred with their queue: each exactly once, with its next tick, even after kills.

use std::time::{Duration, SystemTime};

use duly::Duly;
use duly::cron::{CronRecord, CronRule, Missed, Overlap};
use duly::store::{CronStore, PutCron};

use crate::transfer::stores::*;

/// Stores rules of two queues, one of them paused, one with a due tick. Returns them as stored.
async fn fill_rules(duly: &Duly) -> Vec<CronRecord> {
    for (name, queue) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let rule = CronRule::new(name, "0 3 * * *", job(name).queue(queue)).expect("a rule");
        duly.crons().put(rule.missed(Missed::All(3)).overlap(Overlap::Skip)).await.expect("puts");
    }
    duly.crons().pause("b").await.expect("pauses");
    let mut due = duly.crons().get("c").await.expect("reads").expect("is there");
    let revision = due.revision;
    let micros = |ago: u64| SystemTime::UNIX_EPOCH + Duration::from_micros(1_790_000_000_000_000 - ago);
    (due.next, due.last, due.revision) = (Some(micros(0)), Some(micros(60_000_000)), revision + 1);
    duly.store().put_cron(PutCron { record: due, expected_revision: Some(revision) }).await.expect("puts");
    duly.crons().list().await.expect("lists")
}

pub async fn rules_arrive_with_their_ticks(pair: StorePair) {
    let (old, new) = pair.open().await;
    let rules = fill_rules(&old).await;
    old.push(job("one").queue("one")).await.expect("pushes");
    let reports = old.transfer_to(&new).run().await.expect("transfers");
    let counts: Vec<(&str, u64)> = reports.iter().map(|report| (report.queue.as_str(), report.cron_rules)).collect();
    assert_eq!(counts, [("one", 2), ("two", 1)], "also of a queue without a job");
    assert_eq!(new.crons().list().await.expect("lists"), rules);
    assert!(old.crons().list().await.expect("lists").is_empty());
}

pub async fn rules_exist_once_after_a_kill_at_every_operation(pair: StorePair) {
    for calls in 0..200 {
        let (old, new) = pair.open().await;
        let rules = fill_rules(&old).await;
        let killed = old.transfer_to(&new).kill_after(calls).run().await.is_err();
        old.transfer_to(&new).run().await.expect("goes on");
        assert_eq!(new.crons().list().await.expect("lists"), rules, "killed after {calls}");
        assert!(old.crons().list().await.expect("lists").is_empty(), "killed after {calls}");
        if !killed {
            assert!(calls > 10, "it was killed at least ten times: {calls}");
            return;
        }
    }
    panic!("the transfer never ends");
}

pub async fn existing_rule_takes_over_a_pending_tick(pair: StorePair) {
    let (old, new) = pair.open().await;
    let rules = fill_rules(&old).await;
    let due = rules.iter().find(|record| record.rule.name == "c").expect("is there");
    let rule = CronRule::new("c", "0 4 * * *", job("new").queue("two")).expect("a rule");
    new.crons().put(rule.clone()).await.expect("puts");
    old.transfer_to(&new).run().await.expect("transfers");
    let stored = new.crons().get("c").await.expect("reads").expect("is there");
    assert_eq!((&stored.rule, stored.next), (&rule, due.next), "the existing rule stays, and no tick is lost");
}
