//! The quarantine of a remote node: a crash suspect is delivered to its worker only while the worker has no other job.
//!
//! If this process dies, its remote nodes die too, although their workers live. A suspect is therefore not marked
//! while its worker sends heartbeats. It is marked once the worker is overdue, and only then can a crash count.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::node::RemoteNode;
use crate::clock;
use crate::error::Result;
use crate::store::JobStore;
use crate::worker::outcomes::claim_key;
use crate::worker::quarantine::{AloneReply, CrashSuspect, QuarantineAction};

/// How often in a lease a worker with a lone suspect is checked. It is overdue after two thirds of its lease.
const CHECKS_PER_LEASE: u32 = 10;

impl RemoteNode {
    /// Delivers crash suspects whose trial begins, and releases those that cannot have one: all of them if the worker
    /// accepts no jobs.
    pub(super) async fn run_quarantine(self: &Arc<Self>, accepts_jobs: bool) -> Result<()> {
        loop {
            // Claims are serialised with this method.
            let action = self.state().next_quarantine_action(accepts_jobs, clock::monotonic_now());
            match action {
                None => return Ok(()),
                Some(QuarantineAction::Start(group)) => group.into_iter().for_each(|suspect| self.insert(suspect)),
                Some(QuarantineAction::SetAlone { held, alone, .. }) => {
                    let (claim, sent) = (claim_key(&held), clock::monotonic_now());
                    // The reply shows whether the node still holds the job. Only the watch sets the mark.
                    let is_held = self.duly().store.set_alone(self.id(), held, false).await;
                    let reply = AloneReply { claim, alone, is_held: is_held.as_ref().ok().copied() };
                    let started = self.state().record_alone_reply(reply, sent, clock::monotonic_now());
                    started.into_iter().for_each(|suspect| self.insert(suspect));
                    self.watch_lone_suspect();
                    is_held?;
                }
                Some(QuarantineAction::Release(suspects, after)) => {
                    let ends = suspects.into_iter().map(|suspect| self.end_release(suspect.held, after)).collect();
                    self.duly().store.settle(self.id(), ends).await?;
                }
            }
        }
    }

    fn insert(&self, suspect: CrashSuspect) {
        self.state().insert(suspect.held, clock::monotonic_now(), self.duly().store.now());
    }

    /// Watches the worker for as long as a suspect runs alone.
    fn watch_lone_suspect(self: &Arc<Self>) {
        if self.state().begin_lone_watch() {
            tokio::spawn(watch(Arc::downgrade(self), self.lease() / CHECKS_PER_LEASE));
        }
    }

    /// Marks a lone suspect if its worker is overdue, and removes the mark if the worker is back. Returns whether there
    /// is a lone suspect.
    async fn update_mark(&self) -> bool {
        // The quarantine also changes marks: two requests at a time could arrive in the wrong order.
        let _claiming = self.pause_claims().await;
        let checked = self.state().check_lone_suspect(clock::monotonic_now());
        let Some((held, change)) = checked else { return false };
        if let Some(mark) = change {
            let claim = claim_key(&held);
            let changed = self.duly().store.set_alone(self.id(), held, mark).await;
            if let Err(error) = &changed {
                tracing::warn!(node = %self.id(), %error, "the store could not note whether a job runs alone");
            }
            // A failed request may have been applied.
            self.state().record_mark(claim, mark || changed.is_err());
        }
        true
    }
}

async fn watch(node: Weak<RemoteNode>, interval: Duration) {
    while let Some(node) = node.upgrade()
        && node.update_mark().await
    {
        drop(node);
        tokio::time::sleep(interval).await;
    }
}
