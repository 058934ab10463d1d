//! Moving everything from one store to another, between every two kinds of stores: as it was, and once, whatever is killed.

mod arrive;
mod killed;
mod refuse;
mod rules;
#[cfg(feature = "redis")]
#[path = "../support/servers/mod.rs"]
mod servers;
mod support;

/// Expands each case once per pair of stores, so that a failure reads `file_to_redis::everything_arrives_as_it_was`.
macro_rules! moves {
    ($($chapter:ident: $($case:ident)*;)*) => {
        moves!(@pair file_to_file File File $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        moves!(@pair file_to_redis File Redis $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        moves!(@pair redis_to_file Redis File $($chapter: $($case)*;)*);
        #[cfg(feature = "redis")]
        moves!(@pair redis_to_cluster Redis Cluster $($chapter: $($case)*;)*);
    };
    (@pair $pair:ident $from:ident $to:ident $($chapter:ident: $($case:ident)*;)*) => {
        mod $pair {
            use crate::support::{Kind, Pair};
            $($(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() { crate::$chapter::$case(Pair::new(Kind::$from, Kind::$to)).await }
            )*)*
        }
    };
}

moves! {
    arrive:
        everything_arrives_as_it_was
        only_the_named_queues_go
        a_paused_queue_arrives_paused
        a_limit_goes_along
        large_jobs_go_in_small_batches
        removed_jobs_are_not_in_the_way
        what_is_pushed_meanwhile_goes_too
        running_jobs_are_waited_for
        what_a_dead_node_held_goes_too
        a_job_whose_key_is_taken_is_kept_as_dead
        there_and_back;
    killed:
        killed_at_every_step_it_goes_on
        killed_twice_it_goes_on
        killed_at_every_step_it_goes_back
        two_movers_move_everything_once;
    rules:
        rules_arrive_with_their_ticks
        killed_at_every_step_each_rule_is_there_once
        a_rule_that_is_there_takes_over_an_open_tick;
    refuse:
        the_same_store_is_refused
        an_unknown_queue_is_refused
        a_broken_off_move_ends_where_it_began_to_go
        a_queue_that_is_moving_away_takes_nothing
        a_move_can_be_abandoned;
}
