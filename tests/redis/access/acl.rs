//! The least that a user must be allowed is enough for a whole life, and for nothing else.

use std::time::Duration;

use duly::store::{AttemptEnd, Claim, LockOwner, LockRequest, Notification, PeerInfo, Recipient, Store};
use duly::{
    Ctx, Due, Duly, Event, Filter, JobId, Node, NodeId, Outcome, Push, PushResult, Retry, State, UniqueConflict,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::helpers::{LONG, durable, open, refusal, until, whole};
use test_support::servers::{Binary, Client, Cluster, Options, Reply, Server};

const PASSWORD: &str = "let-me-in";

/// Lets in the user `duly` with these rules.
fn admit(admin: &mut Client, rules: &str) {
    let mut command = vec!["ACL", "SETUSER", "duly", "on", ">let-me-in"];
    command.extend(rules.split(' '));
    assert_eq!(admin.ask(&command).expect("answers").text(), "OK", "{rules}");
}

/// The rules that duly asks for.
async fn rules(url: &str) -> String {
    open(url).await.health().await.expect("tells").acl.expect("a server has users")
}

/// What the server has refused to anybody so far: also what nobody was told.
fn denials(admin: &mut Client) -> Vec<String> {
    let log = admin.ask(&["ACL", "LOG"]).expect("answers");
    log.list().iter().map(|entry| format!("{:?} {:?}", entry.field("reason"), entry.field("object"))).collect()
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_redis() {
    alone(Binary::Redis).await;
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_valkey() {
    alone(Binary::Valkey).await;
}

async fn alone(binary: Binary) {
    let server = durable(binary).start();
    let rules = rules(&server.url()).await;
    // The connection outlives the rights of the user it came in as.
    let mut admin = server.client().expect("connects");
    admin.ask(&["ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all"]).expect("answers");
    admin.ask(&["AUTH", "admin", "admin"]).expect("answers");
    admit(&mut admin, &rules);
    admin.ask(&["ACL", "SETUSER", "default", "off"]).expect("answers");

    a_whole_life(&format!("redis://duly:{PASSWORD}@{}", server.address())).await;
    assert_eq!(denials(&mut admin), Vec::<String>::new(), "nothing was refused, not even in silence");
    may_do_nothing_else(&server);
}

#[tokio::test]
async fn user_with_least_rights_can_do_everything_on_a_cluster() {
    // The default user keeps a password for administration: who forgets to log in is let in nowhere.
    let cluster = Cluster::start(durable(Binary::Redis).password("admin"), test_support::servers::CALM);
    let url = cluster.url();
    let rules = rules(&url.replace("://", "://:admin@")).await;
    for node in cluster.nodes() {
        admit(&mut node.client().expect("connects"), &rules);
    }
    a_whole_life(&url.replace("://", &format!("://duly:{PASSWORD}@"))).await;
    for node in cluster.nodes() {
        assert_eq!(denials(&mut node.client().expect("connects")), Vec::<String>::new());
    }
}

/// Everything that duly does, through this URL.
async fn a_whole_life(url: &str) {
    let duly = open(url).await;
    let ids = pushes(&duly).await;
    work(&duly, ids).await;
    looks_and_moves(&duly).await;
    takes_back(&*duly.store()).await;
    moves_away_and_back(&duly).await;
    in_the_hall(&*duly.store()).await;
}

/// Locks, messages and connections.
async fn in_the_hall(store: &dyn Store) {
    let (lease, node) = (Duration::from_secs(3), NodeId::fresh());
    let guest = PeerInfo {
        node,
        lease,
        methods: vec!["m".into()],
        waited_locks: vec!["l".into()],
        waiters: Vec::new(),
        listen_only: false,
    };
    let mut heard = store.subscribe_messages(node, true).await.expect("hears");
    store.announce(&guest).await.expect("attends");
    let ask = |slots| {
        let (name, owner, note) = ("l".into(), LockOwner::fresh(), "somebody".into());
        LockRequest { name, owner, node, lease, slots, ttl: LONG, wait: true, note }
    };
    let (first, second) = (ask(1), ask(1));
    assert!(store.lock(&first).await.expect("answers").hold.is_some());
    assert!(store.lock(&second).await.expect("answers").hold.is_none());
    assert_eq!(store.extend_locks(std::slice::from_ref(&first)).await.expect("answers"), [true]);
    assert_eq!(store.locks(None, None).await.expect("lists").locks[0].waiters, 1);
    assert_eq!(store.announce(&guest).await.expect("attends").turns.len(), 1);
    assert!(store.unlock(&first).await.expect("answers"));
    assert!(matches!(heard.recv().await, Some(Notification::LockTurn { owner, .. }) if owner == second.owner));
    assert!(store.lock(&second).await.expect("answers").hold.is_some());
    assert!(store.lock(&ask(2)).await.expect("answers").hold.is_some());
    assert_eq!(store.break_lock("l").await.expect("breaks"), 2);
    for _ in 0..2 {
        assert!(matches!(heard.recv().await, Some(Notification::LockTurn { .. })), "who had it is told");
    }
    store.set_connections(node, &["c".into(), "d".into()], &[]).await.expect("notes");
    store.refresh_connections(node, &["c".into(), "d".into()]).await.expect("notes");
    store.set_connections(node, &[], &["d".into()]).await.expect("forgets");
    assert_eq!(store.connection_holder("c").await.expect("looks"), Some(node));
    assert_eq!(store.peers_with_method("m").await.expect("looks"), [node]);
    assert!(store.nodes().await.expect("lists").iter().any(|row| row.id == node));
    // The worker that ran before hears what is for all, too.
    for (to, reached) in [(Recipient::All, 2), (Recipient::Node(node), 1)] {
        assert_eq!(store.send(to, b"hello").await.expect("sends"), reached);
        assert_eq!(heard.recv().await, Some(Notification::Message(b"hello".into())));
    }
    store.withdraw(node).await.expect("departs");
}

/// Every kind of push; answers how many jobs wait.
async fn pushes(duly: &Duly) -> usize {
    let own = JobId::from_name("own");
    assert_eq!(duly.push(Push::new("ok", "1").id(own)).await.expect("pushes"), PushResult::New(own));
    assert_eq!(duly.push(Push::new("ok", "1").id(own)).await.expect("pushes"), PushResult::Existing(own));
    let key = |n: u8| Push::new("ok", n.to_string()).unique("key").on_conflict(UniqueConflict::Replace);
    let old = duly.push(key(1)).await.expect("pushes").id();
    let new = duly.push(key(2).after(Duration::from_millis(50))).await.expect("pushes");
    assert!(matches!(new, PushResult::Replaced { old: gone, .. } if gone == old), "{new:?}");
    duly.push(key(3)).await.expect("replaces one that is scheduled");
    let many = (0..6).map(|n| Push::new(["ok", "fails", "dies"][n % 3], "{}").queue(["default", "b", "c"][n % 3]));
    duly.push_all(many).await.expect("pushes");
    duly.push(Push::new("ok", "{}").after(Duration::from_millis(300))).await.expect("pushes");
    1 + 1 + 6 + 1
}

/// A worker that acks, retries and buries, and is woken when it has nothing to do.
async fn work(duly: &Duly, jobs: usize) {
    let (settled, mut ends) = mpsc::unbounded_channel();
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
    let mut seen = Vec::new();
    while seen.iter().filter(|outcome| **outcome != "retry").count() < jobs {
        seen.push(tokio::time::timeout(LONG, ends.recv()).await.expect("in time").expect("works"));
    }
    assert_eq!(seen.iter().filter(|outcome| **outcome == "bury").count(), 2, "{seen:?}");
    assert_eq!(seen.iter().filter(|outcome| **outcome == "retry").count(), 2, "{seen:?}");
    until("the node is known", async || duly.nodes().await.expect("lists").iter().any(|node| node.alive)).await;
    // Idle now: woken by another connection.
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
    tokio::time::timeout(LONG, ends.recv()).await.expect("in time").expect("is woken");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

async fn looks_and_moves(duly: &Duly) {
    let dead = duly.list(Filter { state: Some(State::Dead), ..Filter::default() }).await.expect("lists").jobs;
    assert_eq!(dead.len(), 2);
    let record = duly.get(dead[0].job.id).await.expect("looks").expect("is there");
    assert_eq!(record.failures.len(), 1);
    duly.reschedule(dead[0].job.id, Due::Now).await.expect("starts over");
    duly.reschedule(dead[0].job.id, Due::After(LONG)).await.expect("is moved");
    duly.remove(dead[0].job.id).await.expect("removes");
    duly.remove(dead[1].job.id).await.expect("removes");
    assert!(duly.pause_queue("default").await.expect("pauses"));
    assert!(duly.resume_queue("default").await.expect("resumes"));
    let ready = duly.push(Push::new("ok", "{}")).await.expect("pushes").id();
    for state in State::ALL {
        duly.list(Filter { state: Some(state), ..Filter::default() }).await.expect("lists");
    }
    duly.remove(ready).await.expect("removes one that is ready");
    let done: u64 = duly.counts().await.expect("counts").iter().map(|queue| queue.done).sum();
    assert_eq!(duly.store().prune("default", 0).await.expect("prunes") as u64 + 2, done, "two are in another queue");
    duly.health().await.expect("tells");
}

/// A node that goes with a job in its hands, another that takes it over and has forgotten what it holds.
async fn takes_back(store: &dyn Store) {
    let claim = |suspect, redo| Claim { queue: "default".into(), max: 1, resync: redo, suspect, kinds: None };
    let node = async || {
        let node = Node::fresh(vec!["default".into()]);
        store.heartbeat(&node).await.expect("beats");
        node.id
    };
    let push = Push::new("ok", "{}").keep(Duration::ZERO);
    store.push(vec![push]).await.expect("pushes");
    let (first, second): (NodeId, NodeId) = (node().await, node().await);
    assert_eq!(store.claim(first, claim(None, false)).await.expect("claims").jobs.len(), 1);
    store.leave(first).await.expect("leaves");
    let taken = store.claim(second, claim(Some(first), false)).await.expect("claims");
    assert_eq!((taken.taken_back, taken.jobs.len()), (1, 1));
    let held = store.claim(second, claim(None, true)).await.expect("is told").jobs.remove(0);
    store.claim(second, Claim { max: 0, ..claim(None, false) }).await.expect("steps back");
    let end = AttemptEnd::from_held(&held, Outcome::release(Duration::ZERO), Duration::ZERO);
    assert_eq!(store.settle(second, vec![end]).await.expect("settles"), Vec::<JobId>::new());
    store.leave(second).await.expect("leaves");
}

/// The same user, by hand: nothing of others, nothing that ends the server's use to others.
fn may_do_nothing_else(server: &Server) {
    let mut user = server.client().expect("connects");
    assert_eq!(user.ask(&["AUTH", "duly", PASSWORD]).expect("answers").text(), "OK");
    let own = "duly:queue:{default}:conf";
    assert!(!matches!(user.ask(&["HGETALL", own]).expect("answers"), Reply::Error(_)), "its own keys it may read");
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
        let answer = user.ask(command).expect("answers").text();
        assert!(answer.starts_with("NOPERM"), "{command:?}: {answer}");
    }
    // Nor by a script that it may load.
    let sha = user.ask(&["SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])"]).expect("answers").text();
    for command in [["EVALSHA", &sha, "1", "foreign"], ["EVALSHA", &sha, "1", "other:queue"]] {
        let answer = user.ask(&command).expect("answers").text();
        assert!(answer.contains("NOPERM") || answer.contains("No permissions"), "{command:?}: {answer}");
    }
}

#[tokio::test]
async fn missing_right_error_names_the_command_that_prints_the_acl() {
    let server = durable(Binary::Redis).start();
    let rules = rules(&server.url()).await;
    admit(&mut server.client().expect("connects"), &rules.replace("+evalsha", ""));
    let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
    let error = duly.push(Push::new("ok", "{}").id(JobId::from_name("a"))).await.expect_err("needs a script");
    assert!(error.to_string().contains("duly doctor --acl"), "{error}");
    // And who comes with the prefix of somebody else.
    let error = refusal(format!("redis://duly:{PASSWORD}@{}?prefix=other", server.address())).await;
    assert!(error.to_string().contains("duly doctor --acl"), "{error}");
    assert!(!whole(&error).contains(PASSWORD), "{}", whole(&error));
}

/// The line of an older version: scripts need what it does not name. Nothing is lost, and who claims is told what is missing.
#[tokio::test]
async fn missing_right_inside_a_script_is_reported() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = durable(binary).start();
        let rules = rules(&server.url()).await;
        let older = rules.replace(" +zremrangebyrank", "").replace(" +zremrangebylex", "");
        assert_ne!(older, rules);
        let mut admin = server.client().expect("connects");
        admit(&mut admin, &older);
        let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
        let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
        store.heartbeat(&node).await.expect("beats");
        let soon = || Push::new("note", "{}").tag("red").after(Duration::from_millis(1));
        duly.push_all([soon(), soon()]).await.expect("pushes");
        let claim = || Claim { queue: "default".into(), max: 9, resync: false, suspect: None, kinds: None };
        let error = loop {
            match store.claim(node.id, claim()).await {
                Ok(claimed) => assert!(claimed.jobs.is_empty(), "may not move what is due"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("duly doctor --acl"), "{error}");
        let red: Filter = "state:scheduled tag:red".parse().expect("a filter");
        assert_eq!(duly.list(red).await.expect("lists").jobs.len(), 2, "both are found as before");
        admit(&mut admin, &rules);
        assert_eq!(store.claim(node.id, claim()).await.expect("claims").jobs.len(), 2);
    }
}

/// A server whose user may not ask for its settings: many hosted ones are like this.
#[tokio::test]
async fn store_without_config_rights_opens_and_reports_unknown() {
    let server = Options::new(Binary::Redis).start();
    let known = open(format!("{}?allow_data_loss=true", server.url())).await.health().await.expect("tells");
    let rules = known.acl.expect("a server has users");
    admit(&mut server.client().expect("connects"), &rules.replace("+config|get", ""));
    let duly = open(format!("redis://duly:{PASSWORD}@{}", server.address())).await;
    let health = duly.health().await.expect("tells");
    assert!(health.durability.starts_with("Unknown"), "{}", health.durability);
    duly.push(Push::new("ok", "{}")).await.expect("pushes");
}

/// Everything to another store and back, past tickets that nobody needs any more.
async fn moves_away_and_back(duly: &Duly) {
    let away = Duly::open(":memory:").await.expect("opens");
    for _ in 0..2 {
        let first = duly.push(Push::new("ok", "{}").queue("moves")).await.expect("pushes").id();
        duly.push_all([Push::new("ok", "{}").queue("moves"), Push::new("ok", "{}").queue("moves")])
            .await
            .expect("pushes");
        duly.remove(first).await.expect("removes");
        duly.transfer_to(&away).run().await.expect("moves away");
        away.transfer_to(duly).run().await.expect("moves back");
    }
    let counts = duly.counts().await.expect("counts");
    assert_eq!(counts.iter().find(|count| count.queue == "moves").map(|count| count.ready), Some(4));
}
