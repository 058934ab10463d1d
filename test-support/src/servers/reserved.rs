//! Directories and ports reserved for one process, even if several test processes run at once.
//!
//! They are in one directory per user. A process that uses a name or a port holds a lock on the file of that name. The
//! operating system releases the lock when the process ends, so a killed process needs no cleanup.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Below the range for outgoing connections, so that a killed server's port stays free for its restart.
const PORTS: std::ops::Range<u16> = 11_000..21_000;
/// Distance between a Cluster node's port and its bus port.
pub const BUS_ABOVE: u16 = 10_000;
/// A lock file this young may be about to be locked by the process that created it.
const YOUNG: Duration = Duration::from_secs(60);

fn base() -> PathBuf {
    let user = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let base = std::env::temp_dir().join(format!("duly-servers-{user}"));
    fs::create_dir_all(&base).expect("the directory for temporary files can be written to");
    base
}

fn lock_file(path: &Path) -> File {
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    open.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a new empty directory.
///
/// The caller removes it. Directories of a killed process are removed by the next process that calls this.
pub fn directory() -> PathBuf {
    static MINE: OnceLock<(PathBuf, File)> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (mine, _lock) = MINE.get_or_init(|| {
        sweep();
        let mine = base().join(format!("run-{}", process::id()));
        let lock = lock_file(&mine.with_extension("lock"));
        lock.lock().expect("locks work on the directory for temporary files");
        // A killed process with the same id may have left one.
        let _ = fs::remove_dir_all(&mine);
        (mine, lock)
    });
    let directory = mine.join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
    fs::create_dir_all(&directory).expect("a new directory");
    directory
}

/// Removes the files of processes that have ended.
fn sweep() {
    let entries = fs::read_dir(base()).into_iter().flatten().flatten();
    for lock in entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "lock")) {
        let age = fs::metadata(&lock).and_then(|data| data.modified()).ok().and_then(|at| at.elapsed().ok());
        let ended = File::open(&lock).is_ok_and(|file| file.try_lock().is_ok());
        if ended && age.is_some_and(|age| age > YOUNG) {
            let _ = fs::remove_dir_all(lock.with_extension(""));
            let _ = fs::remove_file(&lock);
        }
    }
}

/// Returns a free loopback port with a free port for the Cluster bus above it.
///
/// No other process gets this port while this process runs. A client that still reconnects to the server of an ended
/// test therefore never reaches another test's server.
pub fn port() -> u16 {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().expect("no thread panics while holding it");
    let base = base();
    for port in PORTS {
        let lock = lock_file(&base.join(format!("port-{port}")));
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if lock.try_lock().is_ok() && free(port) && free(port + BUS_ABOVE) {
            taken.push(lock);
            return port;
        }
    }
    panic!("no free port in {PORTS:?}");
}
