//! A store under a clock that only the test moves, and short words for what tests do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use duly::store::{
    AnnounceReply, AttemptEnd, ChangeResult, Claim, ClaimReply, LockOwner, LockRequest, Notification, PeerInfo, Store,
};
use duly::{Clock, Duly, HeldJob, JobId, JobRecord, LEASE, Node, NodeId, Outcome, Push, PushResult, State};
use tokio::sync::mpsc::Receiver;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const KEEP: Duration = Duration::from_secs(24 * 3600);
pub const REMEMBER: Duration = Duration::from_secs(600);
/// Far longer than anything takes to be heard; a test that waits this long has failed.
pub const LONG: Duration = Duration::from_secs(10);

pub struct TestStore {
    pub store: Arc<dyn Store>,
    /// The door to it.
    pub duly: Duly,
    clock: Clock,
    /// Nodes by name; those that are alive beat while time goes by.
    nodes: Mutex<BTreeMap<&'static str, (Node, bool)>>,
    /// Nodes in the hall by name; those that are alive attend while time goes by.
    guests: Mutex<BTreeMap<&'static str, (PeerInfo, bool)>>,
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

    /// On a server that others use too: under a prefix of its own.
    #[cfg(feature = "redis")]
    pub async fn on(server: String) -> Self {
        TestStore::open(format!("{server}?prefix={}", JobId::fresh()), None).await
    }

    /// On Sidekiq's keys, on a server that others use too: in a namespace of its own.
    #[cfg(feature = "redis")]
    pub async fn on_sidekiq(server: String) -> Self {
        let (server, own) = (server.replacen("redis", "sidekiq", 1), JobId::fresh());
        TestStore::open(format!("{server}?prefix={own}&namespace={own}"), None).await
    }

    async fn open(url: String, dir: Option<test_support::TempDir>) -> Self {
        let clock = Clock::manual();
        let duly = Duly::builder(url).clock(clock.clone()).remember_ids(REMEMBER).open().await.expect("opens");
        TestStore { store: duly.store(), duly, clock, nodes: Mutex::default(), guests: Mutex::default(), _dir: dir }
    }

    pub async fn node(&self, name: &'static str) -> NodeId {
        let known = self.nodes.lock().expect("no test panics with it").get(name).map(|(node, _)| node.id);
        if let Some(id) = known {
            return id;
        }
        let node = Node::fresh(vec!["default".into()]);
        let id = node.id;
        self.store.heartbeat(&node).await.expect("beats");
        self.nodes.lock().expect("no test panics with it").insert(name, (node, true));
        id
    }

    /// From now on this node is silent, in its queues and in the hall.
    pub fn silence(&self, name: &'static str) {
        let (mut nodes, mut guests) = (self.nodes.lock(), self.guests.lock());
        let node = nodes.as_mut().expect("no test panics with it").get_mut(name).map(|(_, alive)| alive);
        let guest = guests.as_mut().expect("no test panics with it").get_mut(name).map(|(_, alive)| alive);
        assert!(node.is_some() || guest.is_some(), "{name} is known");
        for alive in node.into_iter().chain(guest) {
            *alive = false;
        }
    }

    /// Lets time go by; nodes that are alive go on beating, and attending.
    pub async fn advance(&self, by: Duration) {
        let mut left = by;
        while !left.is_zero() {
            let step = left.min(SECOND);
            self.clock.advance(step);
            left -= step;
            let alive: Vec<Node> = {
                let nodes = self.nodes.lock().expect("no test panics with it");
                nodes.values().filter(|(_, alive)| *alive).map(|(node, _)| node.clone()).collect()
            };
            for node in alive {
                self.store.heartbeat(&node).await.expect("beats");
            }
            let there: Vec<PeerInfo> = {
                let guests = self.guests.lock().expect("no test panics with it");
                guests.values().filter(|(_, alive)| *alive).map(|(guest, _)| guest.clone()).collect()
            };
            for guest in there {
                self.store.announce(&guest).await.expect("attends");
            }
        }
    }

    /// Lets time go by without anybody beating, as if the machine had been asleep.
    pub fn sleep(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub async fn beat(&self, name: &'static str) -> duly::store::HeartbeatReply {
        self.node(name).await;
        let node = self.nodes.lock().expect("no test panics with it")[name].0.clone();
        self.store.heartbeat(&node).await.expect("beats")
    }

    /// The moment at which the test has set the clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// A node that is in the hall and stays there. If it works as well, it is the same one.
    pub async fn guest(&self, name: &'static str) -> NodeId {
        let known = self.guests.lock().expect("no test panics with it").get(name).map(|(guest, _)| guest.node);
        match known {
            Some(id) => id,
            None => self.guest_who(name, |_| ()).await,
        }
    }

    /// A guest who shows itself anew, with something changed.
    pub async fn guest_who(&self, name: &'static str, change: impl FnOnce(&mut PeerInfo)) -> NodeId {
        let mut guest = self.introduce(name);
        change(&mut guest);
        self.guests.lock().expect("no test panics with it").insert(name, (guest.clone(), true));
        self.store.announce(&guest).await.expect("attends");
        guest.node
    }

    /// Another sign of life of a guest, with what it waits for.
    pub async fn attend(&self, name: &'static str, waits: &[&str]) -> AnnounceReply {
        let waits = waits.iter().map(|name| (*name).into()).collect();
        self.store.announce(&PeerInfo { waited_locks: waits, ..self.introduce(name) }).await.expect("attends")
    }

    /// A guest who listens: what is said to it from now on can be heard.
    /// A sign of life of a node where these should stand in line. Answers who does not.
    pub async fn lost(&self, name: &'static str, asks: &[&LockRequest]) -> Vec<LockOwner> {
        let places = asks.iter().map(|ask| (ask.name.clone(), ask.owner)).collect();
        self.store.announce(&PeerInfo { waiters: places, ..self.introduce(name) }).await.expect("attends").lost_waits
    }

    pub async fn listen(&self, name: &'static str) -> Ear {
        let guest = self.introduce(name);
        let heard = self.store.subscribe_messages(guest.node, true).await.expect("hears");
        self.guest_who(name, |new| *new = guest).await;
        Ear(heard)
    }

    /// A guest leaves the hall in good order.
    pub async fn depart(&self, name: &'static str) {
        let guest = self.introduce(name).node;
        self.guests.lock().expect("no test panics with it").get_mut(name).expect("known").1 = false;
        self.store.withdraw(guest).await.expect("departs");
    }

    /// The guest of this name as it showed itself last, or as it will at first.
    fn introduce(&self, name: &'static str) -> PeerInfo {
        let known = self.guests.lock().expect("no test panics with it").get(name).map(|(guest, _)| guest.clone());
        let works = self.nodes.lock().expect("no test panics with it").get(name).map(|(node, _)| node.id);
        known.unwrap_or_else(|| PeerInfo {
            node: works.unwrap_or_else(NodeId::fresh),
            lease: LEASE,
            methods: Vec::new(),
            waited_locks: Vec::new(),
            waiters: Vec::new(),
            listen_only: false,
        })
    }

    pub async fn push(&self, push: Push) -> PushResult {
        self.push_all(vec![push]).await[0]
    }

    pub async fn push_all(&self, pushes: Vec<Push>) -> Vec<PushResult> {
        self.store.push(pushes).await.expect("pushes")
    }

    pub async fn ask(&self, node: &'static str, claim: Claim) -> ClaimReply {
        self.store.claim(self.node(node).await, claim).await.expect("claims")
    }

    pub async fn claim(&self, node: &'static str, max: usize) -> Vec<HeldJob> {
        self.ask(node, claim(max)).await.jobs
    }

    pub async fn claim_one(&self, node: &'static str) -> HeldJob {
        self.claim(node, 1).await.pop().expect("a job is ready")
    }

    /// Claims while suspecting another node.
    pub async fn claim_from(&self, node: &'static str, suspect: &'static str, max: usize) -> ClaimReply {
        let suspect = Some(self.node(suspect).await);
        self.ask(node, Claim { suspect, ..claim(max) }).await
    }

    pub async fn settle(&self, node: &'static str, held: &HeldJob, outcome: Outcome) -> Vec<JobId> {
        let end = AttemptEnd::from_held(held, outcome, held.job.keep);
        self.store.settle(self.node(node).await, vec![end]).await.expect("settles")
    }

    pub async fn get(&self, id: JobId) -> Option<JobRecord> {
        self.store.get(id).await.expect("looks")
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

/// What a guest hears, one after the other.
pub struct Ear(Receiver<Notification>);

impl Ear {
    /// The next thing that is heard. That something may have been missed can be said at any time, and is not counted.
    pub async fn next(&mut self) -> Notification {
        loop {
            match tokio::time::timeout(LONG, self.0.recv()).await.expect("in time").expect("open") {
                Notification::Gap => {}
                heard => return heard,
            }
        }
    }
}

pub fn claim(max: usize) -> Claim {
    Claim { queue: "default".into(), max, resync: false, suspect: None, kinds: None }
}

/// A job that is told apart by its kind, kept once it is done.
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

/// A moment after which a node that beat last now is silent for too long.
pub fn past_the_lease() -> Duration {
    LEASE + MS
}
