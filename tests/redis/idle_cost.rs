//! What an idle worker costs a server, and how soon it is at work all the same.

use std::time::{Duration, Instant};

use duly::store::{PeerInfo, Recipient};
use duly::{Event, LEASE, NodeId, Push};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::helpers::{LONG, apart, durable, open, until};
use test_support::servers::{self, Binary, Server};

/// How long an idle worker is watched.
const WATCH: Duration = Duration::from_secs(5);
const END: &str = "that-is-all";

/// What MONITOR told of one command.
struct Seen {
    /// Seconds since 1970.
    at: f64,
    /// Carried out on behalf of a script: the script itself is one request, whatever it does inside.
    by_script: bool,
    command: String,
}

impl Seen {
    /// `1700000000.123456 [0 127.0.0.1:5000] "evalsha" ...`; a script has `lua` in the place of the address.
    fn parse(line: &str) -> Option<Seen> {
        let (at, rest) = line.split_once(" [")?;
        let (from, command) = rest.split_once("] ")?;
        Some(Seen { at: at.parse().ok()?, by_script: from.ends_with("lua"), command: command.to_owned() })
    }
}

/// Everything that the server is asked while it is watched.
async fn watch(server: &Server) -> Vec<Seen> {
    let mut monitor = server.client().expect("connects");
    assert_eq!(monitor.ask(&["MONITOR"]).expect("answers").text(), "OK");
    tokio::time::sleep(WATCH).await;
    server.ask(&["ECHO", END]);
    let lines = std::iter::from_fn(|| Some(monitor.read().expect("goes on").text()));
    let seen = lines.map(|line| Seen::parse(&line).unwrap_or_else(|| panic!("not a command: {line}")));
    seen.take_while(|seen| !seen.command.contains(END)).collect()
}

async fn an_idle_worker_asks_at_most_once_a_second(binary: Binary) {
    let server = durable(binary).start();
    let duly = open(server.url()).await;
    let stop = CancellationToken::new();
    let (joined, mut here) = mpsc::unbounded_channel();
    let worker = duly.worker().on_kind("ok", |_| async {}).on_event(move |event| {
        if matches!(event, Event::Joined { .. } | Event::Settled { .. }) {
            let _ = joined.send(());
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    here.recv().await.expect("joins");
    // Having worked, it has nothing left to learn, and soon nothing left to tell: what attempts came to by kind goes last.
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    tokio::time::timeout(LONG, here.recv()).await.expect("in time").expect("works");
    tokio::time::sleep(Duration::from_secs(6)).await;

    let seen = watch(&server).await;
    let (inner, requests): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|seen| seen.by_script);
    let commands: Vec<&str> = requests.iter().map(|seen| seen.command.split(' ').next().unwrap_or_default()).collect();
    let time = requests.last().map_or(0.0, |last| last.at) - requests.first().map_or(0.0, |first| first.at);
    println!("{binary:?}: {} requests over {time:.2} s: {commands:?}; {} inside scripts", requests.len(), inner.len());
    assert!(requests.len() >= 3, "it beats: {commands:?}");
    assert!(inner.len() > requests.len(), "what scripts do is seen, and told apart");
    assert!((requests.len() - 1) as f64 <= time * 1.01, "{} within {time} s: {commands:?}", requests.len());
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn idle_worker_sends_at_most_one_request_a_second_to_redis() {
    an_idle_worker_asks_at_most_once_a_second(Binary::Redis).await;
}

#[tokio::test]
async fn idle_worker_sends_at_most_one_request_a_second_to_valkey() {
    an_idle_worker_asks_at_most_once_a_second(Binary::Valkey).await;
}

/// As a worker's presence in the hall is: it only listens.
#[tokio::test]
async fn quiet_peer_sends_no_requests() {
    let server = durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    let (store, node) = (duly.store(), NodeId::fresh());
    let guest = PeerInfo {
        node,
        lease: LEASE,
        methods: vec!["m".into()],
        waited_locks: Vec::new(),
        waiters: Vec::new(),
        listen_only: true,
    };
    let _heard = store.subscribe_messages(node, true).await.expect("hears");
    store.announce(&guest).await.expect("attends");
    let attends = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.announce(&guest).await.expect("attends");
        }
    };
    let seen = tokio::select! {
        seen = watch(&server) => seen,
        () = attends => unreachable!("goes on"),
    };
    assert_eq!(seen.iter().map(|seen| &seen.command).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(store.send(Recipient::Node(node), b"and hears").await.expect("sends"), 1);
}

/// The next beat is ten seconds away, and the worker knows of nothing but wakes before it.
async fn a_push_elsewhere_starts_an_idle_worker_at_once(url: &str) {
    let url = format!("{}&lease=30s", apart(url));
    let (worker, pusher) = (open(url.clone()).await, open(url).await);
    let (tell, mut told) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let joined = tell.clone();
    let worker = worker
        .worker()
        .on_kind("ok", move |_| {
            let _ = tell.send(Instant::now());
            async {}
        })
        .on_event(move |event| {
            if matches!(event, Event::Joined { .. }) {
                let _ = joined.send(Instant::now());
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    told.recv().await.expect("joins");
    let mut times = Vec::new();
    for n in 0..8 {
        // Long enough to be idle again. Not only what is ready at once wakes it, also what falls due before all else.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let delay = Duration::from_millis(if n % 2 == 0 { 0 } else { 50 });
        let pushed = Instant::now();
        pusher.push(Push::new("ok", "{}").after(delay)).await.expect("pushes");
        let started = tokio::time::timeout(LONG, told.recv()).await.expect("in time").expect("works");
        times.push(started - pushed - delay.min(started - pushed));
    }
    times.sort();
    println!("from push to start: {times:?}");
    assert!(times.last().is_some_and(|longest| *longest < Duration::from_secs(3)), "{times:?}");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn push_elsewhere_wakes_an_idle_worker_at_once_on_redis() {
    a_push_elsewhere_starts_an_idle_worker_at_once(&servers::redis().url()).await;
}

#[tokio::test]
async fn push_elsewhere_wakes_an_idle_worker_at_once_on_valkey() {
    a_push_elsewhere_starts_an_idle_worker_at_once(&servers::valkey().url()).await;
}

#[tokio::test]
async fn push_elsewhere_wakes_an_idle_worker_at_once_on_a_cluster() {
    a_push_elsewhere_starts_an_idle_worker_at_once(&servers::cluster().url()).await;
}

/// What a hand-over costs the server while so many want the lock, commands that scripts call included.
async fn commands_per_hand_over(server: &Server, waiters: u64) -> f64 {
    const HAND_OVERS: u64 = 800;
    // No sign of life comes between.
    let url = format!("{}&lease=60s", apart(&server.url()));
    let handles = [open(url.clone()).await, open(url).await];
    let guard = handles[0].lock("a").acquire().await.expect("is free");
    let want = |n: u64| {
        let lock = handles[n as usize % handles.len()].lock("a");
        tokio::spawn(async move {
            for _ in 0..HAND_OVERS / waiters {
                lock.clone().acquire().await.expect("gets it").release().await.expect("is held");
            }
        })
    };
    let tasks: Vec<_> = (0..waiters).map(want).collect();
    until("all stand in line", async || {
        handles[0].lock("a").holder().await.expect("looks").is_some_and(|held| held.waiters == waiters)
    })
    .await;
    let commands = || -> u64 {
        let stats = server.ask(&["INFO", "stats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("is told");
        line.trim().parse().expect("a number")
    };
    let before = commands();
    guard.release().await.expect("is held");
    for task in tasks {
        tokio::time::timeout(3 * LONG, task).await.expect("in time").expect("no panic");
    }
    (commands() - before) as f64 / HAND_OVERS as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_handover_costs_the_same_for_any_number_of_waiters() {
    let server = durable(Binary::Redis).start();
    let few = commands_per_hand_over(&server, 10).await;
    let many = commands_per_hand_over(&server, 200).await;
    println!("commands per hand-over: {few:.1} while 10 want the lock, {many:.1} while 200 do");
    assert!(few > 2.0, "they are counted");
    assert!(many < 1.3 * few, "{many:.1} instead of {few:.1}");
}

/// What is counted in a day is tens of thousands of fields.
#[tokio::test]
async fn history_is_scanned_once_for_its_first_minute() {
    let server = durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    for _ in 0..3 {
        duly.store().prune("default", 1_000).await.expect("prunes");
    }
    assert_ne!(server.ask(&["HGET", "duly:queue:{default}:conf", "swept"]).text(), "", "it is noted");
    let stats = server.ask(&["INFO", "commandstats"]).text();
    let keys =
        stats.lines().find_map(|line| line.strip_prefix("cmdstat_hkeys:calls=")?.split(',').next()?.parse().ok());
    assert!(keys.unwrap_or(0) <= 4, "{keys:?} times");
}
