//! Jobs pushed by duly and run by Ruby, the other way round, and both at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::admin::CancelResult;
use duly::store::{AttemptEnd, Claim, JobStore, Node};
use duly::{Args, Ctx, Outcome, Push, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::sandbox::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn jobs_pushed_by_duly_run_in_ruby() {
    let sandbox = Sandbox::new().await;
    let other = sandbox.run(sandbox.worker(&["Unrelated"]));
    let _sidekiq = sandbox.sidekiq(&["default", "post"]);
    let pushes = vec![
        Push::new("Echo", r#"[1, "zwei", {"drei": [3.5, null]}]"#),
        Push::new("Echo", r#"{"to": "ada"}"#).queue("post"),
        Push::new("Echo", "[\"later\"]").after(SECOND),
    ];
    let started = std::time::Instant::now();
    sandbox.duly.push_all(pushes).await.expect("pushes");
    let ran = sandbox.until_ran(3).await;
    // Ruby's poller starts after ten seconds and then runs every few, so a duly node has promoted the job.
    assert!(started.elapsed() < 5 * SECOND, "{:?}", started.elapsed());
    let assert_ran = |args: Value| assert!(ran.contains(&("ruby".into(), args.clone())), "{args} in {ran:?}");
    assert_ran(json!([1, "zwei", {"drei": [3.5, null]}]));
    assert_ran(json!([{"to": "ada"}]));
    assert_ran(json!(["later"]));
    assert_eq!(sandbox.ruby("Sidekiq::Queue.all.map(&:size).sum + Sidekiq::ScheduledSet.new.size"), json!(0));
    other.end().await;
}

/// An entry has no place for a mark: only a job that a node of duly runs can be cancelled, and it ends dead.
#[tokio::test(flavor = "multi_thread")]
async fn running_job_is_cancelled_and_waiting_one_is_refused() {
    let sandbox = Sandbox::new().await;
    let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
    let running = sandbox.run(sandbox.duly.worker().on_kind("Slow", move |ctx: Ctx| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(());
            ctx.cancelled().await;
            Err::<(), _>("stopped at row 9")
        }
    }));
    let jobs = sandbox.duly.jobs();
    let slow = sandbox.duly.push(Push::new("Slow", "[]")).await.expect("pushes").id();
    let later = sandbox.duly.push(Push::new("Later", "[]").after(60 * SECOND)).await.expect("pushes").id();
    tokio::time::timeout(LONG, started.recv()).await.expect("in time").expect("it starts");

    let refused = jobs.cancel(later).await.expect_err("it waits");
    assert!(refused.code() == "unsupported" && refused.to_string().contains("remove the job instead"), "{refused}");
    assert!(jobs.get(later).await.expect("reads").is_some(), "it is unchanged");
    let cancelled = jobs.cancel(slow).await.expect("cancels");
    assert!(matches!(cancelled, CancelResult::Cancelling { .. }), "{cancelled:?}");
    let ended = tokio::time::timeout(LONG, jobs.wait(slow)).await.expect("in time").expect("waits").expect("is kept");
    assert_eq!(ended.state, State::Dead);
    let error = &ended.failures.last().expect("it has one").error;
    assert!(error.contains("cancelled: stopped at row 9"), "{error}");
    assert_eq!(jobs.cancel(slow).await.expect("replies"), CancelResult::Ended(State::Dead));
    let summary = running.end().await;
    assert_eq!((summary.buried, summary.cancelled), (1, 0), "Sidekiq has no cancelled jobs");
}

/// Takes Ruby's positional arguments.
#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
    times: u32,
}

impl Args for Greet {
    const KIND: &'static str = "Greet";
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_pushed_by_ruby_run_in_duly() {
    let sandbox = Sandbox::new().await;
    let greetings: SharedList<String> = SharedList::default();
    let notes = greetings.clone();
    let worker = sandbox.worker(&["Echo"]).on(move |greet: Greet, _: Ctx| {
        notes.lock().expect("no panic").push(greet.name.repeat(greet.times as usize));
        async {}
    });
    let running = sandbox.run(worker);
    let code = "Echo.perform_async(1, 'zwei'); Echo.perform_in(0.5, 'later'); \
                Sidekiq::Client.push_bulk('class' => Echo, 'args' => (1..50).map { |n| [n] }); \
                Sidekiq::Client.push('class' => 'Greet', 'args' => ['ha', 2]); \
                Echo.set(queue: 'default').perform_async({ 'a' => [] })";
    sandbox.ruby(code);
    let ran = sandbox.until_ran(53).await;
    assert!(ran.iter().all(|(runner, _)| runner == "rust"));
    for expected in [json!([1, "zwei"]), json!(["later"]), json!([50]), json!([{"a": []}])] {
        assert!(ran.iter().any(|(_, args)| *args == expected), "{expected}");
    }
    assert_eq!(greetings.lock().expect("no panic")[..], ["haha".to_owned()]);
    test_support::until("its count", async || sandbox.ruby("Sidekiq::Stats.new.processed") == json!(54)).await;
    assert_eq!(sandbox.ruby("Sidekiq::Stats::History.new(1).processed.values"), json!([54]));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ruby_and_duly_share_a_queue_and_run_each_job_once() {
    const JOBS: usize = 1_000;
    let sandbox = Sandbox::new().await;
    let _sidekiq = sandbox.sidekiq(&["default"]);
    let running = sandbox.run(sandbox.worker(&["Echo"]).queue("default", 5));
    let half = JOBS / 2;
    sandbox.ruby(&format!("Sidekiq::Client.push_bulk('class' => Echo, 'args' => (0...{half}).map {{ |n| [n] }})"));
    sandbox.ruby("3.times { |n| Echo.perform_in(0.2 * n, 'later', n) }");
    let pushes: Vec<_> = (half..JOBS).map(|n| Push::new("Echo", format!("[{n}]"))).collect();
    sandbox.duly.push_all(pushes).await.expect("pushes");
    let mut jobs = JOBS + 3;
    sandbox.until_ran(jobs).await;
    // One side may be slow to start on a busy machine: goes on until each has run a job.
    while sandbox.runs_by("rust") == 0 || sandbox.runs_by("ruby") == 0 {
        assert!(jobs < 20 * JOBS, "one side runs none: {} of {jobs} ran in duly", sandbox.runs_by("rust"));
        let more: Vec<_> = (jobs..jobs + half).map(|n| Push::new("Echo", format!("[{n}]"))).collect();
        sandbox.duly.push_all(more).await.expect("pushes");
        jobs += half;
        sandbox.until_ran(jobs).await;
    }
    tokio::time::sleep(SECOND).await;
    let mut times: HashMap<String, usize> = HashMap::new();
    let ran = sandbox.ran();
    ran.iter().for_each(|(_, args)| *times.entry(args.to_string()).or_default() += 1);
    assert!(times.values().all(|times| *times == 1) && times.len() == jobs, "{times:?}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_handler_are_left_for_ruby() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("200.times { |n| RubyOnly.perform_async(n); Echo.perform_async(n) if n % 10 == 0 }");
    let before = sandbox.ruby("Ask.queue.reject { |entry| entry.include?('\"class\":\"Echo\"') }");
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    sandbox.until_ran(20).await;
    assert_eq!(sandbox.ruby("Ask.queue"), before, "unchanged, and in their order");
    let args: Vec<Value> = sandbox.ran().into_iter().map(|(_, args)| args).collect();
    let mut sorted: Vec<u64> = args.iter().filter_map(|args| args[0].as_u64()).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..20).map(|n| n * 10).collect::<Vec<_>>());
    let _sidekiq = sandbox.sidekiq(&["default"]);
    sandbox.until_ran(220).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_and_dead_jobs_use_sidekiq_sets() {
    let sandbox = Sandbox::new().await;
    let (retries, burials) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = || {
        let (retries, burials) = (retries.clone(), burials.clone());
        sandbox.duly.worker().on_kind("Echo", move |ctx: Ctx| {
            let before = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::SeqCst);
            let outcome = match ctx.job().args.as_str() {
                "[\"retry\"]" if before(&retries) < 2 => Err("no disk".to_owned()),
                "[\"bury\"]" if before(&burials) < 1 => Ok(Outcome::bury("hopeless")),
                "[\"drop\"]" | "[\"never dead\"]" | "[\"at once\"]" => Err("dropped".to_owned()),
                _ => Ok(Outcome::Ack),
            };
            async { outcome }
        })
    };
    sandbox.ruby(
        "Echo.perform_async('retry'); Echo.perform_async('bury'); Echo.set(retry: false).perform_async('drop'); \
              Echo.set(retry: 0, dead: false).perform_async('never dead'); Echo.set(retry: 0).perform_async('at once')",
    );
    let running = sandbox.run(worker());
    test_support::until("five processed", async || sandbox.redis(&["GET", "stat:processed"]) == ["5"]).await;
    // The worker is stopped while Ruby reads the sets.
    running.end().await;
    assert_eq!(sandbox.ruby("Sidekiq::Stats.new.failed"), json!(5));
    let fields = "%w[class args error_message error_class retry_count queue]";
    let retry = sandbox.ruby(&format!("Sidekiq::RetrySet.new.map {{ |job| job.item.values_at(*{fields}) }}"));
    assert_eq!(retry, json!([["Echo", ["retry"], "no disk", "Duly::Failure", 0, "default"]]));
    let wait = sandbox.ruby("Sidekiq::RetrySet.new.first.then { |job| (job.score - job['failed_at']).round }");
    assert!((15..=25).contains(&wait.as_i64().expect("a number")), "Sidekiq's own backoff: {wait}");
    let dead =
        sandbox.ruby("Sidekiq::DeadSet.new.map { |job| [job.args[0], job['error_message'], job['retry_count']] }.sort");
    assert_eq!(dead, json!([["at once", "dropped", 0], ["bury", "hopeless", 0]]));
    // Ruby can reschedule the entry, which stays the same member; then it retries it twice.
    sandbox.ruby("Sidekiq::RetrySet.new.first.reschedule(Time.now + 3600)");
    assert_eq!(
        sandbox.ruby("[Sidekiq::RetrySet.new.size, Sidekiq::RetrySet.new.first.at > Time.now + 3000]"),
        json!([1, true])
    );
    for count in 6..=7 {
        sandbox.ruby("Sidekiq::RetrySet.new.first.retry");
        let running = sandbox.run(worker());
        test_support::until("another run", async || sandbox.redis(&["GET", "stat:processed"]) == [count.to_string()])
            .await;
        running.end().await;
        if count == 6 {
            let again = sandbox.ruby("Sidekiq::RetrySet.new.map { |job| [job['retry_count'], job['retried_at'].class.to_s, job['failed_at'].class.to_s] }");
            // A manual retry decrements the count first.
            assert_eq!(again, json!([[0, "Float", "Float"]]));
        }
    }
    assert_eq!(sandbox.ruby("Sidekiq::RetrySet.new.size"), json!(0));
    sandbox.ruby("Sidekiq::DeadSet.new.find { |job| job.args == ['bury'] }.retry");
    let running = sandbox.run(worker());
    test_support::until("the dead one's run", async || sandbox.redis(&["GET", "stat:processed"]) == ["8"]).await;
    running.end().await;
    assert_eq!(sandbox.ruby("Ask.stable?"), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_released_together_return_to_the_front_in_order() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("6.times { |n| Echo.perform_async(n) }");
    let before = sandbox.redis(&["LRANGE", "queue:default", "0", "-1"]);
    let node = Node::fresh(vec!["default".to_owned()]);
    sandbox.duly.store().heartbeat(&node).await.expect("sends a heartbeat");
    let mut held = sandbox.duly.store().claim(node.id, Claim::new("default", 4)).await.expect("claims").jobs;
    assert_eq!(held.len(), 4);
    held.rotate_left(2);
    let ends = held.iter().map(|held| AttemptEnd::from_held(held, Outcome::release(Duration::ZERO), Duration::ZERO));
    let lost = sandbox.duly.store().settle(node.id, ends.collect()).await.expect("settles");
    assert!(lost.is_empty());
    assert_eq!(sandbox.redis(&["LRANGE", "queue:default", "0", "-1"]), before);
}
