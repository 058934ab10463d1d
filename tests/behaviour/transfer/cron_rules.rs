//! Cron rules go along with their queue: each once, at the tick it was at, whatever is killed.

use std::time::{Duration, SystemTime};

use duly::store::PutCron;
use duly::{CronRecord, CronRule, Duly, Missed, Overlap};

use crate::transfer::stores::*;

/// Rules of two queues, one of them paused, one with a tick that is due. Answers all, as they are kept.
async fn fill_rules(duly: &Duly) -> Vec<CronRecord> {
    for (name, queue) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let rule = CronRule::new(name, "0 3 * * *", job(name).queue(queue)).expect("a rule");
        duly.put_cron(rule.missed(Missed::All(3)).overlap(Overlap::Skip)).await.expect("puts");
    }
    duly.pause_cron("b").await.expect("pauses");
    let mut due = duly.get_cron("c").await.expect("looks").expect("is there");
    let was = due.revision;
    let micros = |ago: u64| SystemTime::UNIX_EPOCH + Duration::from_micros(1_790_000_000_000_000 - ago);
    (due.next, due.last, due.revision) = (Some(micros(0)), Some(micros(60_000_000)), was + 1);
    duly.store().put_cron(PutCron { record: due, expected_revision: Some(was) }).await.expect("puts");
    duly.crons().await.expect("lists")
}

pub async fn rules_arrive_with_their_ticks(pair: Pair) {
    let (old, new) = pair.open().await;
    let rules = fill_rules(&old).await;
    old.push(job("one").queue("one")).await.expect("pushes");
    let moved = old.transfer_to(&new).run().await.expect("moves");
    let counts: Vec<(&str, u64)> = moved.iter().map(|moved| (moved.queue.as_str(), moved.cron_rules)).collect();
    assert_eq!(counts, [("one", 2), ("two", 1)], "also of a queue without a job");
    assert_eq!(new.crons().await.expect("lists"), rules);
    assert!(old.crons().await.expect("lists").is_empty());
}

pub async fn rules_exist_once_after_a_kill_at_every_step(pair: Pair) {
    for calls in 0..200 {
        let (old, new) = pair.open().await;
        let rules = fill_rules(&old).await;
        let killed = old.transfer_to(&new).kill_after(calls).run().await.is_err();
        old.transfer_to(&new).run().await.expect("goes on");
        assert_eq!(new.crons().await.expect("lists"), rules, "killed after {calls}");
        assert!(old.crons().await.expect("lists").is_empty(), "killed after {calls}");
        if !killed {
            assert!(calls > 10, "it was killed before: {calls}");
            return;
        }
    }
    panic!("it never comes to its end");
}

pub async fn existing_rule_takes_over_a_pending_tick(pair: Pair) {
    let (old, new) = pair.open().await;
    let rules = fill_rules(&old).await;
    let due = rules.iter().find(|record| record.rule.name == "c").expect("is there");
    let rule = CronRule::new("c", "0 4 * * *", job("new").queue("two")).expect("a rule");
    new.put_cron(rule.clone()).await.expect("puts");
    old.transfer_to(&new).run().await.expect("moves");
    let there = new.get_cron("c").await.expect("looks").expect("is there");
    assert_eq!((&there.rule, there.next), (&rule, due.next), "what the new program wants, and no tick is lost");
}
