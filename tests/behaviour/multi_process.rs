//! Several stores on one file, as in several processes: messages, wakes and locks pass between them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duly::bounds::DEFAULT_LEASE;
use duly::store::Node;
use duly::store::{JobStore, LockOwner, LockRequest, LockStore, Notification, PeerInfo, PeerStore, Recipient, Store};
use duly::{Duly, NodeId};
use test_support::until;
use tokio::sync::mpsc::Receiver;

/// Far longer than anything here takes; a test that waits this long has failed.
const TIMEOUT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(600);
const STORE: &str = "DULY_MULTI_PROCESS_STORE";
const OTHER_USER: &str = "DULY_OTHER_USER_STORE";

struct File {
    _dir: test_support::TempDir,
    path: PathBuf,
}

fn file() -> File {
    let dir = test_support::temp_dir();
    File { path: dir.path().join("duly.db"), _dir: dir }
}

impl File {
    async fn open(&self) -> Arc<dyn Store> {
        Duly::open(self.path.display().to_string()).await.expect("opens").store()
    }

    fn bus(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}-nodes/bus.db{suffix}", self.path.display()))
    }
}

fn peer_info(node: NodeId) -> PeerInfo {
    PeerInfo { methods: vec!["m".into()], ..PeerInfo::new(node, DEFAULT_LEASE) }
}

/// Announces a new peer and subscribes it to its messages.
async fn listen(store: &Arc<dyn Store>) -> (NodeId, Receiver<Notification>) {
    let node = NodeId::fresh();
    let inbox = store.subscribe_messages(node, true).await.expect("subscribes");
    store.announce(&peer_info(node)).await.expect("announces");
    (node, inbox)
}

async fn next(inbox: &mut Receiver<Notification>) -> Notification {
    loop {
        match tokio::time::timeout(TIMEOUT, inbox.recv()).await.expect("in time").expect("open") {
            Notification::Gap | Notification::CheckTurns => {}
            notification => return notification,
        }
    }
}

fn request(node: NodeId, wait: bool) -> LockRequest {
    let (name, owner, note) = ("l".into(), LockOwner::fresh(), String::new());
    LockRequest { name, owner, node, lease: DEFAULT_LEASE, slots: 1, ttl: TTL, wait, note }
}

fn message(bytes: &[u8]) -> Notification {
    Notification::Message(bytes.into())
}

#[tokio::test]
async fn messages_pass_between_stores_in_order() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_inbox) = listen(&here).await;
    let (b, mut b_inbox) = listen(&there).await;
    for i in 0..200u8 {
        let to = if i % 2 == 0 { Recipient::Node(b) } else { Recipient::All };
        assert_eq!(here.send(to, &[i]).await.expect("sends"), if i % 2 == 0 { 1 } else { 2 });
    }
    for i in 0..200u8 {
        assert_eq!(next(&mut b_inbox).await, message(&[i]));
    }
    for i in (1..200u8).step_by(2) {
        assert_eq!(next(&mut a_inbox).await, message(&[i]), "the sender receives its own broadcast once");
    }
    assert_eq!(there.send(Recipient::Node(a), b"back").await.expect("sends"), 1);
    assert_eq!(next(&mut a_inbox).await, message(b"back"));

    drop((there, b_inbox));
    until("a closed store receives no messages", async || {
        here.send(Recipient::Node(b), b"gone").await.expect("sends") != 1
    })
    .await;
}

#[tokio::test]
async fn call_and_reply_take_less_than_a_millisecond() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_inbox) = listen(&here).await;
    let (b, mut b_inbox) = listen(&there).await;
    tokio::spawn(async move {
        while let Some(Notification::Message(bytes)) = b_inbox.recv().await {
            there.send(Recipient::Node(a), &bytes).await.expect("replies");
        }
    });
    let mut took: Vec<Duration> = Vec::new();
    for i in 0..500u16 {
        let start = Instant::now();
        here.send(Recipient::Node(b), &i.to_le_bytes()).await.expect("calls");
        assert_eq!(next(&mut a_inbox).await, message(&i.to_le_bytes()));
        took.push(start.elapsed());
    }
    took.sort();
    println!("call and reply: median {:?}, 99th {:?}", took[250], took[495]);
    assert!(took[250] < Duration::from_millis(20), "far more than it takes on a busy machine");
}

#[tokio::test]
async fn peers_of_one_store_are_visible_to_others() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, _inbox) = listen(&here).await;
    here.set_connections(a, &["c".into()], &[]).await.expect("registers");
    assert_eq!(there.connection_holder("c").await.expect("reads"), Some(a));
    assert_eq!(there.peers_with_method("m").await.expect("reads"), [a]);
    assert_eq!(there.nodes().await.expect("lists").iter().map(|node| node.id).collect::<Vec<_>>(), [a]);
    here.withdraw(a).await.expect("withdraws");
    assert_eq!(there.connection_holder("c").await.expect("reads"), None);
    assert!(there.peers_with_method("m").await.expect("reads").is_empty());
}

#[tokio::test]
async fn lock_is_handed_to_another_store_at_once() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, _inbox) = listen(&here).await;
    let (b, mut b_inbox) = listen(&there).await;
    let (holder, waiter) = (request(a, false), request(b, true));
    let (fence, _) = here.lock(&holder).await.expect("replies").hold.expect("is free");
    assert_eq!(there.lock(&waiter).await.expect("replies").hold, None);
    assert!(here.unlock(&holder).await.expect("releases"));
    let turn = Notification::LockTurn { name: "l".into(), owner: waiter.owner };
    assert_eq!(next(&mut b_inbox).await, turn);
    assert!(there.lock(&waiter).await.expect("replies").hold.expect("its turn").0 > fence);
}

#[tokio::test]
async fn worker_and_peer_share_one_subscription() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let node = Node::fresh(vec!["default".into()]);
    here.heartbeat(&node).await.expect("sends a heartbeat");
    let mut wakes = here.subscribe_wakes(node.id).await.expect("subscribes");
    let mut inbox = here.subscribe_messages(node.id, true).await.expect("subscribes");
    here.announce(&peer_info(node.id)).await.expect("announces");
    let claim = duly::store::Claim::new("default", 1);
    assert!(here.claim(node.id, claim).await.expect("claims").jobs.is_empty());

    assert_eq!(there.send(Recipient::All, b"hello").await.expect("sends"), 1);
    assert_eq!(next(&mut inbox).await, message(b"hello"));
    there.push(vec![duly::Push::new("kind", "{}")]).await.expect("pushes");
    let wake = tokio::time::timeout(TIMEOUT, wakes.recv()).await.expect("in time");
    assert_eq!(wake, Some(duly::store::Wake::Queue("default".into())));

    here.leave(node.id).await.expect("leaves");
    assert_eq!(there.send(Recipient::Node(node.id), b"still there").await.expect("sends"), 1);
    assert_eq!(next(&mut inbox).await, message(b"still there"));
    assert!(there.nodes().await.expect("lists").iter().all(|node| node.alive), "as a peer");
}

#[tokio::test]
async fn lost_or_damaged_bus_file_does_no_harm() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_inbox) = listen(&here).await;
    let (b, mut b_inbox) = listen(&there).await;
    for round in 0..6u8 {
        match round {
            1 => std::fs::remove_file(file.bus("")).expect("removes"),
            2 => std::fs::write(file.bus(""), "x".repeat(20_000)).expect("damages"),
            3 => std::fs::remove_file(file.bus("-wal")).unwrap_or_default(),
            4 => std::fs::File::options().write(true).open(file.bus("")).and_then(|f| f.set_len(0)).expect("cuts"),
            _ => {}
        }
        // Messages in flight at this moment may be lost; messages after the next announcement are not.
        let _ = (here.send(Recipient::Node(b), b"lost").await, there.send(Recipient::Node(a), b"lost").await);
        for (store, node) in [(&here, a), (&there, b)] {
            let _ = store.announce(&peer_info(node)).await;
            store.announce(&peer_info(node)).await.expect("announces");
        }
        assert_eq!(here.send(Recipient::Node(b), &[round]).await.expect("sends"), 1);
        assert_eq!(there.send(Recipient::Node(a), &[round]).await.expect("sends"), 1);
        for inbox in [&mut a_inbox, &mut b_inbox] {
            while next(inbox).await != message(&[round]) {}
        }
        assert_eq!(here.peers_with_method("m").await.expect("reads").len(), 2, "round {round}");
        here.counts().await.expect("jobs are not affected");
    }
}

/// Not a test: a process that holds the lock until it is killed.
#[tokio::test]
async fn child_process() {
    let Ok(url) = std::env::var(STORE) else {
        return;
    };
    let store = Duly::open(url).await.expect("opens").store();
    let (node, _inbox) = listen(&store).await;
    let (holder, waiter) = (request(node, false), request(node, true));
    store.lock(&holder).await.expect("replies").hold.expect("is free");
    assert_eq!(store.lock(&waiter).await.expect("replies").hold, None);
    println!("\nholding");
    tokio::time::sleep(TIMEOUT).await;
}

#[tokio::test]
async fn killed_process_holds_no_lock_and_no_wait() {
    let file = file();
    let store = file.open().await;
    let (node, mut inbox) = listen(&store).await;
    let mut child = test_support::child_test("multi_process::child_process")
        .env(STORE, &file.path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"));
    let waiter = request(node, true);
    let reply = store.lock(&waiter).await.expect("replies");
    assert_eq!((reply.hold, reply.waiters_ahead), (None, 1));
    // A process looks for new processes once a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    store.announce(&peer_info(node)).await.expect("announces");
    while inbox.try_recv().is_ok() {}

    let killed = Instant::now();
    child.kill().expect("kills");
    child.wait().expect("ends");
    let notification = tokio::time::timeout(TIMEOUT, inbox.recv()).await.expect("in time");
    println!("notified {:?} after the kill", killed.elapsed());
    assert_eq!(notification, Some(Notification::CheckTurns));
    let turns =
        store.announce(&PeerInfo { waited_locks: vec!["l".into()], ..peer_info(node) }).await.expect("announces").turns;
    assert_eq!((turns[0].first_waiter, turns[0].expires_in), (Some(waiter.owner), Duration::ZERO));
    assert!(store.lock(&waiter).await.expect("replies").hold.is_some());
}

/// Only its own entry is lost while other waiters remain, so the lock is never idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_lost_entry_waits_again() {
    let file = file();
    let url = format!("{}?lease=600ms", file.path.display());
    let (holder, other) = (Duly::open(&url).await.expect("opens"), Duly::open(&url).await.expect("opens"));
    let guard = holder.lock("a").acquire().await.expect("is free");
    let until_waiters = async |n: u64| {
        let waiters = async || holder.lock("a").holder().await.expect("reads").map_or(0, |held| held.waiters);
        until("more wait", async || waiters().await >= n).await;
    };
    let lost = tokio::spawn(other.lock("a").acquire());
    until_waiters(1).await;
    let behind = tokio::spawn(holder.lock("a").acquire());
    until_waiters(2).await;
    let conn = duly::rusqlite::Connection::open(&file.path).expect("opens");
    conn.busy_timeout(TIMEOUT).expect("sets");
    let deleted = conn.execute("DELETE FROM duly_lock_waiter WHERE seq = (SELECT min(seq) FROM duly_lock_waiter)", []);
    assert_eq!(deleted.expect("deletes"), 1);

    // A few announcements later, far sooner than the fallback check of waiters.
    tokio::time::timeout(Duration::from_secs(10), until_waiters(2)).await.expect("waits again");
    guard.release().await.expect("is held");
    let first = tokio::time::timeout(TIMEOUT, behind).await.expect("in time").expect("no panic").expect("its turn");
    first.release().await.expect("is held");
    let second = tokio::time::timeout(TIMEOUT, lost).await.expect("in time").expect("no panic").expect("its turn");
    second.release().await.expect("is held");
}

/// The id of a user that is not root.
const NOBODY: u32 = 65_534;

/// Changes the owner of the store and its other files to a user that is not root.
fn chown_to_nobody(file: &File) {
    let nodes = format!("{}-nodes", file.path.display());
    let dirs = [file._dir.path().to_owned(), PathBuf::from(&nodes)];
    for dir in &dirs {
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).expect("changes the owner");
        for entry in std::fs::read_dir(dir).expect("lists") {
            std::os::unix::fs::chown(entry.expect("reads").path(), Some(NOBODY), Some(NOBODY))
                .expect("changes the owner");
        }
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can change owners");
    }
    root
}

/// A single command by root must not lock out the regular user of the store.
#[tokio::test]
async fn files_created_by_root_belong_to_the_store_owner() {
    use std::os::unix::fs::MetadataExt;
    if !is_root() {
        return;
    }
    let file = file();
    drop(listen(&file.open().await).await);
    chown_to_nobody(&file);
    let nodes = PathBuf::from(format!("{}-nodes", file.path.display()));
    let assert_owner = |case: &str| {
        let files = std::fs::read_dir(&nodes).expect("lists").map(|entry| entry.expect("reads").path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_none_or(|end| end != "sock")).collect();
        files.push(nodes.clone());
        assert!(files.len() >= 5, "{case}: registry, lock and bus: {files:?}");
        for path in files {
            let owner = std::fs::metadata(&path).expect("is there");
            assert_eq!((owner.uid(), owner.gid()), (NOBODY, NOBODY), "{case}: {}", path.display());
        }
    };
    // A second node needs a new slot.
    let store = file.open().await;
    let (_a, _b) = (listen(&store).await, listen(&store).await);
    assert_owner("some are new");
    drop((_a, _b, store));
    std::fs::remove_dir_all(&nodes).expect("removes");
    let store = file.open().await;
    let _c = listen(&store).await;
    assert_owner("all are new");
}

/// Not a test: the process of another user.
#[tokio::test]
async fn child_of_another_user() {
    let Ok(url) = std::env::var(OTHER_USER) else {
        return;
    };
    let store = Duly::open(url).await.expect("opens").store();
    store.heartbeat(&Node::fresh(vec!["default".into()])).await.expect("takes a slot");
    listen(&store).await;
}

#[tokio::test]
async fn node_slot_of_another_user_is_skipped() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return;
    }
    let file = file();
    drop(listen(&file.open().await).await);
    chown_to_nobody(&file);
    let lock = format!("{}-nodes/0.lock", file.path.display());
    std::os::unix::fs::chown(lock, Some(0), Some(0)).expect("changes the owner");
    let child = test_support::child_test("multi_process::child_of_another_user")
        .env(OTHER_USER, &file.path)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("starts");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}
