//! Moving everything from one store to another, between every two kinds of stores: as it was, and once, whatever is killed.

mod arrivals;
mod cron_rules;
mod errors;
mod killed;
mod stores;

/// Expands each case once per pair of stores, so that a failure reads `file_to_redis::everything_arrives_as_it_was`.
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
            use crate::transfer::stores::{Kind, Pair};
            $($(
                #[tokio::test(flavor = "multi_thread")]
                #[$attribute]
                async fn $case() { crate::transfer::$chapter::$case(Pair::new(Kind::$from, Kind::$to)).await }
            )*)*
        }
    };
}

transfers! {
    arrivals:
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
    cron_rules:
        rules_arrive_with_their_ticks
        killed_at_every_step_each_rule_is_there_once
        a_rule_that_is_there_takes_over_an_open_tick;
    errors:
        the_same_store_is_refused
        an_unknown_queue_is_refused
        a_broken_off_move_ends_where_it_began_to_go
        a_queue_that_is_moving_away_takes_nothing
        a_move_can_be_abandoned;
}
