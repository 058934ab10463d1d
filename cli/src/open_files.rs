//! Raises the limit of open files of a server.
//!
//! The usual limit of 1,024 is for programs that use `select`. The default number of connections alone would reach it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The open files that a server with few connections may need: for the nodes of its workers, and for commands of `duly up`.
/// Not as many as possible: commands inherit the limit, and some programs close every file up to it at their start.
const FILES: u64 = 65_536;

/// Raises the limit for a server with this many connections, as far as this process may.
pub(crate) fn raise_limit(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = FILES.saturating_add(connections as u64).min(limit.maximum.unwrap_or(u64::MAX));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }) {
        tracing::warn!(%error, wanted, "the limit of open files cannot be raised");
    }
}
