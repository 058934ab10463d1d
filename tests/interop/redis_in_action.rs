//! duly together with the pollers and workers of the book, on `delayed:` and `queue:NAME`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duly::job::Due;
use duly::{Args, CancellationToken, Ctx, Duly, Filter, JobId, Push, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::programs::{installed, source};
use test_support::servers::{Binary, Options, Server};
use test_support::{JsonProgram, TIMEOUT, until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Environment variable of the child process to be killed: the URL of its store.
const CHILD: &str = "DULY_TEST_REDIS_IN_ACTION";

fn server() -> Server {
    Options::durable(Binary::Redis).start()
}

fn url(server: &Server) -> String {
    server.url().replace("redis://", "redis-in-action://")
}

async fn open(server: &Server) -> Duly {
    Duly::open(url(server)).await.expect("opens")
}

async fn python(server: &Server) -> JsonProgram {
    let mut command = Command::new(installed("venv/bin/python"));
    command.arg(source("redis_in_action.py")).env("REDIS_PORT", server.port().to_string());
    JsonProgram::start(command).await
}

/// The args of a job; serialized as an array, like the args of an item.
#[derive(Debug, Serialize, Deserialize)]
struct Mail(String, u64);
impl Args for Mail {
    const KIND: &'static str = "send";
}

type Log = Arc<Mutex<Vec<(String, String, u64)>>>;

/// Starts a worker that records the jobs it runs: id, text, number.
fn work(duly: &Duly, queue: &str, log: &Log) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let (stop, log) = (CancellationToken::new(), log.clone());
    let handler = move |mail: Mail, ctx: Ctx| {
        log.lock().expect("no panic").push((ctx.job().id.to_string(), mail.0, mail.1));
        async { Ok::<(), std::io::Error>(()) }
    };
    let worker = duly.worker().queue(queue, 10).on(handler);
    let stopped = stop.clone();
    (stop, tokio::spawn(async move { worker.run_until(stopped).await.map(drop).expect("works") }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_pushed_by_python_run_in_duly() {
    let server = server();
    let (duly, python) = (open(&server).await, python(&server).await);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    let now = python.request("later", json!({ "queue": "mail", "name": "send", "args": ["grüße 😀", 7] })).await;
    let later = json!({ "queue": "mail", "name": "send", "args": ["later", 8], "delay": 1.0 });
    let later = python.request("later", later).await;
    until("both ran", async || log.lock().expect("no panic").len() == 2).await;
    stop.cancel();
    worker.await.expect("ends");
    let log = log.lock().expect("no panic").clone();
    let expected = [(now, "grüße 😀", 7), (later, "later", 8)];
    let expected = expected.map(|(id, text, n)| (id.as_str().expect("a UUID").to_owned(), text.to_owned(), n));
    assert_eq!(log, expected);
    assert_eq!(server.send_command(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_without_notification_is_noticed_at_once() {
    let server = server();
    let duly = open(&server).await;
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    tokio::time::sleep(SECOND).await;
    let mut latencies = Vec::new();
    for n in 0..10 {
        let item = format!("[\"{}\", \"mail\", \"send\", [\"x\", {n}]]", JobId::fresh());
        let since = Instant::now();
        server.send_command(&["RPUSH", "queue:mail", &item]);
        until("it ran", async || log.lock().expect("no panic").len() == n + 1).await;
        latencies.push(since.elapsed());
        tokio::time::sleep(100 * MS).await;
    }
    latencies.sort_unstable();
    assert!(latencies[5] < 2 * SECOND, "mostly long before the next heartbeat: {latencies:?}");
    // If the queue is paused, the item stays in the list, and the worker does not poll in a busy loop.
    duly.queues().pause("mail").await.expect("paused");
    server.send_command(&["RPUSH", "queue:mail", "[\"a\", \"mail\", \"send\", [\"x\", 99]]"]);
    let count = || -> u64 { server.info(&["INFO", "stats"], "total_commands_processed").parse().expect("a number") };
    let before = count();
    tokio::time::sleep(2 * SECOND).await;
    assert!(count() - before < 400, "{} commands in 2 s", count() - before);
    assert_eq!(server.send_command(&["LLEN", "queue:mail"]).text(), "1");
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_items_have_the_bytes_python_writes() {
    let server = server();
    let (duly, python) = (open(&server).await, python(&server).await);
    let args = json!(["grüße \u{1F600} \"/\\\n", 7, { "b": [], "a": null }, 1.5, [true, 12345678901234567890u64]]);
    let id = JobId::fresh();
    duly.push(Push::new("send", args.to_string()).queue("mail").id(id)).await.expect("pushed");
    let bytes = server.send_command(&["LINDEX", "queue:mail", "0"]).text();
    // The order of the keys stays as pushed.
    let text = python.request("dumps", json!({ "value": [id.to_string(), "mail", "send", args] })).await;
    assert_eq!(Value::from(bytes), text);
    assert_eq!(python.request("pop", json!({ "queue": "mail" })).await, json!([id.to_string(), "mail", "send", args]));
    // A delayed item is moved by Python's poller.
    python.request("poll", json!({})).await;
    let later = duly.push(Push::new("send", "[1]").queue("mail").after(300 * MS)).await.expect("pushed").id();
    assert_eq!(duly.jobs().get(later).await.expect("succeeds").expect("exists").state, State::Scheduled);
    assert_eq!(
        python.request("pop", json!({ "queue": "mail" })).await,
        json!([later.to_string(), "mail", "send", [1]])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_can_be_repeated_under_its_id() {
    let server = server();
    let duly = open(&server).await;
    let push = || Push::new("send", "[]").queue("mail").id(JobId::from_name("mail:7"));
    assert!(duly.push(push()).await.expect("pushed").is_new());
    assert!(!duly.push(push()).await.expect("succeeds").is_new());
    assert_eq!(server.send_command(&["LLEN", "queue:mail"]).text(), "1");
}

/// Counts how often each numbered item ran: in duly, and in both Python programs.
async fn runs(log: &Log, programs: [&JsonProgram; 2]) -> (Vec<u64>, Vec<u64>) {
    let in_duly = log.lock().expect("no panic").iter().map(|(_, _, n)| *n).collect();
    let mut in_python = Vec::new();
    for program in programs {
        let items = program.request("got", json!({})).await;
        in_python.extend(items.as_array().expect("a list").iter().map(|item| item[3][1].as_u64().expect("a number")));
    }
    (in_duly, in_python)
}

/// duly runs a first item before the Python programs start, and they run a last one after it has stopped.
/// In between all of them compete; who is faster depends on the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pollers_and_duly_run_each_item_once() {
    const ITEMS: u64 = 400;
    let server = server();
    let (duly, one, other) = (open(&server).await, python(&server).await, python(&server).await);
    let push = async |n: u64| {
        let push = Push::new("send", json!(["x", n]).to_string()).queue("mail").after(600 * MS);
        duly.push(push).await.expect("pushed");
    };
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    push(ITEMS).await;
    until("duly ran the first", async || log.lock().expect("no panic").len() == 1).await;
    for program in [&one, &other] {
        program.request("poll", json!({})).await;
        program.request("work", json!({ "queue": "mail" })).await;
    }
    for n in 0..ITEMS {
        let delay = 0.3 + (n % 100) as f64 / 100.0;
        let item = json!({ "queue": "mail", "name": "send", "args": ["x", n], "delay": delay });
        match n % 2 {
            0 => drop(one.request("later", item).await),
            _ => push(n).await,
        }
    }
    until("all ran", async || {
        let (in_duly, in_python) = runs(&log, [&one, &other]).await;
        in_duly.into_iter().chain(in_python).collect::<BTreeSet<_>>().len() as u64 == ITEMS + 1
    })
    .await;
    stop.cancel();
    worker.await.expect("ends");
    push(ITEMS + 1).await;
    until("Python ran the last", async || runs(&log, [&one, &other]).await.1.contains(&(ITEMS + 1))).await;
    // Leaves time for duplicates to run.
    tokio::time::sleep(500 * MS).await;
    let (in_duly, in_python) = runs(&log, [&one, &other]).await;
    println!("duly ran {}, Python {}", in_duly.len(), in_python.len());
    let mut ran: Vec<u64> = in_duly.into_iter().chain(in_python).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..ITEMS + 2).collect::<Vec<_>>(), "each exactly once");
    assert_eq!(server.send_command(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_dead_poller_delays_only_its_own_item() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_limit=4s", url(&server))).await.expect("opens");
    let python = python(&server).await;
    let item = |n| json!({ "queue": "mail", "name": "send", "args": ["x", n], "delay": 0.1 });
    let locked = python.request("later", item(1)).await;
    let lock = format!("lock:{}", locked.as_str().expect("a UUID"));
    python.request("lock", json!({ "name": locked })).await;
    python.kill();
    assert_eq!(server.send_command(&["PTTL", &lock]).text(), "-1", "the lock has no expiry");
    duly.push(Push::new("send", "[\"x\",2]").queue("mail").after(200 * MS)).await.expect("pushed");
    let log = Log::default();
    let since = Instant::now();
    let (stop, worker) = work(&duly, "mail", &log);
    until("both ran", async || log.lock().expect("no panic").len() == 2).await;
    assert_eq!(log.lock().expect("no panic")[0].2, 2, "the locked item must wait");
    assert!(since.elapsed() > 3 * SECOND, "ran before the limit: {:?}", since.elapsed());
    assert_eq!(server.send_command(&["EXISTS", &lock]).text(), "0");
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_with_expiry_is_respected_until_it_expires() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_limit=100ms", url(&server))).await.expect("opens");
    let id = duly.push(Push::new("send", "[\"x\",1]").queue("mail").after(50 * MS)).await.expect("pushed").id();
    let since = Instant::now();
    server.send_command(&["SET", &format!("lock:{id}"), "another poller", "PX", "1500"]);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("it ran", async || !log.lock().expect("no panic").is_empty()).await;
    assert!(since.elapsed() > Duration::from_millis(1_400), "after {:?}", since.elapsed());
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_item_is_dead_and_blocks_nothing() {
    let server = server();
    let duly = open(&server).await;
    for malformed in ["not json", "[1, 2]", "\"text\"", "[\"id\", \"mail\", \"na\\tme\", []]", "null"] {
        server.send_command(&["RPUSH", "queue:mail", malformed]);
    }
    server.send_command(&["ZADD", "delayed:", "-5", "rubbish"]);
    server.send_command(&[b"ZADD".as_slice(), b"delayed:", b"1", b"\xff\xfe"]);
    duly.push(Push::new("send", "[\"good\",1]").queue("mail")).await.expect("pushed");
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("the valid item ran", async || !log.lock().expect("no panic").is_empty()).await;
    stop.cancel();
    worker.await.expect("ends");
    let filter = Filter::all().state(State::Dead).with_details();
    let dead = duly.jobs().list(filter).await.expect("succeeds").jobs;
    let mut texts: Vec<&str> = dead.iter().map(|record| record.job.args.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(dead.len(), 7, "{texts:?}");
    assert!(texts.contains(&"\"rubbish\"") && texts.contains(&"\"[1, 2]\""), "readable: {texts:?}");
    let error = &dead[0].failures[0].error;
    assert!(error.starts_with("from "), "{error}");
    assert_eq!(server.send_command(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_or_invalid_identifier_runs_each_time() {
    let server = server();
    let duly = open(&server).await;
    for n in 1..=3 {
        server.send_command(&["RPUSH", "queue:mail", &format!("[\"same\", \"mail\", \"send\", [\"x\", {n}]]")]);
    }
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("all ran", async || log.lock().expect("no panic").len() == 3).await;
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_of_sidekiq_are_rejected() {
    let server = server();
    let duly = open(&server).await;
    server.send_command(&["LPUSH", "queue:ruby", "{\"class\":\"Mail\",\"args\":[],\"jid\":\"x\",\"queue\":\"ruby\"}"]);
    server.send_command(&["SADD", "queues", "known"]);
    server.send_command(&["SET", "queue:scalar", "x"]);
    for (queue, reason) in [("ruby", "cannot have two formats"), ("known", "Sidekiq"), ("scalar", "not a list")] {
        let error = duly.push(Push::new("send", "[]").queue(queue)).await.expect_err("rejected");
        assert!(error.code() == "invalid" && error.to_string().contains(reason), "{error}");
        let worker = duly.worker().queue(queue, 1).on(async |_: Mail, _: Ctx| Ok::<(), std::io::Error>(()));
        let drained = tokio::time::timeout(500 * MS, worker.drain()).await;
        assert!(drained.is_err() || drained.is_ok_and(|summary| summary.is_err()), "nothing may be taken");
    }
    assert_eq!(server.send_command(&["LLEN", "queue:ruby"]).text(), "1", "untouched");
    // A delayed item for such a queue stays in `delayed:`.
    server.send_command(&["ZADD", "delayed:", "1", "[\"a\", \"ruby\", \"send\", []]"]);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    tokio::time::sleep(500 * MS).await;
    stop.cancel();
    worker.await.expect("ends");
    assert_eq!(
        (server.send_command(&["LLEN", "queue:ruby"]).text(), server.send_command(&["ZCARD", "delayed:"]).text()),
        ("1".into(), "1".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_foreign_items_do_not_block_others() {
    let server = server();
    let duly = open(&server).await;
    server.send_command(&["SADD", "queues", "known"]);
    for n in 0..450 {
        server.send_command(&["ZADD", "delayed:", "1", &format!("[\"{n}\", \"known\", \"send\", []]")]);
    }
    server.send_command(&["ZADD", "delayed:", "2", "[\"one\", \"mail\", \"send\", [\"you\", 7]]"]);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("it runs", async || !log.lock().expect("no panic").is_empty()).await;
    stop.cancel();
    worker.await.expect("ends");
    assert_eq!(server.send_command(&["ZCARD", "delayed:"]).text(), "450");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_with_unsupported_fields_is_rejected() {
    let server = server();
    let duly = open(&server).await;
    let push = || Push::new("send", "[]").queue("mail");
    for (job, field) in [
        (push().priority(duly::Priority::High), "priority"),
        (push().unique("x"), "unique"),
        (push().max_attempts(3), "max_attempts"),
        (push().timeout(SECOND), "timeout"),
        (push().tag("x"), "tags"),
        (Push::new("send", "{}").queue("mail"), "args"),
    ] {
        let error = duly.push(job).await.expect_err("rejected");
        assert!(error.to_string().starts_with(field), "{error}");
    }
    assert_eq!(server.send_command(&["EXISTS", "queue:mail"]).text(), "0");
}

/// Fails before anything is changed, in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_capability_is_refused_with_advice() {
    let server = server();
    let (duly, other) = (open(&server).await, Duly::open(":memory:").await.expect("opens"));
    for (store, args) in [(&duly, "[]"), (&other, "{}")] {
        store.push(Push::new("send", args).queue("mail")).await.expect("pushed");
    }
    for transfer in [duly.transfer_to(&other), other.transfer_to(&duly)] {
        let error = transfer.run().await.expect_err("refused");
        assert_eq!(error.code(), "unsupported");
        assert_eq!(
            error.to_string(),
            "Redis in Action stores do not support moving queues; other programs keep pushing to its queues; let a worker drain them instead"
        );
    }
    for store in [&duly, &other] {
        let counts = store.queues().counts().await.expect("succeeds");
        assert!(counts[0].moving.is_none() && counts[0].ready == 1, "{counts:?}");
    }
    let error = duly.crons().list().await.expect_err("refused").to_string();
    assert_eq!(error, "Redis in Action stores do not support cron rules; use a SQLite file, Redis or Valkey");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_items_can_be_listed_rescheduled_and_removed() {
    let server = server();
    let duly = open(&server).await;
    let now = duly.push(Push::new("send", "[1]").queue("mail")).await.expect("pushed").id();
    let later = duly.push(Push::new("send", "[2]").queue("mail").after(60 * SECOND)).await.expect("pushed").id();
    let counts = duly.queues().counts().await.expect("succeeds");
    assert_eq!(counts.iter().map(|queue| (queue.ready, queue.scheduled)).collect::<Vec<_>>(), [(1, 1)]);
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = duly.jobs().list(Filter::all().cursor(cursor).limit(1)).await.expect("succeeds");
        listed.extend(page.jobs.into_iter().map(|record| (record.job.id, record.state)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, [(later, State::Scheduled), (now, State::Ready)]);
    duly.jobs().reschedule(later, Due::Now).await.expect("rescheduled");
    assert_eq!(server.send_command(&["LLEN", "queue:mail"]).text(), "2");
    duly.jobs().remove(now).await.expect("removed");
    assert_eq!(duly.jobs().remove(now).await.expect_err("gone").code(), "not_found");
    assert_eq!(duly.jobs().get(later).await.expect("succeeds").expect("exists").job.args, "[2]");
}

/// An item that its queue cannot take stays unchanged, and the caller gets the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rescheduled_item_is_not_lost_to_a_foreign_queue() {
    let server = server();
    let duly = open(&server).await;
    server.send_command(&["SET", "queue:scalar", "x"]);
    server.send_command(&["SADD", "queues", "known"]);
    server.send_command(&["LPUSH", "queue:ruby", "{\"class\":\"Mail\",\"args\":[],\"jid\":\"x\",\"queue\":\"ruby\"}"]);
    for (queue, reason) in [("scalar", "not a list"), ("known", "Sidekiq"), ("ruby", "cannot have two formats")] {
        let id = JobId::fresh();
        let item = format!("[\"{id}\", \"{queue}\", \"send\", [1]]");
        server.send_command(&["ZADD", "delayed:", "9000000000", &item]);
        for due in [Due::Now, Due::After(60 * SECOND)] {
            let error = duly.jobs().reschedule(id, due).await.expect_err("rejected");
            assert!(error.code() == "invalid" && error.to_string().contains(reason), "{error}");
            assert_eq!(server.send_command(&["ZSCORE", "delayed:", &item]).text(), "9000000000", "{queue}");
        }
    }
    assert_eq!(server.send_command(&["LLEN", "queue:ruby"]).text(), "1");
    assert_eq!(server.send_command(&["EXISTS", "queue:known"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_waits_for_replicas_if_configured() {
    let server = server();
    let duly = Duly::open(format!("{}?replicas=1", url(&server))).await.expect("opens");
    let push = || Push::new("send", "[]").queue("mail").id(JobId::from_name("mail:8"));
    assert_eq!(duly.push(push()).await.expect_err("no replica").code(), "unknown");
    let replica = Options::new(Binary::Redis).start();
    replica.send_command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let since = Instant::now();
    while let Err(error) = duly.push(push()).await {
        assert!(error.code() == "unknown" && since.elapsed() < TIMEOUT, "{error}");
    }
    assert_eq!(server.send_command(&["LLEN", "queue:mail"]).text(), "1", "pushed once");
    assert_eq!(replica.send_command(&["LLEN", "queue:mail"]).text(), "1", "replicated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_push_into_several_queues_is_unknown() {
    let server = server();
    let duly = open(&server).await;
    server.send_command(&["SET", "queue:b", "x"]);
    let jobs = ["a", "b"].map(|queue| Push::new("send", "[]").queue(queue).id(JobId::from_name(queue)));
    let error = duly.push_all(jobs).await.expect_err("the second is rejected");
    assert!(error.code() == "unknown" && error.to_string().contains("not a list"), "{error}");
    assert_eq!(server.send_command(&["LLEN", "queue:a"]).text(), "1", "the first is pushed");
    let error = duly.push(Push::new("send", "[]").queue("b")).await.expect_err("rejected");
    assert_eq!(error.code(), "invalid", "the outcome is known: {error}");
}

/// Runs in a child process: prints a line for each started job, and never finishes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only as a child of another test"]
async fn child_that_is_killed() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let duly = Duly::open(url).await.expect("opens");
    let handler = async |_: Mail, _: Ctx| {
        println!("begun");
        std::future::pending::<Result<(), std::io::Error>>().await
    };
    duly.worker().queue("mail", 5).on(handler).run_until(CancellationToken::new()).await.expect("works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_worker_loses_no_item() {
    let server = server();
    let (duly, python) = (open(&server).await, python(&server).await);
    for n in 0..8 {
        python.request("later", json!({ "queue": "mail", "name": "send", "args": ["x", n] })).await;
    }
    let mut child = test_support::child_test("redis_in_action::child_that_is_killed")
        .env(CHILD, url(&server))
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let begun = lines.map_while(Result::ok).filter(|line| line.contains("begun")).take(5).count();
    assert_eq!(begun, 5, "the number of slots");
    child.kill().expect("killed");
    child.wait().expect("exits");
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("all ran", async || log.lock().expect("no panic").len() >= 8).await;
    stop.cancel();
    worker.await.expect("ends");
    let mut ran: Vec<u64> = log.lock().expect("no panic").iter().map(|(_, _, n)| *n).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..8).collect::<Vec<_>>(), "each item runs once after the kill");
}
