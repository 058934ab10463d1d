//! The cost of an idle worker for a server, and the latency of its first job.

use std::time::{Duration, Instant};

use duly::bounds::DEFAULT_LEASE;
use duly::store::{JobStore, PeerInfo, PeerStore, Recipient};
use duly::worker::Event;
use duly::{NodeId, Push};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::helpers::{LONG, open, own_prefix, until};
use test_support::servers::{self, Binary, Options, Server};

/// Duration of the observation.
const WATCH: Duration = Duration::from_secs(5);
const END: &str = "that-is-all";

/// One command in the output of MONITOR.
struct MonitoredCommand {
    /// Seconds since 1970.
    at: f64,
    /// Executed by a script. The script itself is one request, whatever it executes.
    by_script: bool,
    command: String,
}

impl MonitoredCommand {
    /// `1700000000.123456 [0 127.0.0.1:5000] "evalsha" ...`; a script has `lua` instead of the address.
    fn parse(line: &str) -> Option<MonitoredCommand> {
        let (at, rest) = line.split_once(" [")?;
        let (from, command) = rest.split_once("] ")?;
        Some(MonitoredCommand { at: at.parse().ok()?, by_script: from.ends_with("lua"), command: command.to_owned() })
    }
}

/// Returns all commands that the server executes during the observation.
async fn watch(server: &Server) -> Vec<MonitoredCommand> {
    let mut monitor = server.client().expect("connects");
    assert_eq!(monitor.send_command(&["MONITOR"]).expect("a reply").text(), "OK");
    tokio::time::sleep(WATCH).await;
    server.send_command(&["ECHO", END]);
    let lines = std::iter::from_fn(|| Some(monitor.read_reply().expect("continues").text()));
    let monitored = lines.map(|line| MonitoredCommand::parse(&line).unwrap_or_else(|| panic!("not a command: {line}")));
    monitored.take_while(|monitored| !monitored.command.contains(END)).collect()
}

async fn idle_worker_sends_at_most_one_request_a_second(binary: Binary) {
    let server = Options::durable(binary).start();
    let duly = open(server.url()).await;
    let stop = CancellationToken::new();
    let (sender, mut events) = mpsc::unbounded_channel();
    let worker = duly.worker().on_kind("ok", |_| async {}).on_event(move |event| {
        if matches!(event, Event::Joined { .. } | Event::Settled { .. }) {
            let _ = sender.send(());
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    events.recv().await.expect("joins");
    // The worker is idle after a job, once it has written the statistics by kind.
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    tokio::time::timeout(LONG, events.recv()).await.expect("in time").expect("works");
    tokio::time::sleep(Duration::from_secs(6)).await;

    let monitored = watch(&server).await;
    let (inner, requests): (Vec<&MonitoredCommand>, Vec<&MonitoredCommand>) =
        monitored.iter().partition(|command| command.by_script);
    let commands: Vec<&str> =
        requests.iter().map(|request| request.command.split(' ').next().unwrap_or_default()).collect();
    let time = requests.last().map_or(0.0, |last| last.at) - requests.first().map_or(0.0, |first| first.at);
    println!("{binary:?}: {} requests over {time:.2} s: {commands:?}; {} inside scripts", requests.len(), inner.len());
    assert!(requests.len() >= 3, "it sends heartbeats: {commands:?}");
    assert!(inner.len() > requests.len(), "commands of scripts are shown, and distinguished");
    assert!((requests.len() - 1) as f64 <= time * 1.01, "{} within {time} s: {commands:?}", requests.len());
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn idle_worker_sends_at_most_one_request_a_second_to_redis() {
    idle_worker_sends_at_most_one_request_a_second(Binary::Redis).await;
}

#[tokio::test]
async fn idle_worker_sends_at_most_one_request_a_second_to_valkey() {
    idle_worker_sends_at_most_one_request_a_second(Binary::Valkey).await;
}

/// A worker's peer only listens.
#[tokio::test]
async fn quiet_peer_sends_no_requests() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    let (store, node) = (duly.store(), NodeId::fresh());
    let peer = PeerInfo { methods: vec!["m".into()], listen_only: true, ..PeerInfo::new(node, DEFAULT_LEASE) };
    let _notifications = store.subscribe_messages(node, true).await.expect("subscribes");
    store.announce(&peer).await.expect("announces");
    let announcements = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.announce(&peer).await.expect("announces");
        }
    };
    let commands = tokio::select! {
        commands = watch(&server) => commands,
        () = announcements => unreachable!("never ends"),
    };
    assert_eq!(commands.iter().map(|monitored| &monitored.command).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(store.send(Recipient::Node(node), b"message").await.expect("sends"), 1);
}

/// The next heartbeat is ten seconds away, so only a wake can start the job earlier.
async fn push_elsewhere_wakes_an_idle_worker_at_once(url: &str) {
    let url = format!("{}&lease=30s", own_prefix(url));
    let (worker, pusher) = (open(url.clone()).await, open(url).await);
    let (sender, mut events) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let joined = sender.clone();
    let worker = worker
        .worker()
        .on_kind("ok", move |_| {
            let _ = sender.send(Instant::now());
            async {}
        })
        .on_event(move |event| {
            if matches!(event, Event::Joined { .. }) {
                let _ = joined.send(Instant::now());
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    events.recv().await.expect("joins");
    let mut times = Vec::new();
    for n in 0..8 {
        // Long enough to be idle again. Both ready jobs and jobs that become due first wake it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let delay = Duration::from_millis(if n % 2 == 0 { 0 } else { 50 });
        let pushed = Instant::now();
        pusher.push(Push::new("ok", "{}").after(delay)).await.expect("pushes");
        let started = tokio::time::timeout(LONG, events.recv()).await.expect("in time").expect("works");
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
    push_elsewhere_wakes_an_idle_worker_at_once(&servers::redis().url()).await;
}

#[tokio::test]
async fn push_elsewhere_wakes_an_idle_worker_at_once_on_valkey() {
    push_elsewhere_wakes_an_idle_worker_at_once(&servers::valkey().url()).await;
}

#[tokio::test]
async fn push_elsewhere_wakes_an_idle_worker_at_once_on_a_cluster() {
    push_elsewhere_wakes_an_idle_worker_at_once(&servers::cluster().url()).await;
}

/// Returns the number of commands per handover with this many waiters, including those of scripts.
async fn commands_per_handover(server: &Server, waiters: u64) -> f64 {
    const HANDOVERS: u64 = 800;
    // No heartbeat happens in between.
    let url = format!("{}&lease=60s", own_prefix(&server.url()));
    let handles = [open(url.clone()).await, open(url).await];
    let guard = handles[0].lock("a").acquire().await.expect("is free");
    let contend = |n: u64| {
        let lock = handles[n as usize % handles.len()].lock("a");
        tokio::spawn(async move {
            for _ in 0..HANDOVERS / waiters {
                lock.clone().acquire().await.expect("gets it").release().await.expect("is held");
            }
        })
    };
    let tasks: Vec<_> = (0..waiters).map(contend).collect();
    until("all wait", async || {
        handles[0].lock("a").holder().await.expect("a reply").is_some_and(|held| held.waiters == waiters)
    })
    .await;
    let commands = || -> u64 {
        let stats = server.send_command(&["INFO", "stats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("a counter");
        line.trim().parse().expect("a number")
    };
    let before = commands();
    guard.release().await.expect("is held");
    for task in tasks {
        tokio::time::timeout(3 * LONG, task).await.expect("in time").expect("no panic");
    }
    (commands() - before) as f64 / HANDOVERS as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_handover_costs_the_same_for_any_number_of_waiters() {
    let server = Options::durable(Binary::Redis).start();
    let few = commands_per_handover(&server, 10).await;
    let many = commands_per_handover(&server, 200).await;
    println!("commands per handover: {few:.1} with 10 waiters, {many:.1} with 200");
    assert!(few > 2.0, "they are counted");
    assert!(many < 1.3 * few, "{many:.1} instead of {few:.1}");
}

/// A day's history has tens of thousands of fields.
#[tokio::test]
async fn history_is_scanned_once_for_its_first_minute() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    for _ in 0..3 {
        duly.store().prune("default", 1_000).await.expect("prunes");
    }
    assert_ne!(
        server.send_command(&["HGET", "duly:queue:{default}:conf", "pruned_minute"]).text(),
        "",
        "it is recorded"
    );
    let stats = server.send_command(&["INFO", "commandstats"]).text();
    let keys =
        stats.lines().find_map(|line| line.strip_prefix("cmdstat_hkeys:calls=")?.split(',').next()?.parse().ok());
    assert!(keys.unwrap_or(0) <= 4, "{keys:?} times");
}
