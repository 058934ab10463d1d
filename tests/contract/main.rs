//! One suite, every store: each case is a plain function that takes a store, and runs once per store.

mod claim;
mod hall;
mod hand;
mod lease;
mod line;
mod lock;
mod look;
mod moving;
mod push;
#[cfg(feature = "redis")]
#[path = "../support/servers/mod.rs"]
mod servers;
mod settle;
mod support;
mod unique;
mod wake;

/// Expands each case once per store, so that a failure reads `on_file::late_ack_is_refused`.
macro_rules! contract {
    ($($chapter:ident: $($case:ident)*;)*) => {
        mod on_memory { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::in_memory().await).await }
        )*)* }
        mod on_file { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::in_file().await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::on(crate::servers::redis().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_valkey { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::on(crate::servers::valkey().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_cluster { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::on(crate::servers::cluster().url()).await).await }
        )*)* }
        #[cfg(feature = "redis")]
        mod on_redis_sentinel { $($(
            #[tokio::test]
            async fn $case() { crate::$chapter::$case(crate::support::TestStore::on(crate::servers::sentinel().url()).await).await }
        )*)* }
    };
}

contract! {
    hand:
        a_job_in_the_hands_of_a_node_is_held_as_if_claimed
        fences_grow_from_hand_to_claim_to_hand
        a_node_is_given_one_job_for_each_claim
        a_job_whose_word_was_lost_is_found
        a_job_in_the_hands_of_a_dead_node_is_taken_back
        nothing_is_given_to_a_node_in_a_paused_queue
        nothing_is_given_to_a_node_whose_lease_is_over;
    push:
        a_pushed_job_is_there_with_all_it_was_given
        each_job_goes_by_its_own_queue_due_and_priority
        an_id_pushed_again_changes_nothing_in_any_state
        an_id_is_remembered_when_its_job_is_gone
        an_id_is_forgotten_some_time_after_its_job_is_gone
        an_id_twice_in_one_push_is_one_job
        the_same_id_in_two_queues_is_two_jobs
        args_survive_byte_for_byte
        a_moment_that_is_past_means_now;
    unique:
        a_taken_key_keeps_the_old_job
        replace_takes_the_place_of_a_waiting_job
        a_running_job_is_not_replaced
        a_key_is_free_once_its_job_has_ended
        a_key_stays_taken_over_a_retry
        keys_belong_to_their_queue
        of_two_with_one_key_in_one_push_the_first_wins
        of_two_replacements_in_one_push_the_first_wins
        a_later_job_with_the_same_id_is_not_in_the_way
        a_replaced_id_is_remembered
        a_dead_job_whose_key_is_taken_stays_dead
        a_refused_ack_frees_no_key;
    claim:
        nothing_is_claimed_before_it_is_due
        urgent_jobs_go_first_then_those_that_waited_longest
        a_retried_job_goes_to_the_tail
        a_released_job_goes_to_the_head
        a_job_that_falls_due_goes_behind_the_ready_ones
        no_more_than_asked_for
        only_from_its_own_queue
        a_paused_queue_gives_nothing
        a_queue_can_be_paused_before_its_first_job
        fences_grow
        a_lost_answer_is_given_again
        a_flood_of_due_jobs_is_moved_in_bounded_steps
        an_empty_answer_says_when_to_look_again
        many_removed_jobs_hide_none
        a_job_that_comes_again_is_told_from_what_it_left_behind;
    settle:
        late_ack_is_refused
        an_ack_counts_once
        only_the_holder_may_settle
        an_old_fence_of_the_same_node_is_refused
        a_retry_counts_and_keeps_its_error
        a_release_does_not_count
        a_released_job_can_wait
        a_buried_job_is_dead_with_its_history
        only_the_newest_failures_are_kept
        a_done_job_is_kept_as_long_as_it_was_told
        done_jobs_beyond_a_number_are_pruned
        one_refused_outcome_does_not_harm_the_others;
    lease:
        a_beating_node_is_never_robbed
        a_silent_node_loses_its_jobs_when_its_lease_ends
        who_was_asleep_itself_robs_nobody
        taken_back_jobs_go_to_the_head_and_count_a_crash
        take_back_is_bounded
        few_jobs_of_a_dead_node_are_found_among_many
        a_node_that_returns_keeps_what_was_not_taken
        a_node_that_left_can_be_taken_from_at_once
        a_beat_tells_what_the_node_holds;
    look:
        a_job_can_be_followed_through_its_life
        a_job_that_never_was_is_not_found
        lists_go_by_state_queue_and_kind
        pages_show_every_job_once
        a_list_without_a_limit_is_a_page
        a_wrong_cursor_is_refused
        a_removed_job_never_runs
        a_running_job_cannot_be_removed_or_moved
        a_scheduled_job_can_be_moved_to_now
        a_ready_job_can_be_moved_to_later
        a_dead_job_starts_over
        counts_are_by_queue_and_state
        nodes_are_known
        a_node_that_was_away_is_known_again;
    moving:
        a_moving_queue_gives_nothing_whatever_pause_says
        a_moving_queue_keeps_its_jobs_as_they_are
        the_last_mover_counts
        what_a_dead_node_held_is_taken_back_in_a_moving_queue
        the_end_of_a_move_wakes
        a_list_has_failures_if_asked
        jobs_arrive_as_they_are
        arrived_jobs_live_on
        ready_jobs_arrive_behind_those_that_are_there
        arriving_jobs_wake
        an_id_that_is_known_is_left_out
        a_taken_key_keeps_the_whole_batch_out
        an_ended_job_takes_no_key
        only_who_knows_the_marker_moves_in
        a_batch_said_again_changes_nothing
        fences_grow_over_a_move
        only_the_mover_moves_out
        a_job_moves_out_without_a_trace
        a_running_job_stays
        a_job_pushed_again_stays
        jobs_can_come_back
        a_job_that_changed_its_place_can_come_back;
    wake:
        a_push_wakes_a_node_that_waits
        a_push_wakes_one_node_only
        a_push_into_another_queue_wakes_nobody
        an_earlier_due_moment_wakes_a_later_one_does_not
        resume_wakes
        a_claim_that_leaves_jobs_behind_wakes_another
        a_node_that_steps_back_is_not_woken_and_passes_the_wake_on;
    lock:
        a_free_lock_is_taken_with_a_fence
        a_taken_lock_is_refused
        of_many_who_ask_at_once_one_gets_it
        two_owners_of_one_node_exclude_each_other
        fences_grow_with_every_acquisition
        a_hold_ends_with_its_ttl_in_milliseconds
        an_ask_repeated_is_the_same_hold
        only_the_owner_extends
        an_ended_hold_is_not_extended
        the_loser_does_not_prolong_the_winners_hold
        a_release_counts_once
        an_expired_holders_release_does_not_free_the_next_owners_lock
        an_expired_holders_release_says_not_held
        a_silent_nodes_hold_lasts_until_its_ttl
        a_node_that_departs_keeps_its_locks
        no_lock_is_left_without_an_end
        at_most_n_hold_it_each_with_its_slot_and_fence
        a_freed_slot_is_given_again
        each_slot_has_its_own_end
        extend_many_at_once
        locks_are_listed
        pages_show_every_lock_once
        names_do_not_run_into_each_other
        a_broken_lock_is_nobodys;
    line:
        first_come_first_served
        an_ended_hold_goes_to_the_first_in_line
        an_ask_that_does_not_wait_does_not_jump_the_line
        a_place_is_kept_when_the_ask_is_repeated
        a_release_tells_the_first_in_line
        of_two_owners_of_a_node_the_first_in_line_is_told
        a_refused_release_tells_nobody
        a_dead_nodes_place_is_skipped
        a_departed_nodes_place_is_skipped
        who_dies_at_its_turn_does_not_block_the_lock
        a_waiter_that_gives_up_passes_its_turn_on
        ahead_counts_those_who_live
        ends_says_when_to_look
        attend_tells_whose_turn_it_is
        two_free_slots_go_to_the_first_two_in_line
        break_ends_all_holds_and_tells_the_next
        lines_of_different_locks_are_apart
        a_lock_with_a_long_line_is_handed_on_in_bounded_steps;
    hall:
        a_message_reaches_the_node_it_is_for_and_no_other
        a_message_to_all_reaches_everyone_who_listens_also_the_sender
        a_message_to_nobody_reaches_none
        order_of_messages_is_kept
        bytes_survive
        one_process_can_hear_for_several_nodes
        a_node_that_departed_hears_nothing_and_is_not_found
        connections_are_found_until_their_node_is_gone
        many_connections_are_noted_in_one_step
        a_connection_that_moves_belongs_to_its_new_node
        answering_lists_nodes_by_method
        a_quiet_guest_hears_but_is_not_found
        a_guest_whose_lease_ended_is_not_found
        a_lease_is_as_long_as_the_guest_says
        guests_are_among_the_nodes
        a_worker_that_leaves_stays_in_the_hall
        the_store_tells_its_time;
}
