//! duly beside the book's pollers and workers, on `delayed:` and `queue:NAME`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duly::{Args, CancellationToken, Ctx, Due, Duly, Filter, JobId, Push, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::programs::{installed, source};
use test_support::servers::{Binary, Fsync, Options, Server};
use test_support::{JsonProgram, TIMEOUT, until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// In a process that is to be killed: the store that it works on.
const CHILD: &str = "DULY_TEST_REDIS_IN_ACTION";

fn server() -> Server {
    Options::new(Binary::Redis).aof(Fsync::EverySecond).start()
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

/// What a handler gets: the args of an item are an array, so this is one too.
#[derive(Debug, Serialize, Deserialize)]
struct Mail(String, u64);
impl Args for Mail {
    const KIND: &'static str = "send";
}

type Log = Arc<Mutex<Vec<(String, String, u64)>>>;

/// A worker that notes what it runs.
fn work(duly: &Duly, queue: &str, log: &Log) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let (stop, log) = (CancellationToken::new(), log.clone());
    let handler = move |mail: Mail, ctx: Ctx| {
        log.lock().expect("ours").push((ctx.job().id.to_string(), mail.0, mail.1));
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
    let now = python.ask("later", json!({ "queue": "mail", "name": "send", "args": ["grüße 😀", 7] })).await;
    let later = json!({ "queue": "mail", "name": "send", "args": ["later", 8], "delay": 1.0 });
    let later = python.ask("later", later).await;
    until("both ran", async || log.lock().expect("ours").len() == 2).await;
    stop.cancel();
    worker.await.expect("ends");
    let log = log.lock().expect("ours").clone();
    let expected = [(now, "grüße 😀", 7), (later, "later", 8)];
    let expected = expected.map(|(id, text, n)| (id.as_str().expect("a UUID").to_owned(), text.to_owned(), n));
    assert_eq!(log, expected);
    assert_eq!(server.ask(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_without_notification_is_noticed_at_once() {
    let server = server();
    let duly = open(&server).await;
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    tokio::time::sleep(SECOND).await;
    let mut took = Vec::new();
    for n in 0..10 {
        let item = format!("[\"{}\", \"mail\", \"send\", [\"x\", {n}]]", JobId::fresh());
        let since = Instant::now();
        server.ask(&["RPUSH", "queue:mail", &item]);
        until("it ran", async || log.lock().expect("ours").len() == n + 1).await;
        took.push(since.elapsed());
        tokio::time::sleep(100 * MS).await;
    }
    took.sort_unstable();
    assert!(took[5] < 200 * MS, "mostly long before the next beat: {took:?}");
    // Paused, it is left where it is, and nobody runs in circles.
    duly.pause_queue("mail").await.expect("paused");
    server.ask(&["RPUSH", "queue:mail", "[\"a\", \"mail\", \"send\", [\"x\", 99]]"]);
    let count = || -> u64 { server.info(&["INFO", "stats"], "total_commands_processed").parse().expect("a number") };
    let before = count();
    tokio::time::sleep(2 * SECOND).await;
    assert!(count() - before < 400, "{} commands in 2 s", count() - before);
    assert_eq!(server.ask(&["LLEN", "queue:mail"]).text(), "1");
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
    let bytes = server.ask(&["LINDEX", "queue:mail", "0"]).text();
    // The order of the keys is the pusher's, and stays.
    let text = python.ask("dumps", json!({ "value": [id.to_string(), "mail", "send", args] })).await;
    assert_eq!(Value::from(bytes), text);
    assert_eq!(python.ask("pop", json!({ "queue": "mail" })).await, json!([id.to_string(), "mail", "send", args]));
    // Later: its poller moves it, and says so by nothing but the list.
    python.ask("poll", json!({})).await;
    let later = duly.push(Push::new("send", "[1]").queue("mail").after(300 * MS)).await.expect("pushed").id();
    assert_eq!(duly.get(later).await.expect("answers").expect("waits").state, State::Scheduled);
    assert_eq!(python.ask("pop", json!({ "queue": "mail" })).await, json!([later.to_string(), "mail", "send", [1]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_can_be_repeated_under_its_id() {
    let server = server();
    let duly = open(&server).await;
    let push = || Push::new("send", "[]").queue("mail").id(JobId::from_name("mail:7"));
    assert!(duly.push(push()).await.expect("pushed").is_new());
    assert!(!duly.push(push()).await.expect("answers").is_new());
    assert_eq!(server.ask(&["LLEN", "queue:mail"]).text(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pollers_and_duly_run_each_item_once() {
    const ITEMS: u64 = 400;
    let server = server();
    let (duly, one, other) = (open(&server).await, python(&server).await, python(&server).await);
    for program in [&one, &other] {
        program.ask("poll", json!({})).await;
        program.ask("work", json!({ "queue": "mail" })).await;
    }
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    for n in 0..ITEMS {
        let item =
            json!({ "queue": "mail", "name": "send", "args": ["x", n], "delay": 0.3 + (n % 100) as f64 / 100.0 });
        if n % 2 == 0 {
            one.ask("later", item).await;
        } else {
            duly.push(Push::new("send", json!(["x", n]).to_string()).queue("mail").after(600 * MS))
                .await
                .expect("pushed");
        }
    }
    let mut ran: BTreeMap<u64, u32> = BTreeMap::new();
    let since = Instant::now();
    let (mut theirs, mut ours) = (0, 0);
    while since.elapsed() < TIMEOUT {
        ran.clear();
        ours = log.lock().expect("ours").len();
        log.lock().expect("ours").iter().for_each(|(_, _, n)| *ran.entry(*n).or_default() += 1);
        theirs = 0;
        for program in [&one, &other] {
            let got = program.ask("got", json!({})).await;
            for item in got.as_array().expect("a list") {
                *ran.entry(item[3][1].as_u64().expect("a number")).or_default() += 1;
                theirs += 1;
            }
        }
        if ran.len() as u64 == ITEMS {
            break;
        }
        tokio::time::sleep(50 * MS).await;
    }
    // Whatever would come twice has had time to.
    tokio::time::sleep(500 * MS).await;
    println!("duly ran {ours}, Python {theirs}");
    assert_eq!(ran.len() as u64, ITEMS, "nothing is lost");
    assert!(ran.values().all(|times| *times == 1), "nothing runs twice: {ran:?}");
    assert!(ours > 0 && theirs > 0, "both sides take part: {ours}, {theirs}");
    assert_eq!(server.ask(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_dead_poller_delays_only_its_own_item() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_limit=1s", url(&server))).await.expect("opens");
    let python = python(&server).await;
    let item = |n| json!({ "queue": "mail", "name": "send", "args": ["x", n], "delay": 0.1 });
    let locked = python.ask("later", item(1)).await;
    let lock = format!("lock:{}", locked.as_str().expect("a UUID"));
    python.ask("lock", json!({ "name": locked })).await;
    python.kill();
    assert_eq!(server.ask(&["PTTL", &lock]).text(), "-1", "it has no end");
    duly.push(Push::new("send", "[\"x\",2]").queue("mail").after(200 * MS)).await.expect("pushed");
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    let since = Instant::now();
    until("the other one ran", async || log.lock().expect("ours").iter().any(|(_, _, n)| *n == 2)).await;
    assert_eq!(log.lock().expect("ours").len(), 1, "the locked one is left alone");
    until("the locked one ran", async || log.lock().expect("ours").len() == 2).await;
    assert!(since.elapsed() > SECOND, "not before the limit: {:?}", since.elapsed());
    assert_eq!(server.ask(&["EXISTS", &lock]).text(), "0");
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_with_expiry_is_respected_until_it_expires() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_limit=100ms", url(&server))).await.expect("opens");
    let id = duly.push(Push::new("send", "[\"x\",1]").queue("mail").after(50 * MS)).await.expect("pushed").id();
    server.ask(&["SET", &format!("lock:{id}"), "somebody", "PX", "1500"]);
    let log = Log::default();
    let since = Instant::now();
    let (stop, worker) = work(&duly, "mail", &log);
    until("it ran", async || !log.lock().expect("ours").is_empty()).await;
    assert!(since.elapsed() > Duration::from_millis(1_400), "after {:?}", since.elapsed());
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_item_is_dead_and_blocks_nothing() {
    let server = server();
    let duly = open(&server).await;
    for bad in ["not json", "[1, 2]", "\"text\"", "[\"id\", \"mail\", \"na\\tme\", []]", "null"] {
        server.ask(&["RPUSH", "queue:mail", bad]);
    }
    server.ask(&["ZADD", "delayed:", "-5", "rubbish"]);
    server.ask(&[b"ZADD".as_slice(), b"delayed:", b"1", b"\xff\xfe"]);
    duly.push(Push::new("send", "[\"good\",1]").queue("mail")).await.expect("pushed");
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("the good one ran", async || !log.lock().expect("ours").is_empty()).await;
    stop.cancel();
    worker.await.expect("ends");
    let filter = Filter { state: Some(State::Dead), with_details: true, ..Filter::default() };
    let dead = duly.list(filter).await.expect("answers").jobs;
    let mut texts: Vec<&str> = dead.iter().map(|record| record.job.args.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(dead.len(), 7, "{texts:?}");
    assert!(texts.contains(&"\"rubbish\"") && texts.contains(&"\"[1, 2]\""), "readable: {texts:?}");
    let why = &dead[0].failures[0].error;
    assert!(why.starts_with("from "), "{why}");
    assert_eq!(server.ask(&["EXISTS", "delayed:", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_or_invalid_identifier_runs_each_time() {
    let server = server();
    let duly = open(&server).await;
    for n in 1..=3 {
        server.ask(&["RPUSH", "queue:mail", &format!("[\"same\", \"mail\", \"send\", [\"x\", {n}]]")]);
    }
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("all ran", async || log.lock().expect("ours").len() == 3).await;
    stop.cancel();
    worker.await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_of_sidekiq_are_rejected() {
    let server = server();
    let duly = open(&server).await;
    server.ask(&["LPUSH", "queue:theirs", "{\"class\":\"Mail\",\"args\":[],\"jid\":\"x\",\"queue\":\"theirs\"}"]);
    server.ask(&["SADD", "queues", "known"]);
    server.ask(&["SET", "queue:strange", "x"]);
    for (queue, says) in [("theirs", "cannot have two formats"), ("known", "Sidekiq"), ("strange", "not a list")] {
        let error = duly.push(Push::new("send", "[]").queue(queue)).await.expect_err("refused");
        assert!(error.code() == "invalid" && error.to_string().contains(says), "{error}");
        let error = duly.worker().queue(queue, 1).on(async |_: Mail, _: Ctx| Ok::<(), std::io::Error>(()));
        let ran = tokio::time::timeout(500 * MS, error.drain()).await;
        assert!(ran.is_err() || ran.is_ok_and(|tally| tally.is_err()), "nothing is taken");
    }
    assert_eq!(server.ask(&["LLEN", "queue:theirs"]).text(), "1", "untouched");
    // One that is delayed for such a queue stays where it is.
    server.ask(&["ZADD", "delayed:", "1", "[\"a\", \"theirs\", \"send\", []]"]);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    tokio::time::sleep(500 * MS).await;
    stop.cancel();
    worker.await.expect("ends");
    assert_eq!(
        (server.ask(&["LLEN", "queue:theirs"]).text(), server.ask(&["ZCARD", "delayed:"]).text()),
        ("1".into(), "1".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_foreign_items_do_not_block_others() {
    let server = server();
    let duly = open(&server).await;
    server.ask(&["SADD", "queues", "known"]);
    for n in 0..450 {
        server.ask(&["ZADD", "delayed:", "1", &format!("[\"{n}\", \"known\", \"send\", []]")]);
    }
    server.ask(&["ZADD", "delayed:", "2", "[\"one\", \"mail\", \"send\", [\"you\", 7]]"]);
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("it runs", async || !log.lock().expect("no panic with it").is_empty()).await;
    stop.cancel();
    worker.await.expect("ends");
    assert_eq!(server.ask(&["ZCARD", "delayed:"]).text(), "450");
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
        let error = duly.push(job).await.expect_err("refused");
        assert!(error.to_string().starts_with(field), "{error}");
    }
    assert_eq!(server.ask(&["EXISTS", "queue:mail"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_items_can_be_listed_rescheduled_and_removed() {
    let server = server();
    let duly = open(&server).await;
    let now = duly.push(Push::new("send", "[1]").queue("mail")).await.expect("pushed").id();
    let later = duly.push(Push::new("send", "[2]").queue("mail").after(60 * SECOND)).await.expect("pushed").id();
    let counts = duly.counts().await.expect("answers");
    assert_eq!(counts.iter().map(|queue| (queue.ready, queue.scheduled)).collect::<Vec<_>>(), [(1, 1)]);
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = duly.list(Filter { cursor, limit: 1, ..Filter::default() }).await.expect("answers");
        seen.extend(page.jobs.into_iter().map(|record| (record.job.id, record.state)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, [(later, State::Scheduled), (now, State::Ready)]);
    duly.reschedule(later, Due::Now).await.expect("moved");
    assert_eq!(server.ask(&["LLEN", "queue:mail"]).text(), "2");
    duly.remove(now).await.expect("removed");
    assert_eq!(duly.remove(now).await.expect_err("gone").code(), "not_found");
    assert_eq!(duly.get(later).await.expect("answers").expect("there").job.args, "[2]");
}

/// What a queue cannot take stays where it is, byte for byte, and who asked is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rescheduled_item_is_not_lost_to_a_foreign_queue() {
    let server = server();
    let duly = open(&server).await;
    server.ask(&["SET", "queue:strange", "x"]);
    server.ask(&["SADD", "queues", "known"]);
    server.ask(&["LPUSH", "queue:theirs", "{\"class\":\"Mail\",\"args\":[],\"jid\":\"x\",\"queue\":\"theirs\"}"]);
    for (queue, says) in [("strange", "not a list"), ("known", "Sidekiq"), ("theirs", "cannot have two formats")] {
        let id = JobId::fresh();
        let item = format!("[\"{id}\", \"{queue}\", \"send\", [1]]");
        server.ask(&["ZADD", "delayed:", "9000000000", &item]);
        for due in [Due::Now, Due::After(60 * SECOND)] {
            let error = duly.reschedule(id, due).await.expect_err("refused");
            assert!(error.code() == "invalid" && error.to_string().contains(says), "{error}");
            assert_eq!(server.ask(&["ZSCORE", "delayed:", &item]).text(), "9000000000", "{queue}");
        }
    }
    assert_eq!(server.ask(&["LLEN", "queue:theirs"]).text(), "1");
    assert_eq!(server.ask(&["EXISTS", "queue:known"]).text(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_waits_for_replicas_if_configured() {
    let server = server();
    let duly = Duly::open(format!("{}?replicas=1", url(&server))).await.expect("opens");
    let push = || Push::new("send", "[]").queue("mail").id(JobId::from_name("mail:8"));
    assert_eq!(duly.push(push()).await.expect_err("there is none").code(), "unknown");
    let replica = Options::new(Binary::Redis).start();
    replica.ask(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let since = Instant::now();
    while let Err(error) = duly.push(push()).await {
        assert!(error.code() == "unknown" && since.elapsed() < TIMEOUT, "{error}");
    }
    assert_eq!(server.ask(&["LLEN", "queue:mail"]).text(), "1", "it is there once");
    assert_eq!(replica.ask(&["LLEN", "queue:mail"]).text(), "1", "there too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_push_into_several_queues_is_unknown() {
    let server = server();
    let duly = open(&server).await;
    server.ask(&["SET", "queue:b", "x"]);
    let jobs = ["a", "b"].map(|queue| Push::new("send", "[]").queue(queue).id(JobId::from_name(queue)));
    let error = duly.push_all(jobs).await.expect_err("the second is refused");
    assert!(error.code() == "unknown" && error.to_string().contains("not a list"), "{error}");
    assert_eq!(server.ask(&["LLEN", "queue:a"]).text(), "1", "the first is in");
    let error = duly.push(Push::new("send", "[]").queue("b")).await.expect_err("refused");
    assert_eq!(error.code(), "invalid", "nothing is in doubt: {error}");
}

/// In a process of its own: says that it has begun, and never ends.
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
        python.ask("later", json!({ "queue": "mail", "name": "send", "args": ["x", n] })).await;
    }
    let mut child = test_support::child_test("redis_in_action::child_that_is_killed")
        .env(CHILD, url(&server))
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let begun = lines.map_while(Result::ok).filter(|line| line.contains("begun")).take(5).count();
    assert_eq!(begun, 5, "as many as it may run at once");
    child.kill().expect("killed");
    child.wait().expect("gone");
    let log = Log::default();
    let (stop, worker) = work(&duly, "mail", &log);
    until("all ran", async || log.lock().expect("ours").len() >= 8).await;
    stop.cancel();
    worker.await.expect("ends");
    let mut ran: Vec<u64> = log.lock().expect("ours").iter().map(|(_, _, n)| *n).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..8).collect::<Vec<_>>(), "each once more, and those that had not begun");
}
