//! Checks that the open files are still the ones at their paths.
//!
//! A process that has a file open goes on with it after the file was deleted or replaced: pushes would be acknowledged
//! into a file that no other process opens, and closing it would delete the WAL of the new file. Therefore every commit
//! checks the path. The WAL and the contents are checked too: by commits once a second, before each checkpoint, by every
//! heartbeat, and at the end.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::sqlite::disk_reserve;
use crate::store::sqlite::file;
use crate::store::sqlite::nodes::directory::FileId;
use crate::sync::LockExt;

/// The advice for a file that is not the one that was opened.
const ADVICE: &str = "stop all processes on it, put the right file in place, and start them again";
/// How often commits check everything. Processes that only push send no heartbeats.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a file without a readable store id must stay unchanged before a checkpoint may write into it: longer than
/// `cp` pauses between two writes.
const UNREADABLE_QUIET_TIME: Duration = Duration::from_secs(2);

/// The files of an open store, as they were when it was opened.
#[derive(Debug)]
pub(super) struct FileWatch {
    path: PathBuf,
    file: FileId,
    wal: FileId,
    shm: FileId,
    store_id: String,
    /// Tells whether the file was deleted, wherever it was moved to. `O_PATH`: closing any other handle would drop the
    /// locks that SQLite holds on the file.
    #[cfg(target_os = "linux")]
    handle: std::os::fd::OwnedFd,
    /// The first problem that only a full check finds. It remains, because the files may be damaged.
    problem: Mutex<Option<String>>,
    /// The last check of the contents. Reading them takes longer than the rest of a check.
    checked_contents: Mutex<Option<CheckedContents>>,
    /// When everything was last checked.
    checked_at: Mutex<Option<Instant>>,
}

/// A check of the contents that found no other store.
#[derive(Clone, Copy, Debug)]
struct CheckedContents {
    stamp: Option<FileStamp>,
    since: Instant,
    /// Whether the store id can be read. It cannot while a copy of a file is being written.
    is_readable: bool,
    /// Whether it could be read by then, now or before. In a new file it is only in the WAL.
    was_readable: bool,
}

/// The size of a file and the time of its last change, in seconds and nanoseconds.
type FileStamp = (u64, i64, i64);

impl FileWatch {
    /// Records the files of an open connection.
    pub(super) fn start(path: &Path, store_id: String) -> Result<Arc<Self>> {
        let id = |path: &Path| {
            let gone =
                || Error::store("open", format!("{} was deleted while it was opened; try again", path.display()));
            FileId::at(path).ok_or_else(gone)
        };
        Ok(Arc::new(FileWatch {
            #[cfg(target_os = "linux")]
            handle: rustix::fs::open(
                path,
                rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
                rustix::fs::Mode::empty(),
            )
            .map_err(|e| Error::store("open", format!("{}: {e}", path.display())))?,
            file: id(path)?,
            wal: id(&file::wal_path(path))?,
            shm: id(&file::shm_path(path))?,
            path: path.to_owned(),
            store_id,
            problem: Mutex::default(),
            checked_contents: Mutex::default(),
            checked_at: Mutex::default(),
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_id(&self) -> FileId {
        self.file
    }

    pub(super) fn wal_inode(&self) -> u64 {
        self.wal.inode
    }

    pub(super) fn store_id(&self) -> &str {
        &self.store_id
    }

    /// Checks that the file is at its path and has no other name. Costs about a microsecond.
    pub(super) fn check_path(&self) -> Result<(), String> {
        if let Some(problem) = &*self.problem.lock_unpoisoned() {
            return Err(problem.clone());
        }
        let shown = self.path.display();
        match std::fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("{shown} was deleted or moved while it is open; {ADVICE}"))
            }
            Err(e) => Err(format!("{shown}: {e}")),
            Ok(found) if (found.dev(), found.ino()) != (self.file.device, self.file.inode) => {
                Err(format!("{shown} was replaced by another file while it is open; {ADVICE}"))
            }
            Ok(found) if found.nlink() > 1 => Err(hard_link_problem(&self.path, found.nlink())),
            Ok(_) => Ok(()),
        }
    }

    /// Checks the path, and everything if that was not done for a second.
    pub(super) fn check_before_commit(&self) -> Result<(), String> {
        let now = clock::monotonic_now();
        let is_recent = self.checked_at.lock_unpoisoned().is_some_and(|at| now - at < FULL_CHECK_INTERVAL);
        if is_recent { self.check_path() } else { self.check() }
    }

    /// Returns whether a checkpoint may write into the file now. It waits while another file is being copied there:
    /// meanwhile the store id cannot be read, and the file changes. A partial checkpoint can have the first effect too.
    pub(super) fn allows_checkpoint(&self) -> bool {
        self.check().is_ok()
            && self.checked_contents.lock_unpoisoned().is_some_and(|known| {
                known.is_readable
                    || !known.was_readable
                    || clock::monotonic_now() - known.since >= UNREADABLE_QUIET_TIME
            })
    }

    /// Checks everything: also the WAL, its index, and whether other contents were copied into the file.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_path()?;
        *self.checked_at.lock_unpoisoned() = Some(clock::monotonic_now());
        let problem = self.find_hidden_problem();
        if let Some(problem) = &problem {
            let mut known = self.problem.lock_unpoisoned();
            if known.is_none() {
                tracing::error!("{problem}");
            }
            *known = Some(problem.clone());
        }
        problem.map_or(Ok(()), Err)
    }

    fn find_hidden_problem(&self) -> Option<String> {
        for (path, id) in [(file::wal_path(&self.path), self.wal), (file::shm_path(&self.path), self.shm)] {
            if FileId::at(&path) != Some(id) {
                return Some(format!("{} was deleted or replaced while it is open; {ADVICE}", path.display()));
            }
        }
        // Read before the contents, so that a change in between is checked the next time.
        let stamp = self.read_stamp();
        let mut known = self.checked_contents.lock_unpoisoned();
        if stamp.is_some() && known.is_some_and(|known| known.stamp == stamp) {
            return None;
        }
        let id = read_store_id_of_file(&self.path);
        let is_other = |id: Option<&String>| id.is_some_and(|id| *id != self.store_id);
        // Another process may write the file at this moment, so a difference must last.
        if is_other(id.as_ref()) && is_other(read_store_id_of_file(&self.path).as_ref()) {
            return Some(format!("other contents were copied into {} while it is open; {ADVICE}", self.path.display()));
        }
        *known = Some(CheckedContents {
            stamp,
            since: clock::monotonic_now(),
            is_readable: id.is_some(),
            was_readable: id.is_some() || known.is_some_and(|known| known.was_readable),
        });
        None
    }

    fn read_stamp(&self) -> Option<FileStamp> {
        std::fs::metadata(&self.path).ok().map(|file| (file.len(), file.mtime(), file.mtime_nsec()))
    }

    /// Describes a connection of the caller that has another store open at the same path.
    pub(super) fn other_store_problem(&self) -> String {
        format!("{} was replaced after your connection was opened; open the connection again", self.path.display())
    }

    /// Prepares a connection for its end: SQLite would write the WAL into the file, and delete the WAL and its index by
    /// their paths, even if other files are there now.
    pub(super) fn before_close(&self, conn: &Connection) {
        // Without room, that would only fill the disk.
        if self.check().is_err() || !disk_reserve::has_room_for_checkpoint(conn, &self.path) {
            // Fails only for a broken connection, which does not write either.
            let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }

    /// Removes the WAL of a file that was deleted, after all connections are closed: the next file at the path must not
    /// find it. A file that was only moved needs its WAL.
    pub(super) fn after_close(&self) {
        if !self.is_deleted() || FileId::at(&self.path).is_some() {
            return;
        }
        for (path, id) in [(file::wal_path(&self.path), self.wal), (file::shm_path(&self.path), self.shm)] {
            if FileId::at(&path) == Some(id) {
                // If this fails, the next open says what to do.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn is_deleted(&self) -> bool {
        rustix::fs::fstat(&self.handle).is_ok_and(|file| file.st_nlink == 0)
    }

    /// Elsewhere the next open says what to do.
    #[cfg(not(target_os = "linux"))]
    fn is_deleted(&self) -> bool {
        false
    }
}

/// Describes a file that has more than one name.
pub(super) fn hard_link_problem(path: &Path, names: u64) -> String {
    format!(
        "{} has {names} names (hard links), and processes that use different names damage it; \
         keep one name and copy the file for others",
        path.display()
    )
}

/// Returns the store id in the file itself, without its WAL; `None` if it cannot be read there.
pub(super) fn read_store_id_of_file(path: &Path) -> Option<String> {
    let path = path.to_str()?.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(format!("file:{path}?immutable=1"), flags).ok()?;
    let id: String = file::read_store_id(&conn).ok()??;
    // A torn read never looks like this.
    uuid::Uuid::parse_str(&id).is_ok().then_some(id)
}
