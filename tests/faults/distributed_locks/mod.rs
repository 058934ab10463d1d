//! Locks and calls between real processes that are killed, paused, partitioned and sent forged messages.
//!
//! - `histories`: clients log when they believe to hold a lock; a checker finds concurrent holders and decreasing
//!   fences.
//! - `increments`: a counter that rejects old fences loses no update; a control shows that it does without the check.
//! - `fences`: fences increase across all events of a store.
//! - `lost_waiters`: a server loses queue entries of lock waiters.
//! - `calls`: a network drops, delays and duplicates single messages; every call ends once and in time.
//! - `forged_messages`, `flood`: messages from senders without the key, or for another time or node.
//!
//! The children are this test binary, started again with a role in the environment. For longer runs set
//! `DULY_LOCK_SECONDS`, `DULY_INCREMENTS`, `DULY_CALLS`, `DULY_FLOOD_SECONDS`.

#[cfg(feature = "redis")]
mod calls;
mod checker;
pub mod child;
mod client;
mod clock;
mod counter;
mod fences;
mod flood;
mod forged_messages;
mod histories;
mod increments;
mod location;
mod log;
#[cfg(feature = "redis")]
mod lost_waiters;
mod nemesis;
#[cfg(feature = "redis")]
mod unreliable_network;
