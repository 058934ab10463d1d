//! Moving: a queue that leaves its store keeps still, and arrives as it was.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use duly::store::{ChangeResult, Claim, TransferBatch, TransferBatchResult, TransferCheckpoint, TransferMark, Wake};
use duly::{Due, Fence, Filter, JobId, JobRecord, NodeId, Outcome, Priority, Push, PushResult, State, UniqueConflict};

use crate::test_store::*;

const KEEP_DEAD: Duration = Duration::from_secs(90 * 24 * 3600);

async fn mark(store: &TestStore, mover: NodeId) -> Option<TransferMark> {
    store.store.set_transfer_mark("default", mover, Some("elsewhere")).await.expect("marks").mark
}

async fn unmark(store: &TestStore, mover: NodeId) -> Option<TransferMark> {
    store.store.set_transfer_mark("default", mover, None).await.expect("unmarks").mark
}

/// All jobs of the default queue, whole, state by state.
async fn all(store: &TestStore) -> Vec<JobRecord> {
    let mut all = Vec::new();
    for state in [State::Ready, State::Scheduled, State::Dead, State::Done] {
        let filter = Filter { queue: Some("default".into()), state: Some(state), limit: 1_000, ..Filter::default() };
        all.extend(store.store.list(Filter { with_details: true, ..filter }).await.expect("lists").jobs);
    }
    all
}

fn named(jobs: &[JobRecord]) -> Vec<(JobId, SystemTime)> {
    jobs.iter().map(|record| (record.job.id, record.job.pushed)).collect()
}

/// One move into a store.
struct Into<'s> {
    store: &'s TestStore,
    begun_by: NodeId,
}

impl Into<'_> {
    fn new(store: &TestStore) -> Into<'_> {
        Into { store, begun_by: NodeId::fresh() }
    }

    async fn put(&self, jobs: &[JobRecord], was: Option<&str>, is: Option<&str>) -> TransferBatchResult {
        self.put_with(jobs, was, is, Fence(0)).await
    }

    async fn put_with(
        &self,
        jobs: &[JobRecord],
        was: Option<&str>,
        is: Option<&str>,
        fence: Fence,
    ) -> TransferBatchResult {
        let marker = TransferCheckpoint {
            begun_by: self.begun_by,
            expected: was.map(str::to_owned),
            replacement: is.map(str::to_owned),
        };
        let (queue, jobs) = ("default".to_owned(), Arc::from(jobs));
        self.store
            .store
            .transfer_in(TransferBatch { queue, jobs, checkpoint: marker, fence_floor: fence, keep_dead: KEEP_DEAD })
            .await
            .expect("answers")
    }
}

fn yes() -> TransferBatchResult {
    TransferBatchResult::Applied { skipped: Vec::new() }
}

/// A job of each state and each kind of trouble.
async fn fill(store: &TestStore) {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let rich = |kind: &str| {
        Push::new(kind, "{\"n\":9007199254740993,\n\"e\":[]}")
            .priority(Priority::High)
            .max_attempts(7)
            .timeout(Duration::from_millis(1_500))
            .keep(Duration::from_secs(60))
            .tags(["a", "b"])
            .traceparent(trace)
    };
    for kind in ["done", "dead", "done after trouble", "started over", "retried", "released", "waits again"] {
        store.push(rich(&kind.replace(' ', "-")).unique(kind)).await;
    }
    store.advance(SECOND).await;
    let held = store.claim("a", 7).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    store.settle("a", &held[1], Outcome::bury("no: \u{1f600}")).await;
    store.settle("a", &held[2], Outcome::retry(Duration::ZERO, "oh")).await;
    let again = store.claim("a", 1).await;
    store.settle("a", &again[0], Outcome::Ack).await;
    store.settle("a", &held[3], Outcome::bury("once")).await;
    store.store.reschedule(held[3].job.id, Due::Now).await.expect("starts over");
    store.settle("a", &held[4], retry_at_once()).await;
    store.settle("a", &held[5], release()).await;
    store.settle("a", &held[6], Outcome::retry(100 * SECOND, "later")).await;
    store.node("b").await;
    store.push(job("taken-back").priority(Priority::Critical)).await;
    store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    store.claim_from("b", "a", 0).await;
    store.push_all(vec![rich("plain"), job("low").priority(Priority::Low), job("later").after(50 * SECOND)]).await;
    store.push(job("keyed").unique("its key")).await;
}

pub async fn moving_queue_yields_nothing_paused_or_not(store: TestStore) {
    store.push(job("one")).await;
    store.push(job("due").after(MS)).await;
    store.advance(MS).await;
    let mover = NodeId::fresh();
    let moving = mark(&store, mover).await;
    assert!(store.claim("a", 9).await.is_empty());
    assert!(!store.ask("a", claim(0)).await.has_more, "nobody is sent to look");
    store.store.set_paused("default", true).await.expect("pauses");
    store.store.set_paused("default", false).await.expect("resumes");
    assert!(store.claim("a", 9).await.is_empty());

    let counts = store.store.counts().await.expect("counts");
    assert_eq!((counts[0].paused, &counts[0].moving), (false, &moving));
    assert_eq!(
        moving.map(|moving| (moving.begun_by, moving.mover, moving.to)),
        Some((mover, mover, "elsewhere".into()))
    );

    assert_eq!(unmark(&store, mover).await, None);
    assert_eq!(kinds(&store.claim("a", 9).await), ["one", "due"]);
}

pub async fn moving_queue_rejects_changes_to_its_jobs(store: TestStore) {
    let id = store.push(job("one").unique("x")).await.id();
    let other = store.push(job("one").queue("other")).await.id();
    mark(&store, NodeId::fresh()).await;
    assert_eq!(store.remove(id).await, ChangeResult::Moving);
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("answers"), ChangeResult::Moving);
    let replacement = job("two").unique("x").on_conflict(UniqueConflict::Replace);
    assert_eq!(store.push(replacement).await, PushResult::Existing(id));
    assert!(matches!(store.push(job("three").unique("y")).await, PushResult::New(_)), "pushes go in");
    assert_eq!(store.remove(other).await, ChangeResult::Applied, "other queues are none of its business");
}

pub async fn last_transfer_marker_wins(store: TestStore) {
    let (first, second) = (NodeId::fresh(), NodeId::fresh());
    mark(&store, first).await;
    let again = store.store.set_transfer_mark("default", second, Some("nowhere")).await.expect("marks").mark;
    let again = again.expect("is marked");
    assert_eq!((again.begun_by, again.mover, again.to.as_str()), (first, second, "elsewhere"));
    assert_eq!(unmark(&store, first).await, Some(again), "only the last can take it away");
    assert_eq!(unmark(&store, second).await, None);
    assert_eq!(unmark(&store, second).await, None);
}

pub async fn moving_queue_takes_back_jobs_of_dead_nodes(store: TestStore) {
    store.push(job("one")).await;
    store.node("b").await;
    let held = store.claim_one("a").await;
    mark(&store, NodeId::fresh()).await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    let answer = store.claim_from("b", "a", 0).await;
    assert_eq!((answer.jobs.len(), answer.taken_back, answer.has_more), (0, 1, false));
    let record = store.get(held.job.id).await.expect("is there");
    assert_eq!((record.state, record.crashes), (State::Ready, 1));
}

pub async fn end_of_transfer_wakes_a_node(store: TestStore) {
    let mover = NodeId::fresh();
    mark(&store, mover).await;
    let node = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim("a", 1).await.is_empty());
    unmark(&store, mover).await;
    let woken = tokio::time::timeout(10 * SECOND, wakes.recv()).await.expect("in time");
    assert_eq!(woken, Some(Wake::Queue("default".into())));
}

pub async fn list_includes_failures_on_request(store: TestStore) {
    fill(&store).await;
    let mut troubled = 0;
    for record in all(&store).await {
        assert_eq!(Some(&record), store.get(record.job.id).await.as_ref());
        troubled += usize::from(!record.failures.is_empty());
    }
    assert_eq!(troubled, 6);
    let plain = store.store.list(Filter { limit: 100, ..Filter::default() }).await.expect("lists");
    assert!(plain.jobs.iter().all(|record| record.failures.is_empty()));
}

pub async fn transferred_jobs_arrive_unchanged(store: TestStore) {
    let source = TestStore::in_memory().await;
    fill(&source).await;
    let jobs = all(&source).await;
    assert_eq!(jobs.len(), 12);
    assert_eq!(Into::new(&store).put(&jobs, None, Some("1")).await, yes());
    for record in &jobs {
        assert_eq!(store.get(record.job.id).await.as_ref(), Some(record));
    }
    let again = all(&store).await;
    let ready = |jobs: &[JobRecord]| -> Vec<String> {
        jobs.iter().filter(|r| r.state == State::Ready).map(|r| r.job.kind.clone()).collect()
    };
    assert_eq!(ready(&again), ready(&jobs), "in the order of their claims");
    let of = |counts: &[duly::QueueCounts]| {
        counts.iter().map(|c| (c.ready, c.scheduled, c.dead, c.done)).collect::<Vec<_>>()
    };
    assert_eq!(of(&store.store.counts().await.expect("counts")), of(&source.store.counts().await.expect("counts")));
}

pub async fn transferred_jobs_can_be_claimed_and_settled(store: TestStore) {
    let source = TestStore::in_memory().await;
    fill(&source).await;
    let jobs = all(&source).await;
    Into::new(&store).put(&jobs, None, Some("1")).await;
    // Both go the same way from here on.
    for store in [&source, &store] {
        store.advance(200 * SECOND).await;
        let held = store.claim("c", 20).await;
        let order =
            ["taken-back", "released", "started-over", "retried", "plain", "waits-again", "keyed", "later", "low"];
        let found = kinds(&held);
        assert_eq!(found.len(), order.len(), "{found:?}");
        assert_eq!((found[0], found[found.len() - 1]), (order[0], order[8]));
        for held in &held {
            assert_eq!(store.settle("c", held, retry_at_once()).await, nothing_lost());
        }
        for held in store.claim("c", 20).await {
            let attempts = store.get(held.job.id).await.expect("runs").attempts;
            assert_eq!(attempts, held.attempts);
            assert_eq!(store.settle("c", &held, Outcome::bury("enough")).await, nothing_lost());
        }
        let dead = all(store).await.into_iter().filter(|record| record.state == State::Dead);
        let mut histories: Vec<_> = dead.map(|record| (record.job.kind.clone(), record.failures.len())).collect();
        histories.sort();
        let found: Vec<_> = histories.iter().map(|(kind, failures)| (kind.as_str(), *failures)).collect();
        let expected = [
            ("dead", 1),
            ("keyed", 2),
            ("later", 2),
            ("low", 2),
            ("plain", 2),
            ("released", 2),
            ("retried", 3),
            ("started-over", 3),
            ("taken-back", 3),
            ("waits-again", 3),
        ];
        assert_eq!(found, expected);
        assert!(matches!(store.push(job("two").unique("its key")).await, PushResult::New(_)), "keys are free");
        store.sleep(KEEP_DEAD + SECOND);
        while store.prune().await > 0 {}
        assert_eq!(all(store).await.len(), 1, "all are pruned in their time");
    }
}

pub async fn transferred_ready_jobs_go_behind_existing_ones(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push_all(vec![job("first"), job("second"), job("urgent").priority(Priority::High)]).await;
    store.push(job("here")).await;
    let jobs = all(&source).await;
    let into = Into::new(&store);
    into.put(&jobs[..2], None, Some("1")).await;
    into.put(&jobs[2..], Some("1"), Some("2")).await;
    store.push(job("last")).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["urgent", "here", "first", "second", "last"]);
}

pub async fn transferred_jobs_wake_a_node(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    let node = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim("a", 1).await.is_empty());
    Into::new(&store).put(&all(&source).await, None, Some("1")).await;
    let woken = tokio::time::timeout(10 * SECOND, wakes.recv()).await.expect("in time");
    assert_eq!(woken, Some(Wake::Queue("default".into())));
}

pub async fn transfer_leaves_out_known_ids(store: TestStore) {
    let source = TestStore::in_memory().await;
    let [here, gone, new] = ["here", "gone", "new"].map(JobId::from_name);
    source.push_all([here, gone, new].map(|id| job("moved").id(id)).into()).await;
    store.push_all(vec![job("own").id(here), job("own").id(gone)]).await;
    store.remove(gone).await;
    let TransferBatchResult::Applied { skipped: mut known } =
        Into::new(&store).put(&all(&source).await, None, Some("1")).await
    else {
        panic!("refused");
    };
    known.sort();
    let mut expected = [here, gone];
    expected.sort();
    assert_eq!(known, expected);
    assert_eq!(kinds(&store.claim("a", 9).await), ["own", "moved"]);
}

pub async fn taken_key_rejects_the_whole_transfer_batch(store: TestStore) {
    let source = TestStore::in_memory().await;
    let id = source.push(job("keyed").unique("x")).await.id();
    source.push(job("other")).await;
    let own = store.push(job("own").unique("x")).await.id();
    let (into, jobs) = (Into::new(&store), all(&source).await);
    assert_eq!(into.put(&jobs, None, Some("1")).await, TransferBatchResult::UniqueTaken(vec![id]));
    assert_eq!(all(&store).await.len(), 1, "nothing was changed");
    store.remove(own).await;
    assert_eq!(into.put(&jobs, None, Some("1")).await, yes(), "nor the marker");
    assert_eq!(store.push(job("late").unique("x")).await, PushResult::Existing(id));
}

pub async fn transferred_ended_job_takes_no_key(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("keyed").unique("x")).await;
    let held = source.claim_one("a").await;
    source.settle("a", &held, Outcome::bury("no")).await;
    let own = store.push(job("own").unique("x")).await.id();
    assert_eq!(Into::new(&store).put(&all(&source).await, None, Some("1")).await, yes());
    assert_eq!(store.push(job("late").unique("x")).await, PushResult::Existing(own));
    let back = store.store.reschedule(held.job.id, Due::Now).await.expect("answers");
    assert_eq!(back, ChangeResult::Existing(own));
}

pub async fn transfer_in_without_the_marker_is_rejected(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    let (into, jobs) = (Into::new(&store), all(&source).await);
    assert_eq!(into.put(&[], None, None).await, yes(), "there is none");
    assert_eq!(into.put(&jobs, Some("0"), Some("1")).await, TransferBatchResult::CheckpointMismatch(None));
    assert_eq!(into.put(&[], None, Some("1")).await, yes());
    assert_eq!(
        into.put(&[], None, None).await,
        TransferBatchResult::CheckpointMismatch(Some("1".into())),
        "so it can be read"
    );
    assert_eq!(into.put(&jobs, None, Some("2")).await, TransferBatchResult::CheckpointMismatch(Some("1".into())));
    assert_eq!(all(&store).await.len(), 0);
    let other = Into::new(&store);
    assert_eq!(other.put(&[], None, Some("of another move")).await, yes());
    assert_eq!(into.put(&jobs, Some("1"), Some("2")).await, yes());
    assert_eq!(into.put(&[], Some("2"), None).await, yes());
    assert_eq!(into.put(&[], None, None).await, yes(), "it is gone");
    assert_eq!(
        other.put(&[], None, None).await,
        TransferBatchResult::CheckpointMismatch(Some("of another move".into()))
    );
}

pub async fn repeated_transfer_batch_changes_nothing(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one").keep(Duration::ZERO)).await;
    let (into, jobs) = (Into::new(&store), all(&source).await);
    assert_eq!(into.put(&jobs, None, Some("1")).await, yes());
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    for _ in 0..2 {
        store.advance(REMEMBER).await;
        store.prune().await;
    }
    assert_eq!(into.put(&jobs, None, Some("1")).await, yes(), "its answer was lost");
    assert!(store.claim("a", 9).await.is_empty(), "and its job is done and forgotten");
}

pub async fn fences_grow_across_a_transfer(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    source.sleep(100_000 * SECOND); // its clock is ahead
    let held = source.claim_one("a").await;
    source.settle("a", &held, retry_at_once()).await;
    let fence = source.store.set_transfer_mark("default", NodeId::fresh(), Some("x")).await.expect("marks").last_fence;
    assert!(fence >= held.fence);
    Into::new(&store).put_with(&all(&source).await, None, Some("1"), fence).await;
    assert!(store.claim_one("a").await.fence > held.fence);
}

pub async fn transfer_out_by_another_node_is_rejected(store: TestStore) {
    store.push_all(vec![job("one"), job("later").after(SECOND)]).await;
    let jobs = named(&all(&store).await);
    let (first, second) = (NodeId::fresh(), NodeId::fresh());
    let out = async |mover| store.store.transfer_out("default", mover, jobs.clone()).await.expect("answers");
    assert_eq!(out(first).await, None, "the queue is not marked");
    mark(&store, first).await;
    mark(&store, second).await;
    assert_eq!(out(first).await, None, "another has taken over");
    assert_eq!(all(&store).await.len(), 2);
    assert_eq!(out(second).await, Some(2));
    assert_eq!(out(second).await, Some(0));
    assert!(all(&store).await.is_empty());
}

pub async fn transferred_job_leaves_no_trace(store: TestStore) {
    fill(&store).await;
    let (jobs, mover) = (all(&store).await, NodeId::fresh());
    mark(&store, mover).await;
    let out = store.store.transfer_out("default", mover, named(&jobs)).await.expect("answers");
    assert_eq!(out, Some(jobs.len()));
    let counts = store.store.counts().await.expect("counts").remove(0);
    assert_eq!((counts.ready, counts.scheduled, counts.running, counts.dead, counts.done), (0, 0, 0, 0, 0));
    for record in &jobs {
        let again = job("again").id(record.job.id).unique(record.job.kind.clone());
        assert_eq!(store.push(again).await, PushResult::New(record.job.id), "neither id nor key is taken");
    }
    unmark(&store, mover).await;
    assert_eq!(store.claim("c", 20).await.len(), jobs.len());
}

pub async fn running_job_is_not_transferred(store: TestStore) {
    store.push(job("one")).await;
    let held = store.claim_one("a").await;
    let mover = NodeId::fresh();
    mark(&store, mover).await;
    let out = store.store.transfer_out("default", mover, vec![(held.job.id, held.job.pushed)]).await.expect("answers");
    assert_eq!(out, Some(0));
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn job_pushed_again_is_not_transferred(store: TestStore) {
    let (id, mover) = (JobId::from_name("daily"), NodeId::fresh());
    store.push(job("one").id(id)).await;
    let jobs = named(&all(&store).await);
    mark(&store, mover).await;
    let out = async || store.store.transfer_out("default", mover, jobs.clone()).await.expect("answers");
    assert_eq!(out().await, Some(1));
    store.advance(SECOND).await;
    assert_eq!(store.push(job("two").id(id)).await, PushResult::New(id));
    assert_eq!(out().await, Some(0), "this one has not been moved");
}

pub async fn transferred_jobs_can_return(store: TestStore) {
    let ids: Vec<_> = store.push_all((0..5).map(|_| job("one")).collect()).await.iter().map(PushResult::id).collect();
    let (jobs, mover) = (all(&store).await, NodeId::fresh());
    mark(&store, mover).await;
    store.store.transfer_out("default", mover, named(&jobs)).await.expect("moves out");
    unmark(&store, mover).await;
    assert_eq!(Into::new(&store).put(&jobs, None, Some("1")).await, yes());
    let held = store.ask("a", Claim { max: 9, ..claim(9) }).await.jobs;
    assert_eq!(held.iter().map(|held| held.job.id).collect::<Vec<_>>(), ids);
}

pub async fn rescheduled_job_can_return(store: TestStore) {
    store.push_all(vec![job("first"), job("second"), job("third")]).await;
    let second = all(&store).await.remove(1);
    store.store.reschedule(second.job.id, Due::Now).await.expect("goes to the tail");
    let (second, mover) = (all(&store).await.remove(2), NodeId::fresh());
    mark(&store, mover).await;
    let out = store.store.transfer_out("default", mover, named(std::slice::from_ref(&second))).await.expect("answers");
    assert_eq!(out, Some(1));
    unmark(&store, mover).await;
    assert_eq!(Into::new(&store).put(&[second], None, Some("1")).await, yes());
    let listed: Vec<_> = all(&store).await.into_iter().map(|record| record.job.kind).collect();
    assert_eq!(listed, ["first", "third", "second"]);
    assert_eq!(kinds(&store.claim("a", 9).await), ["first", "third", "second"]);
}
