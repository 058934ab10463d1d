//! Two stores, their jobs, and a node that the test controls.

use std::collections::BTreeMap;
use std::time::Duration;

use duly::job::HeldJob;
use duly::store::Node;
use duly::store::{AttemptEnd, Claim, JobStore};
use duly::{Duly, Filter, JobId, JobRecord, Outcome, Priority, Push, PushResult, State};

pub const FAR_FUTURE: Duration = Duration::from_secs(1_000_000);
pub const KEEP: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy)]
pub enum StoreKind {
    File,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "redis")]
    Cluster,
    #[cfg(feature = "compat")]
    Sidekiq,
}

/// The locations of two stores that no other test uses. Removed ids are forgotten as soon as possible,
/// so that remembered ids cannot hide a second arrival.
pub struct StorePair {
    kinds: [StoreKind; 2],
    dir: test_support::TempDir,
}

impl StorePair {
    pub fn new(from: StoreKind, to: StoreKind) -> Self {
        StorePair { kinds: [from, to], dir: test_support::temp_dir() }
    }

    /// Opens two empty stores.
    pub async fn open(&self) -> (Duly, Duly) {
        (self.open_one(0).await, self.open_one(1).await)
    }

    pub async fn open_one(&self, index: usize) -> Duly {
        open(&self.url(index)).await
    }

    pub fn url(&self, index: usize) -> String {
        let name = JobId::fresh();
        match self.kinds[index] {
            StoreKind::File => {
                format!("{}/{name}.db?durability=second&remember_ids=0&lease=600ms", self.dir.path().display())
            }
            #[cfg(feature = "redis")]
            StoreKind::Redis => {
                format!("{}?remember_ids=0&lease=600ms&prefix={name}", test_support::servers::redis().url())
            }
            #[cfg(feature = "redis")]
            StoreKind::Cluster => {
                format!("{}?remember_ids=0&lease=600ms&prefix={name}", test_support::servers::cluster().url())
            }
            #[cfg(feature = "compat")]
            StoreKind::Sidekiq => {
                let server = test_support::servers::redis().url().replacen("redis", "sidekiq", 1);
                format!("{server}?remember_ids=0&lease=600ms&namespace={name}")
            }
        }
    }
}

pub async fn open(url: &str) -> Duly {
    Duly::open(url).await.expect("opens")
}

/// A job that tests recognise by its kind. It is forgotten when it is done.
pub fn job(kind: &str) -> Push {
    Push::new(kind, format!("{{\"kind\":\"{kind}\"}}")).keep(Duration::ZERO)
}

/// Returns all jobs of a store with details, in list order.
pub async fn all(duly: &Duly) -> Vec<JobRecord> {
    let mut all = Vec::new();
    for state in State::ALL {
        let mut cursor = None;
        loop {
            let filter = Filter::all().state(state).limit(300).with_details().cursor(cursor);
            let page = duly.jobs().list(filter).await.expect("lists");
            all.extend(page.jobs);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
    }
    all
}

/// Returns the jobs by queue and id.
pub fn by_id(jobs: Vec<JobRecord>) -> BTreeMap<(String, JobId), JobRecord> {
    let count = jobs.len();
    let map: BTreeMap<_, _> = jobs.into_iter().map(|r| ((r.job.queue.clone(), r.job.id), r)).collect();
    assert_eq!(map.len(), count, "each job once");
    map
}

/// Pushes jobs of every state, and of every priority if the store has them, with and without failures. Returns their ids.
pub async fn fill(duly: &Duly, queue: &str, each: usize) -> Vec<JobId> {
    let has_priorities = duly.store().name() != "Sidekiq";
    let priority = move |n: usize| if has_priorities { Priority::ALL[n % 4] } else { Priority::Normal };
    let pushes = |kind: &'static str, change: fn(Push) -> Push| {
        (0..each).map(move |n| change(job(kind).queue(queue).priority(priority(n))))
    };
    let mut ids = Vec::new();
    let mut add = |pushed: Vec<PushResult>| ids.extend(pushed.iter().map(PushResult::id));
    add(duly.push_all(pushes("ended", |push| push.keep(KEEP))).await.expect("pushes"));
    add(duly.push_all(pushes("failed", |push| push)).await.expect("pushes"));
    let worker = ManualNode::join(duly, queue).await;
    for (n, held) in worker.claim(2 * each).await.iter().enumerate() {
        let outcome = match n % 4 {
            _ if held.job.kind == "failed" && n % 2 == 0 => Outcome::retry(Duration::ZERO, format!("oh {n}")),
            _ if held.job.kind == "failed" => Outcome::retry(FAR_FUTURE, format!("later {n}")),
            0 | 1 => Outcome::bury(format!("no {n}")),
            _ => Outcome::Ack,
        };
        worker.settle(held, outcome).await;
    }
    worker.leave().await;
    add(duly.push_all(pushes("ready", |push| push)).await.expect("pushes"));
    add(duly.push_all(pushes("scheduled", |push| push.after(FAR_FUTURE))).await.expect("pushes"));
    ids
}

/// A node that claims and settles only when the test calls it.
pub struct ManualNode {
    duly: Duly,
    queue: String,
    pub node: Node,
}

impl ManualNode {
    pub async fn join(duly: &Duly, queue: &str) -> Self {
        let node = Node::fresh(vec![queue.to_owned()]);
        duly.store().heartbeat(&node).await.expect("sends a heartbeat");
        ManualNode { duly: duly.clone(), queue: queue.to_owned(), node }
    }

    pub async fn claim(&self, max: usize) -> Vec<HeldJob> {
        let claim = || Claim::new(self.queue.clone(), 500);
        let mut held = Vec::new();
        while held.len() < max {
            let reply = self.duly.store().claim(self.node.id, claim()).await.expect("claims");
            held.extend(reply.jobs);
            if !reply.has_more {
                break;
            }
        }
        held
    }

    pub async fn settle(&self, held: &HeldJob, outcome: Outcome) {
        let end = AttemptEnd::from_held(held, outcome, if held.job.keep.is_zero() { KEEP } else { held.job.keep });
        let lost = self.duly.store().settle(self.node.id, vec![end]).await.expect("settles");
        assert!(lost.is_empty());
    }

    /// Acks all ready jobs and makes the store forget them. Returns their ids.
    pub async fn run_ready_jobs(&self) -> Vec<JobId> {
        let mut done = Vec::new();
        loop {
            let held = self.claim(1_000).await;
            if held.is_empty() {
                break;
            }
            let ends = held.iter().map(|held| AttemptEnd::from_held(held, Outcome::Ack, Duration::ZERO));
            for batch in ends.collect::<Vec<_>>().chunks(500) {
                let lost = self.duly.store().settle(self.node.id, batch.to_vec()).await.expect("settles");
                assert!(lost.is_empty());
            }
            done.extend(held.iter().map(|held| held.job.id));
        }
        for _ in 0..2 {
            self.duly.store().prune(&self.queue, 100_000).await.expect("prunes");
        }
        done
    }

    pub async fn leave(self) {
        self.duly.store().leave(self.node.id).await.expect("leaves");
    }
}

/// Fails unless both lists have the same ids, each once.
#[track_caller]
pub fn assert_each_once(found: impl IntoIterator<Item = JobId>, expected: &[JobId]) {
    let (mut found, mut expected): (Vec<_>, Vec<_>) = (found.into_iter().collect(), expected.to_vec());
    found.sort();
    expected.sort();
    let twice: Vec<_> = found.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    let lost: Vec<_> = expected.iter().filter(|id| found.binary_search(id).is_err()).collect();
    assert!(twice.is_empty() && lost.is_empty(), "twice: {twice:?}, lost: {lost:?}");
    assert_eq!(found.len(), expected.len(), "no others");
}

/// Fails unless the store is empty and not moving.
pub async fn assert_empty(duly: &Duly) {
    assert_eq!(all(duly).await, []);
    let counts = duly.queues().counts().await.expect("counts");
    assert!(counts.iter().all(|count| count.moving.is_none()), "{counts:?}");
    assert!(counts.iter().all(|c| c.ready + c.scheduled + c.running + c.done + c.dead == 0), "{counts:?}");
}
