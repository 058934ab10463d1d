//! Transfers between every two kinds of stores: every job arrives unchanged and exactly once, even after kills.

mod arrivals;
mod cron_rules;
mod errors;
mod killed;
mod stores;

/// Expands each case once per pair of stores, so that a failure reads `file_to_redis::everything_arrives_unchanged`.
macro_rules! transfers {
    ($($chapter:ident: $($case:ident)*;)*) => {
        transfers!(@pair cfg(all()), file_to_file File File $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        transfers!(@pair ignore = "needs servers: ./check faults", file_to_redis File Redis $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        transfers!(@pair ignore = "needs servers: ./check faults", redis_to_file Redis File $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        transfers!(@pair ignore = "needs servers: ./check faults", redis_to_cluster Redis Cluster $($chapter: $($case)*;)*);
    };
    (@pair $attribute:meta, $pair:ident $from:ident $to:ident $($chapter:ident: $($case:ident)*;)*) => {
        mod $pair {
            use crate::transfer::stores::{StoreKind, StorePair};
            $($(
                #[tokio::test(flavor = "multi_thread")]
                #[$attribute]
                async fn $case() { crate::transfer::$chapter::$case(StorePair::new(StoreKind::$from, StoreKind::$to)).await }
            )*)*
        }
    };
}

transfers! {
    arrivals:
        everything_arrives_unchanged
        only_named_queues_are_transferred
        paused_queue_arrives_paused
        capacity_is_transferred
        large_jobs_are_transferred_in_small_batches
        removed_jobs_do_not_disturb_a_transfer
        jobs_pushed_during_the_transfer_are_transferred
        transfer_waits_for_running_jobs
        jobs_held_by_a_dead_node_are_transferred
        job_with_taken_key_arrives_dead
        transfer_there_and_back_keeps_everything;
    killed:
        transfer_killed_at_every_operation_continues
        transfer_killed_twice_continues
        transfer_killed_at_every_operation_can_be_reversed
        two_concurrent_transfers_move_each_job_once;
    cron_rules:
        rules_arrive_with_their_ticks
        rules_exist_once_after_a_kill_at_every_operation
        existing_rule_takes_over_a_pending_tick;
    errors:
        transfer_to_the_same_store_is_rejected
        unknown_queue_is_rejected
        interrupted_transfer_only_continues_to_its_target
        moving_queue_rejects_transfers_into_it
        transfer_can_be_abandoned;
}

// The other cases need priorities or unique keys; the tests with the real Sidekiq cover the rest.
#[cfg(feature = "compat")]
transfers!(@pair ignore = "needs servers: ./check faults", sidekiq_to_file Sidekiq File
    killed:
        transfer_killed_at_every_operation_continues
        transfer_killed_twice_continues
        transfer_killed_at_every_operation_can_be_reversed
        two_concurrent_transfers_move_each_job_once;
    arrivals:
        jobs_pushed_during_the_transfer_are_transferred
        transfer_waits_for_running_jobs
        jobs_held_by_a_dead_node_are_transferred;
);
