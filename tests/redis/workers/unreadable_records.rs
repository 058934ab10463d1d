//! Unexpected records: a newer format, or missing.

use std::sync::{Arc, Mutex};

use duly::job::Due;
use duly::store::Node;
use duly::store::{AttemptEnd, Claim, CronStore, JobStore};
use duly::worker::Event;
use duly::{Ctx, Outcome, Priority, Push, State};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Location, on_each};
use crate::helpers::{LONG, open, until};
use test_support::servers::Reply;

on_each![
    record_of_a_newer_format_is_released,
    ready_entries_without_a_record_are_dropped,
    job_with_deleted_failures_runs_once,
    dead_node_with_wrong_count_causes_no_busy_loop,
    unreadable_due_rules_do_not_starve_the_others,
];

/// A newer duly runs at the same time: records that only it can read wait for it, whatever handlers there are.
async fn record_of_a_newer_format_is_released(location: Location) {
    let duly = open(&location.url).await;
    duly.queues().pause("default").await.expect("pauses");
    let push = |priority| Push::new("note", format!("\"{priority}\"")).priority(priority).unique(priority.to_string());
    let ids = duly.push_all(Priority::ALL.map(push)).await.expect("pushes");
    let job = location.key("job");
    let mut records = Vec::new();
    for pushed in &ids {
        let id = *pushed.id().as_bytes();
        let Reply::Text(record) = location.send("HGET", &job, &[&id]) else { panic!("no record of {pushed:?}") };
        let newer = [b"2", &record[1..]].concat();
        location.send("HSET", &job, &[&id, &newer]);
        records.push((id, record, newer));
    }
    let recorded: Arc<Mutex<Vec<String>>> = Arc::default();
    let (handler_recorded, stop) = (recorded.clone(), CancellationToken::new());
    let (settled, mut outcomes) = mpsc::unbounded_channel();
    let worker = duly
        .worker()
        .on_any_kind(move |ctx: Ctx| {
            handler_recorded.lock().expect("no thread panics while holding it").push(ctx.job().args.clone());
            async {}
        })
        .on_event(move |event| {
            if let Event::Settled { outcome, .. } = event {
                let _ = settled.send(outcome.as_str());
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.queues().resume("default").await.expect("resumes");
    for _ in &ids {
        let outcome = tokio::time::timeout(LONG, outcomes.recv()).await.expect("in time").expect("works");
        assert_eq!(outcome, "release");
    }
    assert!(recorded.lock().expect("no thread panics while holding it").is_empty(), "no handler has recorded them");
    for (pushed, (id, record, newer)) in ids.iter().zip(&records) {
        let found = duly.jobs().get(pushed.id()).await.expect("a reply").expect("is there");
        assert_eq!((found.state, found.attempts), (State::Scheduled, 0), "it waits, and no attempt was counted");
        assert_eq!(location.send("HGET", &job, &[id]), Reply::Text(newer.clone()), "nothing was changed");
        // The newer version would run it now; here the record becomes readable instead.
        location.send("HSET", &job, &[id, record]);
        duly.jobs().reschedule(pushed.id(), Due::Now).await.expect("moves");
    }
    until("all are done", async || duly.queues().counts().await.expect("counts")[0].done == 4).await;
    let mut args = recorded.lock().expect("no thread panics while holding it").clone();
    args.sort();
    assert_eq!(args, ["\"critical\"", "\"high\"", "\"low\"", "\"normal\""]);
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

/// The records were deleted: there is nothing to run, and nothing may stay held.
async fn ready_entries_without_a_record_are_dropped(location: Location) {
    let duly = open(&location.url).await;
    duly.push_all((0..1_200).map(|n| Push::new("note", n.to_string()))).await.expect("pushes");
    location.send("DEL", &location.key("job"), &[]);
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    for _ in 0..2 {
        let claim = Claim::new("default", 1_000);
        assert!(store.claim(node.id, claim).await.expect("claims").jobs.is_empty());
    }
    let counts = &duly.queues().counts().await.expect("counts")[0];
    assert_eq!((counts.ready, counts.running), (0, 0));
    assert!(store.heartbeat(&node).await.expect("sends a heartbeat").held.is_empty(), "and nothing is counted as held");
    store.leave(node.id).await.expect("leaves");
}

/// The failure records were deleted: the job has no history, but it still completes.
async fn job_with_deleted_failures_runs_once(location: Location) {
    let duly = open(&location.url).await;
    for n in 0..2 {
        let id = duly.push(Push::new("note", "{}")).await.expect("pushes").id();
        duly.jobs().reschedule(id, Due::Now).await.expect("moves");
        // Deleted while it waits, then while it runs.
        let delete_meta = |location: &Location| drop(location.send("DEL", &location.key("meta"), &[]));
        if n == 0 {
            delete_meta(&location);
        }
        let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
        store.heartbeat(&node).await.expect("sends a heartbeat");
        let claim = |resync| Claim { resync, ..Claim::new("default", 1) };
        let held = store.claim(node.id, claim(false)).await.expect("claims").jobs.remove(0);
        delete_meta(&location);
        let resynced = store.claim(node.id, claim(true)).await.expect("claims").jobs.remove(0);
        assert_eq!((resynced.job.id, resynced.fence), (held.job.id, held.fence));
        let held = if n == 0 { held } else { resynced };
        let end = AttemptEnd::from_held(&held, Outcome::Ack, held.job.keep);
        assert!(store.settle(node.id, vec![end]).await.expect("settles").is_empty(), "it is recorded");
        assert_eq!(duly.jobs().get(id).await.expect("a reply").expect("is there").state, State::Done);
        store.leave(node.id).await.expect("leaves");
    }
}

/// The count of a dead node's held jobs is wrong, and there are more than one operation searches: the search still
/// ends.
async fn dead_node_with_wrong_count_causes_no_busy_loop(location: Location) {
    let duly = open(&location.url).await;
    let store = duly.store();
    let mut nodes = [(); 3].map(|()| Node::fresh(vec!["default".into()]));
    for node in &mut nodes {
        node.lease = std::time::Duration::from_secs(60);
        store.heartbeat(node).await.expect("sends a heartbeat");
    }
    let [dead, busy, searching] = &nodes;
    duly.push_all((0..6_010).map(|n| Push::new("note", n.to_string()))).await.expect("pushes");
    let claim = |max, suspect| Claim { suspect, ..Claim::new("default", max) };
    assert_eq!(store.claim(dead.id, claim(10, None)).await.expect("claims").jobs.len(), 10);
    for _ in 0..6 {
        assert_eq!(store.claim(busy.id, claim(1_000, None)).await.expect("claims").jobs.len(), 1_000);
    }
    location.send("HSET", &location.key("conf"), &[dead.id.to_string().as_bytes(), b"15"]);
    store.leave(dead.id).await.expect("leaves");
    let mut taken = 0;
    for operation in 0.. {
        let claimed = store.claim(searching.id, claim(0, Some(dead.id))).await.expect("claims");
        taken += claimed.taken_back;
        if !claimed.suspect_has_more {
            break;
        }
        assert!(operation < 30, "the search does not end");
    }
    assert_eq!(taken, 10);
    for node in [busy, searching] {
        store.leave(node.id).await.expect("leaves");
    }
}

/// More unreadable rules than a few requests return.
const UNREADABLE_RULES: usize = 3_100;

/// Rules that only a newer duly can read stay due. They delay neither due rules nor those whose job has ended.
async fn unreadable_due_rules_do_not_starve_the_others(location: Location) {
    let duly = open(&location.url).await;
    let rule = async |name: String| duly.cron(name, "* * * * * *").push(Push::new("tick", "1")).await.expect("puts");
    let (rules, ticks) = (location.key("cron"), location.key("ticks"));
    rule("bad".to_owned()).await;
    let names: Vec<String> = (0..UNREADABLE_RULES).map(|number| format!("bad {number}")).collect();
    for names in names.chunks(500) {
        let fields: Vec<&[u8]> = names.iter().flat_map(|name| [name.as_bytes(), b"9"]).collect();
        location.send("HSET", &rules, &fields);
        let scores: Vec<&[u8]> = names.iter().flat_map(|name| [b"1".as_slice(), name.as_bytes()]).collect();
        location.send("ZADD", &ticks, &scores);
    }
    rule("good".to_owned()).await;
    // The tick of this rule waits for a job that has ended: it is not due, and read because of its name.
    rule("freed".to_owned()).await;
    let Reply::Text(mut freed) = location.send("HGET", &rules, &[b"freed"]) else { panic!("no rule") };
    freed[50] = b'1';
    location.send("HSET", &rules, &[b"freed", &freed]);
    location.send("ZADD", &ticks, &[b"9000000000000000", b"freed"]);
    until("both are read", async || {
        let due = duly.store().due_crons("default", &["freed".to_owned()]).await.expect("reads").rules;
        ["good", "freed"].iter().all(|name| due.iter().any(|record| record.rule.name == *name))
    })
    .await;
    let stop = CancellationToken::new();
    let run = tokio::spawn(duly.worker().on_kind("tick", async |_: Ctx| {}).run_until(stop.clone()));
    until("the readable rules fire", async || {
        duly.crons().get("good").await.expect("reads").expect("is there").last.is_some()
    })
    .await;
    stop.cancel();
    run.await.expect("no panic").expect("works");
}
