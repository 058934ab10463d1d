//! How long a node's lease on one queue has been valid without a gap.

use std::time::Duration;

use tokio::time::Instant;

/// The heartbeat replies of one queue.
#[derive(Debug, Default)]
pub(super) struct LeaseHistory {
    last_reply_at: Option<Instant>,
    /// Since this time, no reply was late enough for the lease to have expired.
    valid_since: Option<Instant>,
    /// When the last late reply arrived.
    gap_ended_at: Option<Instant>,
}

/// Returns whether a reply to a request that was sent at this time still describes the jobs of the node: after a pause
/// of the process, another node may have taken them.
pub(super) fn is_recent(sent: Instant, now: Instant, lease: Duration) -> bool {
    now - sent <= lease * 2 / 3
}

impl LeaseHistory {
    /// Records a heartbeat reply. The store may have applied the heartbeat up to one interval earlier, so a reply
    /// counts as late after two thirds of a lease.
    pub(super) fn record_heartbeat(&mut self, now: Instant, lease: Duration) {
        let is_late = self.last_reply_at.map(|before| !is_recent(before, now, lease));
        if is_late != Some(false) {
            self.valid_since = Some(now);
        }
        if is_late == Some(true) {
            self.gap_ended_at = Some(now);
        }
        self.last_reply_at = Some(now);
    }

    /// Returns whether the lease has been valid since `since`, so that no other node can have taken held jobs.
    pub(super) fn is_valid_since(&self, since: Instant, now: Instant, lease: Duration) -> bool {
        self.is_current(now, lease) && self.valid_since.is_some_and(|valid| valid <= since)
    }

    /// Returns whether a message that was received at this time may have been sent before a gap. While the process was
    /// paused, messages waited in its buffers; it reads them within one heartbeat interval.
    pub(super) fn may_predate_gap(&self, received: Instant, now: Instant, lease: Duration) -> bool {
        !self.is_current(now, lease) || self.gap_ended_at.is_some_and(|ended| received < ended + lease / 3)
    }

    /// Returns whether no reply has arrived within the last heartbeat interval.
    pub(super) fn is_heartbeat_due(&self, now: Instant, lease: Duration) -> bool {
        self.last_reply_at.is_none_or(|replied| now - replied > lease / 3)
    }

    /// Returns whether the last reply is recent.
    pub(super) fn is_current(&self, now: Instant, lease: Duration) -> bool {
        self.last_reply_at.is_some_and(|replied| is_recent(replied, now, lease))
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

    #[test]
    fn message_read_shortly_after_a_gap_may_be_older() {
        let (start, lease) = (Instant::now(), Duration::from_secs(3));
        let mut history = LeaseHistory::default();
        history.record_heartbeat(start, lease);
        assert!(!history.may_predate_gap(start, start, lease), "a node that joins has no gap");
        let resumed = start + lease * 2;
        assert!(history.may_predate_gap(resumed, resumed, lease), "no heartbeat since");
        history.record_heartbeat(resumed, lease);
        assert!(history.may_predate_gap(resumed + lease / 4, resumed + lease / 4, lease));
        history.record_heartbeat(resumed + lease / 3, lease);
        let later = resumed + lease / 3;
        assert!(!history.may_predate_gap(later, later, lease));
        assert!(history.may_predate_gap(resumed, later, lease), "it has waited here");
    }
}
