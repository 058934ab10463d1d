//! How attempts ended, on the way to the store: each queue for itself, so that a shard that fails holds up no other.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::job::{Fence, Held, JobId, Outcome};
use crate::metrics;
use crate::store::{End, SETTLE_MAX, Timing};
use crate::testing::CrashAt;
use crate::worker::attempt::UNKNOWN_KIND;
use crate::worker::claims::Answered;
use crate::worker::event::Event;
use crate::worker::in_flight::Finished;
use crate::worker::progress_sender;
use crate::worker::run_loop::Shift;

/// Outcomes of one queue that the store does not have yet.
#[derive(Default)]
pub(super) struct Outbox {
    finished: Vec<Finished>,
    /// Those that are under way: one request at a time.
    sent: Vec<(JobId, Fence)>,
    failures: u32,
    /// The store has failed: send nothing before this moment.
    pub(super) not_before: Option<Instant>,
}

impl Outbox {
    pub(super) fn put(&mut self, finished: Finished) {
        self.finished.push(finished);
    }

    /// How many wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.finished.len()
    }

    /// How many the store does not have, as far as we know.
    pub(super) fn unrecorded(&self) -> usize {
        self.finished.len() + self.sent.len()
    }

    /// Whether some are under way.
    pub(super) fn is_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether this attempt is known to have ended here.
    pub(super) fn has(&self, attempt: (JobId, Fence)) -> bool {
        self.sent.contains(&attempt) || self.finished.iter().any(|finished| name(&finished.held) == attempt)
    }

    /// What goes in the next request: nothing while one is under way, or too soon after one that has failed.
    fn take(&mut self, now: Instant) -> Vec<Finished> {
        if self.is_sent() || self.not_before.is_some_and(|at| at > now) {
            return Vec::new();
        }
        let rest = self.finished.split_off(self.together());
        let batch = std::mem::replace(&mut self.finished, rest);
        self.sent = batch.iter().map(|finished| name(&finished.held)).collect();
        batch
    }

    /// How many go together. The store names what it refuses by the job alone, so no two attempts of one: an outcome that came back
    /// may have been recorded, and the job claimed again since.
    fn together(&self) -> usize {
        let most = self.finished.len().min(SETTLE_MAX);
        if self.failures == 0 {
            return most;
        }
        let mut jobs = HashSet::new();
        self.finished[..most].iter().take_while(|finished| jobs.insert(finished.held.job.id)).count()
    }

    /// The store has them.
    fn arrived(&mut self) {
        self.sent.clear();
        self.failures = 0;
        self.not_before = None;
    }

    /// The store has not answered: they go first the next time.
    fn came_back(&mut self, batch: Vec<Finished>, not_before: Instant) {
        self.sent.clear();
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(not_before);
        let newer = std::mem::replace(&mut self.finished, batch);
        self.finished.extend(newer);
    }
}

fn name(held: &Held) -> (JobId, Fence) {
    (held.job.id, held.fence)
}

impl Shift {
    /// How many outcomes wait to be sent.
    pub(super) fn unsettled(&self) -> usize {
        self.lanes.iter().map(|lane| lane.outbox.waiting()).sum()
    }

    pub(super) fn settle(&mut self, at: usize, now: Instant) {
        let batch = self.lanes[at].outbox.take(now);
        if batch.is_empty() {
            return;
        }
        let keep_dead = self.settings.duly.options.keep_dead;
        let ends: Vec<End> = batch.iter().map(|finished| end(finished, keep_dead)).collect();
        let last_words = progress_sender::last_words(&batch);
        let (store, node) = (self.store.clone(), self.node.id);
        self.asks.push(Box::pin(async move {
            let mut batch = batch;
            let kept = progress_sender::send(&*store, node, last_words).await;
            // Not again, if the outcomes must be sent again.
            let said = |finished: &&mut Finished| kept.contains(&finished.held.job.id);
            batch.iter_mut().filter(said).for_each(|finished| finished.note = None);
            Answered::Settled(at, batch, now, store.settle(node, ends).await)
        }));
    }

    pub(super) fn settled(&mut self, at: usize, batch: Vec<Finished>, lost: &[JobId]) {
        self.lanes[at].outbox.arrived();
        let (now, lease) = (clock::tick(), self.node.lease);
        if let Some(crash) = self.settings.crash.as_ref().filter(|crash| crash.is_at(&CrashAt::AfterSettle)) {
            crash.crashed.cancel();
        }
        let mut settling = metrics::Settling::default();
        for finished in batch {
            let Finished { lane, held, outcome, why, took, late, again, result, since, doubted, .. } = finished;
            self.lanes[lane].agreement.moved(1);
            let told = self.robbed.remove(&name(&held));
            // Of a settle whose answer was lost: if nobody can have taken the job since we began, it was recorded then.
            let recorded_before = doubted && self.lanes[lane].is_ours_since(since, now, lease);
            if lost.contains(&held.job.id) && !recorded_before {
                // It may have been recorded then all the same: not a robbery that anybody could know of.
                if !doubted && !again {
                    self.tally.lost += 1;
                    metrics::lost(&held.job.queue);
                    if !told {
                        self.settings.tell(&Event::Lost { id: held.job.id });
                    }
                    tracing::warn!(id = %held.job.id, "outcome refused: another node has the job");
                }
                self.recent.note(name(&held), outcome, result);
                continue;
            }
            if again {
                continue;
            }
            self.way_is_free(lane, held.job.unique.as_deref(), &outcome);
            match outcome {
                Outcome::Ack => self.lanes[lane].unpruned += usize::from(!held.job.keep.is_zero()),
                Outcome::Bury { .. } => {}
                // It is ready again, or will be: look, or learn when.
                Outcome::Retry { .. } | Outcome::Release { .. } => self.lanes[lane].maybe_ready = true,
            }
            self.tally.count(&outcome);
            settling.settled(&held.job, &outcome, took);
            if let Some(lateness) = late {
                let timing = Timing { lateness, duration: took };
                self.settings.duly.kinds.count(&self.store, &held.job.kind, &outcome, timing);
            }
            self.settings.tell(&Event::Settled { held: &held, outcome: &outcome, why, took });
            self.recent.note(name(&held), outcome, result);
        }
    }

    pub(super) fn settle_failed(&mut self, at: usize, mut batch: Vec<Finished>, error: &Error) {
        let again_in = self.backoff(self.lanes[at].outbox.failures);
        if matches!(error, Error::Unknown { .. }) {
            batch.iter_mut().for_each(|finished| finished.doubted = true);
        }
        self.lanes[at].outbox.came_back(batch, clock::tick() + again_in);
        self.failed("settle", error, again_in);
    }
}

fn end(finished: &Finished, keep_dead: Duration) -> End {
    let keep = match finished.outcome {
        Outcome::Bury { .. } => keep_dead,
        _ => finished.held.job.keep,
    };
    let timing = finished.late.map(|lateness| Timing { lateness, duration: finished.took });
    let put_off = finished.why == Some(UNKNOWN_KIND);
    End { timing, result: finished.result.clone(), put_off, ..End::of(&finished.held, finished.outcome.clone(), keep) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Duly;
    use crate::job::push::Push;
    use crate::node::Node;
    use crate::store::Claim;

    /// A job in a node's hands.
    async fn held() -> Held {
        let duly = Duly::open(":memory:").await.expect("opens");
        duly.push(Push::new("mail", "{}")).await.expect("pushes");
        let node = Node::fresh(vec!["default".into()]);
        duly.store.beat(&node).await.expect("joins");
        let claim = Claim { queue: "default".into(), max: 1, redo: false, suspect: None, kinds: None };
        duly.store.claim(node.id, claim).await.expect("claims").jobs.pop().expect("the job")
    }

    fn finished(held: &Held, fence: u64) -> Finished {
        Finished::without_a_run(0, Held { fence: Fence(fence), ..held.clone() }, Outcome::Ack)
    }

    #[tokio::test]
    async fn two_attempts_of_one_job_are_not_sent_together() {
        let (one, other, now) = (held().await, held().await, clock::tick());
        let mut outbox = Outbox::default();
        outbox.put(finished(&one, 1));
        let batch = outbox.take(now);
        outbox.came_back(batch, now);
        outbox.put(finished(&other, 2));
        // The first was recorded, unheard, and the job has come again.
        outbox.put(finished(&one, 3));
        let fences = |batch: Vec<Finished>| batch.iter().map(|finished| finished.held.fence.0).collect::<Vec<_>>();
        assert_eq!(fences(outbox.take(now)), [1, 2]);
        outbox.arrived();
        assert_eq!(fences(outbox.take(now)), [3]);
    }
}
