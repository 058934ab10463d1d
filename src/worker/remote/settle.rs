//! Records how attempts of a remote worker ended.

use std::sync::Arc;
use std::time::Duration;

use super::held_jobs::{self, RemoteJob, ReportedOutcome, Settlement};
use super::node::RemoteNode;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, Outcome};
use crate::store::{AttemptEnd, JobStore, SETTLE_MAX};

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
    /// not count as lost.
    pub async fn settle(self: &Arc<Self>, settlements: Vec<Settlement>) -> Result<Vec<JobId>> {
        self.settle_by(SettledBy::Worker, settlements).await
    }

    async fn settle_by(self: &Arc<Self>, by: SettledBy, settlements: Vec<Settlement>) -> Result<Vec<JobId>> {
        if settlements.len() > SETTLE_MAX {
            return Err(Error::invalid("outcomes", format!("at most {SETTLE_MAX} in one request")));
        }
        let (mut ends, mut lost, mut uncertain): (Vec<AttemptEnd>, Vec<JobId>, Vec<JobId>) = Default::default();
        {
            let mut state = self.state();
            state.last_seen = clock::monotonic_now();
            for Settlement { id, fence, outcome, result } in settlements {
                match state.job(id, fence) {
                    None => lost.extend(Some(id).filter(|id| !state.recorded.contains(&(*id, fence)))),
                    Some(job) => {
                        uncertain.extend(Some(id).filter(|_| job.uncertain));
                        let outcome = held_jobs::decide_outcome(&job.held, job.cancelled, outcome);
                        let result = result.filter(|_| outcome == Outcome::Ack);
                        let end = held_jobs::end_attempt(&job.held, Some(job), outcome, self.duly.options.keep_dead);
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
            Err(Error::Unknown { op: "settle", source: Some(error.into()) })
        })?;
        lost.extend(refused.into_iter().filter(|id| !uncertain.contains(id)));
        Ok(lost)
    }

    /// Adds recorded ends to the statistics by kind.
    fn count_kinds(&self, ends: &[AttemptEnd], lost: &[JobId]) {
        for end in ends.iter().filter(|end| !lost.contains(&end.id())) {
            if let Some(timing) = end.timing {
                self.duly.kind_stats.record(&self.duly.store, &end.held().job.kind, &end.outcome, timing);
            }
        }
    }

    async fn record(&self, by: SettledBy, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        let claims: Vec<(JobId, Fence)> = ends.iter().map(|end| (end.id(), end.fence())).collect();
        let requeued: Vec<String> = ends
            .iter()
            .filter(|end| matches!(end.outcome, Outcome::Retry { .. } | Outcome::Release { .. }))
            .map(|end| end.queue().to_owned())
            .collect();
        let counted = ends.clone();
        // A concurrent resync could list jobs that are recorded here, and deliver them a second time.
        let _recording = self.recording.read().await;
        let settled = self.duly.store.settle(self.node.id, ends).await;
        if let Ok(lost) = &settled {
            self.count_kinds(&counted, lost);
        }
        let mut state = self.state();
        match &settled {
            Ok(lost) => claims.iter().for_each(|(id, fence)| state.remove_settled(*id, *fence, by, lost.contains(id))),
            Err(Error::Unknown { .. }) => state.mark_uncertain(&claims, by),
            Err(_) => {}
        }
        // These queues have a job that is ready, or due later: claim again to find out.
        state
            .queues
            .iter_mut()
            .filter(|queue| requeued.contains(&queue.name))
            .for_each(|queue| queue.maybe_ready = true);
        drop(state);
        self.woken.notify_one();
        settled
    }

    /// Releases every held job.
    pub(super) async fn release_all(self: &Arc<Self>) -> Result<()> {
        let release = |job: &RemoteJob| Settlement {
            id: job.held.job.id,
            fence: job.held.fence,
            outcome: ReportedOutcome::Release { after: Duration::ZERO },
            result: None,
        };
        let settlements = self.state().jobs.values().map(release).collect();
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
