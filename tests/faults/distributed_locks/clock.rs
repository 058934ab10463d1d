//! Two clocks: one that is shared by all processes and never set, and a wall clock that is set all the time.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns microseconds on a clock that never steps and is the same in every process of this machine.
pub fn boot_micros() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

/// Builds a library for `LD_PRELOAD` that sets a process's wall clock forward and back by up to a month, twice a
/// second. Other clocks are not changed.
pub fn build_stepped_clock(dir: &Path) -> PathBuf {
    let library = dir.join("stepped.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/distributed_locks/stepped.c");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc makes {}; ./check installs it", source.display());
    library
}

/// Control: the child does see the steps.
#[test]
fn stepped_wall_clock_is_visible_in_the_child() {
    let dir = test_support::temp_dir();
    let step_seen_by_child = |preload: Option<PathBuf>| {
        let mut child = crate::distributed_locks::child::Start::new("clock");
        child.preload = preload;
        let mut child = child.run();
        child.next_message().parse::<u64>().expect("the greatest step in seconds")
    };
    assert!(step_seen_by_child(None) < 60, "an unmodified clock");
    assert!(step_seen_by_child(Some(build_stepped_clock(dir.path()))) > 3_000, "a clock that is set");
}

/// The child: returns how far the two clocks diverged within a second, in seconds.
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
