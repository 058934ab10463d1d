//! Clocks: one that all processes of the machine share and nobody can set, and a wall clock that somebody sets all the time.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Microseconds on a clock that never steps and is the same in every process of this machine.
pub fn boot_micros() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

/// Makes a library that, loaded before the C library, lets a process see a wall clock that is set forward and back
/// by up to a month, twice a second. The other clocks stay as they are.
pub fn stepped(dir: &Path) -> PathBuf {
    let library = dir.join("stepped.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/distributed_locks/stepped.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    assert!(made.is_ok_and(|status| status.success()), "cc makes {}; ./check installs it", source.display());
    library
}

/// Without this the rest would prove nothing: a child does see the steps.
#[test]
fn stepped_wall_clock_is_visible_in_the_child() {
    let dir = test_support::temp_dir();
    let seen = |preload: Option<PathBuf>| {
        let mut child = crate::distributed_locks::child::Start::new("clock");
        child.preload = preload;
        let mut child = child.run();
        child.word().parse::<u64>().expect("the greatest step in seconds")
    };
    assert!(seen(None) < 60, "a clock that nobody sets");
    assert!(seen(Some(stepped(dir.path()))) > 3_000, "a clock that is set");
}

/// The child: how far apart the wall clock and the other one ran in a second, in seconds.
pub fn compare() -> u64 {
    let wall = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        i64::try_from(now.as_micros()).expect("fits")
    };
    let first = wall() - boot_micros();
    let drift = |_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        (wall() - boot_micros() - first).unsigned_abs() / 1_000_000
    };
    (0..24).map(drift).max().unwrap_or(0)
}
