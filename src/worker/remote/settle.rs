//! Records how attempts of a remote worker ended.

use std::sync::Arc;

use super::job::RemoteJob;
use super::node::RemoteNode;
use super::settlement::{self, Settlement};
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, Outcome};
use crate::store::{AttemptEnd, CANCELLED_INDEX, JobStore, SETTLE_MAX, outcome_index};
use crate::worker::cancel::{cancelled_outcome, has_cancelled_jobs};

/// Decides how a job ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SettledBy {
    /// The worker. It may not receive the reply, and repeat the request.
    Worker,
    /// The node on behalf of the worker. A later report of the worker was not recorded.
    Node,
}

impl RemoteNode {
    /// Records how attempts ended, and returns the jobs that the worker no longer holds: nothing was recorded for them.
    ///
    /// The node remembers recent settlements, so a worker can repeat a request after a lost reply: the repeated jobs do
    /// not count as lost. See the [module](super) for an example.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: there are too many settlements for one request.
    /// - [`Error::Store`] or [`Error::Unknown`]: the store cannot be reached. Repeat the request.
    pub async fn settle(self: &Arc<Self>, settlements: Vec<Settlement>) -> Result<Vec<JobId>> {
        self.settle_by(SettledBy::Worker, settlements).await
    }

    async fn settle_by(self: &Arc<Self>, by: SettledBy, settlements: Vec<Settlement>) -> Result<Vec<JobId>> {
        if settlements.len() > SETTLE_MAX {
            return Err(Error::invalid(
                "outcomes",
                format!("at most {SETTLE_MAX} in one request; send them in several"),
            ));
        }
        let (mut ends, mut lost, mut uncertain): (Vec<AttemptEnd>, Vec<JobId>, Vec<JobId>) = Default::default();
        {
            let mut state = self.state();
            let now = clock::monotonic_now();
            state.record_request(now);
            for Settlement { id, fence, outcome, result } in settlements {
                match state.job((id, fence)) {
                    None => lost.extend(Some(id).filter(|_| !state.is_recorded((id, fence)))),
                    Some(job) => {
                        uncertain.extend(Some(id).filter(|_| job.is_uncertain()));
                        let cancelled = job.is_cancelled().then(|| cancelled_outcome(&*self.duly().store));
                        let outcome = settlement::decide_outcome(job.held(), cancelled, outcome);
                        let result = result.filter(|_| outcome == Outcome::Ack);
                        let (timing, keep_dead) = (job.timing(now), self.duly().options.keep_dead);
                        let end = settlement::end_attempt(job.held(), Some(timing), outcome, keep_dead);
                        let end = if self.duly().options.attempts { job.record_attempt(end) } else { end };
                        ends.push(AttemptEnd { result, ..end });
                    }
                }
            }
        }
        if ends.is_empty() {
            return Ok(lost);
        }
        // A separate task: the recording must finish if the caller goes away, or recorded jobs stay held here.
        let node = self.clone();
        let claims: Vec<(JobId, Fence)> = ends.iter().map(|end| (end.id(), end.fence())).collect();
        let recorded = tokio::spawn(async move { node.record(by, ends).await }).await;
        // A task that did not finish may have recorded the ends.
        let refused = recorded.unwrap_or_else(|error| {
            self.state().mark_uncertain(&claims, by);
            Err(Error::unknown_with_cause("settle", error))
        })?;
        lost.extend(refused.into_iter().filter(|id| !uncertain.contains(id)));
        Ok(lost)
    }

    /// Adds recorded ends to the statistics by kind.
    fn count_kinds(&self, ends: &[AttemptEnd], cancelled: &[JobId], lost: &[JobId]) {
        for end in ends.iter().filter(|end| !lost.contains(&end.id())) {
            if let Some(timing) = end.timing {
                let cancelled = end.outcome != Outcome::Ack && cancelled.contains(&end.id());
                let counter = if cancelled { CANCELLED_INDEX } else { outcome_index(&end.outcome) };
                self.duly().kind_stats.record(&self.duly().store, &end.held().job.kind, counter, timing);
            }
        }
    }

    /// Returns the jobs that end cancelled unless they succeed.
    fn cancelled_among(&self, ends: &[AttemptEnd]) -> Vec<JobId> {
        if !has_cancelled_jobs(&*self.duly().store) {
            return Vec::new();
        }
        let state = self.state();
        let is_cancelled = |end: &&AttemptEnd| state.job((end.id(), end.fence())).is_some_and(RemoteJob::is_cancelled);
        ends.iter().filter(is_cancelled).map(AttemptEnd::id).collect()
    }

    async fn record(&self, by: SettledBy, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        let claims: Vec<(JobId, Fence)> = ends.iter().map(|end| (end.id(), end.fence())).collect();
        let requeued: Vec<String> = ends
            .iter()
            .filter(|end| matches!(end.outcome, Outcome::Retry { .. } | Outcome::Release { .. }))
            .map(|end| end.queue().to_owned())
            .collect();
        let counted = ends.clone();
        let cancelled = self.cancelled_among(&ends);
        // A concurrent resync could list jobs that are recorded here, and deliver them a second time.
        let _recording = self.begin_recording().await;
        let settled = self.duly().store.settle(self.id(), ends).await;
        if let Ok(lost) = &settled {
            self.count_kinds(&counted, &cancelled, lost);
        }
        let mut state = self.state();
        match &settled {
            Ok(lost) => claims.iter().for_each(|claim| state.remove_settled(*claim, by, lost.contains(&claim.0))),
            Err(Error::Unknown { .. }) => state.mark_uncertain(&claims, by),
            Err(_) => {}
        }
        // These queues have a job that is ready, or due later: claim again to find out.
        state.request_claims(|name| requeued.iter().any(|queue| queue == name));
        drop(state);
        self.wake_claim();
        settled
    }

    /// Releases every held job.
    pub(super) async fn release_all(self: &Arc<Self>) -> Result<()> {
        let settlements = self.state().release_all();
        self.settle_all(settlements).await
    }

    /// Records settlements made by the node, in batches of at most [`SETTLE_MAX`].
    pub(super) async fn settle_all(self: &Arc<Self>, mut settlements: Vec<Settlement>) -> Result<()> {
        while !settlements.is_empty() {
            let rest = settlements.split_off(settlements.len().min(SETTLE_MAX));
            self.settle_by(SettledBy::Node, std::mem::replace(&mut settlements, rest)).await?;
        }
        Ok(())
    }
}
