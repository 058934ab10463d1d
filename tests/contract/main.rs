//! The contract of every store: each case is a function that takes a store and runs once per store.

mod access;
mod cancel;
mod capacity;
mod claim;
mod clock_jumps;
mod completions;
mod cron;
mod dead_groups;
mod deferred;
mod delivery;
mod edit;
mod filter;
mod find_ids;
mod history;
mod job_index;
mod lease;
mod lock_waiters;
mod locks;
mod many_waiters;
mod model;
mod peers;
mod progress;
mod push;
mod query;
mod queues;
mod settle;
#[cfg(feature = "compat")]
mod sidekiq_exceptions;
mod sort;
mod test_store;
mod totals;
mod transfer;
mod unique;
mod wake;
mod why;

/// Expands each case once per store, so that a failure reads `on_file::settle_after_lost_lease_is_rejected`.
macro_rules! contract {
    ($($chapter:ident: $($case:ident)*;)*) => {
        mod on_memory { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::in_memory().await).await }
        )*)* }
        mod on_file { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::in_file().await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis { $($(
            #[tokio::test]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::on(test_support::servers::redis().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_valkey { $($(
            #[tokio::test]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::on(test_support::servers::valkey().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_cluster { $($(
            #[tokio::test]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::on(test_support::servers::cluster().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_sentinel { $($(
            #[tokio::test]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() { crate::$chapter::$case(crate::test_store::TestStore::on(test_support::servers::sentinel().url()).await).await }
        )*)* }
        #[cfg(feature = "compat")]
        mod on_sidekiq { $($(
            #[tokio::test]
            #[ignore = "needs servers: ./check stores"]
            async fn $case() {
                if crate::sidekiq_exceptions::on_sidekiq(stringify!($case)) {
                    return;
                }
                crate::$chapter::$case(crate::test_store::TestStore::on_sidekiq(test_support::servers::redis().url()).await).await
            }
        )*)* }
        #[cfg(feature = "compat")]
        const CASES: &[&str] = &[$($(stringify!($case)),*),*];
    };
}

contract! {
    cancel:
        waiting_job_is_cancelled_at_once
        cancelled_jobs_are_listed_and_pruned
        cancelled_job_can_be_rescheduled
        cancelled_running_job_ends_with_its_attempt
        cancelled_job_that_succeeds_is_done
        cancelled_job_of_dead_node_does_not_run_again
        holder_of_cancelled_job_is_notified
        caller_that_waits_sees_the_cancel
        more_cancels_than_a_heartbeat_lists_are_all_delivered
        end_of_cancelled_job_is_counted_as_cancelled
        pending_cancel_is_visible;
    access:
        token_is_stored_by_name_and_never_in_clear
        token_expires_after_its_lifetime
        ids_derived_with_the_secret_are_the_same_for_all_processes
        audit_keeps_the_newest_entries_in_order
        actor_displaces_only_its_own_audit_entries
        largest_actor_loses_audit_entries_beyond_the_total
        new_audit_entry_stays_if_every_actor_has_one;
    delivery:
        delivered_job_is_held_as_if_claimed
        fences_grow_across_deliveries_and_claims
        node_is_delivered_one_job_per_claim
        delivered_job_is_found_after_lost_notification
        job_delivered_to_dead_node_is_taken_back
        job_of_unknown_kind_is_not_delivered
        delivered_job_is_counted_like_any_other
        push_into_full_queue_delivers_nothing
        delivery_does_not_overtake_due_jobs
        paused_queue_delivers_nothing
        node_with_expired_lease_is_delivered_nothing;
    deferred:
        node_with_handler_adopts_deferred_job_early
        node_with_thousands_of_kinds_adopts_deferred_jobs
        adopted_job_is_due_when_adopted
        kind_listed_twice_yields_a_deferred_job_once
        adopted_job_of_dead_node_is_taken_back
        job_released_for_another_reason_is_not_adopted
        jobs_deferred_in_two_queues_are_found_in_both
        urgent_jobs_precede_deferred_jobs
        deferred_hint_arrives_with_next_heartbeat_if_not_notified
        deferred_jobs_beyond_the_limit_wait_until_due
        deferred_job_still_falls_due
        node_that_runs_any_kind_adopts_deferred_jobs
        deferred_job_of_an_excluded_kind_is_not_adopted
        adopted_job_keeps_its_position
        retry_is_not_treated_as_deferred
        rescheduled_job_is_not_treated_as_deferred
        paused_queue_keeps_deferred_jobs
        waiting_node_is_notified_of_deferred_jobs
        more_deferred_jobs_than_slots_are_adopted_in_batches
        nodes_with_different_kinds_share_a_queue
        unreadable_job_is_not_passed_between_nodes;
    push:
        pushed_job_keeps_every_field
        each_job_of_a_batch_keeps_its_queue_due_and_priority
        repeated_push_changes_nothing_in_any_state
        id_is_remembered_after_its_job_is_removed
        id_is_forgotten_some_time_after_its_job_is_removed
        duplicate_id_in_one_push_is_one_job
        same_id_in_two_queues_is_two_jobs
        args_survive_byte_for_byte
        due_in_the_past_means_now;
    unique:
        push_with_taken_key_keeps_the_existing_job
        replace_substitutes_a_waiting_job
        running_job_is_not_replaced
        key_is_free_after_its_job_ends
        key_stays_taken_across_a_retry
        same_key_in_two_queues_does_not_conflict
        same_key_of_two_kinds_does_not_conflict
        key_of_the_whole_queue_is_shared_by_kinds
        first_of_two_jobs_with_one_key_in_one_push_wins
        first_of_two_replacements_in_one_push_wins
        key_conflict_does_not_use_up_the_id
        replaced_id_is_remembered
        dead_job_with_taken_key_stays_dead
        rejected_ack_frees_no_key;
    claim:
        job_is_not_claimed_before_due
        claim_orders_by_priority_then_waiting_time
        one_claim_takes_retried_and_new_jobs
        retried_job_goes_to_the_tail
        released_job_goes_to_the_head
        due_job_goes_behind_ready_jobs
        claim_takes_at_most_max_jobs
        claim_takes_only_from_its_queue
        largest_jobs_are_claimed_in_any_number
        claim_with_a_limit_of_bytes_leaves_further_jobs_in_place
        resync_with_a_limit_of_bytes_has_no_args
        paused_queue_yields_no_jobs
        queue_can_be_paused_before_its_first_job
        fences_grow_with_every_claim
        claim_with_lost_reply_is_returned_again
        many_due_jobs_are_promoted_in_bounded_batches
        empty_claim_returns_when_to_look_again
        claim_finds_jobs_behind_many_removed_ones
        rescheduled_job_is_distinguished_from_its_stale_entry;
    settle:
        settle_after_lost_lease_is_rejected
        repeated_ack_counts_once
        settle_by_another_node_is_rejected
        settle_with_old_fence_of_same_node_is_rejected
        retry_counts_an_attempt_and_keeps_the_error
        release_does_not_count_an_attempt
        release_can_delay_a_job
        buried_job_is_dead_and_keeps_its_failures
        only_the_newest_failures_are_kept
        every_attempt_of_a_kept_job_is_recorded
        run_of_an_ack_is_recorded_only_with_its_start
        attempt_at_a_cancelled_job_is_recorded
        done_job_is_kept_for_its_keep_time
        done_jobs_beyond_the_maximum_are_pruned
        rejected_outcome_does_not_affect_others_in_the_batch;
    lease:
        node_with_heartbeats_keeps_its_jobs
        silent_node_loses_its_jobs_after_its_lease
        node_that_slept_itself_takes_nothing_back
        taken_back_job_goes_to_the_head_and_counts_a_crash
        crash_count_survives_a_reschedule
        third_crash_counts_only_for_a_job_that_ran_alone
        mark_of_a_lone_job_ends_with_its_claim
        take_back_is_bounded
        few_jobs_of_dead_node_are_found_among_many
        returning_node_keeps_jobs_not_taken_back
        jobs_of_a_node_that_left_are_taken_back_at_once
        heartbeat_returns_the_jobs_the_node_holds;
    clock_jumps:
        jump_of_the_clock_does_not_delay_take_back
        node_that_dies_while_the_clock_is_wrong_loses_its_jobs
        jump_of_the_clock_kills_no_node_with_heartbeats
        survivor_with_an_expired_lease_takes_nothing_back
        jump_of_the_clock_does_not_stop_cron_rules
        ticks_are_planned_again_after_the_clock_was_set_back
        removed_ids_are_forgotten_after_the_clock_was_ahead
        lock_of_dead_holder_is_free_after_the_clock_was_ahead
        dead_waiter_does_not_block_a_lock_after_the_clock_was_ahead
        totals_are_complete_after_the_clock_was_wrong;
    query:
        get_returns_a_job_in_every_state
        unknown_job_is_not_found
        list_filters_by_state_queue_and_kind
        running_jobs_are_listed_while_others_end
        pages_contain_every_job_once
        list_without_limit_is_one_page
        invalid_cursor_is_rejected
        removed_job_never_runs
        running_job_cannot_be_removed_or_rescheduled
        scheduled_job_can_be_rescheduled_to_now
        ready_job_can_be_rescheduled_to_later
        rescheduled_dead_job_starts_over
        counts_are_by_queue_and_state
        nodes_are_listed_with_their_state
        expired_node_is_listed_again_after_a_heartbeat;
    sort:
        ended_jobs_are_sorted_across_queues
        scheduled_jobs_are_sorted_across_queues;
    find_ids:
        job_is_found_by_the_beginning_or_end_of_its_id
        part_of_an_id_names_one_job_or_none;
    filter:
        filter_selects_by_every_field
        filter_by_time_uses_due_end_or_push_time
        indexed_filter_finds_scheduled_and_dead_jobs
        page_returns_the_number_of_jobs_scanned
        unchanged_job_is_listed_while_others_move
        unchanged_ready_job_is_listed_while_others_are_claimed;
    job_index:
        index_entries_follow_a_job_through_its_states
        pruned_job_leaves_no_index_entry
        indexed_lookup_scans_no_other_jobs
        done_jobs_are_found_by_end_time;
    history:
        history_counts_by_minute_and_queue
        history_counts_lateness_and_duration
        rejected_settle_is_not_counted
        mixed_settle_counts_only_recorded_outcomes
        history_is_kept_for_a_day
        each_minute_is_in_one_hour
        hours_are_kept_for_30_days
        removed_queue_leaves_no_hours
        counts_follow_every_state_change;
    capacity:
        full_queue_rejects_the_whole_push
        capacity_limits_bytes
        ended_jobs_free_capacity
        repeated_push_into_full_queue_is_accepted
        capacity_can_be_set_before_the_first_job_and_removed;
    queues:
        queue_without_jobs_is_removed_with_its_settings
        queue_with_cron_rule_is_not_removed
        queue_with_a_live_worker_is_not_removed
        unused_queue_is_removed_after_a_day
        resume_creates_no_queue;
    edit:
        args_of_a_waiting_job_can_be_changed
        running_job_cannot_be_edited
        changed_priority_changes_the_position
        bulk_edit_changes_only_unchanged_jobs;
    progress:
        progress_and_log_are_kept_with_the_job
        progress_from_another_node_is_rejected
        log_keeps_the_newest_lines
        result_is_kept_with_a_done_job
        progress_and_log_are_removed_with_the_job;
    dead_groups:
        dead_jobs_are_grouped_by_kind_and_error
        group_shrinks_as_its_jobs_leave
        group_selects_its_jobs_as_a_filter;
    transfer:
        moving_queue_yields_nothing_paused_or_not
        moving_queue_rejects_changes_to_its_jobs
        last_node_to_mark_a_transfer_wins
        moving_queue_takes_back_jobs_of_dead_nodes
        end_of_transfer_wakes_a_node
        list_includes_failures_on_request
        transferred_jobs_arrive_unchanged
        transferred_jobs_can_be_claimed_and_settled
        transferred_ready_jobs_go_behind_existing_ones
        transferred_jobs_wake_a_node
        transfer_leaves_out_known_ids
        taken_key_rejects_the_whole_transfer_batch
        transferred_ended_job_takes_no_key
        transfer_in_with_another_checkpoint_is_rejected
        repeated_transfer_batch_changes_nothing
        fences_grow_across_a_transfer
        transfer_out_by_another_node_is_rejected
        reserved_jobs_without_copy_return_to_their_places
        transferred_job_leaves_no_trace
        running_job_is_not_transferred
        job_pushed_again_is_not_transferred
        transferred_jobs_can_return
        rescheduled_job_can_return;
    cron:
        rule_is_stored_unchanged
        rule_update_requires_the_version_read
        removed_rule_is_gone
        rules_are_listed_by_pages_and_by_queue
        claim_returns_the_next_tick
        new_rule_wakes_a_node_of_its_queue
        tick_fires_once_for_concurrent_nodes
        tick_does_not_fire_early
        firing_with_an_outdated_rule_is_rejected
        firing_a_tick_again_is_rejected
        paused_rule_is_never_due
        paused_queue_receives_ticks
        moving_queue_fires_no_ticks
        fired_job_can_be_claimed_at_once
        tick_with_jitter_is_due_later
        several_ticks_of_a_rule_fire_together
        skipped_tick_pushes_nothing
        job_of_a_tick_has_a_derived_id
        overlap_skip_keeps_the_unfinished_job
        overlap_queue_waits_for_the_running_job
        overlap_replace_waits_for_the_unfinished_job
        waiting_tick_is_checked_again_later
        rule_moved_to_another_queue_keeps_its_tick
        many_rules_fire_in_bounded_batches
        earliest_tick_fires_first
        args_of_a_rule_survive_byte_for_byte;
    wake:
        push_wakes_a_waiting_node
        push_wakes_only_one_node
        push_into_another_queue_wakes_no_node
        push_wakes_only_if_due_earlier
        resume_wakes_a_waiting_node
        claim_that_leaves_jobs_wakes_another_node
        node_that_stops_waiting_passes_its_wake_on
        node_that_fills_up_passes_a_near_due_time_on
        node_that_stops_waiting_passes_a_near_due_time_on;
    locks:
        free_lock_is_acquired_with_a_fence
        held_lock_is_refused
        one_of_many_concurrent_requests_gets_the_lock
        two_owners_of_one_node_exclude_each_other
        fences_grow_with_every_acquisition
        lock_expires_after_its_ttl_in_milliseconds
        repeated_request_returns_the_same_hold
        extend_by_another_owner_is_rejected
        expired_lock_is_not_extended
        refused_request_does_not_extend_the_lock
        repeated_release_counts_once
        release_after_expiry_does_not_free_the_next_owners_lock
        release_after_expiry_returns_not_held
        lock_of_a_silent_node_lasts_until_its_ttl
        node_that_withdraws_keeps_its_locks
        lock_extended_by_another_node_ends_by_ttl_alone
        every_lock_has_an_expiry
        at_most_n_owners_hold_n_slots_with_own_fences
        freed_slot_is_acquired_again
        each_slot_has_its_own_expiry
        hold_is_found_in_any_slot
        extend_many_extends_all_holds
        locks_are_listed
        pages_contain_every_lock_once
        similar_lock_names_do_not_collide
        broken_lock_is_free
        breaking_one_hold_keeps_the_others;
    lock_waiters:
        waiters_acquire_in_order_of_arrival
        expired_lock_goes_to_the_first_waiter
        request_without_wait_does_not_overtake_waiters
        waiter_keeps_its_position_on_repeated_request
        refused_request_for_a_free_lock_notifies_the_first_waiter
        release_notifies_the_first_waiter
        first_of_two_waiters_of_one_node_is_notified
        rejected_release_notifies_no_waiter
        waiter_of_a_dead_node_is_skipped
        waiter_of_a_withdrawn_node_is_skipped
        waiter_that_dies_at_its_turn_does_not_block_the_lock
        waiter_that_gives_up_passes_its_turn_on
        cancelled_wait_keeps_the_hold
        waiters_ahead_counts_only_live_waiters
        refused_request_returns_when_to_look_again
        announce_returns_the_next_waiter
        announce_returns_lost_waiters
        two_free_slots_go_to_the_first_two_waiters
        break_lock_ends_all_holds_and_notifies_the_next_waiter
        breaking_one_hold_notifies_one_waiter
        waiters_of_different_locks_are_separate
        lock_with_many_waiters_is_handed_on_in_bounded_batches;
    totals:
        totals_grow_even_after_history_is_pruned
        totals_include_days_without_reads
        totals_are_kept_per_queue
        kinds_are_counted_per_hour_for_30_days
        kinds_are_counted_per_minute_for_two_hours
        kinds_beyond_the_maximum_are_counted_together
        worker_reports_outcomes_by_kind
        workers_that_drain_prune_done_jobs
        counts_include_waiting_time_of_the_first_ready_job
        first_ready_job_is_found_by_its_due_time;
    completions:
        subscriber_is_notified_of_every_kind_of_completion
        jobs_completed_in_one_settle_are_all_notified
        completions_of_other_queues_are_not_notified
        completed_among_returns_finished_and_unknown_jobs
        wait_returns_the_job_as_it_ended
        wait_does_not_end_at_a_retry;
    peers:
        message_reaches_only_its_node
        broadcast_reaches_every_subscriber_and_the_sender
        message_to_an_unknown_node_reaches_none
        messages_arrive_in_order
        messages_survive_byte_for_byte
        one_process_receives_for_several_nodes
        withdrawn_node_receives_nothing_and_is_not_found
        connections_are_found_until_their_node_expires
        many_connections_are_registered_in_one_operation
        moved_connection_belongs_to_its_new_node
        moved_connection_is_not_reclaimed_by_its_old_node
        nodes_are_listed_by_method
        listen_only_peer_receives_messages_but_is_not_listed
        peer_with_expired_lease_is_not_found
        peer_chooses_the_length_of_its_lease
        peers_are_listed_among_the_nodes
        worker_that_leaves_stays_a_peer
        store_returns_its_time;
    why:
        why_names_an_unknown_job
        why_names_a_later_due_time
        why_names_a_paused_queue
        why_names_a_moving_queue
        why_names_a_queue_without_workers
        why_names_a_kind_without_handler
        why_names_a_deferred_kind_without_handler
        why_names_busy_slots
        why_names_quiet_nodes
        why_names_a_job_that_crashed_several_nodes
        why_names_the_node_that_holds_a_job
        why_counts_the_jobs_that_a_crash_suspect_waits_for
        why_names_a_silent_node
        why_names_a_backoff
        why_names_a_done_job
        why_names_a_dead_job
        why_names_a_dead_job_with_taken_key
        why_names_a_job_that_comes_next
        why_uses_the_kinds_a_worker_reports;
}
