//! Cron rules on a server.

use std::time::Duration;

use crate::clock::Micros;

/// How long it is until a moment.
pub(super) fn until(at: Option<Micros>, now: Micros) -> Option<Duration> {
    at.map(|at| Duration::from_micros(u64::try_from(at - now).unwrap_or(0)))
}
