//! Locks and calls as programs use them, on every store, by the real clock.

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
        a_guard_holds_the_lock_until_it_is_dropped
        two_tasks_of_one_process_exclude_each_other
        a_wait_is_kept
        a_wait_of_zero_takes_what_is_free
        who_waits_is_served_in_order
        a_guard_extends_itself
        a_second_release_says_not_held
        a_broken_lock_is_lost
        a_waiter_that_is_dropped_leaves_the_line
        a_future_that_nobody_polls_does_not_hold_up_the_line
        a_future_that_was_polled_once_does_not_hold_up_the_line
        a_future_that_was_polled_once_does_not_hold_up_other_locks
        a_thousand_waiters_get_it_one_after_the_other
        at_most_n_hold_a_lock_with_n_slots
        checked_tells_who_holds_it
        bad_input_is_refused_and_takes_nothing;
    calls:
        any_one_node_answers
        the_one_that_lives_is_found_among_the_dead
        nobody_serves_this_is_told_at_once
        all_nodes_answer_and_the_replies_end_early
        a_node_is_called_by_its_id
        the_node_that_holds_a_connection_is_called
        a_connection_that_is_dropped_and_held_again_is_found
        a_connection_that_is_not_held_there_any_more_is_not_found
        types_and_order_survive
        a_failing_a_missing_and_a_panicking_method_give_errors_at_once
        a_slow_method_times_out
        late_and_doubled_replies_are_dropped_and_counted
        forget_does_not_wait
        an_answer_in_the_same_tick_is_not_missed
        a_busy_method_says_so
        a_call_that_nobody_waits_for_any_more_takes_its_room_while_it_runs
        a_method_has_a_rate_and_a_size
        only_registered_methods_run
        every_node_can_be_pinged_and_asked_for_its_stats
        a_message_that_is_too_long_is_refused
        a_key_keeps_strangers_out
        a_flood_of_rubbish_harms_nobody;
    worker_control:
        a_running_job_is_cancelled_from_another_process
        what_is_not_running_cannot_be_cancelled
        a_worker_tells_what_it_runs
        a_quiet_worker_claims_no_more_until_it_is_told
        a_worker_can_be_stopped_by_another_node;
}
