//! The API: requests over sockets, on SQLite and on Redis.
mod audit;
mod bad_requests;
mod border;
mod examples;
mod hang_ups;
mod jobs;
mod locks;
mod metrics;
mod openapi;
mod overload;
mod random_requests;
mod role_matrix;
mod security;
mod settings;
mod stats;
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
        job_is_pushed_read_rescheduled_and_removed
        rejected_edit_changes_nothing
        big_numbers_in_args_survive_byte_for_byte
        bulk_push_accepts_lists_and_lines
        repeated_idempotency_key_pushes_once_and_rejects_another_body
        list_pages_continue_at_the_cursor
        job_is_found_by_part_of_its_id
        queues_are_paused_and_resumed
        wait_ends_with_the_job
        push_waits_for_the_end_of_the_job
        wait_streams_events
        events_resume_after_the_last_event_id
        ends_of_jobs_are_sent_once_and_again_after_the_last_event_id
        administrative_requests_are_audited_and_routine_ones_are_not;
    metrics:
        every_documented_metric_exists_and_changes;
    settings:
        rule_change_with_outdated_etag_is_rejected
        saved_rule_is_returned_with_all_settings
        rule_triggered_twice_with_the_same_key_pushes_once
        queue_change_with_outdated_etag_is_rejected;
    locks:
        lock_is_extended_and_released_only_by_its_owner
        every_slot_of_a_lock_is_extended_and_released
        lock_waiter_gets_a_greater_fence
        method_is_called;
    workers:
        worker_claims_runs_and_settles
        claimed_jobs_are_in_claim_order
        waiting_claim_is_woken_by_a_push
        worker_shows_its_own_name_and_machine
        jobs_missing_from_heartbeats_are_all_released
        jobs_of_a_silent_worker_move_on_and_its_settle_is_rejected
        interrupted_claim_loses_no_job
        undelivered_job_is_released
        jobs_without_a_handler_are_deferred
        workers_with_different_kinds_share_a_queue
        command_jobs_are_left_to_other_workers
        last_failed_attempt_buries
        cancelled_job_ends_with_its_attempt
        settle_with_oversized_result_or_delay_is_rejected
        stopping_server_releases_jobs_of_its_workers
        stopping_server_flushes_kind_statistics;
    security:
        tokens_have_roles_and_expire;
    hang_ups:
        changes_of_clients_that_hang_up_are_recorded;
    role_matrix:
        every_route_requires_its_role;
}
