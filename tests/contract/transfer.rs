//! Transfers: a moving queue accepts no changes to its jobs, and jobs arrive unchanged.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use duly::job::{Due, UniqueConflict};
use duly::store::{
    ChangeResult, Claim, JobStore, Store, TransferBatch, TransferBatchResult, TransferCheckpoint, TransferMark,
    TransferStore, Wake,
};
use duly::{Fence, Filter, JobId, JobRecord, NodeId, Outcome, Priority, Push, PushResult, State};

use crate::test_store::*;

const KEEP_DEAD: Duration = Duration::from_secs(90 * 24 * 3600);

async fn mark(store: &TestStore, node: NodeId) -> Option<TransferMark> {
    store.store.set_transfer_mark("default", node, Some("elsewhere")).await.expect("marks").mark
}

async fn unmark(store: &TestStore, node: NodeId) -> Option<TransferMark> {
    store.store.set_transfer_mark("default", node, None).await.expect("unmarks").mark
}

/// Returns all jobs of the default queue with details, state by state.
async fn all(store: &TestStore) -> Vec<JobRecord> {
    let mut all = Vec::new();
    for state in [State::Ready, State::Scheduled, State::Dead, State::Done] {
        let filter = Filter::all().queue("default").state(state).limit(1_000);
        all.extend(store.store.list(filter.with_details()).await.expect("lists").jobs);
    }
    all
}

fn ids_and_push_times(jobs: &[JobRecord]) -> Vec<(JobId, SystemTime)> {
    jobs.iter().map(|record| (record.job.id, record.job.pushed)).collect()
}

/// One transfer into a store.
struct IncomingTransfer<'s> {
    store: &'s TestStore,
    begun_by: NodeId,
}

impl IncomingTransfer<'_> {
    fn new(store: &TestStore) -> IncomingTransfer<'_> {
        IncomingTransfer { store, begun_by: NodeId::fresh() }
    }

    async fn put(&self, jobs: &[JobRecord], expected: Option<&str>, replacement: Option<&str>) -> TransferBatchResult {
        self.put_with(jobs, expected, replacement, Fence(0)).await
    }

    async fn put_with(
        &self,
        jobs: &[JobRecord],
        expected: Option<&str>,
        replacement: Option<&str>,
        fence_floor: Fence,
    ) -> TransferBatchResult {
        let checkpoint = TransferCheckpoint {
            begun_by: self.begun_by,
            expected: expected.map(str::to_owned),
            replacement: replacement.map(str::to_owned),
        };
        let (queue, jobs) = ("default".to_owned(), Arc::from(jobs));
        self.store
            .store
            .transfer_in(TransferBatch { queue, jobs, checkpoint, fence_floor, keep_dead: KEEP_DEAD })
            .await
            .expect("replies")
    }
}

fn applied() -> TransferBatchResult {
    TransferBatchResult::Applied { skipped: Vec::new() }
}

/// Pushes jobs of every state, with and without failures.
async fn fill(store: &TestStore) {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let full_job = |kind: &str| {
        Push::new(kind, "{\"n\":9007199254740993,\n\"e\":[]}")
            .priority(Priority::High)
            .max_attempts(7)
            .timeout(Duration::from_millis(1_500))
            .keep(Duration::from_secs(60))
            .tags(["a", "b"])
            .traceparent(trace)
    };
    for kind in ["done", "dead", "done after trouble", "started over", "retried", "released", "waits again"] {
        store.push(full_job(&kind.replace(' ', "-")).unique(kind)).await;
    }
    store.advance(SECOND).await;
    let held = store.claim("a", 7).await;
    store.settle_run("a", &held[0], Outcome::Ack, None).await;
    store.settle_run("a", &held[1], Outcome::bury("no: \u{1f600}"), Some("\u{1f600}\nout")).await;
    store.settle("a", &held[2], Outcome::retry(Duration::ZERO, "oh")).await;
    let again = store.claim("a", 1).await;
    store.settle_run("a", &again[0], Outcome::Ack, Some("two\nlines")).await;
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
    store.push_all(vec![full_job("plain"), job("low").priority(Priority::Low), job("later").after(50 * SECOND)]).await;
    store.push(job("keyed").unique("its key")).await;
}

pub async fn moving_queue_yields_nothing_paused_or_not(store: TestStore) {
    store.push(job("one")).await;
    store.push(job("due").after(MS)).await;
    store.advance(MS).await;
    let node = NodeId::fresh();
    let moving = mark(&store, node).await;
    assert!(store.claim("a", 9).await.is_empty());
    assert!(!store.claim_with("a", claim(0)).await.has_more, "no node is asked to claim again");
    store.store.set_paused("default", true).await.expect("pauses");
    store.store.set_paused("default", false).await.expect("resumes");
    assert!(store.claim("a", 9).await.is_empty());

    let counts = store.store.counts().await.expect("counts");
    assert_eq!((counts[0].paused, &counts[0].moving), (false, &moving));
    assert_eq!(moving.map(|moving| (moving.begun_by, moving.mover, moving.to)), Some((node, node, "elsewhere".into())));

    assert_eq!(unmark(&store, node).await, None);
    assert_eq!(kinds(&store.claim("a", 9).await), ["one", "due"]);
}

pub async fn moving_queue_rejects_changes_to_its_jobs(store: TestStore) {
    let id = store.push(job("one").unique("x")).await.id();
    let other = store.push(job("one").queue("other")).await.id();
    mark(&store, NodeId::fresh()).await;
    assert_eq!(store.remove(id).await, ChangeResult::Moving);
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("replies"), ChangeResult::Moving);
    let replacement = job("two").unique("x").on_conflict(UniqueConflict::Replace);
    assert_eq!(store.push(replacement).await, PushResult::Existing(id));
    assert!(matches!(store.push(job("three").unique("y")).await, PushResult::New(_)), "pushes are accepted");
    assert_eq!(store.remove(other).await, ChangeResult::Applied, "other queues accept changes");
}

pub async fn last_node_to_mark_a_transfer_wins(store: TestStore) {
    let (first, second) = (NodeId::fresh(), NodeId::fresh());
    mark(&store, first).await;
    let again = store.store.set_transfer_mark("default", second, Some("nowhere")).await.expect("marks").mark;
    let again = again.expect("is marked");
    assert_eq!((again.begun_by, again.mover, again.to.as_str()), (first, second, "elsewhere"));
    assert_eq!(unmark(&store, first).await, Some(again), "only the last node can remove the mark");
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
    let reply = store.claim_from("b", "a", 0).await;
    assert_eq!((reply.jobs.len(), reply.taken_back, reply.has_more), (0, 1, false));
    let record = store.get(held.job.id).await.expect("is there");
    assert_eq!((record.state, record.crashes), (State::Ready, 1));
}

pub async fn end_of_transfer_wakes_a_node(store: TestStore) {
    let transfer_node = NodeId::fresh();
    mark(&store, transfer_node).await;
    let idle = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(idle).await.expect("subscribes");
    assert!(store.claim("a", 1).await.is_empty());
    unmark(&store, transfer_node).await;
    let woken = tokio::time::timeout(10 * SECOND, wakes.recv()).await.expect("in time");
    assert_eq!(woken, Some(Wake::Queue("default".into())));
}

pub async fn list_includes_failures_on_request(store: TestStore) {
    fill(&store).await;
    let mut failed = 0;
    for record in all(&store).await {
        assert_eq!(Some(&record), store.get(record.job.id).await.as_ref());
        failed += usize::from(!record.failures.is_empty());
    }
    assert_eq!(failed, 6);
    let plain = store.store.list(Filter::all().limit(100)).await.expect("lists");
    assert!(plain.jobs.iter().all(|record| record.failures.is_empty()));
}

pub async fn transferred_jobs_arrive_unchanged(store: TestStore) {
    let source = TestStore::in_memory().await;
    fill(&source).await;
    let jobs = all(&source).await;
    assert_eq!(jobs.len(), 12);
    assert_eq!(IncomingTransfer::new(&store).put(&jobs, None, Some("1")).await, applied());
    for record in &jobs {
        assert_eq!(store.get(record.job.id).await.as_ref(), Some(record));
    }
    let again = all(&store).await;
    let ready = |jobs: &[JobRecord]| -> Vec<String> {
        jobs.iter().filter(|r| r.state == State::Ready).map(|r| r.job.kind.clone()).collect()
    };
    assert_eq!(ready(&again), ready(&jobs), "in the order of their claims");
    let totals = |counts: &[duly::admin::QueueCounts]| {
        counts.iter().map(|c| (c.ready, c.scheduled, c.dead, c.done)).collect::<Vec<_>>()
    };
    assert_eq!(
        totals(&store.store.counts().await.expect("counts")),
        totals(&source.store.counts().await.expect("counts"))
    );
}

pub async fn transferred_jobs_can_be_claimed_and_settled(store: TestStore) {
    let source = TestStore::in_memory().await;
    fill(&source).await;
    let jobs = all(&source).await;
    IncomingTransfer::new(&store).put(&jobs, None, Some("1")).await;
    // Both stores behave the same from here on.
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
        assert_eq!(all(store).await.len(), 1, "all others are pruned");
    }
}

pub async fn transferred_ready_jobs_go_behind_existing_ones(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push_all(vec![job("first"), job("second"), job("urgent").priority(Priority::High)]).await;
    store.push(job("here")).await;
    let jobs = all(&source).await;
    let incoming = IncomingTransfer::new(&store);
    incoming.put(&jobs[..2], None, Some("1")).await;
    incoming.put(&jobs[2..], Some("1"), Some("2")).await;
    store.push(job("last")).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["urgent", "here", "first", "second", "last"]);
}

pub async fn transferred_jobs_wake_a_node(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    let node = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim("a", 1).await.is_empty());
    IncomingTransfer::new(&store).put(&all(&source).await, None, Some("1")).await;
    let woken = tokio::time::timeout(10 * SECOND, wakes.recv()).await.expect("in time");
    assert_eq!(woken, Some(Wake::Queue("default".into())));
}

pub async fn transfer_leaves_out_known_ids(store: TestStore) {
    let source = TestStore::in_memory().await;
    let [here, gone, new] = ["here", "gone", "new"].map(JobId::from_name);
    source.push_all([here, gone, new].map(|id| job("moved").id(id)).into()).await;
    store.push_all(vec![job("own").id(here), job("own").id(gone)]).await;
    store.remove(gone).await;
    let TransferBatchResult::Applied { mut skipped } =
        IncomingTransfer::new(&store).put(&all(&source).await, None, Some("1")).await
    else {
        panic!("refused");
    };
    skipped.sort();
    let mut expected = [here, gone];
    expected.sort();
    assert_eq!(skipped, expected);
    assert_eq!(kinds(&store.claim("a", 9).await), ["own", "moved"]);
}

pub async fn taken_key_rejects_the_whole_transfer_batch(store: TestStore) {
    let source = TestStore::in_memory().await;
    let id = source.push(job("keyed").unique("x")).await.id();
    source.push(job("other")).await;
    let existing = store.push(job("own").unique("x")).await.id();
    let (incoming, jobs) = (IncomingTransfer::new(&store), all(&source).await);
    assert_eq!(incoming.put(&jobs, None, Some("1")).await, TransferBatchResult::UniqueTaken(vec![id]));
    assert_eq!(all(&store).await.len(), 1, "nothing was changed");
    store.remove(existing).await;
    assert_eq!(incoming.put(&jobs, None, Some("1")).await, applied(), "nor was the checkpoint");
    assert_eq!(store.push(job("late").unique("x")).await, PushResult::Existing(id));
}

pub async fn transferred_ended_job_takes_no_key(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("keyed").unique("x")).await;
    let held = source.claim_one("a").await;
    source.settle("a", &held, Outcome::bury("no")).await;
    let existing = store.push(job("own").unique("x")).await.id();
    assert_eq!(IncomingTransfer::new(&store).put(&all(&source).await, None, Some("1")).await, applied());
    assert_eq!(store.push(job("late").unique("x")).await, PushResult::Existing(existing));
    let back = store.store.reschedule(held.job.id, Due::Now).await.expect("replies");
    assert_eq!(back, ChangeResult::Existing(existing));
}

pub async fn transfer_in_with_another_checkpoint_is_rejected(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    let (incoming, jobs) = (IncomingTransfer::new(&store), all(&source).await);
    assert_eq!(incoming.put(&[], None, None).await, applied(), "there is no checkpoint");
    assert_eq!(incoming.put(&jobs, Some("0"), Some("1")).await, TransferBatchResult::CheckpointMismatch(None));
    assert_eq!(incoming.put(&[], None, Some("1")).await, applied());
    assert_eq!(
        incoming.put(&[], None, None).await,
        TransferBatchResult::CheckpointMismatch(Some("1".into())),
        "a mismatch returns the checkpoint"
    );
    assert_eq!(incoming.put(&jobs, None, Some("2")).await, TransferBatchResult::CheckpointMismatch(Some("1".into())));
    assert_eq!(all(&store).await.len(), 0);
    let other = IncomingTransfer::new(&store);
    assert_eq!(other.put(&[], None, Some("of another transfer")).await, applied());
    assert_eq!(incoming.put(&jobs, Some("1"), Some("2")).await, applied());
    assert_eq!(incoming.put(&[], Some("2"), None).await, applied());
    assert_eq!(incoming.put(&[], None, None).await, applied(), "the checkpoint is removed");
    assert_eq!(
        other.put(&[], None, None).await,
        TransferBatchResult::CheckpointMismatch(Some("of another transfer".into()))
    );
}

pub async fn repeated_transfer_batch_changes_nothing(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one").keep(Duration::ZERO)).await;
    let (incoming, jobs) = (IncomingTransfer::new(&store), all(&source).await);
    assert_eq!(incoming.put(&jobs, None, Some("1")).await, applied());
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    for _ in 0..2 {
        store.advance(REMEMBER).await;
        store.prune().await;
    }
    assert_eq!(incoming.put(&jobs, None, Some("1")).await, applied(), "the reply was lost");
    assert!(store.claim("a", 9).await.is_empty(), "and its job is done and forgotten");
}

pub async fn fences_grow_across_a_transfer(store: TestStore) {
    let source = TestStore::in_memory().await;
    source.push(job("one")).await;
    source.sleep(100_000 * SECOND); // the clock of the source is ahead
    let held = source.claim_one("a").await;
    source.settle("a", &held, retry_at_once()).await;
    let fence = source.store.set_transfer_mark("default", NodeId::fresh(), Some("x")).await.expect("marks").last_fence;
    assert!(fence >= held.fence);
    IncomingTransfer::new(&store).put_with(&all(&source).await, None, Some("1"), fence).await;
    assert!(store.claim_one("a").await.fence > held.fence);
}

/// Reserves jobs as a transfer does: a store that only duly uses needs no reservations.
pub async fn reserve(
    store: &Arc<dyn Store>,
    queue: &str,
    node: NodeId,
    jobs: Vec<(JobId, SystemTime)>,
) -> Option<Vec<(JobId, SystemTime)>> {
    match store.capabilities().shared_keys {
        None => Some(jobs),
        Some(shared) => shared.transfer_reserve(queue, node, jobs).await.expect("replies"),
    }
}

/// Reserves and deletes jobs of the queue, as a transfer does.
async fn transfer_out(store: &TestStore, node: NodeId, jobs: &[(JobId, SystemTime)]) -> Option<usize> {
    let reserved = reserve(&store.store, "default", node, jobs.to_vec()).await?;
    store.store.transfer_out("default", node, reserved).await.expect("replies")
}

pub async fn transfer_out_by_another_node_is_rejected(store: TestStore) {
    store.push_all(vec![job("one"), job("later").after(SECOND)]).await;
    let jobs = ids_and_push_times(&all(&store).await);
    let (first, second) = (NodeId::fresh(), NodeId::fresh());
    let out = async |node| transfer_out(&store, node, &jobs).await;
    assert_eq!(out(first).await, None, "the queue is not marked");
    mark(&store, first).await;
    mark(&store, second).await;
    assert_eq!(out(first).await, None, "another node has taken over");
    assert_eq!(all(&store).await.len(), 2);
    assert_eq!(out(second).await, Some(2));
    assert_eq!(out(second).await, Some(0));
    assert!(all(&store).await.is_empty());
}

pub async fn transferred_job_leaves_no_trace(store: TestStore) {
    fill(&store).await;
    let (jobs, node) = (all(&store).await, NodeId::fresh());
    mark(&store, node).await;
    assert_eq!(transfer_out(&store, node, &ids_and_push_times(&jobs)).await, Some(jobs.len()));
    let counts = store.store.counts().await.expect("counts").remove(0);
    assert_eq!((counts.ready, counts.scheduled, counts.running, counts.dead, counts.done), (0, 0, 0, 0, 0));
    for record in &jobs {
        let again = job("again").id(record.job.id).unique(record.job.kind.clone());
        assert_eq!(store.push(again).await, PushResult::New(record.job.id), "neither id nor key is taken");
    }
    unmark(&store, node).await;
    assert_eq!(store.claim("c", 20).await.len(), jobs.len());
}

pub async fn reserved_jobs_without_copy_return_to_their_places(store: TestStore) {
    store.push_all(vec![job("first"), job("second"), job("later").after(SECOND)]).await;
    let dead = store.claim_one("a").await;
    store.settle("a", &dead, Outcome::bury("hopeless")).await;
    store.push(job("third")).await;
    let (before, node) = (all(&store).await, NodeId::fresh());
    mark(&store, node).await;
    let jobs = ids_and_push_times(&before);
    for _ in 0..2 {
        // Again after a lost reply.
        let mut reserved = reserve(&store.store, "default", node, jobs.clone()).await.expect("marked");
        reserved.sort();
        let mut sorted = jobs.clone();
        sorted.sort();
        assert_eq!(reserved, sorted);
    }
    // The mover is killed before it copies anything, and another one removes the mark.
    let next = NodeId::fresh();
    mark(&store, next).await;
    unmark(&store, next).await;
    assert_eq!(all(&store).await, before);
    assert_eq!(kinds(&store.claim("a", 9).await), ["second", "third"]);
}

pub async fn running_job_is_not_transferred(store: TestStore) {
    store.push(job("one")).await;
    let held = store.claim_one("a").await;
    let node = NodeId::fresh();
    mark(&store, node).await;
    assert_eq!(transfer_out(&store, node, &[(held.job.id, held.job.pushed)]).await, Some(0));
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn job_pushed_again_is_not_transferred(store: TestStore) {
    let (id, node) = (JobId::from_name("daily"), NodeId::fresh());
    store.push(job("one").id(id)).await;
    let jobs = ids_and_push_times(&all(&store).await);
    mark(&store, node).await;
    let out = async || transfer_out(&store, node, &jobs).await;
    assert_eq!(out().await, Some(1));
    store.advance(SECOND).await;
    assert_eq!(store.push(job("two").id(id)).await, PushResult::New(id));
    assert_eq!(out().await, Some(0), "the new job is not deleted");
}

pub async fn transferred_jobs_can_return(store: TestStore) {
    let ids: Vec<_> = store.push_all((0..5).map(|_| job("one")).collect()).await.iter().map(PushResult::id).collect();
    let (jobs, node) = (all(&store).await, NodeId::fresh());
    mark(&store, node).await;
    transfer_out(&store, node, &ids_and_push_times(&jobs)).await;
    unmark(&store, node).await;
    assert_eq!(IncomingTransfer::new(&store).put(&jobs, None, Some("1")).await, applied());
    let held = store.claim_with("a", Claim { max: 9, ..claim(9) }).await.jobs;
    assert_eq!(held.iter().map(|held| held.job.id).collect::<Vec<_>>(), ids);
}

pub async fn rescheduled_job_can_return(store: TestStore) {
    store.push_all(vec![job("first"), job("second"), job("third")]).await;
    let second = all(&store).await.remove(1);
    store.store.reschedule(second.job.id, Due::Now).await.expect("goes to the tail");
    let (second, node) = (all(&store).await.remove(2), NodeId::fresh());
    mark(&store, node).await;
    let out = transfer_out(&store, node, &ids_and_push_times(std::slice::from_ref(&second))).await;
    assert_eq!(out, Some(1));
    unmark(&store, node).await;
    assert_eq!(IncomingTransfer::new(&store).put(&[second], None, Some("1")).await, applied());
    let listed: Vec<_> = all(&store).await.into_iter().map(|record| record.job.kind).collect();
    assert_eq!(listed, ["first", "third", "second"]);
    assert_eq!(kinds(&store.claim("a", 9).await), ["first", "third", "second"]);
}
