//! Nothing that duly took is ever lost, and nothing is doubled that it was told twice.

use std::collections::HashMap;
use std::time::Duration;

use duly::{JobId, Push};
use serde_json::json;

use super::child;
use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_nothing() {
    const JOBS: usize = 60;
    let bed = Bed::new().await;
    bed.ruby(&format!("{JOBS}.times {{ |n| Echo.perform_async(n) }}"));
    let before = bed.ruby("Ask.queue");
    let survivor = bed.run(bed.worker(&["Other"]));
    let killed = child::start(&bed.store(), 20);
    assert_eq!(bed.redis(&["LLEN", "queue:default"]), [(JOBS - 20).to_string()], "it holds some");
    drop(killed);
    bed.until("they are back", || bed.redis(&["LLEN", "queue:default"]) == [JOBS.to_string()]).await;
    assert_eq!(bed.ruby("Ask.queue"), before, "byte for byte, at the front, by a node that cannot even run them");
    survivor.end().await;
    let running = bed.run(bed.worker(&["Echo"]));
    let mut times: HashMap<String, usize> = HashMap::new();
    bed.until_ran(JOBS).await.iter().for_each(|(_, args)| *times.entry(args.to_string()).or_default() += 1);
    assert!(times.len() == JOBS && times.values().all(|times| *times == 1));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_beside_others_doubles_nothing() {
    const JOBS: usize = 400;
    let bed = Bed::new().await;
    bed.ruby(&format!("{JOBS}.times {{ |n| Echo.perform_in(0.5 + n / 400.0, n) }}"));
    let workers: Vec<_> = (0..3).map(|_| bed.run(bed.worker(&["Echo"]))).collect();
    // Ruby's own pollers, as fast as they can.
    bed.ruby("Ask.promote(4)");
    bed.until_ran(JOBS).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut times: HashMap<String, usize> = HashMap::new();
    bed.ran().iter().for_each(|(_, args)| *times.entry(args.to_string()).or_default() += 1);
    assert!(times.len() == JOBS && times.values().all(|times| *times == 1), "{times:?}");
    for worker in workers {
        worker.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_said_twice_is_one_job() {
    let bed = Bed::new().await;
    let push = || {
        vec![
            Push::new("Echo", "[1]").id(JobId::named("a")),
            Push::new("Echo", "[2]").id(JobId::named("b")).queue("post"),
        ]
    };
    let first = bed.duly.push_all(push()).await.expect("pushes");
    let second = bed.duly.push_all(push()).await.expect("pushes");
    assert!(first.iter().all(|one| one.is_new()) && second.iter().all(|one| !one.is_new()));
    assert_eq!(bed.ruby("Sidekiq::Queue.all.map(&:size)"), json!([1, 1]));
    let jid = bed.ruby("Sidekiq::Queue.new.first.jid");
    assert_eq!(jid, json!(JobId::named("a").to_string()), "found under the id that duly has printed");
    assert!(bed.duly.remove(JobId::named("a")).await.is_ok());
    assert_eq!(bed.ruby("Sidekiq::Queue.new.size"), json!(0));
}
