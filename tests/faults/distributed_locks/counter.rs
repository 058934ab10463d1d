//! What a lock protects: a number in a file, which refuses a fence older than it has seen. And those who count with it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use duly::{Duly, Fence};
use rustix::process::{Signal, getpid, kill_process};

use crate::distributed_locks::child::{say, wait_for_go};
use crate::distributed_locks::location::MS;

/// How long their locks last without being extended.
pub const TTL: Duration = Duration::from_millis(300);
/// One in so many increments is paused in its middle, for longer than its lock lasts.
const PAUSE_ONE_IN: u32 = 150;

/// The fence was older than one that was seen before.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

/// A number and the greatest fence that was seen, changed in one step: as a row would be by
/// `UPDATE .. SET value = ?1, fence = ?2 WHERE fence <= ?2`. The file's own lock stands for the database's; nobody is
/// paused while holding it for any other reason than that the system does so.
pub struct Counter(File);

impl Counter {
    pub fn at(path: &Path) -> Self {
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        Counter(open.expect("a file of the test's own"))
    }

    /// The value. To look is to have the fence seen: whoever has looked before, and writes after, is refused.
    /// Were it only seen by the write, an older holder could still write between this look and that write.
    pub fn look(&self, fence: Fence) -> Result<u64, Refused> {
        self.change(|(value, seen)| if fence.0 < seen { Err(Refused) } else { Ok((value, fence.0)) })
    }

    pub fn set(&self, value: u64, fence: Fence) -> Result<u64, Refused> {
        self.change(|(_, seen)| if fence.0 < seen { Err(Refused) } else { Ok((value, fence.0)) })
    }

    /// What a program does that trusts its lock.
    pub fn set_carelessly(&self, value: u64) {
        self.change(|(_, seen)| Ok((value, seen))).expect("is not refused");
    }

    pub fn value(&self) -> u64 {
        self.change(Ok).expect("is not refused")
    }

    fn change(&self, next: impl FnOnce((u64, u64)) -> Result<(u64, u64), Refused>) -> Result<u64, Refused> {
        self.0.lock().expect("locks");
        let mut bytes = [0; 16];
        let read = self.0.read_at(&mut bytes, 0).expect("reads");
        assert!(read == 0 || read == bytes.len(), "whole or new");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let next = next((number(0), number(8)));
        if let Ok((value, fence)) = next {
            let bytes = [value.to_le_bytes(), fence.to_le_bytes()].concat();
            self.0.write_all_at(&bytes, 0).expect("writes");
        }
        self.0.unlock().expect("unlocks");
        next.map(|(value, _)| value)
    }
}

/// The child: counts up to the goal together with others, and says how often it has, how often it was refused,
/// and how often it was paused.
pub async fn live(store: &str, file: &Path, goal: u64) {
    let (duly, counter) = (Duly::open(store).await.expect("opens"), Counter::at(file));
    let (mut counted, mut refused, mut paused) = (0, 0, 0);
    loop {
        let guard = duly.lock("counter").ttl(TTL).acquire().await.expect("gets it");
        let set = match counter.look(guard.fence()) {
            Ok(value) if value >= goal => break,
            Ok(value) => {
                if fastrand::u32(..PAUSE_ONE_IN) == 0 {
                    paused += 1;
                    kill_process(getpid(), Signal::STOP).expect("stops itself");
                    // Another thread may have got the signal: a moment goes by before it has stopped this one.
                    std::thread::sleep(20 * MS);
                }
                // Whether the lock is lost by now is not asked: that alone would leave a gap.
                counter.set(value + 1, guard.fence())
            }
            Err(Refused) => Err(Refused),
        };
        match set {
            Ok(_) => counted += 1,
            Err(Refused) => refused += 1,
        }
        // Says that it was lost, where it was.
        let _ = guard.release().await;
    }
    say(format_args!("{counted} {refused} {paused}"));
}

/// The child: looks, is paused there, and writes when it is let go.
pub async fn late(store: &str, file: &Path, checked: bool) {
    let (duly, counter) = (Duly::open(store).await.expect("opens"), Counter::at(file));
    let guard = duly.lock("counter").ttl(TTL).acquire().await.expect("is free");
    let value = counter.look(guard.fence()).expect("the first");
    say("has looked");
    wait_for_go();
    if checked {
        match counter.set(value + 1, guard.fence()) {
            Ok(_) => say("wrote"),
            Err(Refused) => say("refused"),
        }
    } else {
        counter.set_carelessly(value + 1);
        say("wrote");
    }
    // Time for the guard to learn what has happened.
    let _ = tokio::time::timeout(1_000 * MS, guard.lost()).await;
    say(if guard.is_lost() { "knows" } else { "does not know" });
}

#[test]
fn counter_rejects_an_older_fence() {
    let dir = test_support::temp_dir();
    let counter = Counter::at(&dir.path().join("counter"));
    assert_eq!(counter.look(Fence(5)), Ok(0));
    assert_eq!(counter.set(1, Fence(5)), Ok(1));
    assert_eq!(counter.look(Fence(6)), Ok(1));
    assert_eq!(counter.set(2, Fence(5)), Err(Refused), "a newer one has looked");
    assert_eq!(counter.look(Fence(5)), Err(Refused));
    assert_eq!(counter.set(2, Fence(6)), Ok(2));
    assert_eq!(counter.value(), 2);
}
