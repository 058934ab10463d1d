//! The slots of a queue, and how many jobs it claims.

use super::*;
use crate::worker::claim_state::ClaimPurpose;

#[test]
fn large_claim_is_split_in_two_and_overlapped() {
    let now = clock::monotonic_now();
    let half = ClaimPurpose::TakeJobs(2 * CLAIM_AHEAD_MIN, None);
    let mut queue = QueueState::new("q".into(), 4 * CLAIM_AHEAD_MIN);
    assert_eq!((queue.jobs_to_claim(now), queue.claim_size_max()), (4 * CLAIM_AHEAD_MIN, 2 * CLAIM_AHEAD_MIN));
    queue.claims.record_sent(half);
    assert_eq!(queue.jobs_to_claim(now), 0, "the first claim may not be full");
    queue.claims.record_reply(half);
    queue.claims.record_claimed(true, false, None);
    queue.claims.record_sent(half);
    assert_eq!(queue.jobs_to_claim(now), 2 * CLAIM_AHEAD_MIN);
    queue.claims.request_resync();
    assert_eq!(queue.jobs_to_claim(now), 0, "a resync waits until no claim is in flight");
    queue.claims.record_reply(half);
    assert_eq!(queue.jobs_to_claim(now), 0, "no claim before the resync");
    let few = QueueState::new("q".into(), CLAIM_AHEAD_MIN);
    assert_eq!((few.jobs_to_claim(now), few.claim_size_max()), (CLAIM_AHEAD_MIN, CLAIM_AHEAD_MIN));
}

#[test]
fn new_claim_waits_for_room() {
    let now = clock::monotonic_now();
    let mut queue = QueueState::new("q".into(), 1);
    queue.record_started();
    assert_eq!((queue.jobs_to_claim(now), queue.is_full(), queue.has_room()), (0, true, false));
    queue.record_finished();
    assert_eq!(queue.jobs_to_claim(now), 1);
}
