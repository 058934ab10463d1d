//! Handlers: their arguments, their results, and the outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::job::RunOutcome;
use duly::{Ctx, Duly, Error, JobResult, Outcome, Push, PushExt, Retry, State};
use tokio::sync::mpsc;

use crate::worker::{Mail, TIMEOUT, job_record, mail, memory};

#[tokio::test]
async fn handler_receives_its_args_and_context() {
    let duly = memory().await;
    let id = duly.push(mail().max_attempts(3)).await.expect("pushes").id();
    let (sender, mut received) = mpsc::unbounded_channel();
    let handler = move |job: Mail, ctx: Ctx, state: u32| {
        let sender = sender.clone();
        async move {
            assert_eq!(ctx.args::<Mail>().expect("decode"), job);
            let call = (job, ctx.job().id, ctx.attempt(), ctx.fence().0 > 0, state, ctx.is_cancelled());
            sender.send(call).expect("is received");
        }
    };
    let summary = duly.worker().on_with(7u32, handler).drain().await.expect("drains");
    assert_eq!(summary.acked, 1);
    assert_eq!(received.recv().await.expect("ran"), (mail(), id, 1, true, 7, false));
    assert_eq!(job_record(&duly, id).await.state, State::Done);
}

#[tokio::test]
async fn any_error_type_fails_an_attempt_and_is_kept() {
    let duly = memory().await;
    for kind in ["io", "text", "chain", "panic", "none"] {
        duly.push(Push::new(kind, "1").max_attempts(1)).await.expect("pushes");
    }
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);
    let summary = duly
        .worker()
        .on_kind("io", |_| async { Err::<(), _>(std::io::Error::other("no disk")) })
        .on_kind("text", |_| async { Err::<(), _>("plain text") })
        .on_kind("chain", |_| async { Err::<(), _>(Outer(std::io::Error::other("inner"))) })
        .on_kind("panic", |ctx: Ctx| async move {
            if ctx.attempt() > 0 {
                panic!("oh {}", ctx.attempt())
            }
        })
        .on_kind("none", |_| async {})
        .drain()
        .await
        .expect("drains");
    assert_eq!((summary.acked, summary.buried), (1, 4));
    let dead = duly.jobs().list(duly::Filter::all().state(State::Dead).limit(9)).await.expect("lists");
    let mut errors = BTreeMap::new();
    for record in dead.jobs {
        let failures = job_record(&duly, record.job.id).await.failures;
        errors.insert(record.job.kind, failures[0].error.clone());
    }
    assert_eq!(errors["io"], "no disk");
    assert_eq!(errors["text"], "plain text");
    assert_eq!(errors["chain"], "outer: inner");
    assert_eq!(errors["panic"], "panicked: oh 1");
}

#[tokio::test]
async fn args_that_do_not_decode_are_reported_and_kept() {
    let duly = memory().await;
    let id = duly.push(Push::new("mail", r#"{"to":5}"#).max_attempts(1)).await.expect("pushes").id();
    duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains");
    let record = job_record(&duly, id).await;
    assert_eq!(record.state, State::Dead);
    assert!(record.failures[0].error.contains("the args do not decode as behaviour::worker::Mail"), "{record:?}");
}

#[tokio::test]
async fn handlers_can_return_outcomes() {
    let duly = memory().await;
    let ids = duly.push_all(["retry", "bury", "release"].map(|kind| Push::new(kind, "{}"))).await.expect("pushes");
    let summary = duly
        .worker()
        .on_kind("retry", |_| async { Outcome::retry(Duration::from_secs(60), "later") })
        .on_kind("bury", |_| async { Ok::<_, Error>(Outcome::bury("never")) })
        .on_kind("release", |_| async { Outcome::release(Duration::from_secs(60)) })
        .drain()
        .await
        .expect("drains");
    assert_eq!((summary.retried, summary.buried, summary.released), (1, 1, 1));
    let states = [State::Scheduled, State::Dead, State::Scheduled];
    let attempts = [1, 1, 0];
    for ((pushed, state), attempts) in ids.iter().zip(states).zip(attempts) {
        let record = job_record(&duly, pushed.id()).await;
        assert_eq!((record.state, record.attempts), (state, attempts));
    }
}

#[tokio::test]
async fn failures_are_retried_by_their_kind_until_the_last_attempt() {
    let duly = memory().await;
    let id = duly.push(mail().max_attempts(4)).await.expect("pushes").id();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let failing = move |_: Mail, ctx: Ctx| {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(format!("attempt {}", ctx.attempt()))
        }
    };
    let worker =
        duly.worker().on(failing).retry::<Mail>(Retry::fixed(Duration::ZERO)).default_retry(Retry::fixed(TIMEOUT));
    let summary = worker.drain().await.expect("drains");
    assert_eq!((calls.load(Ordering::SeqCst), summary.retried, summary.buried), (4, 3, 1));
    let record = job_record(&duly, id).await;
    let errors: Vec<_> = record.failures.iter().map(|failure| failure.error.as_str()).collect();
    assert_eq!(errors, ["attempt 1", "attempt 2", "attempt 3", "attempt 4"]);
}

#[tokio::test]
async fn attempt_that_runs_too_long_times_out() {
    let duly = memory().await;
    let id = duly.push(mail().timeout(Duration::from_millis(20)).max_attempts(1)).await.expect("pushes").id();
    duly.worker().on(|_: Mail, _| std::future::pending::<()>()).drain().await.expect("drains");
    let record = job_record(&duly, id).await;
    assert_eq!((record.state, record.failures[0].error.as_str()), (State::Dead, "timed out after 20ms"));
}

#[tokio::test]
async fn unknown_kind_is_left_for_other_workers() {
    let duly = memory().await;
    let id = duly.push(Push::new("unknown", "{}")).await.expect("pushes").id();
    let summary = duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains");
    assert_eq!(summary.released, 1);
    let record = job_record(&duly, id).await;
    assert_eq!((record.state, record.attempts), (State::Scheduled, 0), "not counted, never buried");
}

#[tokio::test]
async fn jobs_pushed_by_a_handler_carry_its_trace() {
    let duly = memory().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    duly.push(Push::new("parent", "{}").traceparent(trace)).await.expect("pushes");
    let (sender, mut received) = mpsc::unbounded_channel();
    duly.worker()
        .on_kind("parent", |ctx: Ctx| async move { ctx.push(mail()).await.map(drop) })
        .on(move |_: Mail, ctx: Ctx| {
            let _ = sender.send(ctx.job().traceparent.clone());
            async {}
        })
        .drain()
        .await
        .expect("drains");
    assert_eq!(received.recv().await.expect("ran").as_deref(), Some(trace));
}

#[tokio::test]
async fn worker_with_two_handlers_for_one_kind_does_not_start() {
    let duly = memory().await;
    let twice = duly.worker().on(|_: Mail, _| async {}).on_kind("mail", |_: Ctx| async {});
    let error = twice.drain().await.expect_err("the second one would win silently").to_string();
    assert!(error.contains("two handlers for the kind mail"), "{error}");
    let twice = duly.worker().on_any_kind(|_: Ctx| async {}).on_any_kind(|_: Ctx| async {});
    assert!(twice.drain().await.expect_err("likewise").to_string().contains("two handlers for all other kinds"));
    duly.worker().on(|_: Mail, _| async {}).on_any_kind(|_: Ctx| async {}).drain().await.expect("one of each");
}

#[tokio::test]
async fn retry_for_a_kind_without_handler_is_rejected() {
    let duly = memory().await;
    let retry = Retry::fixed(TIMEOUT);
    let error = duly.worker().on(|_: Mail, _| async {}).retry_kind("mial", retry).drain().await.expect_err("a typo");
    assert!(error.to_string().contains("mial has no handler"), "{error}");
    duly.worker().on_any_kind(|_: Ctx| async {}).retry_kind("mial", retry).drain().await.expect("may come");
}

#[tokio::test]
async fn job_result_is_stored_and_decoded() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    duly.worker().on(|_: Mail, _| async { Ok::<_, String>(JobResult((7, "seven"))) }).drain().await.expect("drains");
    let record = job_record(&duly, id).await;
    assert_eq!(record.result::<(u32, String)>().expect("decodes"), Some((7, "seven".into())));
    assert_eq!(record.result::<bool>().expect_err("another type").code(), "invalid");
}

#[tokio::test]
async fn job_result_that_is_too_long_fails_the_attempt() {
    let duly = memory().await;
    let id = duly.push(mail().max_attempts(1)).await.expect("pushes").id();
    let long = "x".repeat(duly::bounds::RESULT_BYTES_MAX);
    let handler = move |_: Mail, _| std::future::ready(JobResult(long.clone()));
    assert_eq!(duly.worker().on(handler).drain().await.expect("drains").buried, 1);
    let record = job_record(&duly, id).await;
    assert!(record.failures[0].error.starts_with("result"), "{:?}", record.failures);
    assert_eq!(record.result::<String>().expect("decodes"), None);
}

#[tokio::test]
async fn attempts_are_recorded_with_their_output_unless_switched_off() {
    for attempts in [true, false] {
        let duly = Duly::builder(":memory:").attempts(attempts).open().await.expect("opens");
        let push = Push::new("flaky", "1").max_attempts(2);
        let id = duly.push(push).await.expect("pushes").id();
        let handler = async |ctx: Ctx| {
            ctx.log(format!("attempt {}", ctx.attempt()));
            ctx.log("second line");
            if ctx.attempt() == 1 { Outcome::retry(Duration::ZERO, "oh") } else { Outcome::Ack }
        };
        let summary = duly.worker().on_kind("flaky", handler).drain().await.expect("drains");
        assert_eq!((summary.retried, summary.acked), (1, 1));
        let record = job_record(&duly, id).await;
        assert_eq!((record.attempts, record.attempts_made(), record.log.len()), (1, 2, 4));
        let runs: Vec<_> = record.runs.iter().map(|run| (run.outcome, run.output.as_deref())).collect();
        let outputs = ["attempt 1\nsecond line", "attempt 2\nsecond line"].map(|output| attempts.then_some(output));
        match attempts {
            true => assert_eq!(runs, [(RunOutcome::Retry, outputs[0]), (RunOutcome::Ack, outputs[1])]),
            false => assert_eq!(runs, [(RunOutcome::Retry, None)], "failures are recorded in any case"),
        }
        for run in &record.runs {
            assert_eq!((run.started.is_some(), run.duration.is_some()), (attempts, attempts), "{run:?}");
        }
    }
}
