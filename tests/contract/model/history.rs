//! A history: the same random operations on a store and on the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duly::bounds::DEFAULT_LEASE;
use duly::job::{Due, HeldJob, UniqueConflict};
use duly::store::Node;
use duly::store::{AdminStore, AttemptEnd, ChangeResult, Claim, ClaimReply, JobStore, Store};
use duly::{Clock, Duly, Filter, JobId, NodeId, Outcome, Priority, Push, State};

use crate::model::reference::{Micros, Model, PushSpec};

pub const QUEUES: [&str; 2] = ["default", "other"];
const KEYS: [&str; 3] = ["x", "y", "z"];
/// Few ids, so that a history uses the same id again.
const IDS: u64 = 12;
const NODES: usize = 3;
/// Errors of a clock: within a lease, and far beyond it.
const CLOCK_ERRORS: [Micros; 6] =
    [2_500_000, -2_500_000, 3_600_000_000, -3_600_000_000, 300_000_000_000_000, -300_000_000_000_000];

#[derive(Clone)]
pub enum StoreKind {
    Memory,
    File,
    /// The URL of a server.
    #[cfg(feature = "redis")]
    Server(String),
}

/// Bugs of a store, each simulated between the store and the checker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// Acknowledges a push and loses it.
    LosesPush,
    /// Returns a job before it is due.
    ClaimsEarly,
    /// Records outcomes with any fence.
    IgnoresFence,
    /// Takes jobs from nodes that send heartbeats.
    TakesFromLiveNodes,
    /// Never takes jobs back from dead nodes.
    NeverTakesBack,
    /// Pushes an id again as if it were new.
    ForgetsIds,
    /// Returns jobs in another order.
    ReordersClaims,
    /// Does not count a retry as an attempt.
    CountsNoAttempts,
    /// Acknowledges new args and does not store them.
    ForgetsEdits,
    /// Accepts pushes beyond the capacity.
    IgnoresCapacity,
    /// Acknowledges a cancel and does nothing.
    ForgetsCancels,
}

impl Bug {
    pub const ALL: [Bug; 11] = [
        Bug::LosesPush,
        Bug::ClaimsEarly,
        Bug::IgnoresFence,
        Bug::TakesFromLiveNodes,
        Bug::NeverTakesBack,
        Bug::ForgetsIds,
        Bug::ReordersClaims,
        Bug::CountsNoAttempts,
        Bug::ForgetsEdits,
        Bug::IgnoresCapacity,
        Bug::ForgetsCancels,
    ];
}

pub struct History {
    seed: u64,
    store_kind: StoreKind,
    pub bug: Option<Bug>,
    pub random: fastrand::Rng,
    pub model: Model,
    pub transfer_node: NodeId,
    /// Every claim so far with its node, so that stale outcomes can be tried.
    claimed: Vec<(usize, HeldJob)>,
    nodes: Vec<Node>,
    pub clock: Clock,
    /// How far the clock is ahead of the true time.
    clock_error: Micros,
}

pub type Difference = String;

/// Returns an error if store and model differ.
pub fn same<T: PartialEq + std::fmt::Debug>(name: &str, store: T, model: T) -> Result<(), Difference> {
    match store == model {
        true => Ok(()),
        false => Err(format!("{name}:\n  store {store:?}\n  model {model:?}")),
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
            transfer_node: NodeId::fresh(),
            claimed: Vec::new(),
            nodes: Vec::new(),
            clock: Clock::manual(),
            clock_error: 0,
        }
    }

    pub async fn run(mut self, operations: usize) -> Result<(), Difference> {
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
        for number in 0..operations {
            let seed = self.seed;
            let with_number = |difference| format!("operation {number} of {seed}: {difference}");
            self.run_one(&store).await.map_err(with_number)?;
        }
        Ok(())
    }

    async fn join(&mut self, store: &Arc<dyn Store>) {
        let node = Node::fresh(QUEUES.map(str::to_owned).to_vec());
        store.heartbeat(&node).await.expect("sends a heartbeat");
        self.nodes.push(node);
    }

    async fn run_one(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        match self.random.u32(..129) {
            0..30 => self.push(store).await?,
            30..55 => self.claim(store).await?,
            55..75 => self.settle(store).await?,
            75..82 => self.advance(store).await,
            82..86 => self.remove(store).await?,
            86..91 => self.reschedule(store).await?,
            91..93 => self.pause(store).await,
            93 => self.set_transfer_mark(store).await?,
            94..97 => self.fail_over(store).await?,
            97 => self.transfer_out_and_in(store).await?,
            98..106 => self.cron(store).await?,
            106..118 => self.admin(store).await?,
            118..122 => self.cancel(store).await?,
            122 => self.jump(store).await,
            123..127 => self.set_alone(store).await?,
            _ => self.suspect_live_node(store).await?,
        }
        self.compare_job(store).await?;
        self.compare(store).await
    }

    async fn push(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let mut pushes = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            let spec = self.push_spec();
            let mut push = Push::new("job", "{}").queue(spec.queue).priority(spec.priority);
            push = push.id(spec.id).on_conflict(spec.conflict);
            push = push.after(Duration::from_micros(spec.after.unsigned_abs()));
            push = push.keep(Duration::from_secs(if spec.keep { 1 << 30 } else { 0 }));
            if let Some(key) = spec.unique {
                push = push.unique(key);
            }
            if self.bug == Some(Bug::ForgetsIds) && self.model.find(spec.id).is_none() {
                push = push.id(JobId::fresh());
            }
            pushes.push((spec, push));
        }
        self.keep_one_queue(&mut pushes);
        let (specs, pushes): (Vec<_>, Vec<_>) = pushes.into_iter().unzip();
        let expected = self.model.push_all(specs);
        if self.bug == Some(Bug::LosesPush) && self.random.u32(..5) == 0 {
            return Ok(());
        }
        let results = History::capacity_error_as_value(store.push(pushes).await);
        match self.bug {
            Some(Bug::ForgetsIds) => Ok(()),
            _ => same("push", results, expected),
        }
    }

    fn push_spec(&mut self) -> PushSpec {
        let random = &mut self.random;
        PushSpec {
            id: JobId::from_name(&format!("{}", random.u64(..IDS * 4))),
            queue: QUEUES[0],
            priority: *random.choice(&Priority::ALL).expect("some"),
            after: *random.choice(&[0, 0, 0, 1, 1_000, 2_000_000]).expect("some"),
            unique: random.choice(&[None, None, Some(KEYS[0]), Some(KEYS[1]), Some(KEYS[2])]).copied().flatten(),
            conflict: *random.choice(&[UniqueConflict::Keep, UniqueConflict::Replace]).expect("some"),
            keep: random.bool(),
        }
        .with_queue_of_id()
    }

    async fn claim(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let node = self.random.usize(..self.nodes.len());
        let (queue, max) = (*self.random.choice(&QUEUES).expect("some"), self.random.usize(1..6));
        if self.bug == Some(Bug::ClaimsEarly) {
            self.clock.advance(Duration::from_millis(1));
        }
        let claim = Claim::new(queue, max);
        let claimed = store.claim(self.nodes[node].id, claim).await.expect("claims");
        self.compare_claim(node, queue, max, claimed)
    }

    fn compare_claim(
        &mut self,
        node: usize,
        queue: &str,
        max: usize,
        mut claimed: ClaimReply,
    ) -> Result<(), Difference> {
        if self.bug == Some(Bug::ReordersClaims) {
            claimed.jobs.reverse();
        }
        let fence = claimed.jobs.first().map_or(0, |held| held.fence.0);
        let expected = self.model.claim(self.nodes[node].id, queue, max, fence);
        same("claim", claimed.jobs.iter().map(|held| held.job.id).collect(), expected)?;
        for held in claimed.jobs {
            if let Some((_, old)) = self.claimed.iter().rev().find(|(_, old)| old.job.id == held.job.id) {
                same("fence grows", held.fence > old.fence, true)?;
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

    /// Returns a claim and its node: mostly a recent one, sometimes one that was settled or lost long ago.
    pub fn some_claim(&mut self) -> Option<(NodeId, HeldJob)> {
        let distance = self.random.usize(1..=self.claimed.len().clamp(1, 12));
        let (node, held) = self.claimed.get(self.claimed.len().checked_sub(distance)?)?;
        Some((self.nodes[*node].id, held.clone()))
    }

    async fn advance(&mut self, store: &Arc<dyn Store>) {
        let by = *self.random.choice(&[1, 999, 1_000, 500_000, 2_500_000]).expect("some");
        self.clock.advance(Duration::from_micros(by));
        self.model.now += by as Micros;
        self.send_heartbeats(store, None).await;
    }

    /// Sets the clock forward or back, or back to the true time. Live nodes notice it.
    async fn jump(&mut self, store: &Arc<dyn Store>) {
        self.set_clock();
        self.send_heartbeats(store, None).await;
    }

    /// Sets the clock to a wrong time, or to the true one.
    fn set_clock(&mut self) {
        let jump = match self.clock_error {
            0 => *self.random.choice(&CLOCK_ERRORS).expect("some"),
            wrong => -wrong,
        };
        self.clock_error += jump;
        let by = Duration::from_micros(jump.unsigned_abs());
        self.clock.set(if jump < 0 { self.clock.now() - by } else { self.clock.now() + by });
        self.model.now += jump;
    }

    async fn send_heartbeats(&self, store: &Arc<dyn Store>, except: Option<NodeId>) {
        for node in self.nodes.iter().filter(|node| Some(node.id) != except) {
            store.heartbeat(node).await.expect("sends a heartbeat");
        }
    }

    async fn remove(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let id = self.some_id();
        same("remove", store.remove(id).await.expect("removes"), self.model.remove(id))
    }

    /// Cancels a job: one that was claimed recently, or any.
    async fn cancel(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let claimed = self.some_claim().filter(|_| self.random.bool());
        let id = claimed.map_or_else(|| self.some_id(), |(_, held)| held.job.id);
        if self.bug == Some(Bug::ForgetsCancels) {
            self.model.cancel(id);
            return Ok(());
        }
        let keep = Duration::from_secs(1 << 30);
        same("cancel", store.cancel(id, keep).await.expect("cancels"), self.model.cancel(id))
    }

    /// Marks a job that was claimed some time ago as the only one of its node, or removes the mark.
    async fn set_alone(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let Some((node, held)) = self.some_claim() else {
            return Ok(());
        };
        let alone = self.random.u32(..4) > 0;
        let is_held = store.set_alone(node, Arc::new(held.clone()), alone).await.expect("marks");
        same("set_alone", is_held, self.model.set_alone(node, held.job.id, held.fence.0, alone))
    }

    async fn reschedule(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (id, after) = (self.some_id(), *self.random.choice(&[0, 1_000, 1_000_000]).expect("some"));
        let due = Due::After(Duration::from_micros(after));
        let result: ChangeResult = store.reschedule(id, due).await.expect("reschedules");
        same("reschedule", result, self.model.reschedule(id, after as Micros))
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

    /// A node stops its heartbeats, its lease expires, and another node takes its jobs back.
    async fn fail_over(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (dead, survivor) = (0, 1);
        let dead_id = self.nodes[dead].id;
        let silence = [Duration::from_secs(1), Duration::from_secs(1), DEFAULT_LEASE];
        // The dead node does not notice that the clock is set.
        if self.random.u32(..4) == 0 {
            self.set_clock();
        }
        for interval in silence {
            self.clock.advance(interval);
            self.model.now += interval.as_micros() as Micros;
            self.send_heartbeats(store, Some(dead_id)).await;
        }
        for queue in QUEUES {
            let suspect = Some(dead_id).filter(|_| self.bug != Some(Bug::NeverTakesBack));
            let claim = Claim { suspect, ..Claim::new(queue, 2) };
            let claimed = store.claim(self.nodes[survivor].id, claim).await.expect("claims");
            same("take back", claimed.taken_back, self.model.take_back(dead_id, queue))?;
            self.compare_claim(survivor, queue, 2, claimed)?;
        }
        Ok(())
    }

    /// A claim suspects a live node: no job may be taken from it.
    async fn suspect_live_node(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        self.send_heartbeats(store, None).await;
        if self.bug == Some(Bug::TakesFromLiveNodes) {
            store.leave(self.nodes[2].id).await.expect("leaves");
        }
        let (suspect, queue) = (Some(self.nodes[2].id), QUEUES[0]);
        let claim = Claim { suspect, ..Claim::new(queue, 1) };
        let claimed = store.claim(self.nodes[1].id, claim).await.expect("claims");
        same("taken from a live node", claimed.taken_back, 0)?;
        self.compare_claim(1, queue, 1, claimed)
    }

    async fn compare(&self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let page = store.list(Filter::all().limit(1_000)).await.expect("lists");
        let found: BTreeMap<JobId, (State, u32, u32)> =
            page.jobs.into_iter().map(|r| (r.job.id, (r.state, r.attempts, r.crashes))).collect();
        same("jobs", found, self.model.summary())?;
        let counts = store.counts().await.expect("counts");
        let total: u64 = counts.iter().map(|c| c.scheduled + c.ready + c.running + c.done + c.dead + c.cancelled).sum();
        same("count", total, self.model.jobs.len() as u64)
    }
}

impl PushSpec {
    /// Derives the queue from the id, so that an id names one job.
    fn with_queue_of_id(mut self) -> Self {
        self.queue = QUEUES[usize::from(self.id.as_bytes()[0].is_multiple_of(3))];
        self
    }
}
