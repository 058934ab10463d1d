//! Metrics, and the reference pages that list all metrics, errors and settings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::metrics::METRICS;
use duly::{Ctx, Duly, Push};

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

/// Counts in `NAME` what was added, and in `NAME-` what was subtracted.
impl metrics::GaugeFn for RecordedMetric {
    fn increment(&self, value: f64) {
        match value >= 0.0 {
            true => self.add(value),
            false => RecordedMetric(self.0.clone(), format!("{}-", self.1)).add(-value),
        }
    }
    fn decrement(&self, value: f64) {
        self.increment(-value);
    }
    fn set(&self, _: f64) {}
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
        metrics::Gauge::from_arc(self.metric(key))
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
    let running = |suffix: &str| recorder.value(&format!("duly_jobs_running{{queue=q}}{suffix}"));
    assert_eq!((running(""), running("-")), (3.0, 3.0), "started and ended");
    assert_eq!((settled("ack"), settled("bury"), settled("retry")), (2.0, 1.0, 0.0));
    assert_eq!(recorder.value("duly_job_lateness_seconds{queue=q}"), 3.0);
    assert_eq!(recorder.value("duly_attempt_duration_seconds{queue=q,kind=one}"), 3.0);
    assert_eq!(recorder.value("duly_store_request_duration_seconds{op=push}"), 2.0);
    assert_eq!(recorder.value("duly_store_errors_total{op=list,code=invalid}"), 1.0);
    assert_eq!(recorder.value("duly_locks_acquired_total{}"), 1.0);
    assert_eq!(recorder.value("duly_calls_total{method=duly.ping}"), 1.0);
    assert_eq!(recorder.value("duly_call_replies_total{result=ok}"), 1.0);
}

#[test]
fn pushed_metric_counts_ticks_and_transactional_pushes() {
    let recorder = TestRecorder::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let dir = test_support::temp_dir();
            let (file, clock) = (dir.path().join("shop.db"), duly::Clock::manual());
            let duly = Duly::builder(file.to_str().expect("plain")).clock(clock.clone()).open().await.expect("opens");
            duly.cron("tick", "* * * * *").push(Push::new("tick", "1")).await.expect("puts");
            clock.advance(Duration::from_secs(61));
            let worker = duly.worker().on_kind("tick", async |_: Ctx| ());
            assert_eq!(worker.drain().await.expect("drains").acked, 1);
            let mut conn = duly::rusqlite::Connection::open(&file).expect("opens");
            let tx = conn.transaction().expect("begins");
            let after = duly.push_in(&tx, [Push::new("row", "1"), Push::new("row", "2")]).expect("pushes");
            tx.commit().expect("commits");
            after.wake();
        });
    });
    assert_eq!(recorder.value("duly_jobs_pushed_total{queue=default,kind=tick}"), 1.0);
    assert_eq!(recorder.value("duly_jobs_pushed_total{queue=default,kind=row}"), 2.0);
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
    duly.jobs().list(invalid).await.expect_err("invalid cursor");
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
