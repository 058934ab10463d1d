//! Servers that fail under load: killed, failed over, migrated, or with lost replies.
//!
//! In all cases the checker must find that no acknowledged job is lost, fences only increase, no job starts early, and
//! workers recover by themselves. A control shows that it does find loss.
#![cfg(feature = "redis")]

mod delayed_requests;
mod failover;
mod ledger;
mod load;
mod lost_replies;
mod lost_shard;
mod migration;
mod peers;
mod restart;
mod silent_master;
