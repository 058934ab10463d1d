//! One suite, every store: each case is a plain function that takes a store, and runs once per store.

mod access;
mod capacity;
mod claim;
mod completions;
mod cron;
mod dead_groups;
mod deferred;
mod delivery;
mod edit;
mod filter;
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
mod settle;
#[cfg(feature = "redis")]
mod sidekiq_exceptions;
mod test_store;
mod totals;
mod transfer;
mod unique;
mod wake;
mod why;

/// Expands each case once per store, so that a failure reads `on_file::late_ack_is_refused`.
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
        #[cfg(feature = "redis")]
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
        #[cfg(feature = "redis")]
        const CASES: &[&str] = &[$($(stringify!($case)),*),*];
    };
}

contract! {
    access:
        a_token_is_kept_by_its_name_and_never_itself
        a_token_ends_when_its_time_is_over
        the_newest_decisions_are_kept_in_their_order;
    delivery:
        a_job_in_the_hands_of_a_node_is_held_as_if_claimed
        fences_grow_from_hand_to_claim_to_hand
        a_node_is_given_one_job_for_each_claim
        a_job_whose_word_was_lost_is_found
        a_job_in_the_hands_of_a_dead_node_is_taken_back
        a_node_is_given_no_kind_that_it_does_not_know
        a_job_that_is_given_counts_like_any_other
        a_full_queue_gives_nothing_away
        what_has_fallen_due_is_not_overtaken
        nothing_is_given_to_a_node_in_a_paused_queue
        nothing_is_given_to_a_node_whose_lease_is_over;
    deferred:
        who_knows_a_kind_need_not_wait_for_what_others_put_off
        what_is_picked_up_is_due_at_that_moment
        who_names_a_kind_twice_gets_a_job_once
        what_is_picked_up_is_taken_back_from_the_dead
        what_is_released_for_another_reason_waits
        what_is_put_off_in_two_queues_is_found_in_both
        urgent_jobs_go_before_what_was_put_off
        who_was_not_told_hears_of_it_with_its_next_beat
        too_many_put_off_wait_until_they_are_due
        what_is_put_off_falls_due_all_the_same
        who_runs_anything_takes_what_others_put_off
        what_was_put_off_keeps_its_turn
        a_retry_is_not_taken_for_put_off
        what_is_moved_by_hand_is_not_taken_for_put_off
        a_paused_queue_keeps_what_was_put_off
        who_waits_is_told_of_what_is_put_off
        more_than_there_is_room_for_is_taken_in_turns
        programs_that_know_different_kinds_share_a_queue
        what_nobody_can_read_is_not_handed_around;
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
        one_claim_takes_what_was_tried_before_beside_what_was_not
        a_retried_job_goes_to_the_tail
        a_released_job_goes_to_the_head
        a_job_that_falls_due_goes_behind_the_ready_ones
        no_more_than_asked_for
        only_from_its_own_queue
        the_largest_jobs_are_claimed_however_many
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
        a_crash_is_not_forgotten_when_a_job_gets_another_time
        take_back_is_bounded
        few_jobs_of_a_dead_node_are_found_among_many
        a_node_that_returns_keeps_what_was_not_taken
        a_node_that_left_can_be_taken_from_at_once
        a_beat_tells_what_the_node_holds;
    query:
        a_job_can_be_followed_through_its_life
        a_job_that_never_was_is_not_found
        lists_go_by_state_queue_and_kind
        running_jobs_are_listed_although_long_ones_end_meanwhile
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
    filter:
        a_filter_means_what_it_says
        times_are_about_due_end_and_push
        words_find_scheduled_and_dead_jobs
        a_page_says_how_much_was_looked_at
        a_job_that_stays_is_shown_while_others_move
        a_ready_job_that_stays_is_shown_while_others_are_claimed;
    job_index:
        words_follow_a_job_wherever_it_goes
        a_word_goes_with_what_is_pruned
        a_word_is_found_without_a_look_at_others
        done_jobs_are_found_by_when_they_ended;
    history:
        what_happens_is_counted_by_minute_and_queue
        lateness_and_duration_are_counted
        what_was_refused_is_not_counted
        of_a_mixed_settle_only_what_was_recorded_is_counted
        history_is_kept_for_a_day
        counts_follow_every_move;
    capacity:
        a_full_queue_refuses_the_whole_push
        bytes_are_limited_too
        what_ends_makes_room
        a_push_that_changes_nothing_is_not_refused
        a_limit_can_be_set_before_the_first_job_and_lifted;
    edit:
        args_can_be_changed_while_a_job_waits
        a_running_job_cannot_be_edited
        another_priority_is_another_place
        many_are_changed_if_they_are_as_they_were_seen;
    progress:
        progress_and_lines_are_kept_with_the_job
        only_the_holder_says_anything
        a_log_keeps_its_newest_lines
        a_result_is_kept_with_a_done_job
        notes_go_with_their_job;
    dead_groups:
        dead_jobs_are_grouped_by_kind_and_error
        a_group_shrinks_when_its_jobs_leave
        a_group_is_a_filter;
    transfer:
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
    cron:
        a_rule_is_kept_as_it_was_given
        a_rule_is_put_only_over_what_was_read
        a_removed_rule_is_gone
        rules_are_listed_by_pages_and_by_queue
        a_claim_tells_when_the_next_tick_is
        putting_a_rule_wakes_a_node_of_its_queue
        a_tick_fires_once_whoever_asks
        no_tick_fires_early
        a_changed_rule_refuses_who_read_the_old_one
        a_rule_that_fired_refuses_who_read_it_before
        a_paused_rule_is_never_due
        a_paused_queue_gets_its_ticks
        a_moving_queue_fires_nothing
        what_is_fired_can_be_claimed_at_once
        a_tick_with_jitter_is_due_later
        several_ticks_of_a_rule_go_in_together
        a_tick_that_only_goes_by_pushes_nothing
        the_job_of_a_tick_is_known_by_its_id
        skip_leaves_the_unfinished_job
        queue_waits_for_the_end_of_the_running_job
        replace_waits_for_any_unfinished_job
        a_held_tick_is_looked_at_again_after_a_while
        a_rule_that_changes_its_queue_takes_its_tick_along
        many_rules_fire_in_bounded_steps
        the_first_due_goes_first
        args_of_a_rule_survive;
    wake:
        a_push_wakes_a_node_that_waits
        a_push_wakes_one_node_only
        a_push_into_another_queue_wakes_nobody
        an_earlier_due_moment_wakes_a_later_one_does_not
        resume_wakes
        a_claim_that_leaves_jobs_behind_wakes_another
        a_node_that_steps_back_is_not_woken_and_passes_the_wake_on;
    locks:
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
        a_hold_that_another_node_extends_ends_by_its_time_alone
        no_lock_is_left_without_an_end
        at_most_n_hold_it_each_with_its_slot_and_fence
        a_freed_slot_is_given_again
        each_slot_has_its_own_end
        a_hold_is_found_in_whichever_slot
        extend_many_at_once
        locks_are_listed
        pages_show_every_lock_once
        names_do_not_run_into_each_other
        a_broken_lock_is_nobodys;
    lock_waiters:
        first_come_first_served
        an_ended_hold_goes_to_the_first_in_line
        an_ask_that_does_not_wait_does_not_jump_the_line
        a_place_is_kept_when_the_ask_is_repeated
        who_finds_it_free_and_may_not_have_it_reminds_the_first_in_line
        a_release_tells_the_first_in_line
        of_two_owners_of_a_node_the_first_in_line_is_told
        a_refused_release_tells_nobody
        a_dead_nodes_place_is_skipped
        a_departed_nodes_place_is_skipped
        who_dies_at_its_turn_does_not_block_the_lock
        a_waiter_that_gives_up_passes_its_turn_on
        leaving_the_line_keeps_the_hold
        ahead_counts_those_who_live
        ends_says_when_to_look
        attend_tells_whose_turn_it_is
        attend_tells_who_has_lost_its_place
        two_free_slots_go_to_the_first_two_in_line
        break_ends_all_holds_and_tells_the_next
        lines_of_different_locks_are_apart
        a_lock_with_a_long_line_is_handed_on_in_bounded_steps;
    totals:
        totals_only_grow_also_when_history_is_forgotten
        what_nobody_has_looked_at_for_days_is_in_the_totals_too
        totals_are_of_each_queue
        kinds_are_counted_by_the_hour_for_a_day
        kinds_beyond_a_number_are_counted_together
        a_worker_tells_what_its_attempts_came_to_by_kind
        since_when_the_first_ready_job_waits_is_known
        the_first_ready_job_is_known_by_its_due_moment;
    completions:
        who_has_asked_is_told_of_every_way_to_end
        many_that_end_in_one_step_are_all_told
        only_queues_that_were_asked_for_are_told_of
        a_look_finds_what_is_unfinished_no_more
        who_waits_for_a_job_gets_it_as_it_ended
        who_waits_is_not_misled_by_a_retry;
    peers:
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
        a_connection_that_has_moved_is_not_taken_back
        answering_lists_nodes_by_method
        a_quiet_guest_hears_but_is_not_found
        a_guest_whose_lease_ended_is_not_found
        a_lease_is_as_long_as_the_guest_says
        guests_are_among_the_nodes
        a_worker_that_leaves_stays_in_the_hall
        the_store_tells_its_time;
    why:
        a_job_that_never_was
        a_job_that_is_due_later
        a_paused_queue
        a_moving_queue
        a_queue_that_nobody_works
        a_kind_that_nobody_knows
        a_kind_that_nobody_knows_put_off_for_a_while
        all_slots_are_busy
        all_nodes_are_quiet
        a_job_that_several_nodes_have_died_with
        a_job_that_a_node_holds
        a_job_whose_node_is_silent
        a_job_that_backs_off
        a_done_job
        a_dead_job
        a_dead_job_whose_key_another_has
        a_job_that_comes_next
        a_worker_tells_what_it_takes;
}
