//! Several stores on one file, as several processes have them: they speak with each other and pass locks on.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duly::store::{LockOwner, LockRequest, Notification, PeerInfo, Recipient, Store};
use duly::{Duly, LEASE, Node, NodeId};
use tokio::sync::mpsc::Receiver;

/// Far longer than anything here takes; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(600);
const STORE: &str = "DULY_NEIGHBOUR_STORE";
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

    fn bus(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}-nodes/bus.db{end}", self.path.display()))
    }
}

fn guest(node: NodeId) -> PeerInfo {
    PeerInfo {
        node,
        lease: LEASE,
        methods: vec!["m".into()],
        waited_locks: Vec::new(),
        waiters: Vec::new(),
        listen_only: false,
    }
}

/// A node in the hall of this store that listens.
async fn listen(store: &Arc<dyn Store>) -> (NodeId, Receiver<Notification>) {
    let node = NodeId::fresh();
    let heard = store.subscribe_messages(node, true).await.expect("hears");
    store.announce(&guest(node)).await.expect("attends");
    (node, heard)
}

async fn next(heard: &mut Receiver<Notification>) -> Notification {
    loop {
        match tokio::time::timeout(LONG, heard.recv()).await.expect("in time").expect("open") {
            Notification::Gap | Notification::CheckTurns => {}
            heard => return heard,
        }
    }
}

fn ask(node: NodeId, wait: bool) -> LockRequest {
    let (name, owner, note) = ("l".into(), LockOwner::fresh(), String::new());
    LockRequest { name, owner, node, lease: LEASE, slots: 1, ttl: TTL, wait, note }
}

fn said(message: &[u8]) -> Notification {
    Notification::Message(message.into())
}

#[tokio::test]
async fn messages_pass_between_stores_in_order() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_hears) = listen(&here).await;
    let (b, mut b_hears) = listen(&there).await;
    for i in 0..200u8 {
        let to = if i % 2 == 0 { Recipient::Node(b) } else { Recipient::All };
        assert_eq!(here.send(to, &[i]).await.expect("sends"), if i % 2 == 0 { 1 } else { 2 });
    }
    for i in 0..200u8 {
        assert_eq!(next(&mut b_hears).await, said(&[i]));
    }
    for i in (1..200u8).step_by(2) {
        assert_eq!(next(&mut a_hears).await, said(&[i]), "what it says to all it hears itself, once");
    }
    assert_eq!(there.send(Recipient::Node(a), b"back").await.expect("sends"), 1);
    assert_eq!(next(&mut a_hears).await, said(b"back"));

    drop((there, b_hears));
    let deadline = Instant::now() + LONG;
    while here.send(Recipient::Node(b), b"gone").await.expect("sends") == 1 {
        assert!(Instant::now() < deadline, "a store that is closed listens no more");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn call_and_reply_take_less_than_a_millisecond() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_hears) = listen(&here).await;
    let (b, mut b_hears) = listen(&there).await;
    tokio::spawn(async move {
        while let Some(Notification::Message(message)) = b_hears.recv().await {
            there.send(Recipient::Node(a), &message).await.expect("replies");
        }
    });
    let mut took: Vec<Duration> = Vec::new();
    for i in 0..500u16 {
        let start = Instant::now();
        here.send(Recipient::Node(b), &i.to_le_bytes()).await.expect("calls");
        assert_eq!(next(&mut a_hears).await, said(&i.to_le_bytes()));
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
    let (a, _hears) = listen(&here).await;
    here.set_connections(a, &["c".into()], &[]).await.expect("notes");
    assert_eq!(there.connection_holder("c").await.expect("looks"), Some(a));
    assert_eq!(there.peers_with_method("m").await.expect("looks"), [a]);
    assert_eq!(there.nodes().await.expect("lists").iter().map(|node| node.id).collect::<Vec<_>>(), [a]);
    here.withdraw(a).await.expect("departs");
    assert_eq!(there.connection_holder("c").await.expect("looks"), None);
    assert!(there.peers_with_method("m").await.expect("looks").is_empty());
}

#[tokio::test]
async fn lock_is_handed_to_another_store_at_once() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, _hears) = listen(&here).await;
    let (b, mut b_hears) = listen(&there).await;
    let (holder, waiter) = (ask(a, false), ask(b, true));
    let (fence, _) = here.lock(&holder).await.expect("asks").hold.expect("is free");
    assert_eq!(there.lock(&waiter).await.expect("asks").hold, None);
    assert!(here.unlock(&holder).await.expect("gives it up"));
    let turn = Notification::LockTurn { name: "l".into(), owner: waiter.owner };
    assert_eq!(next(&mut b_hears).await, turn);
    assert!(there.lock(&waiter).await.expect("asks").hold.expect("its turn").0 > fence);
}

#[tokio::test]
async fn worker_and_peer_share_one_subscription() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let node = Node::fresh(vec!["default".into()]);
    here.heartbeat(&node).await.expect("beats");
    let mut wakes = here.subscribe_wakes(node.id).await.expect("subscribes");
    let mut hears = here.subscribe_messages(node.id, true).await.expect("hears");
    here.announce(&guest(node.id)).await.expect("attends");
    let claim = duly::store::Claim { queue: "default".into(), max: 1, resync: false, suspect: None, kinds: None };
    assert!(here.claim(node.id, claim).await.expect("claims").jobs.is_empty());

    assert_eq!(there.send(Recipient::All, b"hello").await.expect("sends"), 1);
    assert_eq!(next(&mut hears).await, said(b"hello"));
    there.push(vec![duly::Push::new("kind", "{}")]).await.expect("pushes");
    let wake = tokio::time::timeout(LONG, wakes.recv()).await.expect("in time");
    assert_eq!(wake, Some(duly::store::Wake::Queue("default".into())));

    here.leave(node.id).await.expect("leaves");
    assert_eq!(there.send(Recipient::Node(node.id), b"still there").await.expect("sends"), 1);
    assert_eq!(next(&mut hears).await, said(b"still there"));
    assert!(there.nodes().await.expect("lists").iter().all(|node| node.alive), "as a guest");
}

#[tokio::test]
async fn lost_or_damaged_bus_file_does_no_harm() {
    let file = file();
    let (here, there) = (file.open().await, file.open().await);
    let (a, mut a_hears) = listen(&here).await;
    let (b, mut b_hears) = listen(&there).await;
    for round in 0..6u8 {
        match round {
            1 => std::fs::remove_file(file.bus("")).expect("removes"),
            2 => std::fs::write(file.bus(""), "x".repeat(20_000)).expect("damages"),
            3 => std::fs::remove_file(file.bus("-wal")).unwrap_or_default(),
            4 => std::fs::File::options().write(true).open(file.bus("")).and_then(|f| f.set_len(0)).expect("cuts"),
            _ => {}
        }
        // What is on its way when it happens may be lost; what is said after the next sign of life is not.
        let _ = (here.send(Recipient::Node(b), b"lost").await, there.send(Recipient::Node(a), b"lost").await);
        for (store, node) in [(&here, a), (&there, b)] {
            let _ = store.announce(&guest(node)).await;
            store.announce(&guest(node)).await.expect("attends");
        }
        assert_eq!(here.send(Recipient::Node(b), &[round]).await.expect("sends"), 1);
        assert_eq!(there.send(Recipient::Node(a), &[round]).await.expect("sends"), 1);
        for heard in [&mut a_hears, &mut b_hears] {
            while next(heard).await != said(&[round]) {}
        }
        assert_eq!(here.peers_with_method("m").await.expect("looks").len(), 2, "round {round}");
        here.counts().await.expect("the jobs have nothing to do with it");
    }
}

#[tokio::test]
async fn file_without_lock_tables_is_upgraded() {
    let file = file();
    drop(file.open().await);
    let conn = duly::rusqlite::Connection::open(&file.path).expect("opens");
    conn.execute_batch("DROP TABLE duly_lock; DROP TABLE duly_lock_waiter").expect("as it was");
    drop(conn);
    let store = file.open().await;
    assert!(store.lock(&ask(NodeId::fresh(), false)).await.expect("asks").hold.is_some());
}

/// Not a test: a process that holds the lock until it is killed.
#[tokio::test]
async fn child_process() {
    let Ok(url) = std::env::var(STORE) else {
        return;
    };
    let store = Duly::open(url).await.expect("opens").store();
    let (node, _hears) = listen(&store).await;
    let (holder, waiter) = (ask(node, false), ask(node, true));
    store.lock(&holder).await.expect("asks").hold.expect("is free");
    assert_eq!(store.lock(&waiter).await.expect("asks").hold, None);
    println!("\nholding");
    tokio::time::sleep(LONG).await;
}

#[tokio::test]
async fn killed_process_holds_no_lock_and_no_wait() {
    let file = file();
    let store = file.open().await;
    let (node, mut hears) = listen(&store).await;
    let mut child = test_support::child_test("multi_process::child_process")
        .env(STORE, &file.path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"));
    let waiter = ask(node, true);
    let taken = store.lock(&waiter).await.expect("asks");
    assert_eq!((taken.hold, taken.waiters_ahead), (None, 1));
    // Peers are looked for once a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    store.announce(&guest(node)).await.expect("attends");
    while hears.try_recv().is_ok() {}

    let killed = Instant::now();
    child.kill().expect("kills");
    child.wait().expect("ends");
    let heard = tokio::time::timeout(LONG, hears.recv()).await.expect("in time");
    println!("told {:?} after the kill", killed.elapsed());
    assert_eq!(heard, Some(Notification::CheckTurns), "something has happened: look");
    let turns =
        store.announce(&PeerInfo { waited_locks: vec!["l".into()], ..guest(node) }).await.expect("attends").turns;
    assert_eq!((turns[0].first_waiter, turns[0].expires_in), (Some(waiter.owner), Duration::ZERO));
    assert!(store.lock(&waiter).await.expect("asks").hold.is_some());
}

/// Only its own place is gone, and others stand in line: no silence tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_lost_entry_waits_again() {
    let file = file();
    let url = format!("{}?lease=600ms", file.path.display());
    let (holder, other) = (Duly::open(&url).await.expect("opens"), Duly::open(&url).await.expect("opens"));
    let guard = holder.lock("a").acquire().await.expect("is free");
    let waiting = async |n: u64| {
        while holder.lock("a").holder().await.expect("looks").is_none_or(|held| held.waiters < n) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let one = tokio::spawn(other.lock("a").acquire());
    waiting(1).await;
    let behind = tokio::spawn(holder.lock("a").acquire());
    waiting(2).await;
    let conn = duly::rusqlite::Connection::open(&file.path).expect("opens");
    conn.busy_timeout(LONG).expect("sets");
    let gone = conn.execute("DELETE FROM duly_lock_waiter WHERE seq = (SELECT min(seq) FROM duly_lock_waiter)", []);
    assert_eq!(gone.expect("deletes"), 1);

    // A few signs of life later; far less than it takes those who look although nobody says so.
    tokio::time::timeout(Duration::from_secs(10), waiting(2)).await.expect("stands in line again");
    guard.release().await.expect("is held");
    let first = tokio::time::timeout(LONG, behind).await.expect("in time").expect("no panic").expect("its turn");
    first.release().await.expect("is held");
    let second = tokio::time::timeout(LONG, one).await.expect("in time").expect("no panic").expect("its turn");
    second.release().await.expect("is held");
}

/// A user who is not root, by its number.
const NOBODY: u32 = 65_534;

/// Gives the store and all that stands beside it to somebody else than root.
fn give_to_nobody(file: &File) {
    let nodes = format!("{}-nodes", file.path.display());
    let beside = [file._dir.path().to_owned(), PathBuf::from(&nodes)];
    for dir in &beside {
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).expect("gives");
        for entry in std::fs::read_dir(dir).expect("lists") {
            std::os::unix::fs::chown(entry.expect("reads").path(), Some(NOBODY), Some(NOBODY)).expect("gives");
        }
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can be somebody else too");
    }
    root
}

/// One command of root's must not lock out whoever uses the store day by day.
#[tokio::test]
async fn files_created_by_root_belong_to_the_store_owner() {
    use std::os::unix::fs::MetadataExt;
    if !is_root() {
        return;
    }
    let file = file();
    drop(listen(&file.open().await).await);
    give_to_nobody(&file);
    let nodes = PathBuf::from(format!("{}-nodes", file.path.display()));
    let look = |what: &str| {
        let made = std::fs::read_dir(&nodes).expect("lists").map(|entry| entry.expect("reads").path());
        let mut made: Vec<PathBuf> = made.filter(|path| path.extension().is_none_or(|end| end != "sock")).collect();
        made.push(nodes.clone());
        assert!(made.len() >= 5, "{what}: registry, lock and bus: {made:?}");
        for path in made {
            let owner = std::fs::metadata(&path).expect("is there");
            assert_eq!((owner.uid(), owner.gid()), (NOBODY, NOBODY), "{what}: {}", path.display());
        }
    };
    // A second node needs a slot that was not there before.
    let store = file.open().await;
    let (_a, _b) = (listen(&store).await, listen(&store).await);
    look("some are new");
    drop((_a, _b, store));
    std::fs::remove_dir_all(&nodes).expect("removes");
    let store = file.open().await;
    let _c = listen(&store).await;
    look("all are new");
}

/// Not a test of its own: what another user's process does.
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
    give_to_nobody(&file);
    let lock = format!("{}-nodes/0.lock", file.path.display());
    std::os::unix::fs::chown(lock, Some(0), Some(0)).expect("takes");
    let child = test_support::child_test("multi_process::child_of_another_user")
        .env(OTHER_USER, &file.path)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("starts");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}
