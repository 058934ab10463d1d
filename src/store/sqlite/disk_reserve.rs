//! The reserve of free disk space: pushes leave it free, so that a full queue can still be worked and emptied.
//!
//! Settling and removing jobs needs room in the WAL before it frees any. New jobs need room twice: in the WAL, and in the
//! file at the next checkpoint, which a reader may hold back for long. So a push counts itself twice, and also the pages
//! that are still only in the WAL.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::Push;
use crate::job::{JobRecord, JobRun};

/// Free bytes that pushes leave on a disk.
const RESERVE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// On a small disk, this part of it.
const RESERVE_FRACTION: u64 = 4;
/// How often the free space is read. Reading it costs as much as a short push.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of new jobs after which the free space is read again, as a part of the reserve: several processes may push.
const UNCHECKED_FRACTION: u64 = 16;
/// Pages that a transaction with new jobs writes besides theirs: statistics, counters and the ends of indexes.
const TRANSACTION_BYTES: u64 = 64 * 1024;
/// Rows of one job besides its body.
const JOB_ROWS_BYTES: usize = 1_024;
/// A longer body may leave the rest of a page unused.
const BODY_SHARES_PAGE_MAX: usize = 1_024;
const PAGE_BYTES: usize = 4_096;

/// The free space of a disk, and how much of it pushes leave free.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskSpace {
    pub(super) free: u64,
    pub(super) reserve: u64,
    /// How much longer the next checkpoint makes the file.
    pub(super) pending: u64,
    /// The free bytes in the file, which new jobs can use.
    reusable: u64,
}

impl DiskSpace {
    /// Reads the space of the disk that holds the file of a connection; `None` if it cannot be read.
    pub(super) fn read(conn: &Connection, path: &Path) -> rusqlite::Result<Option<Self>> {
        let (Ok(disk), Ok(file)) = (rustix::fs::statvfs(path), std::fs::metadata(path)) else {
            return Ok(None);
        };
        let number = |sql: &str| conn.prepare_cached(sql)?.query_row([], |row| row.get::<_, u64>(0));
        let page_bytes = number("PRAGMA page_size")?;
        let total = disk.f_blocks.saturating_mul(disk.f_frsize);
        Ok(Some(DiskSpace {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            reserve: RESERVE_BYTES_MAX.min(total / RESERVE_FRACTION),
            pending: number("PRAGMA page_count")?.saturating_mul(page_bytes).saturating_sub(file.len()),
            reusable: number("PRAGMA freelist_count")?.saturating_mul(page_bytes),
        }))
    }

    /// Returns how many bytes of new jobs leave the reserve free.
    pub(super) fn room(&self) -> u64 {
        let room = (self.free.saturating_add(self.reusable)).saturating_sub(self.pending + self.reserve) / 2;
        // Jobs that reuse pages of the file still need room in the WAL.
        room.min(self.free.saturating_sub(self.pending + self.reserve / 2))
    }

    /// Returns whether a checkpoint would have room. Without it, the checkpoint would use up the rest of the disk and
    /// fail.
    fn has_room_for_checkpoint(&self) -> bool {
        self.pending <= self.free
    }

    fn full_error(&self, op: &'static str, bytes: u64) -> Error {
        let kib = |bytes: u64| bytes.div_ceil(1024);
        let reason = format!(
            "the disk is almost full: new jobs need {} KiB, and of {} KiB that are free, {} KiB are reserved for settling \
             and removing jobs and {} KiB for the WAL; nothing was pushed; free some space and try again",
            kib(2 * bytes),
            self.free / 1024,
            self.reserve / 1024,
            kib(self.pending),
        );
        Error::store(op, reason)
    }
}

/// Returns whether the disk has room for a checkpoint of this connection.
pub(super) fn has_room_for_checkpoint(conn: &Connection, path: &Path) -> bool {
    // A connection that cannot read fails without help.
    DiskSpace::read(conn, path).ok().flatten().is_none_or(|space| space.has_room_for_checkpoint())
}

/// Checks before each push that the disk has room. Belongs to one connection, and is used while that holds the write
/// lock: the commits of all others are on the disk then.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
    /// The last look at the disk, if there was enough space.
    last_look: Cell<Option<DiskLook>>,
}

#[derive(Clone, Copy, Debug)]
struct DiskLook {
    at: Instant,
    /// How many bytes of new jobs may follow without another look.
    remaining: u64,
}

impl DiskReserve {
    pub(super) fn new(path: &Path) -> Self {
        DiskReserve { path: path.to_owned(), last_look: Cell::new(None) }
    }

    /// Returns an error if new jobs would use the reserve. `unwritten` is the size of the jobs that this transaction has
    /// admitted before: their pages may be in memory.
    pub(super) fn check(
        &self,
        conn: &Connection,
        op: &'static str,
        bytes: u64,
        unwritten: u64,
    ) -> rusqlite::Result<Result<()>> {
        let bytes = if unwritten == 0 { bytes + TRANSACTION_BYTES } else { bytes };
        let now = clock::monotonic_now();
        if let Some(look) = self.last_look.get()
            && now - look.at < CHECK_INTERVAL
            && bytes <= look.remaining
        {
            self.last_look.set(Some(DiskLook { remaining: look.remaining - bytes, ..look }));
            return Ok(Ok(()));
        }
        // A shortage is read again each time: it may end at any moment.
        self.last_look.set(None);
        let Some(space) = DiskSpace::read(conn, &self.path)? else {
            return Ok(Ok(()));
        };
        let space = DiskSpace { free: space.free.saturating_sub(unwritten), ..space };
        let room = space.room();
        if bytes > room {
            return Ok(Err(space.full_error(op, bytes)));
        }
        let remaining = (room - bytes).min(space.reserve / UNCHECKED_FRACTION);
        self.last_look.set(Some(DiskLook { at: now, remaining }));
        Ok(Ok(()))
    }
}

/// Returns how many bytes new jobs need in the file, at most.
pub(super) fn push_bytes(jobs: &[Push]) -> u64 {
    let text_bytes = |job: &Push| {
        let tags: usize = job.tags.iter().map(|tag| tag.len() + 1).sum();
        let args = job.args.as_ref().map_or(0, String::len);
        args + job.kind.len() + tags + 2 * job.unique.as_ref().map_or(0, String::len)
    };
    jobs.iter().map(|job| job_bytes(text_bytes(job))).sum()
}

/// Returns how many bytes jobs from another store need in the file, at most.
pub(super) fn record_bytes(jobs: &[JobRecord]) -> u64 {
    let text_bytes = |record: &JobRecord| {
        let job = &record.job;
        let tags: usize = job.tags.iter().map(|tag| tag.len() + 1).sum();
        let unique = job.unique.as_ref().map_or(0, |key| key.as_str().len());
        let runs: usize = record.runs.iter().map(JobRun::text_bytes).sum();
        let log: usize = record.log.iter().map(|line| line.line.len()).sum();
        let result = record.result.as_ref().map_or(0, String::len);
        job.args.len() + job.kind.len() + tags + 2 * unique + runs + log + result
    };
    jobs.iter().map(|record| job_bytes(text_bytes(record))).sum()
}

fn job_bytes(text: usize) -> u64 {
    let body = if text > BODY_SHARES_PAGE_MAX { text.next_multiple_of(PAGE_BYTES) } else { text };
    (body + JOB_ROWS_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn push_needs_its_size_twice_and_leaves_the_reserve() {
        let space = |free| DiskSpace { free, reserve: 4 * MIB, pending: 0, reusable: 0 };
        assert_eq!(space(4 * MIB).room(), 0);
        assert_eq!(space(24 * MIB).room(), 10 * MIB);
        let with_wal = |pending| DiskSpace { pending, ..space(24 * MIB) };
        assert_eq!(with_wal(8 * MIB).room(), 6 * MIB, "the WAL is not in the file yet");
        assert_eq!(with_wal(30 * MIB).room(), 0);
        let with_free_pages = |free| DiskSpace { reusable: 20 * MIB, ..space(free) };
        assert_eq!(with_free_pages(24 * MIB).room(), 20 * MIB, "it is needed once");
        assert_eq!(with_free_pages(3 * MIB).room(), MIB, "half of the reserve is for the WAL");
        assert_eq!(with_free_pages(2 * MIB).room(), 0);
    }

    #[test]
    fn refusal_names_the_space_and_its_use() {
        let space = DiskSpace { free: 40 * MIB, reserve: 32 * MIB, pending: 2 * MIB, reusable: 0 };
        let error = space.full_error("push", 5 * MIB).to_string();
        for part in ["need 10240 KiB", "of 40960 KiB that are free", "32768 KiB are reserved", "2048 KiB for the WAL"] {
            assert!(error.contains(part), "{error}");
        }
    }

    /// Many small jobs, jobs that fill a page badly, and large ones.
    #[test]
    fn jobs_need_at_most_the_estimated_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        for (index, args_bytes) in [2, 900, 1_100, 2_100, 4_200, 100_000].into_iter().enumerate() {
            let path = dir.path().join(format!("{index}.db"));
            let conn = crate::store::sqlite::file::prepare_file(&path)
                .and_then(|path| crate::store::sqlite::file::connect(&path, crate::store::Durability::Second))
                .expect("opens");
            let numbers = crate::store::sqlite::tx::QueueNumbers::default();
            let push = || {
                Push::new("kind", format!("\"{}\"", "x".repeat(args_bytes))).unique(uuid::Uuid::new_v4().to_string())
            };
            let jobs: Vec<Push> = (0..200).map(|_| push()).collect();
            let pages = || conn.query_row("PRAGMA page_count", [], |row| row.get::<_, u64>(0)).expect("reads");
            let before = pages();
            conn.execute_batch("BEGIN").expect("begins");
            let tx = crate::store::sqlite::tx::Tx::new(&conn, 1, &numbers, true);
            assert!(crate::store::sqlite::jobs::push::push(&tx, &jobs).expect("pushes").is_ok());
            tx.flush().expect("writes");
            let (used, estimated) = ((pages() - before) * PAGE_BYTES as u64, push_bytes(&jobs) + TRANSACTION_BYTES);
            assert!(used <= estimated, "{args_bytes} bytes of args: {used} used, {estimated} estimated");
        }
    }
}
