//! Simulated power cuts: the log of a real process's writes and syncs is replayed on a simulated disk. The power is
//! cut at every sync boundary and in between, and each result is opened and checked.
//!
//! At the default durability nothing acknowledged is lost and nothing is damaged. At `durability=second` the same
//! checker finds loss, but no damage. The child is this test binary, started again under strace with a role in the
//! environment. `DULY_POWER_STATES=n` sets the number of cuts, `DULY_POWER_SEED=n` repeats a run's choices.

mod checker_controls;
mod child;
mod cuts;
mod disk;
mod ledger;
mod trace;

use std::sync::OnceLock;
use std::time::Instant;

use child::Role;
use cuts::SweepReport;
use disk::Disk;
use test_support::env_number;
use trace::{EVERYTHING, Event, Part, Run, Sync};

/// Number of cuts by default.
const STATES: usize = 2_000;
/// More than all tests here need at once: their logs, and an image for each thread.
const SCRATCH_BYTES: u64 = 1 << 30;
/// A write this far into the WAL is part of its one-time growth by duly: rolled back, never valid.
const GROWTH_OFFSET: usize = 7 * 1024 * 1024;

/// Not a test: the entry point of a child process.
#[test]
fn child_process() {
    child::run_role();
}

/// Returns a scratch directory, in memory if there is enough space: thousands of files are created and removed.
fn scratch() -> test_support::TempDir {
    const MEMORY: &str = "/dev/shm";
    let free = rustix::fs::statvfs(MEMORY).map_or(0, |memory| memory.f_bavail * memory.f_frsize);
    let dir = if free >= SCRATCH_BYTES { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() };
    dir.expect("a temporary directory")
}

/// The events of the child at the default durability, recorded once for all tests.
fn default_events() -> &'static [Event] {
    static EVENTS: OnceLock<Vec<Event>> = OnceLock::new();
    EVENTS.get_or_init(|| trace::record(scratch().path(), "", &EVERYTHING))
}

fn cut(name: &str, events: &[Event], disk: fn() -> Disk, states: usize) -> SweepReport {
    let start = Instant::now();
    let seed = env_number("DULY_POWER_SEED").unwrap_or_else(|| fastrand::u64(..));
    let states =
        env_number("DULY_POWER_STATES").map_or(states, |n| usize::try_from(n).expect("fits") * states / STATES);
    let report = cuts::sweep(events, disk, states, seed, scratch().path());
    println!(
        "{name}: {} states along {} syncs, {} checkpoints and {} acknowledged pushes: \
         {} with loss (at most {} jobs), {} corrupt; seed {seed}, {:.1} s",
        report.states,
        report.syncs,
        report.checkpoints,
        report.pushed,
        report.lossy,
        report.lost_max,
        report.corrupt,
        start.elapsed().as_secs_f64()
    );
    report
}

/// Checks that the run did enough to prove something.
fn check_enough(events: &[Event], report: &SweepReport) {
    assert!(report.pushed > 100 && report.checkpoints > 2, "{report:?}");
    let grows =
        |event: &Event| matches!(event, Event::Write { part: Part::Wal, offset, .. } if *offset > GROWTH_OFFSET);
    assert!(events.iter().any(grows), "the WAL has frames that were rolled back");
}

#[test]
fn power_cut_at_default_durability_loses_nothing() {
    let report = cut("default", default_events(), Disk::default, STATES);
    assert_eq!((report.lossy, report.corrupt), (0, 0), "{:#?}", report.examples);
    check_enough(default_events(), &report);
    assert!(2 * report.syncs <= STATES * 3 / 4, "there is room for every sync boundary: {} syncs", report.syncs);
}

#[test]
fn checker_finds_loss_at_durability_second() {
    let events = trace::record(scratch().path(), "?durability=second", &EVERYTHING);
    let report = cut("second", &events, Disk::default, STATES / 4);
    assert_eq!(
        report.corrupt, 0,
        "a relaxed durability loses the last moments, it damages nothing: {:#?}",
        report.examples
    );
    check_enough(&events, &report);
    assert!(report.lossy > 0, "a checker that sees no loss here would see none anywhere");
}

#[test]
fn checker_finds_damage_on_a_lying_disk() {
    let report = cut("lying disk", default_events(), Disk::lying, STATES / 20);
    assert!(
        report.corrupt > 0 && report.lossy > 0,
        "a checker that sees no damage here would see none anywhere: {report:?}"
    );
}

/// Returns the rest of each report that starts with this word.
fn reported(events: &[Event], word: &str) -> Vec<String> {
    let rest = |event: &Event| match event {
        Event::Reported(line) => line.strip_prefix(word).map(|rest| rest.trim().to_owned()),
        _ => None,
    };
    events.iter().filter_map(rest).collect()
}

/// A process is killed between the write and the sync of a push. The next process finds the job and reports that it
/// exists. The job must then be durable, because the client repeated the push after a lost reply and relies on it.
#[test]
fn push_answered_with_existing_is_durable() {
    const DIES_IN_SYNC: usize = 9;
    let runs = [Some((DIES_IN_SYNC, Sync::Kills)), None].map(|sync| Run { role: Role::Again, sync });
    let events = trace::record(scratch().path(), "", &runs);
    let (pushed, existing) = (reported(&events, "pushed "), reported(&events, "existing "));
    let unacknowledged: Vec<_> = existing.iter().filter(|id| !pushed.contains(id)).collect();
    assert_eq!(unacknowledged.len(), 1, "one push was written and got no reply: {pushed:?}, {existing:?}");
    let report = cut("pushed again", &events, Disk::default, STATES / 10);
    assert_eq!((report.lossy, report.corrupt), (0, 0), "{:#?}", report.examples);
}

/// The disk fails in the sync of a push, so the outcome of the push is unknown. After a repeated push with the same
/// id, the job exists once and is durable.
#[test]
fn push_with_failed_sync_can_be_repeated() {
    const FAILS_IN_SYNC: usize = 9;
    let run = Run { role: Role::Again, sync: Some((FAILS_IN_SYNC, Sync::Fails)) };
    let events = trace::record(scratch().path(), "", &[run]);
    assert_eq!(reported(&events, "unknown ").len(), 1, "one push has an unknown outcome");
    let report = cut("a sync failed", &events, Disk::default, STATES / 10);
    assert_eq!((report.lossy, report.corrupt), (0, 0), "{:#?}", report.examples);
}
