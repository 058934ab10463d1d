//! What a worker finds that it did not expect: records of a newer duly, and none at all.

use std::sync::{Arc, Mutex};

use duly::store::{AttemptEnd, Claim};
use duly::{Ctx, Due, Event, Node, Outcome, Priority, Push, State};
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
];

/// A newer duly runs beside this one: what only that one can read waits for it, whatever handlers there are here.
async fn record_of_a_newer_format_is_released(location: Location) {
    let duly = open(&location.url).await;
    duly.pause_queue("default").await.expect("pauses");
    let push = |priority| Push::new("note", format!("\"{priority}\"")).priority(priority).unique(priority.to_string());
    let ids = duly.push_all(Priority::ALL.map(push)).await.expect("pushes");
    let job = location.key("job");
    let mut records = Vec::new();
    for pushed in &ids {
        let id = *pushed.id().as_bytes();
        let Reply::Text(record) = location.ask("HGET", &job, &[&id]) else { panic!("no record of {pushed:?}") };
        let newer = [b"2", &record[1..]].concat();
        location.ask("HSET", &job, &[&id, &newer]);
        records.push((id, record, newer));
    }
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (note, stop) = (seen.clone(), CancellationToken::new());
    let (settled, mut ends) = mpsc::unbounded_channel();
    let worker = duly
        .worker()
        .on_any_kind(move |ctx: Ctx| {
            note.lock().expect("nobody panics with it").push(ctx.job().args.clone());
            async {}
        })
        .on_event(move |event| {
            if let Event::Settled { outcome, .. } = event {
                let _ = settled.send(outcome.as_str());
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.resume_queue("default").await.expect("resumes");
    for _ in &ids {
        let outcome = tokio::time::timeout(LONG, ends.recv()).await.expect("in time").expect("works");
        assert_eq!(outcome, "release");
    }
    assert!(seen.lock().expect("nobody panics with it").is_empty(), "no handler has seen them");
    for (pushed, (id, record, newer)) in ids.iter().zip(&records) {
        let found = duly.get(pushed.id()).await.expect("looks").expect("is there");
        assert_eq!((found.state, found.attempts), (State::Scheduled, 0), "it waits, and nothing was counted");
        assert_eq!(location.ask("HGET", &job, &[id]), Reply::Text(newer.clone()), "nothing was changed");
        // The newer one would run it now; here it becomes readable instead.
        location.ask("HSET", &job, &[id, record]);
        duly.reschedule(pushed.id(), Due::Now).await.expect("moves");
    }
    until("all are done", async || duly.counts().await.expect("counts")[0].done == 4).await;
    let mut args = seen.lock().expect("nobody panics with it").clone();
    args.sort();
    assert_eq!(args, ["\"critical\"", "\"high\"", "\"low\"", "\"normal\""]);
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

/// Somebody has deleted the records: there is nothing to run, and nothing must stay held for ever.
async fn ready_entries_without_a_record_are_dropped(location: Location) {
    let duly = open(&location.url).await;
    duly.push_all((0..1_200).map(|n| Push::new("note", n.to_string()))).await.expect("pushes");
    location.ask("DEL", &location.key("job"), &[]);
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("beats");
    for _ in 0..2 {
        let claim = Claim { queue: "default".into(), max: 1_000, resync: false, suspect: None, kinds: None };
        assert!(store.claim(node.id, claim).await.expect("claims").jobs.is_empty());
    }
    let counts = &duly.counts().await.expect("counts")[0];
    assert_eq!((counts.ready, counts.running), (0, 0));
    assert!(store.heartbeat(&node).await.expect("beats").held.is_empty(), "nor is anything counted as held");
    store.leave(node.id).await.expect("leaves");
}

/// Somebody has deleted what was known of failures: the job has no past any more, but it still ends.
async fn job_with_deleted_failures_runs_once(location: Location) {
    let duly = open(&location.url).await;
    for n in 0..2 {
        let id = duly.push(Push::new("note", "{}")).await.expect("pushes").id();
        duly.reschedule(id, Due::Now).await.expect("moves");
        // Deleted while it waits, then while it runs.
        let forget = |location: &Location| drop(location.ask("DEL", &location.key("meta"), &[]));
        if n == 0 {
            forget(&location);
        }
        let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
        store.heartbeat(&node).await.expect("beats");
        let claim = |redo| Claim { queue: "default".into(), max: 1, resync: redo, suspect: None, kinds: None };
        let held = store.claim(node.id, claim(false)).await.expect("claims").jobs.remove(0);
        forget(&location);
        let again = store.claim(node.id, claim(true)).await.expect("claims").jobs.remove(0);
        assert_eq!((again.job.id, again.fence), (held.job.id, held.fence));
        let held = if n == 0 { held } else { again };
        let end = AttemptEnd::from_held(&held, Outcome::Ack, held.job.keep);
        assert!(store.settle(node.id, vec![end]).await.expect("settles").is_empty(), "it is recorded");
        assert_eq!(duly.get(id).await.expect("looks").expect("is there").state, State::Done);
        store.leave(node.id).await.expect("leaves");
    }
}

/// The count of what a dead node holds is wrong, and there is more than one step goes through: the search ends all the same.
async fn dead_node_with_wrong_count_causes_no_busy_loop(location: Location) {
    let duly = open(&location.url).await;
    let store = duly.store();
    let mut nodes = [(); 3].map(|()| Node::fresh(vec!["default".into()]));
    for node in &mut nodes {
        node.lease = std::time::Duration::from_secs(60);
        store.heartbeat(node).await.expect("beats");
    }
    let [dead, busy, searching] = &nodes;
    duly.push_all((0..6_010).map(|n| Push::new("note", n.to_string()))).await.expect("pushes");
    let claim = |max, suspect| Claim { queue: "default".into(), max, resync: false, suspect, kinds: None };
    assert_eq!(store.claim(dead.id, claim(10, None)).await.expect("claims").jobs.len(), 10);
    for _ in 0..6 {
        assert_eq!(store.claim(busy.id, claim(1_000, None)).await.expect("claims").jobs.len(), 1_000);
    }
    location.ask("HSET", &location.key("conf"), &[dead.id.to_string().as_bytes(), b"15"]);
    store.leave(dead.id).await.expect("leaves");
    let mut taken = 0;
    for step in 0.. {
        let claimed = store.claim(searching.id, claim(0, Some(dead.id))).await.expect("claims");
        taken += claimed.taken_back;
        if !claimed.suspect_has_more {
            break;
        }
        assert!(step < 30, "it goes on and on");
    }
    assert_eq!(taken, 10);
    for node in [busy, searching] {
        store.leave(node.id).await.expect("leaves");
    }
}
