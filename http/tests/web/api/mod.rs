//! The API: requests over sockets, on SQLite and on Redis.
mod bad_requests;
mod examples;
mod jobs;
mod locks;
mod metrics;
mod openapi;
mod random_requests;
mod security;
mod settings;
mod streams;
mod support;
mod workers;

/// Expands each case once per store.
macro_rules! on_every_store {
    ($($chapter:ident: $($case:ident)*;)*) => {
        mod on_memory { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::api::$chapter::$case(crate::api::support::Site::in_memory().await).await }
        )*)* }
        mod on_file { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::api::$chapter::$case(crate::api::support::Site::in_file().await).await }
        )*)* }
        mod on_redis { $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { crate::api::$chapter::$case(crate::api::support::Site::on(crate::servers::redis().url()).await).await }
        )*)* }
    };
}

on_every_store! {
    jobs:
        a_job_is_pushed_read_moved_and_removed
        an_edit_that_is_refused_changes_nothing
        big_numbers_in_args_survive_byte_for_byte
        many_jobs_go_in_one_request
        a_repeated_key_pushes_once_and_another_body_is_refused
        lists_go_on_where_a_page_ended
        queues_are_paused_and_resumed
        a_wait_ends_with_the_job
        a_wait_can_be_a_stream
        events_tell_what_changes_and_go_on_after_the_last
        decisions_are_noted_and_daily_work_is_not;
    metrics:
        every_family_of_the_reference_is_there_and_moves;
    settings:
        a_rule_is_changed_only_as_it_was_seen
        a_rule_is_told_with_all_that_was_said
        a_rule_triggered_again_with_the_same_key_pushes_once
        settings_of_a_queue_are_changed_only_as_they_were_seen;
    locks:
        a_lock_is_taken_extended_and_released_by_its_owner_only
        every_slot_of_a_lock_is_extended_and_released
        who_waits_for_a_lock_gets_it_with_a_greater_fence
        a_method_is_called;
    workers:
        a_worker_claims_runs_and_settles
        claimed_jobs_come_in_the_order_of_their_claim
        a_waiting_claim_is_woken_by_a_push
        a_worker_that_never_got_its_jobs_gives_all_of_them_back
        what_a_silent_worker_held_goes_to_another_and_its_word_is_refused
        a_claim_that_was_cut_off_loses_nothing
        what_an_answer_did_not_bring_is_given_back
        kinds_that_a_worker_does_not_know_are_given_back
        workers_that_know_different_kinds_share_a_queue
        the_last_attempt_buries
        a_cancelled_job_ends_dead
        a_result_or_a_delay_that_is_not_kept_is_refused
        a_server_that_stops_gives_back_what_its_workers_hold
        a_server_that_stops_tells_what_attempts_came_to;
    security:
        tokens_have_roles_and_end;
}
