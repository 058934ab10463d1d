//! Starts the jobs that pushes have delivered to this node.

use std::time::{Duration, SystemTime};

use crate::worker::attempts::Attempts;
use crate::worker::deliveries::DeliveredJob;
use crate::worker::end_reason::EndReason;
use crate::worker::phase::Phase;
use crate::worker::queues::WorkerQueues;

/// Starts delivered jobs, or releases them if there is no free slot.
pub(super) fn start_delivered(
    phase: Phase,
    queues: &mut WorkerQueues,
    attempts: &mut Attempts,
    store_now: impl Fn() -> SystemTime,
) {
    for index in 0..queues.len() {
        for delivered in queues[index].take_delivered() {
            start_delivered_job(phase, queues, attempts, index, delivered, &store_now);
        }
    }
}

fn start_delivered_job(
    phase: Phase,
    queues: &mut WorkerQueues,
    attempts: &mut Attempts,
    index: usize,
    delivered: DeliveredJob,
    store_now: &impl Fn() -> SystemTime,
) {
    if queues.may_have_lost(index, &delivered) {
        // If this node still holds the job, the resync starts it.
        return queues[index].request_resync();
    }
    let (queue, held) = (&queues[index], &delivered.held);
    if queue.may_be_duplicate(held) && attempts.is_known_claim(index, queue, held) {
        return;
    }
    let has_room = queues.free_slots() > 0 && queue.has_room() && phase != Phase::Quiet && attempts.claim_limit() > 0;
    let queue = &mut queues[index];
    if queue.must_delay_delivery(has_room) {
        return queue.return_delivered(delivered);
    }
    let held = delivered.held;
    queue.record_fence(held.fence);
    match has_room {
        true => attempts.start_or_release(phase, index, queue, held, store_now()),
        false => queue.release(held, Duration::ZERO, EndReason::NoFreeSlot),
    }
}
