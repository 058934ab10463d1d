//! The protected resource: a number in a file that rejects fences older than the newest one. And its clients.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use duly::{Duly, Fence};
use rustix::process::{Signal, getpid, kill_process};

use crate::distributed_locks::child::{report, wait_for_go};
use crate::distributed_locks::location::MS;

/// The time to live of the clients' locks.
pub const TTL: Duration = Duration::from_millis(300);
/// One in this many increments is paused in its middle, for longer than the lock's time to live.
const PAUSE_ONE_IN: u32 = 150;

/// The fence was older than an earlier one.
#[derive(Debug, PartialEq, Eq)]
pub struct StaleFence;

/// A number and the greatest fence so far, changed atomically, as a row would be by `UPDATE .. SET value = ?1, fence =
/// ?2 WHERE fence <= ?2`. The file lock replaces that of a database; no test pauses a process that holds it.
pub struct Counter(File);

impl Counter {
    pub fn at(path: &Path) -> Self {
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        Counter(open.expect("a file of the test's own"))
    }

    /// Returns the value and records the fence, so that a later write with an older fence is rejected. If only writes
    /// recorded it, an older holder could still write between this read and the next write.
    pub fn read(&self, fence: Fence) -> Result<u64, StaleFence> {
        self.change(|(value, newest)| if fence.0 < newest { Err(StaleFence) } else { Ok((value, fence.0)) })
    }

    pub fn set(&self, value: u64, fence: Fence) -> Result<u64, StaleFence> {
        self.change(|(_, newest)| if fence.0 < newest { Err(StaleFence) } else { Ok((value, fence.0)) })
    }

    /// Writes without a fence, as a program that relies on the lock alone would.
    pub fn set_without_fence(&self, value: u64) {
        self.change(|(_, newest)| Ok((value, newest))).expect("is never rejected");
    }

    pub fn value(&self) -> u64 {
        self.change(Ok).expect("is never rejected")
    }

    fn change(&self, next: impl FnOnce((u64, u64)) -> Result<(u64, u64), StaleFence>) -> Result<u64, StaleFence> {
        self.0.lock().expect("locks");
        let mut bytes = [0; 16];
        let length = self.0.read_at(&mut bytes, 0).expect("reads");
        assert!(length == 0 || length == bytes.len(), "whole or new");
        let number = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"));
        let next = next((number(0), number(8)));
        if let Ok((value, fence)) = next {
            let bytes = [value.to_le_bytes(), fence.to_le_bytes()].concat();
            self.0.write_all_at(&bytes, 0).expect("writes");
        }
        self.0.unlock().expect("unlocks");
        next.map(|(value, _)| value)
    }
}

/// The child: counts to the goal together with others, then reports how often it counted, was rejected and was paused.
pub async fn run(store: &str, file: &Path, goal: u64) {
    let (duly, counter) = (Duly::open(store).await.expect("opens"), Counter::at(file));
    let (mut counted, mut rejected, mut paused) = (0, 0, 0);
    loop {
        let guard = duly.lock("counter").ttl(TTL).acquire().await.expect("gets it");
        let set = match counter.read(guard.fence()) {
            Ok(value) if value >= goal => break,
            Ok(value) => {
                if fastrand::u32(..PAUSE_ONE_IN) == 0 {
                    paused += 1;
                    kill_process(getpid(), Signal::STOP).expect("stops itself");
                    // Another thread may have got the signal; this one stops a moment later.
                    std::thread::sleep(20 * MS);
                }
                // Does not check whether the lock is lost: that check alone would leave a gap.
                counter.set(value + 1, guard.fence())
            }
            Err(StaleFence) => Err(StaleFence),
        };
        match set {
            Ok(_) => counted += 1,
            Err(StaleFence) => rejected += 1,
        }
        // Fails if the lock was lost.
        let _ = guard.release().await;
    }
    report(format_args!("{counted} {rejected} {paused}"));
}

/// The child: reads, pauses, and writes after the parent's signal.
pub async fn run_late_writer(store: &str, file: &Path, checked: bool) {
    let (duly, counter) = (Duly::open(store).await.expect("opens"), Counter::at(file));
    let guard = duly.lock("counter").ttl(TTL).acquire().await.expect("is free");
    let value = counter.read(guard.fence()).expect("the first");
    report("has read");
    wait_for_go();
    if checked {
        match counter.set(value + 1, guard.fence()) {
            Ok(_) => report("wrote"),
            Err(StaleFence) => report("rejected"),
        }
    } else {
        counter.set_without_fence(value + 1);
        report("wrote");
    }
    // Time for the guard to learn what has happened.
    let _ = tokio::time::timeout(1_000 * MS, guard.lost()).await;
    report(if guard.is_lost() { "noticed" } else { "did not notice" });
}

#[test]
fn counter_rejects_an_older_fence() {
    let dir = test_support::temp_dir();
    let counter = Counter::at(&dir.path().join("counter"));
    assert_eq!(counter.read(Fence(5)), Ok(0));
    assert_eq!(counter.set(1, Fence(5)), Ok(1));
    assert_eq!(counter.read(Fence(6)), Ok(1));
    assert_eq!(counter.set(2, Fence(5)), Err(StaleFence), "a newer fence has been recorded");
    assert_eq!(counter.read(Fence(5)), Err(StaleFence));
    assert_eq!(counter.set(2, Fence(6)), Ok(2));
    assert_eq!(counter.value(), 2);
}
