//! One history: the same random operations on a store and on the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duly::store::{AttemptEnd, ChangeResult, Claim, ClaimReply, Store};
use duly::{
    Clock, Due, Duly, Filter, HeldJob, JobId, LEASE, Node, NodeId, Outcome, Priority, Push, State, UniqueConflict,
};

use crate::model::reference::{Micros, Model, Pushing};

pub const QUEUES: [&str; 2] = ["default", "other"];
const KEYS: [&str; 3] = ["x", "y", "z"];
/// Few ids, so that histories meet the same one again.
const IDS: u64 = 12;
const NODES: usize = 3;

#[derive(Clone)]
pub enum StoreKind {
    Memory,
    File,
    /// The URL of a server.
    #[cfg(feature = "redis")]
    Server(String),
}

/// Ways in which a store could be wrong, each put between it and the checker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// Acknowledges a push and loses it.
    LosesPush,
    /// Gives a job before its time.
    ClaimsEarly,
    /// Records outcomes whatever the fence.
    IgnoresFence,
    /// Takes from nodes that beat.
    RobsTheLiving,
    /// Never takes back from the dead.
    LeavesTheDead,
    /// Pushes an id again as if it were new.
    ForgetsIds,
    /// Gives jobs in another order.
    Shuffles,
    /// A retry does not count.
    CountsNoAttempts,
    /// Other args are acknowledged, and not kept.
    ForgetsEdits,
    /// Pushes go in whatever was set.
    IgnoresLimits,
}

impl Bug {
    pub const ALL: [Bug; 10] = [
        Bug::LosesPush,
        Bug::ClaimsEarly,
        Bug::IgnoresFence,
        Bug::RobsTheLiving,
        Bug::LeavesTheDead,
        Bug::ForgetsIds,
        Bug::Shuffles,
        Bug::CountsNoAttempts,
        Bug::ForgetsEdits,
        Bug::IgnoresLimits,
    ];
}

pub struct History {
    seed: u64,
    store_kind: StoreKind,
    pub bug: Option<Bug>,
    pub random: fastrand::Rng,
    pub model: Model,
    pub mover: NodeId,
    /// Everything ever claimed, so that stale outcomes can be tried.
    claimed: Vec<(usize, HeldJob)>,
    nodes: Vec<Node>,
    pub clock: Clock,
}

pub type Difference = String;

/// Fails the history if the two sides differ.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, store: T, model: T) -> Result<(), Difference> {
    match store == model {
        true => Ok(()),
        false => Err(format!("{what}:\n  store {store:?}\n  model {model:?}")),
    }
}

impl History {
    pub fn new(seed: u64, store_kind: StoreKind, bug: Option<Bug>) -> Self {
        History {
            seed,
            store_kind,
            bug,
            random: fastrand::Rng::with_seed(seed),
            model: Model::default(),
            mover: NodeId::fresh(),
            claimed: Vec::new(),
            nodes: Vec::new(),
            clock: Clock::manual(),
        }
    }

    pub async fn run(mut self, steps: usize) -> Result<(), Difference> {
        let dir = test_support::temp_dir();
        let url = match &self.store_kind {
            StoreKind::Memory => ":memory:".to_owned(),
            #[cfg(feature = "redis")]
            StoreKind::Server(url) => {
                self.model.order = crate::model::reference::Order::ByHead;
                format!("{url}?prefix={}", JobId::fresh())
            }
            StoreKind::File => dir.path().join("model.db").display().to_string() + "?durability=second",
        };
        let opened = Duly::builder(url).clock(self.clock.clone()).remember_ids(Duration::from_secs(1 << 30)).open();
        let store = opened.await.expect("opens").store();
        for _ in 0..NODES {
            self.join(&store).await;
        }
        for step in 0..steps {
            let seed = self.seed;
            let told = |difference| format!("step {step} of {seed}: {difference}");
            self.step(&store).await.map_err(told)?;
        }
        Ok(())
    }

    async fn join(&mut self, store: &Arc<dyn Store>) {
        let node = Node::fresh(QUEUES.map(str::to_owned).to_vec());
        store.heartbeat(&node).await.expect("beats");
        self.nodes.push(node);
    }

    async fn step(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        match self.random.u32(..120) {
            0..30 => self.push(store).await?,
            30..55 => self.claim(store).await?,
            55..75 => self.settle(store).await?,
            75..82 => self.advance(store).await,
            82..86 => self.remove(store).await?,
            86..91 => self.reschedule(store).await?,
            91..93 => self.pause(store).await,
            93 => self.set_moving(store).await?,
            94..97 => self.fail_over(store).await?,
            97 => self.travel(store).await?,
            98..106 => self.cron(store).await?,
            106..118 => self.operate(store).await?,
            _ => self.rob(store).await?,
        }
        self.compare_one(store).await?;
        self.compare(store).await
    }

    async fn push(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let mut pushes = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            let pushing = self.pushing();
            let mut push = Push::new("job", "{}").queue(pushing.queue).priority(pushing.priority);
            push = push.id(pushing.id).on_conflict(pushing.conflict);
            push = push.after(Duration::from_micros(pushing.after.unsigned_abs()));
            push = push.keep(Duration::from_secs(if pushing.keep { 1 << 30 } else { 0 }));
            if let Some(key) = pushing.unique {
                push = push.unique(key);
            }
            if self.bug == Some(Bug::ForgetsIds) && self.model.find(pushing.id).is_none() {
                push = push.id(JobId::fresh());
            }
            pushes.push((pushing, push));
        }
        self.within_a_queue(&mut pushes);
        let (pushings, pushes): (Vec<_>, Vec<_>) = pushes.into_iter().unzip();
        let expected = self.model.push_all(pushings);
        if self.bug == Some(Bug::LosesPush) && self.random.u32(..5) == 0 {
            return Ok(());
        }
        let answers = History::answered(store.push(pushes).await);
        match self.bug {
            Some(Bug::ForgetsIds) => Ok(()),
            _ => same("push", answers, expected),
        }
    }

    fn pushing(&mut self) -> Pushing {
        let random = &mut self.random;
        Pushing {
            id: JobId::from_name(&format!("{}", random.u64(..IDS * 4))),
            queue: QUEUES[0],
            priority: *random.choice(&Priority::ALL).expect("some"),
            after: *random.choice(&[0, 0, 0, 1, 1_000, 2_000_000]).expect("some"),
            unique: random.choice(&[None, None, Some(KEYS[0]), Some(KEYS[1]), Some(KEYS[2])]).copied().flatten(),
            conflict: *random.choice(&[UniqueConflict::Keep, UniqueConflict::Replace]).expect("some"),
            keep: random.bool(),
        }
        .in_its_queue()
    }

    async fn claim(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let node = self.random.usize(..self.nodes.len());
        let (queue, max) = (*self.random.choice(&QUEUES).expect("some"), self.random.usize(1..6));
        if self.bug == Some(Bug::ClaimsEarly) {
            self.clock.advance(Duration::from_millis(1));
        }
        let claim = Claim { queue: queue.into(), max, resync: false, suspect: None, kinds: None };
        let claimed = store.claim(self.nodes[node].id, claim).await.expect("claims");
        self.claimed(node, queue, max, claimed)
    }

    fn claimed(&mut self, node: usize, queue: &str, max: usize, mut claimed: ClaimReply) -> Result<(), Difference> {
        if self.bug == Some(Bug::Shuffles) {
            claimed.jobs.reverse();
        }
        let fence = claimed.jobs.first().map_or(0, |held| held.fence.0);
        let expected = self.model.claim(self.nodes[node].id, queue, max, fence);
        same("claim", claimed.jobs.iter().map(|held| held.job.id).collect(), expected)?;
        for held in claimed.jobs {
            if let Some((_, old)) = self.claimed.iter().rev().find(|(_, old)| old.job.id == held.job.id) {
                same("a fence that grows", held.fence > old.fence, true)?;
            }
            self.claimed.push((node, held));
        }
        Ok(())
    }

    async fn settle(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let Some((id, held)) = self.some_claim() else {
            return Ok(());
        };
        let after = Duration::from_micros(*self.random.choice(&[0, 1_000, 1_000_000]).expect("some"));
        let mut outcome = match self.random.u32(..4) {
            0 => Outcome::retry(after, "oh"),
            1 => Outcome::bury(if self.random.bool() { "no" } else { "cancelled" }),
            2 => Outcome::release(after),
            _ => Outcome::Ack,
        };
        let result = self.random.bool().then(|| format!("{}", self.random.u8(..)));
        let recorded = self.model.settle(id, held.job.id, held.fence.0, &outcome, result.as_deref());
        let mut settled = held.clone();
        if self.bug == Some(Bug::IgnoresFence)
            && let Some((_, newest)) = self.claimed.iter().rev().find(|(_, newest)| newest.job.id == held.job.id)
        {
            settled.fence = newest.fence;
        }
        if let (Some(Bug::CountsNoAttempts), Outcome::Retry { after, .. }) = (self.bug, &outcome) {
            outcome = Outcome::release(*after);
        }
        let mut end = AttemptEnd::from_held(&settled, outcome, held.job.keep);
        end.result = result;
        let lost = store.settle(id, vec![end]).await.expect("settles");
        same("settle", lost, if recorded { vec![] } else { vec![held.job.id] })
    }

    /// Mostly a recent claim, sometimes one long settled or lost; and its node.
    pub fn some_claim(&mut self) -> Option<(NodeId, HeldJob)> {
        let back = self.random.usize(1..=self.claimed.len().clamp(1, 12));
        let (node, held) = self.claimed.get(self.claimed.len().checked_sub(back)?)?;
        Some((self.nodes[*node].id, held.clone()))
    }

    async fn advance(&mut self, store: &Arc<dyn Store>) {
        let by = *self.random.choice(&[1, 999, 1_000, 500_000, 2_500_000]).expect("some");
        self.clock.advance(Duration::from_micros(by));
        self.model.now += by as Micros;
        self.beat(store, None).await;
    }

    async fn beat(&self, store: &Arc<dyn Store>, but: Option<NodeId>) {
        for node in self.nodes.iter().filter(|node| Some(node.id) != but) {
            store.heartbeat(node).await.expect("beats");
        }
    }

    async fn remove(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let id = self.some_id();
        same("remove", store.remove(id).await.expect("removes"), self.model.remove(id))
    }

    async fn reschedule(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (id, after) = (self.some_id(), *self.random.choice(&[0, 1_000, 1_000_000]).expect("some"));
        let due = Due::After(Duration::from_micros(after));
        let moved: ChangeResult = store.reschedule(id, due).await.expect("reschedules");
        same("reschedule", moved, self.model.reschedule(id, after as Micros))
    }

    pub fn some_id(&mut self) -> JobId {
        JobId::from_name(&format!("{}", self.random.u64(..IDS * 4)))
    }

    async fn pause(&mut self, store: &Arc<dyn Store>) {
        let (queue, paused) = (*self.random.choice(&QUEUES).expect("some"), self.random.bool());
        store.set_paused(queue, paused).await.expect("pauses");
        match paused {
            true => self.model.paused.insert(queue),
            false => self.model.paused.remove(queue),
        };
    }

    /// A node falls silent, its lease ends, another takes back what it held; a new node joins in its place.
    async fn fail_over(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (dead, heir) = (0, 1);
        let dead_id = self.nodes[dead].id;
        let silence = [Duration::from_secs(1), Duration::from_secs(1), LEASE];
        for step in silence {
            self.clock.advance(step);
            self.model.now += step.as_micros() as Micros;
            self.beat(store, Some(dead_id)).await;
        }
        for queue in QUEUES {
            let suspect = Some(dead_id).filter(|_| self.bug != Some(Bug::LeavesTheDead));
            let claim = Claim { queue: queue.into(), max: 2, resync: false, suspect, kinds: None };
            let claimed = store.claim(self.nodes[heir].id, claim).await.expect("claims");
            same("take back", claimed.taken_back, self.model.take_back(dead_id, queue))?;
            self.claimed(heir, queue, 2, claimed)?;
        }
        Ok(())
    }

    /// A living node is suspected: nothing may be taken from it.
    async fn rob(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        self.beat(store, None).await;
        if self.bug == Some(Bug::RobsTheLiving) {
            store.leave(self.nodes[2].id).await.expect("leaves");
        }
        let (suspect, queue) = (Some(self.nodes[2].id), QUEUES[0]);
        let claim = Claim { queue: queue.into(), max: 1, resync: false, suspect, kinds: None };
        let claimed = store.claim(self.nodes[1].id, claim).await.expect("claims");
        same("robbed", claimed.taken_back, 0)?;
        self.claimed(1, queue, 1, claimed)
    }

    async fn compare(&self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let page = store.list(Filter { limit: 1_000, ..Filter::default() }).await.expect("lists");
        let found: BTreeMap<JobId, (State, u32, u32)> =
            page.jobs.into_iter().map(|r| (r.job.id, (r.state, r.attempts, r.crashes))).collect();
        same("jobs", found, self.model.summary())?;
        let counts = store.counts().await.expect("counts");
        let total: u64 = counts.iter().map(|c| c.scheduled + c.ready + c.running + c.done + c.dead).sum();
        same("count", total, self.model.jobs.len() as u64)
    }
}

impl Pushing {
    /// An id belongs to one queue here, so that it names one job.
    fn in_its_queue(mut self) -> Self {
        self.queue = QUEUES[usize::from(self.id.as_bytes()[0].is_multiple_of(3))];
        self
    }
}
