//! A store under a clock that only the test moves, and short words for what tests do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::store::{Claim, Claimed, End, Moved, Store};
use duly::{Clock, Duly, Held, JobId, LEASE, Node, NodeId, Outcome, Push, Pushed, Record, State};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const KEEP: Duration = Duration::from_secs(24 * 3600);
pub const REMEMBER: Duration = Duration::from_secs(600);

pub struct TestStore {
    pub store: Arc<dyn Store>,
    clock: Clock,
    /// Nodes by name; those that are alive beat while time goes by.
    nodes: Mutex<BTreeMap<&'static str, (Node, bool)>>,
    _dir: Option<tempfile::TempDir>,
}

impl TestStore {
    pub async fn in_memory() -> Self {
        TestStore::open(":memory:".into(), None).await
    }

    pub async fn in_file() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("duly.db");
        TestStore::open(path.to_str().expect("a plain path").into(), Some(dir)).await
    }

    /// On a server that others use too: under a prefix of its own.
    #[cfg(feature = "redis")]
    pub async fn on(server: String) -> Self {
        TestStore::open(format!("{server}?prefix={}", JobId::fresh()), None).await
    }

    async fn open(url: String, dir: Option<tempfile::TempDir>) -> Self {
        let clock = Clock::manual();
        let duly = Duly::builder(url).clock(clock.clone()).remember(REMEMBER).open().await.expect("opens");
        TestStore { store: duly.store(), clock, nodes: Mutex::default(), _dir: dir }
    }

    pub async fn node(&self, name: &'static str) -> NodeId {
        let known = self.nodes.lock().expect("no test panics with it").get(name).map(|(node, _)| node.id);
        if let Some(id) = known {
            return id;
        }
        let node = Node::fresh(vec!["default".into()]);
        let id = node.id;
        self.store.beat(&node).await.expect("beats");
        self.nodes.lock().expect("no test panics with it").insert(name, (node, true));
        id
    }

    /// From now on this node is silent.
    pub fn silence(&self, name: &'static str) {
        self.nodes.lock().expect("no test panics with it").get_mut(name).expect("known").1 = false;
    }

    /// Lets time go by; nodes that are alive go on beating.
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
                self.store.beat(&node).await.expect("beats");
            }
        }
    }

    /// Lets time go by without anybody beating, as if the machine had been asleep.
    pub fn sleep(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub async fn beat(&self, name: &'static str) -> duly::store::Beaten {
        self.node(name).await;
        let node = self.nodes.lock().expect("no test panics with it")[name].0.clone();
        self.store.beat(&node).await.expect("beats")
    }

    pub async fn push(&self, push: Push) -> Pushed {
        self.push_all(vec![push]).await[0]
    }

    pub async fn push_all(&self, pushes: Vec<Push>) -> Vec<Pushed> {
        self.store.push(pushes).await.expect("pushes")
    }

    pub async fn ask(&self, node: &'static str, claim: Claim) -> Claimed {
        self.store.claim(self.node(node).await, claim).await.expect("claims")
    }

    pub async fn claim(&self, node: &'static str, max: usize) -> Vec<Held> {
        self.ask(node, claim(max)).await.jobs
    }

    pub async fn claim_one(&self, node: &'static str) -> Held {
        self.claim(node, 1).await.pop().expect("a job is ready")
    }

    /// Claims while suspecting another node.
    pub async fn claim_from(&self, node: &'static str, suspect: &'static str, max: usize) -> Claimed {
        let suspect = Some(self.node(suspect).await);
        self.ask(node, Claim { suspect, ..claim(max) }).await
    }

    pub async fn settle(&self, node: &'static str, held: &Held, outcome: Outcome) -> Vec<JobId> {
        let end = End::of(held, outcome, held.job.keep);
        self.store.settle(self.node(node).await, vec![end]).await.expect("settles")
    }

    pub async fn get(&self, id: JobId) -> Option<Record> {
        self.store.get(id).await.expect("looks")
    }

    pub async fn state(&self, id: JobId) -> Option<State> {
        self.get(id).await.map(|record| record.state)
    }

    pub async fn remove(&self, id: JobId) -> Moved {
        self.store.remove(id).await.expect("removes")
    }

    pub async fn prune(&self) -> usize {
        self.store.prune("default", 10_000).await.expect("prunes")
    }
}

pub fn claim(max: usize) -> Claim {
    Claim { queue: "default".into(), max, redo: false, suspect: None }
}

/// A job that is told apart by its kind, kept once it is done.
pub fn job(kind: &str) -> Push {
    Push::new(kind, "{}").keep(KEEP)
}

pub fn kinds(held: &[Held]) -> Vec<&str> {
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
