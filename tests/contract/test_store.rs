//! A store with a manual clock, and helpers for the operations that tests use most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use duly::bounds::DEFAULT_LEASE;
use duly::job::HeldJob;
use duly::store::Node;
use duly::store::{
    AnnounceReply, AttemptEnd, AttemptTiming, ChangeResult, Claim, ClaimReply, JobStore, LockOwner, LockRequest,
    Notification, PeerInfo, PeerStore, Store,
};
use duly::{Clock, Duly, JobId, JobRecord, NodeId, Outcome, Push, PushResult, State};
use tokio::sync::mpsc::Receiver;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const KEEP: Duration = Duration::from_secs(24 * 3600);
pub const REMEMBER: Duration = Duration::from_secs(600);
/// Far longer than any notification takes; a test that waits this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(10);

pub struct TestStore {
    pub store: Arc<dyn Store>,
    /// The client of the same store.
    pub duly: Duly,
    clock: Clock,
    /// The times of the clock when the store was opened.
    start: SystemTime,
    start_monotonic: Duration,
    /// Nodes by name, and whether they are alive: `advance` sends heartbeats for those.
    nodes: Mutex<BTreeMap<&'static str, (Node, bool)>>,
    /// Peers by name, and whether they are alive: `advance` announces those.
    peers: Mutex<BTreeMap<&'static str, (PeerInfo, bool)>>,
    _dir: Option<test_support::TempDir>,
}

impl TestStore {
    pub async fn in_memory() -> Self {
        TestStore::open(":memory:".into(), None).await
    }

    pub async fn in_file() -> Self {
        let dir = test_support::temp_dir();
        let path = dir.path().join("duly.db");
        TestStore::open(path.to_str().expect("a plain path").into(), Some(dir)).await
    }

    /// Opens a store on a shared server, under its own prefix.
    #[cfg(feature = "redis")]
    pub async fn on(server: String) -> Self {
        TestStore::open(format!("{server}?prefix={}", JobId::fresh()), None).await
    }

    /// Opens a store on Sidekiq's keys on a shared server, in its own namespace.
    #[cfg(feature = "compat")]
    pub async fn on_sidekiq(server: String) -> Self {
        let (server, prefix) = (server.replacen("redis", "sidekiq", 1), JobId::fresh());
        TestStore::open(format!("{server}?prefix={prefix}&namespace={prefix}"), None).await
    }

    async fn open(url: String, dir: Option<test_support::TempDir>) -> Self {
        let clock = Clock::manual();
        let duly = Duly::builder(url).clock(clock.clone()).remember_ids(REMEMBER).open().await.expect("opens");
        TestStore {
            store: duly.store(),
            duly,
            start: clock.now(),
            start_monotonic: clock.monotonic(),
            clock,
            nodes: Mutex::default(),
            peers: Mutex::default(),
            _dir: dir,
        }
    }

    /// Returns the id of the node with this name. Registers the node on first use.
    pub async fn node(&self, name: &'static str) -> NodeId {
        let existing = self.nodes.lock().expect("not poisoned").get(name).map(|(node, _)| node.id);
        if let Some(id) = existing {
            return id;
        }
        let node = Node::fresh(vec!["default".into()]);
        let id = node.id;
        self.store.heartbeat(&node).await.expect("sends a heartbeat");
        self.nodes.lock().expect("not poisoned").insert(name, (node, true));
        id
    }

    /// Stops the heartbeats and announcements of this node.
    pub fn silence(&self, name: &'static str) {
        let (mut nodes, mut peers) = (self.nodes.lock(), self.peers.lock());
        let node_alive = nodes.as_mut().expect("not poisoned").get_mut(name).map(|(_, alive)| alive);
        let peer_alive = peers.as_mut().expect("not poisoned").get_mut(name).map(|(_, alive)| alive);
        assert!(node_alive.is_some() || peer_alive.is_some(), "{name} does not exist");
        for alive in node_alive.into_iter().chain(peer_alive) {
            *alive = false;
        }
    }

    /// Advances the clock. Live nodes send heartbeats and live peers announce themselves meanwhile.
    pub async fn advance(&self, by: Duration) {
        let mut remaining = by;
        while !remaining.is_zero() {
            let interval = remaining.min(SECOND);
            self.clock.advance(interval);
            remaining -= interval;
            let alive: Vec<Node> = {
                let nodes = self.nodes.lock().expect("not poisoned");
                nodes.values().filter(|(_, alive)| *alive).map(|(node, _)| node.clone()).collect()
            };
            for node in alive {
                self.store.heartbeat(&node).await.expect("sends a heartbeat");
            }
            let live_peers: Vec<PeerInfo> = {
                let peers = self.peers.lock().expect("not poisoned");
                peers.values().filter(|(_, alive)| *alive).map(|(peer, _)| peer.clone()).collect()
            };
            for peer in live_peers {
                self.store.announce(&peer).await.expect("announces");
            }
        }
    }

    /// Advances the clock without any heartbeat, as if the machine had been suspended.
    pub fn sleep(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Sets the wall clock to a wrong time, and back after `wrong_for`. Live nodes send heartbeats and live peers announce
    /// themselves meanwhile and right after it.
    pub async fn jump(&self, to: SystemTime, wrong_for: Duration) {
        self.set_clock(to).await;
        self.advance(wrong_for).await;
        self.correct_clock().await;
    }

    /// Sets the wall clock to a wrong time.
    pub async fn set_clock(&self, to: SystemTime) {
        self.clock.set(to);
        self.advance(MS).await;
    }

    /// Corrects the wall clock after [`TestStore::set_clock`].
    pub async fn correct_clock(&self) {
        self.clock.set(self.true_time());
        self.advance(MS).await;
    }

    /// Returns the time of a clock that was never set.
    pub fn true_time(&self) -> SystemTime {
        self.start + (self.clock.monotonic() - self.start_monotonic)
    }

    pub async fn heartbeat(&self, name: &'static str) -> duly::store::HeartbeatReply {
        self.node(name).await;
        let node = self.nodes.lock().expect("not poisoned")[name].0.clone();
        self.store.heartbeat(&node).await.expect("sends a heartbeat")
    }

    /// Returns the time of the manual clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Returns the id of the peer with this name, and announces it on first use.
    /// A peer and a node of the same name share one id.
    pub async fn peer(&self, name: &'static str) -> NodeId {
        let existing = self.peers.lock().expect("not poisoned").get(name).map(|(peer, _)| peer.node);
        match existing {
            Some(id) => id,
            None => self.peer_with(name, |_| ()).await,
        }
    }

    /// Announces a peer again after `change`.
    pub async fn peer_with(&self, name: &'static str, change: impl FnOnce(&mut PeerInfo)) -> NodeId {
        let mut peer = self.peer_info(name);
        change(&mut peer);
        self.peers.lock().expect("not poisoned").insert(name, (peer.clone(), true));
        self.store.announce(&peer).await.expect("announces");
        peer.node
    }

    /// Announces a peer again, with the locks it waits for.
    pub async fn announce(&self, name: &'static str, locks: &[&str]) -> AnnounceReply {
        let waited_locks = locks.iter().map(|name| (*name).into()).collect();
        self.store.announce(&PeerInfo { waited_locks, ..self.peer_info(name) }).await.expect("announces")
    }

    /// Announces a peer with these waiters. Returns the owners that no longer wait in the store.
    pub async fn lost_waiters(&self, name: &'static str, requests: &[&LockRequest]) -> Vec<LockOwner> {
        let waiters = requests.iter().map(|request| (request.name.clone(), request.owner)).collect();
        self.store.announce(&PeerInfo { waiters, ..self.peer_info(name) }).await.expect("announces").lost_waits
    }

    /// Announces a peer and subscribes it to its messages.
    pub async fn subscribe(&self, name: &'static str) -> Inbox {
        let peer = self.peer_info(name);
        let notifications = self.store.subscribe_messages(peer.node, true).await.expect("inbox");
        self.peer_with(name, |new| *new = peer).await;
        Inbox(notifications)
    }

    /// Withdraws a peer.
    pub async fn withdraw(&self, name: &'static str) {
        let node = self.peer_info(name).node;
        self.peers.lock().expect("not poisoned").get_mut(name).expect("exists").1 = false;
        self.store.withdraw(node).await.expect("withdraws");
    }

    /// Returns the last announcement of this peer, or its first one.
    fn peer_info(&self, name: &'static str) -> PeerInfo {
        let existing = self.peers.lock().expect("not poisoned").get(name).map(|(peer, _)| peer.clone());
        let node_id = self.nodes.lock().expect("not poisoned").get(name).map(|(node, _)| node.id);
        existing.unwrap_or_else(|| PeerInfo::new(node_id.unwrap_or_else(NodeId::fresh), DEFAULT_LEASE))
    }

    pub async fn push(&self, push: Push) -> PushResult {
        self.push_all(vec![push]).await[0]
    }

    pub async fn push_all(&self, pushes: Vec<Push>) -> Vec<PushResult> {
        self.store.push(pushes).await.expect("pushes")
    }

    pub async fn claim_with(&self, node: &'static str, claim: Claim) -> ClaimReply {
        self.store.claim(self.node(node).await, claim).await.expect("claims")
    }

    pub async fn claim(&self, node: &'static str, max: usize) -> Vec<HeldJob> {
        self.claim_with(node, claim(max)).await.jobs
    }

    pub async fn claim_one(&self, node: &'static str) -> HeldJob {
        self.claim(node, 1).await.pop().expect("a job is ready")
    }

    /// Claims while suspecting another node.
    pub async fn claim_from(&self, node: &'static str, suspect: &'static str, max: usize) -> ClaimReply {
        let suspect = Some(self.node(suspect).await);
        self.claim_with(node, Claim { suspect, ..claim(max) }).await
    }

    pub async fn settle(&self, node: &'static str, held: &HeldJob, outcome: Outcome) -> Vec<JobId> {
        let end = AttemptEnd::from_held(held, outcome, held.job.keep);
        self.store.settle(self.node(node).await, vec![end]).await.expect("settles")
    }

    /// Settles an attempt that started two seconds ago, took one of them, and is recorded with its output.
    pub async fn settle_run(&self, node: &'static str, held: &HeldJob, outcome: Outcome, output: Option<&str>) {
        let mut end = AttemptEnd::from_held(held, outcome, held.job.keep);
        end.timing = Some(AttemptTiming { lateness: MS, duration: SECOND });
        end.started = Some(self.now() - 2 * SECOND);
        end.output = output.map(str::to_owned);
        let node = self.node(node).await;
        assert_eq!(self.store.settle(node, vec![end]).await.expect("settles"), nothing_lost());
    }

    pub async fn get(&self, id: JobId) -> Option<JobRecord> {
        self.store.get(id).await.expect("reads")
    }

    pub async fn state(&self, id: JobId) -> Option<State> {
        self.get(id).await.map(|record| record.state)
    }

    pub async fn remove(&self, id: JobId) -> ChangeResult {
        self.store.remove(id).await.expect("removes")
    }

    pub async fn prune(&self) -> usize {
        self.store.prune("default", 10_000).await.expect("prunes")
    }
}

/// The notifications of one peer, in order.
pub struct Inbox(Receiver<Notification>);

impl Inbox {
    /// Returns the next notification. A [`Notification::Gap`] may come at any time and is skipped.
    pub async fn next(&mut self) -> Notification {
        loop {
            match tokio::time::timeout(TIMEOUT, self.0.recv()).await.expect("in time").expect("open") {
                Notification::Gap => {}
                notification => return notification,
            }
        }
    }
}

pub fn claim(max: usize) -> Claim {
    Claim::new("default", max)
}

/// A job that tests recognise by its kind. It is kept when it is done.
pub fn job(kind: &str) -> Push {
    Push::new(kind, "{}").keep(KEEP)
}

pub fn kinds(held: &[HeldJob]) -> Vec<&str> {
    held.iter().map(|held| held.job.kind.as_str()).collect()
}

pub fn nothing_lost() -> Vec<JobId> {
    Vec::new()
}

pub fn retry_at_once() -> Outcome {
    Outcome::retry(Duration::ZERO, "oh")
}

pub fn release() -> Outcome {
    Outcome::release(Duration::ZERO)
}

/// The time after its last heartbeat at which the lease of a node has expired.
pub fn past_the_lease() -> Duration {
    DEFAULT_LEASE + MS
}
