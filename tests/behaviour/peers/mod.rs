//! Locks, calls and control of workers, on every store, with the real clock.

mod calls;
mod location;
mod locks;
mod worker_control;

/// Expands each case once per store.
macro_rules! on_every_store {
    ($($chapter:ident: $($case:ident)*;)*) => {
        mod on_memory { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::memory()).await }
        )*)* }
        mod on_file { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::file()).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::on(test_support::servers::redis().url())).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_valkey { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::on(test_support::servers::valkey().url())).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_cluster { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::on(test_support::servers::cluster().url())).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_sentinel { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::peers::$chapter::$case(crate::peers::location::Location::on(test_support::servers::sentinel().url())).await }
        )*)* }
    };
}

on_every_store! {
    locks:
        guard_holds_the_lock_until_dropped
        two_tasks_of_one_process_exclude_each_other
        acquire_times_out_after_its_wait
        wait_of_zero_acquires_a_free_lock
        waiters_acquire_in_order
        guard_extends_its_lock
        second_release_returns_not_held
        guard_of_a_broken_lock_is_lost
        dropped_waiter_is_removed
        unpolled_acquire_does_not_block_other_waiters
        acquire_polled_once_does_not_block_other_waiters
        acquire_polled_once_does_not_block_other_locks
        thousand_waiters_acquire_one_after_the_other
        at_most_n_guards_hold_a_lock_with_n_slots
        holder_returns_the_current_holder
        invalid_input_is_rejected_and_acquires_nothing;
    calls:
        call_reaches_exactly_one_node
        call_finds_the_live_node_among_dead_ones
        call_without_a_serving_node_fails_at_once
        call_to_all_ends_when_every_node_has_replied
        call_by_id_reaches_that_node
        call_by_connection_reaches_its_node
        connection_held_again_is_found
        dropped_connection_is_not_found
        args_and_replies_keep_types_and_order
        failing_missing_and_panicking_methods_return_errors_at_once
        slow_method_times_out
        late_and_duplicate_replies_are_dropped_and_counted
        send_does_not_wait_for_replies
        reply_in_the_same_tick_is_not_missed
        busy_method_returns_busy
        abandoned_call_keeps_its_slot_while_it_runs
        method_limits_rate_and_size
        only_registered_methods_run
        every_node_replies_to_ping_and_stats
        message_too_long_is_rejected
        message_without_the_cluster_key_is_rejected
        flood_of_malformed_messages_does_no_harm;
    worker_control:
        running_job_is_cancelled_from_another_process
        job_that_has_not_started_is_cancelled
        worker_lists_its_running_jobs
        quiet_worker_claims_nothing_until_resumed
        worker_is_stopped_by_another_node;
}
