//! The values that callers pass to a store and that a store returns, by subject.

pub(crate) mod admin;
pub(crate) mod audit;
pub(crate) mod completions;
pub(crate) mod cron;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod kinds;
pub(crate) mod locks;
pub(crate) mod peers;
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) mod stat_points;
pub(crate) mod tokens;
pub(crate) mod transfer;
pub(crate) mod verify;
