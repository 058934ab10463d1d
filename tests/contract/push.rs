//! Push: the stored job, and repeated pushes.

use std::time::Duration;

use duly::{JobId, Outcome, Priority, Push, PushResult, State};

use crate::test_store::*;

pub async fn pushed_job_keeps_every_field(store: TestStore) {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let push = Push::new("mail", r#"{"to":"ada"}"#)
        .queue("outgoing")
        .priority(Priority::High)
        .max_attempts(7)
        .timeout(Duration::from_millis(1_500))
        .keep(Duration::from_secs(60))
        .unique("ada")
        .tags(["a", "b"])
        .traceparent(trace);
    let id = store.push(push).await.id();

    let record = store.get(id).await.expect("is there");
    assert_eq!(record.state, State::Ready);
    assert_eq!((record.attempts, record.crashes), (0, 0));
    let job = record.job;
    assert_eq!((job.id, job.queue.as_str(), job.kind.as_str()), (id, "outgoing", "mail"));
    assert_eq!(job.args, r#"{"to":"ada"}"#);
    assert_eq!((job.priority, job.max_attempts), (Priority::High, 7));
    assert_eq!((job.timeout, job.keep), (Duration::from_millis(1_500), Duration::from_secs(60)));
    assert_eq!(
        (job.unique.as_ref().map(duly::job::UniqueKey::as_str), job.traceparent.as_deref()),
        (Some("ada"), Some(trace))
    );
    assert_eq!(job.tags, ["a", "b"]);
}

pub async fn each_job_of_a_batch_keeps_its_queue_due_and_priority(store: TestStore) {
    let pushed = store
        .push_all(vec![
            job("later").after(SECOND),
            job("other").queue("other"),
            job("low").priority(Priority::Low),
            job("now"),
            job("at").at(std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000)),
        ])
        .await;
    assert!(pushed.iter().all(|p| matches!(p, PushResult::New(_))));

    assert_eq!(kinds(&store.claim("a", 9).await), ["now", "low"]);
    store.advance(SECOND).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["later"]);
    assert_eq!(store.state(pushed[1].id()).await, Some(State::Ready), "waits in its own queue");
    assert_eq!(store.state(pushed[4].id()).await, Some(State::Scheduled));
}

pub async fn repeated_push_changes_nothing_in_any_state(store: TestStore) {
    let id = JobId::from_name("invoice:7");
    let again = || job("again").id(id);
    assert_eq!(store.push(job("first").id(id)).await, PushResult::New(id));
    assert_eq!(store.push(again()).await, PushResult::Existing(id), "ready");

    let held = store.claim_one("a").await;
    assert_eq!(store.push(again()).await, PushResult::Existing(id), "running");

    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    assert_eq!(store.push(again()).await, PushResult::Existing(id), "scheduled");

    store.advance(SECOND).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(store.push(again()).await, PushResult::Existing(id), "done");
    assert_eq!(store.get(id).await.expect("kept").job.kind, "first");
}

pub async fn id_is_remembered_after_its_job_is_removed(store: TestStore) {
    let (done, removed) = (JobId::from_name("done"), JobId::from_name("removed"));
    store.push(job("done").id(done).keep(Duration::ZERO)).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    store.push(job("removed").id(removed)).await;
    store.remove(removed).await;

    store.advance(REMEMBER - SECOND).await;
    for id in [done, removed] {
        assert_eq!(store.get(id).await, None);
        assert_eq!(store.push(job("again").id(id)).await, PushResult::Existing(id));
    }
    assert!(store.claim("a", 9).await.is_empty(), "no job was pushed");
}

pub async fn id_is_forgotten_some_time_after_its_job_is_removed(store: TestStore) {
    let id = JobId::from_name("once");
    store.push(job("first").id(id).keep(Duration::ZERO)).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;

    for _ in 0..2 {
        store.advance(REMEMBER).await;
        store.prune().await;
    }
    assert_eq!(store.push(job("second").id(id)).await, PushResult::New(id));
}

pub async fn duplicate_id_in_one_push_is_one_job(store: TestStore) {
    let id = JobId::from_name("twice");
    let pushed = store.push_all(vec![job("first").id(id), job("second").id(id)]).await;
    assert_eq!(pushed, [PushResult::New(id), PushResult::Existing(id)]);
    assert_eq!(kinds(&store.claim("a", 9).await), ["first"]);
}

pub async fn same_id_in_two_queues_is_two_jobs(store: TestStore) {
    let id = JobId::from_name("both");
    assert_eq!(store.push(job("here").id(id)).await, PushResult::New(id));
    assert_eq!(store.push(job("there").id(id).queue("other")).await, PushResult::New(id));
}

pub async fn args_survive_byte_for_byte(store: TestStore) {
    let large = format!("\"{}\"", "ü".repeat(500_000));
    let texts = [
        "null",
        "9007199254740993",
        "-0.10000000000000000555",
        "[]",
        "{}",
        r#"{"b":1,"a":[{},[]],"b":2}"#,
        "\"\\u0000 \\ud83d\\ude00 ☃ 😀\"",
        "  [ 1 ,\n 2 ]  ",
        &large,
    ];
    let pushed = store.push_all(texts.iter().map(|text| Push::new("echo", *text)).collect()).await;
    let held = store.claim("a", texts.len()).await;
    for ((text, pushed), held) in texts.iter().zip(pushed).zip(held) {
        assert_eq!(&held.job.args, text);
        assert_eq!(&store.get(pushed.id()).await.expect("running").job.args, text);
    }
}

pub async fn due_in_the_past_means_now(store: TestStore) {
    store.push(job("past").at(std::time::UNIX_EPOCH)).await;
    store.push(job("nothing").after(Duration::ZERO)).await;
    let held = store.claim("a", 9).await;
    assert_eq!(kinds(&held), ["past", "nothing"]);
    assert_eq!(held[0].due, held[0].job.pushed, "lateness counts from the push");
}
