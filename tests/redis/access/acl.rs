//! The documented minimal ACL allows all of duly's operations, and nothing else.

use std::time::Duration;

use duly::job::{Due, UniqueConflict};
use duly::store::Node;
use duly::store::{
    AttemptEnd, Claim, JobStore, LockOwner, LockRequest, LockStore, Notification, PeerInfo, PeerStore, Recipient, Store,
};
use duly::worker::Event;
use duly::{Ctx, Duly, Filter, JobId, NodeId, Outcome, Push, PushResult, Retry, State};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::helpers::{LONG, error_chain, open, open_error, until};
use test_support::servers::{Binary, Client, Cluster, Options, Reply, Server};

const PASSWORD: &str = "let-me-in";

/// Creates the user `duly` with these rules.
fn set_user(admin: &mut Client, rules: &str) {
    let mut command = vec!["ACL", "SETUSER", "duly", "on", ">let-me-in"];
    command.extend(rules.split(' '));
    assert_eq!(admin.send_command(&command).expect("a reply").text(), "OK", "{rules}");
}

/// Returns the ACL rules that duly needs.
async fn rules(url: &str) -> String {
    open(url).await.health().await.expect("a report").acl.expect("a server has users")
}

/// The commands that duly tries without the right, when it opens and for a report; INFO contains the rest.
const TRIED: &str = r#"Some("command") Some("config|get")"#;

/// Returns all denials of the server so far, including silent ones.
fn denials(admin: &mut Client) -> Vec<String> {
    let log = admin.send_command(&["ACL", "LOG"]).expect("a reply");
    log.list().iter().map(|entry| format!("{:?} {:?}", entry.field("reason"), entry.field("object"))).collect()
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_redis() {
    least_rights_on_one_server(Binary::Redis).await;
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_valkey() {
    least_rights_on_one_server(Binary::Valkey).await;
}

async fn least_rights_on_one_server(binary: Binary) {
    let server = Options::durable(binary).start();
    let rules = rules(&server.url()).await;
    // The connection outlives the rights of the user that opened it.
    let mut admin = server.client().expect("connects");
    admin.send_command(&["ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all"]).expect("a reply");
    admin.send_command(&["AUTH", "admin", "admin"]).expect("a reply");
    set_user(&mut admin, &rules);
    admin.send_command(&["ACL", "SETUSER", "default", "off"]).expect("a reply");

    all_operations(&format!("redis://duly:{PASSWORD}@{}", server.address())).await;
    assert_eq!(denials(&mut admin), [TRIED], "nothing else was denied, not even silently");
    assert_nothing_else_allowed(&server);
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_a_cluster() {
    // The default user keeps a password, so that a connection without a login is denied.
    let cluster = Cluster::start(Options::durable(Binary::Redis).password("admin"), test_support::servers::CALM);
    let url = cluster.url();
    let rules = rules(&url.replace("://", "://:admin@")).await;
    for node in cluster.nodes() {
        set_user(&mut node.client().expect("connects"), &rules);
    }
    all_operations(&url.replace("://", &format!("://duly:{PASSWORD}@"))).await;
    for node in cluster.nodes() {
        // Replicas are not asked.
        let other: Vec<_> = denials(&mut node.client().expect("connects")).into_iter().filter(|d| d != TRIED).collect();
        assert_eq!(other, Vec::<String>::new());
    }
}

/// Performs all operations of duly through this URL.
async fn all_operations(url: &str) {
    let duly = open(url).await;
    let ids = push_every_way(&duly).await;
    work(&duly, ids).await;
    query_and_change(&duly).await;
    take_back(&*duly.store()).await;
    transfer_there_and_back(&duly).await;
    peer_operations(&*duly.store()).await;
}

/// Locks, messages and connections.
async fn peer_operations(store: &dyn Store) {
    let (lease, node) = (Duration::from_secs(3), NodeId::fresh());
    let (methods, waited_locks) = (vec!["m".into()], vec!["l".into()]);
    let peer = PeerInfo { methods, waited_locks, ..PeerInfo::new(node, lease) };
    let mut notifications = store.subscribe_messages(node, true).await.expect("subscribes");
    store.announce(&peer).await.expect("announces");
    let request = |slots| {
        let (name, owner, note) = ("l".into(), LockOwner::fresh(), "note".into());
        LockRequest { name, owner, node, lease, slots, ttl: LONG, wait: true, note }
    };
    let (first, second) = (request(1), request(1));
    assert!(store.lock(&first).await.expect("a reply").hold.is_some());
    assert!(store.lock(&second).await.expect("a reply").hold.is_none());
    assert_eq!(store.extend_locks(std::slice::from_ref(&first)).await.expect("a reply"), [true]);
    assert_eq!(store.locks(None, None).await.expect("lists").locks[0].waiters, 1);
    assert_eq!(store.announce(&peer).await.expect("announces").turns.len(), 1);
    assert!(store.unlock(&first).await.expect("a reply"));
    assert!(matches!(notifications.recv().await, Some(Notification::LockTurn { owner, .. }) if owner == second.owner));
    assert!(store.lock(&second).await.expect("a reply").hold.is_some());
    assert!(store.lock(&request(2)).await.expect("a reply").hold.is_some());
    assert_eq!(store.break_lock("l", None).await.expect("breaks"), 2);
    for _ in 0..2 {
        assert!(
            matches!(notifications.recv().await, Some(Notification::LockTurn { .. })),
            "the former holder is notified"
        );
    }
    store.set_connections(node, &["c".into(), "d".into()], &[]).await.expect("stores");
    store.refresh_connections(node, &["c".into(), "d".into()]).await.expect("stores");
    store.set_connections(node, &[], &["d".into()]).await.expect("removes");
    assert_eq!(store.connection_holder("c").await.expect("a reply"), Some(node));
    assert_eq!(store.peers_with_method("m").await.expect("a reply"), [node]);
    assert!(store.nodes().await.expect("lists").iter().any(|row| row.id == node));
    // The worker above receives broadcasts, too.
    for (to, reached) in [(Recipient::All, 2), (Recipient::Node(node), 1)] {
        assert_eq!(store.send(to, b"hello").await.expect("sends"), reached);
        assert_eq!(notifications.recv().await, Some(Notification::Message(b"hello".into())));
    }
    store.withdraw(node).await.expect("withdraws");
}

/// Pushes in every way; returns the number of waiting jobs.
async fn push_every_way(duly: &Duly) -> usize {
    let own = JobId::from_name("own");
    assert_eq!(duly.push(Push::new("ok", "1").id(own)).await.expect("push_every_way"), PushResult::New(own));
    assert_eq!(duly.push(Push::new("ok", "1").id(own)).await.expect("push_every_way"), PushResult::Existing(own));
    let key = |n: u8| Push::new("ok", n.to_string()).unique("key").on_conflict(UniqueConflict::Replace);
    let old = duly.push(key(1)).await.expect("push_every_way").id();
    let new = duly.push(key(2).after(Duration::from_millis(50))).await.expect("push_every_way");
    assert!(matches!(new, PushResult::Replaced { old: replaced, .. } if replaced == old), "{new:?}");
    duly.push(key(3)).await.expect("replaces one that is scheduled");
    let many = (0..6).map(|n| Push::new(["ok", "fails", "dies"][n % 3], "{}").queue(["default", "b", "c"][n % 3]));
    duly.push_all(many).await.expect("push_every_way");
    duly.push(Push::new("ok", "{}").after(Duration::from_millis(300))).await.expect("push_every_way");
    1 + 1 + 6 + 1
}

/// A worker that acks, retries and buries, and is woken when idle.
async fn work(duly: &Duly, jobs: usize) {
    let (settled, mut outcomes) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly
        .worker()
        .queue("default", 2)
        .queue("b", 2)
        .queue("c", 2)
        .default_retry(Retry::fixed(Duration::from_millis(20)))
        .on_kind("ok", |_| async {})
        .on_kind("fails", |ctx: Ctx| async move { if ctx.attempt() < 2 { Err("oh") } else { Ok(()) } })
        .on_kind("dies", |_| async { Outcome::bury("no use") })
        .on_event(move |event| {
            if let Event::Settled { outcome, .. } = event {
                let _ = settled.send(outcome.as_str());
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut received = Vec::new();
    while received.iter().filter(|outcome| **outcome != "retry").count() < jobs {
        received.push(tokio::time::timeout(LONG, outcomes.recv()).await.expect("in time").expect("works"));
    }
    assert_eq!(received.iter().filter(|outcome| **outcome == "bury").count(), 2, "{received:?}");
    assert_eq!(received.iter().filter(|outcome| **outcome == "retry").count(), 2, "{received:?}");
    until("the node is health", async || duly.nodes().list().await.expect("lists").iter().any(|node| node.alive)).await;
    // The worker is idle now: a push through another connection wakes it.
    duly.push(Push::new("ok", "{}")).await.expect("push_every_way");
    tokio::time::timeout(LONG, outcomes.recv()).await.expect("in time").expect("is woken");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

async fn query_and_change(duly: &Duly) {
    let dead = duly.jobs().list(Filter::all().state(State::Dead)).await.expect("lists").jobs;
    assert_eq!(dead.len(), 2);
    let record = duly.jobs().get(dead[0].job.id).await.expect("a reply").expect("is there");
    assert_eq!(record.failures.len(), 1);
    duly.jobs().reschedule(dead[0].job.id, Due::Now).await.expect("starts over");
    duly.jobs().reschedule(dead[0].job.id, Due::After(LONG)).await.expect("reschedules");
    duly.jobs().remove(dead[0].job.id).await.expect("removes");
    duly.jobs().remove(dead[1].job.id).await.expect("removes");
    assert!(duly.queues().pause("default").await.expect("pauses"));
    assert!(duly.queues().resume("default").await.expect("resumes"));
    let ready = duly.push(Push::new("ok", "{}")).await.expect("push_every_way").id();
    for state in State::ALL {
        duly.jobs().list(Filter::all().state(state)).await.expect("lists");
    }
    duly.jobs().remove(ready).await.expect("removes one that is ready");
    let done: u64 = duly.queues().counts().await.expect("counts").iter().map(|queue| queue.done).sum();
    assert_eq!(duly.store().prune("default", 0).await.expect("prunes") as u64 + 2, done, "two are in another queue");
    duly.health().await.expect("a report");
}

/// A node leaves with a claimed job; another takes it back, and resyncs its held jobs.
async fn take_back(store: &dyn Store) {
    let claim = |suspect, resync| Claim { resync, suspect, ..Claim::new("default", 1) };
    let node = async || {
        let node = Node::fresh(vec!["default".into()]);
        store.heartbeat(&node).await.expect("sends a heartbeat");
        node.id
    };
    let push = Push::new("ok", "{}").keep(Duration::ZERO);
    store.push(vec![push]).await.expect("push_every_way");
    let (first, second): (NodeId, NodeId) = (node().await, node().await);
    assert_eq!(store.claim(first, claim(None, false)).await.expect("claims").jobs.len(), 1);
    store.leave(first).await.expect("leaves");
    let taken = store.claim(second, claim(Some(first), false)).await.expect("claims");
    assert_eq!((taken.taken_back, taken.jobs.len()), (1, 1));
    let held = store.claim(second, claim(None, true)).await.expect("resyncs").jobs.remove(0);
    store.claim(second, Claim { max: 0, ..claim(None, false) }).await.expect("stops waiting");
    let end = AttemptEnd::from_held(&held, Outcome::release(Duration::ZERO), Duration::ZERO);
    assert_eq!(store.settle(second, vec![end]).await.expect("settles"), Vec::<JobId>::new());
    store.leave(second).await.expect("leaves");
}

/// Denies the user access to foreign keys and to commands that affect the whole server.
fn assert_nothing_else_allowed(server: &Server) {
    let mut user = server.client().expect("connects");
    assert_eq!(user.send_command(&["AUTH", "duly", PASSWORD]).expect("a reply").text(), "OK");
    let own = "duly:queue:{default}:conf";
    assert!(
        !matches!(user.send_command(&["HGETALL", own]).expect("a reply"), Reply::Error(_)),
        "it may read its own keys"
    );
    let forbidden: &[&[&str]] = &[
        &["GET", "foreign"],
        &["HSET", "foreign", "a", "b"],
        &["HSET", "dulyx:queue:{default}:conf", "a", "b"],
        &["SPUBLISH", "foreign", "hello"],
        &["SSUBSCRIBE", "foreign"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["DEL", own],
        &["CONFIG", "SET", "appendonly", "no"],
        &["ACL", "LIST"],
        &["SHUTDOWN"],
        &["SCRIPT", "FLUSH"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "foreign"],
    ];
    for command in forbidden {
        let reply = user.send_command(command).expect("a reply").text();
        assert!(reply.starts_with("NOPERM"), "{command:?}: {reply}");
    }
    // Nor by a script that the user may load.
    let sha = user.send_command(&["SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])"]).expect("a reply").text();
    for command in [["EVALSHA", &sha, "1", "foreign"], ["EVALSHA", &sha, "1", "other:queue"]] {
        let reply = user.send_command(&command).expect("a reply").text();
        assert!(reply.contains("NOPERM") || reply.contains("No permissions"), "{command:?}: {reply}");
    }
}

#[tokio::test]
async fn missing_right_error_names_the_command_that_prints_the_acl() {
    let server = Options::durable(Binary::Redis).start();
    let rules = rules(&server.url()).await;
    set_user(&mut server.client().expect("connects"), &rules.replace("+evalsha", ""));
    let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
    let error = duly.push(Push::new("ok", "{}").id(JobId::from_name("a"))).await.expect_err("needs a script");
    assert!(error.to_string().contains("duly doctor --acl"), "{error}");
    // Also for a user with another prefix.
    let error = open_error(format!("redis://duly:{PASSWORD}@{}?prefix=other", server.address())).await;
    assert!(error.to_string().contains("duly doctor --acl"), "{error}");
    assert!(!error_chain(&error).contains(PASSWORD), "{}", error_chain(&error));
}

/// With the rules of an older version, scripts lack commands. Nothing is lost, and the claim reports the missing
/// right.
#[tokio::test]
async fn missing_right_inside_a_script_is_reported() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::durable(binary).start();
        let rules = rules(&server.url()).await;
        let older = rules.replace(" +zremrangebyrank", "").replace(" +zremrangebylex", "");
        assert_ne!(older, rules);
        let mut admin = server.client().expect("connects");
        set_user(&mut admin, &older);
        let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
        let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
        store.heartbeat(&node).await.expect("sends a heartbeat");
        let soon = || Push::new("note", "{}").tag("red").after(Duration::from_millis(1));
        duly.push_all([soon(), soon()]).await.expect("push_every_way");
        let claim = || Claim::new("default", 9);
        let error = loop {
            match store.claim(node.id, claim()).await {
                Ok(claimed) => assert!(claimed.jobs.is_empty(), "may not promote due jobs"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("duly doctor --acl"), "{error}");
        let red: Filter = "state:scheduled tag:red".parse().expect("a filter");
        assert_eq!(duly.jobs().list(red).await.expect("lists").jobs.len(), 2, "both are found as before");
        set_user(&mut admin, &rules);
        assert_eq!(store.claim(node.id, claim()).await.expect("claims").jobs.len(), 2);
    }
}

/// CONFIG GET would show the user the server's password.
#[tokio::test]
async fn minimal_user_may_not_read_the_configuration() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::durable(binary).start();
        let rules = rules(&server.url()).await;
        assert!(!rules.contains("config"), "{rules}");
        set_user(&mut server.client().expect("connects"), &rules);
        let mut user = server.client().expect("connects");
        user.send_command(&["AUTH", "duly", PASSWORD]).expect("a reply");
        let reply = user.send_command(&["CONFIG", "GET", "requirepass"]).expect("a reply").text();
        assert!(reply.starts_with("NOPERM"), "{reply}");
        // INFO still shows that there is an append-only file.
        let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
        let health = duly.health().await.expect("a report");
        assert!(health.durability.contains("depends on appendfsync"), "{}", health.durability);
        duly.push(Push::new("ok", "{}")).await.expect("pushes");
        set_user(&mut server.client().expect("connects"), &format!("{rules} +config|get"));
        let health = duly.health().await.expect("a report");
        assert!(health.durability.contains("the last second or two may be lost"), "{}", health.durability);
    }
}

#[tokio::test]
async fn server_without_persistence_is_rejected_without_config_rights() {
    let server = Options::new(Binary::Redis).start();
    let health = open(format!("{}?allow_data_loss=true", server.url())).await.health().await.expect("a report");
    set_user(&mut server.client().expect("connects"), &health.acl.expect("a server has users"));
    let url = format!("redis://duly:{PASSWORD}@{}", server.address());
    let error = open_error(&url).await.to_string();
    assert!(error.contains("allow_data_loss=true"), "{error}");
    let duly = open(format!("{url}?allow_data_loss=true")).await;
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
}

/// Transfers everything to another store and back, past obsolete tickets.
async fn transfer_there_and_back(duly: &Duly) {
    let away = Duly::open(":memory:").await.expect("opens");
    for _ in 0..2 {
        let first = duly.push(Push::new("ok", "{}").queue("moves")).await.expect("push_every_way").id();
        duly.push_all([Push::new("ok", "{}").queue("moves"), Push::new("ok", "{}").queue("moves")])
            .await
            .expect("push_every_way");
        duly.jobs().remove(first).await.expect("removes");
        duly.transfer_to(&away).run().await.expect("moves away");
        away.transfer_to(duly).run().await.expect("moves back");
    }
    let counts = duly.queues().counts().await.expect("counts");
    assert_eq!(counts.iter().find(|count| count.queue == "moves").map(|count| count.ready), Some(4));
}
