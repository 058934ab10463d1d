//! Middleware, metrics, and the helpers for tests of programs: pushed jobs and crash points.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::metrics::METRICS;
use duly::testing::{CrashAt, assert_not_pushed, assert_pushed};
use duly::worker::{AttemptFuture, Next};
use duly::{Args, Ctx, Duly, Error, Middleware, Outcome, Push, PushExt, PushResult, Retry, State};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Email {
    to: String,
}

impl Args for Email {
    const KIND: &'static str = "email";
}

fn email(to: &str) -> Email {
    Email { to: to.into() }
}

/// Events in order.
type Log = Arc<Mutex<Vec<String>>>;

struct LoggingMiddleware(&'static str, Log);

impl LoggingMiddleware {
    fn log(&self, event: &str) {
        self.1.lock().expect("not poisoned").push(format!("{} {event}", self.0));
    }
}

impl Middleware for LoggingMiddleware {
    fn before_push(&self, job: Push) -> duly::Result<Push> {
        self.log("push");
        Ok(job.tag(self.0))
    }

    fn after_push(&self, jobs: &[PushResult]) {
        self.log(&format!("pushed {}", jobs.len()));
    }

    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        Box::pin(async move {
            self.log(&format!("before {}", ctx.job().kind));
            let result = next.run(ctx).await;
            self.log(&format!("after {result:?}"));
            result
        })
    }
}

#[tokio::test]
async fn middleware_runs_in_the_order_given() {
    let log = Log::default();
    let middleware = |name| LoggingMiddleware(name, log.clone());
    let duly =
        Duly::builder(":memory:").middleware(middleware("a")).middleware(middleware("b")).open().await.expect("opens");
    let id = duly.push(email("ada")).await.expect("pushes").id();
    assert_eq!(duly.get(id).await.expect("reads").expect("is there").job.tags, ["a", "b"]);
    let inner = log.clone();
    let handler = move |_: Email, _: Ctx| {
        inner.lock().expect("not poisoned").push("handler".into());
        async {}
    };
    duly.worker().middleware(middleware("c")).on(handler).drain().await.expect("drains");
    let expected = [
        "a push",
        "b push",
        "a pushed 1",
        "b pushed 1",
        "a before email",
        "b before email",
        "c before email",
        "handler",
        "c after Ok(Ack)",
        "b after Ok(Ack)",
        "a after Ok(Ack)",
    ];
    assert_eq!(*log.lock().expect("not poisoned"), expected);
}

/// Rejects a push, returns an outcome without the handler, or panics.
struct RejectingMiddleware;

impl Middleware for RejectingMiddleware {
    fn before_push(&self, job: Push) -> duly::Result<Push> {
        match job.job_id() {
            id if id == duly::JobId::from_name("refused") => Err(Error::Conflict("not today".into())),
            _ => Ok(job),
        }
    }

    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        match ctx.job().args.as_str() {
            "\"panic\"" => panic!("in the middleware"),
            "\"bury\"" => Box::pin(async { Ok(Outcome::bury("not for us")) }),
            _ => next.run(ctx),
        }
    }
}

#[tokio::test]
async fn middleware_can_fail_return_and_panic_like_a_handler() {
    let duly = Duly::builder(":memory:").middleware(RejectingMiddleware).open().await.expect("opens");
    let batch = [Push::new("one", "1"), Push::new("one", "1").id(duly::JobId::from_name("refused"))];
    assert_eq!(duly.push_all(batch).await.expect_err("is refused").code(), "conflict");
    assert!(duly.counts().await.expect("counts").is_empty(), "no job of the batch was pushed");
    let pushes = ["\"panic\"", "\"bury\"", "1"].map(|args| Push::new("one", args).max_attempts(1));
    let ids: Vec<_> = duly.push_all(pushes).await.expect("pushes").iter().map(PushResult::id).collect();
    let summary = duly.worker().on_kind("one", async |_: Ctx| ()).drain().await.expect("drains");
    assert_eq!((summary.acked, summary.buried), (1, 2));
    let error = |record: duly::JobRecord| record.failures.last().map(|failure| failure.error.clone());
    let errors = [
        error(duly.get(ids[0]).await.expect("reads").expect("is there")),
        error(duly.get(ids[1]).await.expect("reads").expect("is there")),
    ];
    assert_eq!(errors, [Some("panicked: in the middleware".into()), Some("not for us".into())]);
}

#[tokio::test]
async fn pushed_jobs_are_found_by_type() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push(email("ada")).await.expect("pushes");
    duly.push(email("eve").queue("slow").after(Duration::from_secs(60))).await.expect("pushes");
    duly.push(Push::new("other", "1")).await.expect("pushes");
    let emails = duly.pushed_jobs::<Email>().await.expect("reads");
    assert_eq!(emails.iter().map(|job| job.to.as_str()).collect::<Vec<_>>(), ["ada", "eve"]);
    assert_eq!(assert_pushed(&emails, &email("eve")).record.state, State::Scheduled);
    assert_not_pushed(&emails, &email("bob"));
    let message = std::panic::catch_unwind(|| assert_pushed(&emails, &email("bob")).record.state).expect_err("fails");
    let message = message.downcast_ref::<String>().expect("a text");
    assert!(message.contains("no job email {\"to\":\"bob\"} was pushed, but 2 of this kind:"), "{message}");
    assert!(message.contains("{\"to\":\"eve\"} in queue slow, scheduled"), "{message}");
}

/// A handler with an external side effect in `charges`. If `careful`, it checks first and charges once.
async fn charge(ctx: Ctx, charges: Arc<AtomicU32>, careful: bool) {
    tokio::task::yield_now().await;
    ctx.crash_point("before the charge").await;
    if !careful || charges.load(Ordering::Relaxed) == 0 {
        charges.fetch_add(1, Ordering::Relaxed);
    }
    ctx.crash_point("charged").await;
    tokio::task::yield_now().await;
}

/// Runs `charge` with a crash at this point, then without. Returns whether it crashed and the number of charges.
async fn run_with_crash(point: CrashAt, careful: bool) -> (bool, u32) {
    let duly = Duly::open(":memory:").await.expect("opens");
    let id = duly.push(Push::new("charge", "1")).await.expect("pushes").id();
    let charges = Arc::new(AtomicU32::new(0));
    let worker = || {
        let charges = charges.clone();
        let worker = duly.worker().default_retry(Retry::fixed(Duration::ZERO));
        worker.on_kind("charge", move |ctx: Ctx| charge(ctx, charges.clone(), careful))
    };
    let crashed = worker().crash_at(point.clone()).drain().await.expect("ends").crashed;
    let record = duly.get(id).await.expect("reads").expect("is there");
    let done = !crashed || point == CrashAt::AfterSettle;
    assert_eq!(record.state, if done { State::Done } else { State::Running }, "{point:?}: nothing is recorded");
    worker().drain().await.expect("drains");
    let record = duly.get(id).await.expect("reads").expect("is there");
    assert_eq!((record.state, record.crashes), (State::Done, u32::from(!done)), "{point:?}");
    (crashed, charges.load(Ordering::Relaxed))
}

#[tokio::test]
async fn crash_test_ends_an_attempt_at_every_point() {
    let named = ["before the charge", "charged"].map(CrashAt::point);
    let points = [CrashAt::BeforeHandler, CrashAt::BeforeSettle, CrashAt::AfterSettle].into_iter().chain(named);
    let waits = (1..=3).map(CrashAt::Await);
    let mut results = Vec::new();
    for point in points.chain(waits) {
        let (crashed, charges) = run_with_crash(point.clone(), true).await;
        assert_eq!(charges, 1, "{point:?}: charged once");
        results.push((point, crashed));
    }
    let passed: Vec<_> = results.iter().filter(|(_, crashed)| !crashed).map(|(point, _)| point.clone()).collect();
    assert_eq!(passed, [CrashAt::Await(3)], "the handler awaits twice");
    assert_eq!(run_with_crash(CrashAt::point("nowhere"), true).await, (false, 1));
}

#[tokio::test]
async fn crash_test_catches_a_handler_that_is_not_idempotent() {
    assert_eq!(run_with_crash(CrashAt::point("charged"), false).await, (true, 2));
    assert_eq!(run_with_crash(CrashAt::BeforeSettle, false).await, (true, 2));
    assert_eq!(run_with_crash(CrashAt::AfterSettle, false).await, (true, 1));
}

/// A recorder that sums all values by name and labels.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Mutex<BTreeMap<String, f64>>>);

struct RecordedMetric(TestRecorder, String);

impl RecordedMetric {
    fn add(&self, value: f64) {
        *self.0.0.lock().expect("not poisoned").entry(self.1.clone()).or_default() += value;
    }
}

impl metrics::CounterFn for RecordedMetric {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _: u64) {}
}

impl metrics::HistogramFn for RecordedMetric {
    fn record(&self, _: f64) {
        self.add(1.0);
    }
}

impl TestRecorder {
    fn metric(&self, key: &metrics::Key) -> Arc<RecordedMetric> {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let definition = METRICS.iter().find(|metric| metric.name == key.name()).expect("is in the list");
        assert_eq!(key.labels().map(metrics::Label::key).collect::<Vec<_>>(), definition.labels, "{}", definition.name);
        Arc::new(RecordedMetric(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn value(&self, name: &str) -> f64 {
        self.0.lock().expect("not poisoned").get(name).copied().unwrap_or(0.0)
    }
}

impl metrics::Recorder for TestRecorder {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        panic!("duly has none: {key}")
    }
    fn register_histogram(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::from_arc(self.metric(key))
    }
}

#[test]
fn every_metric_counts_its_events() {
    let recorder = TestRecorder::default();
    // A single-threaded runtime with a recorder local to this thread: other tests are not counted.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
    metrics::with_local_recorder(&recorder, || runtime.block_on(use_every_metric()));
    let settled =
        |outcome: &str| recorder.value(&format!("duly_jobs_settled_total{{queue=q,kind=one,outcome={outcome}}}"));
    assert_eq!(recorder.value("duly_jobs_pushed_total{queue=q,kind=one}"), 3.0, "one was there already");
    assert_eq!(recorder.value("duly_jobs_claimed_total{queue=q}"), 3.0);
    assert_eq!((settled("ack"), settled("bury"), settled("retry")), (2.0, 1.0, 0.0));
    assert_eq!(recorder.value("duly_job_lateness_seconds{queue=q}"), 3.0);
    assert_eq!(recorder.value("duly_attempt_duration_seconds{queue=q,kind=one}"), 3.0);
    assert_eq!(recorder.value("duly_store_request_duration_seconds{op=push}"), 2.0);
    assert_eq!(recorder.value("duly_store_errors_total{op=list,code=invalid}"), 1.0);
    assert_eq!(recorder.value("duly_locks_acquired_total{}"), 1.0);
    assert_eq!(recorder.value("duly_calls_total{method=duly.ping}"), 1.0);
    assert_eq!(recorder.value("duly_call_replies_total{result=ok}"), 1.0);
}

async fn use_every_metric() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let job = |args: &str| Push::new("one", args).queue("q").max_attempts(1);
    let first = duly::JobId::from_name("first");
    duly.push_all([job("1").id(first), job("2"), job("3")]).await.expect("pushes");
    duly.push(job("1").id(first)).await.expect("is there already");
    let handler = async |ctx: Ctx| if ctx.job().args == "3" { Err("no") } else { Ok(()) };
    duly.worker().queue("q", 9).on_kind("one", handler).drain().await.expect("drains");
    let invalid = duly::Filter::all().cursor("x".to_owned());
    duly.list(invalid).await.expect_err("invalid cursor");
    let guard = duly.lock("l").acquire().await.expect("takes");
    guard.release().await.expect("releases");
    let node = duly.node_id().expect("is one");
    let _: serde_json::Value = duly.call("duly.ping", &()).node(node).reply().await.expect("replies");
}

#[test]
fn reference_lists_every_metric_and_every_error() {
    let read = |name: &str| std::fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).expect("text");
    let reference = read("docs/reference/metrics.md");
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let line = format!("| `{}` | {kind} | {} | {} |", metric.name, labels.join(", "), metric.description);
        assert!(reference.contains(&line), "docs/reference/metrics.md lacks:\n{line}");
    }
    let library = reference.split("## From `duly serve`").next().unwrap_or_default();
    assert_eq!(library.lines().filter(|line| line.starts_with("| `duly_")).count(), METRICS.len());
    let (errors, code) = (read("docs/reference/errors.md"), read("src/error.rs"));
    let body = code.split_once("fn code(").expect("is there").1.split_once("\n    }\n").expect("ends").0;
    let codes: Vec<&str> = body.split('"').skip(1).step_by(2).collect();
    assert!(codes.len() >= 9, "{codes:?}");
    for code in codes {
        assert!(errors.contains(&format!("`{code}`")), "docs/reference/errors.md lacks `{code}`");
    }
}

/// Returns the upper-case words of a text with this prefix.
fn words<'t>(text: &'t str, prefix: &str) -> Vec<&'t str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    text.match_indices(prefix)
        .map(|(start, _)| text[start..].split(|c| !is_part(c)).next().unwrap_or_default())
        .collect()
}

#[test]
fn reference_lists_every_setting() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |name: &str| std::fs::read_to_string(format!("{root}/{name}")).expect("text");
    let (reference, open, config) =
        (read("docs/reference/config.md"), read("src/store/open.rs"), read("cli/src/config.rs"));
    let options = open
        .split_once("const OPTION_NAMES: &str = \"")
        .expect("a list")
        .1
        .split('"')
        .next()
        .expect("ends")
        .replace("; on servers", ",");
    let fields = config.lines().filter_map(|line| line.trim().strip_prefix("pub(crate) ")?.split_once(": "));
    let fields = fields.filter(|(name, _)| !name.contains(' '));
    let names: Vec<String> =
        options.split(", ").chain(fields.map(|(name, _)| name)).map(|name| format!("`{name}`")).collect();
    assert!(names.len() > 15, "{names:?}");
    let foreign = ["sidekiq", "actionhero", "redis_in_action"].map(|system| {
        let code = read(&format!("src/compat/{system}/mod.rs"));
        let list =
            code.split_once("const URL_OPTIONS: &[&str] = &[").expect("a list").1.split(']').next().expect("ends");
        list.split(", ").map(|name| format!("`{}`", name.trim_matches('"'))).collect::<Vec<_>>()
    });
    for name in names.iter().chain(foreign.iter().flatten()) {
        assert!(reference.contains(name), "docs/reference/config.md lacks {name}");
    }
    let mut pending = vec![std::path::PathBuf::from(format!("{root}/cli/src"))];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(std::fs::read_dir(path).expect("readable").map(|entry| entry.expect("readable").path()));
            continue;
        }
        for name in words(&std::fs::read_to_string(&path).expect("text"), "DULY_") {
            assert!(
                reference.contains(&format!("`{name}`")),
                "docs/reference/config.md lacks {name} of {}",
                path.display()
            );
        }
    }
}
