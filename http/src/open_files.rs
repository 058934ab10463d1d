//! Keeps the number of connections below the limit of open files of this process.
//!
//! At that limit no connection can be accepted, so none could make room for another.

use rustix::process::{Resource, getrlimit};

/// The open files that stay for the store, the log and the programs of a worker.
const RESERVED: usize = 128;

/// Returns at most this many connections, fewer if the process may not open as many files.
pub(crate) fn bound_connections(connections: usize) -> usize {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
    let max = max_connections(files);
    if max < connections {
        tracing::warn!(
            connections,
            files,
            max,
            "fewer connections than configured: the limit of open files is too low"
        );
    }
    connections.min(max)
}

/// Returns the most connections that leave the reserved files, or half of a very low limit.
fn max_connections(files: usize) -> usize {
    files.saturating_sub(RESERVED).max(files / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_others() {
        for (files, max) in [(1_024, 896), (256, 128), (100, 50), (0, 1)] {
            assert_eq!(max_connections(files), max, "{files} files");
        }
        assert_eq!(bound_connections(1), 1);
    }
}
