//! How long a node's lease on one queue has been valid without a gap.

use std::time::Duration;

use tokio::time::Instant;

/// The heartbeat replies of one queue.
#[derive(Debug, Default)]
pub(super) struct LeaseHistory {
    last_reply_at: Option<Instant>,
    /// Since this time, no reply was late enough for the lease to have expired.
    valid_since: Option<Instant>,
}

impl LeaseHistory {
    /// Records a heartbeat reply. The store may have applied the heartbeat up to one interval earlier, so a reply
    /// counts as late after two thirds of a lease.
    pub(super) fn record_heartbeat(&mut self, now: Instant, lease: Duration) {
        if self.last_reply_at.is_none_or(|before| now - before > lease * 2 / 3) {
            self.valid_since = Some(now);
        }
        self.last_reply_at = Some(now);
    }

    /// Returns whether the lease has been valid since `since`, so that no other node can have taken held jobs.
    pub(super) fn is_valid_since(&self, since: Instant, now: Instant, lease: Duration) -> bool {
        let is_current = self.last_reply_at.is_some_and(|replied| now - replied <= lease * 2 / 3);
        is_current && self.valid_since.is_some_and(|valid| valid <= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_heartbeat_restarts_the_lease() {
        let (start, lease) = (Instant::now(), Duration::from_secs(3));
        let mut history = LeaseHistory::default();
        assert!(!history.is_valid_since(start, start, lease), "no heartbeat yet");
        history.record_heartbeat(start, lease);
        history.record_heartbeat(start + lease / 3, lease);
        assert!(history.is_valid_since(start, start + lease / 2, lease));
        assert!(!history.is_valid_since(start, start + lease * 2, lease), "the reply is too old");
        history.record_heartbeat(start + lease * 2, lease);
        assert!(!history.is_valid_since(start, start + lease * 2, lease), "there was a gap");
        assert!(history.is_valid_since(start + lease * 2, start + lease * 2, lease));
    }
}
