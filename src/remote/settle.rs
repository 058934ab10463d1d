//! How attempts of a worker outside ended, on the way to the store.

use std::sync::Arc;
use std::time::Duration;

use super::hand::{self, Hand, Said, Settling};
use super::node::Remote;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, Outcome};
use crate::store::{End, SETTLE_MAX};

/// Who says how a job ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Its worker, which may not get the answer, and say it again.
    Worker,
    /// Its node in the worker's place: what the worker says of the job after that was not recorded.
    Us,
}

impl Remote {
    /// Records what the worker says of jobs, and answers those that it does not hold any more: nothing of theirs was recorded.
    ///
    /// What was recorded is known for a while: said again, because the answer has not reached the worker, it is not lost.
    pub(crate) async fn settle(self: &Arc<Self>, settling: Vec<Settling>) -> Result<Vec<JobId>> {
        self.settle_by(By::Worker, settling).await
    }

    async fn settle_by(self: &Arc<Self>, by: By, settling: Vec<Settling>) -> Result<Vec<JobId>> {
        if settling.len() > SETTLE_MAX {
            return Err(Error::invalid("ends", format!("at most {SETTLE_MAX} in one request")));
        }
        let (mut ends, mut lost, mut in_doubt): (Vec<End>, Vec<JobId>, Vec<JobId>) = Default::default();
        {
            let mut state = self.state();
            state.seen = clock::tick();
            for Settling { id, fence, said, result } in settling {
                match state.hand(id, fence) {
                    None => lost.extend(Some(id).filter(|id| !state.recorded.contains(&(*id, fence)))),
                    Some(hand) => {
                        in_doubt.extend(Some(id).filter(|_| hand.in_doubt));
                        let outcome = hand::judge(&hand.held, hand.unwanted, said);
                        let result = result.filter(|_| outcome == Outcome::Ack);
                        let end = hand::end(&hand.held, Some(hand), outcome, self.duly.options.keep_dead);
                        ends.push(End { result, ..end });
                    }
                }
            }
        }
        if ends.is_empty() {
            return Ok(lost);
        }
        // To its end also if the one who asks goes away: what is recorded must not stay in hand.
        let remote = self.clone();
        let claims: Vec<(JobId, Fence)> = ends.iter().map(|end| (end.id, end.fence)).collect();
        let recorded = tokio::spawn(async move { remote.record(by, ends).await }).await;
        // One that has not come to its end may have been carried out all the same.
        let refused = recorded.unwrap_or_else(|why| {
            self.state().doubt(&claims, by);
            Err(Error::Unknown { op: "settle", source: Some(why.into()) })
        })?;
        lost.extend(refused.into_iter().filter(|id| !in_doubt.contains(id)));
        Ok(lost)
    }

    /// What attempts of each kind came to.
    fn count_kinds(&self, ends: &[End], lost: &[JobId]) {
        for end in ends.iter().filter(|end| !lost.contains(&end.id)) {
            if let Some(timing) = end.timing {
                self.duly.kinds.count(&self.duly.store, &end.kind, &end.outcome, timing);
            }
        }
    }

    async fn record(&self, by: By, ends: Vec<End>) -> Result<Vec<JobId>> {
        let claims: Vec<(JobId, Fence)> = ends.iter().map(|end| (end.id, end.fence)).collect();
        let again: Vec<String> = ends
            .iter()
            .filter(|end| matches!(end.outcome, Outcome::Retry { .. } | Outcome::Release { .. }))
            .map(|end| end.queue.clone())
            .collect();
        let counted = ends.clone();
        // A list of what is held must not be made meanwhile: it might name what is recorded now, and that would be given out again.
        let _recording = self.recording.read().await;
        let settled = self.duly.store.settle(self.node.id, ends).await;
        if let Ok(lost) = &settled {
            self.count_kinds(&counted, lost);
        }
        let mut state = self.state();
        match &settled {
            Ok(lost) => claims.iter().for_each(|(id, fence)| state.let_go(*id, *fence, by, lost.contains(id))),
            Err(Error::Unknown { .. }) => state.doubt(&claims, by),
            Err(_) => {}
        }
        // They are ready again, or will be: look, or learn when.
        state.lanes.iter_mut().filter(|lane| again.contains(&lane.queue)).for_each(|lane| lane.maybe_ready = true);
        drop(state);
        self.woken.notify_one();
        settled
    }

    /// Releases what is in hand.
    pub(super) async fn give_back(self: &Arc<Self>) -> Result<()> {
        let release = |hand: &Hand| Settling {
            id: hand.held.job.id,
            fence: hand.held.fence,
            said: Said::Release { after: Duration::ZERO },
            result: None,
        };
        let ends = self.state().hands.values().map(release).collect();
        self.settle_all(ends).await
    }

    /// Records however many ends of our own, in as many requests as it takes.
    pub(super) async fn settle_all(self: &Arc<Self>, mut ends: Vec<Settling>) -> Result<()> {
        while !ends.is_empty() {
            let rest = ends.split_off(ends.len().min(SETTLE_MAX));
            self.settle_by(By::Us, std::mem::replace(&mut ends, rest)).await?;
        }
        Ok(())
    }
}
