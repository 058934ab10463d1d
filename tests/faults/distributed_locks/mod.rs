//! Locks and calls between real processes that are killed, paused, cut off and lied to.
//!
//! - `histories`: clients log what they believe to hold; a checker looks for two at once and for fences that go back.
//! - `increments`: a counter that refuses old fences loses no update; without the refusal it does, and that is shown.
//! - `grow`: fences grow over everything that can happen to a store.
//! - `lines`: places in a line that a server forgets.
//! - `calls`: a network that drops, delays and doubles single messages; every call ends once, and in time.
//! - `hostile`, `flood`: messages that nobody with the key has sent, or that were meant for another time or place.
//!
//! The children are this same test binary, started again with a role in its environment.
//! Longer runs: `DULY_LOCK_SECONDS`, `DULY_INCREMENTS`, `DULY_CALLS`, `DULY_FLOOD_SECONDS`.

#[cfg(feature = "redis")]
mod calls;
mod checker;
mod child;
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

/// Not a test: the way into a child process.
#[test]
fn child_process() {
    child::live();
}
