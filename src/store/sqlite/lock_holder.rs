//! Finds the process that holds the write lock of a file, for error messages.
//!
//! A process that was stopped in the middle of a transaction keeps the lock until it continues or ends.

use std::path::Path;

use crate::store::sqlite::file;
use crate::store::sqlite::nodes::directory::FileId;

/// The byte of the WAL's index that the writer locks.
const WRITE_LOCK_BYTE: u64 = 120;

/// The advice if the holder is unknown: outside of Linux, and if it is in another PID namespace.
pub(super) const UNKNOWN_HOLDER: &str = "its holder is unknown; continue or end stopped processes and paused containers, \
     and end your own transaction (push_in, ack_in) before you await duly";

/// Describes the holder of the write lock, with the remedy.
pub(super) fn describe_lock_holder(path: &Path) -> String {
    find_lock_holder(path).map_or_else(|| UNKNOWN_HOLDER.to_owned(), describe_process)
}

fn find_lock_holder(path: &Path) -> Option<u32> {
    let inode = FileId::at(&file::shm_path(path))?.inode;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| find_writer(line, inode))
}

fn describe_process(pid: u32) -> String {
    if pid == std::process::id() {
        return "a connection of this process holds it; end your own transaction (push_in, ack_in) before you await duly"
            .into();
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let shown = format!("process {pid} ({})", name.trim());
    match is_stopped(pid) {
        true => format!("{shown} holds it and is stopped (SIGSTOP); continue it with `kill -CONT {pid}`, or end it"),
        false => format!("{shown} holds it; wait for it, continue it if its container is paused, or end it"),
    }
}

/// Returns the process of a line of `/proc/locks` if it holds the write lock of the WAL with this index.
fn find_writer(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A line with `->` is a process that waits for the lock.
    let [_, "POSIX", _, "WRITE", pid, file, first, last] = words[..] else {
        return None;
    };
    let is_file = file.rsplit(':').next()?.parse() == Ok(inode);
    let covers = first.parse::<u64>().ok()? <= WRITE_LOCK_BYTE
        && (last == "EOF" || last.parse::<u64>().ok()? >= WRITE_LOCK_BYTE);
    (is_file && covers).then(|| pid.parse().ok())?
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may contain anything, so the state follows its last parenthesis.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_is_found_in_the_table_of_locks() {
        let line = |range: &str| format!("7: POSIX  ADVISORY  WRITE 4711 fd:01:99 {range}");
        assert_eq!(find_writer(&line("120 120"), 99), Some(4711));
        assert_eq!(find_writer(&line("0 EOF"), 99), Some(4711));
        assert_eq!(find_writer(&line("120 120"), 98), None, "another file");
        assert_eq!(find_writer(&line("123 123"), 99), None, "the lock of a reader");
        assert_eq!(find_writer("7: -> POSIX  ADVISORY  WRITE 4711 fd:01:99 120 120", 99), None, "it waits");
        assert_eq!(find_writer("", 99), None);
    }
}
