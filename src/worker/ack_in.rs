//! Attempts whose handler acked the job in a transaction of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::TransactionStore;
use crate::worker::ctx::Ctx;

/// Whether the handler has called [`Ctx::ack_in`]. Only the store knows whether it has committed.
#[derive(Debug, Default)]
pub(crate) struct AckIn {
    was_called: AtomicBool,
}

impl AckIn {
    /// Records a call, before it changes anything.
    pub(crate) fn mark_called(&self) {
        self.was_called.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_called(&self) -> bool {
        self.was_called.load(Ordering::SeqCst)
    }
}

impl Ctx {
    /// Returns whether the job was acked in a transaction that is committed. Its handler may have failed afterwards.
    pub(crate) async fn has_committed_ack(&self) -> bool {
        let held = self.attempt_state.held.clone();
        match self.worker.duly.store.is_acked(held).await {
            Ok(acked) => {
                if acked {
                    tracing::debug!("acked in a transaction of the handler");
                }
                acked
            }
            // The store acks the job nevertheless; only events and metrics of this process differ.
            Err(error) => {
                tracing::warn!(%error, "cannot read whether the job was acked in a transaction");
                false
            }
        }
    }
}
