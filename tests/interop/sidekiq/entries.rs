//! Entries formatted like Ruby's, malformed entries, and transfers of entries.

use std::time::Duration;

use duly::store::JobStore;
use duly::{Ctx, Duly, Filter, Push, State};
use serde_json::json;

use super::sandbox::*;

#[tokio::test(flavor = "multi_thread")]
async fn entries_survive_a_round_trip_through_ruby() {
    let sandbox = Sandbox::new().await;
    let mut texts = vec![
        "null",
        "[]",
        "{}",
        " [ 1 , 2 ] ",
        r#"{"url":"https:\/\/x\/","e":"\u00e9 \ud83d\ude00","tab":"\t\u0001"}"#,
        "[0.1, 100.0, 1e2, -0.0, 0.0001, 123456789012345678901234567890]",
        "[999999999999999.0, 1234567890123456.5]",
        r#"{"b":1,"b":2}"#,
        "9007199254740993",
    ];
    // Newer versions of Ruby's json format these differently, and change even the output of older versions.
    if sandbox.ruby("JSON.generate(1e20)") == json!("1.0e+20") {
        texts.push("[1e15, 1234567890123456.0, 1.5e16, 1e20, 1E-7, 5e-324]");
    }
    for (n, text) in texts.iter().enumerate() {
        let push = || Push::new("Echo", *text).tag("mail").timeout(Duration::from_secs(5));
        let now = sandbox.duly.push(push()).await.expect("pushes").id();
        sandbox.duly.push(push().after(Duration::from_secs(3600 + n as u64))).await.expect("pushes");
        assert_eq!(
            sandbox.duly.jobs().get(now).await.expect("succeeds").expect("exists").job.args,
            *text,
            "duly returns the args as pushed"
        );
    }
    assert_eq!(sandbox.ruby("Ask.stable?"), json!([]), "ready and scheduled");
    let worker = sandbox
        .duly
        .worker()
        .on_kind("Echo", |ctx: Ctx| async move { Err::<(), _>(format!("é\n\"{}\"", ctx.job().args)) });
    worker.drain().await.expect("drains");
    assert_eq!(sandbox.ruby("[Sidekiq::RetrySet.new.size, Ask.stable?]"), json!([texts.len(), []]), "retried");
    let fields = sandbox.ruby("Sidekiq::ScheduledSet.new.first.item.keys");
    assert_eq!(fields, json!(["retry", "queue", "class", "tags", "duly", "args", "jid", "created_at"]));
    // Ruby can reschedule each entry, which stays the same member.
    let size = sandbox.ruby(
        "Sidekiq::ScheduledSet.new.each { |job| job.reschedule(Time.now + 7200) }; Sidekiq::ScheduledSet.new.size",
    );
    assert_eq!(size, json!(texts.len()));
    assert!(sandbox.duly.push(Push::new("Echo", "1e400")).await.expect_err("rejected").to_string().contains("Ruby"));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_due_at_once_have_distinct_scores() {
    let sandbox = Sandbox::new().await;
    let at = std::time::SystemTime::now() + Duration::from_secs(600);
    for _ in 0..3 {
        let pushes: Vec<_> = (0..100).map(|n| Push::new("Echo", format!("[{n}]")).at(at)).collect();
        sandbox.duly.push_all(pushes).await.expect("pushes");
    }
    let scores = sandbox.ruby("Ask.scores('schedule').uniq.size");
    assert_eq!(scores, json!(300));
    sandbox.ruby("Sidekiq::ScheduledSet.new.first.add_to_queue");
    assert_eq!(sandbox.ruby("[Sidekiq::ScheduledSet.new.size, Sidekiq::Queue.new.size]"), json!([299, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_entry_goes_to_the_dead_set_and_the_worker_continues() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Echo.perform_async('first')");
    for malformed in ["{not json", "null", "7", "\"text\"", r#"{"args":[]}"#, "[1,2]"] {
        sandbox.redis(&["LPUSH", "queue:default", malformed]);
    }
    sandbox.redis(&["ZADD", "schedule", "1.5", "{not json either"]);
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    sandbox.ruby("Echo.perform_async('last')");
    sandbox.until_ran(2).await;
    test_support::until("the dead", async || sandbox.ruby("Sidekiq::DeadSet.new.size") == json!(7)).await;
    let shown = sandbox.ruby(
        "Sidekiq::DeadSet.new.map { |job| [job.klass, job.display_args[0].class.to_s, job['error_class']] }.uniq",
    );
    assert_eq!(shown, json!([["Duly::Unreadable", "String", "Duly::Unreadable"]]));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_set_holds_at_most_ten_thousand() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Ask.bury(10_050)");
    sandbox.redis(&["ZADD", "dead", "1000.5", r#"{"class":"Echo","very":"old"}"#]);
    sandbox.ruby("Echo.set(retry: 0).perform_async('x')");
    sandbox.duly.worker().on_kind("Echo", |_| async { Err::<(), _>("no") }).drain().await.expect("drains");
    assert_eq!(sandbox.ruby("[Sidekiq::DeadSet.new.size, Sidekiq::DeadSet.new.first.args]"), json!([10_000, ["x"]]));
}

/// Ruby decides how many dead jobs are kept: only a burial trims the set, as in Ruby, and never by very many at once.
#[tokio::test(flavor = "multi_thread")]
async fn dead_set_is_trimmed_only_by_burials() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Ask.bury(12_500)");
    sandbox.redis(&["ZADD", "dead", "1000.5", r#"{"class":"Echo","very":"old"}"#]);
    let size = || sandbox.redis(&["ZCARD", "dead"])[0].parse::<usize>().expect("a number");
    sandbox.duly.store().prune("default", 1_000).await.expect("prunes");
    assert_eq!(size(), 12_501);
    for expected in [11_502, 10_503, 10_000] {
        sandbox.ruby("Echo.set(retry: 0).perform_async('x')");
        sandbox.duly.worker().on_kind("Echo", |_| async { Err::<(), _>("no") }).drain().await.expect("drains");
        assert_eq!(size(), expected);
    }
    assert!(!sandbox.redis(&["ZRANGE", "dead", "0", "0"])[0].contains("very"), "the oldest go first");
}

#[tokio::test(flavor = "multi_thread")]
async fn live_installation_is_transferred() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("40.times { |n| Echo.perform_async(n) }; Echo.perform_in(3600, 'later'); Echo.set(queue: 'post').perform_async('post')");
    sandbox.ruby("Echo.set(retry: 0).perform_async('dead')");
    // Runs all jobs pushed so far; one of them dies.
    let worker = sandbox
        .duly
        .worker()
        .concurrency(1)
        .on_kind("Echo", |ctx: Ctx| async move { if ctx.job().args == "[\"dead\"]" { Err("no") } else { Ok(()) } });
    worker.drain().await.expect("drains");
    sandbox.ruby("40.times { |n| Echo.perform_async(n) }");
    let target = Duly::open(":memory:").await.expect("opens");
    let reports = sandbox.duly.transfer_to(&target).run().await.expect("transfers");
    let report = |queue: &str| reports.iter().find(|report| report.queue == queue).expect("transferred").clone();
    assert_eq!((report("default").ready, report("default").scheduled, report("default").dead), (40, 1, 1));
    assert_eq!(report("post").ready, 1);
    assert_eq!(
        sandbox.ruby("Sidekiq::Stats.new.then { |s| [s.enqueued, s.scheduled_size, s.retry_size, s.dead_size] }"),
        json!([0, 0, 0, 0])
    );
    let dead = target.jobs().list(Filter::all().state(State::Dead)).await.expect("lists").jobs;
    assert_eq!((dead[0].job.kind.as_str(), dead[0].job.args.as_str()), ("Echo", "[\"dead\"]"));
}

/// Ruby allows any text in tags and classes; duly's records cannot hold some of them.
#[tokio::test(flavor = "multi_thread")]
async fn names_only_valid_in_ruby_do_not_disturb_a_transfer() {
    let sandbox = Sandbox::new().await;
    let target = Duly::open(sandbox.store().replacen("sidekiq", "redis", 1)).await.expect("opens");
    let tags = r#"["ok","with space","a\tb","line\nbreak","nul\u00000x",""]"#;
    let entry = |class: &str, jid: &str| format!(r#"{{"class":"{class}","args":[7],"jid":"{jid}","tags":{tags}}}"#);
    sandbox.redis(&["LPUSH", "queue:default", &entry("Echo", "0123456789abcdef01234567")]);
    sandbox.redis(&["LPUSH", "queue:default", &entry("Ec\\tho", "0123456789abcdef01234568")]);
    sandbox.redis(&["SADD", "queues", "default"]);
    let error = sandbox.duly.transfer_to(&target).run().await.expect_err("one class is not a valid kind");
    assert!(error.to_string().contains("\"Ec\\tho\"") && error.to_string().contains("remove the job first"), "{error}");
    sandbox.redis(&["LPOP", "queue:default"]);
    sandbox.duly.transfer_to(&target).run().await.expect("transfers");
    let jobs = target.jobs().list(Filter::default()).await.expect("lists").jobs;
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].job.kind.as_str(), jobs[0].job.args.as_str()), ("Echo", "[7]"));
    assert_eq!(jobs[0].job.tags, ["ok"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transfer_onto_the_same_keys_is_rejected_with_any_prefix() {
    let sandbox = Sandbox::new().await;
    sandbox.duly.push(Push::new("Echo", "[1]")).await.expect("pushes");
    let store = sandbox.store();
    let other = format!("{store}{}prefix=two", if store.contains('?') { '&' } else { '?' });
    let same = Duly::open(other.replacen("localhost", "127.0.0.1", 1)).await.expect("opens");
    let error = sandbox.duly.transfer_to(&same).run().await.expect_err("rejected");
    assert!(error.to_string().contains("is the store that the jobs are in; name another store"), "{error}");
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["1"]);
}

/// Sidekiq treats entries with the same jid as separate jobs, and so does a transfer.
#[tokio::test(flavor = "multi_thread")]
async fn entries_with_the_same_jid_all_arrive() {
    for url in [Some(":memory:"), None] {
        let sandbox = Sandbox::new().await;
        let target = url.map_or_else(|| sandbox.store().replacen("sidekiq", "redis", 1), str::to_owned);
        let target = Duly::open(target).await.expect("opens");
        let entry = |n: u32, at: u32| {
            format!(
                r#"{{"class":"Echo","queue":"default","args":[{n}],"jid":"0123456789abcdef01234567","created_at":{at}.5}}"#
            )
        };
        for (n, at) in [(1, 100), (2, 100), (3, 200)] {
            sandbox.redis(&["LPUSH", "queue:default", &entry(n, at)]);
        }
        for _ in 0..5 {
            sandbox.redis(&["LPUSH", "queue:default", r#"{"class":"Echo","args":[5]}"#]);
        }
        sandbox.redis(&["ZADD", "schedule", "4000000000", &entry(4, 300)]);
        sandbox.redis(&["SADD", "queues", "default"]);
        sandbox.redis(&["LPUSH", "queue:default", "no job at all"]);
        let reports = sandbox.duly.transfer_to(&target).run().await.expect("transfers");
        let report = &reports[0];
        assert_eq!((report.ready, report.scheduled, report.already_present, report.remaining), (8, 1, 0, 1));
        let jobs = target.jobs().list(Filter::default()).await.expect("lists").jobs;
        let mut args: Vec<&str> = jobs.iter().map(|record| record.job.args.as_str()).collect();
        args.sort_unstable();
        assert_eq!(args, ["[1]", "[2]", "[3]", "[4]", "[5]", "[5]", "[5]", "[5]", "[5]"]);
        assert_eq!(sandbox.redis(&["LRANGE", "queue:default", "0", "-1"]), ["no job at all"]);
    }
}

/// Python can write half of a surrogate pair, which Ruby cannot parse.
#[tokio::test(flavor = "multi_thread")]
async fn entry_unreadable_to_ruby_is_not_lost_by_a_retry() {
    let sandbox = Sandbox::new().await;
    let entry =
        r#"{"class":"Echo","queue":"default","args":["\ud83d"],"jid":"0123456789abcdef01234567","created_at":1.5}"#;
    sandbox.redis(&["ZADD", "dead", "100", entry]);
    sandbox.redis(&["SADD", "queues", "default"]);
    let dead = sandbox.duly.jobs().list(Filter::all().state(State::Dead)).await.expect("lists").jobs;
    sandbox.duly.jobs().reschedule(dead[0].job.id, duly::job::Due::Now).await.expect("reschedules");
    let worker = sandbox.duly.worker().on_kind("Echo", |_| async { Err::<(), _>("no".to_owned()) });
    worker.drain().await.expect("drains");
    let record = sandbox.duly.jobs().get(dead[0].job.id).await.expect("succeeds").expect("exists");
    assert_eq!((record.state, record.job.kind.as_str(), record.attempts), (State::Scheduled, "Echo", 1));
    assert_eq!(record.job.args, r#"["\ud83d"]"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_ruby_has_no_timeout_in_practice() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Echo.perform_async(1)");
    sandbox.duly.push(Push::new("Echo", "[2]")).await.expect("pushes");
    sandbox.duly.push(Push::new("Echo", "[3]").timeout(2 * HOUR)).await.expect("pushes");
    let timeouts = async |duly: &Duly| {
        let jobs = duly.jobs().list(Filter::all()).await.expect("lists").jobs;
        let mut timeouts: Vec<_> = jobs.into_iter().map(|record| (record.job.args, record.job.timeout)).collect();
        timeouts.sort();
        timeouts
    };
    let before = timeouts(&sandbox.duly).await;
    assert!(before[0].1 > 8_000 * HOUR, "{before:?}");
    assert_eq!([before[1].1, before[2].1], [HOUR, 2 * HOUR]);
    let away = Duly::open(":memory:").await.expect("opens");
    sandbox.duly.transfer_to(&away).run().await.expect("moves away");
    assert_eq!(timeouts(&away).await, before);
    away.transfer_to(&sandbox.duly).run().await.expect("moves back");
    assert_eq!(timeouts(&sandbox.duly).await, before);
}
