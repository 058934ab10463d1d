//! Middleware, and the helpers for tests of programs: pushed jobs and crash points.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::{CrashAt, assert_not_pushed, assert_pushed};
use duly::worker::{AttemptFuture, Next};
use duly::{Args, ConflictKind, Ctx, Duly, Error, Middleware, Outcome, Push, PushExt, PushResult, Retry, State};
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
    assert_eq!(duly.jobs().get(id).await.expect("reads").expect("is there").job.tags, ["a", "b"]);
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
            id if id == duly::JobId::from_name("refused") => Err(Error::conflict(ConflictKind::Refused, "not today")),
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
    assert!(duly.queues().counts().await.expect("counts").is_empty(), "no job of the batch was pushed");
    let pushes = ["\"panic\"", "\"bury\"", "1"].map(|args| Push::new("one", args).max_attempts(1));
    let ids: Vec<_> = duly.push_all(pushes).await.expect("pushes").iter().map(PushResult::id).collect();
    let summary = duly.worker().on_kind("one", async |_: Ctx| ()).drain().await.expect("drains");
    assert_eq!((summary.acked, summary.buried), (1, 2));
    let error = |record: duly::JobRecord| record.failures.last().map(|failure| failure.error.clone());
    let errors = [
        error(duly.jobs().get(ids[0]).await.expect("reads").expect("is there")),
        error(duly.jobs().get(ids[1]).await.expect("reads").expect("is there")),
    ];
    assert_eq!(errors, [Some("panicked: in the middleware".into()), Some("not for us".into())]);
}

/// A middleware that reads every push, rewrites mails, and remembers what it has seen.
#[derive(Clone, Default)]
struct Recorder(Log);

impl Recorder {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }

    fn record(&self, event: String) {
        self.0.lock().expect("not poisoned").push(event);
    }
}

/// An error with a value that its text does not contain.
#[derive(Debug)]
struct Rejected {
    code: u32,
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the bank has rejected it")
    }
}

impl std::error::Error for Rejected {}

impl Middleware for Recorder {
    fn before_push(&self, job: Push) -> duly::Result<Push> {
        let args = job.job_args().expect("is JSON").to_owned();
        self.record(format!("{} {args} to {}, {:?}", job.job_kind(), job.job_queue(), job.job_unique()));
        match args.as_str() {
            "\"no\"" => Err(Error::conflict(ConflictKind::Refused, "not today")),
            // The rule's id, queue and key must survive this.
            "\"tick\"" => Ok(job.queue("elsewhere").unique("other").id(duly::JobId::fresh()).tag("seen")),
            _ => Ok(job),
        }
    }

    fn after_push(&self, jobs: &[PushResult]) {
        self.record(format!("pushed {}", jobs.len()));
    }

    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        Box::pin(async move {
            let args = ctx.job().args.replace("\"name\"", "\"to\"");
            let result = next.run(&ctx.with_args(args)).await;
            if let Err(error) = &result {
                self.record(format!("code {:?}", error.downcast_ref::<Rejected>().map(|error| error.code)));
            }
            result
        })
    }
}

#[tokio::test]
async fn middleware_replaces_args_and_gets_the_error_itself() {
    let recorder = Recorder::default();
    let duly = Duly::builder(":memory:").middleware(recorder.clone()).open().await.expect("opens");
    let id = duly.push(Push::new("email", r#"{"name":"ada"}"#).max_attempts(1)).await.expect("pushes").id();
    let handler = async |email: Email, ctx: Ctx| {
        assert_eq!((email.to.as_str(), ctx.job().args.as_str()), ("ada", r#"{"to":"ada"}"#));
        Err::<(), _>(Rejected { code: 7 })
    };
    duly.worker().on(handler).drain().await.expect("drains");
    assert_eq!(recorder.take(), [r#"email {"name":"ada"} to default, None"#, "pushed 1", "code Some(7)"]);
    let record = duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!(record.job.args, r#"{"name":"ada"}"#, "the stored job keeps its args");
    assert_eq!(record.failures[0].error, "the bank has rejected it");
}

#[tokio::test]
async fn middleware_sees_cron_ticks() {
    let (recorder, clock) = (Recorder::default(), duly::Clock::manual());
    let duly = Duly::builder(":memory:").clock(clock.clone()).middleware(recorder.clone()).open().await.expect("opens");
    duly.cron("tick", "* * * * *")
        .overlap(duly::cron::Overlap::Skip)
        .push(Push::new("one", "\"tick\""))
        .await
        .expect("puts");
    duly.cron("no", "* * * * *").push(Push::new("one", "\"no\"").queue("refused")).await.expect("puts");
    clock.advance(Duration::from_secs(61));
    let worker = duly.worker().queue("default", 1).queue("refused", 1).on_kind("one", async |_: Ctx| ());
    assert_eq!(worker.drain().await.expect("drains").acked, 1);
    let mut seen = recorder.take();
    seen.sort();
    let expected = ["one \"no\" to refused, None", "one \"tick\" to default, Some(\"cron:tick\")", "pushed 1"];
    assert_eq!(seen, expected);
    let jobs = duly.jobs().list(duly::Filter::all()).await.expect("lists").jobs;
    let [job] = &jobs[..] else { panic!("one tick was pushed: {jobs:?}") };
    assert_eq!(
        (job.job.queue.as_str(), job.job.unique.as_ref().map(duly::job::UniqueKey::key)),
        ("default", Some("cron:tick"))
    );
    assert_eq!(job.job.tags, ["seen"]);
    let rule = duly.crons().get("no").await.expect("reads").expect("is there");
    assert!(rule.next.is_some_and(|next| next > clock.now()), "the rejected tick is skipped");
}

#[tokio::test]
async fn middleware_sees_transactional_pushes_after_the_commit() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("shop.db");
    let recorder = Recorder::default();
    let duly = Duly::builder(file.to_str().expect("plain")).middleware(recorder.clone()).open().await.expect("opens");
    let mut conn = duly::rusqlite::Connection::open(&file).expect("opens");
    for commits in [false, true] {
        let tx = conn.transaction().expect("begins");
        let after = duly.push_in(&tx, [Push::new("one", "1"), Push::new("one", "2")]).expect("pushes");
        assert_eq!(recorder.take(), ["one 1 to default, None", "one 2 to default, None"]);
        if commits {
            tx.commit().expect("commits");
            after.wake();
            assert_eq!(recorder.take(), ["pushed 2"]);
        }
    }
    assert_eq!(recorder.take(), Vec::<String>::new(), "a transaction without a commit pushed nothing");
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
    let record = duly.jobs().get(id).await.expect("reads").expect("is there");
    let done = !crashed || point == CrashAt::AfterSettle;
    assert_eq!(record.state, if done { State::Done } else { State::Running }, "{point:?}: nothing is recorded");
    worker().drain().await.expect("drains");
    let record = duly.jobs().get(id).await.expect("reads").expect("is there");
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
